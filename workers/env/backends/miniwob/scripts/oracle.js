const all = (selector) => Array.from(document.querySelectorAll(selector));
const text = (element) => (element.innerText || element.value || '').trim();
const labeled = (selector, label) => all(selector).find((element) => text(element) === label);
const shown = (selector) => all(selector).some((element) => element.offsetParent !== null);
const utterance = () => { const said = core.getUtterance(); return typeof said === 'string' ? said : said.utterance; };
const goal = (pattern) => pattern.exec(utterance())[1];
const quoted = () => goal(/"(.*)"/);
// Where a click really reaches the element: elements overlap, and its center may be covered.
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
// From the middle of an element to a point: a drag, kept within the page.
const drag = (element, toX, toY) => {
  const from = at(element);
  const within = (value, most) => Math.round(Math.min(Math.max(value, 1), most - 2));
  return from && {...from, to_x: within(toX, 160), to_y: within(toY, 210)};
};
const middle = (element) => {
  const box = element.getBoundingClientRect();
  return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
};
const push = (shape, direction) => {
  if (shape.getAttribute('transform')) return null;
  const [x, y] = middle(shape), [right, down] = {left: [-1, 0], right: [1, 0], up: [0, -1], down: [0, 1]}[direction];
  return drag(shape, x + 30 * right, y + 30 * down);
};
const into = (small, large) => {
  const inner = small.getBoundingClientRect(), outer = large.getBoundingClientRect();
  const inside = inner.left > outer.left && inner.right < outer.right
    && inner.top > outer.top && inner.bottom < outer.bottom;
  return inside ? null : drag(small, ...middle(large));
};
const pictured = () => {
  const [shape] = all('#area_svg > *');
  const written = /\d/.test(shape.textContent) ? 'digit' : 'letter';
  return {circle: 'circle', rect: 'rectangle', polygon: 'triangle'}[shape.tagName] || written;
};
const pick = (wanted) => {
  if (all('#datepicker')[0].value === wanted) return null;
  const day = String(Number(wanted.split('/')[1]));
  return shown('.ui-datepicker-calendar') ? at(labeled('.ui-datepicker-calendar a', day)) : at(all('#datepicker')[0]);
};
const generated = () => {
  const displayed = all('#display-number')[0].textContent, number = Number(displayed);
  const bound = /(less|greater) than (\d+)/.exec(utterance());
  if (displayed === '-') return false;
  if (bound) return bound[1] === 'less' ? number < Number(bound[2]) : number > Number(bound[2]);
  return (number % 2 === 1) === /odd/.test(utterance());
};
const unmarked = () => {
  const row = all('.row').find((each) => !each.querySelector('.selected'));
  if (!row) return null;
  const odd = Number(row.querySelector('.display-number').textContent) % 2 !== 0;
  return row.querySelector(odd ? '.odd' : '.even');
};
// Pages with a drawing take the point of a click, less the height of the instruction, for one of the drawing.
const drawnAt = (selector) => all(selector).map((e) => [Number(e.getAttribute('cx')), Number(e.getAttribute('cy'))]);
const drawn = (x, y) => ({x: Math.round(x), y: Math.round(y) + 50});
const answered = () => document.getElementById('blue-circle') ? at(all('#subbtn')[0]) : null;
const between = ([x1, y1], [x2, y2]) => [(x1 + x2) / 2, (y1 + y2) / 2];
const towards = ([x1, y1], [x2, y2]) => {
  const length = Math.hypot(x2 - x1, y2 - y1);
  return [(x2 - x1) / length, (y2 - y1) / length];
};
// The button to submit covers the drawing from 126 on.
const inDrawing = ([x, y]) => x > 2 && x < 138 && y > 2 && y < 124;
const halved = ([first, second], corner) => {
  const [right, down] = between(towards(corner, first), towards(corner, second)), length = Math.hypot(right, down);
  const points = [30, 20, 12, 8].map((far) => [corner[0] + far * right / length, corner[1] + far * down / length]);
  return points.find(inDrawing);
};
const upright = (end, corner) => {
  const [right, down] = towards(corner, end);
  const points = [40, -40, 25, -25, 10, -10].map((length) => [corner[0] - down * length, corner[1] + right * length]);
  return points.find(inDrawing);
};
