// A table that can be sorted by its heads. `columns`: {key, name, number, cell(row), sort(row), title}.

import { html, useMemo, useState } from "../lib/html.js";

/** Most rows drawn; how many more there are is said. */
const ROWS_MAX = 500;

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b));
}

export function Table({ caption, columns, rows, keyOf, sort: first, empty, onRow, narrow }) {
  const [sort, change] = useState(first ?? null);
  const sorted = useMemo(() => {
    const column = sort && columns.find((one) => one.key === sort.key);
    if (!column?.sort) return rows;
    const ordered = rows.slice().sort((a, b) => compare(column.sort(a), column.sort(b)));
    return sort.down ? ordered.reverse() : ordered;
  }, [rows, sort, columns]);
  const turn = (column) => change((old) => (old?.key === column.key ? { key: column.key, down: !old.down } : { key: column.key, down: Boolean(column.number) }));
  const state = (column) => (sort?.key === column.key ? (sort.down ? "descending" : "ascending") : undefined);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table class=${narrow ? "narrow" : ""}>
      <caption class="unseen">${caption}</caption>
      <thead><tr>
        ${columns.map(
          (column) => html`<th key=${column.key} scope="col" class=${column.number ? "number" : ""} aria-sort=${state(column)}>
            ${column.sort ? html`<button type="button" title=${column.title} onClick=${() => turn(column)}>${column.name}<span class="arrow" aria-hidden="true">${sort?.key === column.key ? (sort.down ? "▾" : "▴") : ""}</span></button>` : html`<span title=${column.title}>${column.name}</span>`}
          </th>`,
        )}
      </tr></thead>
      <tbody>
        ${sorted.length === 0 && html`<tr><td class="none" colspan=${columns.length}>${empty ?? "nothing"}</td></tr>`}
        ${sorted.slice(0, ROWS_MAX).map(
          (row) => html`<tr key=${keyOf(row)} class=${onRow?.(row) ?? ""}>
            ${columns.map((column) => html`<td key=${column.key} class=${column.number ? "number" : column.wrap ? "wrap" : ""}>${column.cell(row)}</td>`)}
          </tr>`,
        )}
        ${sorted.length > ROWS_MAX && html`<tr><td class="none" colspan=${columns.length}>and ${sorted.length - ROWS_MAX} more</td></tr>`}
      </tbody>
    </table>
  </div>`;
}
