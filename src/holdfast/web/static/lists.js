// Workers and dead letters.

import { Rows, byId, hint, make, mark, show, write, writeFence } from './dom.js';
import { age, plural, whole } from './format.js';

export class Workers {
  constructor() {
    this.rows = new Rows(byId('worker-rows'), build, fill);
    this.snapshot = null;
  }

  show(model, now) {
    const known = [...model.workers.values()].sort((one, other) => other.alive - one.alive || (one.worker < other.worker ? -1 : 1));
    const alive = known.filter((each) => each.alive);
    this.rows.show(known, (each) => each.worker);
    const sum = (name) => alive.reduce((total, each) => total + each[name], 0);
    write(byId('workers-note'), known.length ? `${alive.length} alive, ${whole.format(sum('active'))} of ${whole.format(sum('capacity'))} slots in use` : '');
    show(byId('workers-empty'), known.length === 0);
    if (model.workers_known) hint(byId('workers-empty'), 'No workers yet. Start one with:', 'holdfast worker module:app');
    else hint(byId('workers-empty'), 'Workers cannot be read at the moment.');
    this.snapshot = model.snapshot ?? null;
    this.tick(now);
  }

  tick(now) {
    for (const row of this.rows.values()) {
      const silent = age(now - row.heard);
      write(row.heart, row.item.alive ? `heartbeat ${silent} ago` : `no heartbeat for ${silent}`);
    }
    show(byId('snapshot'), this.snapshot !== null);
    if (this.snapshot) {
      const { writer, at, fence } = this.snapshot;
      write(byId('snapshot'), `Snapshot ${age(now - Date.parse(at))} old, written by ${writer} under fence ${fence ?? '–'}`);
    }
  }
}

function build() {
  const root = make('li', 'crew');
  const name = make('span', 'name mono');
  const places = make('span', 'places');
  const bar = make('span', 'track');
  const level = make('span', 'level');
  bar.setAttribute('aria-hidden', 'true');
  bar.append(level);
  const topics = make('span', 'topics');
  const heart = make('span', 'heart');
  root.append(name, places, bar, topics, heart);
  return { root, name, places, bar, level, topics, heart };
}

function fill(row, worker) {
  mark(row.root, 'data-worker', worker.worker);
  mark(row.root, 'data-alive', worker.alive ? 'yes' : 'no');
  write(row.name, worker.worker);
  mark(row.name, 'title', worker.worker);
  // A dead worker runs nothing: its last report of busy slots is stale.
  const active = worker.alive ? worker.active : 0;
  const slots = `${worker.draining ? 'draining, ' : ''}${whole.format(active)}/${whole.format(worker.capacity)}`;
  write(row.places, worker.alive ? slots : 'dead');
  row.level.style.setProperty('--part', (worker.capacity ? Math.min(1, active / worker.capacity) : 0).toFixed(4));
  const topics = `${worker.pool}: ${worker.topics.join(', ')}`;
  write(row.topics, topics);
  mark(row.topics, 'title', topics);
  row.heard = Date.parse(worker.heard_at);
}

export class Letters {
  /** `open(id)`: the user opens the job of a dead letter. */
  constructor(open) {
    this.rows = new Rows(byId('letter-rows'), () => buildLetter(open), fillLetter);
  }

  show(model, now) {
    const all = [...model.letters.values()].sort((one, other) => Date.parse(other.at) - Date.parse(one.at));
    this.rows.show(all, (each) => each.id);
    show(byId('letters-empty'), all.length === 0);
    if (model.letters_known) hint(byId('letters-empty'), 'No dead letters. Jobs that fail permanently are kept here. Retry one with:', 'holdfast jobs retry JOB');
    else hint(byId('letters-empty'), 'Dead letters cannot be read at the moment.');
    const waiting = model.dead ?? 0;
    write(byId('letters-note'), all.length ? `${plural(waiting, 'letter')} not retried${waiting > all.length ? `; the newest ${all.length}` : ''}` : '');
    this.tick(now);
  }

  tick(now) {
    for (const row of this.rows.values()) write(row.when, `${age(now - row.at)} ago`);
  }
}

function buildLetter(open) {
  const root = make('li', 'letter');
  const name = make('button', 'open');
  name.type = 'button';
  const tenant = make('span', 'tag');
  const when = make('span', 'when');
  const reason = make('span', 'why');
  root.append(name, tenant, when, reason);
  const row = { root, name, tenant, when, reason };
  name.addEventListener('click', () => open(row.item.job));
  return row;
}

function fillLetter(row, letter) {
  mark(row.root, 'data-letter', letter.id);
  write(row.name, letter.topic);
  mark(row.name, 'title', letter.job);
  write(row.tenant, letter.tenant);
  const tries = letter.attempts ? ` after ${plural(letter.attempts, 'attempt')}` : '';
  write(row.reason, `${letter.code}${tries}: ${letter.reason}${letter.retried_as ? ' (retried)' : ''}`);
  mark(row.reason, 'title', letter.reason);
  mark(row.root, 'data-retried', letter.retried_as ? 'yes' : null);
  row.at = Date.parse(letter.at);
}
