// Share of labelled traffic, share of trusted labels, and pairs of owner and activity missing in the registry.

import { usePoll } from "../lib/api.js";
import { isMarked, useEvents } from "../lib/events.js";
import { html } from "../lib/html.js";
import { filtersOf, kindOf, link, NAMES, set, spanOf, timeOf } from "../lib/route.js";
import { shownWindow, useTraffic } from "../lib/traffic.js";
import { percentWithError, rateWithError } from "../lib/units.js";
import { Choice, Empty, Filters, Loading, isNoCollector, Panel, Problem, Tile } from "../parts/bits.js";
import { Saves, Series, useLooks, VIEWS } from "../parts/series.js";
import { Table } from "../parts/table.js";
import { eventSpan, EventsSwitch } from "./overview.js";

const KINDS = [
  { key: "labelled", name: "Labelled", note: "a scitag that a listed host or a firefly confirms" },
  { key: "untrusted", name: "Untrusted", note: "a scitag without confirmation: 0.35 % of random flow labels decode to one" },
  { key: "unlabelled", name: "Unlabelled", note: "no scitag" },
];
const COLOURS = { labelled: "var(--good)", untrusted: "var(--c-untrusted)", unlabelled: "var(--c-unlabelled)" };

export function Labels({ params, theme }) {
  const time = timeOf(params);
  const filters = filtersOf(params);
  const apart = Object.keys(filters).find((name) => kindOf(name) !== "group");
  const query = new URLSearchParams({ ...(time.live ? {} : spanOf(time)), ...filters });
  const { data, error } = usePoll(apart ? null : `/api/v1/telemetry/labels?${query}`, time.paused || time.zoomed ? 0 : time.live ? 2 : 15);
  const { traffic, error: broken, version } = useTraffic(apart ? null : "scitag", time, params);
  const { events } = useEvents(eventSpan(params, time));
  const view = VIEWS.some((one) => one.key === params.view) ? params.view : "stack";
  const series = useLooks(traffic, version, params.patterns, view === "table");
  const window = shownWindow(traffic, time);
  const some = KINDS.some((kind) => data?.[kind.key]?.bps > 0);
  const names = Object.fromEntries((traffic?.filters ?? []).map((one) => [one.by, one.name]));
  if (apart) return html`<${Filters} params=${params} /><${Panel} id="labelled" wide title="Labels"><${Empty} title=${`Labels cannot be filtered by ${NAMES[apart]}.`}><button type="button" onClick=${() => set({ [apart]: undefined })}>Remove the filter</button><//><//>`;
  if (isNoCollector(error)) return html`<${Panel} id="labelled" wide title="Labelled traffic"><${Problem} error=${error} /><//>`;
  return html`
    <${Filters} params=${params} names=${names} />
    <${Panel} id="labelled" wide title="Labelled traffic" note=${time.live ? "of the last minute" : "of the time chosen"}>
      <${Problem} error=${error} />
      ${!data && !error && html`<${Loading} />`}
      ${data && !some && html`<${Empty} title=${time.live ? "No packet was sampled yet." : "No data in this time."}><a href=${link("hosts")}>Hosts</a> lists the exporters. How to mark traffic: <code>penstock tag run --help</code>.<//>`}
      ${some && html`<div class="shares" role="img" aria-label=${KINDS.map((kind) => `${kind.name} ${percentWithError(data[kind.key].share, data[kind.key].error_share)}`).join(", ")}>
          ${KINDS.map((kind) => html`<span key=${kind.key} class=${kind.key === "labelled" ? "" : "swatch hatch"} style=${{ width: `${data[kind.key].share * 100}%`, height: "100%", "--swatch": COLOURS[kind.key], background: kind.key === "labelled" ? COLOURS.labelled : undefined }}></span>`)}
        </div>
        <div class="tiles three">${KINDS.map((kind) => html`<${Tile} key=${kind.key} title=${kind.name} value=${percentWithError(data[kind.key].share, data[kind.key].error_share)} note=${`${rateWithError(data[kind.key].bps, data[kind.key].error_bps)}: ${kind.note}`} />`)}</div>`}
    <//>
    <${Panel} id="scitags" wide title="By scitag" tools=${html`<${Choice} label="view" small options=${VIEWS} value=${view} onChange=${(key) => set({ view: key === "stack" ? undefined : key })} /><${EventsSwitch} params=${params} />${series.length > 0 && html`<${Saves} traffic=${traffic} series=${series} panel="scitags" title="Traffic by scitag" />`}`}>
      <${Problem} error=${broken} />
      ${traffic && series.length > 0 && html`<${Series} traffic=${traffic} version=${version} series=${series} view=${view} window=${window} theme=${`${theme}${params.patterns ?? ""}`} by="scitag" events=${events.filter(isMarked)}
        onZoom=${(from, to) => set({ from: Math.floor(from), to: Math.max(Math.floor(from) + 2, Math.ceil(to)) }, { replace: false })} onReset=${() => set({ from: undefined, to: undefined })} onPick=${(key) => set({ scitag: key }, { replace: false })} />`}
      ${traffic && series.length === 0 && html`<${Empty} title="No data in this time." />`}
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
    <${Table} narrow caption="Unknown pairs" columns=${columns} rows=${rows} keyOf=${(row) => row.scitag} sort=${{ key: "rate", down: true }} empty="none seen" />
    ${rows.length > 0 && html`<p class="note">Is the registry up to date? <code>penstock tag registry</code> shows its age.</p>`}
  <//>`;
}
