// Formats numbers, times and states.

export const STATES = {
  PENDING: 'pending',
  APPROVAL_REQUIRED: 'needs approval',
  SCHEDULED: 'scheduled',
  DISPATCHED: 'dispatched',
  RUNNING: 'running',
  RETRYING: 'retrying',
  SUCCEEDED: 'succeeded',
  FAILED: 'failed',
  TIMEOUT: 'timed out',
  CANCELLED: 'cancelled',
  DENIED: 'denied',
  OUTPUT_QUARANTINED: 'quarantined',
};

export const GROUPS = [
  { name: 'waiting', title: 'Waiting', states: ['PENDING', 'APPROVAL_REQUIRED'] },
  { name: 'work', title: 'In progress', states: ['SCHEDULED', 'DISPATCHED', 'RUNNING'] },
  { name: 'retrying', title: 'Retrying', states: ['RETRYING'] },
  { name: 'succeeded', title: 'Succeeded', states: ['SUCCEEDED'] },
  { name: 'failed', title: 'Failed', states: ['FAILED', 'TIMEOUT', 'DENIED', 'OUTPUT_QUARANTINED'] },
  { name: 'cancelled', title: 'Cancelled', states: ['CANCELLED'] },
];

export const whole = new Intl.NumberFormat('en');
const clock = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const precise = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3 });
const calendar = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });

export const timeOfDay = (ms) => clock.format(ms);
export const precisely = (ms) => precise.format(ms);
export const moment = (text) => calendar.format(Date.parse(text));

/** A duration: 0.4 s, 12 s, 3 min, 5 h, 2 d. */
export function span(ms) {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 99.5) return `${Math.round(seconds)} s`;
  if (seconds < 5970) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** The time between two events, down to milliseconds. */
export const between = (ms) => (ms < 995 ? `${Math.max(0, Math.round(ms))} ms` : span(ms));

/** An age in whole seconds. */
export function age(ms) {
  const seconds = Math.floor(Math.max(0, ms) / 1000);
  return seconds < 100 ? `${seconds} s` : span(ms);
}

export function pace(perSecond) {
  return perSecond >= 100 ? whole.format(Math.round(perSecond)) : perSecond.toFixed(perSecond >= 10 ? 1 : 2);
}

export function plural(number, one, many = `${one}s`) {
  return `${whole.format(number)} ${number === 1 ? one : many}`;
}

/** The progress that the function of a job reports; empty: none. */
export function reported({ fraction, note }) {
  const share = typeof fraction === 'number' ? `${Math.floor(100 * fraction)} %` : '';
  return [share, note].filter(Boolean).join(' · ');
}

/**
 * `2 of 3`. Each attempt of a workflow step is a separate job: its id has the number of the step's attempt, and a label,
 * which lists do not have, the limit. Postponed starts count as attempts and have no limit.
 */
export function attemptText(job, between = ' of ') {
  const step = /:[^:@]+@(\d+)$/.exec(job.id);
  const number = step ? Number(step[1]) : job.attempt;
  const most = step ? Number(job.labels?.['holdfast.attempts'] ?? 0) : job.max_attempts;
  return number <= most ? `${number}${between}${most}` : String(number);
}
