// @ts-check
/** The judging queue: training rollouts that a person should judge, the most doubtful ones first. */

import { get } from "./api.js";
import { el, fill, table } from "./dom.js";
import { clock, count, duration, number, short } from "./format.js";

export const title = "Judge";
const DISAGREE = ["judge", "people"];

/** @param {HTMLElement} view @param {Record<string, string>} _ @param {import("./app.js").App} app */
export async function open(view, _, app) {
  const body = el("div"), waiting = el("span.note");
  view.append(el(".bar", {}, el("h1", {}, "Judging queue"), waiting), el("p.note", {},
    "Training rollouts without a judgement. First come disagreements of judges and evaluator, then loops and stragglers, then the newest."), body);
  async function refresh() {
    const queue = await get("queue");
    fill(waiting, `${count(queue.waiting, "rollout")}, ${number(queue.doubtful)} doubtful`);
    fill(body, table(queue.rows, [
      ["doubts", (/** @type {any} */ row) => row.doubts.map((/** @type {any} */ one) => el("div", {}, el(DISAGREE.includes(one.kind) ? "span.chip.fault" : "span.chip", {}, one.kind), ` ${one.text}`))],
      ["trajectory", (row) => app.link("trajectory", { id: row.episode.trajectory_id, queue: "yes" }, short(row.episode.trajectory_id), row.episode.trajectory_id)],
      ["task", (row) => app.link("task", { id: row.episode.task_id }, row.episode.task_id)],
      ["outcome", (row) => el(`span.chip.${row.episode.outcome}`, {}, row.episode.outcome)],
      ["reward", (row) => number(row.episode.reward)],
      ["steps", (row) => row.episode.steps],
      ["took", (row) => duration(row.episode.wall_ms)],
      ["finished", (row) => clock(row.episode.finished_ms)],
    ], "no training rollout is without a judgement"),
    queue.waiting > queue.rows.length ? el("p.note", {}, `The first ${number(queue.rows.length)} are shown.`) : null);
  }
  await refresh();
  return { refresh };
}

/** The trajectory after another one in the queue; empty at its end. @param {string} id */
export async function following(id) {
  /** @type {string[]} */
  const ids = (await get("queue")).rows.map((/** @type {any} */ row) => row.episode.trajectory_id);
  return ids[ids.indexOf(id) + 1] ?? "";
}
