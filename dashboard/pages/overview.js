// Total against capacity, whose it is, and who talks most.

import { token, usePoll } from "../lib/api.js";
import { html, useEffect } from "../lib/html.js";
import { DIMENSIONS, filtersOf, link, read, set, timeOf } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { shownWindow, summary, useTraffic } from "../lib/traffic.js";
import { percent, percentWithError, rate } from "../lib/units.js";
import { Choice, Command, Empty, Loading, Meter, Panel, Problem, Tile } from "../parts/bits.js";
import { Series, useLooks, VIEWS } from "../parts/series.js";
import { Table } from "../parts/table.js";

const T = "/api/v1/telemetry";

export const NAMES = { owner: "Owner", activity: "Activity", scitag: "Scitag", vlan: "VLAN", site: "Site", host: "Host", interface: "Interface", ip_version: "IP version", as: "AS", prefix: "Prefix" };

/**
 * What can carry the traffic that is shown, in bits per second: the sum of the interfaces of hosts (of all, where no host is
 * heard: then switches see the same traffic twice), or of the one that is filtered for. Null where it cannot be told.
 */
function capacityOf(interfaces, exporters, filters) {
  if (!interfaces || !exporters || Object.keys(filters).some((name) => name !== "interface")) return null;
  const hosts = new Set(exporters.filter((one) => one.host).map((one) => one.key));
  const counted = interfaces.filter((one) => one.up && one.speed_bps > 0 && (filters.interface ? one.key === filters.interface : hosts.size === 0 || hosts.has(one.exporter)));
  return counted.reduce((all, one) => all + one.speed_bps, 0) || null;
}

const dimensionOf = (params) => (DIMENSIONS.includes(params.by) ? params.by : "owner");
const viewOf = (params) => (VIEWS.some((one) => one.key === params.view) ? params.view : "stack");

/** A key goes on to the next of `options`, from what the address says then. */
function useNext(event, options, current, change) {
  useEffect(() => {
    const next = () => change(options[(options.indexOf(current(read().params)) + 1) % options.length]);
    addEventListener(event, next);
    return () => removeEventListener(event, next);
  }, []);
}

export function Overview({ params, theme }) {
  const by = dimensionOf(params);
  const view = viewOf(params);
  const time = timeOf(params);
  const filters = filtersOf(params);
  const { traffic, error, open, version } = useTraffic(by, time, params);
  const interfaces = usePoll(`${T}/interfaces`, 10).data?.interfaces;
  const exporters = usePoll(`${T}/exporters`, 30).data?.exporters;
  const series = useLooks(traffic, version, params.patterns);
  const pick = (name) => set({ by: name === "owner" ? undefined : name }, { replace: false });
  const show = (name) => set({ view: name === "stack" ? undefined : name });
  useNext("penstock:next-dimension", DIMENSIONS, dimensionOf, pick);
  useNext("penstock:next-view", VIEWS.map((one) => one.key), viewOf, show);

  const capacity = capacityOf(interfaces, exporters, filters);
  const window = shownWindow(traffic, time);
  const now = traffic && summary(traffic.total.values, traffic.total.errors, traffic.step);
  const quiet = traffic && !(now.greatest > 0);
  return html`
    <${Tiles} now=${now} capacity=${capacity} from=${traffic?.total.from} open=${open} time=${time} />
    <${Panel} id="traffic" wide title="Traffic" note=${traffic ? state(time, open, error) : ""}
      tools=${html`<${Choice} label="view" small options=${VIEWS} value=${view} onChange=${show} />`}>
      <${Choice} label="by" options=${DIMENSIONS.map((key) => ({ key, name: NAMES[key] }))} value=${by} onChange=${pick} />
      <${Filters} filters=${filters} />
      <${Problem} error=${error} />
      ${!traffic && !error && html`<${Loading} />`}
      ${quiet && html`<${Quiet} time=${time} filters=${filters} />`}
      ${traffic && !quiet && html`<${Series} traffic=${traffic} version=${version} series=${series} view=${view} window=${window} capacity=${capacity} theme=${`${theme}${params.patterns ?? ""}`} by=${by}
        onZoom=${(from, to) => set({ from: Math.floor(from), to: Math.max(Math.floor(from) + 2, Math.ceil(to)) }, { replace: false })}
        onReset=${() => set({ from: undefined, to: undefined })}
        onPick=${(key) => set({ [by]: key }, { replace: false })} />`}
    <//>
    <${Talkers} paused=${time.paused} />`;
}

function state(time, open, error) {
  if (error) return "not up to date";
  if (time.paused) return "paused";
  if (time.zoomed) return "zoomed";
  return time.live ? (open ? "live, each second" : "connecting…") : `the last ${time.range.name}`;
}

function Filters({ filters }) {
  const names = Object.keys(filters);
  if (names.length === 0) return null;
  return html`<p class="filters">Only ${names.map((name) => html`<button type="button" key=${name} title="take this filter away" onClick=${() => set({ [name]: undefined })}>${NAMES[name]} <${Name} text=${filters[name]} most=${40} /> ✕</button>`)}</p>`;
}

function Quiet({ time, filters }) {
  if (Object.keys(filters).length > 0) return html`<${Empty} title="Nothing matches these filters in this time.">Take one away, or choose a longer range.<//>`;
  if (time.zoomed || time.range.key !== "live") return html`<${Empty} title="There is no traffic in this time.">Choose another range. Seconds are kept for 10 minutes, minutes for 7 days, hours for a year.<//>`;
  const host = location.hostname || "HOST";
  return html`<${Empty} title="No telemetry has come yet.">
    <p>On each host that sends data, start a sampler:</p>
    <p><${Command}>penstock sample --collector ${host.includes(":") && !host.startsWith("[") ? `[${host}]` : host}:6343<//></p>
    <p>Or point the sFlow of a switch or router at port 6343/udp, its IPFIX or NetFlow at 4739/udp. <a href=${link("hosts")}>Hosts</a> shows who was heard.</p>
  <//>`;
}

function Tiles({ now, capacity, from, open, time }) {
  const often = (seconds) => (time.paused ? 0 : seconds);
  const labels = usePoll(`${T}/labels`, often(5)).data;
  const alerts = usePoll(`${T}/alerts`, often(10)).data;
  const transfers = usePoll("/api/v1/transfers", often(5)).data?.transfers;
  const running = transfers?.filter((one) => one.state === "running") ?? [];
  const firing = alerts?.firing;
  const share = capacity && now ? (now.now ?? 0) / capacity : null;
  return html`<div class="tiles">
    <${Tile} title=${time.live && open ? "Traffic now" : "Traffic at the end"} value=${now ? rate(now.now) : "–"} note=${capacity ? `${percent(share)} of ${rate(capacity)}` : from ? `from ${from}` : ""} kind="first">
      ${share !== null && html`<${Meter} share=${share} label="share of the capacity in use" />`}
    <//>
    <${Tile} title="Labelled" value=${labels ? percentWithError(labels.labelled.share, labels.labelled.error_share) : "–"} note=${labels?.untrusted.share > 0 ? `untrusted ${percent(labels.untrusted.share)}` : "of the last minute"} href=${link("labels")} />
    <${Tile} title="Transfers" value=${transfers ? String(running.length) : "–"} note=${transfers ? `running, ${rate(running.reduce((all, one) => all + one.bits_per_second, 0))}` : token.get() ? "" : "token needed"} href=${link("transfers")} />
    <${Tile} title="Alerts" value=${firing ?? "–"} note=${firing ? clean(alerts.alerts.find((one) => one.firing)?.name, 40) : alerts?.alerts.length ? "nothing fires" : alerts ? "no rules" : ""} kind=${firing ? "bad" : ""} href=${link("alerts")} />
  </div>`;
}

const PROTOCOLS = { 1: "ICMP", 6: "TCP", 17: "UDP", 41: "IPv6", 47: "GRE", 50: "ESP", 58: "ICMPv6", 132: "SCTP" };

/** An address with its port, as one writes them together. */
function end(address, port) {
  if (!port) return address;
  return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
}

/** What a flow says of itself, and whether that is believed. */
function whose(row) {
  if (row.label === "unlabelled") return html`<span class="note">unlabelled</span>`;
  return html`<${Name} text=${row.activity ?? ""} most=${28} />${row.label === "untrusted" ? html` <span class="note">untrusted</span>` : ""}`;
}

function Talkers({ paused }) {
  const { data, error } = usePoll(`${T}/talkers?n=12`, paused ? 0 : 5);
  const columns = [
    { key: "source", name: "From", sort: (row) => row.source, cell: (row) => html`<${Name} text=${end(row.source, row.source_port)} most=${50} />` },
    { key: "destination", name: "To", sort: (row) => row.destination, cell: (row) => html`<${Name} text=${end(row.destination, row.destination_port)} most=${50} />` },
    { key: "protocol", name: "Protocol", sort: (row) => row.protocol, cell: (row) => PROTOCOLS[row.protocol] ?? String(row.protocol) },
    { key: "activity", name: "Whose", sort: (row) => row.activity ?? "", cell: (row) => whose(row) },
    { key: "least", name: "At least", number: true, sort: (row) => row.least_bps, cell: (row) => rate(row.least_bps) },
    { key: "most", name: "At most", number: true, sort: (row) => row.most_bps, cell: (row) => rate(row.most_bps) },
  ];
  return html`<${Panel} id="talkers" wide title="Greatest flows" note="of the last ten seconds, as far as samples tell">
    <${Problem} error=${error} />
    ${data && html`<${Table} caption="Greatest flows" columns=${columns} rows=${data.talkers} keyOf=${(row) => JSON.stringify([row.source, row.source_port, row.destination, row.destination_port, row.protocol])} sort=${{ key: "least", down: true }} empty="no flow was sampled" />`}
  <//>`;
}
