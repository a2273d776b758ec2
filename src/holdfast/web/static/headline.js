// The top of the page: jobs by state, and throughput.

import { byId, make, mark, write } from './dom.js';
import { GROUPS, STATES, pace, timeOfDay, whole } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';
const HEIGHT = 56;
const STALE_MS = 5000;

export class Headline {
  /** `choose(group)` is called when the user selects a group. */
  constructor(choose, toLetters) {
    this.tiles = GROUPS.map((group) => this.tile(group, () => choose(group.name)));
    this.dead = this.tile({ name: 'dead', title: 'Dead letters', states: [] }, toLetters);
    this.chosen('');
    byId('tiles').append(...this.tiles.map((each) => each.root), this.dead.root);
    this.bars = [];
  }

  tile(group, click) {
    const root = make('button', 'tile card');
    root.type = 'button';
    root.dataset.group = group.name;
    const number = make('span', 'number', '0');
    const detail = make('span', 'note');
    root.append(make('span', 'title', group.title), number, detail);
    root.addEventListener('click', click);
    return { root, number, detail, group };
  }

  chosen(name) {
    for (const each of this.tiles) each.root.setAttribute('aria-pressed', String(each.group.name === name));
  }

  show(model, now) {
    const { counts } = model;
    if (counts) {
      for (const each of this.tiles) {
        const { states } = each.group;
        const known = states.some((state) => counts[state] !== undefined); // counting many jobs takes time
        const retried = each.group.name === 'failed' ? (model.retried ?? 0) : 0; // the step goes on: not a failure yet
        const number = states.reduce((sum, state) => sum + (counts[state] ?? 0), -retried);
        write(each.number, known ? whole.format(Math.max(0, number)) : '…'); // the two are counted at different times
        const parts = states.length > 1 ? states.filter((state) => counts[state]) : [];
        const words = parts.map((state) => `${whole.format(counts[state])} ${STATES[state]}`);
        if (retried) words.push(`${whole.format(retried)} of these retried`);
        write(each.detail, words.join(' · '));
      }
      write(this.dead.number, model.dead === undefined ? '…' : whole.format(model.dead));
      write(this.dead.detail, model.dead ? 'not retried' : '');
      mark(this.dead.root, 'data-some', model.dead ? 'yes' : null);
    }
    if (model.ended) this.pace(model, now);
  }

  pace(model, now) {
    const { ended } = model;
    write(byId('pace'), pace(ended.per_second));
    const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
    const bad = sum(ended.otherwise);
    const minutes = Math.round((ended.span * ended.succeeded.length) / 60);
    const counted = now - Date.parse(model.counted_at) > STALE_MS ? `; counted at ${timeOfDay(Date.parse(model.counted_at))}` : '';
    const words = `${whole.format(sum(ended.succeeded))} succeeded, ${whole.format(bad)} failed or cancelled in ${minutes} min${counted}`;
    write(byId('pace-note'), words);
    this.chart(ended, words);
  }

  chart(ended, words) {
    const chart = byId('chart');
    mark(chart, 'aria-label', `Finished jobs in spans of ${ended.span} seconds: ${words}`);
    const count = ended.succeeded.length;
    const step = 240 / count;
    while (this.bars.length < count) {
      const pair = ['good', 'bad'].map((name) => {
        const bar = document.createElementNS(SVG, 'rect');
        bar.setAttribute('class', name);
        bar.setAttribute('x', (this.bars.length * step + 0.5).toFixed(2));
        bar.setAttribute('width', (step - 1).toFixed(2));
        chart.append(bar);
        return bar;
      });
      this.bars.push(pair);
    }
    const most = Math.max(1, ...ended.succeeded.map((each, at) => each + ended.otherwise[at]));
    this.bars.forEach(([good, bad], at) => {
      const [well, ill] = [ended.succeeded[at], ended.otherwise[at]].map((each) => (each / most) * (HEIGHT - 4));
      const foot = well + ill > 0 ? 0 : 1.2; // a baseline for idle times
      mark(good, 'height', (well + foot).toFixed(2));
      mark(good, 'y', (HEIGHT - well - foot).toFixed(2));
      mark(bad, 'height', ill.toFixed(2));
      mark(bad, 'y', (HEIGHT - well - ill).toFixed(2));
      mark(good, 'class', foot ? 'good quiet' : 'good');
    });
  }
}
