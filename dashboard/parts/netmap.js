// Map of sites and bundles of links by direction, with zoom and pan. The list beside it has the
// same figures and can be used without a mouse.

import { aroundGroup, baseOf, bundlesOf, curvesOf, flowOf, graticule, groupsOf, Labels, nameOfGroup, projection, ZOOM_MAX } from "../lib/geo.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";
import { set } from "../lib/route.js";
import { percent, plural, rate } from "../lib/units.js";
import { coastline } from "../vendor/coastline.js";

const SHAPE = 0.5;
const HEIGHT_MAX = 620;
const HEIGHT_MIN = 300;
const WIDTH_MIN = 280;
/** Shortest link with a printed rate, in pixels, and most such links; those with most traffic first. */
const FIGURE_PX = 70;
const FIGURES_MAX = 24;
const ZOOM_STEP = 1.6;

export const NO_DATA = { key: "untold", name: "no data", width: 1.2, dash: "2 4" };
export const DOWN = { key: "down", name: "down", width: 2.4, dash: "6 4" };

/** Steps of utilisation: upper bound, name and line width. */
export const USES = [
  { to: 0.005, key: "idle", name: "idle", width: 1.2 },
  { to: 0.25, key: "low", name: "to 25 %", width: 1.8 },
  { to: 0.5, key: "middle", name: "to 50 %", width: 2.4 },
  { to: 0.8, key: "high", name: "to 80 %", width: 3.2 },
  { to: Infinity, key: "full", name: "over 80 %", width: 4.2 },
];

const useOf = (flow, links) => (flow.down === links ? DOWN : flow.share === null ? NO_DATA : USES.find((one) => flow.share <= one.to));

/** View of the address: "latitude,longitude,zoom". */
function viewOf(params, base) {
  const [y, x, zoom] = (params.view_at ?? "").split(",").map(Number);
  if (![x, y, zoom].every(Number.isFinite) || Math.abs(y) > 90 || Math.abs(x) > 360 || zoom < 0.2 || zoom > ZOOM_MAX) return { x: base.middleX, y: base.middleY, zoom: 1 };
  return { x, y, zoom };
}

export function NetMap({ topology, links, params, onPick, picked }) {
  const [over, point] = useState(null);
  const place = useRef(null);
  const drawing = useRef(null);
  const [width, measure] = useState(0);
  const sites = useMemo(() => topology.sites.filter((one) => Number.isFinite(one.latitude) && Number.isFinite(one.longitude)), [topology]);
  useLayoutEffect(() => {
    const size = new ResizeObserver(() => place.current && measure(Math.max(WIDTH_MIN, place.current.clientWidth)));
    if (place.current) size.observe(place.current);
    return () => size.disconnect();
  }, []);
  const height = Math.round(Math.min(HEIGHT_MAX, Math.max(HEIGHT_MIN, width * SHAPE)));
  const base = useMemo(() => baseOf(sites, width || 1000, height), [sites, width, height]);
  const [moved, move] = useState(null);
  const view = moved ?? viewOf(params, base);
  const map = projection(base, view, width || 1000, height);
  const now = useRef({});
  now.current = { map, view, base };

  /** Applies a view: at once to the picture, to the address when the movement ends. */
  const timer = useRef(0);
  const take = (next) => {
    const zoom = Math.max(0.5, Math.min(ZOOM_MAX, next.zoom));
    const { base, map } = now.current;
    // The next movement may arrive before the rendering.
    now.current.view = { ...next, zoom };
    now.current.map = projection(base, now.current.view, map.width, map.height);
    move(now.current.view);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const whole = zoom === 1 && next.x === base.middleX && next.y === base.middleY;
      set({ view_at: whole ? undefined : `${next.y.toFixed(3)},${next.x.toFixed(3)},${zoom.toFixed(3)}` });
      move(null);
    }, 250);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  const zoom = (factor, [x, y] = [map.width / 2, map.height / 2]) => {
    const { map: shown, view: was } = now.current;
    const next = Math.max(0.5, Math.min(ZOOM_MAX, was.zoom * factor));
    const real = next / was.zoom;
    // The point under the pointer stays fixed.
    const [longitude, latitude] = [shown.longitude(x), shown.latitude(y)];
    take({ x: longitude + (was.x - longitude) / real, y: latitude + (was.y - latitude) / real, zoom: next });
  };
  useGestures(drawing, now, zoom, take);

  const groups = groupsOf(sites, map);
  const bundles = bundlesOf(links, groups);
  const drawn = bundles.map((bundle) => ({ bundle, curves: curvesOf(bundle), forward: flowOf(bundle, true), back: flowOf(bundle, false) }));
  drawn.sort((a, b) => Math.max(a.forward.share ?? -1, a.back.share ?? -1) - Math.max(b.forward.share ?? -1, b.back.share ?? -1));
  const { names, figures } = texts(groups, drawn, map);
  const hosts = (name) => (topology.nodes ?? []).filter((one) => one.kind === "host" && one.site === name).length;
  const land = `translate(${map.x(0)} ${map.y(0)}) scale(${map.scaleX / 10} ${map.scaleY / 10})`;
  const pick = (bundle) => onPick(bundle.links.map(({ link }) => link.name));
  const close = (group) => {
    if (group.sites.length > 1) zoom(4, [group.x, group.y]);
  };
  return html`<div class="map" ref=${place}>
    <div class="map-tools" role="group" aria-label="map view">
      <button type="button" aria-label="zoom in" title="zoom in" onClick=${() => zoom(ZOOM_STEP)}>+</button>
      <button type="button" aria-label="zoom out" title="zoom out" onClick=${() => zoom(1 / ZOOM_STEP)}>−</button>
      <button type="button" aria-label="whole map" title="the whole map" onClick=${() => take({ x: base.middleX, y: base.middleY, zoom: 1 })}>⤢</button>
    </div>
    <svg ref=${drawing} viewBox=${`0 0 ${map.width} ${map.height}`} width="100%" height=${map.height} role="img" aria-label=${`${plural(sites.length, "site")} and ${plural(links.length, "link")} between them; the list below has the figures`}>
      <g class="land-group">${[-3600, 0, 3600].map((turn) => html`<path key=${turn} class="land" d=${coastline} transform=${`${land} translate(${turn} 0)`} />`)}</g>
      <path class="graticule" d=${graticule(map)} />
      ${drawn.map(({ bundle, curves, forward, back }) => {
        const count = bundle.links.length;
        const uses = [useOf(forward, count), useOf(back, count)];
        const chosen = picked && bundle.links.some(({ link }) => picked.includes(link.name));
        const describe = (flow) => (flow.known > 0 ? `${rate(flow.bps)} of ${rate(flow.capacity_bps)}, fullest link ${percent(flow.share)}` : "no data");
        const [a, b] = [nameOfGroup(bundle.a), nameOfGroup(bundle.b)];
        return html`<g key=${bundle.key} class=${`link${over === bundle.key ? " over" : ""}${chosen ? " chosen" : ""}`} onMouseEnter=${() => point(bundle.key)} onMouseLeave=${() => point(null)} onClick=${() => pick(bundle)}>
          <path class="reach" d=${curves.middle.path} />
          <path class="ground" d=${curves.middle.path} style=${{ strokeWidth: uses[0].width / 2 + uses[1].width / 2 + 6 }} />
          <path class=${`line ${uses[0].key}`} d=${curves.forward.path} style=${{ strokeWidth: uses[0].width }} stroke-dasharray=${uses[0].dash} />
          <path class=${`line ${uses[1].key}`} d=${curves.back.path} style=${{ strokeWidth: uses[1].width }} stroke-dasharray=${uses[1].dash} />
          <title>${`${plural(count, "link")}${forward.down ? `, ${forward.down} down` : ""}\n${a} to ${b}: ${describe(forward)}\n${b} to ${a}: ${describe(back)}`}</title>
        </g>`;
      })}
      ${figures.map((one) => html`<text key=${one.key} class="figure" x=${one.x} y=${one.y} text-anchor="middle">${one.text}</text>`)}
      ${groups.map(
        (group) => html`<g key=${group.key} class=${`site${group.sites.length > 1 ? " many" : ""}`} onClick=${() => close(group)}><circle cx=${group.x} cy=${group.y} r=${group.sites.length > 1 ? 7 : 5} />
          ${group.sites.length > 1 && html`<text class="count" x=${group.x} y=${group.y + 3.5} text-anchor="middle">${group.sites.length}</text>`}
          <title>${group.sites.map((site) => `${site.title || site.name}: ${plural(hosts(site.name), "host")}`).join("\n")}</title></g>`,
      )}
      ${names.map((one) => html`<text key=${one.key} class="name" x=${one.x} y=${one.y} text-anchor=${one.anchor}>${one.text}</text>`)}
    </svg>
    <ul class="key" aria-label="use of the fullest link">${[DOWN, NO_DATA, ...USES].map(
      (one) => html`<li key=${one.key}><svg width="34" height="10" aria-hidden="true"><path class=${`line ${one.key}`} d="M2 5H32" style=${{ strokeWidth: one.width }} stroke-dasharray=${one.dash} /></svg>${one.name}</li>`,
    )}<li class="note">two lines: each direction, on its right-hand side; a number in a circle: sites too close to tell apart</li></ul>
  </div>`;
}

/** Names of groups, those with most traffic first, then rates of bundles. */
function texts(groups, drawn, map) {
  const labels = new Labels(map.width, map.height);
  for (const group of groups) labels.block(group.x, group.y, 8);
  // The buttons.
  labels.taken.push([map.width - 52, 0, map.width, 132]);
  const weights = new Map(groups.map((group) => [group, 0]));
  for (const { bundle, forward, back } of drawn) for (const end of [bundle.a, bundle.b]) weights.set(end, weights.get(end) + forward.bps + back.bps);
  const names = [...groups]
    .sort((a, b) => weights.get(b) - weights.get(a))
    .map((group) => {
      const shown = labels.place(nameOfGroup(group), aroundGroup(group)) ?? labels.place(group.sites[0].name.slice(0, 20), aroundGroup(group));
      return shown && { key: group.key, ...shown };
    })
    .filter(Boolean);
  const seen = ({ curves }) => { const [x, y] = curves.middle.point(0.5); return x > 0 && x < map.width && y > 0 && y < map.height; };
  const rates = drawn.filter(seen).sort((a, b) => b.forward.bps + b.back.bps - a.forward.bps - a.back.bps).slice(0, FIGURES_MAX);
  const figures = rates.flatMap(({ bundle, curves, forward, back }) => {
    if (forward.known + back.known === 0 || Math.hypot(bundle.a.x - bundle.b.x, bundle.a.y - bundle.b.y) < FIGURE_PX) return [];
    const shown = labels.place(rate(forward.bps + back.bps), [0.5, 0.4, 0.6, 0.3, 0.7].map((at) => { const [x, y] = curves.middle.point(at); return { x, y: y + 4, anchor: "middle" }; }));
    return shown ? [{ key: bundle.key, ...shown }] : [];
  });
  return { names, figures };
}

/** Dragging moves the map, the wheel and two fingers zoom it. */
function useGestures(drawing, now, zoom, take) {
  useEffect(() => {
    const svg = drawing.current;
    if (!svg) return undefined;
    const pointers = new Map();
    let dragged = false;
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const wheel = (event) => {
      event.preventDefault();
      zoom(Math.exp(-Math.max(-200, Math.min(200, event.deltaY)) / 300), at(event));
    };
    const down = (event) => {
      if (event.button !== 0) return;
      dragged = false;
      pointers.set(event.pointerId, at(event));
    };
    const moved = (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const [x, y] = at(event);
      const [dx, dy] = [x - before[0], y - before[1]];
      if (!dragged && Math.hypot(dx, dy) < 4) return;
      if (!dragged) svg.setPointerCapture(event.pointerId);
      dragged = true;
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      pointers.set(event.pointerId, [x, y]);
      const { map, view } = now.current;
      if (others.length === 1) {
        const [other] = others;
        const factor = Math.hypot(x - other[0], y - other[1]) / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1]));
        zoom(factor, [(x + other[0]) / 2, (y + other[1]) / 2]);
      } else take({ ...view, x: view.x - dx / map.scaleX, y: Math.max(-89, Math.min(89, view.y + dy / map.scaleY)) });
    };
    const up = (event) => pointers.delete(event.pointerId);
    // The end of a drag is no click.
    const click = (event) => {
      if (!dragged) return;
      dragged = false;
      event.stopPropagation();
    };
    const twice = (event) => zoom(2, at(event));
    svg.addEventListener("wheel", wheel, { passive: false });
    svg.addEventListener("pointerdown", down);
    svg.addEventListener("pointermove", moved);
    svg.addEventListener("pointerup", up);
    svg.addEventListener("pointercancel", up);
    svg.addEventListener("click", click, { capture: true });
    svg.addEventListener("dblclick", twice);
    return () => {
      svg.removeEventListener("wheel", wheel);
      svg.removeEventListener("pointerdown", down);
      svg.removeEventListener("pointermove", moved);
      svg.removeEventListener("pointerup", up);
      svg.removeEventListener("pointercancel", up);
      svg.removeEventListener("click", click, { capture: true });
      svg.removeEventListener("dblclick", twice);
    };
  }, []);
}
