// Two runs: what got slower or faster, with intervals around ratios, sorted by what was gained or lost.

import { ask } from './api.js';
import { category } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real } from './format.js';
import { tableOf } from './table.js';

const [WIDTH, ROW, LEFT] = [900, 20, 320];
const MOST = 40;
const MOST_STEPS = 12;

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
  const alone = found.rows.filter((row) => !(row[places.ratio] > 0)).length;
  if (alone) box.append(note(`${alone} of one run alone: in the table`));
  const total = rows.reduce((sum, row) => sum + (row[places.lost_ms] || 0), 0);
  if (rows.length) box.append(element('h2', {}, 'What makes the difference'), waterfallOf(rows, places, total));
  box.append(note(`altogether b takes ${real(Math.abs(total))} ms ${total > 0 ? 'more' : 'less'}, by medians of calls that both have`), tableOf(found));
}

/** From nothing to the whole difference, row by row, the largest first. */
function waterfallOf(rows, places, total) {
  const largest = rows.slice(0, MOST_STEPS).map((row) => [`${row[places.name]} ${row[places.work]}`, row[places.lost_ms] || 0]);
  const rest = total - largest.reduce((sum, [, ms]) => sum + ms, 0);
  if (rows.length > MOST_STEPS) largest.push([`${rows.length - MOST_STEPS} others`, rest]);
  const steps = [];
  let at = 0;
  for (const [name, ms] of largest) {
    steps.push({ name, from: at, to: at + ms, ms });
    at += ms;
  }
  steps.push({ name: 'altogether', from: 0, to: total, ms: total });
  const [low, high] = [Math.min(0, ...steps.map((step) => step.to)), Math.max(0, ...steps.map((step) => step.to))];
  const x = (ms) => LEFT + ((ms - low) / Math.max(high - low, 1e-12)) * (WIDTH - LEFT - 90);
  const svg = drawing('svg', { width: WIDTH, height: steps.length * ROW + 8, role: 'group', 'aria-label': 'what makes the difference' });
  svg.append(drawing('line', { class: 'roof', x1: x(0), x2: x(0), y1: 0, y2: steps.length * ROW }));
  steps.forEach(({ name, from, to, ms }, index) => {
    const told = `${name}: ${ms > 0 ? '+' : ''}${real(ms)} ms`;
    svg.append(drawing('g', { tabindex: 0, role: 'img', 'aria-label': told }, drawing('title', {}, told),
      drawing('rect', { x: Math.min(x(from), x(to)), y: index * ROW + 3, width: Math.max(Math.abs(x(to) - x(from)), 1), height: ROW - 6, fill: ms > 0 ? category(5) : category(0), 'data-ms': ms }),
      drawing('text', { x: 4, y: index * ROW + 14 }, name.slice(0, 48)), drawing('text', { x: WIDTH - 4, y: index * ROW + 14, 'text-anchor': 'end' }, `${real(ms)} ms`)));
  });
  return svg;
}

/** Ratios that are marked: powers of ten, or of two where all are near. */
function ticksOf(reach) {
  const base = reach > 12 ? 10 : reach > 2 ? 2 : 1.1;
  const most = Math.floor(Math.log(reach) / Math.log(base) + 1e-9);
  const step = Math.ceil(most / 4) || 1;
  const ticks = [1];
  for (let power = step; power <= most; power += step) ticks.push(Number((base ** power).toPrecision(3)), Number((base ** -power).toPrecision(3)));
  return ticks;
}

function intervalsOf(rows, places) {
  const values = rows.flatMap((row) => [row[places.low], row[places.high], row[places.ratio]]).filter((value) => value > 0);
  const reach = Math.max(1.1, ...values.map((value) => Math.max(value, 1 / value))) * 1.1;
  const x = (ratio) => LEFT + ((Math.log(ratio) / Math.log(reach) + 1) / 2) * (WIDTH - LEFT - 80);
  const height = rows.length * ROW + 30;
  const svg = drawing('svg', { width: WIDTH, height, role: 'group', 'aria-label': 'ratios of durations' });
  svg.append(drawing('line', { class: 'roof', x1: x(1), x2: x(1), y1: 0, y2: height - 20 }));
  for (const tick of ticksOf(reach)) {
    if (tick !== 1) svg.append(drawing('line', { class: 'axis', x1: x(tick), x2: x(tick), y1: 0, y2: height - 20 }));
    svg.append(drawing('text', { x: x(tick), y: height - 4, 'text-anchor': 'middle' }, String(tick)));
  }
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
