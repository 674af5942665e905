// The roofline: what kernels reach, and what the device could do.

import { ask, within } from './api.js';
import { category, token } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real, shown } from './format.js';
import { matching, onSearch } from './search.js';
import { change, link, state, windowOf } from './state.js';
import { tableOf } from './table.js';

const [WIDTH, HEIGHT] = [900, 480];
const EDGE = { left: 64, right: 130, top: 16, bottom: 44 };
const NAMED = 10;
const APART = 13;
const SHAPES = ['circle', 'square', 'diamond', 'triangle', 'cross'];

export async function rooflinePage(box, { run, other, runs }) {
  const models = [await ask('roofline', within(run, windowOf(state())))];
  if (other !== null) models.push(await ask('roofline', { run: other }));
  const [model] = models;
  const dtypes = [...new Set(models.flatMap((each) => each.points.map((point) => point.dtype)))];
  emptied(box).append(
    element('h2', {}, `${model.device}, ${model.workers} worker${model.workers > 1 ? 's' : ''}`),
    note(model.measured ? `roofs: ${model.measured.source}${model.measured.date ? `, ${model.measured.date}` : ''}` : 'no roofs: the ceilings of this device are not known; `tessera quickstart` measures them'),
    ...levelsOf(models, dtypes),
    legendOfDtypes(dtypes),
    ...(models.length > 1 ? [note(`arrows lead from ${runs[run].name} to ${runs[other].name}, for kernels and work that both ran`)] : []),
    savingsOf(model),
    tableOf(model.table),
  );
  onSearch(async (text) => {
    const points = [...box.querySelectorAll('a[data-kernel]')];
    const kept = await matching(text, points.map((point) => point.dataset.kernel));
    points.forEach((point, place) => point.setAttribute('opacity', kept && !kept[place] ? 0.2 : 1));
    return kept ? `${kept.reduce((sum, each) => sum + each, 0)} of ${points.length} points` : '';
  });
}

/** The picture, by the bytes of operands and results; or by those that a memory level moves, where the trace knows them. */
function levelsOf(models, dtypes) {
  const levels = [...new Set(models[0].points.flatMap((point) => Object.keys(point.levels || {})))];
  const frame = element('div', {}, pictureOf(models, dtypes));
  if (!levels.length) return [frame];
  const by = (level) => models.map((model) => ({ ...model, points: model.points.filter((point) => point.levels && point.levels[level]).map((point) => ({ ...point, intensity: point.flops / point.levels[level] })) }));
  const pick = element('select', { 'aria-label': 'bytes of', change: ({ target }) => {
    emptied(frame).append(pictureOf(target.value ? by(target.value) : models, dtypes));
    change({ level: target.value || null }, { quiet: true });
  } }, element('option', { value: '' }, 'bytes of operands and results'), levels.map((level) => element('option', { value: level }, level.endsWith(', counted') ? `bytes of ${level}` : `bytes of ${level} (estimate)`)));
  return [element('p', {}, pick), frame];
}

/** What a perfect kernel would save, the most first. */
function savingsOf(model) {
  const points = model.points.filter((point) => point.saved_ms !== null).sort((a, b) => b.saved_ms - a.saved_ms);
  if (!points.length) return note('what kernels could save is not known without ceilings');
  const columns = [['kernel', 'Kernel'], ['dtype', 'Dtype'], ['work', 'Work'], ['total_ms', 'Median x calls(ms)', true], ['saved_ms', 'A perfect kernel saves(ms)', true], ['efficiency_pct', 'Of the bound(%)', true], ['binding', 'Bound by']]
    .map(([name, heading, numeric]) => ({ name, heading, type: numeric ? 'float' : 'text' }));
  const rows = points.map((point) => columns.map((column) => point[column.name]));
  const above = points.filter((point) => point.efficiency_pct > 100).length;
  const notes = above ? [`${above} above 100 %: above the measured ceiling; what lies in a nearer cache than its size suggests is, and ceilings measured on a busy machine are too low`] : [];
  return element('div', {}, element('h2', {}, 'What a perfect kernel would save'), tableOf({ title: 'Savings', columns, rows, notes, missing: {} }));
}

function pictureOf(models, dtypes) {
  const [model] = models;
  const points = models.flatMap((each) => each.points);
  const xs = points.map((point) => point.intensity);
  const spanX = [Math.min(0.05, ...xs) / 2, Math.max(100, ...xs) * 4];
  const peaks = model.compute.map((each) => each.gflop_per_s);
  const ys = points.map((point) => point.gflop_per_s);
  const spanY = [Math.min(...ys) / 4, Math.max(...ys, ...peaks) * 2];
  const x = scale(spanX, EDGE.left, WIDTH - EDGE.right);
  const y = scale(spanY, HEIGHT - EDGE.bottom, EDGE.top);
  const svg = drawing('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: 'group', 'aria-label': 'roofline' });
  svg.append(...axesOf(spanX, spanY, x, y), ...roofsOf(model, spanX, spanY, x, y));
  if (models.length > 1) svg.append(...arrowsOf(models, x, y));
  const whole = model.points.reduce((sum, point) => sum + point.total_ms, 0);
  const named = [];
  for (const point of model.points) svg.append(pointOf(point, named, whole, dtypes, x, y));
  return svg;
}

function scale([low, high], from, to) {
  return (value) => from + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (to - from);
}

function axesOf(spanX, spanY, x, y) {
  const parts = [];
  const bottom = HEIGHT - EDGE.bottom;
  for (const power of powers(spanX)) {
    parts.push(drawing('line', { class: 'axis', x1: x(power), x2: x(power), y1: EDGE.top, y2: bottom }));
    parts.push(drawing('text', { x: x(power), y: bottom + 14, 'text-anchor': 'middle' }, String(power)));
  }
  for (const power of powers(spanY)) {
    parts.push(drawing('line', { class: 'axis', x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(power), y2: y(power) }));
    parts.push(drawing('text', { x: EDGE.left - 6, y: y(power) + 4, 'text-anchor': 'end' }, String(power)));
  }
  parts.push(drawing('text', { x: WIDTH / 2 - 60, y: HEIGHT - 10 }, 'operational intensity, FLOP per byte'));
  parts.push(drawing('text', { x: 12, y: 12 }, 'GFLOP/s'));
  return parts;
}

function powers([low, high]) {
  const made = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.floor(Math.log10(high)); power += 1) made.push(Number(`1e${power}`));
  return made;
}

function roofsOf(model, spanX, spanY, x, y) {
  if (!model.compute.length || !model.memory.length) return [];
  const highest = Math.max(...model.compute.map((each) => each.gflop_per_s));
  const widest = Math.max(...model.memory.map((each) => each.gbps));
  const parts = [];
  model.memory.forEach(({ gbps }, index) => {
    const begin = Math.max(spanX[0], spanY[0] / gbps);
    const width = index === model.memory.length - 1 ? 2 : 1;
    parts.push(drawing('line', { class: 'roof', 'stroke-width': width, x1: x(begin), y1: y(begin * gbps), x2: x(highest / gbps), y2: y(highest) }));
  });
  for (const { gflop_per_s: peak } of model.compute) {
    parts.push(drawing('line', { class: 'roof', 'stroke-width': 2, x1: x(peak / widest), y1: y(peak), x2: WIDTH - EDGE.right, y2: y(peak) }));
  }
  const flat = joined(model.compute.map((each) => ({ name: each.dtype, value: each.gflop_per_s, at: y(each.gflop_per_s) })));
  for (const each of flat) parts.push(drawing('text', { x: WIDTH - EDGE.right + 6, y: each.at + 4 }, `${each.names.join(', ')} ${each.values.map((value) => real(value)).join(', ')}`));
  const left = Math.max(spanX[0], spanY[0] / Math.min(...model.memory.map((each) => each.gbps))) * 1.1;
  const slopes = joined(model.memory.map((each) => ({ name: each.level, value: each.gbps, at: y(left * each.gbps) })));
  for (const each of slopes) parts.push(drawing('text', { class: 'label', x: x(left), y: each.at - 4 }, `${each.names.join(', ')} ${each.values.map((value) => real(value)).join(', ')} GB/s`));
  return parts;
}

/** Labels whose places are nearer than a line of text, as one. */
function joined(labels) {
  const made = [];
  for (const label of [...labels].sort((a, b) => a.at - b.at)) {
    const last = made[made.length - 1];
    if (last && label.at - last.at < APART) {
      last.names.push(label.name);
      last.values.push(label.value);
    } else made.push({ at: label.at, names: [label.name], values: [label.value] });
  }
  return made;
}

function pointOf(point, named, whole, dtypes, x, y) {
  const color = category(dtypes.indexOf(point.dtype));
  const size = 4 + 14 * Math.sqrt(point.total_ms / whole);
  const [cx, cy] = [x(point.intensity), y(point.gflop_per_s)];
  const rate = (us) => point.flops / us / 1e3;
  const told = `${point.kernel} ${point.dtype}, ${point.work}: ${real(point.gflop_per_s)} GFLOP/s, median ${real(point.median_us)} \u00b5s x ${point.calls}`
    + (point.efficiency_pct === null ? '' : `, ${real(point.efficiency_pct)} % of the bound by ${point.binding}; a perfect kernel saves ${real(point.saved_ms)} ms`);
  const group = drawing('a', { href: link({ page: 'kernels', kernel: point.kernel, work: point.work }), tabindex: 0, 'aria-label': shown(told), 'data-kernel': point.kernel });
  group.append(drawing('title', {}, told));
  group.append(drawing('line', { x1: cx, x2: cx, y1: y(rate(point.p10_us)), y2: y(rate(point.p90_us)), stroke: color, 'stroke-width': 3, opacity: 0.6 }));
  if (point.efficiency_pct) group.append(drawing('line', { x1: cx, x2: cx, y1: cy, y2: y((point.gflop_per_s * 100) / point.efficiency_pct), stroke: color, 'stroke-width': 1, 'stroke-dasharray': '2 3' }));
  group.append(shapeOf(SHAPES[dtypes.indexOf(point.dtype) % SHAPES.length], cx, cy, size, color));
  const free = named.every(([left, top]) => Math.abs(left - cx) > 120 || Math.abs(top - cy) > APART);
  if (named.length < NAMED && free) {
    named.push([cx, cy]);
    group.append(drawing('text', { class: 'label', x: cx + size / 2 + 3, y: cy + 4 }, point.kernel.slice(0, 28)));
  }
  return group;
}

function shapeOf(shape, cx, cy, size, color) {
  const r = size / 2;
  const told = { fill: color, stroke: token('page'), 'stroke-width': 1 };
  if (shape === 'circle') return drawing('circle', { cx, cy, r, ...told });
  if (shape === 'square') return drawing('rect', { x: cx - r, y: cy - r, width: size, height: size, ...told });
  const corners = {
    diamond: [[0, -r], [r, 0], [0, r], [-r, 0]],
    triangle: [[0, -r], [r, r], [-r, r]],
    cross: [[-r, -r], [0, -r / 2], [r, -r], [r / 2, 0], [r, r], [0, r / 2], [-r, r], [-r / 2, 0]],
  }[shape];
  return drawing('polygon', { points: corners.map(([dx, dy]) => `${cx + dx},${cy + dy}`).join(' '), ...told });
}

function arrowsOf([first, second], x, y) {
  const keyOf = (point) => [point.kernel, point.dtype, point.flops, point.bytes].join('\n');
  const theirs = new Map(second.points.map((point) => [keyOf(point), point]));
  return first.points.filter((point) => theirs.has(keyOf(point))).map((point) => {
    const to = theirs.get(keyOf(point));
    const place = { x1: x(point.intensity), y1: y(point.gflop_per_s), x2: x(to.intensity) + 8, y2: y(to.gflop_per_s) };
    const color = to.gflop_per_s > point.gflop_per_s ? category(2) : category(5);
    return drawing('g', {}, drawing('line', { ...place, stroke: color, 'stroke-width': 2 }), drawing('circle', { cx: place.x2, cy: place.y2, r: 3, fill: color }));
  });
}

function legendOfDtypes(dtypes) {
  const marks = dtypes.map((dtype, place) => {
    const svg = drawing('svg', { width: 16, height: 16 }, shapeOf(SHAPES[place % SHAPES.length], 8, 8, 10, category(place)));
    return element('span', {}, svg, ` ${dtype || 'unknown dtype'}`);
  });
  return element('p', { class: 'legend' }, marks, element('span', { class: 'faint' }, 'area: share of the time; thick line: p10 to p90; dotted: up to the roof that binds'));
}
