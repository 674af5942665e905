// Perfetto's own page for what this viewer does not do: the trace is handed to a window of it, or kept as a file.

import { isFile } from './api.js';
import { slicesOf } from './parts.js';

const PERFETTO = 'https://ui.perfetto.dev';
const PING_MS = 100;
const PATIENCE_MS = 60_000;

/** Opens Perfetto in a window and gives it the trace at an address, once it answers. Nothing else leaves this machine. */
export async function openInPerfetto(address, title, say) {
  const other = window.open(PERFETTO);
  if (!other) {
    say('the browser opened no window: allow it, or open trace.json.gz there', true);
    return;
  }
  say('waiting for Perfetto\u2026', false);
  const buffer = await (await fetch(address, { credentials: 'same-origin' })).arrayBuffer();
  const begun = Date.now();
  const ping = setInterval(() => {
    if (Date.now() - begun > PATIENCE_MS || other.closed) ended('Perfetto has not answered; open trace.json.gz there', true);
    else other.postMessage('PING', PERFETTO);
  }, PING_MS);
  function ended(told, bad) {
    clearInterval(ping);
    window.removeEventListener('message', answered);
    say(told, bad);
  }
  function answered(event) {
    if (event.source !== other || event.origin !== PERFETTO || event.data !== 'PONG') return;
    other.postMessage({ perfetto: { buffer, title, fileName: 'trace.json.gz' } }, PERFETTO);
    ended('Perfetto has the trace', false);
  }
  window.addEventListener('message', answered);
}

/** Keeps what this page draws as a Chrome trace: the only one that a report in one file can give. */
export async function downloadTrace(run, title) {
  const packed = new Response(new Blob([traceOf(await slicesOf(run))]).stream().pipeThrough(new CompressionStream('gzip')));
  const link = document.createElement('a');
  link.href = URL.createObjectURL(await packed.blob());
  link.download = `${title.replace(/[^\w.-]+/g, '_')}.trace.json.gz`;
  link.click();
  if (isFile()) setTimeout(() => URL.revokeObjectURL(link.href), PATIENCE_MS);
}

/** The slices and marks of a run as the text of a Chrome trace. */
export function traceOf(data) {
  const lines = [];
  data.head.lanes.forEach((lane, number) => {
    const place = { pid: lane.rank + 1, tid: number + 1 };
    lines.push(JSON.stringify({ name: 'process_name', ph: 'M', pid: place.pid, args: { name: `rank ${lane.rank}` } }));
    lines.push(JSON.stringify({ name: 'thread_name', ph: 'M', ...place, args: { name: `${lane.device}: ${lane.label}` } }));
    for (let at = lane.first; at < lane.first + lane.count; at += 1) {
      const work = data.head.works[data.work[at]];
      lines.push(JSON.stringify({ name: data.head.names[data.name[at]], ph: 'X', cat: data.head.kinds[data.kind[at]], ts: data.start[at] / 1000,
        dur: (data.end[at] - data.start[at]) / 1000, ...place, args: { dtype: work.dtype, region: work.region } }));
    }
  });
  for (const mark of data.head.marks) lines.push(JSON.stringify({ name: mark.name, ph: 'i', s: 'g', cat: 'mark', ts: mark.at / 1000, pid: 1, tid: 1 }));
  return `{"traceEvents":[\n${lines.join(',\n')}\n]}\n`;
}
