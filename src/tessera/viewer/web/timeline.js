// The timeline: lanes of threads and streams on a canvas, moved by mouse and by keys.

import { ask, columnsOf, isFile } from './api.js';
import { category, token } from './colors.js';
import { decode } from './decode.js';
import { element, emptied, failure, note } from './dom.js';
import { real, shown, time } from './format.js';
import { eachDrawn, firstEnding, firstStarting, rowsOf } from './rows.js';
import { change, state, windowOf } from './state.js';
import { tableOf } from './table.js';

const ROW = 18;
const LABEL = 18;
const AXIS = 22;
const TALLEST = 16000;
const SHOWN_TEXT = 40;
const MOST_LISTED = 500;
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

export async function timelinePage(box, context) {
  const runs = [context.run, ...(context.other !== null ? [context.other] : [])];
  const parts = [];
  for (const run of runs) parts.push({ run, data: await slicesOf(run) });
  for (const part of parts) part.rows = rowsOf(part.data);
  new Timeline(box, parts, context).start();
}

class Timeline {
  constructor(box, parts, context) {
    Object.assign(this, { box, parts, context, hits: [], drawn: 0, selected: null });
    this.whole = wholeOf(parts);
    [this.t0, this.t1] = windowOf(state()) || this.whole;
    this.matches = parts.map(() => null);
    this.layout();
  }

  layout() {
    let y = AXIS;
    this.lines = [];
    this.labels = [];
    for (const part of this.parts) {
      let lane = -1;
      for (const row of part.rows) {
        if (row.lane !== lane) {
          lane = row.lane;
          const about = part.data.head.lanes[lane];
          const run = this.parts.length > 1 ? `${this.context.runs[part.run].name}: ` : '';
          const rank = part.data.head.lanes.some((each) => each.rank !== about.rank) ? `rank ${about.rank}, ` : '';
          this.labels.push({ y, text: shown(`${run}${rank}${about.device}: ${about.label} (${about.count})`) });
          y += LABEL;
        }
        this.lines.push({ part, row, y });
        y += ROW;
      }
    }
    this.height = Math.min(Math.max(y + 8, 120), TALLEST);
  }

  start() {
    this.canvas = element('canvas', { tabindex: 0, role: 'application', 'aria-label': 'timeline: arrows select, w and s zoom, a and d move' });
    this.canvas.style.height = `${this.height}px`;
    const scroll = element('div', { class: 'scroll' }, this.canvas);
    this.status = element('p', { class: 'note', 'aria-live': 'polite' });
    this.details = element('section', {});
    const search = element('input', { type: 'search', placeholder: 'search names ( / )', 'aria-label': 'search names', value: state().q || '' });
    search.addEventListener('input', () => this.search(search.value));
    search.addEventListener('keydown', (event) => (event.key === 'Enter' ? this.step(event.shiftKey ? -1 : 1) : undefined));
    this.searchBox = search;
    this.found = element('span', { class: 'faint' });
    const button = (text, act) => element('button', { click: act }, text);
    emptied(this.box).append(
      element('p', {}, search, ' ', this.found, ' ', button('whole run', () => this.show(...this.whole)), ' ',
        button('use as the window of all pages', () => change({ t0: Math.floor(this.t0), t1: Math.ceil(this.t1) })), ' ',
        button('no window', () => this.unwindow()), ' ', button('table (T)', () => this.list())),
      ...this.parts.flatMap((part) => partNotes(part.data)), scroll, this.status,
      note('Ctrl + wheel or w, s: zoom; drag or a, d: move; shift + drag: measure; f: fit the selection; arrows: next slice; /: search, Enter: next hit'),
      this.details,
    );
    this.listen();
    if (state().q) this.search(state().q);
    const chosen = /^(\d+):(\d+)$/.exec(state().sel || '');
    if (chosen && this.parts[Number(chosen[1])] && Number(chosen[2]) < this.parts[Number(chosen[1])].data.head.n) {
      this.select(this.parts[Number(chosen[1])], Number(chosen[2]));
    }
    this.draw();
    window.tessera.timeline = this;
  }

  unwindow() {
    change({ t0: null, t1: null });
  }

  listen() {
    const at = (event) => {
      const frame = this.canvas.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    let held = null;
    this.canvas.addEventListener('pointerdown', (event) => {
      const [x, y] = at(event);
      held = { x, y, t0: this.t0, t1: this.t1, moved: false, measures: event.shiftKey };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (!held) return;
      const [x] = at(event);
      held.moved ||= Math.abs(x - held.x) > 3;
      if (!held.moved) return;
      if (held.measures) this.measure(this.instant(held.x), this.instant(x));
      else {
        const moved = ((held.x - x) * (held.t1 - held.t0)) / this.width;
        this.show(held.t0 + moved, held.t1 + moved);
      }
    });
    this.canvas.addEventListener('pointerup', () => {
      if (held && !held.moved) {
        const found = this.hit(held.x, held.y);
        if (found) this.select(found.part, found.slice);
      }
      held = null;
    });
    this.canvas.addEventListener('wheel', (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.instant(at(event)[0]));
    }, { passive: false });
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.canvas);
    window.addEventListener('themechange', () => this.draw());
  }

  key(event) {
    const span = this.t1 - this.t0;
    const acts = {
      w: () => this.zoom(0.7), s: () => this.zoom(1.4), a: () => this.show(this.t0 - span / 5, this.t1 - span / 5),
      d: () => this.show(this.t0 + span / 5, this.t1 + span / 5), f: () => this.fit(), t: () => this.list(),
      '/': () => this.searchBox.focus(), n: () => this.step(1), N: () => this.step(-1),
      ArrowRight: () => this.neighbour(1), ArrowLeft: () => this.neighbour(-1),
      ArrowDown: () => this.other(1), ArrowUp: () => this.other(-1), Escape: () => this.show(...this.whole),
    };
    const act = acts[event.key] || acts[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  instant(x) {
    return this.t0 + (x * (this.t1 - this.t0)) / this.width;
  }

  zoom(factor, around = (this.t0 + this.t1) / 2) {
    this.show(around - (around - this.t0) * factor, around + (this.t1 - around) * factor);
  }

  /** Shows a span of time, kept within the runs and no shorter than 10 ns. */
  show(t0, t1) {
    const span = Math.min(Math.max(t1 - t0, 10), this.whole[1] - this.whole[0]);
    this.t0 = Math.min(Math.max(t0, this.whole[0]), this.whole[1] - span);
    this.t1 = this.t0 + span;
    if (!this.asked) this.asked = requestAnimationFrame(() => this.draw());
  }

  fit() {
    if (!this.selected) return;
    const { data } = this.selected.part;
    const [start, end] = [data.start[this.selected.slice], data.end[this.selected.slice]];
    const around = Math.max(end - start, 10) / 4;
    this.show(start - around, end + around);
  }

  measure(from, to) {
    const [a, b] = from < to ? [from, to] : [to, from];
    this.measured = [a, b];
    let count = 0;
    let total = 0;
    for (const { part, row } of this.lines) {
      const first = firstStarting(part.data, row, a);
      const last = Math.max(firstStarting(part.data, row, b), first);
      count += last - first;
      total += row.busy[last] - row.busy[first];
    }
    this.status.textContent = `${time(b - a)}; ${count} slices begin there and take ${time(total)} together`;
    this.draw();
  }

  /** The slice at a place of the canvas, the longest where a pixel has several: {part, slice}, or null. */
  hit(x, y) {
    const line = this.lines.find((each) => y >= each.y && y < each.y + ROW);
    if (!line) return null;
    const { data } = line.part;
    const [from, to] = [this.instant(Math.floor(x)), this.instant(Math.floor(x) + 1)];
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

  /** Where the middle of a slice is drawn, in pixels of the canvas. */
  place(part, slice) {
    const line = this.lineOf(part, slice);
    const middle = (part.data.start[slice] + part.data.end[slice]) / 2;
    return [((middle - this.t0) * this.width) / (this.t1 - this.t0), line.y + ROW / 2];
  }

  lineOf(part, slice) {
    const lane = part.data.head.lanes.findIndex((each) => slice >= each.first && slice < each.first + each.count);
    return this.lines.find((each) => each.part === part && each.row.lane === lane && each.row.depth === part.data.depth[slice]);
  }

  neighbour(step) {
    if (!this.selected) return this.first();
    const line = this.lineOf(this.selected.part, this.selected.slice);
    const place = firstStarting(line.part.data, line.row, line.part.data.start[this.selected.slice]) + step;
    return this.choose(line, place);
  }

  other(step) {
    if (!this.selected) return this.first();
    const at = this.lines.indexOf(this.lineOf(this.selected.part, this.selected.slice)) + step;
    const line = this.lines[at];
    if (!line || !line.row.slices.length) return null;
    const near = firstEnding(line.part.data, line.row, this.selected.part.data.start[this.selected.slice]);
    return this.choose(line, Math.min(near, line.row.slices.length - 1));
  }

  first() {
    const line = this.lines.find((each) => each.row.slices.length);
    return line ? this.choose(line, Math.min(firstEnding(line.part.data, line.row, this.t0), line.row.slices.length - 1)) : null;
  }

  choose(line, place) {
    if (place < 0 || place >= line.row.slices.length) return;
    this.select(line.part, line.row.slices[place]);
    this.reveal();
  }

  reveal() {
    const { part, slice } = this.selected;
    if (part.data.end[slice] >= this.t0 && part.data.start[slice] <= this.t1) return;
    const half = (this.t1 - this.t0) / 2;
    this.show(part.data.start[slice] - half, part.data.start[slice] + half);
  }

  select(part, slice) {
    this.selected = { part, slice };
    const { data } = part;
    const name = data.head.names[data.name[slice]];
    this.status.textContent = shown(`${name}: ${time(data.end[slice] - data.start[slice])}, starts at ${time(data.start[slice])}`);
    change({ sel: `${this.parts.indexOf(part)}:${slice}` }, { quiet: true });
    this.draw();
    this.describe(part, slice);
  }

  async describe(part, slice) {
    if (isFile()) return;
    try {
      const told = await ask('event', { run: part.run, slice });
      if (!this.selected || this.selected.slice !== slice) return;
      const among = `${told.nth}. of ${told.calls}, median ${real(told.median_us)} \u00b5s; ${real(told.no_longer_pct)} % took no longer`;
      const facts = Object.entries(told.event).flatMap(([key, value]) => [element('dt', {}, key), element('dd', {}, String(value))]);
      emptied(this.details).append(element('h2', {}, told.event.operator || told.event.kernel_name || ''), note(among), element('dl', {}, facts));
    } catch (error) {
      emptied(this.details).append(failure(error));
    }
  }

  search(text) {
    const wanted = text.toLowerCase();
    this.hits = [];
    this.matches = this.parts.map((part) => {
      if (!wanted) return null;
      const kept = new Uint8Array(part.data.head.names.length);
      part.data.head.names.forEach((name, place) => (kept[place] = name.toLowerCase().includes(wanted) ? 1 : 0));
      return kept;
    });
    let total = 0;
    if (wanted) {
      this.parts.forEach((part, which) => {
        for (let slice = 0; slice < part.data.head.n; slice += 1) {
          if (!this.matches[which][part.data.name[slice]]) continue;
          this.hits.push([which, slice]);
          total += part.data.end[slice] - part.data.start[slice];
        }
      });
    }
    this.at = -1;
    this.found.textContent = wanted ? `${this.hits.length} hits, ${time(total)}` : '';
    change({ q: text }, { quiet: true });
    this.draw();
  }

  step(by) {
    if (!this.hits.length) return;
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    const [which, slice] = this.hits[this.at];
    this.select(this.parts[which], slice);
    this.reveal();
  }

  /** The longest slices of what is shown, as a table. */
  list() {
    const rows = [];
    for (const { part, row } of this.lines) {
      const last = firstStarting(part.data, row, this.t1);
      for (let place = firstEnding(part.data, row, this.t0); place < last; place += 1) {
        const slice = row.slices[place];
        const { data } = part;
        rows.push([data.head.names[data.name[slice]], data.head.kinds[data.kind[slice]], data.head.lanes[row.lane].label,
          data.start[slice] / 1e3, (data.end[slice] - data.start[slice]) / 1e3, this.parts.indexOf(part), slice]);
      }
    }
    rows.sort((a, b) => b[4] - a[4]);
    const column = (name, heading, numeric) => ({ name, heading, type: numeric ? 'float' : 'text' });
    const columns = [column('name', 'Name'), column('kind', 'Kind'), column('lane', 'Lane'), column('start', 'Start(\u00b5s)', true), column('duration', 'Duration(\u00b5s)', true)];
    const notes = rows.length > MOST_LISTED ? [`the ${MOST_LISTED} longest of ${rows.length} slices`] : [];
    const found = { title: 'Slices in view', columns, rows: rows.slice(0, MOST_LISTED), notes, missing: {} };
    const onRow = (row) => this.select(this.parts[row[5]], row[6]);
    emptied(this.details).append(element('h2', {}, 'Slices in view'), tableOf(found, { onRow }));
  }

  draw() {
    this.asked = 0;
    const scale = window.devicePixelRatio || 1;
    this.width = Math.max(this.canvas.clientWidth, 1);
    this.canvas.width = Math.round(this.width * scale);
    this.canvas.height = Math.round(this.height * scale);
    const context = this.canvas.getContext('2d');
    context.scale(scale, scale);
    context.fillStyle = token('page');
    context.fillRect(0, 0, this.width, this.height);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    this.drawAxis(context);
    context.fillStyle = token('faint');
    for (const label of this.labels) context.fillText(label.text, 4, label.y + LABEL / 2);
    for (const line of this.lines) this.drawRow(context, line);
    this.drawMarks(context);
    if (this.measured) {
      context.globalAlpha = 0.15;
      context.fillStyle = token('select');
      const [a, b] = this.measured.map((instant) => ((instant - this.t0) * this.width) / (this.t1 - this.t0));
      context.fillRect(a, 0, b - a, this.height);
      context.globalAlpha = 1;
    }
    this.drawn += 1;
  }

  drawRow(context, { part, row, y }) {
    const { data } = part;
    const kept = this.matches[this.parts.indexOf(part)];
    const paint = (slice) => {
      context.globalAlpha = kept && !kept[data.name[slice]] ? 0.15 : 1;
      context.fillStyle = category(data.name[slice]);
    };
    eachDrawn(data, row, this.t0, this.t1, this.width, (slice, from, to) => {
      paint(slice);
      context.fillRect(from, y + 1, Math.max(to - from - 0.5, 1), ROW - 2);
      if (this.selected && this.selected.part === part && this.selected.slice === slice) {
        context.globalAlpha = 1;
        context.strokeStyle = token('text');
        context.lineWidth = 2;
        context.strokeRect(from, y + 1, Math.max(to - from, 2), ROW - 2);
      }
      if (to - from > SHOWN_TEXT) nameIn(context, data.head.names[data.name[slice]], from, y, to - from);
    }, (pixel, share, slice) => {
      paint(slice);
      const height = Math.max(share * (ROW - 2), 1);
      context.fillRect(pixel, y + ROW - 1 - height, 1, height);
    });
    context.globalAlpha = 1;
  }

  drawAxis(context) {
    const span = this.t1 - this.t0;
    const raw = span / Math.max(this.width / 110, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= raw);
    context.fillStyle = token('faint');
    context.strokeStyle = token('line');
    context.lineWidth = 1;
    for (let at = Math.ceil(this.t0 / step) * step; at < this.t1; at += step) {
      const x = ((at - this.t0) * this.width) / span;
      context.beginPath();
      context.moveTo(x, AXIS - 6);
      context.lineTo(x, this.height);
      context.stroke();
      context.fillText(time(at), x + 3, AXIS / 2);
    }
  }

  drawMarks(context) {
    context.strokeStyle = token('mark');
    context.fillStyle = token('mark');
    let named = -Infinity;
    for (const mark of this.parts[0].data.head.marks) {
      if (mark.at < this.t0 || mark.at > this.t1) continue;
      const x = ((mark.at - this.t0) * this.width) / (this.t1 - this.t0);
      context.beginPath();
      context.moveTo(x, AXIS - 8);
      context.lineTo(x, this.height);
      context.stroke();
      const name = shown(mark.name).slice(0, SHOWN_TEXT);
      if (x < named) continue;
      context.fillText(name, x + 3, AXIS - 3);
      named = x + context.measureText(name).width + 8;
    }
  }
}


function nameIn(context, name, x, y, width) {
  const most = Math.floor((width - 6) / 6);
  context.globalAlpha = 1;
  context.fillStyle = '#000000';
  context.fillText(shown(name).slice(0, most), x + 3, y + ROW / 2);
}

function wholeOf(parts) {
  let [first, last] = [Infinity, -Infinity];
  for (const { data } of parts) {
    for (const lane of data.head.lanes) if (lane.count) first = Math.min(first, data.start[lane.first]);
    for (let at = 0; at < data.head.n; at += 1) last = Math.max(last, data.end[at]);
    for (const mark of data.head.marks) [first, last] = [Math.min(first, mark.at), Math.max(last, mark.at)];
  }
  if (first > last) return [0, 1000];
  const edge = Math.max((last - first) / 100, 5);
  return [first - edge, last + edge];
}

function partNotes(data) {
  const told = [];
  if (data.head.total > data.head.n) told.push(note(`the ${data.head.n} longest of ${data.head.total} slices are drawn; tables and charts are of all`));
  if (data.head.shift_us) told.push(note(`slices that crossed others were moved by up to ${real(data.head.shift_us)} \u00b5s so that they nest`));
  return told;
}
