// @ts-check
/** Rewards as a row of dots, greener for higher ones. */

import { el } from "./dom.js";
import { number } from "./format.js";

/** @param {number[]} rewards */
export function dots(rewards) {
  if (!rewards.length) return "–";
  return el("span.dots", { role: "img", "aria-label": `rewards ${rewards.map((one) => number(one)).join(", ")}` }, rewards.map((reward) => {
    const dot = el("i", { title: number(reward) });
    dot.style.setProperty("--share", String(reward));
    return dot;
  }));
}
