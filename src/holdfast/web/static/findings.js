// The findings: what is wrong, why, and the next commands, as `holdfast why` prints them.
//
// Promises: one request at a time, every few seconds, and none while the tab is hidden or the viewer is signed out. The server
// inspects the plane once for all viewers. A report that cannot be renewed stays, with its age.

import { Refused, ask } from './feed.js';
import { Rows, byId, make, mark, show, write } from './dom.js';
import { age, plural } from './format.js';

const EVERY_MS = 5000;
const COPIED_MS = 1500;
const TITLES = { act: 'act now', watch: 'watch', unknown: 'unknown', fine: 'fine' };

export class Findings {
  constructor() {
    this.rows = new Rows(byId('finding-rows'), build, fill);
    this.report = null;
    this.problem = '';
    this.running = false;
    this.bound = false;
  }

  /** The page has data. Starts reading findings, unless the viewer is bound to a tenant: findings are about all. */
  show(model) {
    this.bound = model.tenant !== null;
    show(byId('findings'), !this.bound);
    if (!this.bound && !this.running) this.run();
  }

  /** The viewer signed out. */
  forget() {
    this.bound = true;
    this.report = null;
  }

  async run() {
    this.running = true;
    while (!this.bound) {
      if (!document.hidden) await this.read();
      await new Promise((resolve) => { setTimeout(resolve, EVERY_MS); });
    }
    this.running = false;
  }

  async read() {
    try {
      this.report = await ask('/findings');
      this.heard = performance.now();
      this.problem = '';
    } catch (error) {
      this.problem = error instanceof Refused ? error.message : 'the server does not answer';
    }
    if (!this.bound) this.display();
  }

  display() {
    this.tick();
    if (!this.report) return;
    const { findings, inspections } = this.report;
    mark(byId('findings'), 'data-severity', this.report.severity);
    const sources = new Map(inspections.map((each) => [each.what, each]));
    this.rows.show(findings.map((each) => ({ ...each, sources })), (each) => each.rule);
    const unseen = inspections.filter((each) => each.problem !== null);
    show(byId('unseen'), unseen.length > 0);
    write(byId('unseen-title'), `What could not be seen (${unseen.length})`);
    byId('unseen-rows').replaceChildren(...unseen.map((each) => make('li', '', `${each.what}: ${each.problem}`)));
  }

  /** The age of the report, from the time of its arrival: the clocks of viewer and server may differ. */
  tick() {
    if (!this.report) {
      write(byId('findings-note'), this.problem ? `Not known: ${this.problem}.` : 'inspecting…');
      return;
    }
    const act = this.report.findings.filter((each) => each.severity === 'act').length;
    const told = act ? `${plural(act, 'cause')} to act on, the first one first` : '';
    const old = `inspected ${age(performance.now() - this.heard)} ago`;
    write(byId('findings-note'), [told, old, this.problem && `not renewed: ${this.problem}`].filter(Boolean).join(' · '));
  }
}

function build() {
  const root = make('li', 'finding');
  const severity = make('span', 'chip');
  const rule = make('strong');
  const sentence = make('p', 'sentence');
  const steps = make('ol', 'steps');
  const evidence = make('details', 'evidence');
  const lines = make('ul', 'mono');
  evidence.append(make('summary', '', 'Evidence'), lines);
  root.append(severity, rule, sentence, steps, evidence);
  return { root, severity, rule, sentence, steps, evidence, lines };
}

function fill(row, finding) {
  mark(row.root, 'data-rule', finding.rule);
  mark(row.severity, 'data-severity', finding.severity);
  write(row.severity, TITLES[finding.severity] ?? finding.severity);
  write(row.rule, finding.rule);
  write(row.sentence, finding.sentence);
  const commands = JSON.stringify(finding.next);
  if (row.commands !== commands) {
    row.commands = commands; // replaced only if they differ, so that a selection and the focus stay
    row.steps.replaceChildren(...finding.next.map(step));
  }
  const seen = finding.because.map((name) => finding.sources.get(name)).filter((each) => each && each.lines.length);
  show(row.evidence, seen.length > 0);
  row.lines.replaceChildren(...seen.flatMap((each) => each.lines.map((line) => make('li', '', `${each.what}: ${line}`))));
}

function step({ command, why }) {
  const root = make('li', 'step');
  const code = make('code', 'command', command);
  const button = make('button', 'quiet', 'Copy');
  button.type = 'button';
  mark(button, 'aria-label', `Copy: ${command}`);
  button.addEventListener('click', () => copy(code, button));
  root.append(code, button, make('span', 'note', why));
  return root;
}

/** Browsers allow the clipboard to pages from this host or with TLS only. Else the command is selected, for Ctrl+C. */
async function copy(code, button) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    write(button, 'Copied');
  } catch {
    getSelection().selectAllChildren(code);
    write(button, 'Selected');
  }
  setTimeout(() => write(button, 'Copy'), COPIED_MS);
}
