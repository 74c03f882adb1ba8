// Client of this host's HTTP API: requests, polling and server-sent events. The token is kept until the tab is closed.

import { useEffect, useRef, useState } from "./html.js";

const KEY = "penstock.token";
const SECONDS_MAX = 30;
/** Time without an event, in seconds, after which the connection counts as dead: the live feed sends at least every 15 seconds. */
const SILENT_S = 45;

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
    dispatchEvent(new Event("penstock:token"));
  },
};

/** Failed request. `status` is the HTTP status, 0 without a response. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function request(path, { method = "GET", body, signal, headers: more } = {}) {
  const headers = { accept: "application/json", ...more };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  return fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, credentials: "omit" });
}

async function refusal(response) {
  let text = `${response.status} ${response.statusText}`;
  try {
    const problem = await response.json();
    text = problem.detail ?? problem.error ?? text;
  } catch {
    // No problem document, for example from a proxy: the status has to do.
  }
  return new ApiError(response.status, text);
}

/** Fetches `path` and parses its JSON. */
export async function call(path, options = {}) {
  const seconds = options.seconds ?? SECONDS_MAX;
  const limit = AbortSignal.timeout(seconds * 1000);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  let response;
  try {
    response = await request(path, { ...options, signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, limit.aborted ? `no answer within ${seconds} s` : "this host does not answer: is `penstock serve` running, and is the path to it open?");
  }
  if (!response.ok) throw await refusal(response);
  return response.status === 204 ? null : response.json();
}

/** Polls `path`: at once, on change, and every `seconds` while the page is visible; null sends no request. */
export function usePoll(path, seconds) {
  const [state, change] = useState({ data: null, error: null, path: null });
  const again = useRef(() => {});
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    const ask = async () => {
      clearTimeout(timer);
      if (!document.hidden) {
        try {
          const data = await call(path, { signal: stop.signal });
          if (stop.signal.aborted) return;
          change({ data, error: null, path });
        } catch (error) {
          if (stop.signal.aborted) return;
          // Keep the former data and show the error beside it.
          change((old) => ({ data: old.path === path ? old.data : null, error, path }));
        }
      }
      if (seconds && !stop.signal.aborted) {
        clearTimeout(timer);
        timer = setTimeout(ask, seconds * 1000);
      }
    };
    again.current = ask;
    const seen = () => !document.hidden && ask();
    ask();
    document.addEventListener("visibilitychange", seen);
    addEventListener("penstock:token", ask);
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      removeEventListener("penstock:token", ask);
    };
  }, [path, seconds]);
  const fresh = state.path === path;
  return { data: fresh ? state.data : null, error: fresh ? state.error : null, again: () => again.current() };
}

/**
 * Server-sent events of `path` until the returned function is called. `fetch` and not EventSource, which cannot show a
 * token. A broken stream is opened again with the last id, after one second, then with exponential back-off.
 *
 * A page in the back/forward cache may keep its streams open, and browsers allow six connections to a
 * host: a stream closes with its page and opens again if the page comes back.
 */
export function stream(path, { onEvent, onState }) {
  const stop = new AbortController();
  let last = null;
  let pause = 1;
  let end = () => {};
  let connection = new AbortController();
  let returned = null;
  const leave = () => {
    if (!returned) {
      let resolve = () => {};
      const promise = new Promise((done) => (resolve = done));
      returned = { promise, resolve };
    }
    connection.abort();
  };
  const comeBack = () => {
    returned?.resolve();
    returned = null;
  };
  addEventListener("pagehide", leave);
  addEventListener("pageshow", comeBack);
  const read = async () => {
    const headers = { accept: "text/event-stream", ...(last === null ? {} : { "last-event-id": last }) };
    connection = new AbortController();
    const signal = AbortSignal.any([stop.signal, connection.signal]);
    const response = await request(path, { signal, headers });
    if (!response.ok) throw await refusal(response);
    onState({ open: true, error: null });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    end = () => reader.cancel().catch(() => {});
    let rest = "";
    for (;;) {
      let timer = 0;
      const silence = new Promise((_, fail) => {
        timer = setTimeout(() => fail(new ApiError(0, `the live feed has said nothing for ${SILENT_S} s; asking again`)), SILENT_S * 1000);
      });
      const { value, done } = await Promise.race([reader.read(), silence]).finally(() => clearTimeout(timer));
      if (done) throw new ApiError(0, "the live feed ended");
      pause = 1;
      rest += value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) event(part);
      if (rest.length > 16e6) throw new ApiError(0, "the live feed sends what is no event");
    }
  };
  const event = (text) => {
    const data = [];
    for (const line of text.split(/\r?\n/)) {
      if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      else if (line.startsWith("id:")) last = line.slice(3).trim();
    }
    if (data.length > 0) onEvent(JSON.parse(data.join("\n")));
  };
  (async () => {
    while (!stop.signal.aborted) {
      try {
        await read();
      } catch (error) {
        end();
        if (stop.signal.aborted) return;
        if (returned) {
          await returned.promise;
          continue;
        }
        onState({ open: false, error: error instanceof ApiError ? error : new ApiError(0, "the live feed broke; asking again") });
        // Unauthorised: no retry before the user gives a token.
        if (error.status === 401 || error.status === 403 || error.status === 404) return;
      }
      await new Promise((done) => setTimeout(done, pause * 1000));
      pause = Math.min(pause * 2, 30);
    }
  })();
  return () => {
    removeEventListener("pagehide", leave);
    removeEventListener("pageshow", comeBack);
    stop.abort();
    comeBack();
  };
}
