// @ts-check
/** A bar of the parts of a whole, with a legend. */

import { el } from "./dom.js";

/** The number of colors; the smallest further parts are drawn as one. */
const MOST = 8;

/** The largest parts in their order, and the others together. @param {[string, number][]} parts @returns {[string, number][]} */
function largest(parts) {
  if (parts.length <= MOST) return parts;
  const kept = new Set([...parts].sort(([, a], [, b]) => b - a).slice(0, MOST - 1));
  const others = parts.filter((part) => !kept.has(part));
  return [...parts.filter((part) => kept.has(part)), [`${others.length} others`, others.reduce((sum, [, value]) => sum + value, 0)]];
}

/**
 * @param {string} title
 * @param {[string, number][]} all
 * @param {(value: number) => string} text
 * @param {string[]} [colors] of the parts, by their names in the style
 */
export function shares(title, all, text, colors = []) {
  const parts = largest(all);
  /** @param {HTMLElement} piece @param {number} index */
  const painted = (piece, index) => {
    if (colors[index]) piece.style.setProperty("--c", `var(${colors[index]})`);
    return piece;
  };
  const total = Math.max(1e-9, parts.reduce((sum, [, value]) => sum + value, 0));
  const bar = el(".timebar", {}, parts.map(([name, value], index) => {
    const piece = el(`span.part.p${index % 8}`, { title: `${name} ${text(value)}` });
    piece.style.width = `${(value / total) * 100}%`;
    return painted(piece, index);
  }));
  const legend = el(".timelegend", {}, parts.map(([name, value], index) => el("span", {}, painted(el(`i.part.p${index % 8}`), index), `${name} `, el("b", {}, text(value)))));
  return el("section", {}, el("h2", {}, title), bar, legend);
}
