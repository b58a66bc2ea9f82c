// @ts-check
/** A trajectory: a slider over its screens, with the action, the tokens and the time of each step. */

import { get } from "./api.js";
import { el, facts, fill } from "./dom.js";
import { corrected, given } from "./feedback.js";
import { brief, clock, duration, number, short, versions } from "./format.js";
import { following } from "./queue.js";
import { address, picture, screen } from "./screen.js";
import { timings } from "./timings.js";
import { tokens } from "./tokens.js";
import { takeOver } from "./wall.js";

/** @typedef {import("./app.js").App} App */

export const title = "Trajectory";

/** @param {HTMLElement} view @param {Record<string, string>} params @param {App} app */
export async function open(view, params, app) {
  const { FeedbackForm } = app.rights.feedback && !params.of ? await import("./form.js") : { FeedbackForm: null };
  const player = new Player(view, params, app, FeedbackForm);
  await player.load();
  return {
    watch: { watch: "trajectory", id: params.id },
    update: (/** @type {any} */ message) => player.follow(message.stamp),
    key: (/** @type {KeyboardEvent} */ event) => player.key(event.key),
    close: () => player.stop(),
  };
}

class Player {
  /**
   * @param {HTMLElement} view @param {Record<string, string>} params @param {App} app
   * @param {typeof import("./form.js").FeedbackForm | null} FeedbackForm of a viewer who may give feedback
   */
  constructor(view, params, app, FeedbackForm) {
    this.app = app;
    this.id = params.id ?? "";
    this.of = params.of ?? "";
    this.queued = params.queue === "yes";
    // A link may highlight a token of a step.
    this.marked = { step: Number(params.step ?? -1), token: Number(params.token ?? -1) };
    this.at = params.step === undefined ? null : Number(params.step);
    this.color = params.color ?? "logprob";
    /** @type {any} */
    this.data = null;
    this.stamp = "";
    this.loading = false;
    this.playing = 0;
    this.head = el("div.bar");
    this.stage = el(".stage");
    this.slider = /** @type {HTMLInputElement} */ (el("input", { type: "range", min: 0, step: 1, "aria-label": "step", oninput: () => this.go(Number(this.slider.value)) }));
    this.count = el("span.count");
    this.play = el("button", { type: "button", title: "play (space)", "aria-label": "play", onclick: () => this.toggle() }, "▶");
    this.film = el(".film");
    this.instruction = el("p.instruction");
    this.inspector = el("div");
    this.form = FeedbackForm && new FeedbackForm(app, this.id, this.stage);
    view.append(this.head, el(".player", {}, el(".screen-side", {}, this.stage, el(".slider", {}, this.play, this.slider, this.count), this.film),
      el(".inspector", {}, this.instruction, this.form?.element, this.inspector)));
  }

  async load() {
    const before = this.data;
    const atEnd = !before || this.at === null || this.at >= before.steps.length - 1;
    this.data = await get("trajectory", { id: this.id, of: this.of });
    const last = Math.max(0, this.data.steps.length - 1);
    // A view of the newest screen follows a running trajectory; a finished one opens at its beginning.
    if (!before) this.at = Math.min(this.at ?? (this.data.running ? last : 0), last);
    else if (atEnd) this.at = last;
    this.drawHead();
    this.drawFilm();
    this.draw();
  }

  /** Read it again at a new stamp, also at the first: what was read before may be older. @param {string} stamp */
  async follow(stamp) {
    if (this.loading || (stamp === this.stamp && this.data.steps.length)) return;
    this.loading = true;
    try {
      await this.load();
      this.stamp = stamp;
    } catch { /* the newest step is not stored yet: the next message retries */ } finally {
      this.loading = false;
    }
  }

  /** @param {number} index */
  go(index) {
    this.at = Math.max(0, Math.min(index, this.data.steps.length - 1));
    this.app.remember({ step: String(this.at) });
    this.draw();
  }

  toggle() {
    if (this.playing) return this.stop();
    if ((this.at ?? 0) >= this.data.steps.length - 1) this.go(0);
    this.play.textContent = "❚❚";
    this.playing = window.setInterval(() => ((this.at ?? 0) >= this.data.steps.length - 1 ? this.stop() : this.go((this.at ?? 0) + 1)), 700);
  }

  stop() {
    clearInterval(this.playing);
    this.playing = 0;
    this.play.textContent = "▶";
  }

  /** @param {string} key */
  key(key) {
    const at = this.at ?? 0;
    /** @type {Record<string, () => void>} */
    const keys = {
      j: () => this.go(at + 1), ArrowRight: () => this.go(at + 1), k: () => this.go(at - 1), ArrowLeft: () => this.go(at - 1),
      Home: () => this.go(0), End: () => this.go(this.data.steps.length - 1), " ": () => this.toggle(),
      n: () => this.next(),
    };
    if (this.data && this.form?.key(key)) return true;
    if (!keys[key] || !this.data || (key === "n" && !this.queued)) return false;
    keys[key]();
    return true;
  }

  /** Open the next trajectory of the judging queue. */
  async next() {
    const id = await following(this.id);
    location.hash = id ? this.app.href("trajectory", { id, queue: "yes" }) : this.app.href("queue");
  }

  drawHead() {
    const { steps, summary, groups, running } = this.data, first = steps[0]?.event, order = first?.order;
    const task = summary?.task_id ?? order?.task_id ?? "";
    const outcome = summary?.outcome ?? (running ? "running" : "ended");
    const group = (summary ?? order)?.purpose === "train" ? summary?.group_id ?? order?.group_id ?? "" : "";
    const taken = new Set(groups.flatMap((/** @type {any} */ g) => g.train_steps));
    const ways = [...taken].map((n) => this.app.link("step", { id: n }, `step ${n}`));
    fill(this.head, el("h1", {}, this.app.link("task", { id: task }, task)), el(`span.chip.${outcome}`, {}, outcome),
      summary?.reward !== null && summary !== null ? el("span.chip", {}, `reward ${number(summary.reward)}`) : null,
      el("span.way", {}, group ? this.app.link("group", { id: group }, `group ${group}`) : null,
        ways.length ? [" → ", ...ways.flatMap((/** @type {Node} */ way, /** @type {number} */ i) => (i ? [", ", way] : [way]))] : null),
      running && order?.purpose === "train" && this.app.rights.feedback && !this.of ? el("a.take", { href: takeOver(this.id) }, "Take over") : null,
      el(".push"), this.queued ? el("button", { type: "button", onclick: () => this.next() }, "next to judge (n)") : null, el("code", { title: this.id }, this.id));
  }

  drawFilm() {
    const { steps } = this.data;
    if (this.film.childElementCount > steps.length) this.film.replaceChildren();
    for (let index = this.film.childElementCount; index < steps.length; index++) {
      const shot = steps[index].event.screenshot, image = picture();
      image.loading = "lazy";
      const place = shot && address(shot.sha256);
      if (place) image.src = place;
      this.film.append(el("button.frame", { type: "button", title: `step ${index}`, onclick: () => this.go(index) }, place ? image : el("span.none", {}, "–"), el("i", {}, index)));
    }
    this.slider.max = String(Math.max(0, steps.length - 1));
  }

  draw() {
    const { steps, groups } = this.data, index = this.at ?? 0;
    if (!steps.length) return fill(this.stage, el("p.empty", {}, "the first screen is not stored yet"));
    const now = steps[index], next = steps[index + 1];
    this.slider.value = String(index);
    fill(this.count, `${index} / ${steps.length - 1}`);
    [...this.film.children].forEach((frame, i) => {
      frame.classList.toggle("here", i === index);
      frame.classList.toggle("selected", groups.some((/** @type {any} */ g) => g.member.selected.includes(i)));
    });
    this.film.children[index]?.scrollIntoView({ block: "nearest", inline: "nearest" });
    const ended = now.event.end && !now.event.screenshot;
    fill(this.stage, ended ? el("p.empty", {}, "The episode ended here. Its last screen is not kept (last_screen = false).")
      : screen(now.event.screenshot, next?.points ?? [], corrected(this.data.feedback, index)));
    fill(this.instruction, steps[0].event.instruction);
    fill(this.inspector, this.inspect(index, now, next));
    this.form?.show(this.data, index);
  }

  /** @param {number} index @param {any} now @param {any} next */
  inspect(index, now, next) {
    const first = this.data.steps[0].event, taken = next?.event.taken, end = now.event.end;
    /** @type {Node[]} */
    const parts = [];
    const said = given(this.data.feedback, index, this.app, (step) => this.go(step));
    if (said) parts.push(said);
    if (end) {
      parts.push(el(`section.end.${end.kind}`, {}, el("h2", {}, `ended: ${end.kind}`),
        facts([["reward", number(end.reward)], ["reason", end.reason]])));
    } else if (!taken) {
      parts.push(el("section", {}, el("h2", {}, this.data.running ? "waiting for the next action" : "the log ends here")));
    }
    if (taken) {
      const mixed = this.data.steps.some((/** @type {any} */ step) => step.event.taken?.take_over);
      const roles = this.data.groups.map((/** @type {any} */ g) => [g, g.member.selected.includes(index)]);
      parts.push(el("section", {}, el("h2", {}, `action ${index + 1}`, mixed ? el("span.chip.whose", {}, taken.take_over ? "a person's" : "the policy's") : null), el("p.action-text", {}, brief(taken.action ?? taken.text)),
        taken.action ? null : el("p.warn", {}, "not a valid action"),
        taken.action && taken.text.trim() !== taken.action.trim() ? el("pre.said", {}, taken.text) : null,
        next.event.returned ? el("pre.said", {}, `returned: ${next.event.returned}`) : null,
        roles.map((/** @type {[any, boolean]} */ [g, chosen]) => el("p.role", {}, chosen ? el("span.chip.success", {}, "trained on") : el("span.chip", {}, "left out"),
          ` advantage ${number(g.member.advantage)} in `, this.app.link("group", { id: g.group_id }, short(g.group_id), g.group_id)))));
      parts.push(tokens(taken, next.texts ?? [], this.color, (color) => { this.color = color; this.app.remember({ color }); this.draw(); }, index === this.marked.step ? this.marked.token : undefined));
      parts.push(timings(now.event, next, duration));
      parts.push(this.more("prompt and history", async () => promptOf(await get("prompt", { id: this.id, step: index, of: this.of }))));
    }
    parts.push(el("section", {}, facts([
      ["order", first.order.order_id], ["purpose", first.order.purpose], ["environment", now.event.env_host], ["screen at", clock(now.event.at_ms)],
      ["versions", versions(this.data.summary?.version_min, this.data.summary?.version_max)], ["request", taken?.request_id],
      ["imitated by", this.data.imitated_by.length ? this.data.imitated_by.join(", ") : null],
    ])));
    parts.push(this.more("raw event", async () => el("pre.raw", { tabindex: 0 }, JSON.stringify((next ?? now).event, null, 1))));
    return parts;
  }

  /** A fold that is filled at its first opening. @param {string} name @param {() => Promise<Node>} fillIn */
  more(name, fillIn) {
    const body = el("div");
    const fold = el("details", { ontoggle: async () => { if (!body.childElementCount) fill(body, await fillIn().catch((error) => el("p.problem", {}, error.message))); } }, el("summary", {}, name), body);
    return fold;
  }
}

/** @param {any[]} turns */
function promptOf(turns) {
  return el(".prompt", {}, turns.map((turn) => el(`.turn.${turn.role}`, {}, el("i", {}, turn.role),
    turn.image ? screen(turn.image) : el("pre", {}, turn.text ?? ""))));
}
