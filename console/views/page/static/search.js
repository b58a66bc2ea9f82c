// @ts-check
/** Results of a search: tasks, trajectories, and texts of instructions, answers and actions. */

import { get } from "./api.js";
import { el, fill, table } from "./dom.js";
import { clock, number, short } from "./format.js";

export const title = "Search";

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const query = params.q ?? "", body = el("div");
  view.append(el(".bar", {}, el("h1", {}, `Search: ${query}`)), body);
  const found = await get("search", { id: query });
  const all = app.link("trajectories", {}, "the table of all trajectories");
  fill(body,
    el("h2", {}, `Tasks (${number(found.tasks.length)})`),
    found.tasks.length ? el("ul.found", {}, found.tasks.map((/** @type {string} */ id) => el("li", {}, app.link("task", { id }, id)))) : el("p.empty", {}, "no task has these words in its id"),
    el("h2", {}, `Texts (${number(found.texts.length)})`),
    table(found.texts, [
      ["in", (/** @type {any} */ one) => one.place],
      ["text", (one) => app.link("trajectory", { id: one.trajectory_id, step: one.step }, one.excerpt)],
      ["task", (one) => app.link("task", { id: one.task_id }, one.task_id)],
    ], "no instruction, answer or action contains this text"),
    el("h2", {}, `Trajectories (${number(found.matching)})`),
    found.matching > found.trajectories.length ? el("p.note", {}, `The newest ${number(found.trajectories.length)} are shown; see also `, all, ".") : null,
    table(found.trajectories, [
      ["finished", (/** @type {any} */ row) => clock(row.finished_ms)],
      ["trajectory", (row) => app.link("trajectory", { id: row.trajectory_id }, short(row.trajectory_id), row.trajectory_id)],
      ["task", (row) => app.link("task", { id: row.task_id }, row.task_id)],
      ["outcome", (row) => el(`span.chip.${row.outcome}`, {}, row.outcome)],
      ["reward", (row) => number(row.reward)],
    ], "no trajectory has these words in its id, task, group, outcome or purpose"),
    el("p.note", {}, app.link("log", { q: query }, "Search the records of a topic"), " for any other text."));
  return {};
}
