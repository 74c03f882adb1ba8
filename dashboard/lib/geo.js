// Layout of the map: projection, groups of sites that are too close to be distinguished, links between the
// same two groups as one bundle, and positions of texts without overlap.

import { clean } from "./text.js";

/** Sites closer than this many pixels are one group. */
const GROUP_PX = 15;
/** Height and width of a letter of the map's texts, in pixels. */
const LINE_PX = 15;
const LETTER_PX = 6.9;
/** Deepest zoom. */
export const ZOOM_MAX = 200;

/** Smallest region with all sites: its middle, and pixels per degree of latitude at zoom 1. */
export function baseOf(sites, width, height) {
  const bounds = (values) => [Math.min(...values), Math.max(...values)];
  const [west, east] = bounds(sites.map((one) => one.longitude));
  const [south, north] = bounds(sites.map((one) => one.latitude));
  const grow = Math.max(2, (east - west) * 0.06, (north - south) * 0.1);
  const [middleX, middleY] = [(west + east) / 2, (south + north) / 2];
  const squeeze = Math.cos((middleY * Math.PI) / 180);
  return { middleX, middleY, squeeze, scale: Math.min(width / ((east - west + 2 * grow) * squeeze), height / (north - south + 2 * grow)) };
}

/** Equirectangular projection to pixels, true to scale at the middle latitude. `view` is {x, y, zoom}. */
export function projection(base, view, width, height) {
  const scale = base.scale * view.zoom;
  const scaleX = scale * base.squeeze;
  return {
    width,
    height,
    scaleX,
    scaleY: scale,
    x: (longitude) => width / 2 + (longitude - view.x) * scaleX,
    y: (latitude) => height / 2 - (latitude - view.y) * scale,
    longitude: (x) => view.x + (x - width / 2) / scaleX,
    latitude: (y) => view.y - (y - height / 2) / scale,
    degrees: height / scale,
  };
}

/** Groups of sites that overlap on the screen: {key, x, y, sites}; each site belongs to one. */
export function groupsOf(sites, map) {
  const groups = [];
  for (const site of sites) {
    const [x, y] = [map.x(site.longitude), map.y(site.latitude)];
    const near = groups.find((one) => Math.hypot(one.x - x, one.y - y) < GROUP_PX);
    if (near) {
      near.sites.push(site);
      near.x += (x - near.x) / near.sites.length;
      near.y += (y - near.y) / near.sites.length;
    } else groups.push({ x, y, sites: [site] });
  }
  for (const group of groups) group.key = group.sites.map((site) => site.name).join(" ");
  return groups;
}

/** Name of a group. */
export function nameOfGroup(group) {
  const [first] = group.sites;
  const name = clean(first.title || first.name, 30);
  return group.sites.length === 1 ? name : `${clean(first.name, 20)} +${group.sites.length - 1}`;
}

/** Links between the same two groups as one: {key, a, b, links}; a and b are groups. Links within a group are left out. */
export function bundlesOf(links, groups) {
  const home = new Map(groups.flatMap((group) => group.sites.map((site) => [site.name, group])));
  const bundles = new Map();
  for (const link of links) {
    const [from, to] = [home.get(link.a_site), home.get(link.b_site)];
    if (!from || !to || from === to) continue;
    const turned = from.key > to.key;
    const [a, b] = turned ? [to, from] : [from, to];
    const key = `${a.key}\u0000${b.key}`;
    const bundle = bundles.get(key) ?? { key, a, b, links: [] };
    bundle.links.push({ link, turned });
    bundles.set(key, bundle);
  }
  return [...bundles.values()];
}

/** Sum of a direction of a bundle: {bps, capacity_bps, share (the fullest link), known, down}. */
export function flowOf(bundle, forward) {
  const sum = { bps: 0, capacity_bps: 0, share: null, known: 0, down: 0 };
  for (const { link, turned } of bundle.links) {
    const flow = forward !== turned ? link.a_to_b : link.b_to_a;
    sum.capacity_bps += link.capacity_bps;
    if (link.up === false) sum.down += 1;
    if (!Number.isFinite(flow?.bps)) continue;
    sum.known += 1;
    sum.bps += flow.bps;
    if (Number.isFinite(flow.share)) sum.share = Math.max(sum.share ?? 0, flow.share);
  }
  return sum;
}

/** A bundle as two curves side by side, one for each direction: paths, and a point of each. */
export function curvesOf(bundle) {
  const { a, b } = bundle;
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const length = Math.hypot(dx, dy) || 1;
  const [nx, ny] = [-dy / length, dx / length];
  // Bent to the north, like great circles of the northern hemisphere.
  const bend = Math.min(46, length * 0.1) * (ny > 0 ? -1 : 1);
  const curve = (side) => {
    const gap = 2.6 * side;
    const [mx, my] = [(a.x + b.x) / 2 + nx * (bend + gap), (a.y + b.y) / 2 + ny * (bend + gap)];
    const from = [a.x + nx * gap, a.y + ny * gap];
    const to = [b.x + nx * gap, b.y + ny * gap];
    const on = (at, axis) => (1 - at) ** 2 * from[axis] + 2 * at * (1 - at) * [mx, my][axis] + at ** 2 * to[axis];
    const point = (at) => [on(at, 0), on(at, 1)];
    const number = (value) => value.toFixed(1);
    return { point, path: `M${number(from[0])} ${number(from[1])}Q${number(mx)} ${number(my)} ${number(to[0])} ${number(to[1])}` };
  };
  const middle = curve(0);
  return { forward: curve(1), back: curve(-1), middle };
}

/** Rectangles of placed texts. A text without room is omitted: the list shows it, and zooming in makes room. */
export class Labels {
  constructor(width, height) {
    this.taken = [];
    [this.width, this.height] = [width, height];
  }

  block(x, y, radius) {
    this.taken.push([x - radius, y - radius, x + radius, y + radius]);
  }

  free(box) {
    return box[0] > 2 && box[2] < this.width - 2 && box[1] > 2 && box[3] < this.height - 2 && !this.taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1]);
  }

  /** The first of `tries` ({x, y, anchor}) that is free, or null. */
  place(text, tries) {
    const width = text.length * LETTER_PX + 4;
    for (const one of tries) {
      const left = one.x - (one.anchor === "end" ? width : one.anchor === "middle" ? width / 2 : 0);
      const box = [left, one.y - LINE_PX + 3, left + width, one.y + 4];
      if (!this.free(box)) continue;
      this.taken.push(box);
      return { ...one, text };
    }
    return null;
  }
}

/** Candidate positions of a group's name. */
export const aroundGroup = ({ x, y }) => [
  { x: x + 11, y: y + 4, anchor: "start" },
  { x: x - 11, y: y + 4, anchor: "end" },
  { x, y: y - 12, anchor: "middle" },
  { x, y: y + 22, anchor: "middle" },
  { x: x + 9, y: y - 9, anchor: "start" },
  { x: x - 9, y: y - 9, anchor: "end" },
  { x: x + 9, y: y + 18, anchor: "start" },
  { x: x - 9, y: y + 18, anchor: "end" },
];

/** Graticule as an SVG path. */
export function graticule(map) {
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30].find((one) => map.degrees / one <= 7) ?? 30;
  const lines = [];
  const [west, east] = [map.longitude(0), map.longitude(map.width)];
  const [south, north] = [map.latitude(map.height), map.latitude(0)];
  for (let at = Math.ceil(west / step) * step; at <= east; at += step) lines.push(`M${map.x(at).toFixed(1)} 0V${map.height}`);
  for (let at = Math.ceil(south / step) * step; at <= north; at += step) lines.push(`M0 ${map.y(at).toFixed(1)}H${map.width}`);
  return lines.join("");
}
