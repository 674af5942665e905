// The viewer: a header that all pages share, and the page that the address names.

import { ask, download, isFile, onWaiting } from './api.js';
import { codePage } from './code.js';
import { collectivesPage } from './collectives.js';
import { comparePage } from './compare.js';
import { countersPage } from './counters.js';
import { element, emptied, failure, note } from './dom.js';
import { flamePage } from './flame.js';
import { real, time } from './format.js';
import { kernelsPage } from './kernels.js';
import { overviewPage } from './overview.js';
import { rooflinePage } from './roofline.js';
import { paintRow } from './painting.js';
import { slicesOf } from './parts.js';
import { downloadTrace, openInPerfetto, traceOf } from './perfetto.js';
import { applied, onSearch, searchFor } from './search.js';
import { change, link, onChange, state, windowOf } from './state.js';
import { startTheme, toggle } from './theme.js';
import { timelinePage } from './timeline.js';

const PAGES = {
  overview: ['Overview', overviewPage], kernels: ['Kernels', kernelsPage], timeline: ['Timeline', timelinePage],
  roofline: ['Roofline', rooflinePage], collectives: ['Collectives', collectivesPage], counters: ['Counters', countersPage],
  code: ['Code', codePage], flame: ['Flame', flamePage], compare: ['Compare', comparePage],
};
const OF_ALL_TIME = ['overview', 'kernels', 'roofline', 'collectives', 'counters'];
const SEARCHED = ['timeline', 'kernels', 'roofline', 'flame'];
const LOOKS_EVERY_MS = 2000;
const PAUSE = 20;
const app = document.getElementById('app');
const main = element('main', {});
const banner = element('div', { role: 'status' });
const found = element('span', { class: 'faint', 'aria-live': 'polite' });
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
  onSearch(null);
  emptied(found);
  emptied(app).append(header(about, run, other, now, page), tabs(page, about), banner, main);
  main.dataset.page = page;
  main.dataset.ready = main.dataset.shown = '';
  const reading = note('reading\u2026');
  emptied(main).append(reading);
  onWaiting((progress) => {
    reading.textContent = `reading\u2026 ${progress === null ? 'the server still computes this' : `${Math.round(100 * progress)} %`}`;
  });
  try {
    if (about.error) throw { code: 'E_PROFILE', message: about.error, hints: about.hints };
    const box = element('div', {});
    const shown = () => { // which a page may call before all of it is there
      if (shownNow.key !== key || main.dataset.shown === page) return;
      emptied(main).append(...(isFile() && windowOf(now) && OF_ALL_TIME.includes(page) ? [note('this page is of the whole run: a report in one file computes nothing anew')] : []), box);
      main.dataset.shown = page;
    };
    await PAGES[page][1](box, { run, other, runs: shownNow.runs, shown });
    if (shownNow.key !== key) return;
    shown();
    if (page === 'timeline' && window.tessera.timeline) window.tessera.timeline.draw();
    if (now.q) await applied(now.q, tellFound);
  } catch (error) {
    if (shownNow.key !== key) return;
    emptied(main).append(failure(error));
    if (error instanceof Error) console.error(error);
  }
  main.dataset.ready = page;
}

function tellFound(text, bad) {
  found.className = bad ? 'bad' : 'faint';
  found.textContent = text;
}

function searchBox(now) {
  const box = element('input', { id: 'search', type: 'search', placeholder: 'search names by regular expression ( / )', 'aria-label': 'search names by regular expression', value: now.q || '' });
  box.addEventListener('input', () => searchFor(box.value, tellFound));
  box.addEventListener('keydown', (event) => {
    const { timeline } = window.tessera;
    if (event.key === 'Enter' && timeline && main.dataset.page === 'timeline') timeline.step(event.shiftKey ? -1 : 1);
  });
  return box;
}

function header(about, run, other, now, page) {
  const options = (chosen) => shownNow.runs.map((each, place) => element('option', { value: place, selected: place === chosen }, each.name));
  const pick = element('select', { 'aria-label': 'run', change: (event) => change({ run: event.target.value, sel: null, t0: null, t1: null }) }, options(run));
  const second = element('select', { 'aria-label': 'second run', change: (event) => change({ b: event.target.value, sel: null }) },
    element('option', { value: '', selected: other === null }, 'no second run'), options(other));
  const span = windowOf(now);
  const window_ = span ? [element('span', {}, `window: ${time(span[0])} to ${time(span[1])}`), element('button', { click: () => change({ t0: null, t1: null }) }, 'clear')] : [];
  const chrome = download('chrome', run);
  const trace = chrome ? [element('a', { href: chrome }, 'trace.json.gz'), element('button', { click: () => openInPerfetto(chrome, about.name, tellFound) }, 'open in Perfetto')]
    : [element('button', { click: () => downloadTrace(run, about.name) }, 'trace.json.gz')];
  return element('header', {}, element('h1', {}, 'Tessera'), pick, ...(shownNow.runs.length > 1 ? [second] : []), ...(SEARCHED.includes(page) ? [searchBox(now), found] : [found]),
    recorded(about), clocks(about), ...window_, ...trace, element('button', { click: toggle }, 'light or dark'));
}

function clocks(about) {
  if (!(about.ranks > 1)) return '';
  return element('span', { class: 'faint' }, about.clocks_us === null ? `clocks of ${about.ranks} ranks: not compared` : `clocks of ${about.ranks} ranks agree within ${real(about.clocks_us)} \u00b5s`);
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
  if (!isFile()) setTimeout(look, LOOKS_EVERY_MS);
}

/** Looks for runs that have come, gone or changed since. */
async function look() {
  const begun = Date.now();
  if (!document.hidden) await compareRuns();
  setTimeout(look, Math.max(LOOKS_EVERY_MS, PAUSE * (Date.now() - begun))); // a folder of many files takes its time
}

async function compareRuns() {
  const what = (runs) => JSON.stringify(runs.map((each) => [each.name, each.version]));
  try {
    const runs = await ask('runs', { look: 1 });
    if (what(runs) === what(shownNow.runs)) return;
    const came = runs.length - shownNow.runs.length;
    const only = came > 0 && what(runs.slice(0, shownNow.runs.length)) === what(shownNow.runs);
    const reload = element('button', { click: () => location.reload() }, 'reload');
    emptied(banner).append(element('p', { class: 'error' }, only ? `${came} more run${came > 1 ? 's' : ''}: ` : 'changed: ', reload));
  } catch (error) {
    emptied(banner).append(failure(error));
  }
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

window.tessera = { counts, state, paintRow, traceOf };
begin();
