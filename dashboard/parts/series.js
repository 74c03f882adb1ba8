// Traffic of one dimension in the way that was chosen: areas in a stack, lines, a small plot for each, or a table.

import { looks, PATTERNS } from "../lib/colours.js";
import { html, useMemo } from "../lib/html.js";
import { Name } from "../lib/text.js";
import { summary } from "../lib/traffic.js";
import { bytes, percent, rate, rateWithError } from "../lib/units.js";
import { Swatch } from "./bits.js";
import { Plot } from "./plot.js";
import { Table } from "./table.js";

export const VIEWS = [
  { key: "stack", name: "Stacked", title: "areas on top of each other, to the total" },
  { key: "lines", name: "Lines", title: "each from zero" },
  { key: "panels", name: "Panels", title: "a small plot for each, with the band of its 95 % error" },
  { key: "table", name: "Table", title: "the same as numbers" },
];

/** Small plots on a page. */
const PANELS_MAX = 12;

/** Series of `traffic` with the look of each. */
export function useLooks(traffic, version, patterns) {
  return useMemo(() => {
    if (!traffic) return [];
    const given = looks(traffic.series.map((one) => one.key), traffic.by);
    return traffic.series.map((one, at) => {
      const look = given.get(one.key);
      return { ...one, look: patterns && look.pattern === "plain" ? { ...look, pattern: PATTERNS[(at + 1) % PATTERNS.length] } : look };
    });
  }, [traffic, version, patterns]);
}

export function Series({ traffic, version, series, view, window, capacity, theme, onZoom, onReset, onPick, by }) {
  const { times, total, step } = traffic;
  const shared = { times, from: window.from, to: window.to, theme, onZoom, onReset, version };
  const now = summary(total.values, total.errors, step);
  const label = `Traffic by ${by.replace("_", " ")}: ${rate(now.now)} in total${capacity ? ` of ${rate(capacity)}` : ""}. The view Table has the numbers.`;
  if (view === "table") return html`<${Figures} traffic=${traffic} series=${series} capacity=${capacity} by=${by} onPick=${onPick} />`;
  if (view === "panels") {
    const all = { key: "total", name: "total", values: total.values, errors: total.errors, look: { colour: 9, pattern: "plain" } };
    return html`<div class="panels">
      <figure><figcaption>total <b>${rate(now.now)}</b></figcaption><${Plot} ...${shared} kind="band" series=${[all]} capacity=${capacity} height=${190} label=${label} /></figure>
      ${series.slice(0, PANELS_MAX - 1).map((one) => {
        const figures = summary(one.values, one.errors, step);
        return html`<figure key=${one.key}><figcaption><${Name} text=${one.name} most=${30} /> <b>${rateWithError(figures.now, figures.error)}</b></figcaption>
          <${Plot} ...${shared} kind="band" series=${[one]} height=${190} label=${`${one.name}: ${rate(figures.now)}`} /></figure>`;
      })}
      ${series.length >= PANELS_MAX && html`<p class="note">${series.length - PANELS_MAX + 1} more: see the table.</p>`}
    </div>`;
  }
  return html`<div class="with-legend">
    <${Plot} ...${shared} kind=${view === "lines" ? "lines" : "stack"} series=${series} total=${total} capacity=${capacity} label=${label} />
    <${Legend} series=${series} step=${step} total=${now.now} view=${view} onPick=${onPick} />
  </div>`;
}

function Legend({ series, step, total, view, onPick }) {
  // In the order of the stack as it is seen: the last is on top.
  const shown = view === "stack" ? series.slice().reverse() : series;
  return html`<ul class="legend" aria-label="what is shown">
    ${shown.map((one) => {
      const now = summary(one.values, one.errors, step);
      return html`<li key=${one.key}><button type="button" title=${onPick ? "show only this" : undefined} disabled=${!onPick} onClick=${() => onPick?.(one.key)}>
        <${Swatch} look=${one.look} /><${Name} text=${one.name} most=${26} /><span class="figure">${rate(now.now)}</span><span class="share">${total > 0 ? percent((now.now ?? 0) / total) : ""}</span>
      </button></li>`;
    })}
  </ul>`;
}

function Figures({ traffic, series, capacity, by, onPick }) {
  const rows = series.map((one) => ({ ...one, ...summary(one.values, one.errors, traffic.step) }));
  const all = summary(traffic.total.values, traffic.total.errors, traffic.step);
  rows.push({ key: " total", name: "total", isTotal: true, look: null, ...all });
  const columns = [
    { key: "name", name: by.replace("_", " "), sort: (row) => row.name, cell: (row) => (row.isTotal ? html`<b>total</b>` : html`<button type="button" class="link" title="show only this" onClick=${() => onPick?.(row.key)}><${Swatch} look=${row.look} /><${Name} text=${row.name} /></button>`) },
    { key: "now", name: "Now ± 95 %", number: true, sort: (row) => row.now, cell: (row) => rateWithError(row.now, row.error) },
    { key: "share", name: "Share", number: true, sort: (row) => row.now, cell: (row) => percent(all.now > 0 ? (row.now ?? 0) / all.now : 0) },
    { key: "mean", name: "Mean", number: true, sort: (row) => row.mean, cell: (row) => rate(row.mean) },
    { key: "greatest", name: "Greatest", number: true, sort: (row) => row.greatest, cell: (row) => rate(row.greatest) },
    { key: "bytes", name: "Volume", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  ];
  return html`<${Table} caption=${`Traffic by ${by}`} columns=${columns} rows=${rows} keyOf=${(row) => row.key} onRow=${(row) => (row.isTotal ? "sum" : "")} />
    ${capacity ? html`<p class="note">Capacity ${rate(capacity)}. Total from ${traffic.total.from}; shares from samples, errors are half-widths of 95 % intervals.</p>` : null}`;
}
