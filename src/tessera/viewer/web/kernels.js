// Kernels: one row for each work or group, and what is known of the one that is chosen.

import { ask, download, isFile, within } from './api.js';
import { category } from './colors.js';
import { drawing, element, emptied, failure, note } from './dom.js';
import { number, real, time } from './format.js';
import { escaped, matching, onSearch } from './search.js';
import { change, link, state, windowOf } from './state.js';
import { tableOf } from './table.js';

const GROUPS = ['kernel', 'operator', 'shape', 'line', 'region', 'stream', 'thread', 'device', 'rank', 'dtype', 'schedule', 'source'];
const [WIDTH, HEIGHT] = [520, 120];

export async function kernelsPage(box, { run }) {
  const now = state();
  const scope = isFile() ? {} : { region: now.region || null, by: now.by || null };
  const asked = within(run, windowOf(now), scope);
  const found = await ask('kernels', asked);
  const details = element('section', {});
  const places = Object.fromEntries(found.columns.map((column, place) => [column.name, place]));
  const rows = found.rows.map((row, index) => [...row, index]);
  const grouped = Boolean(scope.by);
  const opened = (row) => open(details, row, found.columns, places, asked);
  const onRow = grouped ? null : opened;
  const table = (kept) => tableOf({ ...found, rows: kept }, { onRow, sort: places.total_ms });
  const frame = element('div', {}, table(rows));
  emptied(box).append(controls(found.regions || [], now), frame, csvOf(run), details);
  onSearch(async (text) => {
    const kept = await matching(text, rows.map((row) => String(row[0] ?? '')));
    emptied(frame).append(table(kept ? rows.filter((_, place) => kept[place]) : rows));
    return kept ? `${kept.reduce((sum, each) => sum + each, 0)} of ${rows.length} rows` : '';
  });
  if (now.kernel && !grouped) {
    const named = rows.filter((row) => row[places.kernel] === now.kernel);
    const chosen = named.find((row) => row[places.work] === now.work) || named[0];
    if (chosen) await opened(chosen);
  }
}

function controls(regions, now) {
  if (isFile()) return '';
  const choice = (label, name, none, values) => element('select', { 'aria-label': label, change: (event) => change({ [name]: event.target.value || null, kernel: null }) },
    element('option', { value: '' }, none), values.map((each) => element('option', { value: each, selected: now[name] === each }, `${label} ${each}`.slice(0, 60))));
  return element('p', {}, choice('by', 'by', 'a row for each work', GROUPS), ' ', regions.length ? choice('region', 'region', 'all regions', regions) : '');
}

function csvOf(run) {
  const address = download('csv', run, { table: 'kernels' });
  return address ? element('p', {}, element('a', { href: address }, 'as CSV')) : '';
}

async function open(details, row, columns, places, asked) {
  const [name, work] = [row[places.kernel], row[places.work]];
  change({ kernel: name, work }, { quiet: true });
  emptied(details).append(...factsOf(row, columns, places));
  const more = element('div', {});
  details.append(more);
  try {
    const told = await ask('kernel', { ...asked, by: null, row: row[columns.length] });
    more.append(...callsOf(told), ...wordsOf(told));
  } catch (error) {
    more.append(isFile() ? note('a report in one file holds the calls of the kernels that take most time alone') : failure(error));
  }
}

function factsOf(row, columns, places) {
  const name = row[places.kernel];
  const [median, first, p90] = ['median_us', 'first_us', 'p90_us'].map((each) => row[places[each]]);
  const facts = columns.flatMap((column, place) => [element('dt', {}, column.heading), element('dd', {}, column.type === 'float' ? real(row[place]) : number(row[place]))]);
  const told = [];
  if (first > 2 * median) told.push(note(`the first call took ${real(first / median)} times the median: it was cold`));
  if (p90 > 1.5 * median) told.push(note(`one call in ten takes ${real(p90 / median)} times the median or more`));
  const q = escaped(name || '');
  const links = element('p', {}, element('a', { href: link({ page: 'timeline', q }) }, 'in the timeline'), ' ', element('a', { href: link({ page: 'roofline', q }) }, 'on the roofline'), ' ', element('a', { href: link({ page: 'code', kernel: name }) }, 'its code'));
  return [element('h2', {}, name), ...told, links, element('dl', {}, facts)];
}

/** A histogram of the calls' durations, and the calls over time, the first of them marked. */
function callsOf({ bins, calls }) {
  if (!bins.length) return [note('only the sums of its calls were kept')];
  const most = Math.max(...bins.map((bin) => bin[2]), 1);
  const wide = (WIDTH - 20) / bins.length;
  const bars = bins.map(([from, to, count], place) => {
    const height = (count / most) * (HEIGHT - 30);
    const told = `${real(from)} to ${real(to)} \u00b5s: ${count} calls`;
    return drawing('g', {}, drawing('title', {}, told), drawing('rect', { x: 10 + place * wide, y: HEIGHT - 16 - height, width: Math.max(wide - 1, 1), height, fill: category(0), 'data-calls': count }));
  });
  const ends = [drawing('text', { x: 10, y: HEIGHT - 3 }, `${real(bins[0][0])} \u00b5s`), drawing('text', { x: WIDTH - 10, y: HEIGHT - 3, 'text-anchor': 'end' }, `${real(bins[bins.length - 1][1])} \u00b5s`)];
  const figures = [figure('calls by duration', [...bars, ...ends])];
  if (calls.length > 1) figures.push(figure('duration of calls over time; the first one is ringed', pointsOf(calls)));
  return [element('div', { class: 'columns' }, figures)];
}

function pointsOf(calls) {
  const [begin, end] = [calls[0][0], calls[calls.length - 1][0]];
  const top = Math.max(...calls.map((call) => call[1]));
  const x = (at) => 10 + ((at - begin) / Math.max(end - begin, 1)) * (WIDTH - 20);
  const y = (taken) => HEIGHT - 20 - (taken / top) * (HEIGHT - 40);
  const dots = calls.map(([at, taken]) => drawing('circle', { cx: x(at), cy: y(taken), r: 2, fill: category(0) }, drawing('title', {}, `${real(taken)} \u00b5s at ${time(at)}`)));
  const first = drawing('circle', { cx: x(begin), cy: y(calls[0][1]), r: 5, fill: 'none', stroke: category(5), 'stroke-width': 2 });
  return [...dots, first, drawing('text', { x: 10, y: 11 }, `up to ${real(top)} \u00b5s`), drawing('text', { x: 10, y: HEIGHT - 3 }, time(begin)), drawing('text', { x: WIDTH - 10, y: HEIGHT - 3, 'text-anchor': 'end' }, time(end))];
}

function figure(title, marks) {
  return element('figure', { style: 'margin:8px 0' }, element('figcaption', {}, title), drawing('svg', { width: WIDTH, height: HEIGHT, role: 'img', 'aria-label': title }, marks));
}

/** What is known of the first call, and the call that tunes it, to be copied. */
function wordsOf({ facts, tune }) {
  const names = { shapes: 'shapes', fused: 'fused operators', rewrites: 'rewrites', region: 'region', traffic: 'bytes by level (estimate)' };
  const pairs = Object.entries(names).filter(([name]) => facts[name] !== undefined).flatMap(([name, text]) => [element('dt', {}, text), element('dd', {}, String(facts[name]))]);
  if (facts.stack) pairs.push(element('dt', {}, 'Python'), element('dd', {}, facts.stack.split(';').pop()));
  const told = pairs.length ? [element('dl', {}, pairs)] : [];
  const text = tune || 'tessera tune --from-trace TRACE';
  const copy = element('button', { click: () => navigator.clipboard.writeText(text) }, 'copy');
  return [...told, element('p', {}, 'tune it: ', element('code', {}, text), ' ', copy)];
}
