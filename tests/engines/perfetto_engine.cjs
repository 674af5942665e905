// Feeds a file of requests to Perfetto's trace processor, compiled to WebAssembly, and writes what it replies to stdout.
// node perfetto_engine.cjs FOLDER_OF_THE_PACKAGE REQUESTS
'use strict';

const fs = require('fs');
const path = require('path');

const [folder, requests] = process.argv.slice(2);
const wasm = new Uint8Array(fs.readFileSync(path.join(folder, 'trace_processor.wasm')));

class XMLHttpRequest {
  open() {}
  send() {
    this.response = wasm.buffer;
  }
}

const worker = { location: { href: 'file:///worker.js' } };
const silent = { log() {}, warn() {}, debug() {}, info() {}, error: console.error };
// As in a worker of a browser: the bundle takes it for one, as there is no `process`, and reads its program at once.
const bundle = fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8');
new Function('self', 'location', 'XMLHttpRequest', 'importScripts', 'console', 'process', 'require', bundle)(
  worker, worker.location, XMLHttpRequest, () => {}, silent, undefined, undefined);

const port = { postMessage: (data) => fs.writeSync(1, data) };
worker.onmessage({ data: { enginePort: port } });
// Its buffers are there once the promises are done that were made above.
setTimeout(() => port.onmessage({ data: new Uint8Array(fs.readFileSync(requests)) }), 0);
