// @ts-check
/** An episode as a strip of screens with their actions; a click plays it from there. */

import { el } from "./dom.js";
import { brief } from "./format.js";
import { screen } from "./screen.js";

const FIRST = 6, LAST = 2;

/**
 * @param {any} played a trajectory, or null
 * @param {(step: number) => string} href
 * @param {boolean} [whole] show all screens of a long episode
 */
export function strip(played, href, whole = false) {
  if (!played) return el("p.empty", {}, "no screens available");
  const last = played.steps.length - 1, long = !whole && played.steps.length > FIRST + LAST;
  return el(".cells", {}, played.steps.map((/** @type {any} */ step, /** @type {number} */ index) => {
    if (long && index >= FIRST && index <= last - LAST) return index === FIRST ? el("span.note", {}, `${played.steps.length - FIRST - LAST} more`) : null;
    const next = played.steps[index + 1], taken = next?.event.taken, end = step.event.end;
    if (!step.event.screenshot && !taken) return null;
    const said = taken ? brief(taken.action ?? taken.text) : end?.reason || end?.kind || "end";
    return el("a.cell", { href: href(index), title: said }, screen(step.event.screenshot, next?.points ?? []), el(".action", {}, said));
  }));
}
