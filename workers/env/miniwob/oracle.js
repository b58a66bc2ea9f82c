const all = (selector) => Array.from(document.querySelectorAll(selector));
const text = (element) => (element.innerText || element.value || '').trim();
const labelled = (selector, label) => all(selector).find((element) => text(element) === label);
const shown = (selector) => all(selector).some((element) => element.offsetParent !== null);
const utterance = () => { const said = core.getUtterance(); return typeof said === 'string' ? said : said.utterance; };
const goal = (pattern) => pattern.exec(utterance())[1];
const quoted = () => goal(/"(.*)"/);
// Where a click really reaches the element: elements overlap, and its centre may be covered.
const at = (element) => {
  if (!element) return null;
  const box = element.getBoundingClientRect();
  const left = Math.max(box.left, 0), right = Math.min(box.right, 160);
  const top = Math.max(box.top, 0), bottom = Math.min(box.bottom, 210);
  for (const down of [.5, .35, .65, .2, .8]) {
    for (const across of [.5, .35, .65, .2, .8, .1, .9]) {
      const x = Math.round(left + (right - left) * across), y = Math.round(top + (bottom - top) * down);
      const hit = document.elementFromPoint(x, y);
      if (hit && (hit === element || element.contains(hit))) return {x, y};
    }
  }
  return null;
};
const tick = (labels) => {
  const boxes = all('#boxes label').map((label) => [text(label), label.querySelector('input')]);
  const open = boxes.find(([label, box]) => labels.includes(label) && !box.checked);
  return open ? at(open[1]) : null;
};
const fill = (field, wanted) => {
  if (field.value === wanted) return null;
  return document.activeElement === field ? {text: wanted} : at(field);
};
