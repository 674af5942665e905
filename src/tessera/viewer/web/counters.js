// Stalls, memory, divergence, power, and values over time; what was not counted stands as its reason, without a chart.

import { ask, within } from './api.js';
import { PARTS, category, token } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real, time } from './format.js';
import { state, windowOf } from './state.js';
import { tableOf } from './table.js';

const [WIDTH, HEIGHT] = [860, 110];
const MOST_BARS = 20;
const QUESTIONS = ['stalls', 'memory', 'divergence', 'power'];

export async function countersPage(box, { run }) {
  const scope = within(run, windowOf(state()));
  const [found, { series }] = await Promise.all([Promise.all(QUESTIONS.map((question) => ask(question, scope))), ask('series', scope)]);
  emptied(box);
  for (const each of found) box.append(element('h2', {}, each.title), ...(each === found[0] ? stallsOf(each) : []), tableOf(each));
  box.append(element('h2', {}, 'Over time'));
  if (!series.length) box.append(note('nothing was sampled or counted: sample_interval_ms=10 samples, profile.counter(name, value) notes a value'));
  series.forEach((each, index) => box.append(chartOf(each, index)));
}

/** A bar for each kernel, as far as counters tell what it waited for; nothing where none did. */
function stallsOf({ columns, rows }) {
  const places = Object.fromEntries(columns.map((column, place) => [column.name, place]));
  const counted = rows.filter((row) => row[places.mem_stall_pct] !== null && row[places.mem_stall_pct] !== undefined).slice(0, MOST_BARS);
  if (!counted.length) return [];
  const parts = ['waits for memory', 'not memory'];
  const legend = element('p', { class: 'legend' }, parts.map((part, place) => element('span', {}, element('span', { class: 'swatch', style: `background:${PARTS[place + 1]}` }), part)));
  const bars = counted.map((row) => {
    const stalled = Math.min(row[places.mem_stall_pct], 100);
    const told = `${row[0]}: ${real(stalled)} % ${parts[0]}`;
    const pieces = [stalled, 100 - stalled].map((share, place) => element('span', { style: `width:${share}%;background:${PARTS[place + 1]}` }));
    return element('div', {}, element('span', {}, told), element('div', { class: 'bar', role: 'img', 'aria-label': told }, pieces));
  });
  return [legend, ...bars];
}

function chartOf(each, index) {
  const [first, last] = [each.at[0], each.at[each.at.length - 1]];
  const [low, high] = [Math.min(0, ...each.values), Math.max(...each.values)];
  const x = (at) => 60 + ((at - first) / Math.max(last - first, 1)) * (WIDTH - 70);
  const y = (value) => HEIGHT - 20 - ((value - low) / Math.max(high - low, 1e-300)) * (HEIGHT - 36);
  const path = each.at.map((at, place) => `${place ? 'L' : 'M'}${x(at).toFixed(1)} ${y(each.values[place]).toFixed(1)}`).join('');
  const title = `${each.name}${each.device ? `, ${each.device}` : ''}${each.unit ? ` (${each.unit})` : ''}`;
  const less = each.total > each.at.length ? `; ${each.at.length} of ${each.total} values` : '';
  const told = `${title}: ${real(Math.min(...each.values))} to ${real(high)}${less}`;
  return element('figure', { style: 'margin:8px 0' }, element('figcaption', {}, told),
    drawing('svg', { width: WIDTH, height: HEIGHT, role: 'img', 'aria-label': told },
      drawing('line', { class: 'axis', x1: 60, x2: WIDTH - 10, y1: y(low), y2: y(low) }),
      drawing('text', { x: 4, y: y(high) + 4 }, real(high)), drawing('text', { x: 4, y: y(low) + 4 }, real(low)),
      drawing('text', { x: 60, y: HEIGHT - 4 }, time(first)), drawing('text', { x: WIDTH - 10, y: HEIGHT - 4, 'text-anchor': 'end' }, time(last)),
      drawing('path', { d: path, fill: 'none', stroke: category(index) || token('text'), 'stroke-width': 1.5 })));
}
