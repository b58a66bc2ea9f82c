// @ts-check
/** Places on a screenshot, in its own pixels and in those of the image that the policy sees. */

/**
 * @typedef {import("./screen.js").Point} Point
 * @typedef {{width: number, height: number}} Size
 */
const PLACE = /_box='\((\d+), ?(\d+)\)'/g;
const START = /start_box='\(\d+, ?\d+\)'/;

/** The point of a screen under the pointer; the screen lies in the middle of its frame. @param {MouseEvent} event @param {Element} frame @param {Size} screen @returns {Point} */
export function under(event, frame, screen) {
  const box = frame.getBoundingClientRect();
  const scale = Math.min(box.width / screen.width, box.height / screen.height);
  const left = box.left + (box.width - screen.width * scale) / 2, top = box.top + (box.height - screen.height * scale) / 2;
  return { x: (event.clientX - left) / scale, y: (event.clientY - top) / scale };
}

/** A point of the screen as the grammar writes it. @param {Point} point @param {Size} screen @param {Size} image */
function written(point, screen, image) {
  /** @param {number} value @param {number} from @param {number} to */
  const scaled = (value, from, to) => Math.max(0, Math.min(to - 1, Math.round((value * to) / from)));
  return `(${scaled(point.x, screen.width, image.width)},${scaled(point.y, screen.height, image.height)})`;
}

/** The action of a click; an action with one place that is written already moves there. @param {string} before @param {Point} point @param {Size} screen @param {Size} image */
export function clicked(before, point, screen, image) {
  const box = `start_box='${written(point, screen, image)}'`;
  return START.test(before) && !before.includes("end_box") ? before.replace(START, box) : `click(${box})`;
}

/** The action of a drag. @param {Point} from @param {Point} to @param {Size} screen @param {Size} image */
export function dragged(from, to, screen, image) {
  return `drag(start_box='${written(from, screen, image)}', end_box='${written(to, screen, image)}')`;
}

/** The points that a written action names, on the screen. @param {string} action @param {Size} screen @param {Size} image @returns {Point[]} */
export function named(action, screen, image) {
  return [...action.matchAll(PLACE)].map(([, x, y]) => ({ x: (Number(x) * screen.width) / image.width, y: (Number(y) * screen.height) / image.height }));
}
