// @ts-check
/** Two versions of a run, or two runs: held-out success by page with intervals, and two episodes of a task. */

import { get } from "./api.js";
import { exported } from "./archive.js";
import { el, fill, table } from "./dom.js";
import { count, number, percent } from "./format.js";
import { rates, signed } from "./rates.js";
import { strip } from "./strip.js";

export const title = "Compare";
const MOST = 300;

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const { a, b, t, of } = params, run = await get("run");
  const found = await get("compare", { a, b, t, of });
  const go = (/** @type {Record<string, string>} */ changed) => { location.hash = app.href("compare", { ...params, ...changed }); };
  /** @param {string} label @param {[string, string][]} values @param {string} now @param {(value: string) => void} change */
  const select = (label, values, now, change) => el("select", { "aria-label": label, onchange: (/** @type {any} */ event) => change(event.target.value) }, values.map(([value, text]) => el("option", { value, selected: value === now }, text)));
  /** @param {any} side @param {string} name */
  const version = (side, name) => side.versions.length ? select(`version ${name}`, side.versions.map((/** @type {number} */ v) => [String(v), `v${v}`]), String(side.version), (value) => go({ [name]: value })) : null;
  const other = run.other ? select("second run", [["", "this run"], ["other", run.other]], of ?? "", (value) => go({ of: value, b: "" })) : null;
  const temperature = found.temperatures.length > 1 ? select("temperature", found.temperatures.map((/** @type {number} */ one) => [String(one), one ? `temperature ${number(one)}` : "greedy"]), String(found.temperature), (value) => go({ t: value === String(found.temperatures[0]) ? "" : value })) : null;
  const side = el("div"), names = /** @type {[string, string]} */ ([label(found.a, found.b), label(found.b, found.a)]);
  const body = el("div");
  view.append(el(".bar", {}, el("h1", {}, title), version(found.a, "a"), found.a.versions.length ? el("span.note", {}, "with") : null, other, version(found.b, "b"), found.a.versions.length ? temperature : null), side, body);
  const known = found.a.version !== null && found.b.version !== null;
  if (!known || (!of && found.a.version === found.b.version)) {
    fill(body, el("p.empty", {}, found.a.versions.length > 1 || of ? "Choose two different versions." : ["This run has fewer than two evaluations so far; they are made before and after training. To compare it with another run, ", exported ? "start the page with --against RUN|BUNDLE" : app.link("runs", {}, "choose one"), "."]));
  } else {
    fill(body, headline(found, names), rates(found.pages.map((/** @type {any} */ page) => [page.page, page.a, page.b]), names),
      el("h2", {}, "Tasks, by the size of the change in reward"), table(found.tasks.slice(0, MOST), [
        ["task", (/** @type {any} */ pair) => app.link("compare", { ...params, task: pair.task_id }, pair.task_id)],
        [names[0], (pair) => episode(pair.a)], [names[1], (pair) => episode(pair.b)],
        ["change", (pair) => (pair.a && pair.b ? el((pair.b.reward ?? 0) > (pair.a.reward ?? 0) ? "span.up" : (pair.b.reward ?? 0) < (pair.a.reward ?? 0) ? "span.down" : "span", {}, number((pair.b.reward ?? 0) - (pair.a.reward ?? 0))) : "–")],
      ], "no task was played on both sides"));
  }
  if (params.task) fill(side, await sideBySide(found, names));

  /** @param {any} one */
  function episode(one) {
    return one ? [el(`span.chip.${one.outcome}`, {}, one.outcome), `${number(one.reward)}, ${count(one.steps, "step")}`] : "–";
  }

  /** The two episodes of a task, aligned by step. @param {any} all @param {[string, string]} labels */
  async function sideBySide(all, labels) {
    const evaluated = all.tasks.find((/** @type {any} */ one) => one.task_id === params.task);
    const pair = evaluated ?? await get("compared-task", { id: params.task, of });
    const sources = ["", of ?? ""], both = [pair.a, pair.b];
    const played = await Promise.all(both.map((one, index) => (one ? get("trajectory", { id: one.trajectory_id, of: sources[index] }).catch(() => null) : null)));
    const instruction = (played[1] ?? played[0])?.steps[0]?.event.instruction ?? "";
    return [el("h2", {}, app.link("task", { id: params.task }, params.task)), el("p.instruction", {}, instruction), el(".lanes", {}, both.map((one, index) => el(".lane", {},
      el(".lane-head", {}, el("div", {}, el("b", {}, evaluated ? labels[index] : of ? labels[index].split(" v")[0] : index ? "newest in training" : "first in training")), one ? [el("div", {}, el(`span.chip.${one.outcome}`, {}, one.outcome)), el("div.note", {}, `reward ${number(one.reward)} · ${count(one.steps, "step")}`)] : el("div.note", {}, "not played")),
      one ? strip(played[index], (step) => app.href("trajectory", { id: one.trajectory_id, step, of: sources[index] }), true) : el("div"))))];
  }
  return {};
}

/** The name of a side. @param {any} one @param {any} other */
function label(one, other) {
  const version = one.version === null ? "no version" : `v${one.version}`;
  return one.run === other.run ? version : `${one.run} ${version}`;
}

/** @param {any} found @param {[string, string]} names */
function headline(found, names) {
  const { change } = found;
  return el(".headline", {}, el("b.big", {}, el("span.from", {}, percent(found.a.overall.rate, 1)), " → ", el(change?.mean < 0 ? "span.down" : "span.up", {}, percent(found.b.overall.rate, 1))),
    el("p", {}, `of held-out episodes succeed with ${names[0]} and with ${names[1]}, at temperature ${number(found.temperature)}. `,
      change ? ["A change of ", el("b", {}, `${signed(change.mean * 100)} points`), ` (95 % interval ${signed(change.low * 100)} to ${signed(change.high * 100)}), ${number(found.a.overall.episodes)} and ${number(found.b.overall.episodes)} episodes.`] : "",
      found.a.faults + found.b.faults ? ` ${found.a.faults} and ${found.b.faults} ended in a fault and are not counted.` : ""));
}
