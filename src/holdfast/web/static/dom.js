// Updates the page: only text, and only where it differs, so that nothing flickers and the focus stays.

export const byId = (id) => document.getElementById(id);

/** A new element: `make('span', 'chip', 'text')`. The content is text, never markup. */
export function make(tag, name = '', text = '') {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

export function write(element, text) {
  const wanted = String(text ?? '');
  if (element.textContent !== wanted) element.textContent = wanted;
}

export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, String(value));
  }
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/** A fence: all digits, with the leading ones dimmed, which rarely change. */
export function writeFence(element, fence) {
  const digits = fence === undefined || fence === null ? '' : String(fence);
  if (element.dataset.fence === digits) return;
  element.dataset.fence = digits;
  const tail = digits.length > 9 ? digits.slice(-9) : digits;
  const head = make('span', 'faint', digits.slice(0, digits.length - tail.length));
  element.replaceChildren(...(digits ? [head, tail] : [make('span', 'faint', '–')]));
}

/** A list of rows with names: rows are changed in place, and moved only if necessary. */
export class Rows {
  /** `build()` makes `{ root, … }`; `fill(row, item)` writes an item into it. */
  constructor(container, build, fill) {
    this.container = container;
    this.build = build;
    this.fill = fill;
    this.rows = new Map();
  }

  show(items, name) {
    const wanted = new Set(items.map(name));
    for (const [key, row] of this.rows) {
      if (!wanted.has(key)) {
        row.root.remove();
        this.rows.delete(key);
      }
    }
    let next = this.container.firstElementChild;
    for (const item of items) {
      const key = name(item);
      let row = this.rows.get(key);
      if (!row) {
        row = this.build();
        this.rows.set(key, row);
      }
      row.item = item;
      this.fill(row, item);
      if (row.root === next) next = next.nextElementSibling;
      else this.container.insertBefore(row.root, next);
    }
  }

  values() {
    return this.rows.values();
  }
}

const still = window.matchMedia('(prefers-reduced-motion: reduce)');

/** Highlight a change for a moment. */
export function flash(element) {
  if (still.matches) return;
  element.animate([{ backgroundColor: 'var(--flash)' }, { backgroundColor: 'transparent' }], { duration: 1200, easing: 'ease-out' });
}

/** The text of an empty list: the next step. */
export function hint(element, words, command) {
  const wanted = `${words}\n${command ?? ''}`;
  if (element.dataset.hint === wanted) return;
  element.dataset.hint = wanted;
  element.replaceChildren(make('p', '', words));
  if (command) element.append(make('code', 'command', command));
}
