// Kernels: one row for each work, and what is known of the one that is chosen.

import { ask, isFile } from './api.js';
import { element, emptied, note } from './dom.js';
import { number, real } from './format.js';
import { link, windowOf, state } from './state.js';
import { tableOf } from './table.js';

export async function kernelsPage(box, { run }) {
  const span = windowOf(state());
  const asked = span && !isFile() ? { run, t0: Math.floor(span[0]), t1: Math.ceil(span[1]) } : { run };
  const found = await ask('kernels', asked);
  const details = element('section', {});
  const places = Object.fromEntries(found.columns.map((column, place) => [column.name, place]));
  const onRow = (row) => emptied(details).append(...detailsOf(row, found.columns, places));
  emptied(box).append(tableOf(found, { onRow, sort: places.total_ms }), details);
  if (span && isFile()) box.append(note('the table is of the whole run: a report in one file computes nothing anew'));
}

function detailsOf(row, columns, places) {
  const name = row[places.kernel];
  const [median, first, p90] = ['median_us', 'first_us', 'p90_us'].map((each) => row[places[each]]);
  const facts = columns.flatMap((column, place) => [element('dt', {}, column.heading), element('dd', {}, column.type === 'float' ? real(row[place]) : number(row[place]))]);
  const told = [];
  if (first > 2 * median) told.push(note(`the first call took ${real(first / median)} times the median: it was cold`));
  if (p90 > 1.5 * median) told.push(note(`one call in ten takes ${real(p90 / median)} times the median or more`));
  const links = element('p', {}, element('a', { href: link({ page: 'timeline', q: name }) }, 'in the timeline'), ' ', element('a', { href: link({ page: 'roofline', q: name }) }, 'on the roofline'), ' ', element('a', { href: link({ page: 'code', q: name }) }, 'its code'));
  return [element('h2', {}, name), ...told, links, element('dl', {}, facts)];
}
