// Age of the newest second that the collector has summed, and availability of the collector.
//
// The browser's clock may differ from the host's: ages use the host's clock, whose offset follows from each answer
// of the collector.

import { call } from "./api.js";
import { useEffect, useState } from "./html.js";

/** Polling interval, in seconds. */
const POLL_S = 2;
/** Polling interval for a host without a collector, in seconds. */
const ABSENT_POLL_S = 60;
/** Request timeout, in seconds. */
const ANSWER_S = 4;
/** Greatest age of current data, in seconds: a second is summed and sent when it ends. */
const CURRENT_S = 6;
/** Age from which the page shows a banner, in seconds. */
const LATE_S = 10;
/** Time without an answer after which the collector counts as hung, in seconds. */
const HUNG_S = 8;

/** Last measurements: times by the browser's clock, except `newest` and `datagram` by the host's; `lag_s` is the delay of the collector. */
const known = { answered: null, began: null, offset: 0, newest: null, datagram: null, lag_s: 0, silent: false, absent: false, refused: null };

const now = () => Date.now() / 1000;

/** Records a second from the live feed; `end_s` is its end by the host's clock. */
export function recordSecond(end_s) {
  known.answered = now();
  if (Number.isFinite(end_s)) known.newest = Math.max(known.newest ?? 0, end_s);
}

/** Requests the state of the collector. */
async function ask(signal) {
  const before = now();
  try {
    const status = await call("/api/v1/telemetry/status", { signal, seconds: ANSWER_S });
    known.answered = now();
    known.offset = status.now_s - (before + known.answered) / 2;
    known.newest = status.closed_until_s ?? null;
    known.datagram = status.last_datagram_s ?? null;
    known.lag_s = status.lag_s ?? 0;
    known.silent = status.silent === true;
    known.absent = false;
    known.refused = null;
  } catch (error) {
    if (signal.aborted) return;
    // A host without a collector has no data to age.
    known.absent = error.status === 404;
    known.refused = error.status === 401 || error.status === 403 ? error : null;
    if (error.status > 0) known.answered = now();
  }
}

/**
 * State of the data: `{kind, age, since}`. `kind` is current, late (the collector is behind), hung (no answer), quiet (exporters
 * stopped sending), empty (none has sent anything yet), starting, or absent.
 */
export function freshness() {
  if (known.absent || known.refused) return { kind: "absent" };
  const at = now();
  const silent = known.answered === null ? at - (known.began ?? at) : at - known.answered;
  const age = known.newest === null ? null : Math.max(0, at + known.offset - known.newest);
  if (silent > HUNG_S) return { kind: "hung", age, silent, since: known.answered };
  if (known.answered === null || known.newest === null) return { kind: "starting", age };
  const behind = Math.max(age, known.lag_s);
  if (behind > CURRENT_S) return { kind: "late", age: behind, announced: behind > LATE_S };
  // The exporters are silent for longer than usual: figures after that are unknown.
  if (known.silent && known.datagram !== null) return { kind: "quiet", age, quiet: at + known.offset - known.datagram, since: known.datagram };
  if (known.silent) return { kind: "empty", age };
  return { kind: "current", age };
}

/** State of the data, updated each second while the page is visible. */
export function useFreshness() {
  const [state, change] = useState({ kind: "starting" });
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let asked = 0;
    known.began = now();
    const look = () => {
      if (document.hidden) return;
      if (now() - asked >= (known.absent ? ABSENT_POLL_S : POLL_S)) {
        asked = now();
        ask(stop.signal).then(() => !stop.signal.aborted && change(freshness()));
      }
      change(freshness());
    };
    // A hidden page sends no requests: the age of its data says nothing about the collector.
    const seen = () => {
      if (document.hidden) return;
      known.began = now();
      if (known.answered !== null) known.answered = now();
      asked = 0;
      look();
    };
    look();
    timer = setInterval(look, 1000);
    document.addEventListener("visibilitychange", seen);
    return () => {
      stop.abort();
      clearInterval(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, []);
  return state;
}
