// Code: what the compiler made of a kernel, level by level, alone or beside a second kernel's.

import { ask, isFile } from './api.js';
import { linesOf } from './difference.js';
import { element, emptied, failure, note } from './dom.js';
import { real } from './format.js';
import { change, state } from './state.js';
import { tableOf } from './table.js';

const COLUMNS = [['kernel', 'Kernel'], ['dtype', 'Dtype'], ['work', 'Work'], ['schedule', 'Schedule'], ['calls', 'Calls', 'whole'], ['median_us', 'Median(\u00b5s)', 'float'], ['total_ms', 'Total(ms)', 'float']]
  .map(([name, heading, type]) => ({ name, heading, type: type || 'text' }));

export async function codePage(box, { run, other, runs }) {
  const lists = [await ask('programs', { run })];
  if (other !== null) lists.push(await ask('programs', { run: other }));
  const choices = lists.flatMap((list, side) => list.programs.map((program, number) => ({ run: side ? other : run, number, program })));
  const own = choices.filter((each) => each.run === run);
  emptied(box);
  if (!own.length) {
    box.append(note('no kernel of this run has a duration'));
    return;
  }
  const shown = element('section', {});
  const rows = own.map((each) => [...COLUMNS.map((column) => each.program[column.name]), each]);
  const more = lists[0].total > own.length ? [`the ${own.length} kernels that take most time, of ${lists[0].total}`] : [];
  const view = { first: own.find((each) => each.program.kernel === state().kernel) || own[0], second: null, level: state().level || 'Tile IR' };
  const named = (each) => `${other !== null ? `${runs[each.run].name}: ` : ''}${each.program.kernel}, ${each.program.work}, ${each.program.schedule}`.slice(0, 120);
  const beside = element('select', { 'aria-label': 'beside', change: (event) => set({ second: choices[event.target.value] || null }) },
    element('option', { value: '' }, 'nothing beside it'), choices.map((each, place) => element('option', { value: place }, named(each))));

  async function set(changes) {
    Object.assign(view, changes);
    emptied(shown).append(note('the compiler makes it again\u2026'));
    shown.dataset.ready = '';
    const asked = JSON.stringify([view.first, view.second, view.level]);
    shown.dataset.asked = asked;
    try {
      const sides = [view.first, ...(view.second ? [view.second] : [])];
      const answers = await Promise.all(sides.map((each) => ask('code', { run: each.run, program: each.number })));
      if (shown.dataset.asked !== asked) return;
      emptied(shown).append(...partsOf(sides, answers, view, set));
    } catch (error) {
      if (shown.dataset.asked !== asked) return;
      emptied(shown).append(isFile() ? note('this report was written without code: tessera-prof html --code, session.html(path, code=True)') : failure(error));
    }
    shown.dataset.ready = 'code';
  }

  box.append(tableOf({ title: 'Kernels', columns: COLUMNS, rows, notes: more, missing: {} }, { onRow: (row) => set({ first: row[COLUMNS.length] }) }), element('p', {}, beside), shown);
  await set({});
}

function partsOf(sides, answers, view, set) {
  const parts = sides.flatMap((side, place) => aboutOf(side, answers[place]));
  const known = answers.filter((each) => each.texts);
  if (known.length < answers.length) return parts;
  const stack = sides[0].program.stack;
  const levels = [...(stack ? ['Python'] : []), ...Object.keys(answers[0].texts)];
  const level = levels.includes(view.level) ? view.level : 'Tile IR';
  const tabs = levels.map((each) => element('button', { role: 'tab', 'aria-selected': String(each === level), click: () => {
    change({ level: each }, { quiet: true });
    set({ level: each });
  } }, each));
  const texts = sides.map((side, place) => (level === 'Python' ? side.program.stack || '' : answers[place].texts[level] || 'nothing').replaceAll('\t', '    '));
  parts.push(element('p', { role: 'tablist' }, tabs.flatMap((tab) => [tab, ' '])));
  parts.push(texts.length > 1 ? differenceOf(texts) : element('pre', { class: 'code', tabindex: 0 }, texts[0]));
  return parts;
}

function aboutOf({ program }, answer) {
  const ran = `${program.kernel} ${program.dtype}, ${program.work}: median ${real(program.median_us)} \u00b5s, ${program.calls} calls, ${real(program.total_ms)} ms`;
  const timed = tilesOf(program.tiles);
  if (!answer.texts) return [element('h2', {}, program.kernel), note(ran), note(timed), note(`no code: ${answer.reason}`)];
  const made = `rebuilt by Tessera ${answer.version} for ${answer.target}, under the schedule that ran; recorded on ${answer.recorded || 'an unknown device'}`;
  const estimate = answer.estimate ? `the cost model expects ${real(answer.estimate.us)} \u00b5s a call, bound by ${answer.estimate.binding} (ceilings: ${answer.estimate.ceilings})` : 'the cost model has no estimate';
  return [element('h2', {}, program.kernel), note(ran), note(timed), note(estimate), note(made)];
}

/** What graph.profile measured of the kernel's tiles, as a sentence. */
function tilesOf(tiles) {
  if (!tiles) return 'tiles were not timed: graph.profile(step) within the session times them';
  const busy = tiles.occupancy_pct === null ? '' : `, ${real(tiles.occupancy_pct)} % of the workers' time in calls`;
  const clock = tiles.clock_pct === null ? '' : `; the clock takes ${real(tiles.clock_pct)} % of it`;
  return `tiles: ${tiles.tiles} a call, median ${real(tiles.latency_us)} \u00b5s, from ${real(tiles.fastest_us)} to ${real(tiles.slowest_us)} \u00b5s${busy}${clock}`;
}

function differenceOf([a, b]) {
  const lines = linesOf(a, b);
  if (lines === null) return element('div', { class: 'columns' }, [a, b].map((text) => element('pre', { class: 'code', tabindex: 0 }, text)));
  const kinds = { '-': 'removed', '+': 'added', ' ': null };
  return element('pre', { class: 'code', tabindex: 0 }, lines.map(([mark, text]) => element('span', { class: kinds[mark] }, `${mark} ${text}\n`)));
}
