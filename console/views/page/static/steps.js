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
/** Choices of the number of steps in a moving mean. */
const SMOOTHINGS = [1, 5, 20, 50];

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const plots = el("div"), body = el("div");
  const filter = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "metrics (regular expression)", "aria-label": "metrics by a regular expression", value: params.q ?? "", oninput: () => { app.remember({ q: filter.value }); draw(); } }));
  const smoothing = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "smoothing", onchange: () => { app.remember({ smooth: smoothing.value }); draw(); } },
    SMOOTHINGS.map((steps) => el("option", { value: steps, selected: String(steps) === params.smooth }, steps > 1 ? `mean of ${steps} steps` : "no smoothing"))));
  const choices = el(".choices"), chosen = new Set((params.m ?? "").split(",").filter(Boolean));
  const picker = /** @type {HTMLDetailsElement} */ (el("details.picker", {}, el("summary", {}, "choose metrics"), choices));
  view.append(el(".bar", {}, el("h1", {}, title), el(".push"), smoothing, filter), picker, plots, body);
  const { metrics, headlines } = await get("metrics");
  /** @type {any} */
  let found = null;
  /** @type {Set<string>} */
  const opened = new Set(OPENED);
  /** @type {(() => void)[]} */
  let closers = [];
  /** Draw the list of metrics, with those that are chosen. */
  function drawChoices() {
    const toggle = (/** @type {string} */ name, /** @type {boolean} */ on) => {
      if (on) chosen.add(name);
      else chosen.delete(name);
      app.remember({ m: [...chosen].join(",") });
      draw();
    };
    fill(choices, el("button", { type: "button", onclick: () => { chosen.clear(); app.remember({ m: "" }); drawChoices(); draw(); } }, "all metrics"),
      grouped(metrics, Object.keys(found.metrics)).map(([group, members]) => el("fieldset", {}, el("legend", {}, group), members.map((one) => el("label", { title: one.meaning },
        el("input", { type: "checkbox", value: one.name, checked: chosen.has(one.name), onchange: (/** @type {any} */ event) => toggle(one.name, event.target.checked) }), one.name, one.unit ? el("i", {}, `, ${one.unit}`) : null)))));
  }
  function names() {
    const all = Object.keys(found.metrics).filter((name) => !chosen.size || chosen.has(name));
    try {
      return filter.value ? all.filter((name) => new RegExp(filter.value, "i").test(name)) : all;
    } catch { return []; }
  }
  /** A group whose plots are drawn at its first opening. @param {string} name @param {import("./metrics.js").Metric[]} members */
  function group(name, members) {
    const charts = el(".charts"), wanted = Boolean(filter.value) || chosen.size > 0 || opened.has(name);
    const drawn = () => {
      if (charts.childElementCount || !fold.isConnected) return;
      for (const one of members.slice(0, MOST_PLOTS)) {
        closers.push(curve(charts, one, { x: found.steps, values: found.metrics[one.name], smoothing: Number(smoothing.value), pick: (index) => { location.hash = app.href("step", { id: found.steps[index] }); } }));
      }
    };
    const fold = /** @type {HTMLDetailsElement} */ (el("details.metric-group", { open: wanted, ontoggle: () => {
      if (fold.open) drawn();
      if (!filter.value && !chosen.size) fold.open ? opened.add(name) : opened.delete(name);
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
    if (found.steps.length !== length) {
      if (!picker.open || !choices.childElementCount) drawChoices();
      draw();
    }
    length = found.steps.length;
  }
  await refresh();
  return { refresh, close: () => closers.forEach((close) => close()) };
}
