// Age of the data: how old the newest second is that the collector has summed, and whether the collector answers at all.
//
// The clock of the reader may differ from that of the host: ages go by the host's clock, whose difference is in each answer
// of the collector.

import { call } from "./api.js";
import { useEffect, useState } from "./html.js";

/** Between two questions. */
const POLL_S = 2;
/** Between two questions to a host that is no collector. */
const ABSENT_POLL_S = 60;
/** A question without an answer for so long has failed. */
const ANSWER_S = 4;
/** Data up to this age is current: a second is summed and sent when it ends. */
const CURRENT_S = 6;
/** Data of this age is announced on the page. */
const LATE_S = 10;
/** Without an answer for so long the collector counts as hung. */
const HUNG_S = 8;

/** What is known: seconds of this page's clock, but for `newest` and `datagram`, which are the host's, and `lag_s`, how far it is behind. */
const known = { answered: null, began: null, offset: 0, newest: null, datagram: null, lag_s: 0, silent: false, absent: false, refused: null };

const now = () => Date.now() / 1000;

/** Takes note of a second that the live feed brought; `end_s` is its end by the host's clock. */
export function recordSecond(end_s) {
  known.answered = now();
  if (Number.isFinite(end_s)) known.newest = Math.max(known.newest ?? 0, end_s);
}

/** Asks for the state of the collector. */
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
    // A host that is no collector has no data that could be old.
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
  // Exporters are silent for longer than is usual: from then on figures are unknown.
  if (known.silent && known.datagram !== null) return { kind: "quiet", age, quiet: at + known.offset - known.datagram, since: known.datagram };
  if (known.silent) return { kind: "empty", age };
  return { kind: "current", age };
}

/** The state, looked at each second while the page is seen. */
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
    // A page that was hidden asked for nothing: its age is not the collector's.
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
