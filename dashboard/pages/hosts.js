// Who sends telemetry and whether it can be believed: exporters, their interfaces, what was lost on the way.

import { usePoll } from "../lib/api.js";
import { html } from "../lib/html.js";
import { clean, Name } from "../lib/text.js";
import { bytes, duration, moment, percent, rate, whole } from "../lib/units.js";
import { Command, Empty, Loading, Meter, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";

/** An exporter that says nothing for so long is told to be silent. */
const SILENT_S = 60;

const T = "/api/v1/telemetry";

export function Hosts({ params }) {
  const seconds = Number(params.paused) > 0 ? 0 : 3;
  const exporters = usePoll(`${T}/exporters`, seconds);
  const interfaces = usePoll(`${T}/interfaces`, seconds);
  const status = usePoll(`${T}/status`, seconds);
  const none = exporters.data && exporters.data.exporters.length === 0;
  return html`
    <${Panel} id="exporters" wide title="Exporters" note="who sends sFlow, IPFIX or NetFlow">
      <${Problem} error=${exporters.error} />
      ${!exporters.data && !exporters.error && html`<${Loading} />`}
      ${none && html`<${Empty} title="No exporter was heard.">
        <p>Start one on each host that sends data:</p><p><${Command}>penstock sample --collector ${clean(location.hostname || "HOST", 60)}:6343<//></p>
        <p>Nothing arrives though it runs? Look at the firewall for 6343/udp, and with ${"`tcpdump -ni any udp port 6343`"} whether datagrams come.</p>
      <//>`}
      ${exporters.data && !none && html`<${Exporters} rows=${exporters.data.exporters} now=${status.data?.now_s ?? Date.now() / 1000} />`}
    <//>
    ${interfaces.data?.interfaces.length > 0 && html`<${Panel} id="interfaces" wide title="Interfaces"><${Interfaces} rows=${interfaces.data.interfaces} /><//>`}
    ${status.data && html`<${Panel} id="received" wide title="This collector"><${Status} data=${status.data} /><//>`}`;
}

function loss(share) {
  return html`<span class=${share > 0.01 ? "state bad" : share > 0 ? "state warn" : ""}>${percent(share ?? 0)}</span>`;
}

/** `now` is the collector's, for the reader's clock may be another. */
function Exporters({ rows, now }) {
  const silent = (row) => now - row.last_heard_s > SILENT_S;
  const columns = [
    { key: "name", name: "Exporter", sort: (row) => row.name, cell: (row) => html`<${Name} text=${row.name} most=${40} />` },
    { key: "from", name: "From", sort: (row) => row.from, cell: (row) => html`<${Name} text=${row.from} most=${40} />` },
    { key: "dialect", name: "Speaks", sort: (row) => row.dialect, cell: (row) => clean(row.dialect, 16) },
    { key: "heard", name: "Last heard", number: true, sort: (row) => row.last_heard_s, cell: (row) => html`<span class=${silent(row) ? "state bad" : ""} title=${moment(row.last_heard_s)}>${silent(row) ? "silent, " : ""}${duration(Math.max(0, now - row.last_heard_s))} ago</span>` },
    { key: "datagrams", name: "Datagrams", number: true, sort: (row) => row.datagrams, cell: (row) => whole(row.datagrams) },
    { key: "loss", name: "Lost", number: true, sort: (row) => row.loss_share, cell: (row) => loss(row.loss_share), title: "datagrams that are missing by their numbers" },
    { key: "drops", name: "Samples lost", number: true, sort: (row) => row.agent_drops + row.samples_lost, cell: (row) => whole(row.agent_drops + row.samples_lost), title: "by the exporter itself, and on the way" },
    { key: "restarts", name: "Restarts", number: true, sort: (row) => row.restarts, cell: (row) => whole(row.restarts) },
    { key: "broken", name: "Broken", number: true, sort: (row) => row.broken, cell: (row) => whole(row.broken), title: "records that could not be read" },
    { key: "unknown", name: "Unknown", number: true, sort: (row) => row.unknown, cell: (row) => whole(row.unknown), title: "samples or sets that are not known here" },
  ];
  return html`<${Table} caption="Exporters" columns=${columns} rows=${rows} keyOf=${(row) => row.key} />`;
}

/** What counters say by what samples say: 1 where they agree. */
function Calibration({ row }) {
  const told = (one) => (one.calibration_last === null ? "–" : one.calibration.toFixed(2));
  const disagrees = row.in.disagrees || row.out.disagrees;
  return html`<span class=${disagrees ? "state bad" : ""}>${told(row.in)} / ${told(row.out)}${disagrees ? " disagree" : ""}</span>`;
}

function Interfaces({ rows }) {
  const use = (row) => (row.in.use_share === null && row.out.use_share === null ? null : Math.max(row.in.use_share ?? 0, row.out.use_share ?? 0));
  const faults = (row) => (row.in.errors ?? 0) + (row.out.errors ?? 0) + (row.in.discards ?? 0) + (row.out.discards ?? 0);
  const columns = [
    { key: "host", name: "Host", sort: (row) => row.host, cell: (row) => html`<${Name} text=${row.host} most=${36} />` },
    { key: "name", name: "Interface", sort: (row) => row.interface ?? `#${row.index}`, cell: (row) => html`<${Name} text=${row.interface || `#${row.index}`} most=${24} />${row.up === false ? html` <span class="state bad">down</span>` : ""}` },
    { key: "site", name: "Site", sort: (row) => row.site, cell: (row) => html`<${Name} text=${row.site ?? "–"} most=${24} />` },
    { key: "in", name: "In", number: true, sort: (row) => row.in.counted_bps, cell: (row) => rate(row.in.counted_bps) },
    { key: "out", name: "Out", number: true, sort: (row) => row.out.counted_bps, cell: (row) => rate(row.out.counted_bps) },
    { key: "speed", name: "Capacity", number: true, sort: (row) => row.speed_bps, cell: (row) => (row.speed_bps > 0 ? rate(row.speed_bps) : "–") },
    { key: "use", name: "Use", sort: use, cell: (row) => (use(row) === null ? "–" : html`<${Meter} share=${use(row)} label=${`use of ${row.interface ?? row.index}`} kind=${use(row) > 0.95 ? "bad" : ""} />${percent(use(row))}`) },
    { key: "sampling", name: "Sampled 1 of", number: true, sort: (row) => row.sampling_rate, cell: (row) => (row.sampling_rate ? html`<span title=${row.effective_sampling_rate ? `${whole(row.effective_sampling_rate)} with what was lost` : undefined}>${whole(row.sampling_rate)}</span>` : "–") },
    { key: "faults", name: "Errors, discards", number: true, sort: faults, cell: (row) => html`<span class=${faults(row) > 0 ? "state warn" : ""}>${whole((row.in.errors ?? 0) + (row.out.errors ?? 0))}, ${whole((row.in.discards ?? 0) + (row.out.discards ?? 0))}</span>`, title: "packets, in the last interval of the counters" },
    { key: "calibration", name: "Counters : samples", number: true, sort: (row) => row.out.calibration, cell: (row) => html`<${Calibration} row=${row} />`, title: "in / out: 1 where counters and samples say the same" },
  ];
  return html`<${Table} caption="Interfaces" columns=${columns} rows=${rows} keyOf=${(row) => row.key} />`;
}

/** What the collector tells of itself: its sockets, then every number, places in use with their limit. */
function Status({ data }) {
  const plain = (words) => words.join(" ").replaceAll("_", " ");
  const rows = [];
  const walk = (value, path) => {
    if (value === null || Array.isArray(value) || /(^| )(now|started) s$/.test(plain(path))) return;
    if (typeof value !== "object") rows.push({ name: plain(path), text: typeof value === "number" ? whole(value) : clean(value, 80) });
    else if (typeof value.used === "number" && typeof value.limit === "number") rows.push({ name: plain(path), text: `${whole(value.used)} of ${whole(value.limit)}`, share: value.used / value.limit });
    else for (const [key, one] of Object.entries(value)) walk(one, [...path, key]);
  };
  walk(data, []);
  const inputs = [
    { key: "format", name: "Input", cell: (row) => clean(row.format, 16) },
    { key: "address", name: "Address", cell: (row) => html`<${Name} text=${row.address} />` },
    { key: "datagrams", name: "Datagrams", number: true, cell: (row) => whole(row.datagrams) },
    { key: "bytes", name: "Volume", number: true, cell: (row) => bytes(row.bytes) },
    { key: "drops", name: "Dropped by the kernel", number: true, cell: (row) => html`<span class=${row.kernel_drops > 0 ? "state bad" : ""}>${whole(row.kernel_drops)}</span>` },
    { key: "refused", name: "Refused", number: true, cell: (row) => whole(row.refused), title: "could not be read, or are not believed" },
  ];
  const columns = [
    { key: "name", name: "What", cell: (row) => row.name },
    { key: "value", name: "Is", number: true, cell: (row) => html`<span class=${row.share > 0.9 ? "state bad" : ""}>${row.text}</span>` },
  ];
  return html`${(data.missing ?? []).map((line) => html`<p class="problem" role="alert" key=${line}>${clean(line, 300)}</p>`)}
    <${Table} narrow caption="Inputs" columns=${inputs} rows=${data.inputs ?? []} keyOf=${(row) => `${row.format} ${row.address}`} empty="no input is open" />
    <details><summary>All figures</summary><${Table} narrow caption="This collector" columns=${columns} rows=${rows} keyOf=${(row) => row.name} /></details>`;
}
