// @ts-check
/** Values as text; a missing value is a dash, not 0. */

/** @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

/** A number with its noun: 1 step, 2 steps. @param {number} value @param {string} noun */
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** @param {number | null | undefined} value @param {number} [digits] after the point */
export function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${(value * 100).toFixed(digits)} %`;
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")} min`;
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.floor(minutes / 1440)} days`;
}

/** @param {number | null | undefined} ms epoch milliseconds */
export function clock(ms) {
  return ms ? new Date(ms).toLocaleTimeString("en-GB") : "–";
}

/** A day with its time, and its year if that is another one. @param {number | null | undefined} ms epoch milliseconds */
export function moment(ms) {
  if (!ms) return "–";
  const at = new Date(ms), year = at.getFullYear() === new Date().getFullYear() ? undefined : "numeric";
  return at.toLocaleString("en-GB", { day: "numeric", month: "short", year, hour: "2-digit", minute: "2-digit" });
}

/** @param {number | null | undefined} low @param {number | null | undefined} high */
export function versions(low, high) {
  if (low === null || low === undefined) return "–";
  return low === high ? `v${low}` : `v${low}–${high}`;
}

/** The end of a long id; ids of the same time share their beginning. @param {string} id */
export function short(id) {
  return id.length > 16 ? `…${id.slice(-10)}` : id;
}

const NATURAL = new Intl.Collator("en", { numeric: true });

/** Compare two ids so that #2 comes before #10. @param {string} a @param {string} b */
export function natural(a, b) {
  return NATURAL.compare(a, b);
}

const CALL = /call\(name='([^']*)', arguments='((?:[^'\\]|\\.)*)'\)/gs;

/** An action without the keywords of the grammar; a called function with its arguments. @param {string} text */
export function brief(text) {
  if (text.startsWith("Action: call(")) return text.slice(8).replace(CALL, (_, name, json) => `${name}(${json.replace(/\\([\\'])/g, "$1")})`);
  return text.replace(/^.*Action:\s*/s, "").replace(/(start_box|end_box|content|key|direction)=/g, "").replace(/'\((\d+), ?(\d+)\)'/g, "$1,$2");
}
