// The flame graph: slices of the same names in the same regions as one, by their time together.

import { category } from './colors.js';
import { drawing, element, emptied, note } from './dom.js';
import { real, shown, time } from './format.js';
import { state, windowOf } from './state.js';
import { slicesOf } from './timeline.js';

const [WIDTH, ROW] = [1100, 20];
const THINNEST = 1;

/** A tree of the slices in a window: `name`, `total` and `self` in nanoseconds, `calls`, `children`. */
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
      if (!parent.byName.has(name)) parent.byName.set(name, nodeOf(data.head.names[name], name));
      const own = parent.byName.get(name);
      open.push(own);
      if (to < from || (span && to === from)) continue;
      own.calls += 1;
      own.total += to - from;
    }
  }
  root.total = [...root.byName.values()].reduce((sum, child) => sum + child.total, 0);
  return finished(root);
}

function nodeOf(name, number) {
  return { name, number, total: 0, self: 0, calls: 0, byName: new Map() };
}

function finished(node) {
  node.children = [...node.byName.values()].filter((child) => child.calls).map(finished).sort((a, b) => b.total - a.total);
  node.self = Math.max(0, node.total - node.children.reduce((sum, child) => sum + child.total, 0));
  return node;
}

export async function flamePage(box, { run }) {
  const data = await slicesOf(run);
  const root = treeOf(data, windowOf(state()));
  const frame = element('div', { class: 'scroll' });
  emptied(box).append(note('regions above what ran in them, all threads together, the longest first; click or Enter zooms, the top bar zooms out'), frame);

  function show(node) {
    const bars = [];
    place(node, 0, WIDTH, 0, bars);
    const height = (1 + Math.max(...bars.map((bar) => bar.depth))) * ROW + 4;
    const svg = drawing('svg', { width: WIDTH, height, role: 'group', 'aria-label': 'flame graph' });
    for (const bar of bars) svg.append(barOf(bar, root.total, () => show(bar.node === node ? root : bar.node)));
    emptied(frame).append(svg);
  }
  show(root);
}

function place(node, x, width, depth, bars) {
  if (width < THINNEST) return;
  bars.push({ node, x, width, depth });
  let at = x;
  for (const child of node.children) {
    const share = node.total ? (child.total / node.total) * width : 0;
    place(child, at, share, depth + 1, bars);
    at += share;
  }
}

function barOf({ node, x, width, depth }, whole, zoom) {
  const told = `${node.name}: ${time(node.total)} (${real(whole ? (100 * node.total) / whole : 0)} %), self ${time(node.self)}, ${node.calls} calls`;
  const keys = (event) => (event.key === 'Enter' ? zoom() : undefined);
  const group = drawing('g', { tabindex: 0, click: zoom, keydown: keys, 'aria-label': shown(told), style: 'cursor:pointer' });
  group.append(drawing('title', {}, told), drawing('rect', { x, y: depth * ROW, width: Math.max(width - 0.5, 0.5), height: ROW - 1, fill: node.number < 0 ? '#999999' : category(node.number) }));
  const most = Math.floor((width - 6) / 6.5);
  if (most > 3) group.append(drawing('text', { x: x + 3, y: depth * ROW + 14, style: 'fill:#000000' }, node.name.slice(0, most)));
  return group;
}
