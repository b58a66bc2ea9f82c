// @ts-check
/** What people said of a trajectory, and the optimizer step and version that learned from it. */

import { el } from "./dom.js";
import { brief, clock } from "./format.js";

/**
 * @typedef {{id: string, at_ms: number, author: string, kind: string, step: number | null, said: string, state: string, train_step: number | null, version: number | null}} Row
 * @typedef {{row: Row, points: import("./screen.js").Point[]}} Given
 */

/**
 * The feedback on a trajectory and on one of its steps, the newest first; null without any.
 * @param {Given[]} all @param {number} step @param {import("./app.js").App} app @param {(step: number) => void} go
 */
export function given(all, step, app, go) {
  if (!all.length) return null;
  const rows = all.map((one) => one.row).reverse();
  return el("section.feedback", {}, el("h2", {}, "feedback"), rows.map((row) => el(row.step === null || row.step === step ? "div.given" : "div.given.elsewhere", {},
    el("span.chip", {}, row.kind), row.step === null ? null : el("button", { type: "button", title: "show this step", onclick: () => go(row.step ?? 0) }, `action ${row.step + 1}`),
    " ", brief(row.said), el("div.note", {}, `${row.author}, ${clock(row.at_ms)} · `, fate(row, app)))));
}

/** What became of a feedback. @param {Row} row @param {import("./app.js").App} app */
function fate(row, app) {
  if (row.train_step !== null) return el("span", {}, "learned by ", app.link("step", { id: row.train_step }, `step ${row.train_step}`), `, version ${row.version}`);
  return row.state === "curated" ? "waits for the trainer's next step" : row.kind === "note" ? "a note trains nothing" : "has trained nothing so far";
}

/** The places where people would have acted at a step, the newest correction's last. @param {Given[]} all @param {number} step */
export function corrected(all, step) {
  return all.filter((one) => one.row.kind === "correction" && one.row.step === step).at(-1)?.points ?? [];
}
