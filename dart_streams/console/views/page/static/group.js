// @ts-check
/** A group: its rollouts side by side, step by step, with what curation made of each. */

import { get } from "./api.js";
import { el, facts, fill } from "./dom.js";
import { brief, clock, count, number, short, versions } from "./format.js";
import { screen } from "./screen.js";

export const title = "Group";
const AT_ONCE = 12;

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
    const rows = group.members.filter((/** @type {any} */ member) => member.trajectory_id).slice(0, AT_ONCE);
    const played = await Promise.all(rows.map((/** @type {any} */ member) => get("trajectory", { id: member.trajectory_id }).catch(() => null)));
    const largest = Math.max(1e-9, ...group.members.map((/** @type {any} */ member) => Math.abs(member.advantage ?? 0)));
    fill(body, el(".lanes", {}, group.members.map((/** @type {any} */ member) => lane(member, played[rows.indexOf(member)], largest))));
  }

  /** @param {any} group */
  function top(group) {
    const fate = group.equal ? el("span.chip.fault", {}, "zero variance") : null;
    return [el(".bar", {}, el("h1", {}, `Group ${group.group_id}`), el("span.chip", {}, group.fate || "under way"), fate,
      el("span.way", {}, app.link("task", { id: group.task_id }, group.task_id),
        group.train_steps.map((/** @type {number} */ n) => [" → ", app.link("step", { id: n }, `optimizer step ${n}`)]).flat()), el(".push"),
      app.link("trajectories", { group_id: group.group_id }, "as a table")),
    group.equal ? el("p.warn", {}, "All rewards are equal, so every advantage is 0: the group teaches nothing.") : null,
    facts([["why so many", group.why], ["mean reward", group.mean === null ? null : number(group.mean)], ["standard deviation", group.std === null ? null : number(group.std)],
      ["curated", group.curated_ms ? clock(group.curated_ms) : null], ["still to come", group.waiting ? count(group.waiting, "rollout") : null]])];
  }

  /** @param {any} member @param {any} played @param {number} largest */
  function lane(member, played, largest) {
    const bar = el("span.advantage", { title: `advantage ${number(member.advantage)}` });
    const value = member.advantage ?? 0;
    const piece = el(value < 0 ? "i.minus" : "i.plus");
    piece.style.width = `${(Math.abs(value) / largest) * 50}%`;
    bar.append(piece);
    const name = member.trajectory_id ? app.link("trajectory", { id: member.trajectory_id }, short(member.trajectory_id), member.trajectory_id) : "not begun";
    const left = el(".lane-head", {}, el("div", {}, name), el("div", {}, el(`span.chip.${member.state}`, {}, member.state),
      member.source === "pool" ? el("span.chip", {}, "from the pool") : null, member.attempt ? el("span.chip", {}, `attempt ${member.attempt + 1}`) : null),
    el("div.note", {}, `reward ${number(member.reward)} · ${versions(member.version_min, member.version_max)}`),
    member.advantage === null ? null : el("div.note", {}, bar, ` ${number(member.advantage)}`));
    const steps = played?.steps ?? [];
    const cells = steps.map((/** @type {any} */ step, /** @type {number} */ index) => {
      const next = steps[index + 1], taken = next?.event.taken, end = step.event.end;
      const chosen = member.selected.includes(index), state = end ? end.kind : chosen ? "chosen" : taken ? "masked" : "";
      const note = end ? end.kind : taken ? brief(taken.action ?? taken.text) : "";
      return el(`a.cell.${state || "plain"}`, { href: app.href("trajectory", { id: member.trajectory_id, step: index }), title: taken ? `${chosen ? "trained on" : member.advantage === null ? "" : "left out"}\n${note}` : note },
        screen(step.event.screenshot, next?.points ?? []), el(".action", {}, note || "\u00a0"));
    });
    return el(".lane", {}, left, el(".cells", {}, cells.length ? cells : el("p.empty", {}, "no screens")));
  }
  await refresh();
  return { refresh };
}
