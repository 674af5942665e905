// Light or dark: as the system says, unless the user has chosen.

const KEY = 'tessera-theme';

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // of a browser that keeps nothing
  }
}

export function apply(theme) {
  const dark = theme ? theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
}

export function startTheme() {
  apply(stored());
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => apply(stored()));
}

export function toggle() {
  const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // chosen for this page alone
  }
  apply(next);
  window.dispatchEvent(new Event('themechange'));
}
