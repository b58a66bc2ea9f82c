// @ts-check
/** Success of two sides by page as bars and numbers, with 95 % intervals. */

import { el, svg } from "./dom.js";
import { number, percent } from "./format.js";

/** @typedef {{rate: number, low: number, high: number, episodes: number}} Rate */
const [WIDE, HIGH] = [220, 22];

/**
 * @param {[string, Rate | null, Rate | null][]} rows name and both sides
 * @param {[string, string]} names of the sides
 */
export function rates(rows, names) {
  const known = rows.filter(([, a, b]) => a?.episodes || b?.episodes);
  if (!known.length) return el("p.empty", {}, "no held-out episodes");
  const heads = ["page", "0 to 100 %", ...names, "change", "episodes"];
  const labelled = (/** @type {HTMLElement[]} */ cells) => cells.map((one, index) => { one.dataset.label = heads[index]; return one; });
  return el(".scroll", {}, el("table.rates", {},
    el("thead", {}, el("tr", {}, heads.map((name, index) => el(index > 1 ? "th.number" : "th", {}, name)))),
    el("tbody", {}, known.map(([name, a, b]) => el("tr", {}, labelled([el("td", {}, name), el("td", {}, bar(a, b, names)), cell(a), cell(b), change(a, b),
      el("td.number", {}, `${number(a?.episodes ?? 0)} + ${number(b?.episodes ?? 0)}`)]))))));
}

/** @param {Rate | null} rate */
function cell(rate) {
  if (!rate?.episodes) return el("td.number", {}, "–");
  return el("td.number", {}, percent(rate.rate), " ", el("small", {}, `${Math.round(rate.low * 100)}–${Math.round(rate.high * 100)}`));
}

/** @param {Rate | null} a @param {Rate | null} b */
function change(a, b) {
  if (!a?.episodes || !b?.episodes) return el("td.number", {}, "–");
  const points = (b.rate - a.rate) * 100;
  return el(`td.number.${points > 0.5 ? "up" : points < -0.5 ? "down" : "same"}`, {}, signed(points));
}

/** A difference in percentage points with one digit, so that it is that of rates with one digit. @param {number} points */
export function signed(points) {
  return `${points >= 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`;
}

/** A rate with its interval as text. @param {Rate | null} rate */
function spoken(rate) {
  return rate?.episodes ? `${percent(rate.rate)}, 95 % interval ${percent(rate.low)} to ${percent(rate.high)}` : "no episodes";
}

/** Both rates as dots on a line from 0 to 1, with intervals. @param {Rate | null} a @param {Rate | null} b @param {[string, string]} names */
function bar(a, b, names) {
  const at = (/** @type {number} */ value) => 6 + value * (WIDE - 12);
  const made = svg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, width: WIDE, height: HIGH, class: "rate", role: "img", "aria-label": `${names[0]}: ${spoken(a)}; ${names[1]}: ${spoken(b)}` },
    svg("line", { x1: at(0), x2: at(1), y1: HIGH / 2, y2: HIGH / 2, class: "axis" }));
  if (a?.episodes && b?.episodes) made.append(svg("line", { x1: at(a.rate), x2: at(b.rate), y1: HIGH / 2, y2: HIGH / 2, class: "way" }));
  for (const [rate, side, y] of /** @type {[Rate | null, string, number][]} */ ([[a, "before", HIGH / 2 - 6], [b, "after", HIGH / 2 + 6]])) {
    if (!rate?.episodes) continue;
    made.append(svg("line", { x1: at(rate.low), x2: at(rate.high), y1: y, y2: y, class: `interval ${side}` }),
      svg("circle", { cx: at(rate.rate), cy: HIGH / 2, r: 4.5, class: `dot-${side}` }));
  }
  return made;
}
