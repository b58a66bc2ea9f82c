// Knows what a page has still to do soon: timers, frames, requests, images, messages. Screen and reward of an action are
// taken once nothing is left, or after REST_MS. Work that takes longer is waited for by the action `wait` alone.
const SHORT_MS = 50, QUIET_MS = 10, REST_MS = 500, POLL_MS = 4;
// Timers that set timers, and frames that ask for frames, are waited for up to this depth: an animation never ends.
const DEPTH = 8;
const {setTimeout: setTimer, requestAnimationFrame: askFrame, cancelAnimationFrame: dropFrame} = window;
const now = performance.now.bind(performance);
const timers = new Map(), frames = new Map(), begun = new Map(), images = new WeakMap();
let stirred = -QUIET_MS, depth = 0;

// Note something that ends with a call of the returned function.
const begin = () => {
  const token = {};
  begun.set(token, now());
  return () => { if (begun.delete(token)) stirred = now(); };
};
const isNew = (since) => now() - since < REST_MS;
// What is older is forgotten: a worker that never answers would be remembered for ever.
const hasNew = (pending) => {
  for (const [key, since] of pending) if (!isNew(since)) pending.delete(key);
  return pending.size > 0;
};
const isLoading = (image) => {
  if (image.complete || image.loading === 'lazy') return false;
  if (!images.has(image)) images.set(image, now());
  return isNew(images.get(image));
};
const isBusy = () => now() - stirred < QUIET_MS || hasNew(timers) || hasNew(begun) || Array.from(document.images).some(isLoading);

// Run a callback of a timer or a frame that has ended; what it asks for is one deeper.
const run = (pending, id, deeper, act) => {
  if (pending.delete(id)) stirred = now();
  depth = deeper;
  act();
};
const onAct = () => { depth = 0; };
listening.push(() => {
  for (const type of [...MOUSE_EVENTS, 'keydown', 'keyup', 'beforeinput']) window.addEventListener(type, onAct, true);
});
window.setTimeout = function setTimeout(handler, delay, ...values) {
  if (typeof handler !== 'function') return setTimer.apply(window, arguments);
  const deeper = depth + 1;
  const id = setTimer(() => run(timers, id, deeper, () => handler.apply(window, values)), delay);
  if (!(delay > SHORT_MS) && deeper <= DEPTH) timers.set(id, now());
  return id;
};
for (const name of ['clearTimeout', 'clearInterval']) {
  const clear = window[name];
  window[name] = function cleared(id) { timers.delete(id); clear(id); };
}
window.requestAnimationFrame = function requestAnimationFrame(handler) {
  const deeper = depth + 1;
  const id = askFrame((time) => run(frames, id, deeper, () => handler(time)));
  if (deeper <= DEPTH) frames.set(id, now());
  return id;
};
window.cancelAnimationFrame = function cancelAnimationFrame(id) { frames.delete(id); dropFrame(id); };

// Each way to learn that a call has ended, by its result or by events of a target.
const onEvents = (...types) => (target, end) => { for (const type of types) target.addEventListener(type, end, {once: true}); };
const onResult = (promise, end) => { promise.then(end, end); };
const onSuccess = onEvents('success', 'error'), onLoad = onEvents('load', 'error'), onLoadEnd = onEvents('loadend');
const onAnswer = onEvents('message', 'error');
const watched = (original, ends) => function watched() {
  const result = original.apply(this, arguments);
  ends(result, begin(), this);
  return result;
};
const CALLS = [
  ['Response', ['json', 'text', 'blob', 'arrayBuffer', 'formData'], onResult],
  ['Blob', ['text', 'arrayBuffer'], onResult],
  ['SubtleCrypto', ['digest', 'sign', 'verify', 'encrypt', 'decrypt'], onResult],
  ['HTMLImageElement', ['decode'], onResult],
  ['IDBFactory', ['open', 'deleteDatabase'], onSuccess],
  ['IDBObjectStore', ['get', 'getAll', 'put', 'add', 'delete', 'clear', 'count'], onSuccess],
  ['FileReader', ['readAsText', 'readAsDataURL', 'readAsArrayBuffer'], (_, end, reader) => onLoadEnd(reader, end)],
  ['XMLHttpRequest', ['send'], (_, end, request) => request.readyState === 4 ? end() : onLoadEnd(request, end)],
  ['Worker', ['postMessage'], (_, end, worker) => onAnswer(worker, end)],
  ['MessagePort', ['postMessage'], (_, end) => end()],
  ['BroadcastChannel', ['postMessage'], (_, end) => end()],
];
for (const [kind, names, ends] of CALLS) for (const name of names) replace(window[kind], name, (own) => watched(own, ends));
window.fetch = watched(window.fetch, onResult);
window.createImageBitmap = watched(window.createImageBitmap, onResult);
window.postMessage = watched(window.postMessage, (_, end) => end());
const source = Object.getOwnPropertyDescriptor(HTMLImageElement.prototype, 'src');
Object.defineProperty(HTMLImageElement.prototype, 'src', {...source, set(address) {
  source.set.call(this, address);
  if (!this.complete && this.loading !== 'lazy') onLoad(this, begin());
}});

// Wait until the page is at rest; return whether it wants a frame, which a browser that `draws` gives it by itself.
const rest = async (draws) => {
  const end = now() + REST_MS, pause = (ms) => new Promise((done) => setTimer(done, ms));
  await pause(0);
  while (now() < end && (isBusy() || (draws && hasNew(frames)))) await pause(POLL_MS);
  return hasNew(frames);
};
