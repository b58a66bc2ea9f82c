// @ts-check
/** The tasks that were played in training. */

import { get } from "./api.js";
import { el, fill, table } from "./dom.js";
import { dots } from "./dots.js";
import { natural, percent } from "./format.js";

export const title = "Tasks";
/** @type {Record<string, (a: any, b: any) => number>} */
const ORDERS = { task: () => 0, success: (a, b) => (a.success_rate ?? -1) - (b.success_rate ?? -1), episodes: (a, b) => b.episodes - a.episodes };
const MOST = 500;

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const body = el("div"), count = el("span.note");
  const filter = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "part of a task's id", "aria-label": "part of a task's id", value: params.q ?? "", oninput: () => { app.remember({ q: filter.value }); draw(); } }));
  const order = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "order", onchange: () => { app.remember({ by: order.value }); draw(); } },
    Object.keys(ORDERS).map((name) => el("option", { value: name, selected: name === params.by }, `by ${name}`))));
  view.append(el(".bar", {}, el("h1", {}, title), count, el(".push"), filter, order), body);
  /** @type {any[]} */
  let rows = [];
  function draw() {
    const key = ORDERS[order.value], q = filter.value.toLowerCase();
    const shown = rows.filter((row) => row.task_id.toLowerCase().includes(q)).sort((a, b) => key(a, b) || natural(a.task_id, b.task_id));
    fill(count, `${shown.length} of ${rows.length}`);
    fill(body, table(shown.slice(0, MOST), [
      ["task", (row) => app.link("task", { id: row.task_id }, row.task_id)],
      ["episodes", (row) => row.episodes],
      ["success, all", (row) => percent(row.rewarded ? row.reward / row.rewarded : null)],
      ["in the window", (row) => percent(row.success_rate)],
      ["last ten", (row) => dots(row.recent)],
      ["groups curated", (row) => row.groups],
    ], "no training episode has finished yet"));
  }
  async function refresh() {
    rows = await get("tasks");
    draw();
  }
  await refresh();
  return { refresh };
}
