// A worker that looks for a regular expression in texts: what takes too long is ended with it, and the page goes on.

onmessage = ({ data: { source, texts } }) => {
  try {
    const wanted = new RegExp(source, 'iu');
    postMessage({ kept: Uint8Array.from(texts, (text) => (wanted.test(text) ? 1 : 0)) });
  } catch (error) {
    postMessage({ message: String(error.message || error) });
  }
};
