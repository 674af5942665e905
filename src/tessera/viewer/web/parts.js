// The runs of a timeline: their slices, read once, and where each stands in time.

import { columnsOf, isFile } from './api.js';
import { decode } from './decode.js';
import { note } from './dom.js';
import { real } from './format.js';
import { rowsOf } from './rows.js';

const loaded = new Map();

/** The packed slices of a run, decoded once. */
export async function slicesOf(run) {
  if (!loaded.has(run)) loaded.set(run, columnsOf(run).then(decode));
  try {
    return await loaded.get(run);
  } catch (error) {
    loaded.delete(run);
    throw error;
  }
}

/** A run in a timeline: `data`, the slices that are shown, `whole`, those of the whole run, `span`, of which time they are,
 *  and `offset`, by how much they are moved, in nanoseconds. */
export async function partOf(run) {
  const whole = await slicesOf(run);
  return taken({ run, whole, original: whole, offset: 0, wanted: null, kept: null }, whole, null);
}

/** Gives a part other slices. */
export function taken(part, data, span) {
  const groups = Object.fromEntries(['dtype', 'region'].map((by) => [by, [...new Set(data.head.works.map((work) => work[by]).filter(Boolean))]]));
  return Object.assign(part, { data, span, rows: rowsOf(data), groups });
}

/** Slices that begin and end so much later. */
export function moved(data, offset) {
  if (!offset) return data;
  const marks = data.head.marks.map((mark) => ({ ...mark, at: mark.at + offset }));
  return { ...data, head: { ...data.head, marks }, start: data.start.map((at) => at + offset), end: data.end.map((at) => at + offset) };
}

/** Moves a part so that what has this name begins when it does in the first one. */
export function align(first, part, name) {
  const [here, there] = [beginOf(first.original, name), beginOf(part.original, name)];
  part.offset = name && here !== null && there !== null ? here - there : 0;
  part.whole = moved(part.original, part.offset);
  taken(part, part.whole, null);
  part.wanted = null;
}

/** The names of marks and regions that both have. */
export function namesOfBoth(a, b) {
  const theirs = new Set(namesOf(b));
  return namesOf(a).filter((name) => theirs.has(name)).slice(0, 200);
}

function namesOf(data) {
  const region = data.head.kinds.indexOf('region');
  const found = new Set(data.head.marks.map((mark) => mark.name));
  for (let at = 0; at < data.head.n && found.size < 1000; at += 1) if (data.kind[at] === region) found.add(data.head.names[data.name[at]]);
  return [...found];
}

function beginOf(data, name) {
  const marked = data.head.marks.find((mark) => mark.name === name);
  if (marked) return marked.at;
  const [code, region] = [data.head.names.indexOf(name), data.head.kinds.indexOf('region')];
  let first = null;
  for (let at = 0; at < data.head.n; at += 1) {
    if (data.name[at] === code && data.kind[at] === region && (first === null || data.start[at] < first)) first = data.start[at];
  }
  return first;
}

/** From the first to the last instant of all parts, with an edge. */
export function wholeOf(parts) {
  let [first, last] = [Infinity, -Infinity];
  for (const { whole } of parts) {
    for (const lane of whole.head.lanes) if (lane.count) first = Math.min(first, whole.start[lane.first]);
    for (let at = 0; at < whole.head.n; at += 1) last = Math.max(last, whole.end[at]);
    for (const mark of whole.head.marks) [first, last] = [Math.min(first, mark.at), Math.max(last, mark.at)];
  }
  if (first > last) return [0, 1000];
  const edge = Math.max((last - first) / 100, 5);
  return [first - edge, last + edge];
}

/** What is to be said of how slices are shown. */
export function partNotes({ data: { head } }) {
  const told = [];
  if (head.summed) told.push(note(`${head.summed} of ${head.total} slices are shorter than those drawn, and stand as sums in rows of their own${isFile() ? '' : '; zooming in shows each'}; tables and charts are of all`));
  if (head.shift_us) told.push(note(`slices that crossed others were moved by up to ${real(head.shift_us)} \u00b5s so that they nest`));
  if (head.odd && head.odd.total) told.push(note(`odd events: ${Object.entries(head.odd.reasons).map(([why, count]) => `${count} ${why}`).join(', ')}; they are drawn as instants`));
  return told;
}
