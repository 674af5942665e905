// What is shown, kept in the hash of the address, so that a link reproduces it.

const listeners = [];

/** The state: `page`, `run`, `b` (the second run), `t0`, `t1` (nanoseconds), `sel` (a slice), `q` (search). */
export function state() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Changes some of the state; null removes a name. Changes of the window alone leave no trace in the history. */
export function change(changes, { quiet = false } = {}) {
  const next = { ...state(), ...changes };
  const kept = Object.entries(next).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const address = addressOf(kept);
  if (address === location.href) return;
  if (quiet) history.replaceState(null, '', address);
  else location.href = address;
}

export function link(changes) {
  const kept = Object.entries({ ...state(), ...changes }).filter(([, value]) => value !== null && value !== '');
  return addressOf(kept);
}

/** In full, as TensorBoard's frame resolves addresses against another base. */
function addressOf(kept) {
  return `${location.href.split('#')[0]}#${new URLSearchParams(kept)}`;
}

export function onChange(listener) {
  if (!listeners.length) window.addEventListener('hashchange', () => listeners.forEach((each) => each()));
  listeners.push(listener);
}

/** The window of time in nanoseconds that pages obey, or null for all of it. */
export function windowOf(current) {
  const [t0, t1] = [Number(current.t0), Number(current.t1)];
  return current.t0 && current.t1 && t1 > t0 ? [t0, t1] : null;
}
