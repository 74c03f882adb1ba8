//! Positions of sites and nodes in a drawing: as on the map where known, moved apart until readable.
//! Deterministic.

use std::collections::HashSet;
use std::f64::consts::TAU;

use super::curves::{Bundle, LinkCurve, bundles, curves};
use super::tiers::{neighbours, rows};
use crate::Topology;

/// A point of the drawing in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// An axis-parallel rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Point {
    pub(super) fn to(self, other: Self) -> f64 {
        (other.x - self.x).hypot(other.y - self.y)
    }
}

impl Area {
    pub(super) fn holds(self, at: Point) -> bool {
        let inside = |at: f64, from: f64, long: f64| (from..=from + long).contains(&at);
        inside(at.x, self.left, self.width) && inside(at.y, self.top, self.height)
    }

    /// True if the line crosses the rectangle without ending in it.
    pub(super) fn is_crossed(self, line: &[Point]) -> bool {
        let [first, inner @ .., last] = line else { return false };
        !self.holds(*first) && !self.holds(*last) && inner.iter().any(|at| self.holds(*at))
    }

    pub(super) fn around(middle: Point, width: f64, height: f64) -> Self {
        Self { left: middle.x - width / 2.0, top: middle.y - height / 2.0, width, height }
    }

    /// Area that two rectangles share, in square pixels.
    pub(super) fn shared(self, other: Self) -> f64 {
        let common = |a: f64, a_long: f64, b: f64, b_long: f64| {
            ((a + a_long).min(b + b_long) - a.max(b)).max(0.0)
        };
        common(self.left, self.width, other.left, other.width)
            * common(self.top, self.height, other.top, other.height)
    }
}

/// Positions of everything in a drawing.
pub(super) struct Layout<'a> {
    pub(super) size: Area,
    /// Frame of each site, by index.
    pub(super) sites: Vec<(usize, Area)>,
    /// Centre of each node.
    pub(super) nodes: Vec<Point>,
    pub(super) bundles: Vec<Bundle<'a>>,
    /// Curve of each bundle.
    pub(super) curves: Vec<LinkCurve>,
}

const MARGIN_PIXELS: f64 = 24.0;
const PADDING_PIXELS: f64 = 14.0;
/// Height of the title above the rows of a site.
const TITLE_HEIGHT: f64 = 26.0;
const COLUMN_MIN: f64 = 64.0;
/// Column width where links within a row have labels.
const COLUMN_WITH_LABELS: f64 = 230.0;
/// Height of a node with its name.
const ROW_HEIGHT: f64 = 44.0;
const ROW_GAP: f64 = 52.0;
/// Gap between sites, and between sites with labelled links.
const SITE_GAP: f64 = 26.0;
const SITE_GAP_WITH_LABELS: f64 = 150.0;
/// Bound on pairs that are moved apart, over all rounds.
const MOVES_MAX: usize = 40_000_000;

/// Approximate width of a text at 11 pixels.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * 6.3 + 8.0
}

/// The nodes of a site, or all nodes without a site.
struct Cluster {
    site: Option<usize>,
    rows: Vec<Vec<usize>>,
    column: f64,
    /// Height above the rows.
    head: f64,
    width: f64,
    height: f64,
}

impl<'a> Layout<'a> {
    pub(super) fn of(topology: &'a Topology) -> Self {
        let bundles = bundles(topology);
        let neighbours = neighbours(topology);
        let clusters = clusters(topology, &neighbours, &bundles);
        let mut middles = initial_positions(topology, &clusters);
        push_apart(topology, &bundles, &clusters, &mut middles);
        let mut nodes = vec![Point { x: 0.0, y: 0.0 }; topology.nodes.len()];
        let mut sites = Vec::with_capacity(clusters.len());
        let mut taken = Vec::new();
        for (cluster, middle) in clusters.iter().zip(&middles) {
            let area = Area::around(*middle, cluster.width, cluster.height);
            cluster.place(area, &neighbours, &mut nodes);
            if let Some(site) = cluster.site {
                sites.push((site, area));
                taken.push(Area { height: TITLE_HEIGHT, ..area });
            }
        }
        for (node, at) in topology.nodes.iter().zip(&nodes) {
            let name = Point { x: at.x, y: at.y + 6.0 };
            taken.push(Area::around(name, text_width(&node.name), 40.0));
        }
        let frames: Vec<Area> = sites.iter().map(|(_, area)| *area).collect();
        let curves = curves(&bundles, &nodes, &frames, &taken);
        taken.extend(frames);
        for curve in &curves {
            taken.push(Area::around(curve.at(0.5), 8.0, 8.0));
            if let Some((at, label)) = &curve.label {
                taken.push(Area::around(*at, text_width(label), 16.0));
            }
        }
        Self { size: around_all(&taken), sites, nodes, bundles, curves }
    }
}

fn clusters(
    topology: &Topology,
    neighbours: &[Vec<(usize, u64)>],
    bundles: &[Bundle<'_>],
) -> Vec<Cluster> {
    let worded: HashSet<[usize; 2]> =
        bundles.iter().filter(|bundle| bundle.has_label).map(|bundle| bundle.nodes).collect();
    let mut members = vec![Vec::new(); topology.sites.len() + 1];
    for (id, node) in topology.nodes.iter().enumerate() {
        members[node.site.map_or(topology.sites.len(), |site| site.0)].push(id);
    }
    let mut all = Vec::new();
    for (site, nodes) in members.into_iter().enumerate() {
        if nodes.is_empty() {
            continue;
        }
        let site = (site < topology.sites.len()).then_some(site);
        let rows = rows(topology, neighbours, &nodes);
        let name = nodes.iter().map(|id| text_width(&topology.nodes[*id].name));
        let mut column = name.fold(COLUMN_MIN, f64::max);
        let beside =
            |pair: &[usize]| worded.contains(&[pair[0].min(pair[1]), pair[0].max(pair[1])]);
        let mut head = PADDING_PIXELS + if site.is_some() { TITLE_HEIGHT } else { 0.0 };
        if rows.iter().any(|row| row.windows(2).any(beside)) {
            column = column.max(COLUMN_WITH_LABELS);
            // Room for curves that bend upwards.
            head += 30.0;
        }
        let title = site.map_or(0.0, |site| text_width(topology.sites[site].shown()) * 1.22);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(1) as f64;
        let width = (columns * column).max(title) + 2.0 * PADDING_PIXELS;
        let height = head + rows.len() as f64 * (ROW_HEIGHT + ROW_GAP) - ROW_GAP + PADDING_PIXELS;
        all.push(Cluster { site, rows, column, head, width, height });
    }
    all
}

impl Cluster {
    /// Spreads the top row; centres each lower node under its neighbours above.
    fn place(&self, area: Area, neighbours: &[Vec<(usize, u64)>], nodes: &mut [Point]) {
        let middle = area.left + area.width / 2.0;
        let inner = area.width - 2.0 * PADDING_PIXELS;
        let mut placed: HashSet<usize> = HashSet::new();
        for (number, row) in self.rows.iter().enumerate() {
            let y = area.top + self.head + 12.0 + number as f64 * (ROW_HEIGHT + ROW_GAP);
            let apart = match number {
                0 => (inner / row.len() as f64).min(3.0 * self.column),
                _ => self.column,
            };
            let wanted = |(place, id): (usize, &usize)| {
                let above: Vec<f64> = neighbours[*id]
                    .iter()
                    .filter(|(other, _)| placed.contains(other))
                    .map(|(other, _)| nodes[*other].x)
                    .collect();
                match above.len() {
                    0 => middle + (place as f64 - (row.len() - 1) as f64 / 2.0) * apart,
                    count => above.iter().sum::<f64>() / count as f64,
                }
            };
            let wanted: Vec<f64> = row.iter().enumerate().map(wanted).collect();
            let mut places: Vec<f64> = Vec::with_capacity(row.len());
            for wanted in &wanted {
                let least = places.last().map_or(*wanted, |last| last + apart);
                places.push(wanted.max(least));
            }
            // Undo the mean shift to the right, but stay in the frame.
            let moved: f64 = places.iter().zip(&wanted).map(|(place, wanted)| place - wanted).sum();
            let half = self.column / 2.0;
            let (first, last) = (places[0], places[places.len() - 1]);
            let back = (moved / row.len() as f64)
                .max(last + half - (middle + inner / 2.0))
                .min(first - half - (middle - inner / 2.0));
            for (id, place) in row.iter().zip(places) {
                nodes[*id] = Point { x: place - back, y };
            }
            placed.extend(row);
        }
    }
}

/// Initial positions by longitude and latitude (equirectangular, true at the mean latitude); sites without a
/// position go on a ring.
fn initial_positions(topology: &Topology, clusters: &[Cluster]) -> Vec<Point> {
    let position = |cluster: &Cluster| cluster.site.and_then(|site| topology.sites[site].position);
    let known: Vec<_> = clusters.iter().filter_map(position).collect();
    let middle = known.iter().map(|at| at.latitude).sum::<f64>() / known.len().max(1) as f64;
    let east = middle.to_radians().cos();
    let (west, right) = range(known.iter().map(|at| at.longitude * east));
    let (south, north) = range(known.iter().map(|at| at.latitude));
    let areas: f64 = clusters.iter().map(|cluster| cluster.width * cluster.height).sum();
    let wide = (areas.sqrt() * 3.0).max(640.0);
    let scale = wide / (right - west).max(north - south).max(1e-6);
    let unknown = clusters.len() - known.len();
    let ring = if clusters.len() == 1 { 0.0 } else { wide / 2.0 + 100.0 };
    let mut number = 0;
    let point = |cluster: &Cluster| match position(cluster) {
        Some(at) => {
            Point { x: (at.longitude * east - west) * scale, y: (north - at.latitude) * scale }
        }
        None => {
            let angle = TAU * (f64::from(number) / unknown as f64 + 0.25);
            number += 1;
            Point { x: wide / 2.0 + ring * angle.cos(), y: wide / 4.0 + ring * angle.sin() }
        }
    };
    clusters.iter().map(point).collect()
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Moves overlapping clusters apart in small steps along the axis that needs less, never past each other, so
/// that the map keeps its order.
fn push_apart(
    topology: &Topology,
    bundles: &[Bundle<'_>],
    clusters: &[Cluster],
    middles: &mut [Point],
) {
    let begun = middles.to_vec();
    let mut of_site = vec![0; topology.sites.len() + 1];
    for (number, cluster) in clusters.iter().enumerate() {
        of_site[cluster.site.unwrap_or(topology.sites.len())] = number;
    }
    let cluster = |node: usize| {
        of_site[topology.nodes[node].site.map_or(topology.sites.len(), |site| site.0)]
    };
    let worded: HashSet<[usize; 2]> = bundles
        .iter()
        .map(|bundle| bundle.nodes.map(cluster))
        .map(|[a, b]| [a.min(b), a.max(b)])
        .collect();
    let pairs = clusters.len() * clusters.len().saturating_sub(1) / 2;
    for _ in 0..(MOVES_MAX / pairs.max(1)).clamp(1, 1000) {
        let mut moved = false;
        for a in 0..clusters.len() {
            for b in a + 1..clusters.len() {
                let gap = if worded.contains(&[a, b]) { SITE_GAP_WITH_LABELS } else { SITE_GAP };
                let (dx, dy) = (middles[b].x - middles[a].x, middles[b].y - middles[a].y);
                let half = |one: f64, other: f64| f64::midpoint(one, other);
                let lacks_x = half(clusters[a].width, clusters[b].width) + gap - dx.abs();
                // Vertical links need less room for their labels.
                let lacks_y =
                    half(clusters[a].height, clusters[b].height) + gap.min(80.0) - dy.abs();
                if lacks_x <= 0.5 || lacks_y <= 0.5 {
                    continue;
                }
                moved = true;
                // Along the axis on which they are further apart initially.
                let wide = half(clusters[a].width, clusters[b].width);
                let high = half(clusters[a].height, clusters[b].height);
                let far = Point { x: begun[b].x - begun[a].x, y: begun[b].y - begun[a].y };
                if far.x.abs() / wide > far.y.abs() / high {
                    let way = (begun[b].x - begun[a].x + 1e-9).signum() * lacks_x / 2.0;
                    middles[a].x -= way;
                    middles[b].x += way;
                } else {
                    let way = (begun[b].y - begun[a].y + 1e-9).signum() * lacks_y / 2.0;
                    middles[a].y -= way;
                    middles[b].y += way;
                }
            }
        }
        if !moved {
            return;
        }
    }
}

fn around_all(areas: &[Area]) -> Area {
    if areas.is_empty() {
        return Area { left: 0.0, top: 0.0, width: 200.0, height: 100.0 };
    }
    let (left, _) = range(areas.iter().map(|area| area.left));
    let (top, _) = range(areas.iter().map(|area| area.top));
    let (_, right) = range(areas.iter().map(|area| area.left + area.width));
    let (_, bottom) = range(areas.iter().map(|area| area.top + area.height));
    Area {
        left: (left - MARGIN_PIXELS).floor(),
        top: (top - MARGIN_PIXELS).floor(),
        width: (right - left + 2.0 * MARGIN_PIXELS).ceil(),
        height: (bottom - top + 2.0 * MARGIN_PIXELS).ceil(),
    }
}
