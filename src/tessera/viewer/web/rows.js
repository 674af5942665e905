// Slices by lane and depth: the slices of one row of the timeline are disjoint and ordered, so that a frame costs as
// much as it is wide, however many slices there are.

/** Rows of the timeline: `lane`, `depth`, `slices` (numbers, by time), and `busy`, the nanoseconds before each. */
export function rowsOf(data) {
  const rows = [];
  for (const [number, lane] of data.head.lanes.entries()) {
    const counts = new Uint32Array(lane.depth);
    const last = lane.first + lane.count;
    for (let at = lane.first; at < last; at += 1) counts[Math.min(data.depth[at], lane.depth - 1)] += 1;
    const own = [...counts].map((count, depth) => {
      return { lane: number, depth, slices: new Uint32Array(count), busy: new Float64Array(count + 1) };
    });
    counts.fill(0);
    for (let at = lane.first; at < last; at += 1) {
      const depth = Math.min(data.depth[at], lane.depth - 1);
      const place = counts[depth];
      own[depth].slices[place] = at;
      own[depth].busy[place + 1] = own[depth].busy[place] + data.end[at] - data.start[at];
      counts[depth] += 1;
    }
    rows.push(...own);
  }
  return rows;
}

/** The first place in a row whose slice ends after an instant. */
export function firstEnding(data, row, instant) {
  return search(row.slices.length, (place) => data.end[row.slices[place]] > instant);
}

/** The first place in a row whose slice starts at or after an instant. */
export function firstStarting(data, row, instant) {
  return search(row.slices.length, (place) => data.start[row.slices[place]] >= instant);
}

function search(length, found) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (found(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The share of a span of time in which slices of a row ran, 0 to 1. */
export function busyShare(data, row, from, to) {
  const first = firstEnding(data, row, from);
  const last = firstStarting(data, row, to);
  if (last <= first) return 0;
  let busy = row.busy[last] - row.busy[first];
  busy -= Math.max(0, from - data.start[row.slices[first]]);
  busy -= Math.max(0, data.end[row.slices[last - 1]] - to);
  return Math.min(Math.max(busy / (to - from), 0), 1);
}

/** What is drawn of a row that is `width` pixels wide: calls `slice(number, from, to)` with pixels for each slice of a
 *  pixel or more, and `bin(pixel, share, number)` for pixels of shorter ones, with the longest of a few of them. */
export function eachDrawn(data, row, t0, t1, width, slice, bin) {
  const perPixel = (t1 - t0) / width;
  let pixel = 0;
  let place = firstEnding(data, row, t0);
  while (pixel < width && place < row.slices.length) {
    const number = row.slices[place];
    const start = data.start[number];
    const end = Math.max(data.end[number], start);
    if (start >= t1) return;
    pixel = Math.max(pixel, Math.floor((start - t0) / perPixel));
    if (end - start >= perPixel) {
      const from = Math.max((start - t0) / perPixel, pixel);
      const to = Math.min((end - t0) / perPixel, width);
      slice(number, from, Math.max(to, from + 1));
      pixel = Math.max(Math.floor(to), pixel + (to - from < 1 ? 1 : 0));
      place += 1;
      continue;
    }
    const next = t0 + (pixel + 1) * perPixel;
    const share = busyShare(data, row, t0 + pixel * perPixel, next);
    bin(pixel, share, longest(data, row, place, next));
    pixel += 1;
    place = Math.max(firstEnding(data, row, t0 + pixel * perPixel), place + 1);
  }
}

const LOOKED_AT = 32;

function longest(data, row, place, before) {
  let best = row.slices[place];
  for (let at = place + 1; at < Math.min(place + LOOKED_AT, row.slices.length); at += 1) {
    const number = row.slices[at];
    if (data.start[number] >= before) break;
    if (data.end[number] - data.start[number] > data.end[best] - data.start[best]) best = number;
  }
  return best;
}
