// @ts-check
/** Elements. Texts of agents and pages are never interpreted as markup. */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Make an element: `el("a.name", {href: "#"}, "text", child)`; attributes that begin with `on` are listeners.
 * @param {string} what tag and classes
 * @param {Record<string, any>} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElement}
 */
export function el(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const made = document.createElement(tag || "div");
  if (classes.length) made.className = classes.join(" ");
  set(made, attributes);
  append(made, children);
  return made;
}

/**
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 * @param {...Node} children
 * @returns {SVGElement}
 */
export function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** @param {HTMLElement} target @param {Record<string, any>} attributes */
function set(target, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) target.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected" || name === "open") Reflect.set(target, name, value);
    else target.setAttribute(name, value === true ? "" : String(value));
  }
}

/** @param {Element} target @param {(Child | Child[])[]} children */
export function append(target, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    target.append(typeof child === "number" ? String(child) : child);
  }
}

/** Replace the content of an element. @param {Element} target @param {...(Child | Child[])} children */
export function fill(target, ...children) {
  target.replaceChildren();
  append(target, children);
}

/**
 * A table; a column is its head and a function from a row to a cell. Columns of numbers are right-aligned.
 * @template T
 * @param {T[]} rows
 * @param {[string, (row: T) => Child | Child[]][]} columns
 * @param {string} [empty]
 */
export function table(rows, columns, empty = "nothing yet") {
  if (!rows.length) return el("p.empty", {}, empty);
  const cells = rows.map((row) => columns.map(([, cell]) => cell(row)));
  const numeric = columns.map((_, column) => cells.some((row) => isNumber(row[column])) && cells.every((row) => isNumber(row[column]) || row[column] === "–"));
  const head = el("tr", {}, columns.map(([name], column) => el(numeric[column] ? "th.number" : "th", {}, name)));
  const body = cells.map((row) => el("tr", {}, row.map((content, column) => el(numeric[column] ? "td.number" : "td", { "data-label": columns[column][0] }, content))));
  return el(".scroll", {}, el("table", {}, el("thead", {}, head), el("tbody", {}, body)));
}

/** @param {Child | Child[]} content */
function isNumber(content) {
  return typeof content === "number" || (typeof content === "string" && /^[-+]?[\d.,]+( ?(ms|s|%))?$/.test(content));
}

/** A list of names and values, without empty values. @param {[string, Child][]} pairs */
export function facts(pairs) {
  return el("dl.facts", {}, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}
