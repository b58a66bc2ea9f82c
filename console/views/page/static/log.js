// @ts-check
/** Records of any topic with a full-text search; dead letters with their reasons. */

import { csrf, get, scoped } from "./api.js";
import { el, fill, table } from "./dom.js";
import { clock, number } from "./format.js";

export const title = "Log";
const TOPICS = ["observations", "trajectories", "rollout-orders", "actions", "action-requests", "task-difficulty", "rollout-budgets", "curated", "trained", "weights", "weights-serving", "curation-log"];
const DEAD = "dead letters";

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const topic = params.topic || "trajectories";
  const body = el("div"), count = el("span.note");
  const pick = el("select", { "aria-label": "topic", onchange: (/** @type {any} */ event) => { location.hash = app.href("log", { topic: event.target.value, q: params.q }); } },
    [...TOPICS, DEAD].map((name) => el("option", { value: name, selected: name === topic }, name)));
  const search = /** @type {HTMLInputElement} */ (el("input.wide", { type: "search", placeholder: "any text in a record, or an id", "aria-label": "text or id", value: params.q ?? "" }));
  const form = el("form", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); location.hash = app.href("log", { topic, q: search.value.trim() }); } }, search);
  view.append(el(".bar", {}, el("h1", {}, title), pick, form, count), params.said ? el("p.warn", {}, `${params.said} Searched the records of ${topic} for it.`) : "", body);
  if (topic === DEAD) await letters();
  else await records();

  async function records() {
    const found = await get("log", { topic, q: params.q });
    fill(count, `${number(found.length)} ${params.q ? "matches" : "records"}, the newest first · `, el("a", { href: `/export/log?${scoped({ topic, q: params.q ?? "", csrf })}`, download: "" }, "as JSON lines"));
    fill(body, found.length ? el(".records", {}, found.map(row)) : el("p.empty", {}, params.q ? "no record contains this text" : "the topic is empty"));
  }

  /** @param {any} record */
  function row(record) {
    const inside = el("div");
    return el("details.record", { ontoggle: () => { if (!inside.childElementCount) fill(inside, whole(record)); } },
      el("summary", {}, el("span.place", {}, `${record.partition}@${record.offset}`), el("span.at", {}, clock(record.at_ms)), el("b", {}, record.key), el("span.value", {}, record.value.slice(0, 300))), inside);
  }

  /** @param {any} record */
  function whole(record) {
    let text = record.value, event = null;
    try { event = JSON.parse(text); text = JSON.stringify(event, null, 1); } catch { /* not JSON */ }
    const ways = event && typeof event === "object" ? [
      event.trajectory_id ? app.link("trajectory", { id: event.trajectory_id }, "trajectory") : null, event.group_id ? app.link("group", { id: event.group_id }, "group") : null,
      event.task_id ? app.link("task", { id: event.task_id }, "task") : null, event.train_step !== undefined ? app.link("step", { id: event.train_step }, "optimizer step") : null] : [];
    return [el("p.ways", {}, ways), el("pre.raw", { tabindex: 0 }, text), el("p.note", {}, `${number(record.size)} bytes · ${Object.entries(record.headers).map(([name, value]) => `${name}: ${value}`).join(" · ")}`)];
  }

  async function letters() {
    const all = await get("dead-letters");
    fill(count, all.length ? "" : "none");
    fill(body, table(all, [["topic", (/** @type {any} */ one) => el("button", { type: "button", onclick: () => show(one.topic) }, one.topic)], ["letters", (one) => one.letters], ["newest", (one) => clock(one.newest_ms)],
      ["reasons", (one) => Object.entries(one.reasons).map(([reason, times]) => el("p", {}, `${times} × ${reason}`))]], "no dead letters: every record was decoded"));
  }

  /** @param {string} name */
  async function show(name) {
    const found = await get("dead-letters", { topic: name });
    body.querySelector(".letters")?.remove();
    body.append(el(".letters", {}, table(found, [["place", (/** @type {any} */ one) => one.place], ["from", (one) => one.came_from], ["tries", (one) => one.tries], ["reason", (one) => one.why], ["key", (one) => one.key], ["record", (one) => el("pre.raw", { tabindex: 0 }, one.value)]])));
  }
  return {};
}
