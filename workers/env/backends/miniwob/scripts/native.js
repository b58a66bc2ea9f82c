// Takes over what a browser shows in windows of its own: popups of controls, bubbles, the locked pointer. Such a window
// is not part of a screen, and one that wants frames of its own would keep the page's from being drawn.
const MOUSE_EVENTS = ['pointerdown', 'pointerup', 'pointermove', 'mousedown', 'mouseup', 'mousemove', 'click', 'dblclick',
  'auxclick', 'contextmenu', 'wheel', 'mouseover', 'mouseout', 'pointerover', 'pointerout'];
const INDICATOR_PX = 28;
const seen = new WeakSet();

const within = (event, matches) => event.composedPath().find((node) => node.localName && matches(node));
const isMenu = (node) => node.localName === 'select' && !node.multiple && node.size <= 1
  && getComputedStyle(node).appearance !== 'base-select';
const isPicker = (node) => node.localName === 'input' && node.type in PICKERS;
const isSuggested = (node) => node.localName === 'input' && node.list && !isPicker(node);
const usable = (control) => !control.matches(':disabled') && !(control.readOnly && control.type !== 'color');
const toggle = (control, pick) => popup && popup.control === control ? hide() : pick(control);
const pickerOf = (control) => isMenu(control) ? pickOption : PICKERS[control.type];

const onIndicator = (input, event) => {
  if (input.type === 'color') return true;
  const box = input.getBoundingClientRect(), leftwards = getComputedStyle(input).direction === 'rtl';
  return leftwards ? event.clientX <= box.left + INDICATOR_PX : event.clientX >= box.right - INDICATOR_PX;
};

const onMouse = (event) => {
  if (seen.has(event)) return;
  forgotten();
  const host = within(event, (node) => node.localName === 'dart-popup' && node[HANDLE]);
  if (host) { seen.add(event); return host[HANDLE](event); }
  if (event.type !== 'wheel') pointer = placeOf(event);
  if (event.type === 'mousedown') onPress(event);
  if (event.type === 'click') onClick(event);
};

const onPress = (event) => {
  hideBubble();
  const menu = within(event, isMenu);
  if (popup && within(event, (node) => node === popup.control) !== popup.control) hide();
  if (!menu || event.button !== 0) return;
  seen.add(event);
  event.preventDefault();
  if (!usable(menu)) return;
  menu.focus({preventScroll: true});
  toggle(menu, pickOption);
};

const onClick = (event) => {
  const input = within(event, isPicker), suggested = within(event, isSuggested);
  if (input) {
    seen.add(event);
    event.preventDefault();
    if (!usable(input)) return;
    if (onIndicator(input, event)) toggle(input, PICKERS[input.type]);
    else if (popup && popup.control === input) hide();
  } else if (suggested && usable(suggested)) { seen.add(event); suggest(suggested); }
};

const opens = ({key, altKey, ctrlKey, metaKey}, control) => (altKey && (key === 'ArrowDown' || key === 'ArrowUp'))
  || (key === 'F4' && !altKey) || (key === 'Enter' && isMenu(control)) || (key === ' ' && !ctrlKey && !metaKey && control.type !== 'color');

const onKeyDown = (event) => {
  if (seen.has(event)) return;
  forgotten();
  hideBubble();
  const control = event.composedPath()[0];
  if (popup && popup.control === control) {
    if (!['Shift', 'Control', 'Alt', 'Meta'].includes(event.key) && onKey(event)) consume(event);
  } else if (control.localName && (isMenu(control) || isPicker(control)) && usable(control) && opens(event, control)) {
    consume(event);
    pickerOf(control)(control);
  } else if (control.localName && isSuggested(control) && usable(control) && event.key === 'ArrowDown') {
    suggest(control);
    if (popup) consume(event);
  }
};
const consume = (event) => {
  seen.add(event);
  event.preventDefault();
  event.stopImmediatePropagation();
};

const onInput = (event) => {
  hideBubble();
  const control = event.composedPath()[0];
  if (event.isTrusted && control.localName && isSuggested(control)) suggest(control);
};
const onFocusOut = (event) => { if (popup && event.composedPath()[0] === popup.control) hide(); };

// The bubble of a form that is not valid: of its first such control.
let bubble = null, quiet = 0, told = false;
const hideBubble = () => { if (bubble) bubble.remove(); bubble = null; };
const onInvalid = (event) => {
  if (quiet || seen.has(event)) return;
  seen.add(event);
  const control = event.composedPath()[0];
  event.preventDefault();
  if (told) return;
  told = true;
  setTimeout(() => { told = false; });
  hideBubble();
  control.focus();
  const around = surroundings(control), page = around.view.document;
  bubble = page.createElement('dart-popup');
  bubble.popover = 'manual';
  bubble.attachShadow({mode: 'open'}).innerHTML = `<style>${STYLE} :host { font: 12px sans-serif; padding: 4px; }</style>`;
  bubble.shadowRoot.append(control.validationMessage);
  parentOf(control, around.view).appendChild(bubble);
  bubble.showPopover();
  place(bubble, around);
};

const LISTENERS = {keydown: onKeyDown, input: onInput, focusout: onFocusOut, invalid: onInvalid};
for (const type of MOUSE_EVENTS) LISTENERS[type] = onMouse;
const listen = (target) => {
  for (const [type, listener] of Object.entries(LISTENERS)) {
    target.addEventListener(type, listener, {capture: true, passive: false});
  }
};

// Replace a method; `replacement(original)` is the new one.
const replace = (kind, name, replacement) => {
  if (kind && kind.prototype[name]) kind.prototype[name] = replacement(kind.prototype[name]);
};
// Within a shadow root an event's path names what outside of a closed one it does not.
replace(window.Element, 'attachShadow', (original) => function attachShadow(options) {
  const root = original.call(this, options);
  if (this.localName !== 'dart-popup') listen(root);
  return root;
});
// A document that is opened again loses its listeners; these add them.
const listening = [() => listen(window)];
for (const name of ['open', 'write', 'writeln']) {
  replace(window.Document, name, (original) => function written(...parts) {
    const result = original.apply(this, parts);
    for (const add of listening) add();
    return result;
  });
}
for (const kind of [window.HTMLSelectElement, window.HTMLInputElement]) {
  replace(kind, 'showPicker', (original) => function showPicker() {
    if (!isMenu(this) && !isPicker(this)) return original.call(this);
    if (!usable(this)) throw new DOMException('the control is disabled', 'InvalidStateError');
    if (!navigator.userActivation.isActive) throw new DOMException('showPicker() needs a user gesture', 'NotAllowedError');
    this.focus();
    pickerOf(this)(this);
  });
}
for (const name of ['HTMLFormElement', 'HTMLInputElement', 'HTMLSelectElement', 'HTMLTextAreaElement', 'HTMLButtonElement']) {
  replace(window[name], 'checkValidity', (original) => function checkValidity() {
    quiet++;
    try { return original.call(this); } finally { quiet--; }
  });
}
// Input that a target is sent while it has the pointer locked is never answered.
replace(window.Element, 'requestPointerLock', () => function requestPointerLock() {
  this.ownerDocument.dispatchEvent(new Event('pointerlockerror'));
  return Promise.reject(new DOMException('the pointer cannot be locked here', 'NotSupportedError'));
});
// Nobody reads it, and the browser would send each message to the worker.
for (const name of Object.keys(console)) if (typeof console[name] === 'function') console[name] = () => {};
