// Held locks with their holders, and bars that count down between two responses of the server.

import { Rows, byId, flash, hint, make, mark, show, write, writeFence } from './dom.js';
import { plural, span } from './format.js';

const LOW = 1 / 3;
const DIRE = 1 / 6;

export class Locks {
  /** `open(id)`: the user opens the job of a lock. */
  constructor(open) {
    this.open = open;
    this.longest = new Map(); // by family: the store does not keep the TTL
    this.leaders = new Rows(byId('leaders'), () => this.build(), (row, lock) => this.fill(row, lock));
    this.rows = new Rows(byId('lock-rows'), () => this.build(), (row, lock) => this.fill(row, lock));
  }

  show(model, now) {
    const bound = model.tenant !== null;
    const all = [...model.locks.values()].sort((one, other) => (one.key < other.key ? -1 : 1));
    for (const lock of all) this.measure(lock, now);
    const led = all.filter((lock) => lock.loop);
    const held = all.filter((lock) => !lock.loop);
    this.leaders.show(led, (lock) => lock.key);
    this.rows.show(held, (lock) => lock.key);
    show(byId('leaders'), led.length > 0);
    show(byId('lock-rows'), held.length > 0);
    const without = (model.loops ?? []).filter((loop) => !model.locks.has(loop.key)).map((loop) => loop.family);
    show(byId('leaderless'), model.locks_known === true && without.length > 0);
    write(byId('leaderless'), `No leader at the moment: ${without.join(', ')}.`);
    show(byId('locks-empty'), held.length === 0);
    if (bound) hint(byId('locks-empty'), 'Locks are not shown: they name objects of every tenant, and your token is bound to one.');
    else if (!model.locks_known) hint(byId('locks-empty'), 'Leases cannot be read at the moment.');
    else hint(byId('locks-empty'), 'No other lock is held. Each running job holds one.');
    const more = model.locks_left_out ? ', and more' : '';
    write(byId('locks-note'), bound || !model.locks_known ? '' : `${plural(all.length, 'lease')} held${more}`);
    this.tick(now);
  }

  measure(lock, now) {
    if (!lock.expires_at) return;
    const family = lock.family ?? lock.key;
    const left = Date.parse(lock.expires_at) - now;
    this.longest.set(family, Math.max(left, this.longest.get(family) ?? 0, 1));
  }

  build() {
    const root = make('li', 'lock');
    const name = make('span', 'name');
    const left = make('span', 'left');
    const bar = make('span', 'track');
    const level = make('span', 'level');
    bar.setAttribute('aria-hidden', 'true');
    bar.append(level);
    const holder = make('span', 'holder');
    const fence = make('span', 'mono fence');
    const waiters = make('span', 'waiters');
    root.append(name, left, bar, holder, waiters, fence);
    return { root, name, left, bar, level, holder, fence, waiters };
  }

  fill(row, lock) {
    mark(row.root, 'data-key', lock.key);
    if (row.known !== lock.key) {
      row.known = lock.key;
      row.name.replaceChildren(...this.naming(lock));
      mark(row.name, 'title', lock.key);
    }
    write(row.holder, lock.loop ? `led by ${lock.holder ?? 'unknown'}` : `held by ${lock.holder ?? 'unknown'}`);
    mark(row.holder, 'title', lock.holder);
    if (row.fence.dataset.fence && row.fence.dataset.fence !== String(lock.fence)) flash(row.root);
    writeFence(row.fence, lock.fence);
    show(row.waiters, lock.waiters > 0);
    write(row.waiters, lock.waiters ? `${lock.waiters} waiting` : '');
    row.until = lock.expires_at ? Date.parse(lock.expires_at) : null;
    row.family = lock.family ?? lock.key;
  }

  naming(lock) {
    if (lock.loop) return [make('strong', '', lock.family)];
    if (!lock.job) return [make('span', 'mono', lock.key), make('span', 'tag', lock.family ?? 'no family')];
    const open = make('button', 'open mono', lock.job);
    open.type = 'button';
    open.addEventListener('click', () => this.open(lock.job));
    return [open, make('span', 'tag', lock.family)];
  }

  tick(now) {
    for (const rows of [this.leaders, this.rows]) for (const row of rows.values()) this.count(row, now);
  }

  count(row, now) {
    if (row.until === null) {
      write(row.left, 'no expiry');
      return;
    }
    const left = Math.max(0, row.until - now);
    const part = Math.min(1, left / this.longest.get(row.family));
    write(row.left, left > 0 ? span(left) : 'expired');
    row.level.style.setProperty('--part', part.toFixed(4));
    mark(row.bar, 'data-level', part > LOW ? 'fine' : part > DIRE ? 'low' : 'dire');
  }
}
