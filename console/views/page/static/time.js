// @ts-check
/** The run over time: success, rate, staleness, versions and switches, lag, and silent topics. */

import { get } from "./api.js";
import { exported } from "./archive.js";
import { chart, stacked } from "./chart.js";
import { el, fill, table } from "./dom.js";
import { clock, duration, number } from "./format.js";

export const title = "Time";
const MAX_LAGS = 300;
const MAX_SWITCHES = 50;

/** @param {HTMLElement} view @param {Record<string, string>} params @param {import("./app.js").App} app */
export async function open(view, params, app) {
  const plots = el(".charts"), body = el("div"), standing = el("div");
  view.append(el(".bar", {}, el("h1", {}, title)), standing, plots, body);
  /** @type {(() => void)[]} */
  let closers = [];
  /** @type {{at: number, by: Record<string, number>}[]} lag since this tab was opened */
  const seen = [];

  async function refresh() {
    const found = await get("time");
    get("lag").then(remember, () => {});
    closers.forEach((close) => close());
    closers = [];
    draw(found);
    const live = !exported && app.header?.kind !== "bundle";
    fill(standing, live ? found.stalls.map((/** @type {string} */ text) => el("p.warn", {}, text)) : null);
    fill(body,
      seen.length ? [el("h2", {}, "Lag"), table(Object.entries(seen[seen.length - 1]?.by ?? {}), [["group and topic", ([name]) => name], ["records", ([, count]) => number(count)], ["change a minute", ([name]) => trend(name)], ["as time", ([name, count]) => seconds(name, count, found)]])] : null,
      el("h2", {}, "Topics"), table(Object.entries(found.activity), [["topic", ([name]) => app.link("log", { topic: name }, name)], ["records", ([, a]) => number(a[0])], ["newest", ([, a]) => clock(a[1])],
        ["silent for", ([, a]) => (live ? duration(app.now() - a[1]) : "–")], ["last sender", ([, a]) => a[2]]]),
      found.phases.length ? [el("h2", {}, "Phases"), table(found.phases, [["phase", (/** @type {any} */ p) => p.name], ["began", (p) => clock(p.started_ms)], ["took", (p) => (p.ended_ms ? duration(p.ended_ms - p.started_ms) : "under way")]])] : null,
      found.switches.length ? [el("h2", {}, `Weight switches, the newest ${Math.min(MAX_SWITCHES, found.switches.length)} of ${number(found.switches.length)}`), table([...found.switches].reverse().slice(0, MAX_SWITCHES), [["at", (/** @type {any} */ s) => clock(s.at_ms)], ["worker", (s) => s.worker_id], ["version", (s) => `v${s.version}`], ["pause", (s) => duration(s.pause_ms)]])] : null);
  }

  /** Keep the lags; unknown ones clear the table. @param {any[] | null} lags */
  function remember(lags) {
    if (!lags) return void seen.splice(0);
    /** @type {Record<string, number>} */
    const by = {};
    for (const lag of lags) by[`${lag.group} on ${lag.topic}`] = (by[`${lag.group} on ${lag.topic}`] ?? 0) + Math.max(0, lag.end - lag.committed);
    if (lags.length) seen.push({ at: Date.now(), by });
    seen.splice(0, seen.length - MAX_LAGS);
  }

  /** @param {string} name */
  function trend(name) {
    const past = seen.filter((one) => Date.now() - one.at < 60_000), first = past[0], last = past[past.length - 1];
    if (!first || !last || last.at - first.at < 5000) return "–";
    const change = (last.by[name] ?? 0) - (first.by[name] ?? 0);
    return `${change > 0 ? "+" : ""}${number(Math.round((change * 60_000) / (last.at - first.at)))}`;
  }

  /** The time in which the topic grew by its lag. @param {string} name @param {number} count @param {any} found */
  function seconds(name, count, found) {
    const a = found.activity[name.split(" on ")[1]], began = found.phases.find((/** @type {any} */ p) => p.name === "circle")?.started_ms;
    return a && began && count ? duration((count * (a[1] - began)) / Math.max(1, a[0])) : count ? "–" : "0 s";
  }

  /** @param {any} found */
  function draw(found) {
    const { curves } = found, x = curves.at_ms.map((/** @type {number} */ ms) => ms / 1000);
    if (x.length < 2) return void fill(plots, el("p.empty", {}, "not enough data yet"));
    fill(plots);
    // Plots with one cursor have one x axis.
    const all = [...x, ...[found.published, found.switches, ...Object.values(found.serving)].flat().map((one) => one.at_ms / 1000)];
    const span = /** @type {[number, number]} */ ([Math.min(...all), Math.max(...all)]), shared = { x, time: true, sync: "time", span };
    /** @param {string} name @param {any[]} series @param {any} [more] */
    const add = (name, series, more = {}) => closers.push(chart(plots, { title: name, series, ...shared, ...more }));
    add("success of training episodes", [{ values: curves.success }], { range: [-0.02, 1.02], quantity: "share of episodes" });
    add("environment steps", [{ values: curves.steps_per_s }], { quantity: "steps/s" });
    const { busy_slots: busy, acting_slots: acting } = curves;
    closers.push(stacked(plots, { title: `slots by state, of ${found.slots}`, ...shared, range: [0, found.slots] }, {
      acts: acting, "thinks, resets or evaluates": busy.map((/** @type {number} */ slots, /** @type {number} */ i) => slots - acting[i]), free: busy.map((/** @type {number} */ slots) => Math.max(0, found.slots - slots)),
    }, ["--acts", "--waits", "--free"]));
    add("staleness at curation", [{ name: "mean", values: curves.staleness_mean }, { name: "largest", values: curves.staleness_max }], { quantity: "versions" });
    const workers = Object.entries(found.serving);
    if (found.published.length > 1) {
      const times = [...new Set([...found.published, ...workers.flatMap(([, list]) => /** @type {any[]} */ (list))].map((one) => one.at_ms / 1000))].sort((a, b) => a - b);
      closers.push(chart(plots, { title: "weight version: published, and served by each worker", ...shared, x: times, series: [{ name: "published", values: held(found.published, times), steps: true },
        ...workers.slice(0, 7).map(([name, list]) => ({ name, values: held(/** @type {any[]} */ (list), times), steps: true }))] }));
    }
    if (found.switches.length > 1) {
      const sorted = [...found.switches].sort((a, b) => a.at_ms - b.at_ms);
      closers.push(chart(plots, { title: "pause of each switch", quantity: "ms", ...shared, x: sorted.map((s) => s.at_ms / 1000), series: [{ values: sorted.map((s) => s.pause_ms), points: true }] }));
    }
  }
  await refresh();
  return { refresh, close: () => closers.forEach((close) => close()) };
}

/**
 * The version that is in effect at each of some times.
 * @param {any[]} changes @param {number[]} times seconds
 * @returns {(number | null)[]}
 */
function held(changes, times) {
  const sorted = [...changes].sort((a, b) => a.at_ms - b.at_ms);
  return times.map((time) => {
    const known = sorted.filter((change) => change.at_ms / 1000 <= time);
    return known.length ? known[known.length - 1].version : null;
  });
}
