// @ts-check
/** The frame of the page: the address selects the view, a socket pushes changes, and keys and links navigate. */

import { Live, Problem, elsewhere, get, requests, shown } from "./api.js";
import { exported } from "./archive.js";
import { el, fill } from "./dom.js";
import { clock, duration, number, percent } from "./format.js";
import * as compare from "./compare.js";
import * as group from "./group.js";
import * as log from "./log.js";
import * as queue from "./queue.js";
import * as report from "./report.js";
import * as search from "./search.js";
import * as step from "./step.js";
import * as steps from "./steps.js";
import * as task from "./task.js";
import * as tasks from "./tasks.js";
import * as time from "./time.js";
import * as trajectories from "./trajectories.js";
import * as trajectory from "./trajectory.js";
import * as unknown from "./unknown.js";
import * as wall from "./wall.js";

/**
 * @typedef {Record<string, string>} Params
 * @typedef {object} Shown the hooks of an open page
 * @property {Record<string, string>} [watch] the socket's query
 * @property {(message: any) => void} [update]
 * @property {() => Promise<void>} [refresh] read the data again
 * @property {(event: KeyboardEvent) => boolean | void} [key] return true for a handled key
 * @property {() => void} [close]
 * @typedef {object} Page
 * @property {string} title
 * @property {(view: HTMLElement, params: Params, app: App) => Promise<Shown>} open
 */

/** The list of runs, which an exported file has not. @type {Page} */
const runs = { title: "Runs", open: async (view, params, app) => (await import("./runs.js")).open(view, params, app) };
/** @type {Record<string, Page>} */
const PAGES = { wall, trajectories, trajectory, group, steps, step, tasks, task, time, log, report, compare, queue, runs, search };
/** @type {[string, string[]][]} tabs and their subpages */
const ALL_TABS = [["wall", []], ["trajectories", ["trajectory", "group"]], ["tasks", ["task"]], ["steps", ["step"]], ["time", []], ["log", []], ["report", []], ["compare", []], ["queue", []], ["runs", []]];
/** The tabs of an exported file. */
const IN_FILE = ["report", "compare", "steps", "tasks", "time"];
const TABS = exported ? IN_FILE.map((name) => /** @type {[string, string[]]} */ ([name, name === "steps" ? ["step"] : name === "report" ? ["trajectory"] : []])) : ALL_TABS;
const HOME = exported ? "report" : "wall";
const REFRESH_MS = 2000;
const AWAY_MS = 1500;
/** The time after which a page that opens says so. */
const SLOW_MS = 250;

export class App {
  constructor() {
    this.view = /** @type {HTMLElement} */ (document.getElementById("view"));
    /** @type {Shown} */
    this.shown = {};
    /** @type {any} */
    this.header = null;
    /** @type {import("./api.js").Rights} */
    this.rights = { feedback: false, author: "" };
    /** Whether a service did not answer as the page was opened. */
    this.failed = false;
    this.openedMs = 0;
    this.skewMs = 0;
    this.place = "";
    /** @type {HTMLElement | null} */
    this.pressed = null;
    this.turn = 0;
    this.awayMs = 0;
    /** @type {number[]} */
    this.timings = [];
    this.refreshed = { records: -1, atMs: 0, busy: false };
    this.live = new Live((message) => this.receive(message), (alive) => this.report(alive));
  }

  /** The server's time now, in epoch milliseconds. */
  now() {
    return exported || this.header?.kind === "bundle" ? this.header?.now_ms ?? 0 : Date.now() + this.skewMs;
  }

  /** @param {string} page @param {Record<string, string | number | null | undefined>} [params] */
  href(page, params = {}) {
    const given = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
    const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
    return `#/${page}${given.length ? `?${search}` : ""}`;
  }

  /**
   * @param {string} page @param {Record<string, string | number | null | undefined>} params
   * @param {string | Node} content @param {string} [title]
   */
  link(page, params, content, title) {
    return el("a", { href: this.href(page, params), title }, content);
  }

  /** Change the parameters of the address without reopening the page. @param {Params} params */
  remember(params) {
    const { page, params: before } = parse();
    this.place = this.href(page, { ...before, ...params });
    history.replaceState(null, "", this.place);
  }

  async open() {
    const { page, params } = parse();
    this.place = location.hash;
    const turn = ++this.turn, began = performance.now();
    this.openedMs = began;
    this.failed = requests.partial = false;
    const known = PAGES[page] ?? unknown;
    document.title = `${known.title} · dart_streams`;
    for (const tab of document.querySelectorAll("#tabs a")) {
      const name = tab.getAttribute("data-tab") ?? "";
      const below = TABS.find(([one]) => one === name)?.[1] ?? [];
      const here = name === page || below.includes(page);
      tab.classList.toggle("here", here);
      if (here) tab.setAttribute("aria-current", "page");
      else tab.removeAttribute("aria-current");
    }
    const view = el("div.page");
    view.dataset.page = page;
    view.dataset.place = location.hash;
    let shown = {};
    const loading = /** @type {HTMLElement} */ (document.getElementById("loading"));
    const slow = setTimeout(() => { loading.hidden = false; fill(loading, `Loading: ${known.title} …`); }, SLOW_MS);
    try {
      shown = await known.open(view, params, this);
    } catch (error) {
      view.append(view.querySelector("h1") ? "" : el("h1", {}, known.title), el("p.problem", {}, message(error)));
      if (!(error instanceof Problem)) console.error(error);
      else if (turn === this.turn) this.failed = error.again;
    }
    clearTimeout(slow);
    if (turn === this.turn) loading.hidden = true;
    if (turn !== this.turn) return /** @type {Shown} */ (shown).close?.();
    this.shown.close?.();
    this.shown = shown;
    const before = /** @type {HTMLElement | null} */ (this.view.firstElementChild)?.dataset.page;
    this.view.replaceChildren(view);
    if (before && before !== page) scrollTo(0, 0);
    this.live.watch(this.shown.watch ?? {});
    requestAnimationFrame(() => this.timed(performance.now() - began));
    view.dataset.ready = "yes";
  }

  /** @param {number} ms the time to open the page */
  timed(ms) {
    this.timings = [...this.timings.slice(-99), ms];
    const sorted = [...this.timings].sort((a, b) => a - b);
    const foot = /** @type {HTMLElement} */ (document.getElementById("foot"));
    fill(foot, `page in ${Math.round(ms)} ms, p50 ${Math.round(sorted[sorted.length >> 1])} ms of ${sorted.length}`,
      el("span.keys", {}, `keys: / find · ${TABS.length > 9 ? "1–9 0" : `1–${TABS.length}`} tabs · j k ← → Home End steps · t light or dark · Backspace back`));
  }

  /** @param {any} message */
  receive(message) {
    if (message.gone) return this.end(message.gone);
    this.header = message.header;
    this.skewMs = message.header.now_ms - Date.now();
    this.draw();
    if (this.isStale()) this.open();
    this.shown.update?.(message);
    this.refresh();
  }

  /** Whether the page has to be opened again: a service did not answer it, or it shows a part of a run that is read now. */
  isStale() {
    if (this.failed) return performance.now() - this.openedMs >= REFRESH_MS;
    return requests.partial && this.header.ready && !this.shown.refresh && !this.shown.update;
  }

  /** Read the page's data again after new records, at most every two seconds, and not during a selection or input. */
  async refresh() {
    const state = this.refreshed, now = performance.now();
    if (!this.shown.refresh || state.busy || now - state.atMs < REFRESH_MS || this.header.records === state.records) return;
    if (String(getSelection()) || document.activeElement?.matches("input, select")) return;
    Object.assign(state, { records: this.header.records, atMs: now, busy: true });
    try {
      await this.shown.refresh();
    } catch (error) {
      state.records = -1;
      if (!(error instanceof Problem)) console.error(error);
    } finally {
      state.busy = false;
    }
  }

  draw() {
    const h = this.header;
    fill(/** @type {HTMLElement} */ (document.getElementById("run")), h.run);
    const status = /** @type {HTMLElement} */ (document.getElementById("status"));
    const since = h.phase_ms ? ` ${duration(this.now() - h.phase_ms)}` : "";
    /** @type {[string, string][]} */
    const parts = [
      [h.kind === "bundle" ? "bundle" : "phase", h.phase + since],
      ["success in training", percent(h.success)],
      ["all episodes", `${number(h.episodes)}${h.open ? ` + ${h.open} open` : ""}`],
      ["all steps", `${number(h.steps)}${h.steps_per_s ? ` · ${number(h.steps_per_s)}/s` : ""}`],
      ["groups", `${number(h.groups)} curated · ${number(h.groups_consumed)} consumed`],
      ["version", `${h.version ?? "–"} trained · ${h.served ?? "–"} served`],
    ];
    fill(status, parts.map(([name, value]) => el("span", {}, el("i", {}, name), value)),
      h.ready && !h.text ? null : el(h.ready ? "span.said" : "span.wait", {}, h.text || "reading"));
    fill(/** @type {HTMLElement} */ (document.getElementById("alarms")), h.alarms.map((/** @type {any} */ alarm) => el("p", {}, this.link(alarm.page, alarm.params ?? {}, `▲ ${alarm.text}`))));
  }

  /** Say that another run than the page's own is shown, with the way back. */
  drawPlace() {
    const beside = /** @type {HTMLElement} */ (document.getElementById("beside"));
    beside.hidden = !shown.run && !shown.against;
    if (beside.hidden) return;
    const against = shown.against ? [" compared with ", el("b", {}, shown.against)] : [];
    fill(beside, shown.run ? ["This is ", el("b", {}, shown.run), ","] : "This is the run that the page was started for,", ...against, shown.run ? " beside the run that the page was started for. " : ". ",
      el("a", { href: elsewhere("", "", shown.run ? "#/wall" : location.hash) }, shown.run ? "Back to that one" : "Back to it alone"));
  }

  /** Say why this tab gets no more changes. @param {string} reason */
  end(reason) {
    document.getElementById("pulse")?.classList.add("off");
    const away = /** @type {HTMLElement} */ (document.getElementById("away"));
    away.hidden = false;
    fill(away, reason, " ", this.link("runs", {}, "All runs"));
  }

  /** Show a notice once the server has not answered for a while. @param {boolean} alive */
  report(alive) {
    document.getElementById("pulse")?.classList.toggle("off", !alive);
    this.awayMs = alive ? 0 : this.awayMs || Date.now();
    const away = /** @type {HTMLElement} */ (document.getElementById("away"));
    away.hidden = alive || Date.now() - this.awayMs < AWAY_MS;
    if (!away.hidden) fill(away, `The page's server has not answered since ${clock(this.awayMs)}. The page shows the run at that time and retries by itself. If the run has ended, its result is in report.html, and dart-streams ui ${this.header?.run ?? "RUN"} opens this page again.`);
  }

  /** @param {string} id */
  async find(id) {
    const field = /** @type {HTMLInputElement} */ (document.getElementById("find"));
    try {
      const { page, ...params } = await get("find", { id });
      location.hash = this.href(page, params);
    } catch (error) {
      if (exported) location.hash = this.href("log", { q: id, said: message(error) });
      else location.hash = this.href("search", { q: id });
    }
    field.value = "";
    field.blur();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.matches("input:not([type=range]), select, textarea")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (this.shown.key?.(event)) event.preventDefault();
    else if (event.key === "/") { event.preventDefault(); document.getElementById("find")?.focus(); }
    else if (event.key === "t") theme();
    else if (event.key === "Backspace") history.back();
    else if (/^\d$/.test(event.key) && TABS[(Number(event.key) + 9) % 10]) location.hash = this.href(TABS[(Number(event.key) + 9) % 10][0]);
  }

  async start() {
    const tabs = /** @type {HTMLElement} */ (document.getElementById("tabs"));
    fill(tabs, TABS.map(([name]) => el("a", { href: `#/${name}`, "data-tab": name }, PAGES[name].title)));
    document.getElementById("finder")?.addEventListener("submit", (event) => {
      event.preventDefault();
      const id = /** @type {HTMLInputElement} */ (document.getElementById("find")).value.trim();
      if (id) this.find(id);
    });
    document.getElementById("theme")?.addEventListener("click", theme);
    document.querySelector(".brand")?.setAttribute("href", this.href(HOME));
    addEventListener("hashchange", () => location.hash !== this.place && this.open());
    addEventListener("keydown", (event) => this.key(event));
    // A browser clicks what is there at press and release alike: what new data replaced between them is clicked here.
    addEventListener("pointerdown", (event) => { this.pressed = event.button ? null : /** @type {Element} */ (event.target).closest("a, button"); });
    addEventListener("pointerup", () => this.pressed?.isConnected === false && this.pressed.click());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("theme")));
    this.drawPlace();
    // The header of an exported file never changes.
    if (exported) get("run").then((run) => this.receive({ header: run.header }));
    else this.rights = await get("rights").catch(() => this.rights);
    this.open();
  }
}

/** @returns {{page: string, params: Params}} the view in the address */
function parse() {
  const [page, search] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: page || HOME, params: Object.fromEntries(new URLSearchParams(search ?? "")) };
}

/** @param {unknown} error */
function message(error) {
  return error instanceof Error ? error.message : String(error);
}

/** Switch between light and dark, and store the choice. */
function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* some browsers have no storage for a file */ }
  dispatchEvent(new Event("theme"));
}

try {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* some browsers have no storage for a file */ }
new App().start();
