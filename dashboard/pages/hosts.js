// Exporters and their interfaces, with problems first, and the state of the collector.

import { usePoll } from "../lib/api.js";
import { html, useMemo } from "../lib/html.js";
import { DIRECTED, filtersOf, link, NAMES, set } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { bytes, duration, moment, percent, rate, whole } from "../lib/units.js";
import { Choice, Command, Empty, Filters, Loading, Meter, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";

/** Time without a datagram after which an exporter is silent, in seconds. */
const SILENT_S = 60;
/** Share of lost datagrams from which an exporter has a problem. */
const LOSS = 0.01;
/** Utilisation from which an interface has a problem, 0 to 1. */
const FULL = 0.95;

const T = "/api/v1/telemetry";

export function Hosts({ params }) {
  const seconds = Number(params.paused) > 0 ? 0 : 5;
  const exporters = usePoll(`${T}/exporters`, seconds);
  const interfaces = usePoll(`${T}/interfaces`, seconds);
  const status = usePoll(`${T}/status`, seconds);
  const now = status.data?.now_s ?? Date.now() / 1000;
  const sites = useMemo(() => new Map((interfaces.data?.interfaces ?? []).map((one) => [one.exporter, one.site])), [interfaces.data]);
  const filters = filtersOf(params);
  // Only filters that apply to an exporter or interface.
  const others = Object.keys(filters).filter((name) => !["site", "host", "interface"].includes(name));
  const wanted = (exporter, host, key) => (!filters.site || sites.get(exporter) === filters.site) && (!filters.host || host === filters.host || exporter.split("/")[0] === filters.host) && (!filters.interface || key === undefined || key === filters.interface);
  const all = (exporters.data?.exporters ?? []).filter((one) => wanted(one.key, one.name) && (!filters.interface || filters.interface.startsWith(`${one.key}:`))).map((one) => ({ ...one, ...exporterState(one, now) }));
  const ports = (interfaces.data?.interfaces ?? []).filter((one) => wanted(one.exporter, one.host, one.key)).map((one) => ({ ...one, ...interfaceState(one) }));
  const only = params.state === "problems";
  const search = { search: params.search, onSearch: (text) => set({ search: text || undefined }) };
  const none = exporters.data && exporters.data.exporters.length === 0;
  return html`
    <${Filters} params=${params} />
    ${others.length > 0 && html`<p class="note wide">Exporters and interfaces have no ${others.map((name) => NAMES[name]).join(", ")}: that filter does not apply here.</p>`}
    <${Panel} id="exporters" wide title="Exporters" note="sources of sFlow, IPFIX and NetFlow; problems first" tools=${all.length > 0 && html`<${Only} rows=${all} params=${params} />`}>
      <${Problem} error=${exporters.error} />
      ${!exporters.data && !exporters.error && html`<${Loading} />`}
      ${none && html`<${Empty} title="No exporters yet.">
        <p>Start one on each host that sends data:</p><p><${Command}>penstock sample --collector ${clean(location.hostname || "HOST", 60)}:6343<//></p>
        <p>Nothing arrives though it runs? Check the firewall for 6343/udp, and with ${"`tcpdump -ni any udp port 6343`"} whether datagrams arrive.</p>
      <//>`}
      ${exporters.data && !none && html`<${Exporters} rows=${only ? all.filter((one) => one.rank > 0) : all} sites=${sites} now=${now} only=${only} search=${search} />`}
    <//>
    ${interfaces.data?.interfaces.length > 0 && html`<${Panel} id="interfaces" wide title="Interfaces" note="now, by their counters; problems first" tools=${html`<${Only} rows=${ports} params=${params} />`}><${Interfaces} rows=${only ? ports.filter((one) => one.rank > 0) : ports} only=${only} search=${search} /><//>`}
    ${status.data && html`<${Panel} id="received" wide title="Collector"><${Status} data=${status.data} /><//>`}`;
}

/** All rows, or those with a problem. */
function Only({ rows, params }) {
  const problems = rows.filter((one) => one.rank > 0).length;
  const options = [
    { key: "all", name: `All ${whole(rows.length)}` },
    { key: "problems", name: `Problems ${whole(problems)}` },
  ];
  return html`<${Choice} small label="which rows" options=${options} value=${params.state === "problems" ? "problems" : "all"} onChange=${(key) => set({ state: key === "all" ? undefined : key })} />`;
}

const STATES = ["good", "warn", "bad"];
const MARKS = ["○", "◆", "▲"];
const State = ({ row }) => html`<span class=${`state ${STATES[row.rank]}`}>${MARKS[row.rank]} ${row.state}</span>`;

/** State of an exporter and its rank: 0 good, 1 warning, 2 bad. */
function exporterState(one, now) {
  if (now - one.last_heard_s > SILENT_S) return { rank: 2, order: 29, state: "silent" };
  if (one.loss_share > LOSS) return { rank: 2, order: 20 + one.loss_share, state: "losing datagrams" };
  if (one.loss_share > 0 || one.agent_drops + one.samples_lost > 0) return { rank: 1, state: "some loss" };
  if (one.broken > 0) return { rank: 1, state: "malformed records" };
  return { rank: 0, state: "ok" };
}

const faultsOf = (row) => (row.in.errors ?? 0) + (row.out.errors ?? 0) + (row.in.discards ?? 0) + (row.out.discards ?? 0);
const useOf = (row) => (row.in.use_share === null && row.out.use_share === null ? null : Math.max(row.in.use_share ?? 0, row.out.use_share ?? 0));

function interfaceState(row) {
  if (row.up === false) return { rank: 2, order: 29, state: "down" };
  if (useOf(row) > FULL) return { rank: 2, order: 20 + useOf(row), state: "full" };
  if (row.in.disagrees || row.out.disagrees) return { rank: 1, state: "samples disagree" };
  if (faultsOf(row) > 0) return { rank: 1, state: "errors" };
  return { rank: 0, state: row.up === null ? "unknown" : "up" };
}

function loss(share) {
  return html`<span class=${share > LOSS ? "state bad" : share > 0 ? "state warn" : ""}>${percent(share ?? 0)}</span>`;
}

/** Row of an exporter; `now` is by the collector's clock, as the browser's may differ. */
function Exporters({ rows, sites, now, only, search }) {
  const columns = [
    { key: "state", name: "State", down: true, sort: (row) => row.order ?? row.rank * 10, text: (row) => row.state, cell: (row) => html`<${State} row=${row} />` },
    { key: "name", name: "Exporter", sort: (row) => row.name, text: (row) => `${row.name} ${row.key}`, cell: (row) => (row.host ? html`<a href=${link("overview", { ...clearing, by: "host", host: row.key.split("/")[0] })} title="traffic of this host"><${Name} text=${row.name} most=${44} /></a>` : html`<${Name} text=${row.name} most=${44} />`) },
    { key: "site", name: "Site", sort: (row) => sites.get(row.key) ?? "", cell: (row) => html`<${Name} text=${sites.get(row.key) ?? "–"} most=${20} />` },
    { key: "from", low: 9, name: "Address", sort: (row) => row.from, cell: (row) => html`<${Name} text=${row.from} most=${40} />` },
    { key: "dialect", low: 7, name: "Protocol", sort: (row) => row.dialect, cell: (row) => clean(row.dialect, 16) },
    { key: "heard", name: "Last datagram", number: true, sort: (row) => now - row.last_heard_s, cell: (row) => html`<span class=${now - row.last_heard_s > SILENT_S ? "state bad" : ""} title=${moment(row.last_heard_s)}>${duration(Math.max(0, now - row.last_heard_s))} ago</span>` },
    { key: "datagrams", low: 5, name: "Datagrams", number: true, sort: (row) => row.datagrams, cell: (row) => whole(row.datagrams) },
    { key: "loss", name: "Lost", number: true, sort: (row) => row.loss_share, cell: (row) => loss(row.loss_share), title: "datagrams that are missing by their sequence numbers" },
    { key: "drops", low: 6, name: "Samples lost", number: true, sort: (row) => row.agent_drops + row.samples_lost, cell: (row) => whole(row.agent_drops + row.samples_lost), title: "by the exporter itself, and on the way" },
    { key: "restarts", low: 8, name: "Restarts", number: true, sort: (row) => row.restarts, cell: (row) => whole(row.restarts) },
    { key: "broken", low: 10, name: "Malformed", number: true, sort: (row) => row.broken, cell: (row) => whole(row.broken), title: "records that could not be decoded, and samples that contradict themselves" },
    { key: "unknown", low: 11, name: "Not decoded", number: true, sort: (row) => row.unknown, cell: (row) => whole(row.unknown), title: "samples or sets of a format that is not supported, or without a template" },
  ];
  return html`<${Table} caption="Exporters" columns=${columns} rows=${rows} keyOf=${(row) => row.key} sort=${{ key: "state", down: true }} empty=${only ? "no exporter has a problem" : "none match the filter"} ...${search} />`;
}

/** Ratio of counted to sampled traffic: 1 if they agree. */
function Calibration({ row }) {
  const ratio = (one) => (one.calibration_last === null ? "–" : one.calibration.toFixed(2));
  const disagrees = row.in.disagrees || row.out.disagrees;
  return html`<span class=${disagrees ? "state warn" : ""}>${ratio(row.in)} / ${ratio(row.out)}${disagrees ? " disagree" : ""}</span>`;
}

function Interfaces({ rows, only, search }) {
  const columns = [
    { key: "state", name: "State", down: true, sort: (row) => row.order ?? row.rank * 10, text: (row) => row.state, cell: (row) => html`<${State} row=${row} />` },
    { key: "host", name: "Host", sort: (row) => row.host, text: (row) => `${row.host} ${row.exporter}`, cell: (row) => html`<${Name} text=${row.host} most=${36} />` },
    { key: "name", name: "Interface", sort: (row) => row.interface ?? `#${row.index}`, cell: (row) => html`<a href=${link("overview", { ...clearing, by: "owner", interface: row.key })} title="traffic of this interface"><${Name} text=${row.interface || `#${row.index}`} most=${24} /></a>` },
    { key: "site", name: "Site", sort: (row) => row.site ?? "", cell: (row) => html`<${Name} text=${row.site ?? "–"} most=${20} />` },
    { key: "in", name: "In", number: true, sort: (row) => row.in.counted_bps, cell: (row) => rate(row.in.counted_bps) },
    { key: "out", name: "Out", number: true, sort: (row) => row.out.counted_bps, cell: (row) => rate(row.out.counted_bps) },
    { key: "speed", low: 1, name: "Capacity", number: true, sort: (row) => row.speed_bps, cell: (row) => (row.speed_bps > 0 ? rate(row.speed_bps) : "–") },
    { key: "use", name: "Use", number: true, title: "of the fuller direction", sort: useOf, cell: (row) => (useOf(row) === null ? "–" : html`<${Meter} share=${useOf(row)} label=${`use of ${row.host} ${row.interface ?? row.index}`} kind=${useOf(row) > FULL ? "bad" : ""} />${percent(useOf(row))}`) },
    { key: "sampling", low: 2, name: "Sampling rate", number: true, sort: (row) => row.sampling_rate, cell: (row) => (row.sampling_rate ? html`<span title=${row.effective_sampling_rate ? `1:${whole(row.effective_sampling_rate)} with what was lost` : undefined}>1:${whole(row.sampling_rate)}</span>` : "–") },
    { key: "faults", low: 1, name: "Errors", number: true, sort: (row) => (row.in.errors ?? 0) + (row.out.errors ?? 0), cell: (row) => whole((row.in.errors ?? 0) + (row.out.errors ?? 0)), title: "packets, in the last interval of the counters" },
    { key: "discards", low: 3, name: "Discards", number: true, sort: (row) => (row.in.discards ?? 0) + (row.out.discards ?? 0), cell: (row) => whole((row.in.discards ?? 0) + (row.out.discards ?? 0)), title: "packets, in the last interval of the counters" },
    { key: "calibration", low: 4, name: "Counters / samples", number: true, sort: (row) => row.out.calibration, cell: (row) => html`<${Calibration} row=${row} />`, title: "in / out: 1 where counters and samples agree" },
  ];
  return html`<${Table} caption="Interfaces" columns=${columns} rows=${rows} keyOf=${(row) => row.key} sort=${{ key: "state", down: true }} empty=${only ? "no interface has a problem" : "none match the filter"} ...${search} />`;
}

/** Filters removed by a link to one item. */
const clearing = Object.fromEntries([...DIRECTED, "owner", "activity", "scitag", "vlan", "site_pair", "ip_version", "search", "direction"].map((name) => [name, undefined]));

/** State of the collector: its sockets, then all counters, tables with their limits. */
function Status({ data }) {
  const plain = (words) => words.join(" ").replaceAll("_", " ");
  const rows = [];
  const walk = (value, path) => {
    if (value === null || Array.isArray(value)) return;
    if (/(^| )(now|started|newest second|newest datagram|newest) s$/.test(plain(path))) rows.push({ name: plain(path).replace(/ s$/, ""), text: moment(value), value });
    else if (typeof value !== "object") rows.push({ name: plain(path), text: typeof value === "number" ? whole(value) : clean(value, 80), value });
    else if (typeof value.used === "number" && typeof value.limit === "number") rows.push({ name: plain(path), text: `${whole(value.used)} of ${whole(value.limit)}`, share: value.used / value.limit, value: value.used });
    else for (const [key, one] of Object.entries(value)) walk(one, [...path, key]);
  };
  walk(data, []);
  const inputs = [
    { key: "format", name: "Input", sort: (row) => row.format, cell: (row) => clean(row.format, 16) },
    { key: "address", name: "Address", sort: (row) => row.address, cell: (row) => html`<${Name} text=${row.address} />` },
    { key: "datagrams", name: "Datagrams", number: true, sort: (row) => row.datagrams, cell: (row) => whole(row.datagrams) },
    { key: "bytes", name: "Volume", number: true, sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
    { key: "drops", name: "Dropped by the kernel", number: true, sort: (row) => row.kernel_drops, cell: (row) => html`<span class=${row.kernel_drops > 0 ? "state bad" : ""}>${whole(row.kernel_drops)}</span>` },
    { key: "refused", name: "Refused", number: true, sort: (row) => row.refused, cell: (row) => whole(row.refused), title: "malformed, or not trusted" },
  ];
  const columns = [
    { key: "name", name: "Metric", sort: (row) => row.name, cell: (row) => row.name },
    { key: "value", name: "Value", number: true, sort: (row) => row.value, cell: (row) => html`<span class=${row.share > 0.9 ? "state bad" : ""}>${row.text}</span>` },
  ];
  return html`${(data.missing ?? []).map((line) => html`<p class="problem" role="alert" key=${line}>${clean(line, 300)}</p>`)}
    <${Table} narrow caption="Inputs" columns=${inputs} rows=${data.inputs ?? []} keyOf=${(row) => `${row.format} ${row.address}`} empty="no input is open" />
    <details><summary>All metrics</summary><${Table} narrow caption="Metrics of the collector" columns=${columns} rows=${rows} keyOf=${(row) => row.name} pageRows=${25} /></details>`;
}
