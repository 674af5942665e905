// Collectives: a heat map by size and duration, and the table.

import { ask, within } from './api.js';
import { amount } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real } from './format.js';
import { state, windowOf } from './state.js';
import { tableOf } from './table.js';

const CELL = [64, 26];
const EDGES = [90, 30];

export async function collectivesPage(box, { run }) {
  const scope = within(run, windowOf(state()));
  const [found, heat] = await Promise.all([ask('collectives', scope), ask('heat', scope)]);
  emptied(box);
  if (heat.cells.length) box.append(element('h2', {}, 'Calls by bytes and duration; colour: overlap with kernels'), heatOf(heat.cells), legendOf(), note(`across: bytes of a call, up: its duration, in powers of two; numbers: calls; the line: as fast as the fastest of these, ${real(fastestOf(heat.cells))} GB/s`));
  box.append(...arrivalsOf(heat));
  box.append(element('h2', {}, 'Collectives'), tableOf(found));
}

/** What the colours of the heat map say. */
function legendOf() {
  const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => amount(share)).join(',');
  return element('p', { class: 'faint' }, 'exposed', element('span', { class: 'ramp', style: `background:linear-gradient(to right,${stops})` }), 'hidden behind kernels; grey: nothing to compare with');
}

function heatOf(cells) {
  const range = (name) => [Math.min(...cells.map((cell) => cell[name])), Math.max(...cells.map((cell) => cell[name]))];
  const [[left, right], [low, high]] = [range('log2_bytes'), range('log2_us')];
  const width = EDGES[0] + (right - left + 1) * CELL[0];
  const height = EDGES[1] + (high - low + 1) * CELL[1];
  const svg = drawing('svg', { width, height, role: 'group', 'aria-label': 'collectives by bytes and duration' });
  for (let each = left; each <= right; each += 1) svg.append(drawing('text', { x: EDGES[0] + (each - left) * CELL[0] + 4, y: height - 10 }, bytesOf(2 ** each)));
  for (let each = low; each <= high; each += 1) svg.append(drawing('text', { x: 4, y: (high - each) * CELL[1] + 17 }, `${real(2 ** each)} \u00b5s`));
  for (const cell of cells) {
    const place = { x: EDGES[0] + (cell.log2_bytes - left) * CELL[0], y: (high - cell.log2_us) * CELL[1] };
    const overlap = cell.overlap_pct === null ? 'overlap not known' : `${real(cell.overlap_pct)} % beside kernels`;
    const told = `${cell.calls} calls, ${real(cell.total_ms)} ms, ${overlap}`;
    const color = cell.overlap_pct === null ? '#999999' : amount(cell.overlap_pct / 100);
    const dark = cell.overlap_pct !== null && cell.overlap_pct < 50;
    svg.append(drawing('g', { tabindex: 0, 'aria-label': told }, drawing('title', {}, told),
      drawing('rect', { ...place, width: CELL[0] - 2, height: CELL[1] - 2, fill: color }),
      drawing('text', { x: place.x + 6, y: place.y + 17, style: `fill:${dark ? '#ffffff' : '#000000'}` }, String(cell.calls))));
  }
  svg.append(...bandwidthOf(fastestOf(cells), [left, right], [low, high]));
  return svg;
}

/** Bytes a nanosecond of the fastest cell, by the middle of its bytes and of its time. */
function fastestOf(cells) {
  return Math.max(...cells.map((cell) => 2 ** (cell.log2_bytes - cell.log2_us) / 1e3));
}

/** The line on which all calls would lie that move so many bytes a nanosecond. */
function bandwidthOf(rate, [left, right], [low, high]) {
  const x = (log2) => EDGES[0] + (log2 - left) * CELL[0];
  const y = (log2) => (high - log2 + 1) * CELL[1];
  const offset = Math.log2(rate * 1e3);
  const points = [];
  for (let at = left; at <= right + 1; at += 0.25) if (at - offset >= low && at - offset <= high + 1) points.push(`${x(at)},${y(at - offset)}`);
  return points.length < 2 ? [] : [drawing('polyline', { points: points.join(' '), class: 'roof', 'stroke-width': 2, 'stroke-dasharray': '6 4' }, drawing('title', {}, `${real(rate)} GB/s`))];
}

/** How late each rank came to each call. */
function arrivalsOf({ arrivals, arrivals_total: total, clocks_us: clocks }) {
  const title = element('h2', {}, 'How late each rank came, call by call');
  if (!arrivals.length) return [title, note('needs numbered collectives of several ranks: give the folder with the traces of all')];
  const ranks = [...new Set(arrivals.map((each) => each.rank))].sort((a, b) => a - b);
  const calls = [...new Set(arrivals.map((each) => each.sequence))];
  const latest = Math.max(...arrivals.map((each) => each.late_us), 1e-9);
  const wide = Math.max(Math.min(18, 1000 / calls.length), 2);
  const [place, order] = [new Map(calls.map((call, at) => [call, at])), new Map(ranks.map((rank, at) => [rank, at]))];
  const svg = drawing('svg', { width: EDGES[0] + wide * calls.length, height: ranks.length * 20 + 8, role: 'group', 'aria-label': 'ranks by call' });
  ranks.forEach((rank, at) => svg.append(drawing('text', { x: 4, y: at * 20 + 15 }, `rank ${rank}`)));
  for (const each of arrivals) {
    const unsure = clocks === null || (each.late_us < clocks && each.late_us > 0);
    const told = `rank ${each.rank}, call ${each.sequence} (${each.collective}): ${real(each.late_us)} \u00b5s after the first${unsure ? ', which the clocks do not tell apart' : ''}`;
    svg.append(drawing('rect', { x: EDGES[0] + place.get(each.sequence) * wide, y: order.get(each.rank) * 20 + 2, width: wide - 1, height: 18, fill: unsure ? '#999999' : amount(each.late_us / latest), 'data-late': each.late_us }, drawing('title', {}, told)));
  }
  const sure = clocks === null ? 'the clocks of the ranks were not compared: all is grey' : `grey: within ${real(clocks)} \u00b5s, by which the clocks may differ`;
  const less = total > arrivals.length ? `; the first ${arrivals.length} of ${total}` : '';
  return [title, element('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'ranks by call' }, svg), note(`dark: first, yellow: up to ${real(latest)} \u00b5s late; ${sure}${less}`)];
}

function bytesOf(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1);
  return `${bytes / 1024 ** power} ${units[power]}`;
}
