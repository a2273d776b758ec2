// Schedules: name, due times, state, next due time and last job. The commands to pause and run them are in the shell.
//
// Promises: one request at a time, every few seconds, and none while the tab is hidden or the viewer is signed out. Without
// schedules, the section is hidden.

import { Refused, ask } from './feed.js';
import { Rows, byId, make, mark, show, write } from './dom.js';
import { age, moment, plural, whole } from './format.js';

const EVERY_MS = 5000;
const MOST = 100;

export class Schedules {
  constructor(open) {
    this.rows = new Rows(byId('schedule-rows'), () => build(open), fill);
    this.running = false;
    this.signedIn = false;
  }

  /** The page has data. Starts reading schedules. */
  show() {
    this.signedIn = true;
    if (!this.running) this.run();
  }

  /** The viewer signed out. */
  forget() {
    this.signedIn = false;
  }

  async run() {
    this.running = true;
    while (this.signedIn) {
      if (!document.hidden) await this.read();
      await new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });
    }
    this.running = false;
  }

  async read() {
    try {
      const page = await ask(`/schedules?limit=${MOST}`);
      if (this.signedIn) this.display(page);
    } catch (error) {
      const problem = error instanceof Refused ? error.message : 'the server does not answer';
      write(byId('schedules-note'), `not renewed: ${problem}`);
    }
  }

  display(page) {
    const { items } = page;
    show(byId('schedules'), items.length > 0);
    const paused = items.filter((each) => each.state === 'paused').length;
    const more = page.next === null ? '' : ', the first of more';
    write(byId('schedules-note'), `${plural(items.length, 'schedule')}${paused ? `, ${paused} paused` : ''}${more}`);
    this.rows.show(items, (each) => `${each.tenant} ${each.name}`);
  }

  tick(now) {
    for (const row of this.rows.values()) write(row.next, due(row.item, now));
  }
}

function build(open) {
  const root = make('li', 'crew schedule');
  const name = make('span', 'name mono');
  const next = make('span', 'places');
  const about = make('span', 'topics');
  const last = make('span', 'heart');
  const job = make('button', 'open mono');
  job.type = 'button';
  const words = make('span');
  last.append(job, words);
  root.append(name, next, about, last);
  const row = { root, name, next, about, job, words };
  job.addEventListener('click', () => open(row.item.last_job));
  return row;
}

function fill(row, schedule) {
  row.item = schedule;
  mark(row.root, 'data-schedule', schedule.name);
  mark(row.root, 'data-alive', schedule.state === 'active' ? 'yes' : 'no');
  write(row.name, schedule.tenant === 'default' ? schedule.name : `${schedule.tenant} / ${schedule.name}`);
  mark(row.name, 'title', `submits ${schedule.topic}`);
  write(row.about, `${schedule.expression} · ${counts(schedule)}`);
  show(row.job, schedule.last_job !== null);
  write(row.job, schedule.last_job === null ? '' : 'last job');
  mark(row.job, 'title', schedule.last_job);
  const fired = schedule.last_fired_at === null ? 'no job yet' : ` ${moment(schedule.last_fired_at)}`;
  write(row.words, schedule.problem === null ? fired : ` ${schedule.problem}`);
}

function due(schedule, now) {
  if (schedule.state === 'paused') return `paused by ${schedule.paused_by}`;
  if (schedule.next_at === null) return schedule.state;
  const left = Date.parse(schedule.next_at) - now;
  return left > 0 ? `in ${age(left)}` : 'now';
}

function counts(schedule) {
  const lost = schedule.skipped + schedule.missed;
  return `${whole.format(schedule.fired)} fired${lost ? `, ${whole.format(lost)} skipped or missed` : ''}`;
}
