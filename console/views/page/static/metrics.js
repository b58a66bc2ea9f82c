// @ts-check
/** Metrics of optimizer steps in groups, with units and meanings from the server's table. */

import { chart } from "./chart.js";
import { el } from "./dom.js";

/** @typedef {{name: string, unit: string, better: string, group: string, meaning: string}} Metric */

const OTHER = "other";
/** @type {Record<string, string>} */
const BETTER = { up: "higher is better", down: "lower is better" };

/** Return the table's entry for a published name or its family (reward/PAGE). @param {Metric[]} known @param {string} name @returns {Metric} */
export function metric(known, name) {
  const family = name.includes("/") ? name.slice(0, name.indexOf("/") + 1) : null;
  const found = known.find((one) => (family === null ? one.name === name : one.name.startsWith(family)));
  return { ...(found ?? { unit: "", better: "", group: OTHER, meaning: "" }), name };
}

/** Return the metrics of each group in the order of the table; unknown ones come last. @param {Metric[]} known @param {string[]} names @returns {[string, Metric[]][]} */
export function grouped(known, names) {
  const all = names.map((name) => metric(known, name));
  const place = (/** @type {Metric} */ one) => known.findIndex((other) => other.name.split("/")[0] === one.name.split("/")[0]);
  return [...new Set([...known.map((one) => one.group), OTHER])]
    .map((group) => /** @type {[string, Metric[]]} */ ([group, all.filter((one) => one.group === group).sort((one, other) => place(one) - place(other))]))
    .filter(([, members]) => members.length);
}

/** Return a metric's unit and its better direction as text. @param {Metric} one */
function quantity(one) {
  return [one.unit, BETTER[one.better]].filter(Boolean).join(", ");
}

/** The value of a metric with its unit, and its meaning on hover. @param {Metric} one @param {string} value */
export function figure(one, value) {
  return el(".metric", { title: [one.meaning, BETTER[one.better]].filter(Boolean).join(" ") }, el("b", {}, value), el("span", {}, one.name, one.unit ? el("i", {}, `, ${one.unit}`) : null));
}

/**
 * The mean of each value and the known ones before it, within a window.
 * @param {(number | null)[]} values @param {number} window
 */
export function smooth(values, window) {
  return values.map((value, index) => {
    const known = values.slice(Math.max(0, index - window + 1), index + 1).filter((one) => one !== null);
    return value === null ? null : known.reduce((sum, one) => sum + one, 0) / known.length;
  });
}

/**
 * Append a plot of a metric over optimizer steps to `parent`; the result removes it.
 * @param {Element} parent @param {Metric} one @param {{x: number[], values: (number | null)[], unit?: string, smoothing?: number, pick?: (index: number) => void}} line
 */
export function curve(parent, one, line) {
  const window = line.smoothing ?? 1;
  /** @type {import("./chart.js").Series[]} */
  const series = window > 1
    ? [{ name: `mean of ${window}`, values: smooth(line.values, window), width: 2 }, { name: "each step", values: line.values, width: 0.6 }]
    : [{ values: line.values }];
  return chart(parent, { title: one.name, quantity: quantity(one), help: one.meaning, x: line.x, time: false, unit: line.unit ?? "optimizer step", pick: line.pick, series });
}
