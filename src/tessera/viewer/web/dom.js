// Elements. Texts of traces reach the page by `textContent` alone.

import { shown } from './format.js';

const SVG = 'http://www.w3.org/2000/svg';

/** An element with attributes; functions are listeners, texts among the children become text. */
export function element(tag, attributes, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function drawing(tag, attributes, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child).split('\n').map(shown).join('\n')));
  }
  return node;
}

export function emptied(node) {
  node.replaceChildren();
  return node;
}

export function note(text) {
  return element('p', { class: 'note' }, text);
}

/** What went wrong, as the command line says it. */
export function failure(error) {
  const hints = (error.hints || []).map((hint) => `\nhint: ${hint}`).join('');
  return element('div', { class: 'error', role: 'alert' }, `${error.code || 'E_ARGUMENT'}: ${error.message}${hints}`);
}
