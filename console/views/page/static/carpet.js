// @ts-check
/** One cell per slot on a canvas, colored by state; the slot under the pointer shows its screen. */

import { el, fill } from "./dom.js";
import { brief, duration } from "./format.js";
import { screen } from "./screen.js";
import { WORDS, look } from "./wall.js";

/** @typedef {import("./wall.js").Slot} Slot */

const CELL = 18, GAP = 3;

export class Carpet {
  /** @param {import("./app.js").App} app */
  constructor(app) {
    this.app = app;
    /** @type {Slot[]} */
    this.slots = [];
    this.columns = 1;
    this.canvas = /** @type {HTMLCanvasElement} */ (el("canvas.carpet", { role: "img", "aria-label": "slots by state; the view of pictures has them as links" }));
    this.card = el("a.tile.peek", { hidden: true });
    this.root = el("div", { hidden: true }, el(".carpet-row", {}, this.canvas, this.card));
    this.canvas.addEventListener("pointermove", (event) => this.peek(this.at(event)));
    this.canvas.addEventListener("click", (event) => {
      const slot = this.at(event);
      if (slot?.trajectory_id) location.hash = app.href("trajectory", { id: slot.trajectory_id });
    });
    this.redraw = () => this.show(this.slots);
    addEventListener("resize", this.redraw);
    addEventListener("theme", this.redraw);
  }

  close() {
    removeEventListener("resize", this.redraw);
    removeEventListener("theme", this.redraw);
  }

  /** @param {Slot[]} slots */
  show(slots) {
    this.slots = slots;
    const width = Math.max(200, (this.root.parentElement?.clientWidth ?? 800) - 240);
    this.columns = Math.max(1, Math.floor(width / (CELL + GAP)));
    const rows = Math.ceil(slots.length / this.columns), scale = devicePixelRatio || 1;
    const [wide, high] = [this.columns * (CELL + GAP), Math.max(1, rows) * (CELL + GAP)];
    if (this.canvas.width !== Math.round(wide * scale) || this.canvas.height !== Math.round(high * scale)) {
      this.canvas.width = Math.round(wide * scale);
      this.canvas.height = Math.round(high * scale);
      this.canvas.style.width = `${wide}px`;
      this.canvas.style.height = `${high}px`;
    }
    const context = this.canvas.getContext("2d");
    if (!context) return;
    const style = getComputedStyle(document.documentElement);
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, wide, high);
    slots.forEach((slot, index) => {
      context.fillStyle = style.getPropertyValue(`--${look(slot)}`) || "gray";
      context.fillRect((index % this.columns) * (CELL + GAP), Math.floor(index / this.columns) * (CELL + GAP), CELL, CELL);
    });
  }

  /** @param {MouseEvent} event */
  at(event) {
    const column = Math.floor(event.offsetX / (CELL + GAP)), row = Math.floor(event.offsetY / (CELL + GAP));
    return column < this.columns ? this.slots[row * this.columns + column] : undefined;
  }

  /** @param {Slot | undefined} slot */
  peek(slot) {
    this.card.hidden = !slot;
    if (!slot) return;
    this.card.className = `tile peek ${look(slot)}`;
    if (slot.trajectory_id) this.card.setAttribute("href", this.app.href("trajectory", { id: slot.trajectory_id }));
    const shot = slot.screenshot ? { sha256: slot.screenshot, width: slot.width, height: slot.height } : null;
    fill(this.card, screen(shot, slot.points), el(".caption", {}, el(".name", {}, slot.task_id || slot.slot),
      el(".line", {}, el("span.chip", {}, slot.outcome ?? WORDS[slot.state], ` ${slot.step}`),
        el("span.age", {}, slot.at_ms ? duration(this.app.now() - slot.at_ms) : "")),
      el(".action", {}, slot.action ? brief(slot.action) : slot.slot)));
  }
}
