// The page: connects the data of the server (feed.js) with its display (the other modules).

import { Details } from './details.js';
import { Rows, byId, make, mark, show, write } from './dom.js';
import { Feed, token } from './feed.js';
import { Findings } from './findings.js';
import { Headline } from './headline.js';
import { Jobs } from './jobs.js';
import { Letters, Workers } from './lists.js';
import { Locks } from './locks.js';
import { Schedules } from './schedules.js';
import { timeOfDay } from './format.js';

const TICK_MS = 200;
const SHOWN_BY = { database: 'jobs, workers and dead letters', leases: 'locks', bus: 'nothing on this page' };

const details = new Details();
const findings = new Findings();
const open = (id) => details.open(id);
const headline = new Headline((group) => jobs.choose(group), () => byId('letters').focus());
const jobs = new Jobs(open, (group) => headline.chosen(group));
const locks = new Locks(open);
const workers = new Workers();
const letters = new Letters(open);
const schedules = new Schedules(open);
const parts = new Rows(byId('parts'), buildPart, fillPart);
const feed = new Feed(seen, linked);
let live = false;

function seen(model) {
  const now = feed.now();
  show(byId('board'), true);
  show(byId('scope'), model.tenant !== null);
  write(byId('scope'), model.tenant === null ? '' : `tenant ${model.tenant}`);
  parts.show(Object.entries(model.parts), ([name]) => name);
  headline.show(model, now);
  findings.show(model);
  jobs.show(model);
  locks.show(model, now);
  workers.show(model, now);
  letters.show(model, now);
  schedules.show();
  details.show(model);
  tick();
  trouble(model);
  const waiting = model.counts ? (model.counts.RUNNING ?? 0) : 0;
  document.title = waiting ? `${waiting} running · Holdfast` : 'Holdfast';
}

function buildPart() {
  const root = make('li', 'part');
  const dot = make('span', 'dot');
  dot.setAttribute('aria-hidden', 'true');
  const name = make('span');
  root.append(dot, name);
  return { root, name };
}

function fillPart(row, [name, answer]) {
  mark(row.root, 'data-well', answer === 'ok' ? 'yes' : 'no');
  mark(row.root, 'data-part', name);
  write(row.name, answer === 'ok' ? name : `${name}: ${answer}`);
  mark(row.root, 'title', answer === 'ok' ? `${name}: healthy` : `${name}: ${answer}`);
}

/** Show which components fail, as the server reports. */
function trouble(model) {
  const ill = Object.keys(model.parts).filter((name) => model.parts[name] !== 'ok');
  if (!ill.length) {
    show(byId('banner'), false);
    return;
  }
  const stale = ill.map((name) => SHOWN_BY[name] ?? name).join('; ');
  warn('trouble', `Not healthy: ${ill.join(', ')}.`, `This may be stale: ${stale}.`);
}

/** Show the state of the connection to the server. */
function linked(state, detail) {
  live = state === 'live';
  mark(byId('link'), 'data-state', state);
  show(byId('sign-in'), state === 'locked');
  show(byId('forget'), state !== 'locked' && Boolean(token.get()));
  mark(document.body, 'data-stale', live || state === 'locked' ? null : 'yes');
  if (live) return; // the response has the other warnings
  write(byId('link-text'), { lost: 'disconnected', refused: 'refused', locked: 'signed out' }[state]);
  if (state === 'locked') {
    lock(detail);
    return;
  }
  const { at } = feed.model;
  const stale = at === null ? '' : `The data below is stale, from ${timeOfDay(at)}. `;
  if (state === 'lost') warn('lost', 'Disconnected: the server does not answer.', `${stale}Retrying…`);
  else warn('lost', `The server refused the request: ${detail}.`, `${stale}Retrying…`);
}

function warn(kind, title, text) {
  mark(byId('banner'), 'data-kind', kind);
  write(byId('banner-title'), title);
  write(byId('banner-text'), text);
  show(byId('banner'), true);
}

function lock(problem) {
  findings.forget();
  schedules.forget();
  show(byId('board'), false);
  show(byId('banner'), false);
  parts.show([], ([name]) => name);
  if (problem) token.forget();
  write(byId('sign-in-problem'), problem ? `Sign-in failed: ${problem}.` : '');
  byId('token').value = '';
  byId('token').focus();
}

byId('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  token.set(byId('token').value.trim());
  byId('token').value = '';
  feed.restart();
});

byId('forget').addEventListener('click', () => {
  token.forget();
  feed.restart();
  location.reload();
});

/** Update ages and bars between two responses. Not while disconnected: the server may have renewed expiring leases. */
function tick() {
  if (!live || document.hidden) return;
  const now = feed.now();
  write(byId('link-text'), `live, ${timeOfDay(now)}`);
  jobs.tick(now);
  findings.tick();
  locks.tick(now);
  workers.tick(now);
  letters.tick(now);
  schedules.tick(now);
}

setInterval(tick, TICK_MS);
details.follow();
feed.run();
