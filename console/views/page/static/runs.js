// @ts-check
/** The runs and bundles that the page can open, compare and export. */

import { Problem, csrf, elsewhere, get, shown } from "./api.js";
import { el, fill, table } from "./dom.js";
import { duration, moment, number, percent } from "./format.js";

const AGAIN_MS = 5000;
const PROGRESS_MS = 500;
/** States of bundles that can't be exported. */
const UNREADABLE = ["damaged", "refused"];
/** Kinds of exports: name, button and what it has. @type {[string, string, string][]} */
const KINDS = [
  ["page", "report", "one file that opens from disk: report, curves, optimizer steps and sample episodes"],
  ["bundle", "bundle", "all records, configuration and tasks, for this page, replays and Python"],
  ["screens", "bundle with screens", "the same with all screenshots, for a backup"],
];

/**
 * @typedef {{id: string, kind: string, run: string, state: string, recipe: string, started_ms: number | null, captured_ms: number | null, minutes: number | null,
 *   episodes: number | null, steps: number | null, success_before: number | null, success_after: number | null, machine: string, version: string,
 *   mb: number | null, opens: boolean, note: string}} Run
 * @typedef {{rows: Run[], own: string[], beside: string[]}} Runs
 */

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const body = el("div"), count = el("span.note");
  const filter = /** @type {HTMLInputElement} */ (el("input", { type: "search", placeholder: "id, state, machine", "aria-label": "filter of runs", value: params.q ?? "", oninput: () => { app.remember({ q: filter.value }); draw(); } }));
  view.append(el(".bar", {}, el("h1", {}, "Runs"), count, el(".push"), filter), params.export ? exporter(params.export) : "", body);
  /** @type {Runs} */
  let found = { rows: [], own: [], beside: [] };
  let drawn = "";

  function draw() {
    const own = found.own[0], here = shown.run || own, other = shown.against || (here === own ? found.own[1] ?? "" : "");
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = found.rows.filter((row) => words.every((word) => [row.id, row.run, row.kind, row.state, row.recipe, row.machine, row.version, row.note].join(" ").toLowerCase().includes(word)));
    fill(count, `${number(rows.length)} of ${number(found.rows.length)}`);
    fill(body, table(rows, [
      ["run", (row) => [el("div", {}, row.opens && row.id !== here ? el("a", { href: address(row), title: `open ${row.id}` }, row.id) : el("b", {}, row.id)),
        ...[[row.id === here, "shown"], [row.id === other && other !== here, "compared"], [row.id === own && here !== own, "the page's own"]].map(([is, text]) => (is ? el("span.chip.running", {}, String(text)) : null)),
        row.kind === "bundle" && row.run && row.run !== row.id ? el("div.note", {}, `of ${row.run}`) : null, row.note ? el("div.note.missing", {}, row.note) : null]],
      ["state", (row) => el(`span.chip.${row.state === "running" ? "running" : row.state === "complete" ? "success" : UNREADABLE.includes(row.state) ? "fault" : "other"}`, {}, row.state)],
      ["began", (row) => [el("div.whole", {}, moment(row.started_ms)), row.captured_ms ? el("div.note", {}, "captured ", el("span.whole", {}, moment(row.captured_ms))) : null]],
      ["took", (row) => (row.minutes === null ? "–" : row.minutes ? duration(row.minutes * 60_000) : "seconds")],
      ["success", (row) => (row.success_after === null && row.success_before === null ? "–" : el("span.whole", {}, `${percent(row.success_before, 1)} → ${percent(row.success_after, 1)}`))],
      ["episodes", (row) => number(row.episodes)],
      ["optimizer steps", (row) => number(row.steps)],
      ["recipe", (row) => row.recipe || "–"],
      ["machine and version", (row) => (row.machine || row.version ? [el("div", {}, row.machine), el("div.note", {}, row.version)] : "–")],
      ["MB", (row) => number(row.mb)],
      ["more", (row) => ways(row)],
    ], found.rows.length ? "no run has these words" : "There is no run yet: dart-streams run starts one."));

    /** @param {Run} row */
    function ways(row) {
      const compared = row.opens && row.id !== here ? el("a", { href: elsewhere(shown.run, row.id, "#/compare?of=other"), title: `compare ${here} with ${row.id}` }, "compare") : null;
      return el("div.ways", {}, compared, UNREADABLE.includes(row.state) ? null : el("a", { href: app.href("runs", { q: filter.value, export: row.id }), title: `export ${row.id}` }, "export"));
    }

    /** @param {Run} row */
    function address(row) {
      return elsewhere(row.id === own ? "" : row.id, "", row.state === "running" ? "#/wall" : "#/report");
    }
  }

  async function refresh() {
    found = await get("runs");
    const text = JSON.stringify(found);
    // A table that has not changed keeps the focus and the selection.
    if (text !== drawn) draw();
    drawn = text;
  }

  await refresh();
  const timer = setInterval(() => {
    if (!document.hidden && !String(getSelection())) refresh().catch(() => {});
  }, AGAIN_MS);
  // With its own timer it is not opened again once the run is read, which would lose an export's progress.
  return { update: () => {}, close: () => clearInterval(timer) };
}

/** The exports of a run as buttons, with progress. @param {string} id */
function exporter(id) {
  const said = el("p.note", { role: "status" });
  const panel = el("section.export", {}, el("h2", {}, `Export ${id}`), el("dl", {}, KINDS.flatMap(([kind, name, meaning]) => [
    el("dt", {}, el("button", { type: "button", "data-kind": kind, onclick: () => make(kind) }, name)), el("dd.note", {}, meaning)])), said);
  return panel;

  /** Make an export, and download it. @param {string} kind */
  async function make(kind) {
    const buttons = /** @type {NodeListOf<HTMLButtonElement>} */ (panel.querySelectorAll("button"));
    for (const button of buttons) button.disabled = true;
    fill(said, "Begins …");
    try {
      let status = await get("export", { id, kind });
      while (status.state === "making" && panel.isConnected) {
        fill(said, `Exporting: ${status.text}`);
        await new Promise((done) => setTimeout(done, PROGRESS_MS));
        status = await get("export", { id, kind });
      }
      if (status.state === "failed") throw new Problem(status.text);
      if (status.state !== "ready") return;
      const link = el("a", { href: `/export/run?${new URLSearchParams({ id, kind, csrf })}`, download: "" }, "download it again");
      fill(said, `Ready, ${megabytes(status.bytes)}: the browser downloads it. If it does not, `, link, ".");
      link.click();
    } catch (error) {
      fill(said, el("span.refused", {}, error instanceof Error ? error.message : String(error)));
      if (!(error instanceof Problem)) console.error(error);
    } finally {
      for (const button of buttons) button.disabled = false;
    }
  }
}

/** @param {number} bytes */
function megabytes(bytes) {
  return bytes < 100_000 ? `${number(Math.ceil(bytes / 1000))} kB` : `${number(bytes / 1e6)} MB`;
}
