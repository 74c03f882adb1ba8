// Traffic by one dimension in the selected form: stacked areas, lines, small multiples, or a table.

import { css, looks, PATTERNS } from "../lib/colours.js";
import { plotPicture, savePng, saveCsv, seriesRows } from "../lib/export.js";
import { html, useMemo, useState } from "../lib/html.js";
import { NAMES } from "../lib/route.js";
import { Name } from "../lib/text.js";
import { percentile95, SERIES_MAX, summary } from "../lib/traffic.js";
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

/** Most small plots: twelve series and the others; fewer at first on a screen narrower than this. */
const PANELS_MAX = 13;
const PANELS_FEW = 6;
const NARROW_PX = 640;

/** Series of `traffic` with the look of each: those that a plot has room for, or all. */
export function useLooks(traffic, version, patterns, all = false) {
  return useMemo(() => {
    if (!traffic) return [];
    const series = all ? traffic.series : traffic.top();
    const given = looks(series.map((one) => one.key), traffic.by);
    return series.map((one, at) => {
      const look = given.get(one.key);
      return { ...one, look: patterns && look.pattern === "plain" ? { ...look, pattern: PATTERNS[(at + 1) % PATTERNS.length] } : look };
    });
  }, [traffic, version, patterns, all]);
}

/** Name of a series; "Other" has the count of its series. */
export const nameOf = (one) => (one.key === "other" ? (one.count > 0 ? `Other (${one.count}${one.more ? "+" : ""})` : "Other") : one.name);

/** Buttons that save the panel as a file; `panel` is its id. */
export function Saves({ traffic, series, panel, title }) {
  const picture = () => {
    const element = document.querySelector(`[aria-labelledby="${panel}"]`);
    savePng(title, plotPicture(element, title, series.map((one) => ({ name: nameOf(one), colour: css(one.look) }))));
  };
  return html`<span class="saves">
    <button type="button" class="small" title="save the numbers as CSV" onClick=${() => saveCsv(title, seriesRows(traffic))}>CSV</button>
    <button type="button" class="small" title="save the plot as PNG" onClick=${picture}>PNG</button>
  </span>`;
}

export function Series({ traffic, version, series, view, window, capacity, theme, onZoom, onReset, onPick, by, events = [] }) {
  const { times, total, step } = traffic;
  const shared = { times, from: window.from, to: window.to, theme, onZoom, onReset, version, events };
  const now = summary(total.values, total.errors, step);
  const label = `Traffic by ${by.replace("_", " ")}: ${rate(now.now)} in total${capacity ? ` of ${rate(capacity)}` : ""}. The view Table has the numbers.`;
  if (view === "table") return html`<${Figures} traffic=${traffic} series=${series} capacity=${capacity} by=${by} onPick=${onPick} />`;
  if (view === "panels") return html`<${Panels} shared=${shared} traffic=${traffic} series=${series} capacity=${capacity} label=${label} />`;
  return html`<div class="with-legend">
    <${Plot} ...${shared} kind=${view === "lines" ? "lines" : "stack"} series=${series} total=${total} capacity=${capacity} label=${label} />
    <${Legend} series=${series} step=${step} total=${total} once=${by === "interface"} onPick=${onPick} />
  </div>`;
}

/** Small plots of the total and each series; on a narrow screen a few, until the user requests all. */
function Panels({ shared, traffic, series, capacity, label }) {
  const [all, show] = useState(false);
  const { total, step } = traffic;
  const few = !all && innerWidth < NARROW_PX && series.length > PANELS_FEW;
  const whole = { key: "total", name: "Total", values: total.values, errors: total.errors, look: { colour: 9, pattern: "plain" } };
  return html`<div class="panels">
    <figure><figcaption>Total <b>${rate(summary(total.values, total.errors, step).now)}</b></figcaption><${Plot} ...${shared} kind="band" series=${[whole]} capacity=${capacity} height=${190} label=${label} /></figure>
    ${series.slice(0, few ? PANELS_FEW : PANELS_MAX).map((one) => {
      const figures = summary(one.values, one.errors, step);
      return html`<figure key=${one.key}><figcaption><${Name} text=${nameOf(one)} most=${30} /> <b>${rateWithError(figures.now, figures.error)}</b></figcaption>
        <${Plot} ...${shared} kind="band" series=${[one]} height=${190} label=${`${nameOf(one)}: ${rate(figures.now)}`} /></figure>`;
    })}
    ${few && html`<p><button type="button" onClick=${() => show(true)}>All ${series.length}</button></p>`}
  </div>`;
}

/** Legend beside the plot, the highest mean rate first, "Other" last. */
export function Legend({ series, step, total, once, onPick }) {
  const figures = (values, errors) => ({ ...summary(values, errors, step), p95: percentile95(values) });
  const rows = series.map((one) => ({ one, ...figures(one.values, one.errors) }));
  rows.sort((a, b) => (a.one.key === "other") - (b.one.key === "other") || (b.mean ?? 0) - (a.mean ?? 0));
  const all = total ? figures(total.values, total.errors) : null;
  const figuresOf = (row) => html`<span class="figure now">${rate(row.now)}</span><span class="figure">${rate(row.mean)}</span><span class="figure p95">${rate(row.p95)}</span>`;
  const share = (row) => (all?.mean > 0 ? `, ${percent((row.mean ?? 0) / all.mean)} of the total` : "");
  return html`<div class="legend" role="group" aria-label="legend">
    <p class="legend-head"><span></span><span>Name</span><span class="figure now">Now</span><span class="figure">Mean ▾</span><span class="figure p95" title="95th percentile of the points of this time">95th</span></p>
    <ul>
      ${rows.map((row) => {
        const pick = onPick && row.one.key !== "other";
        return html`<li key=${row.one.key}><button type="button" title=${`${nameOf(row.one)}${share(row)}${pick ? ": click to filter" : ""}`} disabled=${!pick} onClick=${() => onPick?.(row.one.key)}>
          <${Swatch} look=${row.one.look} /><${Name} text=${nameOf(row.one)} most=${32} />${figuresOf(row)}
        </button></li>`;
      })}
    </ul>
    ${all && html`<p class="legend-head sum"><span></span><span title=${once ? "each packet once, though it passes several interfaces" : undefined}>${once ? "Total, once each" : "Total"}</span>${figuresOf(all)}</p>`}
  </div>`;
}

function Figures({ traffic, series, capacity, by, onPick }) {
  const figures = (values, errors) => ({ ...summary(values, errors, traffic.step), p95: percentile95(values) });
  const rows = series.map((one) => ({ ...one, ...figures(one.values, one.errors) }));
  const all = figures(traffic.total.values, traffic.total.errors);
  const columns = [
    { key: "name", name: NAMES[by] ?? by, sort: (row) => row.name, text: (row) => `${row.name} ${row.key}`, cell: (row) => html`<button type="button" class="link" title="show only this" disabled=${row.key === "other"} onClick=${() => onPick?.(row.key)}><${Swatch} look=${row.look} /><${Name} text=${nameOf(row)} /></button>` },
    { key: "now", name: "Now ± 95 %", number: true, sort: (row) => row.now, cell: (row) => rateWithError(row.now, row.error) },
    { key: "share", name: "Share", number: true, sort: (row) => (all.now > 0 ? (row.now ?? 0) / all.now : 0), cell: (row) => percent(all.now > 0 ? (row.now ?? 0) / all.now : 0) },
    { key: "mean", name: "Mean", number: true, sort: (row) => (row.key === "other" ? -1 : row.mean), cell: (row) => rate(row.mean) },
    { key: "p95", name: "95th percentile", number: true, sort: (row) => row.p95, cell: (row) => rate(row.p95) },
    { key: "greatest", name: "Max", number: true, sort: (row) => row.greatest, cell: (row) => rate(row.greatest) },
    { key: "bytes", name: "Volume", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  ];
  return html`<p class="note">Total now ${rateWithError(all.now, all.error)}, mean ${rate(all.mean)}, 95th percentile ${rate(all.p95)}, max ${rate(all.greatest)}, volume ${bytes(all.bytes)}${capacity ? `; capacity ${rate(capacity)}` : ""}. Points of ${traffic.step} s; total from ${traffic.total.from}; ± is the half-width of the 95 % interval.${rows.some((row) => row.key === "other") ? ` The ${SERIES_MAX} with the highest rates; Other is the sum of the rest.` : ""}</p>
    <${Table} caption=${`Traffic by ${by.replace("_", " ")}`} columns=${columns} rows=${rows} keyOf=${(row) => row.key} sort=${{ key: "mean", down: true }} />`;
}
