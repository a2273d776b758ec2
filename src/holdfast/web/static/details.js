// The details of one job: its data, fences and history. Read again whenever it has changed.

import { Refused, ask, stream } from './feed.js';
import { byId, make, mark, show, write, writeFence } from './dom.js';
import { attemptText, STATES, between, moment, precisely, reported } from './format.js';

const PREFIX = '#job=';
const VALUES_SHOWN = 100;
const AGAIN_MS = 2000;

export class Details {
  constructor() {
    this.dialog = byId('details');
    this.id = null;
    this.version = null;
    this.values = null; // ends their stream
    byId('details-close').addEventListener('click', () => this.dialog.close());
    this.dialog.addEventListener('close', () => this.closed());
    this.dialog.addEventListener('click', (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
    window.addEventListener('hashchange', () => this.follow());
  }

  /** Open the job in the address, so that links to jobs work. */
  follow() {
    if (!location.hash.startsWith(PREFIX)) return;
    try {
      this.open(decodeURIComponent(location.hash.slice(PREFIX.length)));
    } catch {
      // An invalid address names no job.
    }
  }

  open(id) {
    if (this.id === id) return;
    this.id = id;
    this.version = null;
    history.replaceState(null, '', PREFIX + encodeURIComponent(id));
    write(byId('details-title'), 'Job');
    write(byId('details-id'), id);
    write(byId('details-state'), '…');
    mark(byId('details-state'), 'data-state', null);
    show(byId('details-all'), false);
    show(byId('details-problem'), false);
    if (!this.dialog.open) this.dialog.showModal();
    this.read();
    this.followValues(id);
  }

  closed() {
    this.id = null;
    this.values?.abort();
    history.replaceState(null, '', location.pathname);
  }

  /** The list has changed; read the job again if it is another version. */
  show(model) {
    const line = this.id === null ? undefined : model.jobs.get(this.id);
    if (!line || this.version === null) return;
    if (line.version > this.version) this.read();
    else if (line.state === 'RUNNING' && reported(line)) this.progress(reported(line));
  }

  /** Progress changes without a new version of the job. */
  progress(text) {
    const shown = byId('details-facts').querySelector('[data-fact="Progress"] span');
    if (shown) write(shown, text);
    else byId('details-facts').prepend(fact('Progress', make('span', '', text)));
  }

  async read() {
    const { id } = this;
    const path = `/jobs/${encodeURIComponent(id)}`;
    try {
      const [job, events] = await Promise.all([ask(path), ask(`${path}/events`)]);
      if (this.id !== id) return;
      this.version = job.version;
      this.fill(job, events.items);
    } catch (error) {
      if (this.id !== id) return;
      write(byId('details-problem'), error instanceof Refused ? error.message : 'the server does not answer');
      show(byId('details-problem'), true);
    }
  }

  /** Show values that the job's function emits, until the job has ended or another one is shown. */
  async followValues(id) {
    this.values?.abort();
    const control = new AbortController();
    this.values = control;
    byId('details-values').replaceChildren();
    show(byId('details-emitted'), false);
    let last = '';
    for (let ended = false; !ended && !control.signal.aborted;) {
      try {
        ended = await stream(`/jobs/${encodeURIComponent(id)}/events`, last, control.signal, (event) => {
          last = event.id ?? last;
          if (event.kind === 'value') this.value(event);
        });
      } catch (error) {
        if (control.signal.aborted || (error instanceof Refused && error.status < 500)) return;
      }
      if (!ended) await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }

  value(event) {
    const list = byId('details-values');
    const row = make('li', 'value');
    const time = make('time', '', precisely(Date.parse(event.at)));
    time.dateTime = event.at;
    row.append(time, make('span', 'faint', `attempt ${event.attempt}`), make('code', '', JSON.stringify(event.value)));
    list.append(row);
    while (list.children.length > VALUES_SHOWN) list.firstElementChild.remove();
    show(byId('details-emitted'), true);
  }

  fill(job, events) {
    show(byId('details-problem'), false);
    show(byId('details-all'), true);
    mark(byId('details-state'), 'data-state', job.state);
    write(byId('details-state'), STATES[job.state] ?? job.state);
    write(byId('details-title'), job.topic);
    show(byId('details-reason'), Boolean(job.reason));
    write(byId('details-reason'), job.reason ? `${job.code ? `${job.code}: ` : ''}${job.reason}` : '');
    show(byId('details-waiting'), Boolean(job.waiting));
    write(byId('details-waiting'), job.waiting ? `Waiting: ${job.waiting.text}` : '');
    byId('details-facts').replaceChildren(...facts(job));
    byId('details-events').replaceChildren(...events.map((event, at) => happening(event, events[at - 1])));
    write(byId('details-payload'), JSON.stringify(job.payload, null, 2));
    write(byId('details-result'), job.result === null ? 'none' : JSON.stringify(job.result, null, 2));
  }
}

function facts(job) {
  const labels = Object.entries(job.labels).map(([name, value]) => `${name}=${value}`).join(', ');
  const said = [
    ['Tenant', job.tenant],
    ['Pool', job.pool],
    ['Progress', job.progress && reported(job.progress)],
    ['Attempt', attemptText(job)],
    ['Priority', job.priority],
    ['Submitted', `${moment(job.created_at)}${job.submitted_by ? ` by ${job.submitted_by}` : ''}`],
    ['Last change', moment(job.updated_at)],
    ['Worker', job.worker],
    ['Deadline', job.deadline_at && moment(job.deadline_at)],
    ['Not before', job.not_before && moment(job.not_before)],
    ['Key', job.idempotency_key],
    ['Trace', job.trace],
    ['Labels', labels],
  ].filter(([, value]) => value !== null && value !== undefined && value !== '');
  const rows = said.map(([name, value]) => fact(name, make('span', '', String(value))));
  return [...rows, fact('Scheduler’s fence', fenced(job.fence)), fact('Worker’s fence', fenced(job.run_fence))];
}

function fact(name, value) {
  const row = make('div');
  row.dataset.fact = name;
  const told = make('dd');
  told.append(value);
  row.append(make('dt', '', name), told);
  return row;
}

function fenced(fence) {
  const made = make('span', 'mono');
  writeFence(made, fence);
  return made;
}

function happening(event, before) {
  const row = make('li', 'event');
  row.dataset.state = event.after;
  const at = Date.parse(event.at);
  const since = before ? `+${between(at - Date.parse(before.at))}` : '';
  const time = make('time', '', precisely(at));
  time.dateTime = event.at;
  const head = make('span', 'event-head');
  head.append(make('strong', '', STATES[event.after] ?? event.after), time, make('span', 'faint', since));
  const detail = make('span', 'event-detail');
  detail.append(`by ${event.actor || 'unknown'}`);
  if (event.attempt) detail.append(`, attempt ${event.attempt}`);
  detail.append(', fence ', fenced(event.fence));
  row.append(head, detail);
  if (event.reason) row.append(make('span', 'event-reason', event.reason));
  if (event.traceback) {
    const trace = make('details', 'event-trace');
    trace.append(make('summary', '', 'Traceback'), make('pre', '', event.traceback));
    row.append(trace);
  }
  return row;
}
