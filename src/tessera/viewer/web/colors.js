// Colours: Okabe and Ito's for categories, which people who see few colours tell apart; viridis for amounts.

const CATEGORIES = ['#3a8fc7', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#b8a800', '#8c7ae6', '#999999'];
const VIRIDIS = ['#440154', '#414487', '#2a788e', '#22a884', '#7ad151', '#fde725'];

export const PARTS = ['#3a8fc7', '#e69f00', '#cc79a7', '#56b4e9'];

/** The colour of the n-th category. */
export function category(index) {
  return CATEGORIES[index % CATEGORIES.length];
}

/** The colour of a share from 0 to 1. */
export function amount(share) {
  const at = Math.min(Math.max(share, 0), 1) * (VIRIDIS.length - 1);
  return VIRIDIS[Math.round(at)];
}

/** A token of the theme. */
export function token(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
