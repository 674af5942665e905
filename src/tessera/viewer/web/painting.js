// What the timeline draws on its canvas: axis, lanes, counters, marks, arrows.

import { amount, category, token } from './colors.js';
import { real, shown, time } from './format.js';
import { eachDrawn } from './rows.js';

export const ROW = 18;
export const LABEL = 18;
export const AXIS = 22;
export const STRIP = 40;
const SHOWN_TEXT = 40;
const UNKNOWN = '#999999';
const MOST_ARROWS = 200;

/** What slices can be coloured by. */
export const COLORS = { operator: 'operator', bound: '% of bound', dtype: 'dtype', region: 'region' };

/** The colour of a slice of a part. */
export function colorOf(part, slice, by) {
  const { data } = part;
  if (by === 'operator') return category(data.name[slice]);
  const work = data.head.works[data.work[slice]];
  if (by === 'bound') {
    if (work.least_us === null) return UNKNOWN;
    return amount((1000 * work.least_us) / Math.max(data.end[slice] - data.start[slice], 1));
  }
  const index = part.groups[by].indexOf(work[by]);
  return work[by] ? category(index) : UNKNOWN;
}

/** What the colours mean, as [colour, text]. */
export function legendOf(parts, by) {
  if (by === 'operator') return [];
  if (by === 'bound') return [[amount(0), '0 %'], [amount(0.5), '50 %'], [amount(1), '100 % of the bound or more'], [UNKNOWN, 'no bound known']];
  return [...parts[0].groups[by].map((name, index) => [category(index), name]), [UNKNOWN, `no ${by}`]];
}

/** Draws a timeline anew. */
export function paint(view) {
  const scale = window.devicePixelRatio || 1;
  view.width = Math.max(view.canvas.clientWidth, 1);
  view.canvas.width = Math.round(view.width * scale);
  view.canvas.height = Math.round(view.height * scale);
  const context = view.canvas.getContext('2d');
  context.scale(scale, scale);
  context.fillStyle = token('page');
  context.fillRect(0, 0, view.width, view.height);
  context.font = '11px system-ui, sans-serif';
  context.textBaseline = 'middle';
  paintAxis(view, context);
  context.fillStyle = token('faint');
  for (const label of view.labels) context.fillText(label.text, 4, label.y + LABEL / 2);
  for (const line of view.lines) paintRow(view, context, line);
  for (const strip of view.strips) paintStrip(view, context, strip);
  paintMarks(view, context);
  paintArrows(view, context);
  if (view.measured) paintSpan(view, context);
}

export function paintRow(view, context, { part, row, y }) {
  const { data } = part;
  const kept = part.kept;
  const chosen = new Set([view.selected, ...view.sum].filter((each) => each && each.part === part).map((each) => each.slice));
  const fill = (slice) => {
    context.globalAlpha = kept && !kept[data.name[slice]] ? 0.15 : 1;
    context.fillStyle = colorOf(part, slice, view.colors);
  };
  eachDrawn(data, row, view.t0, view.t1, view.width, (slice, from, to) => {
    fill(slice);
    context.fillRect(from, y + 1, Math.max(to - from - 0.5, 1), ROW - 2);
    if (chosen.has(slice)) {
      context.globalAlpha = 1;
      context.strokeStyle = token('text');
      context.lineWidth = 2;
      context.strokeRect(from, y + 1, Math.max(to - from, 2), ROW - 2);
    }
    if (to - from > SHOWN_TEXT) nameIn(context, data.head.names[data.name[slice]], from, y, to - from, view.colors);
  }, (pixel, share, slice) => {
    fill(slice);
    const height = Math.max(share * (ROW - 2), 1);
    context.fillRect(pixel, y + ROW - 1 - height, 1, height);
  });
  context.globalAlpha = 1;
}

function nameIn(context, name, x, y, width, by) {
  const most = Math.floor((width - 6) / 6);
  context.globalAlpha = 1;
  if (by === 'bound') {
    context.fillStyle = '#ffffff';
    context.fillRect(x + 2, y + 3, Math.min(width - 4, 6 * Math.min(most, name.length) + 4), ROW - 6);
  }
  context.fillStyle = '#000000';
  context.fillText(shown(name).slice(0, most), x + 3, y + ROW / 2);
}

function paintStrip(view, context, { series, y, color }) {
  const { at, values } = series;
  const [low, high] = [Math.min(0, ...values), Math.max(0, ...values)];
  const x = (instant) => ((instant - view.t0) * view.width) / (view.t1 - view.t0);
  const top = (value) => y + STRIP - 3 - ((value - low) / Math.max(high - low, 1e-300)) * (STRIP - 6);
  context.strokeStyle = category(color);
  context.lineWidth = 1.5;
  context.beginPath();
  let last = null;
  let seen = null;
  for (let place = 0; place < at.length; place += 1) {
    if (at[place] > view.t1 && last !== null && at[place - 1] > view.t1) break;
    if (place + 1 < at.length && at[place + 1] < view.t0) continue;
    if (last === null) context.moveTo(x(at[place]), top(values[place]));
    else context.lineTo(x(at[place]), top(values[place]));
    last = values[place];
    if (at[place] <= view.t1) seen = last;
  }
  context.stroke();
  const unit = series.unit ? ` ${series.unit}` : '';
  const device = series.device && series.device !== 'cpu' ? `, ${series.device}` : '';
  const text = shown(`${series.name}${device}: ${real(low)} to ${real(high)}${unit}${seen === null ? '' : `; ${real(seen)}${unit} at the right`}`).slice(0, 120);
  context.globalAlpha = 0.75;
  context.fillStyle = token('page');
  context.fillRect(2, y, context.measureText(text).width + 6, 14);
  context.globalAlpha = 1;
  context.fillStyle = token('faint');
  context.fillText(text, 4, y + 7);
}

function paintAxis(view, context) {
  const span = view.t1 - view.t0;
  const raw = span / Math.max(view.width / 110, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
  context.fillStyle = token('faint');
  context.strokeStyle = token('line');
  context.lineWidth = 1;
  for (let at = Math.ceil(view.t0 / step) * step; at < view.t1; at += step) {
    const x = ((at - view.t0) * view.width) / span;
    context.beginPath();
    context.moveTo(x, AXIS - 6);
    context.lineTo(x, view.height);
    context.stroke();
    context.fillText(time(at), x + 3, AXIS / 2);
  }
}

function paintMarks(view, context) {
  context.strokeStyle = token('mark');
  context.fillStyle = token('mark');
  let named = -Infinity;
  for (const mark of view.parts[0].data.head.marks) {
    if (mark.at < view.t0 || mark.at > view.t1) continue;
    const x = ((mark.at - view.t0) * view.width) / (view.t1 - view.t0);
    context.beginPath();
    context.moveTo(x, AXIS - 8);
    context.lineTo(x, view.height);
    context.stroke();
    const name = shown(mark.name).slice(0, SHOWN_TEXT);
    const wide = context.measureText(name).width;
    const at = x + 3 + wide > view.width ? x - 3 - wide : x + 3;  // the last ones stand before their flag
    if (at < named) continue;
    context.fillText(name, at, AXIS - 3);
    named = at + wide + 5;
  }
}

/** From each launch that has to do with the selected slice to what it launched. */
function paintArrows(view, context) {
  context.strokeStyle = token('select');
  context.fillStyle = token('select');
  context.lineWidth = 1.5;
  for (const [launch, launched] of view.arrows().slice(0, MOST_ARROWS)) {
    const { part } = view.selected;
    const x = (instant) => ((instant - view.t0) * view.width) / (view.t1 - view.t0);
    const [from, to] = [x(part.data.start[launch]), x(part.data.start[launched])];
    const [top, bottom] = [launch, launched].map((slice) => view.lineOf(part, slice).y + ROW / 2);
    const bend = Math.max(Math.abs(to - from) / 3, 12);
    context.beginPath();
    context.moveTo(from, top);
    context.bezierCurveTo(from + bend, top, to - bend, bottom, to, bottom);
    context.stroke();
    context.beginPath();
    context.moveTo(to, bottom);
    context.lineTo(to - 7, bottom - 4);
    context.lineTo(to - 7, bottom + 4);
    context.fill();
  }
}

function paintSpan(view, context) {
  context.globalAlpha = 0.15;
  context.fillStyle = token('select');
  const [a, b] = view.measured.map((instant) => ((instant - view.t0) * view.width) / (view.t1 - view.t0));
  context.fillRect(a, 0, Math.max(b - a, 1), view.height);
  context.globalAlpha = 1;
}
