// The functions that a page of the user's is played by: `task.reset(seed)`, `task.evaluate()`, `task.demonstrate()`.

// Math.random is seeded (mulberry32), so that a page which uses it shows the same problem for the same seed.
const seeded = (seed) => {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
};

// A `const task` whose script has failed before it throws when it is named.
const defined = () => { try { return typeof task === 'object' && task !== null; } catch { return false; } };

const method = (name) => {
  if (!defined()) {
    throw new Error('the page defines no global `task`: use a script without type="module", and open the page in a '
      + 'browser to see the errors of its scripts (docs/tutorial.md)');
  }
  if (typeof task[name] !== 'function') throw new Error(`the page's task has no ${name}()`);
  return task[name].bind(task);
};

const first = async (seed) => {
  sessionStorage.clear();
  const style = document.createElement('style');
  // Animations would make a screenshot depend on when it is taken.
  style.textContent = `*, *::before, *::after {
    transition: none !important; animation: none !important; caret-animation: manual !important; }`;
  document.head.appendChild(style);
  Math.random = seeded(seed);
  const instruction = await method('reset')(seed);
  if (typeof instruction !== 'string' || !instruction.trim()) {
    throw new Error(`task.reset(${seed}) returned ${JSON.stringify(instruction)}: it must return the instruction`);
  }
  if (document.activeElement) document.activeElement.blur();
  return instruction;
};

// Whether the episode has ended, and its reward; an episode that has left its page goes on without one.
const state = () => {
  if (!defined()) return [false, 0];
  const reward = method('evaluate')();
  if (reward === null || reward === undefined) return [false, 0];
  if (typeof reward !== 'number' || !(reward >= 0 && reward <= 1)) {
    throw new Error(`task.evaluate() returned ${String(reward)}: it must return a number from 0 to 1, or null`);
  }
  return [true, reward];
};

const reached = (element) => {
  const place = at(element);
  if (place) return place;
  throw new Error(`task.demonstrate() returned ${element.outerHTML.slice(0, 80)}, which no click reaches: it is outside of `
    + `the screen of ${innerWidth}x${innerHeight} pixels, or covered`);
};

// The next correct action: an element to click, a text to type, or {from, to}, two elements, to drag.
const next = () => {
  if (!defined() || !task.demonstrate) return {missing: true};
  const action = method('demonstrate')();
  if (action === null || action === undefined) return null;
  if (typeof action === 'string') return {text: action};
  if (action instanceof Element) return reached(action);
  const start = action.from instanceof Element && reached(action.from);
  const end = action.to instanceof Element && reached(action.to);
  if (!start || !end) {
    throw new Error('task.demonstrate() must return an element, a text, {from, to} with two elements, or null');
  }
  return {...start, to_x: end.x, to_y: end.y};
};
