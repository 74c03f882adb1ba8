// The network: sites and links on a map, links as a list, traffic from site to site as a matrix, and the history of a link.

import { usePoll } from "../lib/api.js";
import { css } from "../lib/colours.js";
import { useEvents } from "../lib/events.js";
import { drawingPicture, plotPicture, saveCsv, savePng, seriesRows } from "../lib/export.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { filtersOf, kindOf, link as address, NAMES, set, spanOf, timeOf, windowOf } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { percentile95, summary } from "../lib/traffic.js";
import { duration, percent, rate, rateWithError, whole } from "../lib/units.js";
import { Choice, Command, Empty, Filters, Loading, Meter, Panel, Problem } from "../parts/bits.js";
import { NetMap } from "../parts/netmap.js";
import { Plot } from "../parts/plot.js";
import { Legend } from "../parts/series.js";
import { Table } from "../parts/table.js";
import { eventSpan, EventsSwitch } from "./overview.js";

const T = "/api/v1/telemetry";
const HIGH = 0.8;
/** Most points of a plot. */
const POINTS = 600;
/** Width of a column of the matrix, and of its row headers, in pixels. */
const COLUMN_PX = 54;
const BESIDE_PX = 190;
const COLUMNS_MIN = 2;
/** Key of the column that sums the other sites. */
const OTHERS = "\u0001";

/** Utilisation of the fuller direction, 0 to 1; null if neither end reports. */
export function shareOf(link) {
  const shares = [link.a_to_b?.share, link.b_to_a?.share].filter((one) => Number.isFinite(one));
  return shares.length > 0 ? Math.max(...shares) : null;
}

const isDown = (link) => link.up === false;
const isHigh = (link) => isDown(link) || shareOf(link) > HIGH;

/**
 * For a link of a VLAN without counters the rate is that of the VLAN's samples, whose direction is unknown, so
 * it is shown from A to B.
 */
function byVlan(links, vlans) {
  const rates = new Map((vlans?.series ?? []).map((one) => [one.key, { bps: one.bps.at(-1), error_bps: one.error_bps.at(-1) }]));
  return links.map((link) => {
    const sampled = link.vlan !== null && shareOf(link) === null ? rates.get(String(link.vlan)) : undefined;
    return Number.isFinite(sampled?.bps) ? { ...link, a_to_b: { ...sampled, share: sampled.bps / link.capacity_bps, from: "samples of its VLAN, both directions together" } } : link;
  });
}

const VIEWS = [
  { key: "map", name: "Map" },
  { key: "list", name: "List", title: "the links alone" },
  { key: "matrix", name: "Matrix", title: "traffic from site to site" },
];

export function NetworkMap({ params, theme }) {
  const time = timeOf(params);
  const seconds = time.paused || time.zoomed ? 0 : time.live ? 2 : 15;
  const topology = usePoll("/api/v1/topology", 60);
  const live = usePoll(time.live ? `${T}/links` : `${T}/links?${new URLSearchParams(spanOf(time))}`, seconds);
  const wanted = time.live && live.data?.links.some((link) => link.vlan !== null && shareOf(link) === null);
  const vlans = usePoll(wanted ? `${T}/series?by=vlan&from=-11&to=-1&step=10` : null, seconds);
  const view = VIEWS.some((one) => one.key === params.view) ? params.view : "map";
  const drawing = useRef(null);
  const tools = html`<${Choice} label="view" small value=${view} options=${VIEWS} onChange=${(key) => set({ view: key === "map" ? undefined : key })} />
    ${view === "map" && html`<button type="button" class="small" title="save the map as PNG" onClick=${async () => savePng("map", await drawingPicture(drawing.current.querySelector(".map > svg")))}>PNG</button>`}`;
  if (view === "matrix") return html`<${Filters} params=${params} /><${Panel} id="map" wide title="Site to site" tools=${tools}><${Matrix} params=${params} time=${time} /><//>`;
  const problem = topology.error && !topology.data;
  if (problem || !topology.data || topology.data.name === null) {
    return html`<${Panel} id="map" wide title="Map" tools=${tools}>${problem ? html`<${Problem} error=${topology.error} />` : topology.data ? html`<${NoTopology} />` : html`<${Loading} />`}<//>`;
  }
  const links = byVlan(live.data?.links ?? [], vlans.data);
  const high = params.use === "high";
  const shown = high ? links.filter(isHigh) : links;
  const picked = params.link ? params.link.split(",") : null;
  const filtered = Object.keys(filtersOf(params));
  const options = [
    { key: "all", name: `All ${whole(links.length)}` },
    { key: "high", name: `Over 80 % or down: ${whole(links.filter(isHigh).length)}`, title: "links of which a direction is over 80 % full, and those that are down" },
  ];
  const note = [clean(topology.data.title || topology.data.name, 80), time.live ? "now" : "mean of the time chosen"].join(" · ");
  return html`
    <${Panel} id="map" wide title="Map" note=${note} tools=${tools}>
      <${Choice} small label="which links" options=${options} value=${high ? "high" : "all"} onChange=${(key) => set({ use: key === "all" ? undefined : key })} />
      ${filtered.length > 0 && html`<p class="note">Links have counters for all their traffic together: filters by ${filtered.map((name) => NAMES[name]).join(", ")} apply to the matrix and not here.</p>`}
      <${Problem} error=${live.error} />
      ${!live.data && !live.error && html`<${Loading} />`}
      ${view === "map" && live.data && (topology.data.sites.some((one) => Number.isFinite(one.latitude) && Number.isFinite(one.longitude)) ? html`<div ref=${drawing}><${NetMap} topology=${topology.data} links=${shown} params=${params} picked=${picked} onPick=${(names) => set({ link: names.join(",") }, { replace: false })} /></div>` : html`<${Empty} title="No site has coordinates.">Give each <code>[[site]]</code> a latitude and a longitude. The links are listed below.<//>`)}
    <//>
    ${picked?.length === 1 && html`<${History} key=${picked[0]} name=${picked[0]} of=${links.find((one) => one.name === picked[0])} params=${params} theme=${theme} time=${time} />`}
    ${live.data && html`<${Links} links=${shown} all=${links} picked=${picked} sites=${topology.data.sites} high=${high} />`}`;
}

function NoTopology() {
  return html`<${Empty} title="The collector has no topology.">
    <p>Name one in the configuration and restart:</p>
    <p><${Command}>[collector]${"\n"}topology = "/etc/penstock/topology.toml"<//></p>
    <p>${"`penstock topology check FILE`"} checks it; docs/topology.md describes the format.</p>
  <//>`;
}

const flowing = (one) => html`<span title=${one?.from ? `from ${one.from}` : undefined}>${rateWithError(one?.bps, one?.error_bps)}</span>`;

/** Sort order: links that are down, then by utilisation. */
const urgency = (row) => (isDown(row) ? 2 : (shareOf(row) ?? -1));

function State({ of }) {
  const share = shareOf(of);
  if (isDown(of)) return html`<span class="state bad">▲ down</span>`;
  if (share === null) return html`<span class="state">no data</span>`;
  return share > HIGH ? html`<span class="state warn">◆ over 80 %</span>` : html`<span class="state good">○ ok</span>`;
}

function Links({ links, all, picked, sites, high }) {
  const titles = new Map(sites.map((one) => [one.name, one.title || one.name]));
  const many = picked?.length > 1;
  const rows = many ? all.filter((one) => picked.includes(one.name)) : links;
  const end = (node, site) => html`<${Name} text=${node} most=${28} /> <span class="note">${clean(titles.get(site) ?? "", 30)}</span>`;
  const columns = [
    { key: "state", name: "State", down: true, sort: urgency, text: (row) => (isDown(row) ? "down" : ""), cell: (row) => html`<${State} of=${row} />` },
    { key: "name", name: "Link", sort: (row) => row.name, cell: (row) => html`<button type="button" class="link" title="history of this link" aria-pressed=${picked?.length === 1 && picked[0] === row.name ? "true" : "false"} onClick=${() => set({ link: row.name }, { replace: false })}><${Name} text=${row.name} most=${36} /></button>` },
    { key: "a", name: "A", sort: (row) => row.a, text: (row) => `${row.a} ${titles.get(row.a_site) ?? ""}`, cell: (row) => end(row.a, row.a_site) },
    { key: "b", name: "B", sort: (row) => row.b, text: (row) => `${row.b} ${titles.get(row.b_site) ?? ""}`, cell: (row) => end(row.b, row.b_site) },
    { key: "there", name: "A to B", number: true, sort: (row) => row.a_to_b?.bps, cell: (row) => flowing(row.a_to_b) },
    { key: "back", name: "B to A", number: true, sort: (row) => row.b_to_a?.bps, cell: (row) => flowing(row.b_to_a) },
    { key: "rate", low: 1, name: "Capacity", number: true, sort: (row) => row.capacity_bps, cell: (row) => rate(row.capacity_bps) },
    { key: "share", name: "Use", number: true, title: "of the fuller direction", sort: shareOf, cell: (row) => (shareOf(row) === null ? "–" : html`<${Meter} share=${shareOf(row)} label=${`use of ${row.name}`} kind=${shareOf(row) > HIGH ? "bad" : ""} />${percent(shareOf(row))}`) },
    ...(rows.some((row) => row.vlan !== null) ? [{ key: "vlan", low: 2, name: "VLAN", number: true, sort: (row) => row.vlan, cell: (row) => row.vlan ?? "–" }] : []),
  ];
  const tools = picked && html`<button type="button" class="small" onClick=${() => set({ link: undefined })}>${many ? "All links" : "Close the history"}</button>`;
  return html`<${Panel} id="links" wide title=${many ? "Links of this bundle" : high ? "Links over 80 % or down" : "Links"} note="problems first" tools=${tools}>
    <${Table} caption="Links" columns=${columns} rows=${rows} keyOf=${(row) => row.name} sort=${{ key: "state", down: true }} onRow=${(row) => (picked?.includes(row.name) && !many ? "chosen" : "")} empty=${high ? "no link is over 80 % or down" : "the topology has no links"} />
  <//>`;
}

/** Plot of both directions of a link over time. */
function History({ name, of, params, theme, time }) {
  const { from, to } = spanOf(time);
  const step = Math.max(time.live ? 2 : 1, Math.ceil((to - from) / POINTS));
  const path = `${T}/links/${encodeURIComponent(name)}/series?${new URLSearchParams({ from, to, step })}`;
  const { data, error } = usePoll(path, time.paused || time.zoomed ? 0 : time.live ? 4 : 30);
  const span = eventSpan(params, time);
  const { events } = useEvents(span, { link: name });
  const place = useRef(null);
  useEffect(() => place.current?.scrollIntoView({ block: "nearest" }), []);
  const shown = useMemo(() => {
    if (!data) return null;
    const length = data.a_to_b.bps.length;
    const times = Array.from({ length }, (_, at) => data.start_s + at * data.step_s);
    const line = (key, label, values, colour) => ({ key, name: label, look: { colour, pattern: "plain" }, values: values.bps, errors: values.error_bps });
    return { times, series: [line("ab", `A to B: ${clean(data.a, 30)} to ${clean(data.b, 30)}`, data.a_to_b, 0), line("ba", `B to A: ${clean(data.b, 30)} to ${clean(data.a, 30)}`, data.b_to_a, 1)] };
  }, [data]);
  const none = data && !data.a_to_b.interface && !data.b_to_a.interface;
  const empty = shown && shown.series.every((one) => one.values.every((value) => value === null));
  const window = windowOf(time);
  const title = `Link ${clean(name, 60)}`;
  const tools = shown && !none && html`<${EventsSwitch} params=${params} /><span class="saves">
    <button type="button" class="small" title="save the numbers as CSV" onClick=${() => saveCsv(`link ${name}`, seriesRows(shown))}>CSV</button>
    <button type="button" class="small" title="save the plot as PNG" onClick=${() => savePng(`link ${name}`, plotPicture(place.current, title, shown.series.map((one) => ({ name: one.name, colour: css(one.look) }))))}>PNG</button></span>
    <button type="button" class="small" onClick=${() => set({ link: undefined })}>Close</button>`;
  const note = data ? [isDown(of ?? {}) ? "down" : "", `${rate(data.capacity_bps)} each direction`, `points of ${duration(data.step_s)}`].filter(Boolean).join(" · ") : "";
  return html`<div class="wide" ref=${place}><${Panel} id="link" wide title=${title} note=${note} tools=${tools}>
    ${error?.status === 404 ? html`<${Empty} title="The topology has no such link."><button type="button" onClick=${() => set({ link: undefined })}>Show all links</button><//>` : html`<${Problem} error=${error} />`}
    ${!data && !error && html`<${Loading} />`}
    ${none && html`<${Empty} title="No data for this link.">No exporter reports the interface at either of its ends: name the interfaces in the topology as the exporter does, or list them in <code>links</code> of <code>[[collector.exporter]]</code>.<//>`}
    ${shown && !none && empty && html`<${Empty} title="No data in this time.">Choose another range. Seconds are kept for 10 minutes, minutes for 7 days, hours for a year.<//>`}
    ${shown && !none && !empty && html`<div class="with-legend">
      <${Plot} label=${`rates of link ${name}`} times=${shown.times} series=${shown.series} kind="lines" capacity=${data.capacity_bps} from=${time.zoomed || time.paused ? window.from : shown.times[0]} to=${time.zoomed || time.paused ? window.to : shown.times.at(-1)} theme=${theme} version=${`${data.start_s} ${shown.times.length} ${summary(shown.series[0].values, shown.series[0].errors, 1).now}`} height=${280} events=${span === null ? [] : events}
        onZoom=${(start, end) => set({ from: Math.floor(start), to: Math.max(Math.floor(start) + 2, Math.ceil(end)) }, { replace: false })} onReset=${() => set({ from: undefined, to: undefined })} />
      <${Legend} series=${shown.series} step=${data.step_s} />
    </div>
    <p class="note">95th percentile of the fuller direction: ${rate(Math.max(...shown.series.map((one) => percentile95(one.values) ?? 0)))} (${percent(Math.max(...shown.series.map((one) => percentile95(one.values) ?? 0)) / data.capacity_bps)} of the capacity).</p>`}
  <//></div>`;
}

/** Units of rates. */
const UNITS = [[1e12, "Tb/s"], [1e9, "Gb/s"], [1e6, "Mb/s"], [1e3, "kb/s"], [1, "b/s"]];

/** Formats a rate in the common unit of all cells, with significant digits only. */
function inUnit(bps, unit) {
  const value = bps / unit;
  if (value === 0) return "0";
  if (value < 0.005) return "<0.01";
  return value >= 99.5 ? value.toFixed(0) : value >= 9.95 ? value.toFixed(1) : value.toFixed(2);
}

/** Matrix of traffic from site to site. */
function Matrix({ params, time }) {
  const filters = Object.fromEntries(Object.entries(filtersOf(params)).filter(([name]) => kindOf(name) === "group"));
  const ignored = Object.keys(filtersOf(params)).filter((name) => kindOf(name) !== "group");
  const query = new URLSearchParams({ ...(time.live ? { from: -60, to: 0 } : spanOf(time)), ...filters });
  const { data, error } = usePoll(ignored.length > 0 ? null : `${T}/matrix?${query}`, time.paused || time.zoomed ? 0 : 5);
  const place = useRef(null);
  const [width, measure] = useState(0);
  const [all, show] = useState(false);
  useLayoutEffect(() => {
    const size = new ResizeObserver(() => place.current && measure(place.current.clientWidth));
    size.observe(place.current);
    return () => size.disconnect();
  }, []);
  const room = Math.max(COLUMNS_MIN, Math.floor((width - BESIDE_PX) / COLUMN_PX));
  const table = useMemo(() => data && tableOf(data, all ? Infinity : room), [data, all, room]);
  const inside = () => {
    if (ignored.length > 0) return html`<${Empty} title=${`Pairs of sites are not kept by ${NAMES[ignored[0]]}.`}>Remove this filter.<//>`;
    if (!data) return error ? html`<${Problem} error=${error} />` : html`<${Loading} />`;
    if (data.cells.length === 0) return html`<${Empty} title="No traffic between sites in this time."><p>Sites are known by their networks:</p><p><${Command}>[[collector.site]]${"\n"}name = "cern"${"\n"}networks = ["2001:db8:1::/48"]<//></p><//>`;
    return html`<${Problem} error=${error} /><${Cells} data=${data} table=${table} time=${time} all=${all} onAll=${data.sites.length > room ? () => show(!all) : null} />`;
  };
  return html`<div ref=${place}>${inside()}</div>`;
}

function Cells({ data, table, time, all, onAll }) {
  const { sites, cells, most } = table;
  const [unit, name] = UNITS.find(([size]) => most >= size) ?? UNITS.at(-1);
  const open = (changes) => (location.hash = address("overview", changes));
  const save = () => saveCsv("site matrix", [["source", "destination", "bit/s", "error bit/s"], ...data.cells.map((cell) => [cell.source, cell.destination, cell.bps, cell.error_bps])]);
  const key = (site) => (site.key === OTHERS ? site.name : clean(site.key, 12));
  return html`
    <p class="note">Mean rate in ${name} from each source (row) to each destination (column)${time.live ? ", last minute" : ""}; from samples, scaled to counters where available. <button type="button" class="small" title="save all pairs as CSV" onClick=${save}>CSV</button>
      ${onAll && html` <button type="button" class="small" aria-pressed=${all ? "true" : "false"} onClick=${onAll}>${all ? "Only sites that fit" : `All ${data.sites.length} sites`}</button>`}</p>
    <div class="scroll matrix" tabindex="0" role="region" aria-label="table: traffic from site to site"><table>
      <caption class="unseen">Traffic from site to site in ${name}: a row for each source, a column for each destination</caption>
      <thead><tr><td class="corner">from \\ to</td>${sites.map((site) => html`<th key=${site.key} scope="col" title=${clean(site.name, 80)}>${key(site)}</th>`)}<th scope="col" class="sum">Sent</th></tr></thead>
      <tbody>${sites.map(
        (row) => html`<tr key=${row.key}><th scope="row" title=${clean(row.name, 80)}>${key(row)}</th>
          ${sites.map((column) => {
            const cell = cells.get(`${row.key}\u0000${column.key}`);
            if (!cell) return html`<td key=${column.key} class="number none">·</td>`;
            const level = Math.max(0, 1 + Math.log10(cell.bps / most) / 4);
            const title = `${clean(row.name, 60)} to ${clean(column.name, 60)}: ${rateWithError(cell.bps, cell.error_bps)}`;
            const text = inUnit(cell.bps, unit);
            const single = row.key !== OTHERS && column.key !== OTHERS;
            return html`<td key=${column.key} class="number" style=${{ "--level": `${Math.round(level * 42)}%` }} title=${single ? undefined : title}>${single ? html`<button type="button" class="plain" title=${title} onClick=${() => open({ site_pair: `${row.key}>${column.key}` })}>${text}</button>` : text}</td>`;
          })}
          <td class="number sum">${inUnit(row.sent_bps, unit)}</td></tr>`,
      )}
      <tr class="sum"><th scope="row">Received</th>${sites.map((site) => html`<td key=${site.key} class="number">${inUnit(site.received_bps, unit)}</td>`)}<td class="number">${inUnit(data.cells.reduce((sum, cell) => sum + cell.bps, 0), unit)}</td></tr></tbody>
    </table></div>`;
}

/** The sites with most traffic, up to `room`, and one for all others; cells by source and destination. */
function tableOf(data, room) {
  const own = data.sites.length <= room ? data.sites : data.sites.slice(0, room - 1);
  const rest = data.sites.slice(own.length);
  const known = new Set(own.map((site) => site.key));
  const cells = new Map();
  for (const cell of data.cells) {
    if (cell.bps <= 0) continue;
    const key = [cell.source, cell.destination].map((site) => (known.has(site) ? site : OTHERS)).join("\u0000");
    const sum = cells.get(key) ?? { bps: 0, error_bps: 0 };
    sum.bps += cell.bps;
    sum.error_bps = Math.hypot(sum.error_bps, cell.error_bps);
    cells.set(key, sum);
  }
  const total = (field) => rest.reduce((sum, site) => sum + site[field], 0);
  const others = rest.length > 0 ? [{ key: OTHERS, name: `Other (${rest.length})`, sent_bps: total("sent_bps"), received_bps: total("received_bps") }] : [];
  return { sites: [...own, ...others], cells, most: Math.max(1, ...[...cells.values()].map((cell) => cell.bps)) };
}
