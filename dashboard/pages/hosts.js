// Who sends telemetry and whether it can be believed: exporters, their interfaces, what was lost on the way.

import { usePoll } from "../lib/api.js";
import { html } from "../lib/html.js";
import { clean, Name } from "../lib/text.js";
import { ago, moment, percent, rate, whole } from "../lib/units.js";
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
      ${exporters.data && !none && html`<${Exporters} rows=${exporters.data.exporters} />`}
    <//>
    ${interfaces.data?.interfaces.length > 0 && html`<${Panel} id="interfaces" wide title="Interfaces"><${Interfaces} rows=${interfaces.data.interfaces} /><//>`}
    ${status.data && html`<${Panel} id="received" wide title="This collector"><${Status} data=${status.data} /><//>`}`;
}

function loss(share) {
  return html`<span class=${share > 0.01 ? "state bad" : share > 0 ? "state warn" : ""}>${percent(share ?? 0)}</span>`;
}

function Exporters({ rows }) {
  const silent = (row) => Date.now() / 1000 - row.last_heard_unix_seconds > SILENT_S;
  const columns = [
    { key: "address", name: "Address", sort: (row) => row.address, cell: (row) => html`<${Name} text=${row.address} most=${48} />` },
    { key: "host", name: "Host", sort: (row) => row.host, cell: (row) => (row.host ? html`<${Name} text=${row.host} most=${32} />` : "–") },
    { key: "dialect", name: "Speaks", sort: (row) => row.dialect, cell: (row) => clean(row.dialect, 16) },
    { key: "heard", name: "Last heard", number: true, sort: (row) => row.last_heard_unix_seconds, cell: (row) => html`<span class=${silent(row) ? "state bad" : ""} title=${moment(row.last_heard_unix_seconds)}>${silent(row) ? "silent, " : ""}${ago(row.last_heard_unix_seconds)}</span>` },
    { key: "datagrams", name: "Datagrams", number: true, sort: (row) => row.datagrams, cell: (row) => whole(row.datagrams) },
    { key: "samples", name: "Samples", number: true, sort: (row) => row.samples, cell: (row) => whole(row.samples) },
    { key: "loss", name: "Lost", number: true, sort: (row) => row.loss, cell: (row) => loss(row.loss), title: "missing sequence numbers" },
    { key: "restarts", name: "Restarts", number: true, sort: (row) => row.restarts, cell: (row) => whole(row.restarts) },
    { key: "broken", name: "Broken", number: true, sort: (row) => row.broken, cell: (row) => whole(row.broken), title: "samples or records that could not be read" },
    { key: "unknown", name: "Unknown", number: true, sort: (row) => row.unknown, cell: (row) => whole(row.unknown), title: "samples or sets that are not known here" },
  ];
  return html`<${Table} caption="Exporters" columns=${columns} rows=${rows} keyOf=${(row) => `${row.address} ${row.dialect}`} />`;
}

function Interfaces({ rows }) {
  const use = (row) => (row.speed_bps > 0 ? Math.max(row.in_bps ?? 0, row.out_bps ?? 0) / row.speed_bps : null);
  const columns = [
    { key: "host", name: "Host", sort: (row) => row.host ?? row.exporter, cell: (row) => html`<${Name} text=${row.host ?? row.exporter} most=${36} />` },
    { key: "name", name: "Interface", sort: (row) => row.name, cell: (row) => html`<${Name} text=${row.name || `#${row.index}`} most=${24} />` },
    { key: "site", name: "Site", sort: (row) => row.site, cell: (row) => clean(row.site ?? "–", 24) },
    { key: "in", name: "In", number: true, sort: (row) => row.in_bps, cell: (row) => rate(row.in_bps) },
    { key: "out", name: "Out", number: true, sort: (row) => row.out_bps, cell: (row) => rate(row.out_bps) },
    { key: "speed", name: "Capacity", number: true, sort: (row) => row.speed_bps, cell: (row) => (row.speed_bps > 0 ? rate(row.speed_bps) : "–") },
    { key: "use", name: "Use", sort: use, cell: (row) => (use(row) === null ? "–" : html`<${Meter} share=${use(row)} label=${`use of ${row.name}`} kind=${use(row) > 0.95 ? "bad" : ""} />${percent(use(row))}`) },
    { key: "from", name: "From", sort: (row) => row.from, cell: (row) => clean(row.from ?? "–", 12), title: "counters are exact, samples are estimates" },
    { key: "sampling", name: "1 of", number: true, sort: (row) => row.sampling_rate, cell: (row) => (row.sampling_rate ? whole(row.sampling_rate) : "–"), title: "one packet of so many is sampled" },
    { key: "loss", name: "Lost", number: true, sort: (row) => row.loss, cell: (row) => loss(row.loss) },
    { key: "calibration", name: "Counters : samples", number: true, sort: (row) => row.calibration_in, cell: (row) => html`<span class=${row.disagrees ? "state bad" : ""}>${[row.calibration_in, row.calibration_out].map((one) => (Number.isFinite(one) ? one.toFixed(2) : "–")).join(" / ")}${row.disagrees ? " disagree" : ""}</span>`, title: "in / out: 1 where counters and samples say the same" },
  ];
  return html`<${Table} caption="Interfaces" columns=${columns} rows=${rows} keyOf=${(row) => row.key} />`;
}

/** Whatever the collector tells of itself, group by group. */
function Status({ data }) {
  const rows = [];
  const walk = (value, path) => {
    if (value !== null && typeof value === "object" && !Array.isArray(value)) for (const [key, one] of Object.entries(value)) walk(one, [...path, key]);
    else if (!Array.isArray(value)) rows.push({ name: path.join(" ").replaceAll("_", " "), value });
  };
  walk(data, []);
  const columns = [
    { key: "name", name: "What", cell: (row) => clean(row.name, 80) },
    { key: "value", name: "Is", number: true, cell: (row) => (typeof row.value === "number" ? (Number.isInteger(row.value) ? whole(row.value) : row.value.toFixed(2)) : html`<${Name} text=${row.value ?? "–"} />`) },
  ];
  return html`<${Table} narrow caption="This collector" columns=${columns} rows=${rows} keyOf=${(row) => row.name} />`;
}
