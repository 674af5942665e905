// What is chosen in a timeline: slices found by place and by key, their sum, what is known of them, and lists.

import { ask, isFile } from './api.js';
import { element, emptied, failure, note } from './dom.js';
import { real, shown, time } from './format.js';
import { ROW } from './painting.js';
import { firstEnding, firstStarting } from './rows.js';
import { tableOf } from './table.js';

const MOST_LISTED = 500;
const COLUMNS = [['name', 'Name'], ['kind', 'Kind'], ['lane', 'Lane'], ['start', 'Start(\u00b5s)', true], ['duration', 'Duration(\u00b5s)', true]]
  .map(([name, heading, numeric]) => ({ name, heading, type: numeric ? 'float' : 'text' }));

/** The slice at a place of the canvas, the longest where a pixel has several: {part, slice}, or null. */
export function hit(view, x, y) {
  const line = view.lines.find((each) => y >= each.y && y < each.y + ROW);
  if (!line) return null;
  const { data } = line.part;
  const [from, to] = [view.instant(Math.floor(x)), view.instant(Math.floor(x) + 1)];
  let best = null;
  const first = firstEnding(data, line.row, from);
  const last = Math.max(firstStarting(data, line.row, to), first);
  const end = Math.min(last, first + MOST_LISTED);
  for (let place = first; place < end; place += 1) {
    const slice = line.row.slices[place];
    if (best === null || data.end[slice] - data.start[slice] > data.end[best] - data.start[best]) best = slice;
  }
  return best === null ? null : { part: line.part, slice: best };
}

/** The slice `step` places beside the selected one in its row; without one, the first that is seen. */
export function neighbour(view, step) {
  if (!view.selected) return firstOf(view);
  const { part, slice } = view.selected;
  const line = view.lineOf(part, slice);
  const place = firstStarting(part.data, line.row, part.data.start[slice]) + step;
  return at(line, place);
}

/** The slice at the same time in a row above or below. */
export function beside(view, step) {
  if (!view.selected) return firstOf(view);
  const { part, slice } = view.selected;
  const line = view.lines[view.lines.indexOf(view.lineOf(part, slice)) + step];
  if (!line || !line.row.slices.length) return null;
  const near = firstEnding(line.part.data, line.row, part.data.start[slice]);
  return at(line, Math.min(near, line.row.slices.length - 1));
}

function firstOf(view) {
  const line = view.lines.find((each) => each.row.slices.length);
  return line ? at(line, Math.min(firstEnding(line.part.data, line.row, view.t0), line.row.slices.length - 1)) : null;
}

function at(line, place) {
  return place < 0 || place >= line.row.slices.length ? null : { part: line.part, slice: line.row.slices[place] };
}

/** [launch, launched] for the slice that launched the selected one, and for those that it launched. */
export function arrowsOf({ selected }) {
  if (!selected || !selected.part.data.launch) return [];
  const { part: { data }, slice } = selected;
  if (data.launch[slice]) return [[data.launch[slice] - 1, slice]];
  const found = [];
  for (let other = 0; other < data.head.n; other += 1) if (data.launch[other] === slice + 1) found.push([slice, other]);
  return found;
}

/** How many slices, their times together, and the time in which any of them ran. */
export function sumOf(chosen) {
  const spans = chosen.map(({ part, slice }) => [part.data.start[slice], part.data.end[slice]]).sort((a, b) => a[0] - b[0]);
  let [total, union, reach] = [0, 0, -Infinity];
  for (const [start, end] of spans) {
    total += end - start;
    union += Math.max(0, end - Math.max(start, reach));
    reach = Math.max(reach, end);
  }
  return { count: chosen.length, total, union };
}

/** What a slice is, in a line. */
export function sentenceOf(view) {
  const { part: { data }, slice } = view.selected;
  const name = (each) => data.head.names[data.name[each]];
  const arrows = view.arrows();
  let launched = '';
  if (arrows.length && arrows[0][1] === slice) launched = `, launched by ${name(arrows[0][0])} ${time(data.start[slice] - data.start[arrows[0][0]])} before`;
  else if (arrows.length) launched = `, launches ${arrows.length === 1 ? name(arrows[0][1]) : `${arrows.length} slices`}`;
  return shown(`${name(slice)}: ${time(data.end[slice] - data.start[slice])}, starts at ${time(data.start[slice])}${launched}`);
}

/** Tells in `box` all that the server knows of the selected slice, unless something else is listed there meanwhile. */
export async function describe(view, box) {
  if (isFile()) return;
  const { part, slice } = view.selected;
  const listed = view.listed;
  try {
    const told = await ask('event', { run: part.run, slice, ...(part.span ? { t0: part.span[0], t1: part.span[1] } : {}) });
    if (!view.selected || view.selected.slice !== slice || view.listed !== listed) return;
    const among = `${told.nth}. of ${told.calls}, median ${real(told.median_us)} \u00b5s; ${real(told.no_longer_pct)} % took no longer`;
    const facts = Object.entries(told.event).flatMap(([key, value]) => [element('dt', {}, key), element('dd', {}, String(value))]);
    emptied(box).append(element('h2', {}, told.event.operator || told.event.kernel_name || ''), note(among), element('dl', {}, facts));
  } catch (error) {
    if (view.listed === listed) emptied(box).append(failure(error));
  }
}

/** The longest slices of what is shown, as a table. */
export function seenTable(view) {
  const found = [];
  for (const { part, row } of view.lines) {
    const last = firstStarting(part.data, row, view.t1);
    for (let place = firstEnding(part.data, row, view.t0); place < last; place += 1) found.push({ part, slice: row.slices[place] });
  }
  const length = ({ part: { data }, slice }) => data.end[slice] - data.start[slice];
  found.sort((a, b) => length(b) - length(a));
  return tableFor(view, 'Slices in view', found, `the ${MOST_LISTED} longest of ${found.length} slices`);
}

/** The slices that the search found, in order, as a table with their total. */
export function hitsTable(view) {
  const found = [];
  for (let place = 0; place < Math.min(view.hits.length, MOST_LISTED); place += 1) found.push(view.hitAt(place));
  const title = `${view.hits.length} hits, ${time(view.hits.total)} together`;
  return tableFor(view, title, found, `the first ${MOST_LISTED} of ${view.hits.length}`, view.hits.length);
}

function tableFor(view, title, found, less, count = found.length) {
  const rows = found.slice(0, MOST_LISTED).map(({ part, slice }) => {
    const { data } = part;
    const lane = data.head.lanes.find((each) => slice >= each.first && slice < each.first + each.count);
    return [data.head.names[data.name[slice]], data.head.kinds[data.kind[slice]], lane.label, data.start[slice] / 1e3, (data.end[slice] - data.start[slice]) / 1e3, part, slice];
  });
  const notes = count > MOST_LISTED ? [less] : [];
  const onRow = (row) => {
    view.select(row[5], row[6]);
    view.reveal();
  };
  return [element('h2', {}, title), tableOf({ title, columns: COLUMNS, rows, notes, missing: {} }, { onRow })];
}
