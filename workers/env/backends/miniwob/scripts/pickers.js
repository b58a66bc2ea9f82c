// What the popup of each control shows, and what is done with the choice.
const PICKERS = {};
const two = (number) => String(number).padStart(2, '0');

// Through the prototype: frameworks that shadow the property on an element must see the change.
const enter = (control, property, value) => {
  const kind = control.ownerDocument.defaultView[control.localName === 'select' ? 'HTMLSelectElement' : 'HTMLInputElement'];
  const {get, set} = Object.getOwnPropertyDescriptor(kind.prototype, property);
  if (get.call(control) === value) return;
  set.call(control, value);
  control.dispatchEvent(new Event('input', {bubbles: true, composed: true}));
  control.dispatchEvent(new Event('change', {bubbles: true}));
};

const optionCells = (select) => {
  const cells = [];
  const add = (option, grouped) => {
    if (option.hidden || getComputedStyle(option).display === 'none') return;
    cells.push({
      text: option.label, value: option.index, kind: grouped ? 'indented' : '',
      disabled: option.matches(':disabled'), current: option.index === select.selectedIndex,
    });
  };
  for (const child of select.querySelectorAll('option, optgroup, hr')) {
    if (child.localName === 'hr') cells.push({kind: 'rule'});
    else if (child.localName === 'optgroup') { if (!child.hidden) cells.push({text: child.label, kind: 'label'}); }
    else add(child, child.closest('optgroup') !== null);
  }
  return cells;
};
const pickOption = (select) => show(
  select, () => [{kind: 'list', cells: optionCells(select)}], (index) => enter(select, 'selectedIndex', index));

const suggestions = (input) => {
  const typed = input.value.toLowerCase(), listed = Array.from(input.list ? input.list.options : []);
  return listed.filter(({value, label, disabled}) => !disabled && value
    && (value.toLowerCase().includes(typed) || label.toLowerCase().includes(typed)));
};
const suggest = (input) => {
  if (!suggestions(input).length) return hide();
  const cells = () => suggestions(input).map(({value, label}) => ({
    text: label && label !== value ? `${value}  ${label}` : value, value}));
  show(input, () => [{kind: 'list', cells: cells()}], (value) => enter(input, 'value', value), {takesKeys: false});
};

const outside = (input, value) => (input.min && value < input.min) || (input.max && value > input.max);
const isoDay = (day) => day.toISOString().slice(0, 10);
const isoWeek = (day) => {
  const thursday = new Date(day);
  thursday.setUTCDate(day.getUTCDate() + 3 - (day.getUTCDay() + 6) % 7);
  const first = Date.UTC(thursday.getUTCFullYear(), 0, 1);
  return `${thursday.getUTCFullYear()}-W${two(1 + Math.floor((thursday - first) / (7 * 864e5)))}`;
};
const mondayOf = (week) => {
  const [year, number] = week.split('-W').map(Number), fourth = new Date(Date.UTC(year, 0, 4));
  fourth.setUTCDate(4 - (fourth.getUTCDay() + 6) % 7 + 7 * (number - 1));
  return fourth;
};
// The day that a value names, or today.
const dayOf = (input, value) => {
  const now = new Date(), today = new Date(Date.UTC(now.getFullYear(), now.getMonth(), now.getDate()));
  if (input.type === 'week') return value ? mondayOf(value) : today;
  return value ? new Date(`${value.slice(0, 10)}${input.type === 'month' ? '-01' : ''}T00:00Z`) : today;
};

const turning = (shown, input) => {
  const title = shown.toLocaleDateString('en-US', {timeZone: 'UTC', year: 'numeric', month: 'short'});
  const turn = (text, months) => ({text, value: {months}});
  if (input.type === 'month') {
    return {columns: 6, cells: [turn('«', -12), {text: title.slice(-4), kind: 'label', span: 4}, turn('»', 12)]};
  }
  const named = {text: title, kind: 'label', span: 3};
  return {columns: 7, cells: [turn('«', -12), turn('‹', -1), named, turn('›', 1), turn('»', 12)]};
};
const monthCells = (input, shown) => ({columns: 4, cells: Array.from({length: 12}, (_, month) => {
  const value = `${shown.getUTCFullYear()}-${two(month + 1)}`;
  const text = new Date(Date.UTC(2000, month)).toLocaleDateString('en-US', {timeZone: 'UTC', month: 'short'});
  return {text, value, disabled: outside(input, value), current: value === input.value};
})});
const dayCells = (input, shown) => {
  const mondays = input.type === 'week', cells = Array.from(mondays ? 'MTWTFSS' : 'SMTWTFS', (text) => ({text, kind: 'label'}));
  const before = (shown.getUTCDay() + (mondays ? 6 : 0)) % 7;
  for (let blank = 0; blank < before; blank++) cells.push({});
  for (const day = new Date(shown); day.getUTCMonth() === shown.getUTCMonth(); day.setUTCDate(day.getUTCDate() + 1)) {
    const value = mondays ? isoWeek(day) : isoDay(day);
    const chosen = mondays ? input.value === value : input.value.slice(0, 10) === value;
    const bounds = {min: input.min.slice(0, mondays ? 8 : 10), max: input.max.slice(0, mondays ? 8 : 10)};
    cells.push({text: String(day.getUTCDate()), value, disabled: outside(bounds, value), current: chosen});
  }
  return {columns: 7, cells};
};
const timeOf = (input) => (/(\d\d):(\d\d)/.exec(input.value) || ['', '00', '00']).slice(1);
const timeSections = (input) => {
  const [hour] = timeOf(input), cells = [];
  for (let number = 0; number < 24; number++) {
    if (number % 6 === 0) cells.push({text: number % 12 ? '' : number ? 'PM' : 'AM', kind: 'label'});
    const value = {hour: two(number)}, text = String(number % 12 || 12);
    const disabled = input.type === 'time' && ['59', '00'].every((minute) => outside(input, `${value.hour}:${minute}`));
    cells.push({text, value, disabled, current: input.value && value.hour === hour});
  }
  const minutes = Array.from({length: 60}, (_, number) => ({
    text: two(number), value: {minute: two(number)},
    disabled: input.type === 'time' && outside(input, `${hour}:${two(number)}`),
  }));
  return [{columns: 7, cells}, {columns: 12, kind: 'dense', cells: minutes}];
};

// Popups of the inputs for dates and times. The last part of a value closes it.
const pickTime = (input) => {
  const shown = dayOf(input, input.type === 'time' ? '' : input.value);
  shown.setUTCDate(1);
  const turn = (months) => shown.setUTCMonth(shown.getUTCMonth() + months);
  const content = () => {
    if (input.type === 'time') return timeSections(input);
    const dated = [turning(shown, input), input.type === 'month' ? monthCells(input, shown) : dayCells(input, shown)];
    return input.type === 'datetime-local' ? [...dated, ...timeSections(input)] : dated;
  };
  const choose = (value) => {
    if (value.months) { turn(value.months); return true; }
    if (input.type === 'date' || input.type === 'month' || input.type === 'week') return enter(input, 'value', value);
    const [hour, minute] = timeOf(input), time = `${value.hour || hour}:${value.minute || minute}`;
    const day = () => typeof value === 'string' ? value : isoDay(dayOf(input, input.value));
    enter(input, 'value', input.type === 'time' ? time : `${day()}T${time}`);
    return !value.minute;
  };
  show(input, content, choose, {page: input.type === 'time' ? null : (by) => turn(input.type === 'month' ? 12 * by : by)});
};
for (const type of ['date', 'time', 'datetime-local', 'month', 'week']) PICKERS[type] = pickTime;

// The 216 colors of which each part is a multiple of 51.
PICKERS.color = (input) => {
  const parts = ['00', '33', '66', '99', 'cc', 'ff'];
  const cells = parts.flatMap((green) => parts.flatMap((red) => parts.map((blue) => `#${red}${green}${blue}`)));
  const swatch = (color) => ({value: color, color, kind: 'swatch', current: color === input.value});
  show(input, () => [{columns: 18, cells: cells.map(swatch)}], (color) => enter(input, 'value', color));
};
