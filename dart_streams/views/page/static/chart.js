// @ts-check
/** A plot by uPlot, in the page's colours; names are set as text beside it, since a plot's own legend is markup. */

import { el } from "./dom.js";
import { number } from "./format.js";

const MISSING = "The plots need uPlot: run `make setup`, which fetches it, and start the page again.";

/**
 * @typedef {object} Series
 * @property {string} [name]
 * @property {(number | null)[]} values
 * @property {boolean} [points] dots without a line
 * @property {boolean} [steps] each value holds until the next
 * @typedef {object} Plot
 * @property {string} title
 * @property {number[]} x seconds since 1970, or plain numbers
 * @property {boolean} time
 * @property {Series[]} series
 * @property {[number, number]} [range]
 * @property {boolean} [wide]
 * @property {string} [sync] plots of one name share their cursor
 * @property {(index: number) => void} [pick] what a click on a point opens
 */

/**
 * Draw a plot at the end of `parent`; the result takes it away.
 * @param {Element} parent @param {Plot} plot @returns {() => void}
 */
export function chart(parent, plot) {
  const uPlot = /** @type {any} */ (window).uPlot;
  const value = el("span.value"), canvas = el("div");
  const names = plot.series.length > 1 ? el("span.names", {}, plot.series.map((one, i) => el(`span.p${i % 8}`, {}, one.name ?? ""))) : null;
  const frame = el(plot.wide ? "figure.chart.wide" : "figure.chart", {}, el("figcaption", {}, el("b", {}, plot.title), names, value), canvas);
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
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui", size: 44 };
    return {
      width: Math.max(220, frame.clientWidth - 20), height: 170, legend: { show: false }, padding: [8, 8, 0, 0],
      scales: { x: { time: plot.time }, y: plot.range ? { range: () => plot.range } : {} },
      axes: [{ ...axis, size: 28 }, { ...axis, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map((tick) => number(tick)) }],
      cursor: { y: false, sync: plot.sync ? { key: plot.sync } : undefined, points: { size: 7 } },
      series: [{}, ...plot.series.map((one, index) => ({
        stroke: colour(`--p${index % 8}`), width: 1.6, spanGaps: true, points: { show: one.points ?? (plot.x.length < 40), size: one.points ? 6 : 4, fill: colour(`--p${index % 8}`) },
        paths: one.points ? () => null : one.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      }))],
      hooks: { setCursor: [(/** @type {any} */ self) => {
        const index = self.cursor.idx;
        value.textContent = index === null || index === undefined ? "" : plot.series.map((one) => number(one.values[index])).join(" · ");
      }] },
    };
  }
  draw();
  const sized = new ResizeObserver(() => { if (drawn && Math.abs(drawn.width - Math.max(220, frame.clientWidth - 20)) > 2) drawn.setSize({ width: Math.max(220, frame.clientWidth - 20), height: 170 }); });
  sized.observe(frame);
  addEventListener("theme", draw);
  return () => { removeEventListener("theme", draw); sized.disconnect(); drawn?.destroy(); frame.remove(); };
}
