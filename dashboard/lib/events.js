// Events of a time range for plots and lists: of the collector (alerts, exporters, interfaces, gaps) and, where this host is
// a controller, its drains, links and lost hosts.

import { call } from "./api.js";
import { useEffect, useState } from "./html.js";

/** Polling interval, in seconds. */
const POLL_S = 10;
/** Most events of one request. */
const LIMIT = 500;

/** Names of the kinds of events, and the groups by which they are filtered. */
export const KINDS = {
  alert_firing: "Alert firing",
  alert_resolved: "Alert resolved",
  alert_acknowledged: "Alert acknowledged",
  alert_unacknowledged: "Acknowledgement withdrawn",
  exporter_new: "New exporter",
  exporter_silent: "Exporter silent",
  exporter_resumed: "Exporter resumed",
  exporter_restarted: "Exporter restarted",
  interface_down: "Interface down",
  interface_up: "Interface up",
  collector_started: "Collector started",
  collector_gap: "Gap in the data",
  drain: "Drain",
  link: "Link",
  host_lost: "Host lost",
  reservation: "Reservation",
  circuit: "Circuit",
};

/** Kinds of the controller's events that say what an operator did, not that something failed. */
const ROUTINE = new Set(["drain", "reservation"]);

/** Kinds that plots mark. */
const MARKED = new Set(["alert_firing", "alert_resolved", "exporter_silent", "interface_down", "interface_up", "collector_started", "collector_gap", "drain", "link", "host_lost"]);

export const isMarked = (event) => MARKED.has(event.kind);

/** True if this host is a controller; requested once. */
let controller = null;

async function ofController(span, signal) {
  if (controller === false) return [];
  try {
    const query = new URLSearchParams({ from: span.from, to: span.to, limit: LIMIT });
    const { events } = await call(`/api/v1/events/network?${query}`, { signal });
    controller = true;
    return events.map((one) => ({ id: `c${one.id}`, at_s: one.unix_seconds, kind: one.kind, severity: ROUTINE.has(one.kind) ? "info" : "warning", subject: "", text: one.text }));
  } catch (error) {
    if (error.status === 404) controller = false;
    return [];
  }
}

/** Empty result. */
const NONE = { events: [], error: null, loaded: true };

/**
 * Events of `span` ({from, to} as requests have it; null for none), the newest first. `more` are further parameters of
 * the request, such as {link}.
 */
export function useEvents(span, more = {}) {
  const [state, change] = useState({ events: [], error: null, loaded: false });
  const identity = JSON.stringify([span, more]);
  useEffect(() => {
    if (span === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        const query = new URLSearchParams({ from: span.from, limit: LIMIT, ...(span.to > 0 ? { to: span.to } : {}), ...more });
        // A host may be a controller without a collector.
        const own = call(`/api/v1/telemetry/events?${query}`, { signal: stop.signal }).catch((error) => {
          if (error.status !== 404) throw error;
          return { events: [] };
        });
        const others = Object.keys(more).length === 0 ? ofController(span, stop.signal) : [];
        const events = [...(await own).events, ...(await others)].sort((a, b) => b.at_s - a.at_s);
        if (!stop.signal.aborted) change({ events, error: null, loaded: true });
      } catch (error) {
        if (!stop.signal.aborted) change((old) => ({ ...old, error }));
      }
      if (!stop.signal.aborted) timer = setTimeout(ask, POLL_S * 1000);
    };
    ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [identity]);
  return span === null ? NONE : state;
}
