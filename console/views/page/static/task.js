// @ts-check
/** A task: success over time, its budgets with their reasons, and the fate of each group. */

import { get } from "./api.js";
import { chart } from "./chart.js";
import { el, facts, fill, table } from "./dom.js";
import { clock, count, percent, short } from "./format.js";

export const title = "Task";
const WINDOW = 10;

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const head = el("div"), plots = el(".charts"), body = el("div");
  view.append(head, plots, body);
  let close = () => {}, known = -1;
  async function refresh() {
    const found = await get("task", { id: params.id });
    if (found.trajectory_ids.length === known) return;
    known = found.trajectory_ids.length;
    const { row } = found;
    fill(head, el(".bar", {}, el("h1", {}, found.task_id), el(".push"), app.link("compare", { task: found.task_id }, "first and newest episode side by side"), " · ", app.link("trajectories", { task_id: found.task_id }, "all trajectories")),
      facts([["success in the window", percent(row.success_rate)], ["next group", `${count(row.rollouts, "rollout")}${row.max_steps ? ` of at most ${count(row.max_steps, "step")}` : ""}`],
        ["reason", row.why], ["groups", `${row.groups}: ${row.curated} curated, ${row.dropped} dropped`], ["successes in the pool", row.pool]]));
    close();
    plots.replaceChildren();
    close = plot(found);
    fill(body, el("h2", {}, "Groups"), table([...found.groups].reverse(), [
      ["group", (/** @type {any} */ g) => app.link("group", { id: g.group_id }, g.group_id)],
      ["rollouts", (g) => g.rollouts], ["max steps", (g) => count(g.max_steps, "step")],
      ["outcomes", (g) => Object.entries(g.outcomes).map(([name, count]) => el(`span.chip.${name}`, {}, `${count} ${name}`))],
      ["fate", (g) => el(g.fate.startsWith("curated") ? "span.chip.success" : g.fate.startsWith("dropped") ? "span.chip.fault" : "span.chip", {}, g.fate)],
      ["reason", (g) => g.why],
    ], "no group yet"), el("h2", {}, "Budgets"), table([...found.budgets].reverse(), [
      ["at", (/** @type {any} */ b) => clock(b.at_ms)], ["rollouts", ({ budget }) => budget.rollouts], ["max steps", ({ budget }) => count(budget.max_steps, "step")], ["reason", ({ budget }) => budget.reason],
      ["after", ({ budget: { cause } }) => app.link("trajectory", { id: cause.trajectory_id }, short(cause.trajectory_id), cause.trajectory_id)],
    ], "no budget yet"));
  }

  /** @param {any} found */
  function plot(found) {
    const chosen = found.rewards.map((/** @type {any} */ _, /** @type {number} */ i) => i).filter((/** @type {number} */ i) => found.rewards[i] !== null && found.purposes[i] === "train");
    if (chosen.length < 2) return () => {};
    const values = chosen.map((/** @type {number} */ i) => found.rewards[i]);
    const moving = values.map((/** @type {number} */ _, /** @type {number} */ i) => {
      const part = values.slice(Math.max(0, i - WINDOW + 1), i + 1);
      return part.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / part.length;
    });
    return chart(plots, {
      title: `reward of each training episode, and the mean of the last ${WINDOW}`, x: chosen.map((/** @type {number} */ i) => found.at_ms[i] / 1000), time: true, range: [-0.05, 1.05], wide: true,
      series: [{ name: "episode", values, points: true }, { name: `mean of ${WINDOW}`, values: moving }],
      pick: (index) => { location.hash = app.href("trajectory", { id: found.trajectory_ids[chosen[index]] }); },
    });
  }
  await refresh();
  return { refresh, close: () => close() };
}
