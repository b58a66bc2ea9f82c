// @ts-check
/** The page of an address that names no page. */

import { el } from "./dom.js";

export const title = "Unknown address";

/** @param {HTMLElement} view @param {Record<string, string>} _ @param {import("./app.js").App} app */
export async function open(view, _, app) {
  view.append(el("h1", {}, title), el("p.problem", {}, `There is no page ${location.hash}. Choose a tab above, or `, app.link("", {}, "begin at the first"), "."));
  return {};
}
