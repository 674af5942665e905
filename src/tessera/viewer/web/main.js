// The viewer: a header that all pages share, and the page that the address names.

import { ask, download } from './api.js';
import { codePage } from './code.js';
import { collectivesPage } from './collectives.js';
import { comparePage } from './compare.js';
import { countersPage } from './counters.js';
import { element, emptied, failure, note } from './dom.js';
import { flamePage } from './flame.js';
import { time } from './format.js';
import { kernelsPage } from './kernels.js';
import { overviewPage } from './overview.js';
import { rooflinePage } from './roofline.js';
import { change, link, onChange, state, windowOf } from './state.js';
import { startTheme, toggle } from './theme.js';
import { slicesOf, timelinePage } from './timeline.js';

const PAGES = {
  overview: ['Overview', overviewPage], kernels: ['Kernels', kernelsPage], timeline: ['Timeline', timelinePage],
  roofline: ['Roofline', rooflinePage], collectives: ['Collectives', collectivesPage], counters: ['Counters', countersPage],
  code: ['Code', codePage], flame: ['Flame', flamePage], compare: ['Compare', comparePage],
};
const app = document.getElementById('app');
const main = element('main', {});
const shownNow = { key: '', runs: [] };

async function show() {
  const now = state();
  const run = Math.min(Number(now.run) || 0, shownNow.runs.length - 1);
  const other = now.b !== undefined && Number(now.b) < shownNow.runs.length ? Number(now.b) : null;
  const about = shownNow.runs[run];
  const page = PAGES[now.page] ? now.page : 'overview';
  const key = JSON.stringify([page, run, other, now.t0, now.t1, now.q, shownNow.runs.map((each) => each.name)]);
  if (key === shownNow.key) return;
  shownNow.key = key;
  emptied(app).append(header(about, run, other, now), tabs(page, about), main);
  main.dataset.page = page;
  main.dataset.ready = '';
  emptied(main).append(note('reading\u2026'));
  try {
    if (about.error) throw { code: 'E_PROFILE', message: about.error, hints: about.hints };
    const box = element('div', {});
    await PAGES[page][1](box, { run, other, runs: shownNow.runs });
    if (shownNow.key !== key) return;
    emptied(main).append(box);
    if (page === 'timeline' && window.tessera.timeline) window.tessera.timeline.draw();
  } catch (error) {
    if (shownNow.key !== key) return;
    emptied(main).append(failure(error));
    if (error instanceof Error) console.error(error);
  }
  main.dataset.ready = page;
}

function header(about, run, other, now) {
  const options = (chosen) => shownNow.runs.map((each, place) => element('option', { value: place, selected: place === chosen }, each.name));
  const pick = element('select', { 'aria-label': 'run', change: (event) => change({ run: event.target.value, sel: null, t0: null, t1: null }) }, options(run));
  const second = element('select', { 'aria-label': 'second run', change: (event) => change({ b: event.target.value, sel: null }) },
    element('option', { value: '', selected: other === null }, 'no second run'), options(other));
  const span = windowOf(now);
  const window_ = span ? [element('span', {}, `window: ${time(span[0])} to ${time(span[1])}`), element('button', { click: () => change({ t0: null, t1: null }) }, 'clear')] : [];
  const chrome = download('chrome', run);
  return element('header', {}, element('h1', {}, 'Tessera'), pick, ...(shownNow.runs.length > 1 ? [second] : []), recorded(about), ...window_,
    ...(chrome ? [element('a', { href: chrome }, 'trace for Perfetto')] : []), element('button', { click: toggle }, 'light or dark'));
}

function recorded(about) {
  if (about.recorded === undefined || about.recorded === null) return '';
  const lost = Object.entries(about.dropped_reasons || {}).filter(([, count]) => count);
  const told = `recorded ${about.recorded} of ${about.launched ?? about.recorded} kernels`;
  if (!lost.length) return element('span', { class: 'faint' }, told);
  return element('span', { class: 'bad' }, `${told}: ${lost.map(([why, count]) => `${count} ${why}`).join(', ')}`);
}

function tabs(page, about) {
  const offered = (name) => name === 'overview' || (about.recorded !== 0 && (name !== 'compare' || shownNow.runs.length > 1));
  const links = Object.entries(PAGES).filter(([name]) => offered(name)).map(([name, [title]]) => {
    return element('a', { href: link({ page: name }), 'aria-current': name === page ? 'page' : null }, title);
  });
  return element('nav', { 'aria-label': 'pages' }, links);
}

async function begin() {
  startTheme();
  try {
    shownNow.runs = await ask('runs');
  } catch (error) {
    emptied(app).append(failure(error));
    return;
  }
  onChange(show);
  await show();
}

/** For tests: what is drawn, by kind, name and lane. */
async function counts(run = 0) {
  const data = await slicesOf(run);
  const told = { kinds: {}, names: {}, lanes: data.head.lanes.map((lane) => lane.count), duration: 0 };
  for (let at = 0; at < data.head.n; at += 1) {
    const [kind, name] = [data.head.kinds[data.kind[at]], data.head.names[data.name[at]]];
    told.kinds[kind] = (told.kinds[kind] || 0) + 1;
    told.names[name] = (told.names[name] || 0) + 1;
    told.duration += data.end[at] - data.start[at];
  }
  return told;
}

window.tessera = { counts, state };
begin();
