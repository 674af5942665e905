// The flame graph: slices of the same names in the same regions, or Python stacks, as one, by their time together.

import { ask, within } from './api.js';
import { category } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real, shown, time } from './format.js';
import { slicesOf } from './parts.js';
import { matching, onSearch } from './search.js';
import { change, state, windowOf } from './state.js';

const [WIDTH, ROW] = [1100, 20];
const THINNEST = 1;

/** A tree of the slices in a window: `name`, `total` and `self` in nanoseconds, `calls`, `children`, which begin at `first`. */
export function treeOf(data, span) {
  const root = nodeOf('all', -1);
  for (const lane of data.head.lanes) {
    const open = [root];
    for (let at = lane.first; at < lane.first + lane.count; at += 1) {
      const depth = data.depth[at];
      open.length = Math.min(depth + 1, open.length);
      const parent = open[open.length - 1];
      const [from, to] = span ? [Math.max(data.start[at], span[0]), Math.min(data.end[at], span[1])] : [data.start[at], data.end[at]];
      const name = data.name[at];
      const own = childOf(parent, data.head.names[name], name, data.start[at]);
      open.push(own);
      if (to < from || (span && to === from)) continue;
      own.calls += 1;
      own.total += to - from;
    }
  }
  return summed(root);
}

/** A tree of stacks: [frames joined by ";", the kernel or "", nanoseconds, calls]. */
export function treeOfStacks(stacks) {
  const root = nodeOf('all', -1);
  const codes = new Map();
  stacks.forEach(([stack, kernel, taken, calls], place) => {
    let node = root;
    for (const frame of [...stack.split(';'), ...(kernel ? [kernel] : [])]) {
      if (!codes.has(frame)) codes.set(frame, codes.size);
      node = childOf(node, frame, codes.get(frame), place);
      node.total += taken;
      node.calls += calls;
    }
  });
  return summed(root);
}

function nodeOf(name, number, first = 0) {
  return { name, number, first, total: 0, self: 0, calls: 0, byName: new Map() };
}

function childOf(parent, name, number, first) {
  if (!parent.byName.has(number)) parent.byName.set(number, nodeOf(name, number, first));
  return parent.byName.get(number);
}

function summed(root) {
  root.total = [...root.byName.values()].reduce((sum, child) => sum + child.total, 0);
  return finished(root);
}

function finished(node) {
  node.children = [...node.byName.values()].filter((child) => child.calls).map(finished);
  node.self = Math.max(0, node.total - node.children.reduce((sum, child) => sum + child.total, 0));
  return node;
}

export async function flamePage(box, { run }) {
  const span = windowOf(state());
  const [data, stacked] = await Promise.all([slicesOf(run), ask('flame', within(run, span))]);
  const trees = [{ title: 'regions', root: treeOf(data, span), told: 'regions above what ran in them, all threads together' },
    ...stacked.sources.map(({ title, stacks, total }) => ({ title: `Python stacks: ${title}`, root: treeOfStacks(stacks), told: `Python frames, outermost first; ${stacks.length} of ${total} stacks` }))];
  const frame = element('div', { class: 'scroll' });
  const about = element('p', { class: 'note' });
  const view = { tree: trees[Math.min(Number(state().tree) || 0, trees.length - 1)], order: state().order || 'time spent', node: null, names: [], kept: null };
  const select = (label, values, chosen, act) => element('select', { 'aria-label': label, change: (event) => act(event.target.value) }, values.map((text, place) => element('option', { value: place, selected: place === chosen }, text)));
  const orders = ['time spent', 'first begun'];
  emptied(box).append(
    element('p', {}, select('what', trees.map((each) => each.title), trees.indexOf(view.tree), (place) => set({ tree: trees[place], node: null, kept: null }, { tree: place })),
      ' ', select('order', orders.map((each) => `order: ${each}`), orders.indexOf(view.order), (place) => set({ order: orders[place] }, { order: orders[place] }))),
    about, frame, ...(stacked.reason ? [note(stacked.reason)] : []),
  );

  function set(changes, kept) {
    Object.assign(view, changes);
    change(kept, { quiet: true });
    show(view.node || view.tree.root);
  }

  function show(node) {
    view.node = node;
    about.textContent = `${view.tree.told}; click or Enter zooms, the top bar zooms out`;
    const bars = [];
    const wide = Math.max(box.clientWidth - 36, WIDTH);
    place(node, 0, wide, 0, bars, view.order === 'first begun' ? (a, b) => a.first - b.first : (a, b) => b.total - a.total);
    const height = (1 + Math.max(...bars.map((bar) => bar.depth))) * ROW + 4;
    const svg = drawing('svg', { width: wide, height, role: 'group', 'aria-label': 'flame graph' });
    const { root } = view.tree;
    for (const bar of bars) svg.append(barOf(bar, root.total, view.kept && !view.kept.has(bar.node.number), () => show(bar.node === node ? root : bar.node)));
    emptied(frame).append(svg);
  }

  onSearch(async (text) => {
    const nodes = new Map();
    eachNode(view.tree.root, (node) => nodes.set(node.number, node.name));
    const names = [...nodes];
    const kept = await matching(text, names.map(([, name]) => name));
    view.kept = kept ? new Set(names.filter((_, place) => kept[place]).map(([number]) => number)) : null;
    show(view.node || view.tree.root);
    if (!kept) return '';
    const sum = hitsOf(view.tree.root, view.kept);
    return `${sum.calls} hits, ${time(sum.total)} (${real((100 * sum.total) / Math.max(view.tree.root.total, 1))} %)`;
  });
  show(view.tree.root);
}

function eachNode(node, act) {
  node.children.forEach((child) => {
    act(child);
    eachNode(child, act);
  });
}

/** The time of what was found; what lies in another find counts once. */
export function hitsOf(node, kept) {
  const sum = { total: 0, calls: 0 };
  for (const child of node.children) {
    const own = kept.has(child.number) ? child : hitsOf(child, kept);
    sum.total += own.total;
    sum.calls += own.calls;
  }
  return sum;
}

function place(node, x, width, depth, bars, order) {
  if (width < THINNEST) return;
  bars.push({ node, x, width, depth });
  let at = x;
  for (const child of [...node.children].sort(order)) {
    const share = node.total ? (child.total / node.total) * width : 0;
    place(child, at, share, depth + 1, bars, order);
    at += share;
  }
}

function barOf({ node, x, width, depth }, whole, dim, zoom) {
  const told = `${node.name}: ${time(node.total)} (${real(whole ? (100 * node.total) / whole : 0)} %), self ${time(node.self)}, ${node.calls} calls`;
  const keys = (event) => (event.key === 'Enter' ? zoom() : undefined);
  const group = drawing('g', { tabindex: 0, role: 'button', click: zoom, keydown: keys, 'aria-label': shown(told), style: 'cursor:pointer', opacity: dim ? 0.3 : 1 });
  group.append(drawing('title', {}, told), drawing('rect', { x, y: depth * ROW, width: Math.max(width - 0.5, 0.5), height: ROW - 1, fill: node.number < 0 ? '#999999' : category(node.number) }));
  const most = Math.floor((width - 6) / 7.5);
  if (most > 3) group.append(drawing('text', { x: x + 3, y: depth * ROW + 14, style: 'fill:#000000' }, shown(node.name).slice(0, most)));
  return group;
}
