// Rules and where they stand: what fires, how far the others are from it.

import { usePoll } from "../lib/api.js";
import { html } from "../lib/html.js";
import { clean, Name } from "../lib/text.js";
import { ago, duration, moment, percent, rate, whole } from "../lib/units.js";
import { Command, Empty, Loading, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";

/** A value in the unit of its rule. */
function shown(value, unit) {
  if (value === null || value === undefined) return "–";
  return unit === "bit/s" ? rate(value) : unit === "s" ? duration(value) : percent(value);
}

const EXAMPLE = '[[collector.alert]]\nname = "cms fills the link"\nkind = "rate"\nby = "owner"\nkey = "cms"\nabove = "90G"\nfor = "30s"';

export function Alerts({ params }) {
  const { data, error } = usePoll("/api/v1/telemetry/alerts", Number(params.paused) > 0 ? 0 : 3);
  const alerts = data?.alerts ?? [];
  const firing = alerts.filter((one) => one.firing);
  const quiet = alerts.filter((one) => !one.firing);
  return html`
    <${Panel} id="firing" wide title="Firing" note=${data ? String(firing.length) : ""}>
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && alerts.length === 0 && html`<${Empty} title="There are no rules."><p>Write one into the configuration; docs/telemetry.md lists their kinds:</p><p><${Command}>${EXAMPLE}<//></p><//>`}
      ${alerts.length > 0 && firing.length === 0 && html`<${Empty} title="Nothing fires.">All ${whole(alerts.length)} rules are within their thresholds.<//>`}
      ${firing.length > 0 && html`<${Rules} caption="Alerts that fire" rows=${firing} />`}
    <//>
    ${quiet.length > 0 && html`<${Panel} id="quiet" wide title="Quiet" note=${String(quiet.length)}><${Rules} caption="Rules that do not fire" rows=${quiet} /><//>`}`;
}

function Rules({ caption, rows }) {
  const columns = [
    { key: "state", name: "State", sort: (row) => row.firing, cell: (row) => (row.firing ? html`<span class="state bad">● fires</span>` : row.value === null ? html`<span class="state">no figure</span>` : html`<span class="state good">○ quiet</span>`) },
    { key: "name", name: "Alert", sort: (row) => row.name, cell: (row) => html`<${Name} text=${row.name} most=${48} />` },
    { key: "of", name: "Of", sort: (row) => row.key, cell: (row) => html`${clean(row.kind, 20)}${row.key ? html` of <${Name} text=${row.key} most=${36} />` : ""}` },
    { key: "value", name: "Now", number: true, sort: (row) => row.value, cell: (row) => shown(row.value, row.unit) },
    { key: "threshold", name: "Fires", number: true, sort: (row) => row.threshold, cell: (row) => `${row.above ? "above" : "below"} ${shown(row.threshold, row.unit)}${row.for_s > 0 ? ` for ${duration(row.for_s)}` : ""}` },
    { key: "clear", name: "Ends", number: true, sort: (row) => row.clear, cell: (row) => `${row.above ? "at" : "from"} ${shown(row.clear, row.unit)}` },
    { key: "since", name: "Since", number: true, sort: (row) => row.since_s, cell: (row) => (row.since_s === null ? "–" : html`<span title=${moment(row.since_s)}>${ago(row.since_s)}</span>`) },
    { key: "times", name: "Has fired", number: true, sort: (row) => row.times, cell: (row) => `${whole(row.times)} ×` },
  ];
  return html`<${Table} caption=${caption} columns=${columns} rows=${rows} keyOf=${(row) => row.name} />`;
}
