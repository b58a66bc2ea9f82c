// @ts-check
/** The page of a person who plays an episode, or takes a rollout over: gestures on the screen go to the server, one for each screen. */

import { el, fill } from "./dom.js";

/**
 * @typedef {{sha256: string, width: number, height: number}} Shot
 * @typedef {{stage: "idle" | "ordered" | "policy" | "turn" | "acting" | "ended", task: string, instruction?: string, request?: string,
 *   max_steps?: number, taken?: string[], screen?: Shot | null, recorded?: boolean, held?: boolean, asking?: boolean, lost?: boolean, people?: boolean[],
 *   end?: {kind: string, reward: number | null, reason: string} | null}} View
 * @typedef {Record<string, unknown>} Gesture
 */
const CLICKS_MS = 280;
const TYPING_MS = 700;
const WHEEL_MS = 180;
const DRAG_PIXELS = 5;
const RETRY_MS = 1000;
const MOST_SCALE = 3;
/** @type {("left" | "middle" | "right")[]} */
const BUTTONS = ["left", "middle", "right"];
const MODIFIERS = new Set(["Control", "Alt", "Shift", "Meta", "AltGraph", "CapsLock", "Dead", "Process", "Unidentified"]);

/** The rollout that the person takes over, null for a demonstration. */
const rollout = new URLSearchParams(location.search).get("trajectory");

/** @template {HTMLElement} T @param {string} id @returns {T} */
const byId = (id) => /** @type {T} */ (document.getElementById(id));
const stage = byId("stage");
const image = /** @type {HTMLImageElement} */ (byId("screen"));
const hover = byId("hover");
const actual = byId("actual");
const written = /** @type {HTMLInputElement} */ (byId("action"));

/** @type {View} */
let view = { stage: "idle", task: "" };
/** @type {WebSocket | null} */
let socket = null;
/** Keys wait for their turn, and so does what follows them. Else the pointer acts on the screen of that moment, or not at all. @type {Gesture[]} */
const queue = [];
let afterKeys = false;
let typed = "";
let sentFor = "";
let refused = false;
let typing = 0;
/** @type {{x: number, y: number, button: number, clientX: number, clientY: number} | null} */
let pressed = null;
/** @type {{x: number, y: number, button: "left" | "middle" | "right", count: number, timer: number} | null} */
let clicks = null;
/** @type {{x: number, y: number, right: number, down: number, timer: number} | null} */
let wheel = null;

async function connect() {
  const csrf = stored("dart_streams csrf");
  const rights = rollout ? await fetch("/api/rights", { headers: { "X-Dart-Csrf": csrf } }).then((answer) => answer.ok ? answer.json() : null).catch(() => null) : {};
  if (rights === null) return void away();
  if (rollout && !rights.feedback) return void say("this address only reads: open the one for feedback", "fault");
  const query = new URLSearchParams(rollout ? { trajectory: rollout, author: stored("feedback author") || rights.author, csrf } : { csrf });
  const opened = new WebSocket(`${location.origin.replace("http", "ws")}${rollout ? "/api/take-over" : "/play"}?${query}`);
  opened.addEventListener("message", (event) => receive(JSON.parse(event.data)));
  opened.addEventListener("close", away);
  socket = opened;
}

/** What the page of the run, or signing in, has kept in this browser. @param {string} name */
function stored(name) {
  try { return localStorage.getItem(name) ?? ""; } catch { return ""; }
}

function away() {
  socket = null;
  if (refused) return;
  say("connection lost: trying again", "fault");
  setTimeout(connect, RETRY_MS);
}

/** @param {View & {problem?: string, final?: boolean}} message */
function receive(message) {
  byId("problem").hidden = message.problem === undefined;
  if (message.problem !== undefined) {
    byId("problem").textContent = message.problem;
    sentFor = "";
    refused = message.final === true;
    if (refused) {
      say("not taken over", "fault");
      document.body.dataset.stage = "refused";
    }
    return;
  }
  const before = view.screen?.sha256;
  if (message.stage === "ended" || message.stage === "policy") queue.length = 0;
  view = message;
  show(before);
  flush();
}

/** @param {string} text @param {string} [kind] */
function say(text, kind = "") {
  byId("said").textContent = text;
  byId("said").className = kind;
}

/** @param {string | undefined} before the screen that was shown */
function show(before) {
  const { stage: now, end, screen, taken = [] } = view;
  byId("task").textContent = view.task;
  byId("instruction").textContent = view.instruction ?? "";
  byId("begin").hidden = rollout ? now !== "policy" || view.held === true || view.asking === true : now !== "idle" && now !== "ended";
  byId("begin").textContent = rollout ? "Take over" : now === "ended" ? "Play again" : "Begin";
  byId("give-back").hidden = byId("back").hidden = !rollout;
  /** @type {HTMLButtonElement} */ (byId("give-back")).disabled = now !== "turn";
  for (const id of ["wait", "hover", "done", "give-up"]) /** @type {HTMLButtonElement} */ (byId(id)).disabled = now !== "turn";
  stage.classList.toggle("busy", now === "acting");
  if (now === "idle") say("press Begin: the run then gives you a slot");
  else if (now === "ordered") say("waiting for a free slot of the run");
  else if (now === "policy") {
    if (view.held) say("another person plays this episode: wait until they give it back", "fault");
    else say(view.asking ? "the policy acts: your turn comes with its next screen" : "the policy plays: press Take over to act in its place");
  } else if (view.lost) say("the environment worker was lost: the policy plays the task again from its start", "fault");
  else if (now === "turn") say(`your turn: action ${taken.length + 1} of ${view.max_steps} at most`, "mine");
  else if (now === "acting") say("the environment acts…");
  else if (end) {
    const reward = end.reward === null ? "" : `, reward ${Number(end.reward.toFixed(3))}`;
    const kept = view.recorded ? "; recorded" : "; the recorder writes it down";
    say(`${end.kind}${reward}${end.reason ? `: ${end.reason}` : ""}${kept}`, end.kind === "success" ? "success" : end.reward === null ? "fault" : "");
  }
  fill(byId("taken"), taken.map((text, index) => el("li", {}, el("code", {}, text), view.people ? el("i.whose", {}, view.people[index] ? " a person" : " the policy") : null)));
  if (screen && screen.sha256 !== before) {
    image.src = `/screenshot/${encodeURIComponent(screen.sha256)}`;
    image.hidden = false;
    resize();
  }
  document.body.dataset.stage = now;
  if (now === "turn" && document.activeElement === document.body) stage.focus();
}

/** Show small screens at whole multiples of their pixels, and large ones as a whole, or at their actual size. */
function resize() {
  if (!view.screen) return;
  const { width, height } = view.screen, room = Math.min((stage.clientWidth - 20) / width, innerHeight * 0.75 / height);
  actual.hidden = room >= 1;
  const scale = room >= 1 ? Math.min(MOST_SCALE, Math.floor(room)) : actual.getAttribute("aria-pressed") === "true" ? 1 : room;
  image.style.width = `${width * scale}px`;
}

/** @param {Gesture} gesture @returns {boolean} whether it was sent */
function send(gesture) {
  if (view.stage !== "turn" || !socket || socket.readyState !== WebSocket.OPEN || sentFor === view.request) return false;
  sentFor = view.request ?? "";
  afterKeys = gesture.kind === "keys" || gesture.kind === "text";
  socket.send(JSON.stringify({ do: "act", request: view.request, gesture }));
  return true;
}

/** Send the next of the queue, if it is the person's turn. */
function flush() {
  if (queue.length && send(queue[0])) queue.shift();
}

/** Send what is no key. @param {Gesture} gesture */
function act(gesture) {
  endTyping();
  if (queue.length || !send(gesture) && afterKeys && view.stage !== "ended") queue.push(gesture);
}

/** End the typed text, which becomes one action. */
function endTyping() {
  clearTimeout(typing);
  if (typed) queue.push({ kind: "text", text: typed });
  typed = "";
  byId("typing").hidden = true;
  flush();
}

/** The place of the pointer in pixels of the screenshot. @param {MouseEvent} event */
function place(event) {
  const box = image.getBoundingClientRect(), { width = 1, height = 1 } = view.screen ?? {};
  return { x: (event.clientX - box.left) * width / box.width, y: (event.clientY - box.top) * height / box.height };
}

image.addEventListener("pointerdown", (event) => {
  stage.focus();
  endTyping();
  pressed = { ...place(event), button: event.button, clientX: event.clientX, clientY: event.clientY };
  image.setPointerCapture(event.pointerId);
});

image.addEventListener("pointerup", (event) => {
  const from = pressed;
  pressed = null;
  if (!from || from.button !== event.button) return;
  const button = BUTTONS[from.button] ?? "left", to = place(event);
  if (Math.hypot(event.clientX - from.clientX, event.clientY - from.clientY) > DRAG_PIXELS) {
    act({ kind: "drag", x: from.x, y: from.y, to_x: to.x, to_y: to.y, button });
  } else if (hover.getAttribute("aria-pressed") === "true") {
    hover.setAttribute("aria-pressed", "false");
    act({ kind: "hover", x: from.x, y: from.y });
  } else {
    if (clicks) clearTimeout(clicks.timer);
    const count = clicks && clicks.button === button ? Math.min(clicks.count + 1, 3) : 1;
    const first = clicks && clicks.button === button ? clicks : from;
    clicks = { x: first.x, y: first.y, button, count, timer: setTimeout(endClicks, CLICKS_MS) };
  }
});

function endClicks() {
  if (clicks) act({ kind: "click", x: clicks.x, y: clicks.y, button: clicks.button, count: clicks.count });
  clicks = null;
}

image.addEventListener("wheel", (event) => {
  event.preventDefault();
  const factor = event.deltaMode === WheelEvent.DOM_DELTA_PIXEL ? 1 : 100 / 3;
  const before = wheel ?? { ...place(event), right: 0, down: 0, timer: 0 };
  clearTimeout(before.timer);
  wheel = { ...before, right: before.right + event.deltaX * factor, down: before.down + event.deltaY * factor, timer: setTimeout(endWheel, WHEEL_MS) };
}, { passive: false });

function endWheel() {
  if (wheel) act({ kind: "wheel", x: wheel.x, y: wheel.y, right: wheel.right, down: wheel.down });
  wheel = null;
}

stage.addEventListener("keydown", (event) => {
  if (MODIFIERS.has(event.key) || event.isComposing) return;
  event.preventDefault();
  const commands = event.ctrlKey || event.altKey || event.metaKey;
  if (event.key.length === 1 && !commands) {
    typed += event.key;
    byId("typing").textContent = `typing: ${typed}`;
    byId("typing").hidden = false;
    clearTimeout(typing);
    typing = setTimeout(endTyping, TYPING_MS);
    return;
  }
  endTyping();
  const held = [event.ctrlKey && "ctrl", event.altKey && "alt", event.shiftKey && "shift", event.metaKey && "meta"].filter(Boolean);
  queue.push({ kind: "keys", keys: [...held, event.key] });
  flush();
});

for (const kind of ["contextmenu", "auxclick", "dragstart"]) stage.addEventListener(kind, (event) => event.preventDefault());
byId("give-back").addEventListener("click", () => {
  queue.length = 0;
  socket?.send(JSON.stringify({ do: "give-back" }));
});
byId("begin").addEventListener("click", () => {
  queue.length = 0;
  typed = sentFor = "";
  afterKeys = false;
  socket?.send(JSON.stringify({ do: "begin" }));
  stage.focus();
});
/** @param {HTMLElement} button */
const toggle = (button) => button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
hover.addEventListener("click", () => toggle(hover));
actual.addEventListener("click", () => { toggle(actual); resize(); });
addEventListener("resize", resize);
for (const [id, action] of [["wait", "wait()"], ["done", "finished()"], ["give-up", "call_user()"]]) {
  byId(id).addEventListener("click", () => act({ kind: "action", action }));
}
byId("write").addEventListener("submit", (event) => {
  event.preventDefault();
  if (written.value.trim() && send({ kind: "action", action: written.value })) written.value = "";
});
connect();
