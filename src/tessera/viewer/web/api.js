// Answers: from the server, or from what a report in one file holds.

const answers = new Map();

function embedded() {
  const node = document.getElementById('tessera-data');
  return node ? JSON.parse(node.textContent) : null;
}

const held = embedded();

/** Where `api/` lies: beside the page, or where TensorBoard has put it. */
function base() {
  return globalThis.tesseraBase || document.baseURI;
}

/** Whether this is a report in one file, which can compute nothing anew. */
export function isFile() {
  return held !== null;
}

function keyOf(question, parameters) {
  const told = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  return `${question}?${new URLSearchParams(told.sort())}`;
}

/** The answer to a question as JSON. Throws {code, message, hints} where there is none. */
export async function ask(question, parameters = {}) {
  const key = keyOf(question, parameters);
  if (!answers.has(key) || question === 'runs') answers.set(key, fetched(key));
  const answer = await answers.get(key);
  if (answer.error) {
    answers.delete(key);
    throw answer.error;
  }
  return answer;
}

const waiting = { tell: () => {} };

/** Has `tell` told how far an answer is that the server still makes: a share from 0 to 1, or null where it does not say. */
export function onWaiting(tell) {
  waiting.tell = tell;
}

/** The response to a question, asked again as long as the server is not ready. */
async function patient(key) {
  for (;;) {
    const response = await fetch(new URL(`api/${key}`, base()), { credentials: 'same-origin' });
    if (response.status !== 503) return response;
    const { error } = await response.json();
    waiting.tell(error.progress);
    const seconds = Number(response.headers.get('Retry-After'));
    if (seconds) await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}

async function fetched(key) {
  if (held) {
    if (key in held.answers) return held.answers[key];
    return { error: { code: 'E_PROFILE', message: 'a report in one file does not hold this', hints: ['tessera-prof view'] } };
  }
  try {
    return await (await patient(key)).json();
  } catch (error) {
    const hints = ['tessera-prof view has ended, or the connection is gone'];
    return { error: { code: 'E_PROFILE', message: String(error.message || error), hints } };
  }
}

/** Where the program of the search's worker is. */
export function workerAddress() {
  if (!held) return new URL('static/worker.js', base()).href;
  held.workerAddress ||= URL.createObjectURL(new Blob([held.worker], { type: 'text/javascript' }));
  return held.workerAddress;
}

/** A question's parameters for a run, with the window of time that pages obey, if there is one; a report in one file
 *  holds whole runs alone. */
export function within(run, span, more = {}) {
  if (held || !span) return { run, ...more };
  return { run, t0: Math.floor(span[0]), t1: Math.ceil(span[1]), ...more };
}

/** The bytes of a run's packed slices, or of those in a span of time. */
export async function columnsOf(run, span = null) {
  if (held) {
    const text = held.columns[run];
    if (text === undefined) throw { code: 'E_PROFILE', message: 'this report holds no timeline of this run', hints: [] };
    return bytesOf(text);
  }
  const response = await patient(`columns?${new URLSearchParams({ run, ...(span ? { t0: span[0], t1: span[1] } : {}) })}`);
  if (!response.ok) throw (await response.json()).error;
  return new Uint8Array(await response.arrayBuffer());
}

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) bytes[at] = raw.charCodeAt(at);
  return bytes;
}

export function download(question, run, more = {}) {
  return held ? null : new URL(`api/${question}?${new URLSearchParams({ run, ...more })}`, base()).href;
}
