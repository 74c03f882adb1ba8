// Sites where they are, and the links between them by how much they are used: colour, width, dashes and a number.

import { usePoll } from "../lib/api.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { set } from "../lib/route.js";
import { clean, Name } from "../lib/text.js";
import { percent, rate, rateWithError } from "../lib/units.js";
import { Choice, Command, Empty, Loading, Meter, Panel, Problem } from "../parts/bits.js";
import { Table } from "../parts/table.js";
import { coastline } from "../vendor/coastline.js";

/** Height of the picture by its width, and at most. */
const SHAPE = 0.5;
const HEIGHT_MAX = 560;
const WIDTH_MIN = 320;

/** A link of which nobody tells. */
const UNKNOWN = { key: "untold", name: "nobody tells", width: 1.25, dash: "3 5" };

/** Steps of use: up to which share, its name, width of the line and its dashes. */
const USES = [
  { to: 0.005, key: "idle", name: "idle", width: 1.5, dash: "2 5" },
  { to: 0.25, key: "low", name: "to 25 %", width: 2, dash: "8 4" },
  { to: 0.5, key: "middle", name: "to 50 %", width: 3, dash: "16 4" },
  { to: 0.8, key: "high", name: "to 80 %", width: 4.5, dash: "" },
  { to: Infinity, key: "full", name: "over 80 %", width: 6.5, dash: "" },
];

/** Use of the fuller direction, 0 to 1; null where neither end tells. */
function shareOf(link) {
  const shares = [link.a_to_b?.share, link.b_to_a?.share].filter((one) => Number.isFinite(one));
  return shares.length > 0 ? Math.max(...shares) : null;
}

const useOf = (share) => (share === null ? UNKNOWN : USES.find((one) => share <= one.to));

/** Longitude and latitude to the picture: flat, as wide at the middle latitude as it is high. */
function projection(sites, width, height) {
  const bounds = (values) => [Math.min(...values), Math.max(...values)];
  let [west, east] = bounds(sites.map((one) => one.longitude));
  let [south, north] = bounds(sites.map((one) => one.latitude));
  const grow = Math.max(3, (east - west) * 0.14, (north - south) * 0.2);
  [west, east, south, north] = [west - grow, east + grow, Math.max(-88, south - grow), Math.min(88, north + grow)];
  const squeeze = Math.cos((((south + north) / 2) * Math.PI) / 180);
  const scale = Math.min(width / ((east - west) * squeeze), height / (north - south));
  const [middleX, middleY] = [(west + east) / 2, (south + north) / 2];
  return {
    width,
    height,
    x: (longitude) => width / 2 + (longitude - middleX) * squeeze * scale,
    y: (latitude) => height / 2 - (latitude - middleY) * scale,
    scaleX: squeeze * scale,
    scaleY: scale,
    middleX,
    middleY,
    degrees: height / scale,
  };
}

/**
 * A link of a VLAN at whose ends nobody counts carries what samples say of that VLAN; in which direction is not told, so it
 * stands as the way there.
 */
function byVlan(links, vlans) {
  const rates = new Map((vlans?.series ?? []).map((one) => [one.key, { bps: one.bps.at(-1), error_bps: one.error_bps.at(-1) }]));
  return links.map((link) => {
    const told = link.vlan !== null && shareOf(link) === null ? rates.get(String(link.vlan)) : undefined;
    return Number.isFinite(told?.bps) ? { ...link, a_to_b: { ...told, share: told.bps / link.capacity_bps, from: "samples of its VLAN, both directions together" } } : link;
  });
}

/** Links between two sites, side by side as arcs; those within a site are in the list alone. */
function arcs(links, sites, map) {
  const beside = new Map();
  return links.flatMap((link) => {
    const [a, b] = [sites.get(link.a_site), sites.get(link.b_site)];
    if (!a || !b || a === b) return [];
    const pair = [link.a_site, link.b_site].sort().join("\u0000");
    const number = beside.get(pair) ?? 0;
    beside.set(pair, number + 1);
    const [x1, y1, x2, y2] = [map.x(a.longitude), map.y(a.latitude), map.x(b.longitude), map.y(b.latitude)];
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    // Towards the pole, as the way over the globe goes; those beside each other ever further.
    const up = (a.latitude + b.latitude >= 0 ? 1 : -1) * (x2 >= x1 ? 1 : -1);
    const bend = (Math.min(60, length * 0.12) + number * Math.max(18, Math.min(70, length * 0.11))) * up;
    const [mx, my] = [(x1 + x2) / 2 + ((y2 - y1) / length) * bend, (y1 + y2) / 2 - ((x2 - x1) / length) * bend];
    const on = (from, middle, to, at) => (1 - at) ** 2 * from + 2 * at * (1 - at) * middle + at ** 2 * to;
    const point = (at) => [on(x1, mx, x2, at), on(y1, my, y2, at)];
    return [{ link, point, path: `M${x1.toFixed(1)} ${y1.toFixed(1)}Q${mx.toFixed(1)} ${my.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}` }];
  });
}

/** Where names of sites and figures of links stand, so that none covers another; a figure without room is left to the list. */
function places(sites, drawn, map) {
  const taken = sites.map((site) => [map.x(site.longitude) - 6, map.y(site.latitude) - 6, map.x(site.longitude) + 6, map.y(site.latitude) + 6]);
  const free = (box) => box[0] > 2 && box[2] < map.width - 2 && box[1] > 2 && box[3] < map.height - 2 && !taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1]);
  const names = sites.map((site) => {
    const [x, y] = [map.x(site.longitude), map.y(site.latitude)];
    const text = clean(site.title || site.name, 30);
    const width = text.length * 7;
    const tries = [
      { dx: 10, dy: 4, anchor: "start" },
      { dx: -10, dy: 4, anchor: "end" },
      { dx: 0, dy: 21, anchor: "middle" },
      { dx: 0, dy: -12, anchor: "middle" },
      { dx: 10, dy: 20, anchor: "start" },
      { dx: -10, dy: 20, anchor: "end" },
      { dx: 10, dy: -12, anchor: "start" },
      { dx: -10, dy: -12, anchor: "end" },
    ].map((one) => {
      const left = x + one.dx - (one.anchor === "end" ? width : one.anchor === "middle" ? width / 2 : 0);
      return { ...one, box: [left, y + one.dy - 12, left + width, y + one.dy + 4] };
    });
    const place = tries.find((one) => free(one.box)) ?? tries[0];
    taken.push(place.box);
    return { site, x, y, text, ...place };
  });
  const figures = drawn.flatMap(({ link, point }) => {
    if (shareOf(link) === null) return [];
    const text = rate((link.a_to_b?.bps ?? 0) + (link.b_to_a?.bps ?? 0));
    const half = text.length * 3.5;
    for (const at of [0.5, 0.4, 0.6, 0.3, 0.7]) {
      const [x, y] = point(at);
      const box = [x - half, y - 8, x + half, y + 8];
      if (!free(box)) continue;
      taken.push(box);
      return [{ key: link.name, x, y: y + 4, text }];
    }
    return [];
  });
  return { names, figures };
}

function graticule(map) {
  const step = [1, 2, 5, 10, 20, 30].find((one) => map.degrees / one <= 7) ?? 30;
  const lines = [];
  const { width, height } = map;
  const [west, east] = [map.middleX - width / 2 / map.scaleX, map.middleX + width / 2 / map.scaleX];
  const [south, north] = [map.middleY - height / 2 / map.scaleY, map.middleY + height / 2 / map.scaleY];
  for (let at = Math.ceil(west / step) * step; at <= east; at += step) lines.push(`M${map.x(at).toFixed(1)} 0V${height}`);
  for (let at = Math.ceil(south / step) * step; at <= north; at += step) lines.push(`M0 ${map.y(at).toFixed(1)}H${width}`);
  return lines.join("");
}

export function NetworkMap({ params }) {
  const seconds = Number(params.paused) > 0 ? 0 : 2;
  const topology = usePoll("/api/v1/topology", 60);
  const live = usePoll("/api/v1/telemetry/links", seconds);
  const wanted = live.data?.links.some((link) => link.vlan !== null && shareOf(link) === null);
  const vlans = usePoll(wanted ? "/api/v1/telemetry/series?by=vlan&from=-11&to=-1&step=10" : null, seconds);
  const view = params.view === "list" ? "list" : "map";
  if (topology.error && !topology.data) return html`<${Panel} id="map" wide title="Map"><${Problem} error=${topology.error} /><//>`;
  if (topology.data && topology.data.name === null) return html`<${Panel} id="map" wide title="Map"><${NoTopology} /><//>`;
  if (!topology.data) return html`<${Panel} id="map" wide title="Map"><${Loading} /><//>`;
  const links = byVlan(live.data?.links ?? topology.data.links ?? [], vlans.data);
  return html`<${Panel} id="map" wide title=${clean(topology.data.title || topology.data.name || "Map", 80)} tools=${html`<${Choice} label="view" small value=${view} options=${[{ key: "map", name: "Map" }, { key: "list", name: "List" }]} onChange=${(key) => set({ view: key === "map" ? undefined : key })} />`}>
    <${Problem} error=${live.error} />
    ${view === "map" && html`<${Picture} topology=${topology.data} links=${links} />`}
    <${Links} links=${links} sites=${topology.data.sites} />
  <//>`;
}

function NoTopology() {
  return html`<${Empty} title="The collector has no description of the network.">
    <p>Name one in the configuration and start again:</p>
    <p><${Command}>[collector]${"\n"}topology = "/etc/penstock/topology.toml"<//></p>
    <p>${"`penstock topology check FILE`"} says whether it is good; docs/topology.md tells how to write it.</p>
  <//>`;
}

function Picture({ topology, links }) {
  const [over, point] = useState(null);
  const placed = useMemo(() => topology.sites.filter((one) => Number.isFinite(one.latitude) && Number.isFinite(one.longitude)), [topology]);
  const place = useRef(null);
  const [width, measure] = useState(0);
  useLayoutEffect(() => {
    const size = new ResizeObserver(() => place.current && measure(Math.max(WIDTH_MIN, place.current.clientWidth)));
    if (place.current) size.observe(place.current);
    return () => size.disconnect();
  }, [placed.length > 0]);
  const height = Math.round(Math.min(HEIGHT_MAX, Math.max(260, width * SHAPE)));
  const map = useMemo(() => (placed.length > 0 ? projection(placed, width || 1000, height) : null), [placed, width, height]);
  if (!map) return html`<${Empty} title="No site has coordinates.">Give each <code>[[site]]</code> a latitude and a longitude. The links are listed below.<//>`;
  const sites = new Map(placed.map((one) => [one.name, one]));
  const drawn = arcs(links, sites, map);
  const { names, figures } = places(placed, drawn, map);
  const hosts = (name) => (topology.nodes ?? []).filter((one) => one.kind === "host" && one.site === name).length;
  const move = `translate(${map.x(0)} ${map.y(0)}) scale(${map.scaleX / 10} ${map.scaleY / 10})`;
  return html`<div class="map" ref=${place}>
    <svg viewBox=${`0 0 ${map.width} ${map.height}`} width="100%" height=${map.height} role="img" aria-label=${`${placed.length} sites and ${drawn.length} links between them; the list below has the figures`}>
      ${[-3600, 0, 3600].map((turn) => html`<path key=${turn} class="land" d=${coastline} transform=${`${move} translate(${turn} 0)`} />`)}
      <path class="graticule" d=${graticule(map)} />
      ${drawn.map(({ link, path }) => {
        const use = useOf(shareOf(link));
        return html`<g key=${link.name} class=${`link ${use.key}${over === link.name ? " over" : ""}`} onMouseEnter=${() => point(link.name)} onMouseLeave=${() => point(null)}>
          <path class="reach" d=${path} />${use !== UNKNOWN && html`<path class="ground" d=${path} style=${{ strokeWidth: use.width + 3 }} />`}<path class="line" d=${path} style=${{ strokeWidth: use.width }} stroke-dasharray=${use.dash || undefined} />
          <title>${`${clean(link.name, 60)}: ${clean(link.a, 30)} to ${clean(link.b, 30)} ${rate(link.a_to_b?.bps)}, back ${rate(link.b_to_a?.bps)}, of ${rate(link.capacity_bps)}`}</title>
        </g>`;
      })}
      ${figures.map((one) => html`<text key=${one.key} x=${one.x} y=${one.y} text-anchor="middle">${one.text}</text>`)}
      ${names.map(
        ({ site, x, y, text, dx, dy, anchor }) => html`<g key=${site.name} class="site"><circle cx=${x} cy=${y} r="5" /><text x=${x + dx} y=${y + dy} text-anchor=${anchor}>${text}</text><title>${`${clean(site.title || site.name, 80)}: ${hosts(site.name)} hosts`}</title></g>`,
      )}
    </svg>
    <ul class="key" aria-label="use of a link">${[UNKNOWN, ...USES].map(
      (one) => html`<li key=${one.key}><svg width="44" height="10" class=${`link ${one.key}`} aria-hidden="true"><path class="line" d="M2 5H42" style=${{ strokeWidth: one.width }} stroke-dasharray=${one.dash || undefined} /></svg>${one.name}</li>`,
    )}</ul>
  </div>`;
}

const flowing = (one) => html`<span title=${one?.from ? `by ${one.from}` : undefined}>${rateWithError(one?.bps, one?.error_bps)}</span>`;

function Links({ links, sites }) {
  const titles = new Map(sites.map((one) => [one.name, one.title || one.name]));
  const columns = [
    { key: "name", name: "Link", sort: (row) => row.name, cell: (row) => html`<${Name} text=${row.name} most=${32} />` },
    { key: "a", name: "From", sort: (row) => row.a, cell: (row) => html`<${Name} text=${row.a} most=${28} /> <span class="note">${clean(titles.get(row.a_site) ?? "", 30)}</span>` },
    { key: "b", name: "To", sort: (row) => row.b, cell: (row) => html`<${Name} text=${row.b} most=${28} /> <span class="note">${clean(titles.get(row.b_site) ?? "", 30)}</span>` },
    { key: "vlan", name: "VLAN", number: true, sort: (row) => row.vlan, cell: (row) => row.vlan ?? "–" },
    { key: "there", name: "There", number: true, sort: (row) => row.a_to_b?.bps, cell: (row) => flowing(row.a_to_b) },
    { key: "back", name: "Back", number: true, sort: (row) => row.b_to_a?.bps, cell: (row) => flowing(row.b_to_a) },
    { key: "rate", name: "Capacity", number: true, sort: (row) => row.capacity_bps, cell: (row) => rate(row.capacity_bps) },
    { key: "share", name: "Use", sort: shareOf, cell: (row) => (shareOf(row) === null ? html`<span class="note">nobody tells</span>` : html`<${Meter} share=${shareOf(row)} label=${`use of ${row.name}`} kind=${shareOf(row) > 0.8 ? "bad" : ""} />${percent(shareOf(row))}`) },
  ];
  return html`<${Table} caption="Links" columns=${columns} rows=${links} keyOf=${(row) => row.name} sort=${{ key: "share", down: true }} empty="the description has no links" />`;
}
