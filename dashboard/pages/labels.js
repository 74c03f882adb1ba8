// How much of the traffic says whose it is, how much of that is believed, and what is marked with pairs that no one has.

import { usePoll } from "../lib/api.js";
import { html } from "../lib/html.js";
import { link, set, timeOf } from "../lib/route.js";
import { shownWindow, useTraffic } from "../lib/traffic.js";
import { percentWithError, rateWithError } from "../lib/units.js";
import { Choice, Empty, Loading, Panel, Problem, Tile } from "../parts/bits.js";
import { Series, useLooks, VIEWS } from "../parts/series.js";
import { Table } from "../parts/table.js";

const KINDS = [
  { key: "labelled", name: "Labelled", note: "a scitag that a listed host or a firefly confirms" },
  { key: "untrusted", name: "Untrusted", note: "a scitag that nothing confirms: 0.35 % of random labels read as one" },
  { key: "unlabelled", name: "Unlabelled", note: "no scitag" },
];
const COLOURS = { labelled: "var(--good)", untrusted: "var(--c-untrusted)", unlabelled: "var(--c-unlabelled)" };

export function Labels({ params, theme }) {
  const time = timeOf(params);
  const { data, error } = usePoll("/api/v1/telemetry/labels", time.paused ? 0 : 2);
  const { traffic, error: broken, version } = useTraffic("scitag", time, params);
  const series = useLooks(traffic, version, params.patterns);
  const view = VIEWS.some((one) => one.key === params.view) ? params.view : "stack";
  const window = shownWindow(traffic, time);
  const some = KINDS.some((kind) => data?.[kind.key]?.bps > 0);
  return html`
    <${Panel} id="labelled" wide title="Whose traffic it says it is" note="of the last minute">
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && !some && html`<${Empty} title="No packet was sampled yet.">The <a href=${link("hosts")}>hosts page</a> says who sends samples. How to mark traffic: <code>penstock tag run --help</code>.<//>`}
      ${some && html`<div class="shares" role="img" aria-label=${KINDS.map((kind) => `${kind.name} ${percentWithError(data[kind.key].share, data[kind.key].error_share)}`).join(", ")}>
          ${KINDS.map((kind) => html`<span key=${kind.key} class=${kind.key === "labelled" ? "" : "swatch hatch"} style=${{ width: `${data[kind.key].share * 100}%`, height: "100%", "--swatch": COLOURS[kind.key], background: kind.key === "labelled" ? COLOURS.labelled : undefined }}></span>`)}
        </div>
        <div class="tiles three">${KINDS.map((kind) => html`<${Tile} key=${kind.key} title=${kind.name} value=${percentWithError(data[kind.key].share, data[kind.key].error_share)} note=${`${rateWithError(data[kind.key].bps, data[kind.key].error_bps)}: ${kind.note}`} />`)}</div>`}
    <//>
    <${Panel} id="scitags" wide title="By scitag" tools=${html`<${Choice} label="view" small options=${VIEWS} value=${view} onChange=${(key) => set({ view: key === "stack" ? undefined : key })} />`}>
      <${Problem} error=${broken} />
      ${traffic && series.length > 0 && html`<${Series} traffic=${traffic} version=${version} series=${series} view=${view} window=${window} theme=${`${theme}${params.patterns ?? ""}`} by="scitag"
        onZoom=${(from, to) => set({ from: Math.floor(from), to: Math.max(Math.floor(from) + 2, Math.ceil(to)) }, { replace: false })} onReset=${() => set({ from: undefined, to: undefined })} />`}
      ${traffic && series.length === 0 && html`<${Empty} title="There is no traffic in this time." />`}
    <//>
    <${Unknown} rows=${data?.unknown} />`;
}

function Unknown({ rows }) {
  if (!rows) return null;
  const columns = [
    { key: "owner", name: "Owner", number: true, sort: (row) => row.owner, cell: (row) => row.owner },
    { key: "activity", name: "Activity", number: true, sort: (row) => row.activity, cell: (row) => row.activity },
    { key: "rate", name: "Rate ± 95 %", number: true, sort: (row) => row.bps, cell: (row) => rateWithError(row.bps, row.error_bps) },
  ];
  return html`<${Panel} id="unknown" wide title="Pairs that the registry does not have" note="set on purpose, in an extension header">
    <${Table} narrow caption="Unknown pairs" columns=${columns} rows=${rows} keyOf=${(row) => row.scitag} sort=${{ key: "rate", down: true }} empty="none was seen" />
    ${rows.length > 0 && html`<p class="note">Is the registry up to date? <code>penstock tag registry</code> says how old it is.</p>`}
  <//>`;
}
