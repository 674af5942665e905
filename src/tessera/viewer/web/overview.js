// The overview: where the time went, what to do about it, and what is not known.

import { ask, within } from './api.js';
import { PARTS, token } from './colors.js';
import { element, emptied, failure, note } from './dom.js';
import { number, real, shown, time } from './format.js';
import { escaped } from './search.js';
import { link, state, windowOf } from './state.js';
import { tableOf } from './table.js';

const MOST_KERNELS = 5;
const MOST_ADVICE = 3;
const OFTEN_NS = 60e9;

export async function overviewPage(box, { run, shown: show }) {
  const scope = within(run, windowOf(state()));
  const [whole, meta] = await Promise.all([ask('overview', scope), ask('meta', { run })]);
  box.replaceChildren();
  const sums = meta.metadata.no_kernels;
  if (sums) box.append(note(`${sums}: Kernels and Roofline are of these, and there is no timeline`));
  else if (!whole.kernels) box.append(emptyNote());
  if (meta.metadata.part !== undefined) box.append(spilledNote(whole));
  if (whole.ranks.length) box.append(element('h2', {}, 'Where the time went'), legendOf(whole.parts), ...whole.ranks.map((rank) => rankBar(rank, whole)));
  if (whole.steps.length) box.append(...stepsOf(whole));
  const below = element('div', {});
  box.append(below, element('h2', {}, 'This run'), factsOf(meta), ...missingOf(meta));
  if (whole.kernels || sums) await fillKernels(below, scope, show);
}

/** What takes longer to compute than where the time went: the page is shown meanwhile. */
async function fillKernels(below, scope, show) {
  const [top, advised] = [element('div', {}), element('div', {})];
  below.append(element('h2', {}, 'Kernels that take most time'), top, element('h2', {}, 'Advice'), advised);
  for (const each of [top, advised]) each.append(note('reading\u2026'));
  show();
  const kernels = await answerIn(top, 'kernels', scope);
  if (kernels) {
    const few = { ...kernels, rows: kernels.rows.slice(0, MOST_KERNELS), notes: [], missing: {} };
    emptied(top).append(tableOf(few, { filter: false }), element('p', {}, element('a', { href: link({ page: 'kernels' }) }, 'all kernels')));
  }
  const advice = await answerIn(advised, 'advise', scope);
  if (advice) emptied(advised).append(tableOf({ ...advice, rows: advice.rows.slice(0, MOST_ADVICE) }, { filter: false }), ...evidenceOf(advice, kernels || { rows: [] }));
}

/** The answer to a question; null where there is none, and the box then says why. */
async function answerIn(box, question, scope) {
  try {
    return await ask(question, scope);
  } catch (error) {
    if (error instanceof Error) throw error;
    emptied(box).append(failure(error));
    return null;
  }
}

/** Links from the advice to the rows that it is about. */
function evidenceOf(advice, kernels) {
  const where = advice.columns.findIndex((column) => column.heading === 'Where');
  const names = new Set(kernels.rows.map((row) => row[0]));
  const told = advice.rows.slice(0, MOST_ADVICE).map((row) => [...names].find((name) => name && String(row[where] || '').startsWith(name))).filter(Boolean);
  const links = [...new Set(told)].flatMap((name) => [element('a', { href: link({ page: 'kernels', q: `^${escaped(name)}$` }) }, `rows of ${name}`), ' ']);
  return links.length ? [element('p', {}, links)] : [];
}

function emptyNote() {
  const hint = 'results are computed when they are asked for: evaluate them inside the session';
  return element('div', { class: 'error' }, `no kernel ran while this was recorded\nhint: ${hint}`);
}

/** Of a session that did not end: what it had on disk, a part a second at first, later one every ten. */
function spilledNote({ window: [, end] }) {
  const lost = end < OFTEN_NS ? 'the last second' : 'the last ten seconds';
  return element('div', { class: 'error' }, `the session did not end, and this is what it had on disk: it ends at ${time(end)}, and what ran in ${lost} before the end is missing`);
}

export function legendOf(parts) {
  const entries = parts.map((part, place) => element('span', {}, element('span', { class: 'swatch', style: `background:${partColor(place, parts)}` }), part));
  return element('p', { class: 'legend' }, entries);
}

function partColor(place, parts) {
  return place === parts.length - 1 ? token('idle') : PARTS[place];
}

function rankBar(rank, whole) {
  const total = rank.parts.reduce((sum, each) => sum + each, 0);
  const told = rank.parts.map((ms, place) => `${whole.parts[place]} ${real(ms)} ms (${shareOf((100 * ms) / total)} %)`);
  const pieces = rank.parts.map((ms, place) => {
    const style = `width:${(100 * ms) / total}%;background:${partColor(place, whole.parts)}`;
    return element('span', { style, title: told[place], 'data-part': whole.parts[place], 'data-ms': ms });
  });
  const bar = element('div', { class: 'bar', role: 'img', 'aria-label': `rank ${rank.rank}: ${told.join(', ')}`, 'data-rank': rank.rank }, pieces);
  return element('div', {}, element('span', {}, `rank ${rank.rank}: ${time(total * 1e6)}`), bar, note(told.filter((_, place) => rank.parts[place] > 0).join(', ')));
}

/** A share in percent; what is next to nothing says so. */
function shareOf(share) {
  return share > 0 && share < 0.01 ? 'below 0.01' : real(share);
}

function stepsOf(whole) {
  const lengths = whole.steps.map((step) => step.end_ns - step.start_ns);
  const sorted = [...lengths].sort((a, b) => a - b);
  const median = sorted[Math.floor(sorted.length / 2)];
  const longest = Math.max(...lengths, 1);
  const bars = whole.steps.map((step, index) => {
    const total = lengths[index] || 1;
    const pieces = step.parts.map((ms, place) => {
      return element('span', { style: `width:${(1e8 * ms) / total}%;background:${partColor(place, whole.parts)}` });
    });
    const slow = lengths[index] > 1.5 * median;
    const name = `${step.name}: ${time(lengths[index])}`;
    const label = `${name}${slow ? `, ${real(lengths[index] / median)} times the median` : ''}`;
    const href = link({ page: 'timeline', t0: Math.floor(step.start_ns), t1: Math.ceil(step.end_ns) });
    return element('a', { href, title: label, 'aria-label': label }, element('span', { class: slow ? 'name bad' : 'name' }, name),
      element('div', { class: 'bar', style: `width:${(100 * lengths[index]) / longest}%;height:12px` }, pieces));
  });
  const told = `${whole.steps_total} steps (${shown(whole.steps_from)}), median ${time(median)}; a bar leads to the timeline`;
  return [element('h2', {}, 'Steps'), note(told), element('div', { class: 'steps', style: 'max-height:320px;overflow:auto' }, bars)];
}

function factsOf(meta) {
  const about = meta.metadata;
  const target = about.target || {};
  const hosts = [...new Set(Object.values(about.ranks || {}).map((rank) => rank.host).filter(Boolean))];
  const facts = {
    recorded: about.start_unix_ns ? new Date(about.start_unix_ns / 1e6).toISOString() : null,
    duration: about.duration_ns ? time(about.duration_ns) : null,
    profiler: about.source,
    versions: Object.entries(about.versions || {}).map(([name, version]) => `${name} ${version}`).join(', '),
    command: about.command,
    threads: about.threads,
    device: target.name ? `${target.name}${target.cores ? `, ${target.cores} cores` : ''}` : null,
    host: hosts.join(', '),
    ranks: Object.keys(about.ranks || {}).length || null,
    'clocks agree within': meta.clock_uncertainty_us === null ? null : `${real(meta.clock_uncertainty_us)} \u00b5s`,
    ceilings: meta.ceilings ? `${meta.ceilings.source}, ${meta.ceilings.date || 'no date'}` : 'not in the trace; `tessera quickstart` measures them',
    activities: (about.activities || []).join(', '),
    mode: about.mode,
  };
  const pairs = Object.entries(facts).filter(([, value]) => value);
  return element('dl', {}, pairs.flatMap(([key, value]) => [element('dt', {}, key), element('dd', {}, number(value))]));
}

function missingOf(meta) {
  const reasons = Object.entries(meta.missing);
  if (!reasons.length) return [];
  const told = reasons.map(([why, names]) => element('li', {}, `${names.join(', ')}: ${why}`));
  return [element('details', {}, element('summary', {}, 'What was not measured, and why'), element('ul', {}, told))];
}
