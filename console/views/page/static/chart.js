// @ts-check
/** A plot by uPlot in the page's colors. Series names are text beside it, because uPlot's legend is markup. */

import { el } from "./dom.js";
import { clock, number } from "./format.js";

const MISSING = "Plots need uPlot: run `make setup` and restart the page.";

/**
 * @typedef {object} Series
 * @property {string} [name]
 * @property {(number | null)[]} values
 * @property {boolean} [points] dots without a line
 * @property {boolean} [steps] each value holds until the next
 * @property {boolean} [bars] one bar per value
 * @property {string} [fill] the style name of the color below the line; the highest areas are drawn first
 * @property {number} [width] of the line
 * @typedef {object} Plot
 * @property {string} title
 * @property {number[]} x seconds since 1970, or plain numbers
 * @property {boolean} time
 * @property {Series[]} series
 * @property {[number, number]} [range]
 * @property {boolean} [wide]
 * @property {string} [sync] plots with the same name share their cursor
 * @property {(index: number) => void} [pick] handler of a click on a point
 * @property {number} [height] in pixels
 * @property {{x: number, low: number, value: number, high: number, color: string}[]} [marks] values with their intervals
 * @property {number[]} [ticks] marked places on the x axis
 * @property {number} [bound] an upper limit of the values
 * @property {[number, number]} [span] of the x axis
 * @property {string} [unit] of the x axis
 * @property {string} [quantity] the unit of the values, beside the title
 * @property {string} [help] a sentence below the title
 */
const HEIGHT = 170;

/**
 * Append a plot to `parent`; the result removes it.
 * @param {Element} parent @param {Plot} plot @returns {() => void}
 */
export function chart(parent, plot) {
  const uPlot = /** @type {any} */ (window).uPlot;
  const value = el("span.value"), canvas = el("div");
  const names = plot.series.length > 1 ? el("span.names", {}, plot.series.map((one, i) => named(one, i))) : null;
  const frame = el(plot.wide ? "figure.chart.wide" : "figure.chart", {}, el("figcaption", {}, el("b", {}, plot.title), plot.quantity ? el("span.quantity", {}, plot.quantity) : null, names, value), plot.help ? el("p.help", {}, plot.help) : null, canvas);
  parent.append(frame);
  if (!uPlot) {
    canvas.append(el("p.empty", {}, MISSING));
    return () => frame.remove();
  }
  /** @type {any} */
  let drawn = null;
  const draw = () => {
    drawn?.destroy();
    drawn = new uPlot(options(), [plot.x, ...plot.series.map((one) => one.values)], canvas);
    if (plot.pick) drawn.over.addEventListener("click", () => { if (drawn.cursor.idx !== null && drawn.cursor.idx !== undefined) plot.pick?.(drawn.cursor.idx); });
  };
  function options() {
    const style = getComputedStyle(document.documentElement);
    const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui", size: 44 };
    return {
      width: Math.max(220, frame.clientWidth - 20), height: plot.height ?? HEIGHT, legend: { show: false }, padding: [8, plot.time ? 28 : 8, 0, 0],
      scales: { x: { time: plot.time, ...(plot.span ? { range: () => plot.span } : {}) }, y: { range: plot.range ? () => plot.range : heights } },
      axes: [{ ...axis, size: plot.unit ? 40 : 28, label: plot.unit, labelSize: 14, labelFont: "11px system-ui", ...(plot.time ? { values: times } : {}) }, { ...axis, size: width, values }],
      cursor: { y: false, sync: plot.sync ? { key: plot.sync } : undefined, points: { size: 7 } },
      series: [{}, ...plot.series.map((one, index) => ({
        stroke: color(one.fill ?? `--p${index % 8}`), width: one.width ?? (one.fill ? 0 : 1.6), spanGaps: true, fill: one.points ? undefined : one.fill ? color(one.fill) : one.bars ? color(`--p${index % 8}`) : undefined,
        points: { show: one.points ?? (plot.x.length < 40 && !one.fill && !one.bars), size: one.points ? 6 : 4, stroke: color(one.fill ?? `--p${index % 8}`), fill: color(one.fill ?? `--p${index % 8}`) },
        paths: one.points ? () => null : one.bars ? uPlot.paths.bars({ size: [0.7, 30] }) : one.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      }))],
      hooks: { draw: [(/** @type {any} */ self) => annotate(self, plot, color)], setCursor: [(/** @type {any} */ self) => {
        const index = self.cursor.idx;
        value.textContent = index === null || index === undefined ? "" : `${place(plot, index)}: ${plot.series.map((one) => number(one.values[index])).join(" · ")}`;
      }] },
    };
  }
  draw();
  const sized = new ResizeObserver(() => { if (drawn && Math.abs(drawn.width - Math.max(220, frame.clientWidth - 20)) > 2) drawn.setSize({ width: Math.max(220, frame.clientWidth - 20), height: plot.height ?? HEIGHT }); });
  sized.observe(frame);
  addEventListener("theme", draw);
  return () => { removeEventListener("theme", draw); sized.disconnect(); drawn?.destroy(); frame.remove(); };
}

/**
 * Draw the parts of a whole over time as areas of their sums, the highest first.
 * @param {Element} parent @param {Omit<Plot, "series">} plot @param {Record<string, (number | null)[]>} parts @param {string[]} colors
 */
export function stacked(parent, plot, parts, colors) {
  /** @type {Series[]} */
  const series = [];
  let below = plot.x.map(() => 0);
  Object.entries(parts).forEach(([name, values], index) => {
    below = below.map((sum, at) => sum + (values[at] ?? 0));
    series.unshift({ name, values: below, fill: colors[index], steps: true });
  });
  return chart(parent, { ...plot, series });
}

/**
 * Times of day in 24 hours as in the tables; dates for spans of days.
 * @param {any} _ @param {number[]} ticks seconds @param {number} __ @param {number} ___ @param {number} apart seconds
 */
function times(_, ticks, __, ___, apart) {
  const shown = ticks.map((tick) => (apart >= 86_400 ? new Date(tick * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : clock(tick * 1000).slice(0, apart < 60 ? 8 : 5)));
  return shown.map((text, index) => (text === shown[index - 1] ? "" : text));
}

/** The ends of the y axis. A flat line has its value in the middle: uPlot has an axis from 0 to 100 for zeros. @param {any} _ @param {number | null} low @param {number | null} high */
export function heights(_, low, high) {
  if (low === null || high === null) return [null, null];
  const reach = low === high ? Math.abs(low) / 10 || 1 : 0;
  return reach ? [low - reach, high + reach] : /** @type {any} */ (window).uPlot.rangeNum(low, high, 0.1, true);
}

/** Values beside the y axis, with as many digits as their distance has. @param {any} _ @param {number[]} ticks @param {number} __ @param {number} ___ @param {number} apart */
export function values(_, ticks, __, ___, apart) {
  const whole = (/** @type {number} */ value) => Math.round(value) > 0 && Math.abs(value - Math.round(value)) < 1e-6 * value;
  let digits = 0;
  while (digits < 9 && !whole(apart * 10 ** digits)) digits++;
  return ticks.map((tick) => tick.toLocaleString("en", { maximumFractionDigits: digits }));
}

/** The x value under the cursor with its unit. @param {Plot} plot @param {number} index */
function place(plot, index) {
  return plot.time ? clock(plot.x[index] * 1000) : `${plot.unit ?? "x"} ${number(plot.x[index])}`;
}

/** The pixels of an axis for its longest value. @param {any} _ @param {string[] | null} shown */
function width(_, shown) {
  return Math.max(50, 18 + 6.5 * Math.max(0, ...(shown ?? []).map((text) => text.length)));
}

/** The name of a series in its color. @param {Series} one @param {number} index */
function named(one, index) {
  const made = el(`span.p${index % 8}`, {}, one.name ?? "");
  // The color of free slots is too pale for text.
  if (one.fill) made.style.setProperty("--c", `var(${one.fill === "--free" ? "--dim" : one.fill})`);
  return made;
}

/** Draw ticks, bound and marks. @param {any} self @param {Plot} plot @param {(name: string) => string} color */
function annotate(self, plot, color) {
  const { ctx, bbox } = self, scale = devicePixelRatio || 1;
  const x = (/** @type {number} */ value) => self.valToPos(value, "x", true), y = (/** @type {number} */ value) => self.valToPos(value, "y", true);
  ctx.save();
  const line = (/** @type {string} */ name, /** @type {number} */ width, /** @type {[number, number][]} */ points) => {
    ctx.strokeStyle = color(name);
    ctx.lineWidth = width * scale;
    ctx.beginPath();
    points.forEach(([left, top], index) => (index ? ctx.lineTo(left, top) : ctx.moveTo(left, top)));
    ctx.stroke();
  };
  for (const at of plot.ticks ?? []) line("--p1", 1.2, [[x(at), bbox.top + bbox.height], [x(at), bbox.top + bbox.height - 6 * scale]]);
  if (plot.bound !== undefined) {
    ctx.setLineDash([5 * scale, 4 * scale]);
    line("--fault", 1.2, [[bbox.left, y(plot.bound)], [bbox.left + bbox.width, y(plot.bound)]]);
    ctx.setLineDash([]);
  }
  for (const mark of plot.marks ?? []) {
    const at = x(mark.x), cap = 4 * scale;
    line(mark.color, 1.8, [[at, y(mark.low)], [at, y(mark.high)]]);
    for (const end of [mark.low, mark.high]) line(mark.color, 1.8, [[at - cap, y(end)], [at + cap, y(end)]]);
    ctx.fillStyle = color(mark.color);
    ctx.beginPath();
    ctx.arc(at, y(mark.value), 4.5 * scale, 0, 7);
    ctx.fill();
  }
  ctx.restore();
}
