// @ts-check
/** The answers and screens of a page that was exported to one file. */

import { unpack } from "./columns.js";

const ABSENT = "This file has the report, the optimizer steps and the sample episodes. For the rest open the run or its bundle: dart-streams ui RUN|BUNDLE";

/** @param {string} id */
function held(id) {
  return document.getElementById(id)?.textContent ?? "";
}

/** Whether this page is an exported file. */
export const exported = held("archive") !== "";
/** @type {Promise<Record<string, any>> | null} */
let answers = null;
/** @type {Record<string, string>} */
const screens = exported ? JSON.parse(held("screens")) : {};

async function unpacked() {
  const bytes = Uint8Array.from(atob(held("archive")), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const { table, views } = JSON.parse(await new Response(plain).text());
  /** @type {[string, any][]} */
  const entries = [];
  for (const [view, { queries, answers }] of Object.entries(unpack(views, table))) {
    queries.forEach((/** @type {string} */ query, /** @type {number} */ index) => entries.push([`${view}?${query}`, answers[index]]));
  }
  const known = Object.fromEntries(entries);
  for (const [key, step] of entries) if (key.startsWith("step?")) step.event.metrics = metricsOf(known["steps?"], step.event.train_step);
  return known;
}

/** The metrics of an optimizer step, taken from the curves. @param {any} curves @param {number} step */
function metricsOf(curves, step) {
  const index = curves.steps.indexOf(step);
  const all = Object.entries(/** @type {Record<string, (number | null)[]>} */ (curves.metrics));
  return Object.fromEntries(all.map(([name, line]) => [name, line[index]]).filter(([, value]) => value !== null));
}

/** @returns {Promise<Record<string, any>>} */
function all() {
  return (answers ??= unpacked());
}

/**
 * The answer to a query; throws an error if the file lacks it.
 * @param {string} view @param {[string, any][]} query
 */
export async function answer(view, query) {
  const known = await all();
  if (view === "find") return find(known, String(query[0]?.[1] ?? ""));
  const key = `${view}?${query.map(([name, value]) => `${name}=${value}`).sort().join("&")}`;
  if (key in known) return structuredClone(known[key]);
  throw new Error(ABSENT);
}

/** @param {Record<string, any>} known @param {string} id */
function find(known, id) {
  const version = Object.entries(known).find(([key, step]) => key.startsWith("step?") && `v${step.event.version}` === id);
  if (version) return { page: "step", id: String(version[1].event.train_step) };
  for (const page of ["trajectory", "step"]) if (`${page}?id=${id}` in known) return { page, id };
  throw new Error(ABSENT);
}

/** The address of a screen; empty if the file lacks it. @param {string} sha256 */
export function screenAddress(sha256) {
  return screens[sha256] ?? "";
}
