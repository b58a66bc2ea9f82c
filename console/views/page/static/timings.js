// @ts-check
/** The parts of the time between two screens. */

import { shares } from "./shares.js";

/**
 * @param {any} before the observation before the action
 * @param {any} step the observation after it, with its traced segments
 * @param {(ms: number) => string} duration
 */
export function timings(before, step, duration) {
  const taken = step.event.taken, whole = Math.max(1, step.event.at_ms - before.at_ms);
  /** @type {[string, number][]} */
  let parts = step.segments.map((/** @type {any} */ part) => [part.name, part.ms]);
  if (!parts.length) {
    parts = [["queue", taken.queue_ms], ["generate", taken.generate_ms], ["execute", taken.execute_ms]];
    parts.push(["between processes", Math.max(0, whole - parts.reduce((sum, [, ms]) => sum + ms, 0))]);
  }
  return shares(`time to the next screen, ${duration(whole)}`, parts, duration);
}
