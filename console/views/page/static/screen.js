// @ts-check
/** A screenshot with the action drawn on it, in the screen's own pixels. */

import { scoped } from "./api.js";
import { exported, screenAddress } from "./archive.js";
import { el, svg } from "./dom.js";

/**
 * @typedef {{x: number, y: number}} Point
 * @typedef {{sha256: string, width: number, height: number}} Shot
 */
/** Milliseconds at most between two requests for a screenshot that is not stored. */
const PAUSE = 30000;

/** @param {string} sha256 */
export function address(sha256) {
  if (exported) return screenAddress(sha256);
  const query = scoped();
  return `/screenshot/${encodeURIComponent(sha256)}${query ? `?${query}` : ""}`;
}

/** An image that asks again, as long as it is shown, while its screenshot is not stored. @returns {HTMLImageElement} */
export function picture() {
  const image = /** @type {HTMLImageElement} */ (el("img", { alt: "", decoding: "async", draggable: "false" }));
  let failed = "", pause = 0;
  image.addEventListener("load", () => { failed = ""; image.classList.remove("missing"); });
  image.addEventListener("error", () => {
    image.classList.add("missing");
    const wanted = image.src;
    pause = wanted === failed ? Math.min(PAUSE, 2 * pause) : 300;
    failed = wanted;
    setTimeout(() => { if (image.src === wanted && image.isConnected) image.src = wanted; }, pause);
  });
  return image;
}

/**
 * The points of an action: a ring, or for a drag two rings with a line. A person's `correction` is green.
 * @param {Shot} shot @param {Point[]} points @param {boolean} [correction]
 */
export function marker(shot, points, correction = false) {
  const size = Math.max(shot.width, shot.height, 1) / 26;
  const overlay = svg("svg", { viewBox: `0 0 ${shot.width || 1} ${shot.height || 1}`, class: correction ? "marker correction" : "marker", "aria-hidden": "true" });
  if (points.length > 1) {
    const [from, to] = points;
    overlay.append(svg("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: "halo", "stroke-width": size / 2.2 }),
      svg("line", { x1: from.x, y1: from.y, x2: to.x, y2: to.y, class: "drag", "stroke-width": size / 5 }));
  }
  points.forEach((point, index) => {
    const r = index ? size * 0.62 : size;
    overlay.append(
      svg("circle", { cx: point.x, cy: point.y, r, class: "halo", "stroke-width": size / 1.9 }),
      svg("circle", { cx: point.x, cy: point.y, r, class: index ? "ring to" : "ring", "stroke-width": size / 3.6 }),
      svg("circle", { cx: point.x, cy: point.y, r: size / 5, class: "hit" }));
  });
  return overlay;
}

/**
 * A framed screen with the points of an action, and those of its correction.
 * @param {Shot | null | undefined} shot @param {Point[]} [points] @param {Point[]} [right]
 */
export function screen(shot, points = [], right = []) {
  if (!shot) return el(".screen.none", {}, "no screen");
  const place = address(shot.sha256);
  if (!place) return el(".screen.none", {}, "not in this file");
  const image = picture();
  image.src = place;
  const frame = el(".screen", {}, image, marker(shot, points), right.length ? marker(shot, right, true) : null);
  if (shot.width && shot.height) frame.style.aspectRatio = `${shot.width} / ${shot.height}`;
  return frame;
}
