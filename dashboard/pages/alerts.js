// Alerts that are on, and those that were.

import { usePoll } from "../lib/api.js";
import { html } from "../lib/html.js";
import { clean, Name } from "../lib/text.js";
import { ago, duration, moment } from "../lib/units.js";
import { Command, Empty, Loading, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";

export function Alerts({ params }) {
  const { data, error } = usePoll("/api/v1/telemetry/alerts", Number(params.paused) > 0 ? 0 : 3);
  const active = data?.active ?? [];
  const past = data?.past ?? [];
  return html`
    <${Panel} id="active" wide title="Active" note=${data ? String(active.length) : ""}>
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && active.length === 0 && html`<${Empty} title="No alert is on.">
        <p>Rules are in the configuration; docs/telemetry.md lists their kinds:</p>
        <p><${Command}>${'[[collector.alert]]\nname = "link full"\nkind = "rate"\nabove = "90G"\nfor = "30s"'}<//></p>
      <//>`}
      ${active.length > 0 && html`<${Active} rows=${active} />`}
    <//>
    ${past.length > 0 && html`<${Panel} id="past" wide title="Past"><${Past} rows=${past} /><//>`}`;
}

const common = [
  { key: "name", name: "Alert", sort: (row) => row.name, cell: (row) => html`<${Name} text=${row.name} most=${40} />` },
  { key: "on", name: "Of", sort: (row) => row.on, cell: (row) => html`<${Name} text=${row.on ?? "–"} most=${40} />` },
  { key: "text", name: "What", wrap: true, cell: (row) => clean(row.text, 160) },
];

function Active({ rows }) {
  const columns = [
    { key: "state", name: "", cell: () => html`<span class="state bad">● on</span>` },
    ...common,
    { key: "since", name: "Since", number: true, sort: (row) => row.since_unix_seconds, cell: (row) => html`<span title=${moment(row.since_unix_seconds)}>${ago(row.since_unix_seconds)}</span>` },
  ];
  return html`<${Table} caption="Active alerts" columns=${columns} rows=${rows} keyOf=${(row) => `${row.name} ${row.on}`} sort=${{ key: "since", down: true }} />`;
}

function Past({ rows }) {
  const columns = [
    ...common,
    { key: "since", name: "Began", number: true, sort: (row) => row.since_unix_seconds, cell: (row) => moment(row.since_unix_seconds) },
    { key: "lasted", name: "Lasted", number: true, sort: (row) => row.ended_unix_seconds - row.since_unix_seconds, cell: (row) => duration(row.ended_unix_seconds - row.since_unix_seconds) },
  ];
  return html`<${Table} caption="Past alerts" columns=${columns} rows=${rows} keyOf=${(row) => `${row.name} ${row.on} ${row.since_unix_seconds}`} sort=${{ key: "since", down: true }} />`;
}
