// Total traffic against capacity, its owners, and the top flows. Time, filters and direction apply to each panel.

import { token, usePoll } from "../lib/api.js";
import { isMarked, useEvents } from "../lib/events.js";
import { html, useEffect } from "../lib/html.js";
import { DIMENSIONS, DIRECTED, directionOf, filtersOf, kindOf, link, NAMES, read, set, spanOf, timeOf } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { percentile95, shownWindow, summary, useTraffic } from "../lib/traffic.js";
import { percent, percentWithError, rate, rateWithError } from "../lib/units.js";
import { Choice, Command, Empty, Filters, Loading, Meter, isNoCollector, Panel, Problem, Tile } from "../parts/bits.js";
import { Saves, Series, useLooks, VIEWS } from "../parts/series.js";
import { Table } from "../parts/table.js";

const T = "/api/v1/telemetry";

/**
 * Capacity for the selected traffic, in bits per second: the sum of the interfaces of hosts (of all, where no
 * exporter is a host: then switches see the same traffic twice), or of the one that is filtered for. Null where unknown.
 */
function capacityOf(interfaces, exporters, filters) {
  if (!interfaces || !exporters || Object.keys(filters).some((name) => name !== "interface")) return null;
  const hosts = new Set(exporters.filter((one) => one.host).map((one) => one.key));
  const counted = interfaces.filter((one) => one.up && one.speed_bps > 0 && (filters.interface ? one.key === filters.interface : hosts.size === 0 || hosts.has(one.exporter)));
  return counted.reduce((all, one) => all + one.speed_bps, 0) || null;
}

const dimensionOf = (params) => (DIMENSIONS.includes(params.by) ? params.by : "owner");
const viewOf = (params) => (VIEWS.some((one) => one.key === params.view) ? params.view : "stack");

/** Key action: selects the next of `options` after the address's present value. */
function useNext(event, options, current, change) {
  useEffect(() => {
    const next = () => change(options[(options.indexOf(current(read().params)) + 1) % options.length]);
    addEventListener(event, next);
    return () => removeEventListener(event, next);
  }, []);
}

/** Names of the directions by dimension: in and out for an interface, received and sent for others. */
export const directionsOf = (by) =>
  by === "interface"
    ? [{ key: "in", name: "In", title: "what comes in at interfaces" }, { key: "out", name: "Out", title: "what goes out at interfaces" }]
    : [{ key: "out", name: "Sent", title: "what they send" }, { key: "in", name: "Received", title: "what they receive" }];

/** Selector of the direction, if the dimension or a filter has one. */
function DirectionChoice({ by, filters, params }) {
  const directed = DIRECTED.includes(by) ? by : Object.keys(filters).find((name) => DIRECTED.includes(name));
  if (!directed) return null;
  const options = directionsOf(directed);
  return html`<${Choice} label="direction" small options=${options} value=${directionOf(params) ?? options[0].key} onChange=${(direction) => set({ direction })} />`;
}

/** Time range of a plot's events; null if they are switched off. */
export const eventSpan = (params, time) => (params.events === "off" ? null : spanOf(time));

export const EventsSwitch = ({ params }) => html`<button type="button" class="small" aria-pressed=${params.events === "off" ? "false" : "true"} title="mark alerts, drains and failures in the plot (e)" onClick=${() => set({ events: params.events === "off" ? undefined : "off" })}>Events</button>`;

export function Overview({ params, theme }) {
  const by = dimensionOf(params);
  const view = viewOf(params);
  const time = timeOf(params);
  const filters = filtersOf(params);
  const apart = Object.keys(filters).find((name) => kindOf(name) !== kindOf(by));
  const { traffic, error, open, version } = useTraffic(apart ? null : by, time, params);
  const interfaces = usePoll(`${T}/interfaces`, 15).data?.interfaces;
  const exporters = usePoll(`${T}/exporters`, 30).data?.exporters;
  const series = useLooks(traffic, version, params.patterns, view === "table");
  const { events } = useEvents(eventSpan(params, time));
  const pick = (name) => set({ by: name === "owner" ? undefined : name }, { replace: false });
  const show = (name) => set({ view: name === "stack" ? undefined : name });
  useNext("penstock:next-dimension", DIMENSIONS, dimensionOf, pick);
  useNext("penstock:next-view", VIEWS.map((one) => one.key), viewOf, show);

  const capacity = capacityOf(interfaces, exporters, filters);
  const window = shownWindow(traffic, time);
  const now = traffic && { ...summary(traffic.total.values, traffic.total.errors, traffic.step), p95: percentile95(traffic.total.values) };
  const quiet = traffic && !(now.greatest > 0);
  const names = Object.fromEntries((traffic?.filters ?? []).map((one) => [one.by, one.name]));
  const first = Object.keys(filters)[0];
  const options = DIMENSIONS.map((key) => ({ key, name: NAMES[key], disabled: first !== undefined && kindOf(first) !== kindOf(key), title: first !== undefined && kindOf(first) !== kindOf(key) ? `not kept by ${NAMES[first]}: remove that filter first` : undefined }));
  const title = `Traffic by ${NAMES[by]}`;
  return html`
    <${Filters} params=${params} names=${names} />
    <${Tiles} now=${now} capacity=${capacity} from=${traffic?.total.from} open=${open} time=${time} params=${params} />
    <${Panel} id="traffic" wide title="Traffic" note=${traffic ? state(time, open, error) : ""}
      tools=${html`<${DirectionChoice} by=${by} filters=${filters} params=${params} /><${Choice} label="view" small options=${VIEWS} value=${view} onChange=${show} /><${EventsSwitch} params=${params} />${traffic && !quiet && html`<${Saves} traffic=${traffic} series=${series} panel="traffic" title=${title} />`}`}>
      <${Choice} label="by" options=${options} value=${by} onChange=${pick} />
      ${apart
        ? html`<${Empty} title=${`Traffic by ${NAMES[by]} cannot be filtered by ${NAMES[apart]}.`}>
            <p>Sums of hosts and prefixes, of AS, and of all other dimensions are kept apart.
            <button type="button" onClick=${() => set({ [apart]: undefined })}>Remove the filter</button> <button type="button" onClick=${() => pick(apart)}>Show by ${NAMES[apart]}</button></p><//>`
        : html`<${Problem} error=${error} />
          ${!traffic && !error && html`<${Loading} />`}
          ${quiet && html`<${Quiet} time=${time} filters=${filters} />`}
          ${traffic && !quiet && html`<${Series} traffic=${traffic} version=${version} series=${series} view=${view} window=${window} capacity=${view === "lines" || by === "interface" ? null : capacity} theme=${`${theme}${params.patterns ?? ""}`} by=${by} events=${events.filter(isMarked)}
            onZoom=${(from, to) => set({ from: Math.floor(from), to: Math.max(Math.floor(from) + 2, Math.ceil(to)) }, { replace: false })}
            onReset=${() => set({ from: undefined, to: undefined })}
            onPick=${(key) => set({ [by]: key }, { replace: false })} />`}`}
    <//>
    ${!isNoCollector(error) && html`<${Flows} time=${time} filters=${filters} params=${params} />`}`;
}

function state(time, open, error) {
  if (error) return "not up to date";
  if (time.paused) return "paused";
  if (time.zoomed) return "zoomed";
  return time.live ? (open ? "live, each second" : "connecting…") : `the last ${time.range.name}`;
}

function Quiet({ time, filters }) {
  if (Object.keys(filters).length > 0) return html`<${Empty} title="No traffic matches these filters in this time.">Remove one, or choose a longer range.<//>`;
  if (time.zoomed || time.range.key !== "live") return html`<${Empty} title="No data in this time.">Choose another range. Seconds are kept for 10 minutes, minutes for 7 days, hours for a year.<//>`;
  const host = location.hostname || "HOST";
  return html`<${Empty} title="No telemetry yet.">
    <p>On each host that sends data, start a sampler:</p>
    <p><${Command}>penstock sample --collector ${host.includes(":") && !host.startsWith("[") ? `[${host}]` : host}:6343<//></p>
    <p>Or point the sFlow of a switch or router at port 6343/udp, its IPFIX or NetFlow at 4739/udp. <a href=${link("hosts")}>Hosts</a> lists the exporters.</p>
  <//>`;
}

function Tiles({ now, capacity, from, open, time, params }) {
  const often = (seconds) => (time.paused ? 0 : seconds);
  const filters = filtersOf(params);
  const kept = Object.keys(filters).every((name) => kindOf(name) === "group");
  const live = time.live && Object.keys(filters).length === 0;
  const query = new URLSearchParams({ ...(time.live ? {} : spanOf(time)), ...filters });
  const labels = usePoll(kept ? `${T}/labels?${query}` : null, often(5)).data;
  const alerts = usePoll(`${T}/alerts`, often(10)).data;
  const { data: own, error: refused } = usePoll("/api/v1/transfers", often(5));
  const transfers = own?.transfers;
  const running = transfers?.filter((one) => one.state === "running") ?? [];
  const firing = alerts?.firing;
  const share = capacity && now ? (now.now ?? 0) / capacity : null;
  const untrusted = labels?.untrusted.share > 0 ? `untrusted ${percent(labels.untrusted.share)}` : live ? "of the last minute" : "of this time and filter";
  const first = alerts?.alerts.find((one) => one.firing);
  return html`<div class="tiles">
    <${Tile} title=${time.live && open ? "Traffic now" : "Traffic, last point"} value=${now ? rate(now.now) : "–"} note=${[capacity ? `${percent(share)} of ${rate(capacity)}` : from ? `from ${from}` : "", now?.p95 ? `95th percentile ${rate(now.p95)}` : ""].filter(Boolean).join(" · ")} kind="first">
      ${share !== null && html`<${Meter} share=${share} label="share of the capacity in use" />`}
    <//>
    <${Tile} title="Labelled" value=${labels ? percentWithError(labels.labelled.share, labels.labelled.error_share) : "–"} note=${kept ? untrusted : "not kept by this filter"} href=${link("labels")} />
    <${Tile} title="Transfers of this host" value=${transfers ? String(running.length) : "–"} note=${transfers ? `running, ${rate(running.reduce((all, one) => all + one.bits_per_second, 0))}` : refused?.status === 401 && !token.get() ? "token needed" : ""} href=${link("transfers")} />
    <${Tile} title="Alerts" value=${firing ?? "–"} note=${firing ? clean(first?.name, 40) : alerts?.pending ? `${alerts.pending} pending` : alerts?.alerts.length ? "none firing" : alerts ? "no rules" : ""} kind=${firing ? "bad" : ""} href=${link("alerts")} />
  </div>`;
}

const PROTOCOLS = { 1: "ICMP", 6: "TCP", 17: "UDP", 41: "IPv6", 47: "GRE", 50: "ESP", 58: "ICMPv6", 132: "SCTP" };

/** Formats a name or address with its port. */
function endpoint(name, address, port) {
  if (!port) return name ?? address;
  return name || !address.includes(":") ? `${name ?? address}:${port}` : `[${address}]:${port}`;
}

/** The label of a flow, and whether it is trusted. */
function labelOf(row) {
  if (row.label === "unlabelled") return html`<span class="note">unlabelled</span>`;
  return html`<${Name} text=${row.activity ?? ""} most=${28} />${row.label === "untrusted" ? html` <span class="note">untrusted</span>` : ""}`;
}

/** The rate of a flow with its error, or the bounds between which it lies. */
function flowRate(row) {
  if (Number.isFinite(row.bps)) return rateWithError(row.bps, row.error_bps);
  return row.most_bps > row.least_bps * 1.005 ? `${rate(row.least_bps)} to ${rate(row.most_bps)}` : rate(row.least_bps);
}

/** Dimensions by which single flows are not stored. */
const NOT_OF_FLOWS = ["vlan", "interface", "as"];

function Flows({ time, filters, params }) {
  const query = new URLSearchParams({ n: 100, ...(time.live ? {} : spanOf(time)), ...filters });
  if (directionOf(params)) query.set("direction", directionOf(params));
  const apart = Object.keys(filters).find((name) => NOT_OF_FLOWS.includes(name));
  const { data, error } = usePoll(apart ? null : `${T}/talkers?${query}`, time.paused || time.zoomed ? 0 : 5);
  const columns = [
    { key: "source", name: "Source", sort: (row) => row.source_name ?? row.source, text: (row) => `${row.source_name ?? ""} ${row.source} ${row.source_port}`, cell: (row) => html`<span title=${row.source}><${Name} text=${endpoint(row.source_name, row.source, row.source_port)} most=${50} /></span>` },
    { key: "destination", name: "Destination", sort: (row) => row.destination_name ?? row.destination, text: (row) => `${row.destination_name ?? ""} ${row.destination} ${row.destination_port}`, cell: (row) => html`<span title=${row.destination}><${Name} text=${endpoint(row.destination_name, row.destination, row.destination_port)} most=${50} /></span>` },
    { key: "protocol", low: 1, name: "Protocol", sort: (row) => PROTOCOLS[row.protocol] ?? String(row.protocol), cell: (row) => PROTOCOLS[row.protocol] ?? String(row.protocol) },
    { key: "activity", name: "Owner/activity", sort: (row) => row.activity ?? row.label, cell: labelOf },
    { key: "rate", name: "Rate", number: true, sort: (row) => row.bps ?? row.least_bps, cell: flowRate, title: "mean rate, as far as samples tell" },
  ];
  const note = data?.length_s > 0 ? `mean of ${Math.round(data.length_s)} s, from samples` : "";
  return html`<${Panel} id="flows" wide title="Top flows" note=${note}>
    ${apart ? html`<${Empty} title=${`Flows are not kept by ${NAMES[apart]}.`}>Remove this filter to see them.<//>` : html`<${Problem} error=${error} />`}
    ${data && html`<${Table} caption="Top flows" columns=${columns} rows=${data.talkers} pageRows=${12} keyOf=${(row) => JSON.stringify([row.source, row.source_port, row.destination, row.destination_port, row.protocol])} sort=${{ key: "rate", down: true }} empty=${data.length_s > 0 ? "no flow was sampled" : "no data: flows are kept for 10 minutes"} />`}
  <//>`;
}
