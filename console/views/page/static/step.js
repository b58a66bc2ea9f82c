// @ts-check
/** An optimizer step: its metrics, its groups and the workers that serve its version. */

import { get } from "./api.js";
import { el, facts, fill, table } from "./dom.js";
import { dots } from "./dots.js";
import { brief, clock, count, duration, number, percent, short } from "./format.js";
import { figure, grouped } from "./metrics.js";
import { screen } from "./screen.js";
import { tokenText } from "./tokens.js";

export const title = "Train step";

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  /** @type {any} */
  let found = null;
  const body = el("div"), { metrics } = await get("metrics");
  view.append(body);
  async function refresh() {
    found = await get("step", { id: params.id });
    const { event, groups, served, imitated } = found;
    const workers = Object.entries(served).map(([worker, ms]) => `${worker} since ${clock(/** @type {number} */ (ms))}${found.published_ms ? `, ${duration(/** @type {number} */ (ms) - found.published_ms)} after` : ""}`);
    fill(body,
      el(".bar", {}, el("h1", {}, `Optimizer step ${event.train_step}`), el("span.chip", {}, `v${event.version}`), el(".push"),
        found.previous_step === null ? null : app.link("step", { id: found.previous_step }, "← k"), found.next_step === null ? null : app.link("step", { id: found.next_step }, "j →")),
      facts([["trained", clock(event.at_ms)], ["trainer epoch", event.epoch], ["published", found.published_ms ? clock(found.published_ms) : "not published"],
        ["served by", workers.length ? workers.join(" · ") : "no worker"]]),
      grouped(metrics, Object.keys(event.metrics)).map(([group, members]) => el("section", {}, el("h2", {}, group), el(".metrics", {}, members.map((one) => figure(one, number(event.metrics[one.name], 4)))))),
      el("h2", {}, count(groups.length, "group")),
      table(groups, [
        ["group", (/** @type {any} */ g) => app.link("group", { id: g.group_id }, g.group_id)],
        ["task", (g) => app.link("task", { id: g.task_id }, g.task_id)],
        ["rewards", (g) => dots(g.rewards)],
        ["mean", (g) => number(g.mean)], ["actions trained on", (g) => g.trained_actions],
        ["sampled by", (g) => (g.version_min === null ? "–" : `v${g.version_min}+`)],
        ["staleness", (g) => (g.version_min === null ? "–" : Math.max(0, event.version - 1 - g.version_min))],
      ], "the log no longer has its groups"),
      event.top_tokens?.length ? el("section.part-of-report", {}, el("h2", {}, "top tokens"), el("p.note", {}, "Tokens with the largest shares of the gradient, or with ratios of trainer to engine farthest from 1. A click shows the token on its screen."), await topTokens(event, app)) : null,
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

/** The top tokens with the screens that they were decided on. @param {any} event @param {import("./app.js").App} app */
async function topTokens(event, app) {
  /** @type {string[]} */
  const ids = [...new Set(/** @type {string[]} */ (event.top_tokens.map((/** @type {any} */ one) => one.trajectory_id)))];
  const found = await Promise.all(ids.map((id) => get("trajectory", { id }).catch(() => null)));
  return el(".lanes", {}, event.top_tokens.map((/** @type {any} */ one) => {
    const steps = found[ids.indexOf(one.trajectory_id)]?.steps ?? [], before = steps[one.step], taken = steps[one.step + 1]?.event.taken;
    const version = taken?.versions.find((/** @type {any} */ span) => span.start <= one.index && one.index < span.end)?.version;
    const href = app.href("trajectory", { id: one.trajectory_id, step: one.step, token: one.index });
    return el(".lane.token-lane", {}, el("a.cell", { href, "aria-label": `screen of action ${one.step + 1}` }, before ? screen(before.event.screenshot, steps[one.step + 1]?.points ?? []) : el(".screen.none", {}, "not available")),
      el("div", {}, el("div", {}, el("a.token", { href, title: `token ${one.token}` }, tokenText(steps[one.step + 1]?.texts?.[one.index], one.token)), `, number ${one.index} of action ${one.step + 1} of `, app.link("trajectory", { id: one.trajectory_id }, short(one.trajectory_id), one.trajectory_id)),
        taken ? el(".action", { title: brief(taken.action ?? taken.text) }, brief(taken.action ?? taken.text)) : null,
        facts([["share of the gradient", percentOf(one.gradient_share)], ["trainer to engine", number(Math.exp(one.log_ratio), 4)], ["importance weight", number(one.weight, 4)], ["probability", number(Math.exp(one.logprob), 3)],
          ["sampled by", version === undefined ? null : `v${version}`], ["trained into", `v${event.version}`]])));
  }));
}

/** @param {number} share */
function percentOf(share) {
  return share >= 0.1 ? percent(share) : `${(share * 100).toPrecision(2)} %`;
}
