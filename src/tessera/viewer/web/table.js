// Tables of analyses: sorted by any column, filtered by a text, rows made only where they are seen.

import { element, emptied, note } from './dom.js';
import { number, real } from './format.js';

const ROW = 26;
const AROUND = 12;

/** A table (`title`, `columns`, `rows`, `notes`, `missing` of tables.py). `onRow(row)` is called for a row that is chosen. */
export function tableOf(found, { sort = null, filter = true, onRow = null } = {}) {
  const box = element('section', {});
  const scroll = element('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': found.title });
  const body = element('tbody', {});
  const view = { rows: found.rows, by: sort, up: false, text: '' };
  const heads = found.columns.map((column, place) => headOf(column, () => ordered(place)));
  scroll.append(element('table', {}, element('thead', {}, element('tr', {}, heads)), body));
  const count = element('span', { class: 'faint' });

  function ordered(place) {
    view.up = view.by === place ? !view.up : found.columns[place].type === 'text';
    view.by = place;
    refresh();
  }

  function refresh() {
    const wanted = view.text.toLowerCase();
    const kept = found.rows.filter((row) => !wanted || row.some((value) => String(value ?? '').toLowerCase().includes(wanted)));
    if (view.by !== null) kept.sort((a, b) => compared(a[view.by], b[view.by]) * (view.up ? 1 : -1));
    view.rows = kept;
    heads.forEach((head, place) => {
      head.setAttribute('aria-sort', place !== view.by ? 'none' : view.up ? 'ascending' : 'descending');
    });
    count.textContent = `${kept.length} of ${found.rows.length} rows`;
    draw();
  }

  function draw() {
    const height = scroll.clientHeight || 600;
    const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - AROUND);
    const last = Math.min(view.rows.length, Math.ceil((scroll.scrollTop + height) / ROW) + AROUND);
    emptied(body).append(spacer(first), ...view.rows.slice(first, last).map(rowOf), spacer(view.rows.length - last));
  }

  function spacer(rows) {
    return element('tr', { 'aria-hidden': 'true', style: `height:${rows * ROW}px` });
  }

  function rowOf(row) {
    const choose = onRow ? () => onRow(row) : null;
    const keys = onRow ? (event) => (event.key === 'Enter' ? onRow(row) : undefined) : null;
    const cells = found.columns.map((column, place) => cellOf(row[place], column));
    return element('tr', { tabindex: onRow ? 0 : null, click: choose, keydown: keys }, cells);
  }

  scroll.addEventListener('scroll', draw);
  if (filter && found.rows.length > 8) {
    const changed = (event) => {
      view.text = event.target.value;
      refresh();
    };
    box.append(element('p', {}, element('input', { type: 'search', placeholder: 'filter rows', 'aria-label': 'filter rows', input: changed }), ' ', count));
  }
  if (found.rows.length) box.append(scroll);
  else box.append(note(`${found.title}: no rows`));
  for (const each of found.notes) box.append(note(each));
  for (const [why, names] of Object.entries(found.missing)) box.append(note(`${names.join(', ')}: not measured: ${why}`));
  refresh();
  return box;
}

function headOf(column, order) {
  return element('th', { class: column.type !== 'text' ? 'number' : null, scope: 'col' }, element('button', { click: order }, spelt(column.heading)));
}

/** A heading with its unit apart, as charts spell it: the command line has no micro sign. */
function spelt(heading) {
  return heading.replace('(us)', '(\u00b5s)').replace(/(\S)\(/, '$1 (');
}

function cellOf(value, column) {
  const text = column.type === 'float' ? real(value) : number(value);
  const title = typeof value === 'string' && value.length > 40 ? value : null;
  const told = { class: column.type !== 'text' ? 'number' : null, 'data-column': column.name, 'data-value': value, title };
  return element('td', told, text);
}

function compared(a, b) {
  if (a === null || a === undefined) return b === null || b === undefined ? 0 : -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : a > b ? 1 : 0;
}
