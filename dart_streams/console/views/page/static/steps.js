// @ts-check
/** All optimiser steps: their metrics as plots, and the steps as a table. */

import { get } from "./api.js";
import { chart } from "./chart.js";
import { el, fill, table } from "./dom.js";
import { clock, number } from "./format.js";

export const title = "Train steps";
const FIRST = ["reward", "loss", "entropy", "grad_norm", "kl", "clip_fraction", "ratio_mean", "tokens"];
const TABLED = ["reward", "loss", "entropy", "grad_norm"];

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const plots = el(".charts"), body = el("div");
  const filter = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "metrics, as a pattern", value: params.q ?? "", oninput: () => { app.remember({ q: filter.value }); draw(); } }));
  view.append(el(".bar", {}, el("h1", {}, title), el(".push"), filter), plots, body);
  /** @type {any} */
  let found = null;
  /** @type {(() => void)[]} */
  let closers = [];
  function names() {
    const all = Object.keys(found.metrics);
    try {
      if (filter.value) return all.filter((name) => new RegExp(filter.value, "i").test(name));
    } catch { return []; }
    const known = FIRST.filter((name) => all.includes(name));
    return (known.length ? known : all).slice(0, 6);
  }
  function draw() {
    closers.forEach((close) => close());
    closers = [];
    plots.replaceChildren();
    if (found.steps.length > 1) {
      for (const name of names().slice(0, 24)) {
        closers.push(chart(plots, { title: name, x: found.steps, time: false, series: [{ values: found.metrics[name] }],
          pick: (index) => { location.hash = app.href("step", { id: found.steps[index] }); } }));
      }
    }
    const rows = found.steps.map((/** @type {number} */ _, /** @type {number} */ index) => index).reverse();
    fill(body, table(rows.slice(0, 500), [
      ["step", (i) => app.link("step", { id: found.steps[i] }, String(found.steps[i]))],
      ["at", (i) => clock(found.at_ms[i])], ["version", (i) => `v${found.versions[i]}`], ["groups", (i) => found.groups[i]],
      ...TABLED.filter((name) => name in found.metrics).map((name) => /** @type {[string, (i: number) => string]} */ ([name, (i) => number(found.metrics[name][i])])),
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
