// The list of jobs: the newest and the unfinished ones, filtered by state and text.

import { Rows, byId, flash, hint, make, mark, show, write, writeFence } from './dom.js';
import { attemptText, GROUPS, STATES, age, plural, reported, whole } from './format.js';

const EXAMPLE = 'holdfast jobs submit TOPIC --payload \'{"n": 1}\' --follow';
const END_CHARS = 24;

export class Jobs {
  /** `open(id)`: the user opens a job. `filtered(group)`: the filter has changed. */
  constructor(open, filtered) {
    this.open = open;
    this.filtered = filtered;
    this.model = null;
    this.rows = new Rows(byId('job-rows'), () => this.build(), (row, job) => this.fill(row, job));
    this.state = byId('state');
    this.text = byId('text');
    this.state.append(...choices());
    this.state.addEventListener('change', () => this.refilter());
    this.text.addEventListener('input', () => this.refilter());
  }

  /** Show one group of states, or all if this group is selected already. */
  choose(group) {
    this.state.value = this.state.value === group ? '' : group;
    this.refilter();
  }

  refilter() {
    this.filtered(this.state.value);
    if (this.model) this.show(this.model);
  }

  show(model) {
    this.model = model;
    const all = [...model.jobs.values()].sort(newestFirst);
    const found = all.filter((job) => this.fits(job));
    this.rows.show(found, (job) => job.id);
    show(byId('job-rows').parentElement, found.length > 0);
    show(byId('jobs-empty'), found.length === 0);
    if (!model.jobs_known) hint(byId('jobs-empty'), 'Jobs cannot be read at the moment.');
    else if (!all.length) hint(byId('jobs-empty'), 'No jobs yet. Submit one with:', EXAMPLE);
    else hint(byId('jobs-empty'), 'No job on this page matches the filter. List older jobs with:', this.command());
    write(byId('jobs-note'), this.note(model, all, found));
  }

  note(model, all, found) {
    if (!all.length) return '';
    if (found.length === all.length) return `${plural(all.length, 'job')}: the newest and all unfinished`;
    const counted = this.states().reduce((sum, state) => sum + (model.counts?.[state] ?? 0), 0);
    const older = !this.text.value && counted > found.length ? `; the other ${whole.format(counted - found.length)}: ${this.command()}` : '';
    return `${found.length} of ${plural(all.length, 'job')}${older}`;
  }

  command() {
    const [state] = this.states();
    return state ? `holdfast jobs list --state ${state.toLowerCase()}` : 'holdfast jobs list';
  }

  /** The selected states; empty: all. */
  states() {
    const chosen = this.state.value;
    return GROUPS.find((each) => each.name === chosen)?.states ?? (chosen ? [chosen] : []);
  }

  fits(job) {
    const states = this.states();
    if (states.length && !states.includes(job.state)) return false;
    const words = this.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const line = [job.id, job.topic, job.tenant, job.pool, job.worker ?? '', job.reason ?? '', job.state, job.fence ?? '', job.run_fence ?? ''];
    const text = line.join(' ').toLowerCase();
    return words.every((word) => text.includes(word));
  }

  build() {
    const root = make('tr');
    const cell = (label, name = '') => {
      const made = make('td', name);
      made.dataset.label = label;
      root.append(made);
      return made;
    };
    const chip = make('span', 'chip');
    cell('State', 'state').append(chip);
    const open = make('button', 'open');
    open.type = 'button';
    const topic = make('span', 'topic');
    const id = make('span', 'mono id');
    const start = make('span', 'start');
    const end = make('span', 'end');
    id.append(start, end);
    open.append(topic, id);
    const progress = make('span', 'progress');
    const bar = make('span', 'progress-bar');
    const note = make('span', 'progress-note');
    progress.append(bar, note);
    cell('Job', 'job').append(open, progress);
    const row = { root, chip, topic, id, start, end, open, progress, bar, note };
    row.tenant = cell('Tenant', 'tenant');
    row.attempt = cell('Attempt', 'right attempt');
    row.age = cell('Age', 'right age');
    row.worker = make('span', 'worker');
    row.fence = make('span', 'fence');
    cell('Worker and fence', 'under').append(row.worker, row.fence);
    root.addEventListener('click', () => this.open(row.item.id));
    return row;
  }

  fill(row, job) {
    const before = row.chip.dataset.state;
    mark(row.chip, 'data-state', job.state);
    write(row.chip, STATES[job.state] ?? job.state);
    if (before && before !== job.state) flash(row.root);
    mark(row.root, 'data-job', job.id);
    write(row.topic, job.topic);
    writeId(row, job.id);
    mark(row.id, 'title', job.id);
    const working = job.state === 'RUNNING' && (job.fraction !== undefined || job.note !== undefined);
    show(row.progress, working);
    if (working) {
      show(row.bar, job.fraction !== undefined);
      row.bar.style.setProperty('--done', `${100 * (job.fraction ?? 0)}%`);
      write(row.note, reported(job));
      mark(row.note, 'title', job.note ?? null);
    }
    write(row.tenant, job.tenant);
    const attempt = attemptText(job, '/');
    write(row.attempt, attempt);
    mark(row.attempt, 'data-again', parseInt(attempt, 10) > 1 ? 'yes' : null);
    write(row.worker, job.worker ?? 'no worker yet');
    mark(row.worker, 'title', job.worker ?? null);
    writeFence(row.fence, job.fence);
    mark(row.fence, 'title', job.run_fence ? `written under ${job.fence}, runs under ${job.run_fence}` : null);
    row.created = Date.parse(job.created_at);
  }

  tick(now) {
    for (const row of this.rows.values()) write(row.age, age(now - row.created));
  }
}

/** The end of an id stays visible in narrow columns: for the job of a run it names the step and the attempt. */
function writeId(row, id) {
  const colon = id.lastIndexOf(':') + 1;
  const cut = Math.max(colon, id.length - END_CHARS);
  write(row.start, id.slice(0, cut));
  write(row.end, id.slice(cut));
}

function newestFirst(one, other) {
  const order = Date.parse(other.created_at) - Date.parse(one.created_at);
  return order || (one.id < other.id ? 1 : -1);
}

function choices() {
  const option = (value, text) => {
    const made = make('option', '', text);
    made.value = value;
    return made;
  };
  const groups = make('optgroup');
  groups.label = 'Groups';
  groups.append(...GROUPS.map((each) => option(each.name, each.title)));
  const states = make('optgroup');
  states.label = 'States';
  states.append(...Object.entries(STATES).map(([state, words]) => option(state, words)));
  return [option('', 'All states'), groups, states];
}
