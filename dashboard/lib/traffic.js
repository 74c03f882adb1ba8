// Rates over time by one dimension from the collector: first a range, then, if it is live, second by second.
//
// A `Traffic` holds `times` (seconds since 1970) and, for each key, as many rates and errors as there are times. Keys keep
// their order while seconds are added, so that areas of a stack do not jump.

import { call, stream } from "./api.js";
import { SPECIAL } from "./colours.js";
import { recordSecond } from "./freshness.js";
import { useEffect, useRef, useState } from "./html.js";
import { directionOf, filtersOf, spanOf, windowOf } from "./route.js";

/** Most series of a request; the collector sums the rest as other. */
export const SERIES_MAX = 60;
/** Most series of a plot; the rest is the series "Other". */
export const DRAWN_MAX = 12;
/** Length of a live plot, in seconds. */
const LIVE_S = 600;
/** Seconds after which live data is read again: by then interface counters have arrived and totals are exact. */
const REREAD_S = 20;

/** Last version number, shared by all instances to be unique. */
let versions = 0;
const next = () => (versions += 1);

const sum = (values) => values.reduce((all, value) => all + (value ?? 0), 0);

export class Traffic {
  constructor(by) {
    this.by = by;
    this.times = [];
    this.series = [];
    /** Keys of the drawn series, the largest first. */
    this.drawn = [];
    this.total = { values: [], errors: [], from: "samples" };
    this.step = 1;
    this.version = next();
  }

  /** Replaces the data by an answer of /telemetry/series. */
  load(answer) {
    // The newest seconds are missing: they follow in the live feed or the next answer.
    let length = answer.total.bps.length;
    while (length > 0 && answer.total.bps[length - 1] === null) length -= 1;
    const before = new Map(this.series.map((one, at) => [one.key, at]));
    this.step = answer.step_s;
    this.times = Array.from({ length }, (_, at) => answer.start_s + at * answer.step_s);
    this.total = { values: answer.total.bps.slice(0, length), errors: answer.total.error_bps.slice(0, length), from: answer.total.from };
    this.series = answer.series.map((one) => ({ key: one.key, name: one.name || one.key, values: one.bps.slice(0, length), errors: one.error_bps.slice(0, length) }));
    this.order(before);
    this.version = next();
  }

  /** Order of keys: former keys in their order, then the largest first, keys without an owner last. */
  order(before) {
    const rank = (one) => (Object.hasOwn(SPECIAL, one.key) ? Object.keys(SPECIAL).indexOf(one.key) + 1 : 0);
    const place = (one) => before.get(one.key) ?? before.size;
    const sizes = new Map(this.series.map((one) => [one, sum(one.values)]));
    this.series.sort((a, b) => rank(a) - rank(b) || place(a) - place(b) || sizes.get(b) - sizes.get(a) || (a.key < b.key ? -1 : 1));
    const greatest = this.series.filter((one) => one.key !== "other" && sizes.get(one) > 0).sort((a, b) => sizes.get(b) - sizes.get(a) || (a.key < b.key ? -1 : 1));
    this.drawn = greatest.slice(0, DRAWN_MAX).map((one) => one.key);
  }

  /** The greatest series, in their order when the range was read, and one for all others: what a plot has room for. */
  top() {
    const known = new Map(this.series.map((one) => [one.key, one]));
    // Series that began since the range was read get the remaining places.
    const late = this.series.filter((one) => one.key !== "other" && !this.drawn.includes(one.key)).sort((a, b) => sum(b.values) - sum(a.values));
    const keys = [...this.drawn, ...late.map((one) => one.key)].slice(0, DRAWN_MAX);
    const drawn = keys.map((key) => known.get(key)).filter((one) => one && one.values.some((value) => value > 0));
    const rest = this.series.filter((one) => !drawn.includes(one) && one.values.some((value) => value > 0));
    if (rest.length === 0) return drawn;
    const values = this.times.map((_, at) => (this.total.values[at] === null ? null : rest.reduce((all, one) => all + (one.values[at] ?? 0), 0)));
    const errors = this.times.map((_, at) => Math.hypot(...rest.map((one) => one.errors[at] ?? 0)));
    const count = rest.filter((one) => one.key !== "other").length;
    return [...drawn, { key: "other", name: "Other", count, more: rest.some((one) => one.key === "other"), values, errors }];
  }

  /** Adds one second: `{time, total: {bps, error_bps, from}, series: [{key, name, bps, error_bps}]}`. */
  append(second) {
    const last = this.times.at(-1);
    // A repeated second: after a reconnection, or a clock that was set back.
    if (last !== undefined && second.time <= last) return;
    // Missing seconds stay visible as a gap.
    const missing = last === undefined ? 0 : Math.min(LIVE_S, Math.round(second.time - last) - 1);
    for (let at = 1; at <= missing; at += 1) this.push(last + at, null, new Map());
    const figures = new Map(second.series.map((one) => [one.key, one]));
    for (const [key, one] of figures) {
      if (this.series.some((known) => known.key === key)) continue;
      const empty = () => this.times.map(() => 0);
      const at = this.series.findIndex((known) => Object.hasOwn(SPECIAL, known.key));
      const place = Object.hasOwn(SPECIAL, key) || at < 0 ? this.series.length : at;
      this.series.splice(place, 0, { key, name: one.name || key, values: empty(), errors: empty() });
    }
    this.push(second.time, second.total, figures);
    this.version = next();
  }

  /** The newest second, as `append` takes it. */
  last() {
    const figure = (one) => ({ bps: one.values.at(-1), error_bps: one.errors.at(-1) });
    return { time: this.times.at(-1), total: figure(this.total), series: this.series.map((one) => ({ key: one.key, name: one.name, ...figure(one) })) };
  }

  push(time, total, figures) {
    const gap = total === null || total.bps === null;
    this.times.push(time);
    this.total.values.push(gap ? null : total.bps);
    this.total.errors.push(gap ? null : total.error_bps);
    for (const one of this.series) {
      const now = figures.get(one.key);
      one.values.push(gap ? null : (now?.bps ?? 0));
      one.errors.push(gap ? null : (now?.error_bps ?? 0));
    }
    while (this.times.length > LIVE_S) {
      this.times.shift();
      this.total.values.shift();
      this.total.errors.shift();
      for (const one of this.series) {
        one.values.shift();
        one.errors.shift();
      }
    }
  }
}

/** One event of /telemetry/live as `append` takes it. */
export function secondOf(event, by) {
  return { time: event.at_s, total: event.total, series: event.by?.[by] ?? [] };
}

/** Most points of a plot. */
const POINTS = 600;

/** Path of the series by `by` for the time and the filters of the address. */
export function seriesPath(by, time, filters, direction) {
  const { from, to } = spanOf(time);
  const step = Math.max(1, Math.ceil((to - from) / POINTS));
  const query = new URLSearchParams({ by, from, to, step, top: SERIES_MAX, ...filters });
  if (direction) query.set("direction", direction);
  return `/api/v1/telemetry/series?${query}`;
}

/** Traffic by `by` for the time and the filters of the address; none where `by` is null. */
export function useTraffic(by, time, params) {
  const filters = filtersOf(params);
  const direction = directionOf(params);
  const [state, change] = useState({ traffic: null, error: null, open: false, version: 0 });
  const held = useRef(null);
  const identity = JSON.stringify([by, time.range.key, time.from, time.to, time.paused, filters, direction]);
  useEffect(() => {
    if (by === null) {
      held.current = null;
      change({ traffic: null, error: null, open: false, version: 0 });
      return undefined;
    }
    const kind = JSON.stringify([by, filters, direction]);
    const before = held.current;
    // What is on the screen when it is held stays there: the host keeps seconds for ten minutes, and it does not.
    if (time.paused && !time.zoomed && before?.kind === kind && before.range === time.range.key && before.times.at(-1) > time.paused - 5 - 2 * before.step) {
      change((old) => ({ ...old, traffic: before, error: null, open: false }));
      return undefined;
    }
    const traffic = new Traffic(by);
    Object.assign(traffic, { kind, range: time.zoomed ? null : time.range.key });
    held.current = traffic;
    const stop = new AbortController();
    let end = () => {};
    let timer = 0;
    let following = false;
    const show = (more) => {
      if (held.current === traffic && !stop.signal.aborted) change((old) => ({ ...old, traffic, version: traffic.version, error: null, ...more }));
    };
    const fail = (error) => {
      if (held.current === traffic && !stop.signal.aborted) change((old) => ({ ...old, error, open: false }));
    };
    const load = async () => {
      clearTimeout(timer);
      try {
        const answer = await call(seriesPath(by, time, filters, direction), { signal: stop.signal });
        // Seconds that came while this was asked for are newer than it.
        const since = traffic.times.length > 0 ? traffic.last() : null;
        traffic.load(answer);
        traffic.filters = answer.filters ?? [];
        if (since && since.time === traffic.times.at(-1) + 1) traffic.append(since);
        show();
      } catch (error) {
        if (stop.signal.aborted) return;
        fail(error);
        timer = setTimeout(load, 5000);
        return;
      }
      if (time.live) {
        if (!following) follow();
        timer = setTimeout(load, REREAD_S * 1000);
      } else if (!time.zoomed && !time.paused) {
        timer = setTimeout(load, Math.max(5, Math.min(60, time.range.seconds / 600)) * 1000);
      }
    };
    const follow = () => {
      following = true;
      end = stream(`/api/v1/telemetry/live?${new URLSearchParams({ by, top: SERIES_MAX, ...filters, ...(direction ? { direction } : {}) })}`, {
        onEvent: (event) => {
          recordSecond(event.at_s + event.length_s);
          traffic.append(secondOf(event, by));
          show({ open: true });
        },
        onState: ({ open, error }) => (error ? fail(error) : show({ open })),
      });
    };
    const renew = () => {
      end();
      following = false;
      load();
    };
    // What was shown stays until there is something else of the same kind.
    change((old) => ({ ...old, traffic: old.traffic?.kind === kind ? old.traffic : null, error: null, open: false }));
    load();
    addEventListener("penstock:token", renew);
    return () => {
      stop.abort();
      end();
      clearTimeout(timer);
      removeEventListener("penstock:token", renew);
    };
  }, [identity]);
  return state;
}

/** The part of time to draw: of the last ten minutes what there is so far, but at least one. */
export function shownWindow(traffic, time) {
  if (time.zoomed || !traffic?.times.length) return windowOf(time);
  const to = traffic.times.at(-1);
  const from = to - time.range.seconds;
  if (time.range.key !== "live") return { from, to };
  const first = traffic.times[traffic.total.values.findIndex((value) => value !== null)] ?? to;
  return { from: Math.max(from, Math.min(first, to - 60)), to };
}

/** The value that 95 % of the points do not exceed (nearest rank); null where there are none. */
export function percentile95(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((a, b) => a - b);
  return known.length > 0 ? known[Math.ceil(known.length * 0.95) - 1] : null;
}

/** Figures of one series over the time shown: now, mean, 95th percentile, maximum, volume in bytes, 95 % error of now. */
export function summary(values, errors, step) {
  let [all, known, greatest] = [0, 0, 0];
  for (const value of values) {
    if (value === null || value === undefined) continue;
    all += value;
    known += 1;
    if (value > greatest) greatest = value;
  }
  let last = values.length - 1;
  while (last > 0 && (values[last] === null || values[last] === undefined)) last -= 1;
  return { now: values[last] ?? null, error: errors[last] ?? null, mean: known ? all / known : null, greatest: known ? greatest : null, bytes: (all * step) / 8 };
}
