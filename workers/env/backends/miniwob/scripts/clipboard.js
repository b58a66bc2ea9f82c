// The clipboard of this document: the browser's own is one for all episodes, and so is what the middle button pastes.
const clipboard = {copied: ''};
let primary = null;
const selected = () => document.activeElement && document.activeElement.type === 'password' ? '' : String(getSelection());

const onCopy = (event) => {
  const own = event.defaultPrevented;
  const text = own ? event.clipboardData.getData('text/plain') : selected();
  event.clipboardData.clearData();
  event.preventDefault();
  if (!own && text === '') return;
  clipboard.copied = text;
  if (!own && event.type === 'cut') document.execCommand('delete');
};

const onPaste = (event) => {
  if (!event.isTrusted) return;
  consume(event);
  const data = new DataTransfer(), text = primary === null ? clipboard.copied : primary;
  data.setData('text/plain', text);
  const pasted = new ClipboardEvent('paste', {clipboardData: data, bubbles: true, cancelable: true, composed: true});
  if (event.composedPath()[0].dispatchEvent(pasted) && text) document.execCommand('insertText', false, text);
};

const onPointer = (event) => { primary = event.button === 1 ? selected() : null; };
const onType = () => { primary = null; };
let dragged = null;
const onDrag = (event) => { dragged = event; };
const drags = () => { const event = dragged; dragged = null; return event !== null && !event.defaultPrevented; };
listening.push(() => {
  window.addEventListener('mousedown', onPointer, true);
  window.addEventListener('keydown', onType, true);
  window.addEventListener('copy', onCopy);
  window.addEventListener('cut', onCopy);
  window.addEventListener('paste', onPaste, true);
  window.addEventListener('dragstart', onDrag, true);
});
for (const add of listening) add();
if (window.Clipboard) {
  replace(window.Clipboard, 'writeText', () => async function writeText(text) { clipboard.copied = String(text); });
  replace(window.Clipboard, 'readText', () => async function readText() { return clipboard.copied; });
}

// A symbol, so that the page does not see it.
window[Symbol.for('dart_streams.page')] = {rest, clipboard, drags};
