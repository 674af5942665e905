// Numbers and times as text. `number` writes what the command line writes (`cell` of analyses/result.py).

const DASH = '-';
const EXACT = 60;

export function number(value) {
  if (value === null || value === undefined) return DASH;
  if (typeof value !== 'number') return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return String(value);
  if ((size > 0 && size < 1e-4) || size >= 1e15) return value.toPrecision(3);
  return fixed(value, decimalsOf(size));
}

/** A value of a column of floating point numbers, where whole numbers have decimals, too. */
export function real(value) {
  if (value === null || value === undefined) return DASH;
  const size = Math.abs(value);
  if ((size > 0 && size < 1e-4) || size >= 1e15) return value.toPrecision(3);
  return fixed(value, value === 0 ? 0 : decimalsOf(size));
}

function decimalsOf(size) {
  for (let decimals = 0; decimals < 6; decimals += 1) if (size >= 10 ** (2 - decimals)) return decimals;
  return 6;
}

/** Rounded as Python rounds: by the exact value, what lies in the middle to the even digit. */
function fixed(value, decimals) {
  const exact = value.toFixed(EXACT);
  const kept = exact.length - EXACT + decimals - (decimals ? 0 : 1);
  const middle = /^\.?50*$/.test(exact.slice(kept));
  const rounded = value.toFixed(decimals);
  const text = middle && Number(rounded[rounded.length - 1]) % 2 ? exact.slice(0, kept) : rounded;
  const [whole, ...rest] = text.split('.');
  return [whole.replace(/\B(?=(\d{3})+$)/g, ','), ...rest].join('.');
}

/** Nanoseconds with the unit that fits them. */
export function time(ns) {
  const size = Math.abs(ns);
  if (size >= 1e9) return `${real(ns / 1e9)} s`;
  if (size >= 1e6) return `${real(ns / 1e6)} ms`;
  if (size >= 1e3) return `${real(ns / 1e3)} \u00b5s`;
  return `${number(Math.round(ns))} ns`;
}

/** A text as it can be shown: what would turn its direction or is no letter is marked. */
export function shown(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, '\ufffd');
}
