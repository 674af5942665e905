// The viewer in a tab of TensorBoard: a page in a frame, which TensorBoard has call `render`.

import { apply } from './theme.js';

/** Shows the viewer, whose answers lie beside this file, in TensorBoard's theme. */
export async function render() {
  globalThis.tesseraBase = new URL('../', import.meta.url).href;
  const style = document.createElement('link');
  style.rel = 'stylesheet';
  style.href = new URL('app.css', import.meta.url).href;
  const app = document.createElement('div');
  app.id = 'app';
  document.head.append(style);
  document.body.append(app);
  await import('./main.js');
  const { body } = window.parent.document;
  const follow = () => {
    apply(body.classList.contains('dark-mode') ? 'dark' : 'light');
    window.dispatchEvent(new Event('themechange'));
  };
  new MutationObserver(follow).observe(body, { attributes: true, attributeFilter: ['class'] });
  follow();
}
