// @ts-check
/** The report of a run: held-out success, key figures, curves, sample tasks, accounts and settings. */

import { get } from "./api.js";
import { chart, stacked } from "./chart.js";
import { el, facts, svg, table } from "./dom.js";
import { duration, number, percent, versions } from "./format.js";
import { curve, metric } from "./metrics.js";
import { rates, signed } from "./rates.js";
import { shares } from "./shares.js";
import { strip } from "./strip.js";

/** @typedef {import("./app.js").App} App */

export const title = "Report";
const MINUTES = "minutes of training";
/** Curves of more optimizer steps have moving means, of this many steps. */
const [RAW_STEPS, SMOOTHING] = [40, 20];
const UNMEASURED = "not measured: the run has no metrics";
const SLOT_STATES = ["step", "evaluate", "wait", "reset", "idle"];
const SLOT_COLORS = ["--p0", "--p5", "--p4", "--p1", "--free"];
/** @type {Record<string, string>} */
const OUTCOME_COLORS = { success: "--success", failure: "--failure", truncated: "--p1", invalid_action: "--p5", env_error: "--fault", policy_error: "--p3", lost: "--p2", cancelled: "--p7" };

/** @param {HTMLElement} view @param {Record<string, string>} _ @param {App} app */
export async function open(view, _, app) {
  const [found, { metrics }] = await Promise.all([get("report"), get("metrics")]), { report } = found;
  /** @type {(() => void)[]} */
  const closers = [];
  /** @param {string} name @param {string} note @param {...any} content */
  const part = (name, note, ...content) => el("section.part-of-report", {}, el("h2", {}, name), note ? el("p.note", {}, note) : null, ...content);
  const success = el(".charts"), environments = el(".charts"), pairs = el(".charts"), learning = el(".charts");
  const pages = Object.entries(report.per_task).sort(([, a], [, b]) => (b.after?.rate ?? 0) - (a.after?.rate ?? 0));
  view.append(el(".bar", {}, el("h1", {}, title), el("span.note", {}, [found.run, found.started_ms ? new Date(found.started_ms).toISOString().slice(0, 16).replace("T", " ") + " UTC" : "", report.outcome].filter(Boolean).join(" · "))));
  const settings = el("details", {}, el("summary", {}, "exact settings"), el("pre.raw", { tabindex: 0 }, found.settings));
  if (!report.episodes && !pages.length) {
    view.append(el("p.empty", {}, "No episode has been trained on or evaluated yet. Figures and curves appear with the first ones."), phases(found.phases) ?? "", provenance(report) ?? "", settings);
    return {};
  }
  view.append(headline(found), cards(report), success);
  if (pages.length) view.append(part("Held-out success by page", "Grey before, green after; thin lines are 95 % intervals (Wilson).", rates(pages.map(([page, row]) => [page, /** @type {any} */ (row).before, /** @type {any} */ (row).after]), ["before", "after"])));
  if (found.samples.length) view.append(part("The same task, before and after", "Screens of the policy, with a red mark at each action. Tasks with the largest gain in reward come first, and those that got worse last. A click plays the episode.", await samples(found, app)));
  view.append(part(`Environments: ${number(found.slots)} slots of ${found.backend}`, `Slots were busy for ${percent(report.env_utilisation)} of the training phase.`, environments,
    Object.keys(report.slot_time).length ? shares("slot time in training", SLOT_STATES.map((name) => [name, report.slot_time[name] ?? 0]), percent, SLOT_COLORS) : null, stepTime(report)), pairs, learning,
  accounts(report), faults(report) ?? "", deaths(report) ?? "", phases(found.phases) ?? "", provenance(report) ?? "", settings);
  // Plots measure their parent, so they are drawn once it is in the document.
  requestAnimationFrame(() => {
    if (view.isConnected) closers.push(...overTime(found, success, environments), ...bySteps(found, metrics, pairs, learning));
  });
  return { close: () => closers.forEach((close) => close()) };
}

/** @param {any} found */
function headline(found) {
  const { report } = found, change = report.evaluation.change;
  if (!change) return el(".headline", {}, el("b.big", {}, number(report.train_steps)), el("p", {}, `optimizer steps in ${found.minutes.toFixed(1)} minutes${by(report)}; this run was not evaluated both before and after.`));
  const further = report.further_temperatures.filter((/** @type {any} */ one) => one.change).map((/** @type {any} */ one) =>
    ` ${one.temperature === 0 ? "Greedy" : `At temperature ${number(one.temperature)}`}: ${percent(one.before.rate, 1)} → ${percent(one.after.rate, 1)} (${interval(one.change)}; ${number(one.after.episodes)} episodes).`);
  return el(".headline", {}, el("b.big", {}, el("span.from", {}, percent(report.success_before, 1)), " → ", el(change.mean >= 0 ? "span.up" : "span.down", {}, percent(report.success_after, 1))),
    el("p", {}, `of held-out episodes succeed after ${found.minutes.toFixed(1)} minutes of reinforcement learning${by(report)}: a change of `, el("b", {}, `${signed(change.mean * 100)} points`), ` (95 % interval ${signed(change.low * 100)} to ${signed(change.high * 100)}). `,
      `Sampled at temperature ${number(found.temperature)}, ${number(report.evaluation.after.episodes)} episodes each, on the same instances, with seeds never trained on.`, further));
}

/** @param {any} report */
function by(report) {
  return report.recipe?.length ? ` by the recipe ${report.recipe.join(" and ")}` : "";
}

/** @param {{mean: number, low: number, high: number}} change */
function interval(change) {
  return `${signed(change.mean * 100)}, ${signed(change.low * 100)} to ${signed(change.high * 100)}`;
}

/** @param {any} report */
function cards(report) {
  const { staleness, weight_switch_ms: pause, overhead_ms: overhead } = report;
  /** @type {[string, string, string][]} */
  const all = [
    [number(report.env_steps_per_s), "env steps/s in training", `${number(report.env_steps)} in ${number(report.episodes)} episodes of training`],
    [percent(report.env_utilisation), "environments busy", "share of slot time with an episode"],
    [duration(overhead.p50), "overhead a step, p50", `p99 ${duration(overhead.p99)}, without generation`],
    [number(report.versions_served), "versions served in place", `${number(report.train_steps)} optimizer steps`],
    [duration(pause.p50), "weight switch pause, p50", `longest ${duration(pause.max)}`],
    [number(staleness.mean), "staleness at training, mean", `in weight versions; largest ${number(staleness.max)}`],
    [percent(report.trainer.idle_share), "trainer idle", "of training time, waiting for groups"],
    [report.lost === null ? "unknown" : number(report.lost), "lost orders", report.requests.sent === null ? UNMEASURED : `${number(report.requests.timed_out)} requests timed out`],
  ];
  return el(".cards", {}, all.map(([value, name, meaning]) => el(".metric", {}, el("b", {}, value), el("div", {}, name), el("span", {}, meaning))));
}

/** @param {any} report */
function stepTime(report) {
  const known = ["queue", "generate", "overhead", "execute"].map((name) => /** @type {[string, number]} */ ([name, report.step_ms[name].mean ?? 0])).filter(([, ms]) => ms);
  return known.length ? shares("one environment step, mean", known, duration) : null;
}

/** The episodes of each sample task as strips of screens. @param {any} found @param {App} app */
async function samples(found, app) {
  const rows = found.samples.map(async (/** @type {any} */ pair) => {
    const played = await Promise.all([pair.a, pair.b].map((one) => get("trajectory", { id: one.trajectory_id }).catch(() => null)));
    const instruction = played[1]?.steps[0]?.event.instruction ?? "";
    const strips = [pair.a, pair.b].map((one, index) => el(".strip", {},
      el("p.note", {}, `${index ? "after" : "before"}, `, versions(one.version_min, one.version_max), " ", el(`span.chip.${one.outcome}`, {}, one.outcome)), strip(played[index], (step) => app.href("trajectory", { id: one.trajectory_id, step }))));
    return el(".sample", {}, el("h3", {}, instruction, " ", el("code", {}, pair.task_id)), el(".strips", {}, strips));
  });
  return el("div", {}, await Promise.all(rows));
}

/** @param {any} found @param {HTMLElement} success @param {HTMLElement} environments */
function overTime(found, success, environments) {
  const { evaluation } = found.report, drawn = [];
  if (found.success.x.length) {
    const edge = Math.max(0.25, found.minutes * 0.035), last = found.minutes;
    const marks = [[evaluation.before, -edge, "--failure"], [evaluation.after, last + edge, "--success"]].filter(([rate]) => rate?.episodes)
      .map(([rate, x, color]) => ({ x, low: rate.low, value: rate.rate, high: rate.high, color }));
    drawn.push(chart(success, { title: "success over time", quantity: "share of episodes", x: found.success.x, time: false, wide: true, height: 240, unit: MINUTES, range: [0, 1.02], span: [-2 * edge, last + 2 * edge], marks, ticks: found.published_min,
      series: [{ name: "five seconds of training episodes", values: found.success.lines.slice, points: true, fill: "--p7" }, { name: "smoothed over half a minute", values: found.success.lines.smoothed, width: 2.2 }] }));
    success.append(el("p.note", {}, `${marks.length ? "The ends are held-out evaluations with 95 % intervals, ticks" : "Ticks"} below are weight versions.`));
  }
  if (found.slot_shares.x.length) drawn.push(stacked(environments, { title: "slot time", quantity: "share", x: found.slot_shares.x, time: false, unit: MINUTES, range: [0, 1] }, found.slot_shares.lines, SLOT_COLORS));
  if (found.rate.x.length) {
    drawn.push(chart(environments, { title: "environment steps", quantity: "steps/s", x: found.rate.x, time: false, unit: MINUTES, series: [{ name: "smoothed", values: found.rate.lines.smoothed, width: 2 }, { name: "five seconds each", values: found.rate.lines.slice, width: 0.8 }] }));
  }
  if (found.outcomes.x.length) drawn.push(stacked(environments, { title: "outcomes of training episodes", quantity: "share", x: found.outcomes.x, time: false, unit: MINUTES, range: [0, 1] }, found.outcomes.lines, Object.keys(found.outcomes.lines).map((name) => OUTCOME_COLORS[name])));
  return drawn;
}

/** @param {any} found @param {import("./metrics.js").Metric[]} metrics @param {HTMLElement} pairs @param {HTMLElement} learning */
function bySteps(found, metrics, pairs, learning) {
  const drawn = [];
  if (found.staleness.x.length) {
    drawn.push(chart(pairs, { title: "staleness at training", quantity: "versions", x: found.staleness.x, time: false, unit: "optimizer step", bound: found.bound, range: [0, Math.max(found.bound, ...found.staleness.lines.oldest) + 0.8],
      span: [found.staleness.x[0] - 0.6, found.staleness.x[found.staleness.x.length - 1] + 0.6],
      series: [{ name: "oldest", values: found.staleness.lines.oldest, bars: true, fill: "--free" }, { name: "mean", values: found.staleness.lines.mean }] }));
  }
  if (found.pauses.x.length) drawn.push(chart(pairs, { title: "pause of generation for each weight switch", quantity: "ms", x: found.pauses.x, time: false, unit: "weight version", series: [{ values: found.pauses.lines.pause, points: true }] }));
  for (const [name, values] of Object.entries(found.learning.lines)) drawn.push(curve(learning, metric(metrics, name), { x: found.learning.x, values: /** @type {any} */ (values), smoothing: found.learning.x.length > RAW_STEPS ? SMOOTHING : 1 }));
  return drawn;
}

/** @param {any} report */
function accounts(report) {
  const { trajectories, requests, trainer } = report, cpu = Object.entries(report.cpu_s).sort(([, a], [, b]) => b - a);
  return el("section.part-of-report", {}, el("h2", {}, "Accounts"), el("p.note", {}, "Each order must finish, be placed again, or be open at the end of the run."),
    facts([["trajectories finished", number(trajectories.finished)], ["trained on", `${number(trajectories.trained)}, and ${number(trajectories.from_pool)} from the pool`], ["not trained on", `${number(trajectories.dropped)} (equal rewards, too old, or after the last step)`],
      ["tasks proposed", report.proposals ? `${number(report.proposals.accepted)} accepted, ${number(report.proposals.refused)} refused, ${number(report.proposals.waiting)} waiting` : null],
      ["groups curated", `${number(report.groups.curated)}, consumed ${number(report.groups.consumed)}`], ["requests", requests.sent === null ? UNMEASURED : `${number(requests.sent)} sent, ${number(requests.answered)} answered, ${number(requests.timed_out)} timed out`],
      ["prompt tokens", report.prompts?.tokens ? `${number(report.prompts.tokens)}, ${percent(report.prompts.cached_share)} from the prefix cache` : null],
      ["screenshots", report.prompts?.encodings ? `${number(report.prompts.screenshots)}, encoded ${number(report.prompts.encodings)} times` : null],
      ["answers tokenized again", report.prompts?.answers_retokenized ? `${number(report.prompts.answers_retokenized)} with other tokens than generated (${percent(report.prompts.retokenized_share)})` : null],
      ["orders lost", `${report.lost === null ? "unknown" : number(report.lost)}, still open ${number(report.open)}`], ["failed loads", number(report.failed_loads)], ["weights served", digests(report.served_weights)],
      ["engine–trainer gap", `${number(trainer.mismatch.mean)} nats a token, mean; ${number(trainer.mismatch.max)} max`],
      ["objective", `${trainer.objective.name}, clip ${trainer.objective.clip_low} below and ${trainer.objective.clip_high} above; ${number(trainer.updates)} updates`],
      ["not finite, skipped", trainer.updates_not_finite || trainer.not_finite_groups ? `${number(trainer.updates_not_finite)} updates, ${number(trainer.not_finite_groups)} groups` : null],
      ...Object.entries(report.answers_wrong ?? {}).map(([treated, kinds]) => /** @type {[string, string | null]} */ ([`faults in ${treated} answers`, Object.entries(kinds).map(([kind, count]) => `${kind} ${number(count)}`).join(", ") || null])),
      ["tokens computed for a distinct one", trainer.computed ? `${number(trainer.computed.tokens_per_distinct)}; ${number(trainer.computed.images_encoded)} encodings of ${number(trainer.computed.images_distinct)} screenshots` : null],
      ["KL from the initial policy", trainer.kl_reference ? `${number(trainer.kl_reference.mean)} nats a token, mean; ${number(trainer.kl_reference.max)} max (beta ${trainer.objective.kl_beta})` : null]]),
    cpu.length ? shares("CPU seconds in training, by process", cpu, (s) => `${number(s)} s`) : null);
}

/** The comparison of served and published versions by digest; null for engines without weights and for old reports. @param {any} served */
function digests(served) {
  if (!served || served.announced === served.without_digest) return null;
  const kinds = Object.entries(served.equal_by_kind).map(([kind, count]) => `${kind} ${number(count)}`).join(", ");
  const wrong = [["with another digest", served.different], ["never published", served.unpublished], ["without a digest", served.without_digest]].filter(([, count]) => count);
  return [`${number(served.equal)} of ${number(served.announced)} bit-identical to the published weights${kinds ? ` (${kinds})` : ""}`, ...wrong.map(([what, count]) => `${number(count)} ${what}`)].join("; ");
}

/** Episodes without a reward, by reason; by task and host on demand. @param {any} report */
function faults(report) {
  const totals = report.fault_totals ?? {};
  if (!totals.env && !totals.policy && !report.env_faults?.length) return null;
  /** @param {string} what @param {number | undefined} total @param {Record<string, number> | undefined} kinds */
  const byReason = (what, total, kinds) => Object.keys(kinds ?? {}).length ? [el("p.note", {}, `${what}: ${number(total)} episodes`), table(Object.entries(kinds ?? {}), [["reason", ([kind]) => kind], ["episodes", ([, count]) => number(count)]])] : [];
  return el("section.part-of-report", {}, el("h2", {}, "Faults"), el("p.note", {}, "Episodes that ended without a reward, by reason; numbers in a reason are N."),
    ...byReason("Faults of environments", totals.env, report.env_fault_kinds), ...byReason("Faults of the policy", totals.policy, report.policy_fault_kinds),
    report.env_faults?.length ? el("details", {}, el("summary", {}, "by task and host, with the newest reason"), table(report.env_faults, [["task", (one) => one.task], ["host", (one) => one.host], ["episodes", (one) => number(one.episodes)], ["reason", (one) => one.reason]])) : null);
}

/** The machine, versions, revision and command of the newest start. @param {any} report */
function provenance(report) {
  const starts = report.starts ?? [], start = starts[starts.length - 1];
  if (!start) return null;
  const { machine } = start, libraries = Object.entries(start.libraries).map(([name, version]) => `${name} ${version}`).join(", ");
  return el("section.part-of-report", {}, el("h2", {}, "Machine and versions"), el("p.note", {}, starts.length > 1 ? `The newest of ${number(starts.length)} starts; report.json has all.` : ""),
    facts([["machine", `${machine.cpu}, ${number(machine.cores)} cores, ${number(machine.memory_gib)} GiB of memory`], ["GPUs", machine.gpus.join("; ") || "none"],
      ["dart_streams", `${start.version}${start.revision ? `, revision ${start.revision}` : ""}`], ["libraries", `Python ${start.python}, ${libraries}`], ["command", el("code", {}, start.command)]]));
}

/** Processes that died. @param {any} report */
function deaths(report) {
  if (!report.deaths?.length) return null;
  return el("section.part-of-report", {}, el("h2", {}, "Processes that died"), el("p.note", {}, "Other processes took over the work of each. See the log of a process for details."),
    table(report.deaths, [["process", (one) => one.process], ["deaths", (one) => number(one.times)], ["restarts", (one) => one.restarts === null || one.restarts === undefined ? "unknown" : number(one.restarts)], ["reason", (one) => one.reason], ["last line of its log", (one) => one.last_line]]));
}

/** The phases as bars over time. @param {{name: string, started_ms: number, ended_ms: number}[]} all */
function phases(all) {
  if (!all.length) return null;
  const start = all[0].started_ms, span = Math.max(...all.map((one) => one.ended_ms - start), 1), wide = 600;
  return el("section.part-of-report", {}, el("h2", {}, "Phases"), el(".scroll", {}, el("table", {}, el("tbody", {}, all.map((one) => el("tr", {}, el("td", {}, one.name), el("td.number", {}, duration(one.ended_ms - one.started_ms)),
    el("td.span", {}, svg("svg", { viewBox: `0 0 ${wide} 10`, preserveAspectRatio: "none", class: "gantt", "aria-hidden": "true" },
      svg("rect", { x: ((one.started_ms - start) / span) * wide, y: 1, width: Math.max(2, ((one.ended_ms - one.started_ms) / span) * wide), height: 8, rx: 2, class: one.name })))))))));
}
