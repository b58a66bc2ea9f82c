// @ts-check
/** The tokens of an answer, colored by log-probability, entropy or weight version. */

import { el } from "./dom.js";
import { number } from "./format.js";

const COLORS = ["logprob", "entropy", "version"];
const DEEPEST = 4;

/**
 * The text of a token. Line ends and tabs are drawn; a character of several tokens is in the first of them.
 * @param {string | null | undefined} text @param {number} token
 */
export function tokenText(text, token) {
  if (text === null || text === undefined) return `#${token}`;
  return text === "" ? "‥" : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "·");
}

/**
 * @param {any} taken @param {(string | null)[]} texts @param {string} color @param {(color: string) => void} choose
 * @param {number} [marked] index of the highlighted token
 */
export function tokens(taken, texts, color, choose, marked) {
  if (!taken.tokens.length) return el("section", {}, el("h2", {}, "tokens"), el("p.empty", {}, "none: a demonstration"));
  /** @param {number} index */
  const version = (index) => taken.versions.find((/** @type {any} */ span) => span.start <= index && index < span.end)?.version;
  const known = [...new Set(taken.versions.map((/** @type {any} */ span) => span.version))];
  const strip = taken.tokens.map((/** @type {number} */ token, /** @type {number} */ index) => {
    const logprob = taken.logprobs[index], entropy = taken.entropies[index];
    const made = el("span.token", { title: `token ${token}\nlog-probability ${number(logprob)} (p ${number(Math.exp(logprob))})\nentropy ${number(entropy)} nats\nweight version ${version(index) ?? "–"}${texts[index] === "" ? "\nrest of the character before" : ""}` }, tokenText(texts[index], token));
    const share = color === "logprob" ? Math.min(1, -logprob / DEEPEST) : Math.min(1, (entropy ?? 0) / 2);
    if (color === "version") made.classList.add(`p${known.indexOf(version(index)) % 8}`);
    else made.style.setProperty("--share", String(share));
    made.classList.toggle("marked", index === marked);
    return made;
  });
  const buttons = COLORS.map((name) => el(name === color ? "button.here" : "button", { type: "button", onclick: () => choose(name) }, name));
  const sum = taken.logprobs.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0);
  const spans = taken.versions.map((/** @type {any} */ span) => `v${span.version} for ${span.end - span.start}`).join(", ");
  return el("section", {}, el("h2", {}, `${taken.tokens.length} tokens`, el("span.choose", {}, buttons)),
    el(`.tokens.by-${color}`, {}, strip),
    texts.length ? null : el("p.note", {}, "The tokens are ids: the tokenizer of this policy is not on this machine. Bundles carry the texts if they are captured where it is."),
    el("p.note", {}, `log-probability ${number(sum)} in all · mean entropy ${number(taken.entropies.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0) / taken.entropies.length)} nats · ${spans}`));
}
