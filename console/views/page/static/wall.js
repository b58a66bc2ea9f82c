// @ts-check
/** Every slot, as tiles with pictures or, for more than 64 slots, as a carpet of cells. */

import { get } from "./api.js";
import { Carpet } from "./carpet.js";
import { el, fill } from "./dom.js";
import { brief, duration } from "./format.js";
import { address, marker, picture } from "./screen.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {{slot: string, state: string, at_ms: number, trajectory_id: string, task_id: string, purpose: string, step: number, max_steps: number, screenshot: string, width: number, height: number, action: string, person?: boolean, points: {x: number, y: number}[], outcome: string | null, reward: number | null, reason: string}} Slot */

export const title = "Wall";
const MOST_TILES = 64;
const EMPTY = { at_ms: 0, trajectory_id: "", task_id: "", purpose: "train", step: 0, max_steps: 0, screenshot: "", width: 0, height: 0, action: "", points: [], outcome: null, reward: null, reason: "" };
/** @type {Record<string, string>} */
export const WORDS = { free: "free", waits: "thinks", acts: "acts", ended: "ended" };

/** Labels of purposes other than training. @type {Record<string, string>} */
const PURPOSES = { train: "", demonstration: "demo", eval: "eval", explore: "explore", check: "check" };

/** The address at which a person takes a rollout over. @param {string} id */
export const takeOver = (id) => `/play.html?trajectory=${encodeURIComponent(id)}`;

/** The style class of a slot's state. @param {Slot} slot */
export function look(slot) {
  if (slot.state !== "ended") return slot.state;
  if (slot.outcome === "success") return "success";
  return slot.outcome?.endsWith("_error") || slot.outcome === "cancelled" ? "fault" : "failure";
}

/** An age, with one decimal below a second. @param {number} ms */
function age(ms) {
  return ms < 1000 ? `${(Math.max(0, ms) / 1000).toFixed(1)} s` : duration(ms);
}

class Tile {
  /** @param {App} app */
  constructor(app) {
    this.app = app;
    this.image = picture();
    this.frame = el(".screen", {}, this.image);
    this.name = el(".name");
    this.state = el("span.chip");
    this.age = el("span.age");
    this.action = el(".action");
    this.link = /** @type {HTMLAnchorElement} */ (el("a.tile", {}, this.frame,
      el(".caption", {}, this.name, el(".line", {}, this.state, this.age), this.action)));
    this.take = /** @type {HTMLAnchorElement} */ (el("a.take", { hidden: true }, "Take over"));
    this.root = el(".slot", {}, this.link, this.take);
    /** @type {Slot | null} */
    this.slot = null;
  }

  /** @param {Slot} slot */
  show(slot) {
    const before = this.slot;
    this.slot = slot;
    this.link.className = `tile ${look(slot)}`;
    this.link.href = slot.trajectory_id ? this.app.href("trajectory", { id: slot.trajectory_id }) : "#/wall";
    this.link.title = [slot.slot, slot.task_id, slot.trajectory_id, slot.reason].filter(Boolean).join("\n");
    fill(this.name, slot.task_id.split("/").pop() || slot.slot);
    this.take.hidden = !this.app.rights.feedback || slot.purpose !== "train" || !["waits", "acts"].includes(slot.state);
    this.take.href = takeOver(slot.trajectory_id);
    this.take.setAttribute("aria-label", `Take over ${slot.task_id}`);
    fill(this.state, slot.state === "ended" ? `${slot.outcome ?? "ended"}` : slot.person && slot.state === "waits" ? "person" : WORDS[slot.state],
      slot.step || slot.max_steps ? ` ${slot.step}${slot.max_steps ? `/${slot.max_steps}` : ""}` : "");
    const purpose = PURPOSES[slot.purpose] ?? slot.purpose;
    fill(this.action, purpose ? el("b", {}, `${purpose} `) : "", slot.action ? brief(slot.action) : "\u00a0");
    if (slot.screenshot && slot.screenshot !== before?.screenshot) {
      this.image.src = address(slot.screenshot);
      this.frame.style.aspectRatio = `${slot.width || 4} / ${slot.height || 3}`;
    }
    this.frame.classList.toggle("none", !slot.screenshot);
    this.frame.querySelector("svg")?.remove();
    if (slot.points.length) this.frame.append(marker({ sha256: "", width: slot.width, height: slot.height }, slot.points));
    this.tick();
  }

  tick() {
    const slot = this.slot;
    fill(this.age, slot?.at_ms ? age(this.app.now() - slot.at_ms) : "");
  }
}

/** @param {HTMLElement} view @param {Record<string, string>} params @param {App} app */
export async function open(view, params, app) {
  /** @type {Map<string, Slot>} */
  const slots = new Map();
  /** @type {Map<string, Tile>} */
  const tiles = new Map();
  const grid = el(".wall"), legend = el(".legend"), filter = /** @type {HTMLInputElement} */ (el("input", {
    type: "search", placeholder: "task, host or state", value: params.q ?? "", "aria-label": "filter",
    oninput: () => { app.remember({ q: filter.value }); layout(); },
  }));
  const carpet = new Carpet(app);
  const mode = /** @type {HTMLSelectElement} */ (el("select", { "aria-label": "view", onchange: () => { app.remember({ as: mode.value }); layout(); } },
    [["", "by number"], ["tiles", "pictures"], ["carpet", "carpet"]].map(([value, text]) => el("option", { value, selected: value === (params.as ?? "") }, text))));
  view.append(el(".bar", {}, el("h1", {}, "Wall"), legend, el(".push"), filter, mode), grid, carpet.root);

  const asCarpet = () => mode.value === "carpet" || (mode.value !== "tiles" && slots.size > MOST_TILES);
  /** @param {Slot} slot */
  const wanted = (slot) => {
    const q = filter.value.trim().toLowerCase();
    return !q || [slot.task_id, slot.slot, WORDS[slot.state], slot.outcome, slot.purpose].some((text) => text?.toLowerCase().includes(q));
  };
  function layout() {
    const shown = [...slots.values()].filter(wanted);
    grid.hidden = asCarpet();
    carpet.root.hidden = !asCarpet();
    if (asCarpet()) carpet.show(shown);
    else {
      for (const slot of shown) tile(slot);
      const roots = shown.map((slot) => /** @type {Tile} */ (tiles.get(slot.slot)).root);
      if (roots.length !== grid.childElementCount || roots.some((root, index) => grid.children[index] !== root)) grid.replaceChildren(...roots);
      if (!roots.length) fill(grid, el("p.empty", {}, slots.size ? "no slot matches the filter" : "no environment has published a screen yet"));
    }
    const counts = new Map();
    for (const slot of slots.values()) counts.set(look(slot), (counts.get(look(slot)) ?? 0) + 1);
    fill(legend, [...counts].sort().map(([name, count]) => el(`span.key.${name}`, {}, `${count} ${WORDS[name] ?? name}`)));
  }
  /** @param {Slot} slot */
  function tile(slot) {
    let known = tiles.get(slot.slot);
    if (!known) tiles.set(slot.slot, (known = new Tile(app)));
    if (known.slot !== slot) known.show(slot);
  }
  /** @param {any[]} changed */
  function take(changed) {
    for (const one of changed) slots.set(one.slot, { ...EMPTY, ...one });
    if (changed.length) layout();
  }
  take(await get("wall"));
  layout();
  const ticking = setInterval(() => { if (!grid.hidden) for (const known of tiles.values()) known.tick(); }, 500);
  return {
    watch: { watch: "wall" },
    update: (/** @type {any} */ message) => take(message.slots ?? []),
    close: () => { clearInterval(ticking); carpet.close(); },
  };
}
