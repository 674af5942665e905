// The timeline: lanes of threads and streams on a canvas, moved by mouse and by keys.

import { ask, columnsOf, isFile } from './api.js';
import { decode } from './decode.js';
import { element, emptied, failure, note } from './dom.js';
import { shown, time } from './format.js';
import { AXIS, COLORS, LABEL, ROW, STRIP, legendOf, paint } from './painting.js';
import { align, moved, namesOfBoth, partNotes, partOf, taken, wholeOf } from './parts.js';
import { firstStarting } from './rows.js';
import { applied, matching, onSearch } from './search.js';
import { arrowsOf, beside, describe, hit, hitsTable, neighbour, seenTable, sentenceOf, sumOf } from './selection.js';
import { change, state, windowOf } from './state.js';

const TALLEST = 16000;
const MOST_STRIPS = 24;
const REST_MS = 300;
const KEYS = 'Ctrl + wheel or w, s: zoom; drag or a, d: move; shift + drag: measure; shift + click or +: add to a sum; f: fit the selection; m: mark it; arrows: next slice; /: search, n and N: next hit';

export async function timelinePage(box, context) {
  const runs = [context.run, ...(context.other !== null ? [context.other] : [])];
  const [parts, { series }, { metadata }] = await Promise.all([Promise.all(runs.map(partOf)), ask('series', { run: context.run }), ask('meta', { run: context.run })]);
  await new Timeline(box, parts, series, context).start();
  if (metadata.no_kernels) box.prepend(note(`no kernel is drawn: ${metadata.no_kernels}`));
}

class Timeline {
  constructor(box, parts, series, context) {
    Object.assign(this, { box, parts, series, context, hits: { length: 0, total: 0 }, sum: [], selected: null, measured: null, at: -1 });
    this.colors = COLORS[state().color] ? state().color : 'operator';
    this.showsSeries = state().strips !== 'no';
    this.whole = wholeOf(parts);
    [this.t0, this.t1] = windowOf(state()) || this.whole;
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
    this.strips = [];
    for (const series of this.showsSeries ? this.series.slice(0, MOST_STRIPS) : []) {
      this.strips.push({ series, y, color: this.strips.length });
      y += STRIP;
    }
    this.height = Math.min(Math.max(y + 8, 120), TALLEST);
    if (this.canvas) this.canvas.style.height = `${this.height}px`;
  }

  async start() {
    this.canvas = element('canvas', { tabindex: 0, role: 'application', 'aria-label': 'timeline: arrows select, w and s zoom, a and d move' });
    this.canvas.style.height = `${this.height}px`;
    this.status = element('p', { class: 'note', 'aria-live': 'polite' });
    this.legend = element('p', { class: 'legend' });
    this.details = element('section', {});
    const scroll = element('div', { class: 'scroll' }, this.canvas);
    emptied(this.box).append(element('p', {}, this.controls()), ...this.parts.flatMap(partNotes), this.legend, scroll, this.status, note(KEYS), this.details);
    if (this.series.length > MOST_STRIPS) this.box.append(note(`${MOST_STRIPS} of ${this.series.length} counters; the page Counters shows all`));
    this.listen();
    onSearch((text) => this.search(text));
    if (state().q) await applied(state().q, (told, bad) => (bad ? (this.status.textContent = told) : undefined));
    const chosen = /^(\d+):(\d+)$/.exec(state().sel || '');
    if (chosen && this.parts[Number(chosen[1])] && Number(chosen[2]) < this.parts[Number(chosen[1])].data.head.n) {
      this.select(this.parts[Number(chosen[1])], Number(chosen[2]));
    }
    this.tellColors();
    window.tessera.timeline = this;
  }

  controls() {
    const button = (text, act) => element('button', { click: act }, text);
    const colors = element('select', { 'aria-label': 'colour by', change: (event) => this.paintBy(event.target.value) },
      Object.entries(COLORS).map(([by, text]) => element('option', { value: by, selected: by === this.colors }, `colour: ${text}`)));
    const parts = [button('whole run', () => this.show(...this.whole)), button('use as the window of all pages', () => change({ t0: Math.floor(this.t0), t1: Math.ceil(this.t1) })),
      button('table (T)', () => this.list(seenTable(this))), button('hits', () => this.list(hitsTable(this))), colors];
    if (this.series.length) parts.push(button('counters', () => this.toggleSeries()));
    if (this.parts.length > 1) {
      const names = namesOfBoth(this.parts[0].original, this.parts[1].original);
      parts.push(element('select', { 'aria-label': 'align at', change: (event) => this.alignAt(event.target.value) },
        element('option', { value: '' }, 'as recorded'), names.map((name) => element('option', { value: name }, `align at ${name}`.slice(0, 60)))));
    }
    return parts.flatMap((each) => [each, ' ']);
  }

  paintBy(by) {
    this.colors = by;
    change({ color: by === 'operator' ? null : by }, { quiet: true });
    this.tellColors();
  }

  tellColors() {
    const entries = legendOf(this.parts, this.colors).map(([color, text]) => element('span', {}, element('span', { class: 'swatch', style: `background:${color}` }), text));
    emptied(this.legend).append(...entries);
    this.draw();
  }

  toggleSeries() {
    this.showsSeries = !this.showsSeries;
    change({ strips: this.showsSeries ? null : 'no' }, { quiet: true });
    this.layout();
    this.draw();
  }

  /** Moves the second run so that both begin something at once. */
  alignAt(name) {
    align(this.parts[0], this.parts[1], name);
    this.selected = null;
    this.sum = [];
    this.whole = wholeOf(this.parts);
    this.layout();
    this.show(...this.whole);
  }

  listen() {
    const at = (event) => {
      const frame = this.canvas.getBoundingClientRect();
      return [event.clientX - frame.left, event.clientY - frame.top];
    };
    let held = null;
    this.canvas.addEventListener('pointerdown', (event) => {
      const [x, y] = at(event);
      held = { x, y, t0: this.t0, t1: this.t1, moved: false, shift: event.shiftKey };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (!held) return;
      const [x] = at(event);
      held.moved ||= Math.abs(x - held.x) > 3;
      if (!held.moved) return;
      if (held.shift) this.measure(this.instant(held.x), this.instant(x));
      else {
        const by = ((held.x - x) * (held.t1 - held.t0)) / this.width;
        this.show(held.t0 + by, held.t1 + by);
      }
    });
    this.canvas.addEventListener('pointerup', () => {
      const found = held && !held.moved ? this.hit(held.x, held.y) : null;
      if (found && held.shift) this.add(found);
      else if (found) this.select(found.part, found.slice);
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
      d: () => this.show(this.t0 + span / 5, this.t1 + span / 5), f: () => this.fit(), t: () => this.list(seenTable(this)),
      m: () => this.mark(), '+': () => this.selected && this.add(this.selected),
      '/': () => document.getElementById('search').focus(), n: () => this.step(1), N: () => this.step(-1),
      ArrowRight: () => this.choose(neighbour(this, 1)), ArrowLeft: () => this.choose(neighbour(this, -1)),
      ArrowDown: () => this.choose(beside(this, 1)), ArrowUp: () => this.choose(beside(this, -1)), Escape: () => this.show(...this.whole),
    };
    const act = acts[event.key] || acts[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  instant(x) {
    return this.t0 + (x * (this.t1 - this.t0)) / this.width;
  }

  hit(x, y) {
    return hit(this, x, y);
  }

  arrows() {
    return arrowsOf(this);
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
    clearTimeout(this.resting);
    this.resting = setTimeout(() => this.refine(), REST_MS);
  }

  /** Where a run has more slices than are drawn one by one, those of what is seen are asked for. */
  async refine() {
    for (const part of this.parts) {
      if (!part.whole.head.summed || isFile()) continue;
      const all = this.t1 - this.t0 > (this.whole[1] - this.whole[0]) / 2;
      const span = all ? null : [Math.floor(this.t0 - part.offset), Math.ceil(this.t1 - part.offset)];
      const wanted = JSON.stringify(span);
      if (part.wanted === wanted || (span === null && !part.span)) continue;
      part.wanted = wanted;
      try {
        const data = span ? moved(await columnsOf(part.run, span).then(decode), part.offset) : part.whole;
        if (part.wanted !== wanted) continue;
        taken(part, data, span);
        this.selected = null;
        this.sum = [];
        this.layout();
        await this.search(state().q || '');
      } catch (error) {
        emptied(this.details).append(failure(error));
      }
    }
  }

  fit() {
    if (!this.selected) return;
    const [start, end] = this.spanOf(this.selected);
    const around = Math.max(end - start, 10) / 4;
    this.show(start - around, end + around);
  }

  spanOf({ part, slice }) {
    return [part.data.start[slice], part.data.end[slice]];
  }

  /** Marks the time of the selected slice over all lanes, or takes the mark away. */
  mark() {
    if (this.measured) this.measured = null;
    else if (this.selected) this.measure(...this.spanOf(this.selected));
    this.draw();
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

  /** Adds a slice to the sum, or takes it out. */
  add(found) {
    const same = (each) => each.part === found.part && each.slice === found.slice;
    if (!this.sum.length && this.selected && !same(this.selected)) this.sum.push(this.selected);
    this.sum = this.sum.some(same) ? this.sum.filter((each) => !same(each)) : [...this.sum, found];
    const { count, total, union } = sumOf(this.sum);
    this.status.textContent = `${count} slices: ${time(total)} together, ${time(union)} in which any of them ran`;
    this.draw();
  }

  /** Where the middle of a slice is drawn, in pixels of the canvas. */
  place(part, slice) {
    const middle = (part.data.start[slice] + part.data.end[slice]) / 2;
    return [((middle - this.t0) * this.width) / (this.t1 - this.t0), this.lineOf(part, slice).y + ROW / 2];
  }

  lineOf(part, slice) {
    const lane = part.data.head.lanes.findIndex((each) => slice >= each.first && slice < each.first + each.count);
    return this.lines.find((each) => each.part === part && each.row.lane === lane && each.row.depth === part.data.depth[slice]);
  }

  choose(found) {
    if (!found) return;
    this.select(found.part, found.slice);
    this.reveal();
  }

  reveal() {
    const [start, end] = this.spanOf(this.selected);
    if (end >= this.t0 && start <= this.t1) return;
    const half = (this.t1 - this.t0) / 2;
    this.show(start - half, start + half);
  }

  select(part, slice) {
    this.selected = { part, slice };
    this.sum = [];
    this.status.textContent = sentenceOf(this);
    if (!part.span) change({ sel: `${this.parts.indexOf(part)}:${slice}` }, { quiet: true });
    this.draw();
    describe(this, this.details);
  }

  /** Finds the slices whose names match; gives what to say of them. */
  async search(text) {
    for (const part of this.parts) part.kept = await matching(text, part.data.head.names);
    const [which, slices] = [[], []];
    let total = 0;
    this.parts.forEach(({ kept, data }, number) => {
      if (!kept) return;
      for (let slice = 0; slice < data.head.n; slice += 1) {
        if (!kept[data.name[slice]]) continue;
        which.push(number);
        slices.push(slice);
        total += data.end[slice] - data.start[slice];
      }
    });
    this.hits = { length: slices.length, total, which, slices };
    this.at = -1;
    this.draw();
    return text ? `${this.hits.length} hits, ${time(total)}` : '';
  }

  hitAt(place) {
    return { part: this.parts[this.hits.which[place]], slice: this.hits.slices[place] };
  }

  step(by) {
    if (!this.hits.length) return;
    this.at = this.at < 0 && by < 0 ? this.hits.length - 1 : (this.at + by + this.hits.length) % this.hits.length;
    this.choose(this.hitAt(this.at));
  }

  list(table) {
    this.listed = table;
    emptied(this.details).append(...table);
  }

  draw() {
    this.asked = 0;
    paint(this);
  }
}
