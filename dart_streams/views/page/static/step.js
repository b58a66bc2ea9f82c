// @ts-check
/** One optimiser step: its groups, down to their rollouts, and the version it made, up to who serves it. */

import { get } from "./api.js";
import { el, facts, fill, table } from "./dom.js";
import { clock, duration, number, short } from "./format.js";

export const title = "Train step";

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  /** @type {any} */
  let found = null;
  const body = el("div");
  view.append(body);
  async function refresh() {
    found = await get("step", { id: params.id });
    const { event, groups, served, imitated } = found;
    const workers = Object.entries(served).map(([worker, ms]) => `${worker} since ${clock(/** @type {number} */ (ms))}${found.published_ms ? `, ${duration(/** @type {number} */ (ms) - found.published_ms)} after` : ""}`);
    fill(body,
      el(".bar", {}, el("h1", {}, `Optimiser step ${event.train_step}`), el("span.chip", {}, `made v${event.version}`), el(".push"),
        found.previous_step === null ? null : app.link("step", { id: found.previous_step }, "← k"), found.next_step === null ? null : app.link("step", { id: found.next_step }, "j →")),
      facts([["trained", clock(event.at_ms)], ["trainer epoch", event.epoch], ["published", found.published_ms ? clock(found.published_ms) : "not published"],
        ["served by", workers.length ? workers.join(" · ") : "nobody"]]),
      el(".metrics", {}, Object.entries(event.metrics).map(([name, value]) => el(".metric", {}, el("b", {}, number(value, 4)), el("span", {}, name)))),
      el("h2", {}, `${groups.length} groups`),
      table(groups, [
        ["group", (/** @type {any} */ g) => app.link("group", { id: g.group_id }, g.group_id)],
        ["task", (g) => app.link("task", { id: g.task_id }, g.task_id)],
        ["rewards", (g) => el("span.dots", {}, g.rewards.map((/** @type {number} */ r) => { const dot = el("i", { title: number(r) }); dot.style.setProperty("--share", String(r)); return dot; }))],
        ["mean", (g) => number(g.mean)], ["actions trained on", (g) => g.trained_actions],
        ["sampled by", (g) => (g.version_min === null ? "–" : `v${g.version_min}+`)],
        ["behind", (g) => (g.version_min === null ? "–" : Math.max(0, event.version - 1 - g.version_min))],
      ], "its groups are not in the log any more"),
      imitated.length ? el("section", {}, el("h2", {}, `imitated ${imitated.length}`), el("p", {}, imitated.slice(0, 60).map((/** @type {string} */ id) => [app.link("trajectory", { id }, short(id), id), " "]).flat())) : null);
  }
  await refresh();
  return {
    refresh,
    key: (/** @type {KeyboardEvent} */ event) => {
      const to = event.key === "j" || event.key === "ArrowRight" ? found.next_step : event.key === "k" || event.key === "ArrowLeft" ? found.previous_step : null;
      if (to === null) return false;
      location.hash = app.href("step", { id: to });
      return true;
    },
  };
}
