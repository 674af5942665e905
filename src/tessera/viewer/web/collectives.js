// Collectives: a heat map by size and duration, and the table.

import { ask } from './api.js';
import { amount } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real } from './format.js';
import { tableOf } from './table.js';

const CELL = [64, 26];
const EDGES = [90, 30];

export async function collectivesPage(box, { run }) {
  const [found, heat] = await Promise.all([ask('collectives', { run }), ask('heat', { run })]);
  emptied(box);
  if (heat.cells.length) box.append(element('h2', {}, 'Calls by bytes and duration; colour: overlap with kernels'), heatOf(heat.cells), note('yellow: hidden behind kernels, dark: exposed; grey: nothing to compare with'));
  box.append(element('h2', {}, 'Collectives'), tableOf(found));
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
  return svg;
}

function bytesOf(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(Math.floor(Math.log2(bytes) / 10), units.length - 1);
  return `${bytes / 1024 ** power} ${units[power]}`;
}
