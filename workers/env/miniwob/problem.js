// What is kept of a document as it was when it had just been loaded; a symbol, so that the page does not see it.
const FRESH = Symbol.for('dart_streams');

// Start the first problem of a document that has just been loaded; return its instruction.
const first = (seed) => {
  // Chromium 150 keeps it when all storage of the origin is cleared; newer ones do not.
  sessionStorage.clear();
  const style = document.createElement('style');
  // Animations would make a screenshot depend on when it is taken.
  style.textContent = `*, *::before, *::after {
    transition: none !important; animation: none !important; caret-color: transparent !important; }`;
  document.head.appendChild(style);
  if (window.jQuery) window.jQuery.fx.off = true;
  // The page's own clock must not end an episode: that is the environment worker's business.
  core.EPISODE_MAX_TIME = 1e9;
  core.countdownTimer = () => {};
  const display = document.getElementById('reward-display').innerHTML;
  const instruction = start(seed);
  window[FRESH] = {
    names: new Set(Object.getOwnPropertyNames(window)), display, address: location.href, timer: setTimeout(() => {}, 0),
    style: document.body.getAttribute('style'),
  };
  return instruction;
};

// Load and keep what jQuery UI shows of its icons only later: a screen would not show an icon that is being loaded.
const loadIcons = () => {
  const sheet = document.querySelector('link[href$="jquery-ui.min.css"]');
  const colors = sheet ? ['444444', '555555', '777620', '777777', 'cc0000', 'ffffff'] : [];
  window[FRESH].icons = colors.map((color) => new Image());
  return Promise.all(window[FRESH].icons.map((icon, index) => new Promise((done) => {
    icon.onload = icon.onerror = done;
    icon.src = new URL(`images/ui-icons_${colors[index]}_256x240.png`, sheet.href);
  }))).then(() => null);
};

// Start the next problem in a document that has had others; return its instruction, or null if it is a new document.
const again = (seed) => {
  if (!window[FRESH]) return null;
  forget(window[FRESH]);
  const instruction = start(seed);
  if (document.body.getAttribute('style') !== window[FRESH].style) document.body.removeAttribute('style');
  repaint();
  return instruction;
};

const start = (seed) => {
  // It outlives the document.
  window.name = '';
  Math.seedrandom(seed);
  core.startEpisodeReal();
  if (document.activeElement) document.activeElement.blur();
  const utterance = core.getUtterance();
  return typeof utterance === 'string' ? utterance : utterance.utterance;
};

const clearTimers = (fresh) => {
  const last = setTimeout(() => {}, 0);
  for (let timer = fresh.timer + 1; timer <= last; timer++) clearTimeout(timer);
  fresh.timer = last;
};

// Stop what an ended episode might still do to those after it in other documents of its context; false if it left its
// document.
const quiet = () => {
  if (!window[FRESH]) return false;
  clearTimers(window[FRESH]);
  return true;
};

// Take away what an episode left: timers, globals, score, storage, address, marks of the page's own recorder.
const forget = (fresh) => {
  clearTimers(fresh);
  for (const name of Object.getOwnPropertyNames(window)) if (!fresh.names.has(name)) delete window[name];
  WOB_EPISODE_ID = 0;
  core.wob_latest = '-';
  core.wob_scores = [];
  document.getElementById('reward-display').innerHTML = fresh.display;
  // Each clear, also of nothing, is broadcast to every document of the context.
  if (localStorage.length) localStorage.clear();
  if (sessionStorage.length) sessionStorage.clear();
  if (location.href !== fresh.address) history.replaceState(null, '', fresh.address);
  for (const element of document.querySelectorAll('[data-tampered]')) element.removeAttribute('data-tampered');
  renew();
};

// Make jQuery UI's date picker anew, as the page does once loaded: it keeps a state of its own between problems.
const renew = () => {
  const picker = document.querySelector('.hasDatepicker');
  if (!picker) return;
  jQuery(picker).datepicker('destroy');
  Object.assign(jQuery.datepicker, {_curInst: null, _lastInput: null, _datepickerShowing: false});
  jQuery.datepicker.dpDiv.empty().removeAttr('style');
  const start = core.startEpisode;
  core.startEpisode = () => {};
  window.onload();
  core.startEpisode = start;
};

// Show it as if the document had just been loaded: unscrolled, and all of it painted anew. What changed is otherwise
// not always painted to its last pixel.
const repaint = () => {
  for (const element of document.querySelectorAll('*')) {
    if (element.scrollTop || element.scrollLeft) element.scrollTo(0, 0);
  }
  core.canvasClear();
  const root = document.documentElement;
  root.style.display = 'none';
  root.getBoundingClientRect();
  root.removeAttribute('style');
};
