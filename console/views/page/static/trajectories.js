// @ts-check
/** The table of finished trajectories, the newest first; the address holds its filter. */

import { csrf, get, scoped } from "./api.js";
import { exported } from "./archive.js";
import { el, fill, table } from "./dom.js";
import { clock, duration, number, short, versions } from "./format.js";

export const title = "Trajectories";
const OUTCOMES = ["success", "failure", "truncated", "invalid_action", "env_error", "policy_error", "lost", "cancelled"];
const PURPOSES = ["train", "eval", "demonstration", "explore", "check"];

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const body = el("div"), count = el("span.note");
  /** @param {string} name @param {string[]} values */
  const select = (name, values) => el("select", { "aria-label": name, onchange: (/** @type {any} */ event) => change(name, event.target.value) },
    el("option", { value: "" }, `any ${name}`), values.map((value) => el("option", { value, selected: params[name] === value }, value)));
  const task = el("input", { type: "search", placeholder: "task id", "aria-label": "task id", value: params.task_id ?? "", onchange: (/** @type {any} */ event) => change("task_id", event.target.value.trim()) });
  view.append(el(".bar", {}, el("h1", {}, title), count, el(".push"), task, select("outcome", OUTCOMES), select("purpose", PURPOSES)), body);

  /** @param {string} name @param {string} value */
  function change(name, value) {
    location.hash = app.href("trajectories", { ...params, cursor: "", [name]: value });
  }
  function filter() {
    return Object.fromEntries(["task_id", "outcome", "purpose", "group_id"].filter((name) => params[name]).map((name) => [name, params[name]]));
  }
  async function refresh() {
    const found = await get("trajectories", params);
    fill(count, `${number(found.total)} in all`);
    fill(body, table(found.rows, [
      ["finished", (row) => clock(row.finished_ms)],
      ["trajectory", (row) => app.link("trajectory", { id: row.trajectory_id }, short(row.trajectory_id), row.trajectory_id)],
      ["task", (row) => app.link("task", { id: row.task_id }, row.task_id)],
      ["outcome", (row) => el(`span.chip.${row.outcome}`, {}, row.outcome)],
      ["reward", (row) => number(row.reward)],
      ["steps", (row) => row.steps],
      ["took", (row) => duration(row.wall_ms)],
      ["versions", (row) => versions(row.version_min, row.version_max)],
      ["purpose", (row) => row.purpose],
      ["group", (row) => (row.purpose === "train" ? app.link("group", { id: row.group_id }, row.group_id) : "")],
    ], "no trajectory matches the filter yet"),
    exported ? null : el(".bar", {}, el("a", { href: `/export/trajectories?${scoped({ ...filter(), csrf })}`, download: "" }, "download all matches as JSON lines"), el("span.note", {}, "with steps and screens as Parquet: dart-streams data export")),
    el(".bar", {}, params.cursor ? app.link("trajectories", { ...params, cursor: "" }, "newest") : null,
      found.next ? app.link("trajectories", { ...params, cursor: found.next }, "older →") : null));
  }
  await refresh();
  return { refresh: params.cursor ? undefined : refresh };
}
