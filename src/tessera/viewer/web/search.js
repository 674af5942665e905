// The search that all pages share: a regular expression, which runs in a worker for a limited time.

import { workerAddress } from './api.js';
import { change, state } from './state.js';

const LIMIT_MS = 1000;
const SPECIAL = /[\\^$.*+?()[\]{}|]/;
const REST_MS = 120;
const shared = { listener: null, resting: 0 };

/** A text as a regular expression that it alone matches. */
export function escaped(text) {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&').slice(0, 500);
}

/** Which of some texts match the expression, as ones and zeros; null where nothing is searched for. Rejects
 *  {code, message, hints} for what is no regular expression, or takes too long. */
export async function matching(source, texts) {
  if (!source) return null;
  if (!SPECIAL.test(source)) {
    const wanted = source.toLowerCase();
    return Uint8Array.from(texts, (text) => (text.toLowerCase().includes(wanted) ? 1 : 0));
  }
  const answer = await worked(source, texts);
  if (answer.kept) return answer.kept;
  throw { code: 'E_ARGUMENT', message: answer.message, hints: [answer.hint || 'a backslash before a character takes it as it is'] };
}

function worked(source, texts) {
  return new Promise((resolve) => {
    const worker = new Worker(workerAddress());
    const ended = (answer) => {
      clearTimeout(late);
      worker.terminate();
      resolve(answer);
    };
    const late = setTimeout(() => ended({ message: `${source} takes longer than ${LIMIT_MS / 1000} s`, hint: 'repetitions within repetitions do' }), LIMIT_MS);
    worker.onmessage = ({ data }) => ended(data);
    worker.onerror = () => ended({ message: 'this page may start no worker', hint: 'a text without special characters is found without one' });
    worker.postMessage({ source, texts });
  });
}

/** What the page that is shown does when the search changes: gets its text, and gives what to say about it. */
export function onSearch(listener) {
  shared.listener = listener;
}

/** Takes a new text, once typing rests; `say` is told what was found. */
export function searchFor(text, say) {
  clearTimeout(shared.resting);
  shared.resting = setTimeout(() => applied(text, say), REST_MS);
}

export async function applied(text, say) {
  change({ q: text }, { quiet: true });
  if (!shared.listener) return;
  try {
    const told = await shared.listener(text);
    if (told !== undefined && (state().q || '') === text) say(told, false);
  } catch (error) {
    if (!error.code) throw error;
    if ((state().q || '') === text) say(`${error.message}; ${error.hints.join('; ')}`, true);
  }
}
