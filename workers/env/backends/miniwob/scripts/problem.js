// What is kept of a document as it was when it had just been loaded; a symbol, so that the page does not see it.
const FRESH = Symbol.for('dart_streams');

// Start the first problem of a document that has just been loaded; return its instruction.
const first = (seed) => {
  // Chromium 150 keeps it when all storage of the origin is cleared; newer ones do not.
  sessionStorage.clear();
  const style = document.createElement('style');
  // Animations would make a screenshot depend on when it is taken.
  style.textContent = `*, *::before, *::after {
    transition: none !important; animation: none !important; caret-animation: manual !important; }`;
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

// jQuery UI's parents of an icon, each with a rule of its own, and the color in its image's name.
const ICONS = [
  ['', '444444'], ['ui-widget-header', '444444'], ['ui-button', '777777'], ['ui-state-hover', '555555'],
  ['ui-state-active', 'ffffff'], ['ui-state-highlight', '777620'], ['ui-state-error', 'cc0000'],
];

// Load and keep what jQuery UI shows of its icons only later: a screen would not show an icon that is being loaded.
// A rule keeps its image once an element had its style; an image without a rule is lost when another document loads.
const loadIcons = async () => {
  const sheet = document.querySelector('link[href$="jquery-ui.min.css"]');
  if (!sheet) return;
  const unseen = document.createElement('div');
  unseen.style = 'position: absolute; visibility: hidden';
  unseen.innerHTML = ICONS.map(([parent]) => `<div class="${parent}"><span class="ui-icon"></span></div>`).join('');
  document.body.appendChild(unseen);
  unseen.getBoundingClientRect();
  const shown = Array.from(unseen.querySelectorAll('span'), (icon) => getComputedStyle(icon).backgroundImage);
  await Promise.all(ICONS.map(([parent, color], number) => new Promise((done, fail) => {
    const icon = new Image();
    icon.onload = done;
    icon.onerror = () => fail(new Error(`no icon ${icon.src}`));
    icon.src = new URL(`images/ui-icons_${color}_256x240.png`, sheet.href);
    if (shown[number] !== `url("${icon.src}")`) fail(new Error(`an icon in ${parent} is ${shown[number]}`));
  })));
  unseen.remove();
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
  window[Symbol.for('dart_streams.page')].clipboard.copied = '';
  for (const name of Object.getOwnPropertyNames(window)) if (!fresh.names.has(name)) delete window[name];
  WOB_EPISODE_ID = 0;
  core.wob_latest = '-';
  core.wob_scores = [];
  document.getElementById('reward-display').innerHTML = fresh.display;
  // Each clear, also of nothing, is broadcast to every document of the context.
  if (localStorage.length) localStorage.clear();
  if (sessionStorage.length) sessionStorage.clear();
  if (location.href !== fresh.address) history.replaceState(null, '', fresh.address);
  for (const shown of document.querySelectorAll('dart-popup')) shown.remove();
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
