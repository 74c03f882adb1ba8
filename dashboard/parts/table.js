// A table with search, sorting, pages and a CSV file. `columns`: {key, name, number, cell(row), sort(row), text(row), title}.
// `sort` returns the sort key and the value in the file; `text` the searched text, where it differs;
// `down` sorts descending at the first click, as columns of numbers do. If a table is wider than its container, columns
// with a `low` are hidden, the lowest first, until it fits; a button shows them again. In a narrow container rows are cards.

import { saveCsv } from "../lib/export.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { whole } from "../lib/units.js";

/** Rows per page; fewer if they are cards. */
export const PAGE_ROWS = 20;
const PAGE_CARDS = 8;
/** Width of the container below which rows are cards, in pixels. */
const CARDS_PX = 640;

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

const valueOf = (column, row) => {
  const value = column.sort?.(row) ?? column.text?.(row);
  return typeof value === "boolean" ? String(value) : value;
};

/** Text of a row for the search. */
const wordsOf = (columns, row) => columns.map((column) => column.text?.(row) ?? column.sort?.(row) ?? "").join(" ").toLowerCase();

/** Number of hidden columns with which a table fits, and true if its rows are cards. */
function useFit(place, identity) {
  const [fit, change] = useState({ out: 0, tight: false, cards: false });
  useLayoutEffect(() => {
    let before = place.current.clientWidth;
    const size = new ResizeObserver(() => {
      const width = place.current?.clientWidth ?? 0;
      if (Math.abs(width - before) < 2) return;
      before = width;
      // Measure again with all columns.
      change({ out: 0, tight: false, cards: width < CARDS_PX });
    });
    size.observe(place.current);
    change({ out: 0, tight: false, cards: before < CARDS_PX });
    return () => size.disconnect();
  }, [identity]);
  return [fit, change];
}

export function Table({ caption, columns, rows, keyOf, sort: first, empty, onRow, narrow, search, onSearch, pageRows = PAGE_ROWS, file, tools }) {
  const [sort, change] = useState(first ?? null);
  const [own, find] = useState("");
  const [page, turn] = useState(0);
  const wanted = (onSearch ? search ?? "" : own).trim().toLowerCase();
  const [all, show] = useState(false);
  const place = useRef(null);
  const low = columns.filter((one) => one.low).sort((a, b) => b.low - a.low);
  const [fit, refit] = useFit(place, columns.map((one) => one.key).join(" "));
  const out = new Set(fit.cards || all ? [] : low.slice(0, fit.out).map((one) => one.key));
  const visible = columns.filter((one) => !out.has(one.key));
  const rowsOfPage = fit.cards ? Math.min(pageRows, PAGE_CARDS) : pageRows;
  const [needsTools, set] = useState(false);
  // Once shown the tools stay, so that the layout is stable while rows come and go.
  useEffect(() => {
    if (rows.length > pageRows) set(true);
  }, [rows.length > pageRows]);
  useLayoutEffect(() => {
    const box = place.current;
    if (fit.cards || all || fit.tight || box.scrollWidth <= box.clientWidth + 1) return;
    // If no column is left to hide, texts break.
    refit((old) => (old.cards ? old : old.out < low.length ? { ...old, out: old.out + 1 } : { ...old, tight: true }));
  });
  const found = useMemo(() => {
    const words = wanted.split(/\s+/).filter(Boolean);
    return words.length === 0 ? rows : rows.filter((row) => { const text = wordsOf(columns, row); return words.every((word) => text.includes(word)); });
  }, [rows, columns, wanted]);
  const sorted = useMemo(() => {
    const column = sort && columns.find((one) => one.key === sort.key);
    if (!column?.sort) return found;
    // A stable sort: equal rows keep their order.
    const down = sort.down ? -1 : 1;
    return found.map((row, at) => [row, at]).sort((a, b) => down * compare(column.sort(a[0]), column.sort(b[0])) || a[1] - b[1]).map(([row]) => row);
  }, [found, sort, columns]);
  const pages = Math.max(1, Math.ceil(sorted.length / rowsOfPage));
  const at = Math.min(page, pages - 1);
  const shown = sorted.slice(at * rowsOfPage, (at + 1) * rowsOfPage);
  const order = (column) => {
    turn(0);
    change((old) => (old?.key === column.key ? { key: column.key, down: !old.down } : { key: column.key, down: Boolean(column.number || column.down) }));
  };
  const state = (column) => (sort?.key === column.key ? (sort.down ? "descending" : "ascending") : undefined);
  const type = (event) => {
    turn(0);
    if (onSearch) onSearch(event.target.value);
    else find(event.target.value);
  };
  const save = () => saveCsv(file ?? caption, [columns.filter((one) => one.name).map((one) => one.name), ...sorted.map((row) => columns.filter((one) => one.name).map((one) => valueOf(one, row)))]);
  const withTools = needsTools || rows.length > rowsOfPage || wanted !== "" || tools || out.size > 0 || all;
  const sortable = columns.filter((one) => one.sort);
  return html`<div class=${`table${fit.cards ? " cards" : fit.tight ? " tight" : ""}`}>
    ${withTools && html`<div class="table-tools">
      <input type="search" class="search" placeholder="Search" aria-label=${`Search ${caption}`} maxlength="100" value=${onSearch ? search ?? "" : own} onInput=${type} />
      ${tools}
      ${fit.cards && html`<label class="note">Sort <select aria-label=${`sort ${caption} by`} value=${sort?.key ?? ""} onChange=${(event) => { const column = sortable.find((one) => one.key === event.target.value); turn(0); change(column ? { key: column.key, down: Boolean(column.number || column.down) } : null); }}>
        ${!sort && html`<option value="">–</option>`}${sortable.map((one) => html`<option key=${one.key} value=${one.key}>${one.name}</option>`)}
      </select></label>`}
      ${(out.size > 0 || all) && html`<button type="button" class="small" aria-pressed=${all ? "true" : "false"} title=${all ? "only as many columns as fit" : `also ${low.slice(0, fit.out).map((one) => one.name).join(", ")}`} onClick=${() => { show(!all); refit((old) => ({ ...old, out: 0, tight: false })); }}>${all ? "Fewer columns" : `+${out.size} ${out.size === 1 ? "column" : "columns"}`}</button>`}
      <span class="note" role="status">${wanted ? `${whole(sorted.length)} of ${whole(rows.length)}` : `${whole(rows.length)} in total`}</span>
      <button type="button" class="small" title=${`save ${caption} as CSV`} aria-label=${`CSV of ${caption}`} onClick=${save}>CSV</button>
    </div>`}
    <div class="scroll" ref=${place} tabindex="0" role="region" aria-label=${`table: ${caption}`}>
      <table class=${narrow ? "narrow" : ""} role="table">
        <caption class="unseen">${caption}</caption>
        <thead role="rowgroup"><tr role="row">
          ${visible.map(
            (column) => html`<th key=${column.key} role="columnheader" scope="col" class=${column.number ? "number" : ""} aria-sort=${state(column)}>
              ${column.sort ? html`<button type="button" title=${column.title} onClick=${() => order(column)}>${column.name}<span class="arrow" aria-hidden="true">${sort?.key === column.key ? (sort.down ? "▾" : "▴") : ""}</span></button>` : html`<span title=${column.title}>${column.name || html`<span class="unseen">actions</span>`}</span>`}
            </th>`,
          )}
        </tr></thead>
        <tbody role="rowgroup">
          ${shown.length === 0 && html`<tr role="row"><td role="cell" class="none" colspan=${visible.length}>${wanted ? "no match" : (empty ?? "none")}</td></tr>`}
          ${shown.map(
            (row) => html`<tr key=${keyOf(row)} role="row" class=${onRow?.(row) ?? ""}>
              ${visible.map((column) => html`<td key=${column.key} role="cell" data-name=${column.name} class=${column.number ? "number" : column.wrap ? "wrap" : ""}>${column.cell(row)}</td>`)}
            </tr>`,
          )}
        </tbody>
      </table>
    </div>
    ${pages > 1 && html`<${Pages} caption=${caption} at=${at} pages=${pages} onTurn=${turn} from=${at * rowsOfPage + 1} to=${at * rowsOfPage + shown.length} of=${sorted.length} />`}
  </div>`;
}

/** Buttons to change the page of a table. */
export function Pages({ caption, at, pages, onTurn, from, to, of }) {
  return html`<nav class="pages" aria-label=${`pages of ${caption}`}>
    <button type="button" class="small" disabled=${at === 0} aria-label=${`first page of ${caption}`} onClick=${() => onTurn(0)}>«</button>
    <button type="button" class="small" disabled=${at === 0} aria-label=${`previous page of ${caption}`} onClick=${() => onTurn(at - 1)}>‹</button>
    <span class="note">${whole(from)}–${whole(to)} of ${whole(of)}</span>
    <button type="button" class="small" disabled=${at >= pages - 1} aria-label=${`next page of ${caption}`} onClick=${() => onTurn(at + 1)}>›</button>
    <button type="button" class="small" disabled=${at >= pages - 1} aria-label=${`last page of ${caption}`} onClick=${() => onTurn(pages - 1)}>»</button>
  </nav>`;
}
