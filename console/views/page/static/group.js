// @ts-check
/** A group: its rollouts side by side, step by step, with their advantages and selected steps. */

import { get } from "./api.js";
import { el, facts, fill } from "./dom.js";
import { brief, clock, count, number, short, versions } from "./format.js";
import { screen } from "./screen.js";

export const title = "Group";
const MAX_PLAYED = 12;

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const body = el("div"), head = el("div");
  view.append(head, body);
  let known = "";
  async function refresh() {
    const group = await get("group", { id: params.id });
    const now = JSON.stringify(group);
    if (now === known) return;
    known = now;
    fill(head, top(group));
    const rows = group.members.filter((/** @type {any} */ member) => member.trajectory_id).slice(0, MAX_PLAYED);
    const played = await Promise.all(rows.map((/** @type {any} */ member) => get("trajectory", { id: member.trajectory_id }).catch(() => null)));
    const largest = Math.max(1e-9, ...group.members.map((/** @type {any} */ member) => Math.abs(member.curated?.advantage ?? 0)));
    fill(body, el(".lanes", {}, group.members.map((/** @type {any} */ member) => lane(member, played[rows.indexOf(member)], largest))));
  }

  /** @param {any} group */
  function top(group) {
    const fate = group.equal ? el("span.chip.fault", {}, "zero variance") : null;
    return [el(".bar", {}, el("h1", {}, `Group ${group.group_id}`), el("span.chip", {}, group.fate || "under way"), fate,
      el("span.way", {}, app.link("task", { id: group.task_id }, group.task_id),
        group.train_steps.map((/** @type {number} */ n) => [" → ", app.link("step", { id: n }, `optimizer step ${n}`)]).flat()), el(".push"),
      app.link("trajectories", { group_id: group.group_id }, "as a table")),
    group.equal ? el("p.warn", {}, "All rewards are equal, so every advantage is 0 and the group is not trained on.") : null,
    facts([["reason for the size", group.why], ["mean reward", group.mean === null ? null : number(group.mean)], ["standard deviation", group.std === null ? null : number(group.std)],
      ["curated", group.curated_ms ? clock(group.curated_ms) : null], ["still to come", group.waiting ? count(group.waiting, "rollout") : null]])];
  }

  /** @param {any} member @param {any} played @param {number} largest */
  function lane(member, played, largest) {
    const { finished, curated } = member;
    const bar = el("span.advantage", { title: `advantage ${number(curated?.advantage)}` });
    const value = curated?.advantage ?? 0;
    const piece = el(value < 0 ? "i.minus" : "i.plus");
    piece.style.width = `${(Math.abs(value) / largest) * 50}%`;
    bar.append(piece);
    const name = member.trajectory_id ? app.link("trajectory", { id: member.trajectory_id }, short(member.trajectory_id), member.trajectory_id) : "not started";
    const left = el(".lane-head", {}, el("div", {}, name), el("div", {}, el(`span.chip.${member.state}`, {}, member.state),
      curated?.source === "pool" ? el("span.chip", {}, "from the pool") : null, member.attempt ? el("span.chip", {}, `attempt ${member.attempt + 1}`) : null),
    el("div.note", {}, `reward ${number(finished?.reward)} · ${versions(finished?.version_min, finished?.version_max)}`),
    curated ? el("div.note", {}, bar, ` ${number(curated.advantage)}`) : null);
    const steps = played?.steps ?? [];
    const cells = steps.map((/** @type {any} */ step, /** @type {number} */ index) => {
      const next = steps[index + 1], taken = next?.event.taken, end = step.event.end;
      const chosen = curated?.selected.includes(index), state = end ? end.kind : chosen ? "chosen" : taken ? "masked" : "";
      const note = end ? end.kind : taken ? brief(taken.action ?? taken.text) : "";
      return el(`a.cell.${state || "plain"}`, { href: app.href("trajectory", { id: member.trajectory_id, step: index }), title: taken ? `${chosen ? "trained on" : curated ? "left out" : ""}\n${note}` : note },
        end && !step.event.screenshot ? el(".screen.none", {}, "ended") : screen(step.event.screenshot, next?.points ?? []), el(".action", {}, note || "\u00a0"));
    });
    return el(".lane", {}, left, el(".cells", {}, cells.length ? cells : el("p.empty", {}, "no screens")));
  }
  await refresh();
  return { refresh };
}
