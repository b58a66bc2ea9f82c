// @ts-check
/** Reads the columns that columns.py writes. */

/** @typedef {{heads: number[], tails: string}} Table */
const TAIL = 20;

/** Unpack a value. @param {any} packed @param {Table} table of the ids @returns {any} */
export function unpack(packed, table) {
  const ids = identities(table);
  /** @param {any} value @returns {any} */
  function plain(value) {
    if (Array.isArray(value)) return value.map(plain);
    if (value === null || typeof value !== "object") return value;
    for (const [name, read] of Object.entries(FORMS)) if (name in value) return read(value[name], plain, ids);
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name.startsWith("==") ? name.slice(1) : name, plain(one)]));
  }
  return plain(packed);
}

/** @type {Record<string, (value: any, plain: (value: any) => any, ids: string[]) => any[]>} */
const FORMS = {
  "=rows": (columns, plain) => {
    const read = columns.map((/** @type {[string, any]} */ [name, column]) => [name, plain(column)]);
    return read[0][1].map((/** @type {any} */ _, /** @type {number} */ row) => Object.fromEntries(read.map((/** @type {[string, any[]]} */ [name, values]) => [name, values[row]])));
  },
  "=lists": ({ sizes, values }, plain) => {
    const all = plain(values);
    let end = 0;
    return plain(sizes).map((/** @type {number} */ size) => all.slice(end, (end += size)));
  },
  "=some": ({ there, values }, plain) => {
    const all = plain(values);
    let next = 0;
    return there.map((/** @type {number} */ one) => (one ? all[next++] : null));
  },
  "=sums": (steps) => sums(steps),
  "=ids": ({ next, back }, _, ids) => back.map((/** @type {number} */ places) => ids[places ? next - places : next++]),
};

/** @param {number[]} steps */
function sums(steps) {
  let sum = 0;
  return steps.map((step) => (sum += step));
}

/** @param {Table} table */
function identities({ heads, tails }) {
  return sums(heads).map((head, index) => {
    const all = head.toString(16).padStart(12, "0") + tails.slice(index * TAIL, (index + 1) * TAIL);
    return [all.slice(0, 8), all.slice(8, 12), all.slice(12, 16), all.slice(16, 20), all.slice(20)].join("-");
  });
}
