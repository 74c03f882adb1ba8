// Plot of rates over time: stacked areas, lines, or one line with its error band. uPlot draws; this module selects
// the data. The page has the numbers as a table, too (parts/series.js), as a canvas is not accessible.

import uPlot from "../vendor/uplot.js";
import { css, fill, resolve } from "../lib/colours.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";
import { clean } from "../lib/text.js";
import { KINDS } from "../lib/events.js";
import { clock, moment, partsOf, percent, rate, rateWithError, zoneName } from "../lib/units.js";

/** Greatest ratio of capacity to traffic that is drawn: beyond it the traffic would be a flat line, and the capacity is text only. */
const CAPACITY_FAR = 5;
/** Most rows of a tooltip. */
const TOLD_MAX = 13;
/** Distance, in pixels, within which events share a mark, and within which the cursor shows them. */
const MARK_PX = 9;
/** Most events in a tooltip. */
const EVENTS_MAX = 5;
const MARK_COLOURS = { critical: "var(--bad)", warning: "var(--warn)", info: "var(--text-2)" };
const FONT = "12px system-ui, sans-serif";

/** Labels of uPlot's time ticks, with the day where it changes. */
function ticks(values, step) {
  let day = "";
  return values.map((value) => {
    const { year, month, day: number, hour, minute, second } = partsOf(value);
    const date = `${year}-${month}-${number}`;
    if (step >= 86400) return step >= 28 * 86400 ? date.slice(0, 7) : date.slice(5);
    const midnight = hour === "00" && minute === "00" && second === "00";
    const text = midnight && date !== day ? date.slice(5) : clock(value, step < 60);
    day = date;
    return text;
  });
}

/** Events in the drawn range, grouped by distance: {at, x, events, severity}. */
function marksOf(events, u) {
  const marks = [];
  for (const event of [...events].sort((a, b) => a.at_s - b.at_s)) {
    if (event.at_s < u.scales.x.min || event.at_s > u.scales.x.max) continue;
    const x = u.valToPos(event.at_s, "x");
    const last = marks.at(-1);
    if (last && x - last.x < MARK_PX) last.events.push(event);
    else marks.push({ x, events: [event] });
  }
  const rank = (event) => ["critical", "warning", "info"].indexOf(event.severity);
  for (const mark of marks) mark.severity = mark.events.reduce((worst, one) => (rank(one) < rank(worst) ? one : worst)).severity;
  return marks;
}

/** Rows for uPlot: times, one of each series, the total, the capacity. */
function rows({ times, series, total, kind, capacity }) {
  const data = [times];
  if (kind === "stack") {
    let below = new Float64Array(times.length);
    for (const one of series) {
      const top = new Float64Array(times.length);
      for (let at = 0; at < times.length; at += 1) top[at] = below[at] + (one.values[at] ?? 0);
      below = top;
      // Missing values stay gaps.
      data.push(Array.from(top, (value, at) => (one.values[at] === null ? null : value)));
    }
  } else if (kind === "band") {
    const [one] = series;
    data.push(one.values.map((value, at) => (value === null ? null : value + (one.errors[at] ?? 0))));
    data.push(one.values.map((value, at) => (value === null ? null : Math.max(0, value - (one.errors[at] ?? 0)))));
    data.push(one.values);
  } else {
    for (const one of series) data.push(one.values);
  }
  if (total) data.push(total.values);
  if (capacity) data.push(times.map(() => capacity));
  return data;
}

function greatest(data) {
  let most = 0;
  for (const row of data.slice(1)) for (const value of row) if (value > most) most = value;
  return most;
}

export function Plot({ times, series, total, capacity, kind = "stack", height = 320, from, to, label, onZoom, onReset, theme, version, events = [] }) {
  const place = useRef(null);
  const plot = useRef(null);
  const now = useRef({});
  const [hover, point] = useState(null);

  const top = Math.max(greatest(rows({ times, series, total, kind })), 0);
  const near = capacity && capacity <= top * CAPACITY_FAR ? capacity : null;
  now.current = { times, series, total, near, kind, from, to, top, onZoom, onReset, events };
  // Other series, styles or kinds need a new plot; new values do not.
  const identity = JSON.stringify([kind, theme, zoneName(), Boolean(total), Boolean(near), height, series.map((one) => [one.key, one.look])]);

  useLayoutEffect(() => {
    const colours = { text: resolve("var(--text-2)"), grid: resolve("var(--line)"), ground: resolve("var(--ground)"), strong: resolve("var(--text)") };
    const context = document.createElement("canvas").getContext("2d");
    const drawn = series.flatMap((one) => {
      const colour = resolve(css(one.look));
      const area = fill(context, colour, one.look.pattern, colours.ground);
      if (kind === "stack") return [{ stroke: colour, width: 1, fill: area, points: { show: false } }];
      if (kind === "band") {
        const edge = { stroke: "transparent", width: 0, points: { show: false } };
        return [{ ...edge }, { ...edge }, { stroke: colour, width: 1.75, points: { show: false } }];
      }
      const dash = { lines: [8, 3], dots: [2, 3], cross: [8, 3, 2, 3], waves: [4, 4], hatch: [6, 4] }[one.look.pattern];
      return [{ stroke: colour, width: 1.75, dash, points: { show: false } }];
    });
    const bands =
      kind === "stack"
        ? series.slice(1).map((_, at) => ({ series: [at + 2, at + 1] }))
        : kind === "band"
          ? [{ series: [1, 2], fill: resolve(css(series[0].look)).replace("rgb(", "rgba(").replace(")", ", 0.22)") }]
          : [];
    if (total) drawn.push({ stroke: colours.strong, width: 1.25, points: { show: false } });
    if (near) drawn.push({ stroke: resolve("var(--limit)"), width: 1.5, dash: [7, 4], points: { show: false } });
    const axis = { stroke: colours.text, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false }, font: FONT };
    const options = {
      width: place.current.clientWidth || 600,
      height,
      padding: [10, 26, 0, 0],
      legend: { show: false },
      tzDate: (time) => wallDate(time),
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: {
        x: { time: true, range: () => [now.current.from, now.current.to] },
        y: { range: () => [0, Math.max(now.current.top, now.current.near ?? 0) * 1.08 || 1000] },
      },
      axes: [
        { ...axis, values: (_, values, __, ___, step) => ticks(values, step), space: 74, size: 30 },
        { ...axis, size: 76, values: (_, values) => values.map(rate), space: 36 },
      ],
      series: [{}, ...drawn],
      bands,
      hooks: {
        setCursor: [(u) => point(u.cursor.idx === null || u.cursor.idx === undefined || u.cursor.left < 0 ? null : { idx: u.cursor.idx, left: u.cursor.left + u.bbox.left / devicePixelRatio, width: u.width })],
        setSelect: [
          (u) => {
            if (u.select.width < 4) return;
            const [start, end] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
            u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            now.current.onZoom?.(start, end);
          },
        ],
        draw: [(u) => write(u, now.current, colours)],
      },
    };
    const made = new uPlot(options, rows({ ...now.current, capacity: near }), place.current);
    plot.current = made;
    const back = () => now.current.onReset?.();
    made.over.addEventListener("dblclick", back);
    const size = new ResizeObserver(() => {
      const width = place.current?.clientWidth;
      if (width && Math.abs(width - made.width) >= 1) made.setSize({ width, height });
    });
    size.observe(place.current);
    return () => {
      size.disconnect();
      made.over.removeEventListener("dblclick", back);
      made.destroy();
      plot.current = null;
    };
  }, [identity]);

  useEffect(() => {
    plot.current?.setData(rows({ ...now.current, capacity: near }), true);
  }, [version, from, to, near, identity, events.length, events[0]?.id]);

  const keys = (event) => {
    const u = plot.current;
    if (!u || (event.key !== "ArrowLeft" && event.key !== "ArrowRight")) return;
    const last = times.length - 1;
    const idx = Math.max(0, Math.min(last, (hover?.idx ?? last) + (event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 10 : 1)));
    const left = u.valToPos(times[idx], "x");
    u.setCursor({ left, top: 10 });
    point({ idx, left: left + u.bbox.left / devicePixelRatio, width: u.width });
    event.preventDefault();
    event.stopPropagation();
  };

  return html`<div class="plot" tabindex="0" role="figure" aria-label=${label} onKeyDown=${keys} onBlur=${() => point(null)}>
    <div class="canvas" ref=${place} style=${{ height: `${height}px` }}></div>
    ${capacity && !near && top > 0 ? html`<p class="far">Capacity ${rate(capacity)} is above this scale; the maximum is ${percent(top / capacity)} of it.</p>` : null}
    ${hover && hover.idx < times.length && html`<${PlotTooltip} hover=${hover} times=${times} series=${series} total=${total} capacity=${capacity} events=${plot.current ? eventsAt(events, plot.current, hover, times) : []} />`}
  </div>`;
}

/** Date whose local fields are the wall clock of the selected time zone: uPlot places ticks by them. */
function wallDate(time) {
  const { year, month, day, hour, minute, second } = partsOf(time);
  return new Date(Number(year), Number(month) - 1, Number(day), Number(hour), Number(minute), Number(second));
}

/** Events at the cursor. */
function eventsAt(events, u, hover, times) {
  const x = u.valToPos(times[hover.idx], "x");
  return marksOf(events, u).filter((mark) => Math.abs(mark.x - x) < MARK_PX).flatMap((mark) => mark.events);
}

/** Marks of events: a line, and a triangle whose colour is that of the severity. */
function drawEvents(u, events) {
  const { ctx, bbox } = u;
  const scale = devicePixelRatio;
  ctx.save();
  for (const { x, events: many, severity } of marksOf(events, u)) {
    const at = bbox.left + x * scale;
    ctx.strokeStyle = ctx.fillStyle = resolve(MARK_COLOURS[severity] ?? MARK_COLOURS.info);
    ctx.lineWidth = scale;
    ctx.setLineDash([3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    const size = (many.length > 1 ? 6 : 5) * scale;
    ctx.beginPath();
    ctx.moveTo(at - size, bbox.top);
    ctx.lineTo(at + size, bbox.top);
    ctx.lineTo(at, bbox.top + 1.6 * size);
    ctx.closePath();
    ctx.fill();
  }
  ctx.restore();
}

/** Names on areas that are high enough, and the caption of the capacity line. */
function write(u, { series, near, kind, events }, colours) {
  drawEvents(u, events);
  const { ctx, bbox } = u;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.font = `${12 * scale}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.lineJoin = "round";
  const put = (text, x, y, align) => {
    ctx.textAlign = align;
    ctx.strokeStyle = colours.ground;
    ctx.lineWidth = 4 * scale;
    ctx.globalAlpha = 0.85;
    ctx.strokeText(text, x, y);
    ctx.globalAlpha = 1;
    ctx.fillStyle = colours.strong;
    ctx.fillText(text, x, y);
  };
  if (kind === "stack") {
    let last = u.data[0].length - 1;
    while (last > 0 && (u.data[0][last] > u.scales.x.max || series.some((_, at) => u.data[at + 1][last] === null))) last -= 1;
    const right = Math.min(u.valToPos(u.data[0][last] ?? 0, "x", true), bbox.left + bbox.width) - 8 * scale;
    let below = u.valToPos(0, "y", true);
    if (right > bbox.left + 60 * scale) {
      series.forEach((one, at) => {
        const above = u.valToPos(u.data[at + 1][last] ?? 0, "y", true);
        if (below - above > 15 * scale) put(clean(one.name, 28), right, (above + below) / 2, "right");
        below = above;
      });
    }
  }
  if (near) put(`capacity ${rate(near)}`, bbox.left + 6 * scale, u.valToPos(near, "y", true) - 9 * scale, "left");
  ctx.restore();
}

function PlotTooltip({ hover, times, series, total, capacity, events }) {
  const at = hover.idx;
  const all = total?.values[at] ?? series.reduce((sum, one) => sum + (one.values[at] ?? 0), 0);
  const told = series.map((one) => ({ one, value: one.values[at] })).filter((row) => row.value > 0).sort((a, b) => b.value - a.value);
  const side = hover.left > hover.width / 2 ? { right: `${hover.width - hover.left + 14}px` } : { left: `${hover.left + 14}px` };
  return html`<div class="told" style=${side} aria-live="polite">
    <p class="when">${moment(times[at])} ${zoneName()}</p>
    <table>
      ${total && html`<tr class="all"><th scope="row">total</th><td>${rateWithError(total.values[at], total.errors[at])}</td><td>${capacity ? percent((total.values[at] ?? 0) / capacity) : ""}</td></tr>`}
      ${told.slice(0, TOLD_MAX).map(
        ({ one, value }) => html`<tr key=${one.key}><th scope="row"><span class=${`swatch ${one.look.pattern}`} style=${{ "--swatch": css(one.look) }}></span>${clean(one.name, 32)}</th><td>${rateWithError(value, one.errors[at])}</td><td>${all > 0 ? percent(value / all) : ""}</td></tr>`,
      )}
      ${told.length > TOLD_MAX && html`<tr><th scope="row">${told.length - TOLD_MAX} more</th><td>${rate(told.slice(TOLD_MAX).reduce((sum, row) => sum + row.value, 0))}</td><td></td></tr>`}
    </table>
    ${events.slice(0, EVENTS_MAX).map((event) => html`<p key=${event.id} class="event"><b>${KINDS[event.kind] ?? clean(event.kind, 24)}</b> ${clean(event.subject && event.kind.startsWith("alert") ? `${event.subject}: ${event.text}` : event.text, 120)}</p>`)}
    ${events.length > EVENTS_MAX && html`<p class="event">and ${events.length - EVENTS_MAX} more events</p>`}
  </div>`;
}
