// The data of the page: polls the API for changes, and keeps the complete status.
//
// Promises: one request at a time, none while the tab is hidden. When the server does not answer, reports it and retries,
// first soon, then every few seconds. The token stays in this tab (sessionStorage) and is sent only in the Authorization
// header of requests to the server that served this page.

const KEY = 'holdfast.token';
const TIMEOUT_MS = 10_000;
const PAUSES_MS = [300, 700, 1500, 3000];
const LISTS = { jobs: 'id', letters: 'id', workers: 'worker', locks: 'key' };

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Call the API. Throws `Refused` with the error of the server, or the error of `fetch` without a response. */
export async function ask(path) {
  const headers = { accept: 'application/json' };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const options = { headers, cache: 'no-store', credentials: 'omit', signal: AbortSignal.timeout(TIMEOUT_MS) };
  const answer = await fetch(`/api/v1${path}`, options);
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, String(problem.detail ?? `the server answered ${answer.status}`));
}

/**
 * Read server-sent events after the event `last`, and call `take(event)` with each. Returns when the stream ends: true if
 * nothing can follow. Not with `EventSource`, which sends no token.
 */
export async function stream(path, last, signal, take) {
  const headers = { accept: 'text/event-stream' };
  if (last) headers['last-event-id'] = last;
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  const answer = await fetch(`/api/v1${path}`, { headers, cache: 'no-store', credentials: 'omit', signal });
  if (!answer.ok) throw new Refused(answer.status, `the server answered ${answer.status}`);
  if (answer.status === 204) return true;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return false;
    const blocks = (text + value).split('\n\n');
    text = blocks.pop();
    for (const block of blocks) {
      const data = block.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6));
      if (data.length) take(JSON.parse(data.join('\n')));
    }
  }
}

const nothing = () => ({ at: null, jobs: new Map(), letters: new Map(), workers: new Map(), locks: new Map() });

export class Feed {
  /** `seen(model)`: new data. `linked(state, detail)`: live, lost, refused or locked. */
  constructor(seen, linked) {
    this.seen = seen;
    this.linked = linked;
    this.model = nothing();
    this.wake = () => {};
  }

  /** The user signed in or out: start again. */
  restart() {
    this.model = nothing();
    this.wake();
  }

  async run() {
    let failures = 0;
    for (;;) {
      const { model } = this;
      const { mark } = model;
      try {
        const status = await ask(mark ? `/status?after=${encodeURIComponent(mark)}` : '/status');
        failures = 0;
        if (this.model !== model) continue; // restarted in the meantime
        this.merge(status);
        this.linked('live');
        this.seen(this.model);
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          this.linked('locked', token.get() ? error.message : '');
          await this.woken();
          continue;
        }
        const refused = error instanceof Refused;
        this.linked(refused ? 'refused' : 'lost', refused ? error.message : '');
        await this.woken(PAUSES_MS[Math.min(failures, PAUSES_MS.length - 1)]);
        failures += 1;
      }
      if (document.hidden) await this.visible();
    }
  }

  merge(status) {
    const { model } = this;
    for (const [name, key] of Object.entries(LISTS)) {
      const lines = status[name];
      if (!lines) continue;
      if (status.whole) model[name].clear();
      for (const gone of lines.gone) model[name].delete(gone);
      for (const line of lines.items) model[name].set(line[key], line);
      model[`${name}_known`] = true;
    }
    for (const name of ['counts', 'retried', 'counted_at', 'ended', 'dead', 'snapshot', 'loops', 'locks_left_out']) {
      if (status[name] !== undefined) model[name] = status[name];
    }
    Object.assign(model, { mark: status.mark, parts: status.parts, tenant: status.tenant ?? null, every: status.every });
    model.at = Date.parse(status.at);
    model.heard = performance.now();
  }

  /** The time of the server's clock, as far as it is known. */
  now() {
    return this.model.at === null ? Date.now() : this.model.at + performance.now() - this.model.heard;
  }

  woken(limit) {
    return new Promise((resolve) => {
      this.wake = resolve;
      if (limit !== undefined) setTimeout(resolve, limit);
    });
  }

  visible() {
    return new Promise((resolve) => {
      const look = () => {
        if (document.hidden) return;
        document.removeEventListener('visibilitychange', look);
        resolve();
      };
      document.addEventListener('visibilitychange', look);
      look();
    });
  }
}
