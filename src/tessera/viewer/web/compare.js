// Two runs: what got slower or faster, with intervals around ratios, sorted by what was gained or lost.

import { ask } from './api.js';
import { category } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real } from './format.js';
import { tableOf } from './table.js';

const [WIDTH, ROW, LEFT] = [900, 20, 320];
const MOST = 40;

export async function comparePage(box, { run, other, runs }) {
  emptied(box);
  if (other === null) {
    box.append(note('choose a second run above, to compare with'));
    return;
  }
  const found = await ask('compare', { a: run, b: other });
  box.append(note(`a: ${runs[run].name}, b: ${runs[other].name}`));
  for (const each of found.differences) box.append(element('p', { class: 'bad' }, `not the same: ${each}`));
  const places = Object.fromEntries(found.columns.map((column, place) => [column.name, place]));
  const rows = found.rows.filter((row) => row[places.ratio] > 0).sort((a, b) => Math.abs(b[places.lost_ms]) - Math.abs(a[places.lost_ms]));
  if (rows.length) box.append(element('h2', {}, 'b over a, with intervals; below 1 is faster'), intervalsOf(rows.slice(0, MOST), places));
  const total = rows.reduce((sum, row) => sum + (row[places.lost_ms] || 0), 0);
  box.append(note(`altogether b takes ${real(Math.abs(total))} ms ${total > 0 ? 'more' : 'less'}, by medians of calls that both have`), tableOf(found));
}

function intervalsOf(rows, places) {
  const values = rows.flatMap((row) => [row[places.low], row[places.high], row[places.ratio]]).filter((value) => value > 0);
  const reach = Math.max(1.1, ...values.map((value) => Math.max(value, 1 / value))) * 1.1;
  const x = (ratio) => LEFT + ((Math.log(ratio) / Math.log(reach) + 1) / 2) * (WIDTH - LEFT - 80);
  const height = rows.length * ROW + 30;
  const svg = drawing('svg', { width: WIDTH, height, role: 'group', 'aria-label': 'ratios of durations' });
  svg.append(drawing('line', { class: 'roof', x1: x(1), x2: x(1), y1: 0, y2: height - 20 }));
  for (const tick of [1 / reach, 1, reach]) svg.append(drawing('text', { x: x(tick), y: height - 4, 'text-anchor': 'middle' }, real(tick)));
  rows.forEach((row, index) => {
    const [ratio, low, high, verdict] = ['ratio', 'low', 'high', 'verdict'].map((name) => row[places[name]]);
    const color = { slower: category(5), faster: category(0) }[verdict] || '#999999';
    const at = index * ROW + 10;
    const told = `${row[places.name]} ${row[places.work]}: ${real(ratio)}${low ? ` (${real(low)} to ${real(high)})` : ''}, ${verdict}, ${real(row[places.lost_ms])} ms`;
    const group = drawing('g', { tabindex: 0, 'aria-label': told }, drawing('title', {}, told));
    if (low) group.append(drawing('line', { x1: x(low), x2: x(high), y1: at, y2: at, stroke: color, 'stroke-width': 3 }));
    group.append(drawing('circle', { cx: x(ratio), cy: at, r: 4, fill: color }));
    group.append(drawing('text', { x: 4, y: at + 4 }, `${row[places.name]} ${row[places.work]}`.slice(0, 48)));
    group.append(drawing('text', { x: WIDTH - 4, y: at + 4, 'text-anchor': 'end' }, `${real(row[places.lost_ms])} ms`));
    svg.append(group);
  });
  return svg;
}
