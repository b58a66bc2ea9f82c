// @ts-check
/** The form of a viewer who may give feedback: judge the trajectory, correct a step on its screen, add a note. */

import { Problem, send } from "./api.js";
import { el, fill } from "./dom.js";
import { corrected } from "./feedback.js";
import { clicked, dragged, named, under } from "./places.js";
import { marker } from "./screen.js";

const JUDGEMENTS = ["good", "bad", "partial"];
/** Pixels of the window from which on a moved pointer is a drag. */
const DRAG = 6;
const AUTHOR = "feedback author";

export class FeedbackForm {
  /** @param {import("./app.js").App} app @param {string} id of the trajectory @param {HTMLElement} stage */
  constructor(app, id, stage) {
    this.app = app;
    this.id = id;
    this.stage = stage;
    this.step = 0;
    /** @type {any} the trajectory */
    this.data = null;
    this.busy = false;
    /** @type {{x: number, y: number, start: import("./screen.js").Point, pointer: number} | null} in pixels of the window and of the screen */
    this.pressed = null;
    this.author = input({ "aria-label": "your name", maxlength: 500, value: stored() || app.rights.author, onchange: () => store(this.author.value.trim()) });
    this.action = input({ "aria-label": "the right action", maxlength: 2048, spellcheck: "false", autocomplete: "off", placeholder: "click(start_box='(84,120)')", oninput: () => this.mark() });
    this.note = input({ "aria-label": "note", maxlength: 500, placeholder: "note: alone, or with what you give next" });
    this.judges = JUDGEMENTS.map((word, index) => el("button", { type: "button", "data-judgement": word, onclick: () => this.judge(index) }, `${word} (${index + 1})`));
    this.correction = el("form.entry.correct", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.correct(); } }, this.action, el("button", {}, "correct"));
    this.hint = el("p.note", {}, "Click or drag on the screen as it should have been, or write the action.");
    this.said = el("p.note", { role: "status" });
    this.buttons = el("div.judge", {}, this.judges);
    this.element = el("section.form", {}, el("h2", {}, "give feedback as ", this.author), this.buttons, this.correction, this.hint,
      el("form.entry.remark", { onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.remark(); } }, this.note, el("button", {}, "add note")), this.said);
    stage.addEventListener("pointerdown", (event) => this.press(event));
    stage.addEventListener("pointerup", (event) => this.release(event));
  }

  /** Show a step of the trajectory. @param {any} data @param {number} step */
  show(data, step) {
    if (!this.data || step !== this.step) this.action.value = "";
    this.data = data;
    this.step = step;
    const { summary } = data, trains = summary?.purpose === "train";
    this.enable();
    this.buttons.hidden = !trains;
    this.correction.hidden = this.hint.hidden = !this.corrects;
    this.stage.classList.toggle("corrects", this.corrects);
    if (!summary) fill(this.said, "This episode is under way. It can be given feedback once it has ended.");
    else if (!trains) fill(this.said, `Its purpose is ${summary.purpose}, and only training rollouts are trained on: a note is possible.`);
    else if (this.said.textContent?.startsWith("This episode is under way")) fill(this.said);
    this.mark();
  }

  /** Let the buttons be pressed while feedback can be given. */
  enable() {
    for (const button of this.element.querySelectorAll("button")) button.disabled = this.busy || !this.data?.summary;
  }

  /** Whether the shown step has an action that can be corrected. */
  get corrects() {
    return this.data?.summary?.purpose === "train" && this.step < this.data.summary.steps;
  }

  /** The screen of the shown step, and the size at which the policy sees it; null without one. */
  get view() {
    const step = this.data?.steps[this.step], frame = this.stage.querySelector(".screen");
    return step?.event.screenshot && step.image && frame ? { screen: step.event.screenshot, image: step.image, frame } : null;
  }

  /** Draw the places of the written action beside the policy's own. */
  mark() {
    const view = this.view;
    if (!view) return;
    const written = named(this.action.value, view.screen, view.image);
    const points = written.length ? written : corrected(this.data.feedback, this.step);
    view.frame.querySelector(".correction")?.remove();
    if (points.length) view.frame.append(marker(view.screen, points, true));
  }

  /** @param {PointerEvent} event */
  press(event) {
    const view = this.view;
    if (!this.corrects || event.button !== 0 || !view) return;
    // News may draw the page again before the release, and move the screen.
    this.pressed = { x: event.clientX, y: event.clientY, start: under(event, view.frame, view.screen), pointer: event.pointerId };
    this.stage.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  release(event) {
    const from = this.pressed, view = this.view;
    this.pressed = null;
    if (!from || !view || from.pointer !== event.pointerId) return;
    const { start } = from, end = under(event, view.frame, view.screen);
    if (![start, end].every(({ x, y }) => x >= 0 && y >= 0 && x < view.screen.width && y < view.screen.height)) return;
    const moved = Math.hypot(event.clientX - from.x, event.clientY - from.y) >= DRAG;
    this.action.value = moved ? dragged(start, end, view.screen, view.image) : clicked(this.action.value, start, view.screen, view.image);
    this.mark();
  }

  /** @param {string} key @returns {boolean} whether the key judges */
  key(key) {
    const index = ["1", "2", "3"].indexOf(key);
    if (index < 0 || this.buttons.hidden) return false;
    this.judge(index);
    return true;
  }

  /** @param {number} index */
  judge(index) {
    return this.give({ kind: "judgement", judgement: JUDGEMENTS[index] }, `judged ${JUDGEMENTS[index]}`);
  }

  correct() {
    return this.give({ kind: "correction", step: this.step, action: this.action.value.trim() }, `action ${this.step + 1} corrected`);
  }

  remark() {
    return this.give(this.step < (this.data?.summary?.steps ?? 0) ? { kind: "note", step: this.step } : { kind: "note" }, "noted");
  }

  /** @param {Record<string, string | number>} what @param {string} done */
  async give(what, done) {
    if (this.busy || !this.data?.summary) return;
    this.busy = true;
    this.enable();
    fill(this.said, "Sending …");
    try {
      await send({ ...what, trajectory_id: this.id, author: this.author.value.trim() || this.app.rights.author, note: this.note.value.trim() });
      this.note.value = "";
      if (what.kind === "correction") this.action.value = "";
      // The keys of the page work again.
      for (const field of [this.note, this.action]) field.blur();
      fill(this.said, `Given: ${done}.`);
    } catch (error) {
      fill(this.said, el("span.refused", {}, error instanceof Error ? error.message : String(error)));
      if (!(error instanceof Problem)) console.error(error);
    } finally {
      this.busy = false;
      this.enable();
    }
  }
}

/** @param {Record<string, any>} attributes */
function input(attributes) {
  return /** @type {HTMLInputElement} */ (el("input", { type: "text", ...attributes }));
}

/** The name that was given before. */
function stored() {
  try { return localStorage.getItem(AUTHOR) ?? ""; } catch { return ""; }
}

/** @param {string} name */
function store(name) {
  try { localStorage.setItem(AUTHOR, name); } catch { /* some browsers have no storage */ }
}
