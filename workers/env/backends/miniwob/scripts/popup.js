// A popup that is drawn in the page: a grid of cells over everything, of which one can be chosen by mouse and by keys.
// The page sees none of its events, as it sees none of those of a window of the browser's own.
const HANDLE = Symbol.for('dart_streams popup');
const STYLE = `
  :host { all: initial; position: fixed; inset: auto; margin: 0; padding: 0; overflow: auto; box-sizing: border-box;
    color-scheme: light; background: #fff; color: #000; border: 1px solid #767676; cursor: default; user-select: none; }
  div { display: grid; }
  span { padding: 1px 2px; min-height: 1em; text-align: center; white-space: pre; overflow: hidden; }
  .list span { text-align: start; padding: 1px 4px; }
  .label { font-weight: bold; }
  .indented { padding-inline-start: 14px !important; }
  .off { color: #a0a0a0; }
  .rule { border-top: 1px solid #a0a0a0; min-height: 0; padding: 0; }
  .at { background: #1967d2; color: #fff; }
  .swatch { min-height: 7px; min-width: 7px; padding: 0; }
  .dense { font-size: 9px; }
  .dense span { padding: 1px 0; }
  .swatch.at { outline: 2px solid #000; outline-offset: -2px; }`;
const FONT_PX = 13;
const TYPING_MS = 1000;
let popup = null;
let pointer = '';
const placeOf = ({screenX, screenY}) => `${screenX} ${screenY}`;

// The farthest window around a control whose document can be reached, and the control's box in it.
const surroundings = (control) => {
  let view = control.ownerDocument.defaultView;
  let {left, top, right, bottom} = control.getBoundingClientRect();
  while (view.frameElement) {
    const frame = view.frameElement, box = frame.getBoundingClientRect();
    const across = box.left + frame.clientLeft, down = box.top + frame.clientTop;
    [left, right, top, bottom] = [left + across, right + across, top + down, bottom + down];
    view = view.parent;
  }
  const whole = view === view.top;
  const width = Math.min(view.innerWidth, whole ? AREA.width : Infinity);
  const height = Math.min(view.innerHeight, whole ? AREA.height : Infinity);
  return {view, width, height, left, top, right, bottom};
};

// What is modal makes all else inert, also what lies over it.
const parentOf = (control, view) => {
  if (view !== control.ownerDocument.defaultView) return view.document.documentElement;
  for (let node = control; node; node = node.parentNode || node.host) {
    if (node.matches && node.matches('dialog:modal')) return node;
  }
  return view.document.documentElement;
};

// Whoever restored the document has taken the popup away with all else.
const forgotten = () => { if (popup && !popup.host.isConnected) hide(); };

const place = (host, around) => {
  const below = around.height - around.bottom, above = around.top;
  host.style.maxWidth = `${around.width}px`;
  host.style.maxHeight = '';
  const {offsetHeight: height, offsetWidth: width} = host;
  const under = height <= below || below >= above;
  // Beside a control that leaves too little room, the popup covers it.
  const most = Math.max(under ? below : above, Math.min(height, around.height));
  const wanted = under ? around.bottom : around.top - Math.min(height, most);
  host.style.maxHeight = `${most}px`;
  host.style.top = `${Math.max(0, Math.min(wanted, around.height - Math.min(height, most)))}px`;
  host.style.left = `${Math.max(0, Math.min(around.left, around.width - width))}px`;
};

// Show a popup for a control. `content()` yields its sections: `columns`, the `kind` and the `cells`, each with `text`
// and, if it can be chosen, `value`. `choose(value)` says whether the popup stays open, which is then drawn anew.
const show = (control, content, choose, {page = null, takesKeys = true} = {}) => {
  hide();
  const around = surroundings(control);
  const host = around.view.document.createElement('dart-popup');
  host.popover = 'manual';
  host.attachShadow({mode: 'open'});
  const {fontFamily, fontSize, direction} = getComputedStyle(control);
  Object.assign(host.style, {fontFamily, fontSize: `${Math.min(parseFloat(fontSize), FONT_PX)}px`, direction});
  parentOf(control, around.view).appendChild(host);
  popup = {control, content, choose, page, takesKeys, host, around, current: -1, cells: [], typed: '', typedAt: 0};
  popup.under = pointer;
  host[HANDLE] = onPopup;
  host.showPopover();
  const watch = new MutationObserver(() => { if (popup && popup.host === host && !control.isConnected) hide(); });
  watch.observe(control.getRootNode(), {childList: true, subtree: true});
  popup.watch = watch;
  draw();
};

const hide = () => {
  if (!popup) return;
  const {host, watch} = popup;
  popup = null;
  watch.disconnect();
  host.remove();
};

const draw = () => {
  const {host, content, around} = popup, root = host.shadowRoot;
  root.innerHTML = `<style>${STYLE}</style>`;
  popup.cells = [];
  let current = -1;
  for (const {columns = 1, kind = '', cells} of content()) {
    const grid = around.view.document.createElement('div');
    grid.style.gridTemplateColumns = `repeat(${columns}, ${columns > 1 ? '1fr' : 'auto'})`;
    grid.className = kind;
    for (const cell of cells) {
      const shown = around.view.document.createElement('span');
      shown.textContent = cell.text || '';
      shown.className = cell.kind || '';
      if (cell.color) shown.style.background = cell.color;
      if (cell.span) shown.style.gridColumn = `span ${cell.span}`;
      shown.classList.toggle('off', Boolean(cell.disabled));
      grid.appendChild(shown);
      if (cell.value === undefined) continue;
      if (cell.current) current = popup.cells.length;
      popup.cells.push({...cell, shown, columns});
    }
    root.appendChild(grid);
  }
  const width = root.querySelector('.list') ? Math.min(around.right - around.left, around.width) : 0;
  host.style.minWidth = `${width}px`;
  place(host, around);
  mark(current, true);
};

const mark = (number, scroll) => {
  const {cells, current, host} = popup;
  if (cells[current]) cells[current].shown.classList.remove('at');
  popup.current = cells[number] ? number : -1;
  if (!cells[number]) return;
  const {shown} = cells[number];
  shown.classList.add('at');
  if (!scroll) return;
  const box = shown.getBoundingClientRect(), frame = host.getBoundingClientRect();
  if (box.bottom > frame.bottom) host.scrollTop += box.bottom - frame.bottom + 1;
  if (box.top < frame.top) host.scrollTop -= frame.top - box.top + 1;
};

const take = (number) => {
  const cell = popup && popup.cells[number];
  if (!cell || cell.disabled) return;
  const {choose} = popup;
  if (choose(cell.value)) draw(); else hide();
};

// An event of the mouse on the popup.
const onPopup = (event) => {
  event.stopImmediatePropagation();
  // That of a pointerdown would do without the events of the mouse that follow it.
  if (['mousedown', 'click', 'auxclick', 'contextmenu'].includes(event.type)) event.preventDefault();
  if (!popup) return;
  // A popup may open under the pointer: the release of the press that opened it chooses nothing.
  if (event.type === 'mousedown' || placeOf(event) !== popup.under) popup.under = null;
  if (popup.under !== null) return;
  const number = popup.cells.findIndex(({shown}) => shown === event.composedPath()[0]);
  if (event.type === 'mousemove' && number >= 0 && !popup.cells[number].disabled) mark(number, false);
  if (event.type === 'mouseup' && event.button === 0) take(number);
};

const STEPS = {ArrowUp: (wide) => -wide, ArrowDown: (wide) => wide, ArrowLeft: () => -1, ArrowRight: () => 1};

const moved = (key) => {
  const {cells, current} = popup, enabled = (number) => cells[number] && !cells[number].disabled;
  const wide = cells[current] ? cells[current].columns : 1;
  let number = key === 'End' ? cells.length : key === 'Home' ? -1 : current;
  const by = key === 'End' ? -1 : key === 'Home' ? 1 : key === 'PageUp' ? -8 : key === 'PageDown' ? 8 : STEPS[key](wide);
  if (key.startsWith('Page')) {
    number = Math.max(0, Math.min(cells.length - 1, number + by));
    while (number > 0 && number < cells.length - 1 && !enabled(number)) number += Math.sign(by);
  } else {
    do number += by; while (cells[number] && !enabled(number));
  }
  if (enabled(number)) mark(number, true);
};

// A key while the popup is open; return whether it was meant for the popup.
const onKey = (event) => {
  const {key} = event;
  if (key === 'Escape') hide();
  else if (key === 'F4' || (event.altKey && key.startsWith('Arrow'))) hide();
  else if (popup.page && key.startsWith('Page')) { popup.page(key === 'PageUp' ? -1 : 1); draw(); }
  else if (key in STEPS || (popup.takesKeys && ['Home', 'End', 'PageUp', 'PageDown'].includes(key))) moved(key);
  else if (key === ' ' && popup.typed && event.timeStamp - popup.typedAt < TYPING_MS) find(key, event.timeStamp);
  else if (key === 'Enter' || key === 'Tab' || (key === ' ' && popup.takesKeys)) {
    if (popup.current < 0 && !popup.takesKeys) { hide(); return false; }
    if (popup.current >= 0) take(popup.current);
    else hide();
    if (key === 'Tab') { hide(); return false; }
  } else if (!popup.takesKeys) return false;
  else if (key.length === 1) find(key, event.timeStamp);
  return true;
};

const find = (key, now) => {
  popup.typed = (now - popup.typedAt < TYPING_MS ? popup.typed : '') + key.toLowerCase();
  popup.typedAt = now;
  const {cells, current, typed} = popup, begin = typed.length > 1 ? Math.max(current, 0) : current + 1;
  for (let passed = 0; passed < cells.length; passed++) {
    const number = (begin + passed) % cells.length;
    if (!cells[number].disabled && (cells[number].text || '').toLowerCase().startsWith(typed)) return mark(number, true);
  }
};
