// @ts-check
/** An episode as a strip of screens with what was done on each; a click plays it from there. */

import { el } from "./dom.js";
import { brief } from "./format.js";
import { screen } from "./screen.js";

const FIRST = 6, LAST = 2;

/**
 * @param {any} played a trajectory, null if it is not here
 * @param {(step: number) => string} href
 * @param {boolean} [whole] all of a long one, not only its ends
 */
export function strip(played, href, whole = false) {
  if (!played) return el("p.empty", {}, "its screens are not here");
  const last = played.steps.length - 1, long = !whole && played.steps.length > FIRST + LAST;
  return el(".cells", {}, played.steps.map((/** @type {any} */ step, /** @type {number} */ index) => {
    if (long && index >= FIRST && index <= last - LAST) return index === FIRST ? el("span.note", {}, `${played.steps.length - FIRST - LAST} more`) : null;
    const next = played.steps[index + 1], taken = next?.event.taken, end = step.event.end;
    if (!step.event.screenshot && !taken) return null;
    return el("a.cell", { href: href(index) }, screen(step.event.screenshot, next?.points ?? []), el(".action", {}, taken ? brief(taken.action ?? taken.text) : end?.reason || end?.kind || "end"));
  }));
}
