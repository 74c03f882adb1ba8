// State of the page in its address, so that a link reproduces the view:
//
//   #/overview?range=1h&by=owner&owner=cms&theme=dark
//
// `page` is the word after #/, everything else a parameter. Parameters in SHARED are kept on a change of page.

import { useEffect, useState } from "./html.js";
import { setZone } from "./units.js";

export const DIMENSIONS = ["owner", "activity", "scitag", "vlan", "site", "site_pair", "host", "interface", "ip_version", "as", "prefix"];

/** Names of the dimensions. */
export const NAMES = { owner: "Owner", activity: "Activity", scitag: "Scitag", vlan: "VLAN", site: "Site", site_pair: "Site pair", host: "Host", interface: "Interface", ip_version: "IP version", as: "AS", prefix: "Prefix" };

/** Dimensions by kind of sum: a filter of one kind does not apply to series of another. */
const KINDS = { host: "host", prefix: "host", as: "as" };

export const kindOf = (dimension) => KINDS[dimension] ?? "group";

/** Dimensions whose items have a direction of their own. */
export const DIRECTED = ["interface", "site", "host", "prefix", "as"];

/** Parameters kept on a change of page: time, filters, appearance. */
export const SHARED = ["range", "from", "to", "paused", "tz", "theme", "patterns", "events", "direction", ...DIMENSIONS];

export const RANGES = [
  { key: "live", name: "10 min", title: "the last 10 minutes, live", seconds: 600 },
  { key: "1h", name: "1 h", title: "the last hour", seconds: 3600 },
  { key: "6h", name: "6 h", title: "the last 6 hours", seconds: 6 * 3600 },
  { key: "24h", name: "24 h", title: "the last day", seconds: 86400 },
  { key: "7d", name: "7 d", title: "the last week", seconds: 7 * 86400 },
  { key: "30d", name: "30 d", title: "the last 30 days", seconds: 30 * 86400 },
  { key: "1y", name: "1 y", title: "the last year", seconds: 365 * 86400 },
];

export function read(hash = location.hash) {
  const text = hash.replace(/^#\/?/, "");
  const cut = text.indexOf("?");
  const page = (cut < 0 ? text : text.slice(0, cut)) || "overview";
  const params = Object.fromEntries(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)));
  setZone(params.tz);
  return { page, params };
}

function write(page, params) {
  const kept = Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== "");
  // Characters that an address may contain stay unescaped and readable.
  const query = new URLSearchParams(kept).toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
  return `#/${page}${query ? `?${query}` : ""}`;
}

/** Address of another page with the shared parameters. */
export function link(page, more = {}) {
  const { params } = read();
  const shared = Object.fromEntries(SHARED.filter((name) => name in params).map((name) => [name, params[name]]));
  return write(page, { ...shared, ...more });
}

/** Changes parameters; undefined removes one. Replaces the entry of the history unless `replace` is false. */
export function set(changes, { replace = true } = {}) {
  const { page, params } = read();
  const next = write(page, { ...params, ...changes });
  if (next === location.hash) return;
  if (replace) {
    history.replaceState(null, "", next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = next;
  }
}

export function useRoute() {
  const [route, change] = useState(read);
  useEffect(() => {
    const changed = () => change(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/** Selected time: live, a range that ends now, or from and to (seconds since 1970). */
export function timeOf(params) {
  const range = RANGES.find((one) => one.key === params.range) ?? RANGES[0];
  const [from, to] = [Number(params.from), Number(params.to)];
  const zoomed = params.from !== undefined && Number.isFinite(from) && Number.isFinite(to) && to > from;
  const paused = Number(params.paused) > 0 ? Number(params.paused) : null;
  return { range, live: range.key === "live" && !zoomed && !paused, zoomed, from: zoomed ? from : null, to: zoomed ? to : null, paused };
}

/** Selected time as whole seconds since 1970. */
export function windowOf(time, now = Date.now() / 1000) {
  if (time.zoomed) return { from: Math.floor(time.from), to: Math.ceil(time.to) };
  const end = Math.floor(time.paused ?? now);
  return { from: end - time.range.seconds, to: end };
}

/** `from` and `to` of a request; a range that ends now is given in seconds before now, by the host's clock. */
export function spanOf(time) {
  return time.zoomed || time.paused ? windowOf(time) : { from: -time.range.seconds, to: 0 };
}

/** Filters of the address: parameters that name a dimension. */
export function filtersOf(params) {
  return Object.fromEntries(DIMENSIONS.filter((name) => params[name] !== undefined).map((name) => [name, params[name]]));
}

/** Direction of the traffic: in, out, or undefined, for which the collector chooses. */
export const directionOf = (params) => (params.direction === "in" || params.direction === "out" ? params.direction : undefined);
