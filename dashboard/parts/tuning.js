// Rate and streams of one transfer over time, with each decision of its tuner: an SVG, and the decisions as a table.
// The arrow keys go from decision to decision.

import { html, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { clean } from "../lib/text.js";
import { duration, plural, rate } from "../lib/units.js";
import { Table } from "./table.js";

/** Margins and heights of the drawing, in pixels. */
const LEFT_PX = 76;
const RIGHT_PX = 26;
const TOP_PX = 20;
const RATE_PX = 180;
const GAP_PX = 18;
const STREAMS_PX = 84;
const AXIS_PX = 24;
const HEIGHT_PX = TOP_PX + RATE_PX + GAP_PX + STREAMS_PX + AXIS_PX;
/** Distance from a decision, in pixels, within which the pointer shows it. */
const NEAR_PX = 10;
/** Longest reason, in characters. */
const REASON_CHARS_MAX = 300;
/** Steps of the time axis, in seconds. */
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];

/** Round values from zero to `most`, about `count` of them, none closer than `least`. */
function roundValues(most, count, least = 0) {
  const raw = Math.max(most / count, least, Number.MIN_VALUE);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, power * [1, 2, 5, 10].find((one) => one * power >= raw * 0.999));
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}

function timeValues(most, count) {
  const step = TIME_STEPS.find((one) => one * count >= most) ?? TIME_STEPS.at(-1);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, at) => at * step);
}

const change = (from, to) => (from === to ? String(from) : `${from} → ${to}`);
const streamsOf = (one) => change(one.streams, one.target_streams);
const readersOf = (one) => change(one.readers, one.target_readers);
const writersOf = (one) => change(one.writers, one.target_writers);

const pace = (bps) => (bps === null || bps === undefined ? "none" : rate(bps));
const paceOf = (one) => change(pace(one.stream_pacing_bps), pace(one.target_stream_pacing_bps));
const isPaced = (one) => paceOf(one) !== "none";

const isChange = (one) => [streamsOf, readersOf, writersOf, paceOf].some((of) => of(one).includes("→"));
const emphasized = (text) => (text.includes("→") ? html`<b>${text}</b>` : text);

/** Scales of the drawing at this width. */
function scalesOf({ series, decisions }, width) {
  const seconds = Math.max(1, series.at(-1)?.seconds ?? 0, decisions.at(-1)?.seconds ?? 0);
  const bps = Math.max(1000, ...series.map((one) => one.bits_per_second), ...decisions.map((one) => one.bits_per_second)) * 1.06;
  const streams = Math.max(1, ...series.map((one) => one.streams), ...decisions.map((one) => one.target_streams)) * 1.1;
  const inner = Math.max(50, width - LEFT_PX - RIGHT_PX);
  const bottom = TOP_PX + RATE_PX + GAP_PX + STREAMS_PX;
  return {
    seconds, bps, streams, bottom,
    x: (value) => LEFT_PX + (value / seconds) * inner,
    rate: (value) => TOP_PX + RATE_PX * (1 - value / bps),
    count: (value) => bottom - STREAMS_PX * (value / streams),
  };
}

/** Paths of rate, of the area below it, and of the streams. */
function pathsOf(series, at) {
  if (series.length === 0) return { line: "", area: "", steps: "" };
  const points = series.map((one) => `${at.x(one.seconds).toFixed(1)} ${at.rate(one.bits_per_second).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  const zero = at.rate(0).toFixed(1);
  const area = `${line}L${at.x(series.at(-1).seconds).toFixed(1)} ${zero}L${at.x(series[0].seconds).toFixed(1)} ${zero}Z`;
  const steps = series.map((one) => `V${at.count(one.streams).toFixed(1)}H${at.x(one.seconds).toFixed(1)}`);
  return { line, area, steps: `M${LEFT_PX} ${at.count(series[0].streams).toFixed(1)}${steps.join("")}` };
}

/** `chosen` is the number of the decision that is shown; `onChoose` gets another one, or null. */
export function TuningPlot({ tuning, label, chosen, onChoose }) {
  const { series, decisions } = tuning;
  const place = useRef(null);
  const [width, measure] = useState(0);
  const [pointer, point] = useState(null);
  useLayoutEffect(() => {
    const size = new ResizeObserver(() => place.current && measure(place.current.clientWidth));
    size.observe(place.current);
    return () => size.disconnect();
  }, []);
  const at = scalesOf(tuning, width || 800);
  const { line, area, steps } = pathsOf(series, at);
  const right = (width || 800) - RIGHT_PX;
  const move = (event) => {
    const x = event.clientX - place.current.getBoundingClientRect().left;
    const distance = (one) => Math.abs(at.x(one.seconds) - x);
    const nearest = (all) => all.reduce((best, one, index) => (best === null || distance(one) < distance(all[best]) ? index : best), null);
    const decision = nearest(decisions);
    onChoose(decision !== null && distance(decisions[decision]) <= NEAR_PX ? decision : null);
    point(nearest(series));
  };
  const leave = () => {
    onChoose(null);
    point(null);
  };
  const keys = (event) => {
    if ((event.key !== "ArrowLeft" && event.key !== "ArrowRight") || decisions.length === 0) return;
    const step = event.key === "ArrowLeft" ? -1 : 1;
    const from = chosen ?? (step < 0 ? decisions.length : -1);
    point(null);
    onChoose(Math.max(0, Math.min(decisions.length - 1, from + step)));
    event.preventDefault();
    event.stopPropagation();
  };
  const shown = chosen !== null ? decisions[chosen] : pointer !== null ? series[pointer] : null;
  return html`<div class="plot tuning" ref=${place} tabindex="0" role="figure" aria-label=${label} onKeyDown=${keys} onBlur=${leave} onMouseMove=${move} onMouseLeave=${leave}>
    <svg width=${width || 800} height=${HEIGHT_PX} aria-hidden="true">
      ${roundValues(at.bps, 4).map((value) => html`<g key=${`r${value}`}><line class="grid" x1=${LEFT_PX} x2=${right} y1=${at.rate(value)} y2=${at.rate(value)} /><text x=${LEFT_PX - 6} y=${at.rate(value) + 4} text-anchor="end">${rate(value)}</text></g>`)}
      ${roundValues(at.streams, 4, 1).map((value) => html`<g key=${`s${value}`}><line class="grid" x1=${LEFT_PX} x2=${right} y1=${at.count(value)} y2=${at.count(value)} /><text x=${LEFT_PX - 6} y=${at.count(value) + 4} text-anchor="end">${value}</text></g>`)}
      ${timeValues(at.seconds, Math.max(2, Math.floor((right - LEFT_PX) / 90))).map((value) => html`<text key=${`t${value}`} x=${at.x(value)} y=${at.bottom + 17} text-anchor=${at.x(value) > right - 24 ? "end" : "middle"}>${value === 0 ? "0" : duration(value)}</text>`)}
      <path class="area" d=${area} /><path class="rate" d=${line} /><path class="streams" d=${steps} />
      ${decisions.map((one, index) => html`<g key=${index} class=${`decision${isChange(one) ? " changes" : ""}${chosen === index ? " chosen" : ""}`}>
        <line x1=${at.x(one.seconds)} x2=${at.x(one.seconds)} y1=${TOP_PX} y2=${at.bottom} /><circle cx=${at.x(one.seconds)} cy=${TOP_PX - 8} r=${chosen === index ? 6 : 4} />
      </g>`)}
      <text class="title" x=${LEFT_PX + 6} y=${TOP_PX + 12}>Rate</text><text class="title" x=${LEFT_PX + 6} y=${at.bottom - STREAMS_PX + 4}>Streams</text>
    </svg>
    <div aria-live="polite">${shown && html`<${Told} shown=${shown} x=${at.x(shown.seconds)} width=${width || 800} />`}</div>
  </div>`;
}

function Told({ shown, x, width }) {
  const side = x > width / 2 ? { right: `${width - x + 14}px` } : { left: `${x + 14}px` };
  const isDecision = shown.reason !== undefined;
  return html`<div class="told" style=${side}>
    <p class="when">after ${duration(shown.seconds)}</p>
    <table>
      <tr><th scope="row">rate</th><td>${rate(shown.bits_per_second)}</td></tr>
      <tr><th scope="row">streams</th><td>${isDecision ? streamsOf(shown) : shown.streams}</td></tr>
      ${isDecision && html`<tr><th scope="row">readers</th><td>${readersOf(shown)}</td></tr>`}
      ${isDecision && html`<tr><th scope="row">writers</th><td>${writersOf(shown)}</td></tr>`}
      ${isDecision && isPaced(shown) && html`<tr><th scope="row">pace of a stream</th><td>${paceOf(shown)}</td></tr>`}
      ${isDecision && html`<tr><th scope="row">limited by</th><td>${clean(shown.bound_by, 40)}</td></tr>`}
    </table>
    ${isDecision && html`<p class="event">${clean(shown.reason, REASON_CHARS_MAX)}</p>`}
  </div>`;
}

const columns = [
  { key: "time", name: "After", number: true, sort: (row) => row.seconds, cell: (row) => duration(row.seconds) },
  { key: "streams", name: "Streams", sort: (row) => row.target_streams, text: streamsOf, cell: (row) => emphasized(streamsOf(row)) },
  { key: "readers", low: 1, name: "Readers", sort: (row) => row.target_readers, text: readersOf, cell: (row) => emphasized(readersOf(row)) },
  { key: "writers", low: 1, name: "Writers", sort: (row) => row.target_writers, text: writersOf, cell: (row) => emphasized(writersOf(row)) },
  { key: "pace", low: 1, name: "Pace of a stream", sort: (row) => row.target_stream_pacing_bps ?? Infinity, text: paceOf, cell: (row) => emphasized(paceOf(row)) },
  { key: "rate", name: "Rate before", number: true, sort: (row) => row.bits_per_second, cell: (row) => rate(row.bits_per_second) },
  { key: "bound", low: 1, name: "Limited by", sort: (row) => row.bound_by, cell: (row) => clean(row.bound_by, 40) },
  { key: "reason", name: "Reason", wrap: true, sort: (row) => row.reason, cell: (row) => clean(row.reason, REASON_CHARS_MAX) },
];

export function TuningTable({ tuning, caption, chosen }) {
  const rows = tuning.decisions.map((one, index) => ({ ...one, index }));
  const left = tuning.decisions_left_out;
  return html`${left > 0 && html`<p class="note">${plural(left, "earlier decision")} ${left === 1 ? "is" : "are"} no longer kept.</p>`}
    <${Table} caption=${caption} columns=${rows.some(isPaced) ? columns : columns.filter((one) => one.key !== "pace")} rows=${rows} keyOf=${(row) => row.index} onRow=${(row) => (row.index === chosen ? "chosen" : "")} empty="no decision yet" />`;
}
