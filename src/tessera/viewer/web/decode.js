// Packed slices (viewer/pages/columns.py): planes of bytes, deflated, into typed arrays.

const MAGIC = 'TSR1';

/** What a page draws: `head`, and by slice the typed arrays `start`, `end` (nanoseconds), `name`, `depth`, `kind`, `work`, and
 *  `launch`, the number of the slice that launched it, from 1 on, or null where nothing was launched. */
export async function decode(bytes) {
  if (typeof DecompressionStream === 'undefined') {
    throw { code: 'E_UNSUPPORTED', message: 'this browser cannot unpack the slices; tables need less', hints: ['Chromium 80, Firefox 113, Safari 16.4 or newer'] };
  }
  if (String.fromCharCode(...bytes.subarray(0, 4)) !== MAGIC) throw new Error('these are no packed slices');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const length = view.getUint32(4, true);
  if (8 + length > bytes.length) throw new Error('packed slices are cut off');
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const raw = {};
  let at = 8 + length;
  for (const [name, column] of Object.entries(head.columns)) {
    const planes = [];
    for (const size of column.sizes) {
      if (at + size > bytes.length) throw new Error('packed slices are cut off');
      planes.push(await inflated(bytes.subarray(at, at + size), head.n));
      at += size;
    }
    raw[name] = joined(planes, head.n, column);
  }
  return { head, ...timesOf(head, raw), name: raw.name, depth: raw.depth, kind: raw.kind, work: raw.work, launch: raw.launch || null };
}

/** The bytes of a plane, which must be as many as there are slices: no more are ever held. */
async function inflated(packed, count) {
  const made = new Uint8Array(count);
  const reader = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate')).getReader();
  let at = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    if (at + value.length > count) throw new Error('a column has more values than there are slices');
    made.set(value, at);
    at += value.length;
  }
  if (at !== count) throw new Error('a column has fewer values than there are slices');
  return made;
}

function joined(planes, count, { width, escapes }) {
  if (width === 1) return planes[0];
  const whole = new Uint32Array(count);
  planes.forEach((plane, place) => {
    const shift = 8 * place;
    for (let row = 0; row < count; row += 1) whole[row] |= plane[row] << shift;
  });
  if (!escapes.length) return whole;
  const made = Float64Array.from(whole);
  for (const [row, value] of escapes) made[row] = value;
  return made;
}

function timesOf(head, raw) {
  const start = new Float64Array(head.n);
  const end = new Float64Array(head.n);
  for (const lane of head.lanes) {
    let now = 0;
    for (let row = lane.first; row < lane.first + lane.count; row += 1) {
      now += raw.start[row];
      start[row] = now;
      end[row] = now + raw.duration[row];
    }
  }
  return { start, end };
}
