// @ts-check
/** All optimizer steps: plots of their metrics in groups, and a table. */

import { get } from "./api.js";
import { el, fill, table } from "./dom.js";
import { clock, number } from "./format.js";
import { curve, grouped } from "./metrics.js";

export const title = "Train steps";
const OPENED = ["learning", "KL and clipping"];
/** Maximum number of plots of a group: it may have one metric per page. */
const MOST_PLOTS = 24;

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const plots = el("div"), body = el("div");
  const filter = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "metrics (regular expression)", value: params.q ?? "", oninput: () => { app.remember({ q: filter.value }); draw(); } }));
  view.append(el(".bar", {}, el("h1", {}, title), el(".push"), filter), plots, body);
  const { metrics, headlines } = await get("metrics");
  /** @type {any} */
  let found = null;
  /** @type {Set<string>} */
  const opened = new Set(OPENED);
  /** @type {(() => void)[]} */
  let closers = [];
  function names() {
    const all = Object.keys(found.metrics);
    try {
      return filter.value ? all.filter((name) => new RegExp(filter.value, "i").test(name)) : all;
    } catch { return []; }
  }
  /** A group whose plots are drawn at its first opening. @param {string} name @param {import("./metrics.js").Metric[]} members */
  function group(name, members) {
    const charts = el(".charts"), wanted = Boolean(filter.value) || opened.has(name);
    const drawn = () => {
      if (charts.childElementCount || !fold.isConnected) return;
      for (const one of members.slice(0, MOST_PLOTS)) {
        closers.push(curve(charts, one, { x: found.steps, values: found.metrics[one.name], pick: (index) => { location.hash = app.href("step", { id: found.steps[index] }); } }));
      }
    };
    const fold = /** @type {HTMLDetailsElement} */ (el("details.metric-group", { open: wanted, ontoggle: () => {
      if (fold.open) drawn();
      if (!filter.value) fold.open ? opened.add(name) : opened.delete(name);
    } }, el("summary", {}, el("b", {}, name), ` ${members.length > MOST_PLOTS ? `${MOST_PLOTS} of ${members.length}` : members.length}`), charts));
    plots.append(fold);
    if (wanted) drawn();
  }
  function draw() {
    closers.forEach((close) => close());
    closers = [];
    plots.replaceChildren();
    if (found.steps.length > 1) grouped(metrics, names()).forEach(([name, members]) => group(name, members));
    const rows = found.steps.map((/** @type {number} */ _, /** @type {number} */ index) => index).reverse();
    fill(body, table(rows.slice(0, 500), [
      ["step", (i) => app.link("step", { id: found.steps[i] }, String(found.steps[i]))],
      ["at", (i) => clock(found.at_ms[i])], ["version", (i) => `v${found.versions[i]}`], ["groups", (i) => found.groups[i]],
      ...headlines.filter((/** @type {string} */ name) => name in found.metrics).map((/** @type {string} */ name) => /** @type {[string, (i: number) => string]} */ ([name, (i) => number(found.metrics[name][i])])),
    ], "the trainer has made no step yet"));
  }
  let length = -1;
  async function refresh() {
    found = await get("steps");
    if (found.steps.length !== length) draw();
    length = found.steps.length;
  }
  await refresh();
  return { refresh, close: () => closers.forEach((close) => close()) };
}
