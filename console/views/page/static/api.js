// @ts-check
/** The server's views, and the socket that pushes changes. */

import { answer, exported } from "./archive.js";

const asked = new URLSearchParams(exported ? "" : location.search);
/** The ids in the address: the run that is shown and the one that it is compared with; empty for the page's own. */
export const shown = { run: asked.get("run") ?? "", against: asked.get("against") ?? "" };

/**
 * The query of a request, with the runs of the address.
 * @param {Record<string, string>} [query]
 */
export function scoped(query = {}) {
  const runs = Object.entries(shown).filter(([, id]) => id);
  return String(new URLSearchParams([...Object.entries(query), ...runs]));
}

/**
 * The address of a page of another run, as a link; empty ids are the page's own runs.
 * @param {string} run @param {string} against @param {string} hash
 */
export function elsewhere(run, against, hash) {
  const named = Object.entries({ run, against }).filter(([, id]) => id);
  return `/${named.length ? `?${new URLSearchParams(named)}` : ""}${hash}`;
}

/** What proves beside the cookie that a script of this page asks. Browsers send the cookie to other ports too, and show this to no other. */
export const csrf = kept();

function kept() {
  try { return localStorage.getItem("dart_streams csrf") ?? ""; } catch { return ""; }
}

/** Ask for the token where the page was started again, or where another address has been opened since. */
function signIn() {
  location.replace(`/?${scoped({ token: "" })}${location.hash}`);
}

/** The server's error for a failed request; ``again`` for a service that did not answer, which a later request may. */
export class Problem extends Error {
  /** @param {string} text */
  constructor(text, again = false) {
    super(text);
    this.again = again;
  }
}

/** What the requests since an opening of a page were: ``partial`` if an answer was made before all records were read. */
export const requests = { partial: false };

/**
 * @param {string} view
 * @param {Record<string, string | number | undefined>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(view, query = {}, signal) {
  const wanted = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  if (exported) return answer(view, wanted).catch((error) => { throw new Problem(error.message); });
  const search = Object.fromEntries(wanted.map(([name, value]) => [name, String(value)]));
  const response = await fetch(`/api/${view}?${scoped(search)}`, { signal, headers: { "X-Dart-Csrf": csrf } });
  if (response.headers.get("X-Run-Read") === "no") requests.partial = true;
  return answered(response);
}

/** The value of an answer; throws the server's reason for a refusal. @param {Response} response @returns {Promise<any>} */
async function answered(response) {
  if (response.ok) return response.json();
  if (response.status === 401) signIn();
  const text = await response.text();
  let reason = text;
  try { reason = JSON.parse(text).error ?? text; } catch { /* the text is a plain sentence */ }
  throw new Problem(reason, response.status === 503);
}

/**
 * @typedef {{feedback: boolean, author: string}} Rights
 * Send a feedback as a viewer who may give it.
 * @param {Record<string, string | number>} feedback
 */
export async function send(feedback) {
  const headers = { "Content-Type": "application/json", "X-Dart-Csrf": csrf };
  const sent = fetch(`/api/feedback?${scoped()}`, { method: "POST", headers, body: JSON.stringify(feedback) });
  return answered(await sent.catch(() => { throw new Problem("The page's server does not answer. Give the feedback again once it does."); }));
}

/** A socket that reopens when the watched view changes and after it breaks, unless the server has ended it. */
export class Live {
  /** @param {(message: any) => void} receive @param {(alive: boolean) => void} report */
  constructor(receive, report) {
    this.receive = receive;
    this.report = report;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.query = "";
    this.pause = 500;
    this.ended = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
  }

  /** @param {Record<string, string>} query */
  watch(query) {
    const wanted = scoped(query);
    this.ended = false;
    if (exported || (wanted === this.query && this.socket)) return;
    this.query = wanted;
    this.close();
    this.open();
  }

  /** Close the socket; while it connects, right after: a browser reports a handshake that is given up as a failure. */
  close() {
    const socket = this.socket;
    this.socket = null;
    if (socket?.readyState === WebSocket.CONNECTING) socket.onopen = () => socket.close();
    else socket?.close();
  }

  open() {
    if (exported || this.ended || this.socket || document.hidden) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/api/live?${this.query}&csrf=${csrf}`);
    this.socket = socket;
    socket.onmessage = (event) => {
      if (socket !== this.socket) return;
      this.pause = 500;
      const message = JSON.parse(event.data);
      this.ended = Boolean(message.gone);
      if (!this.ended) this.report(true);
      this.receive(message);
    };
    socket.onclose = () => {
      if (socket !== this.socket) return;
      this.socket = null;
      if (this.ended) return;
      this.report(false);
      get("rights").catch(() => {}); // Who is not known any more signs in again; a socket does not say so.
      setTimeout(() => this.open(), this.pause);
      this.pause = Math.min(8000, this.pause * 2);
    };
  }
}
