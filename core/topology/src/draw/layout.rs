//! Where sites and nodes stand in a picture: as on the map where positions are known, apart enough to
//! be read. The same network always looks the same.

use std::f64::consts::TAU;

use crate::{Kind, Topology};

/// A place in the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
}

/// A site, or a node that has none, as a disc.
#[derive(Debug, Clone)]
pub(super) struct Cluster {
    pub(super) centre: Point,
    pub(super) radius: f64,
    pub(super) site: Option<usize>,
}

/// A picture's places.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) width: f64,
    pub(super) height: f64,
    pub(super) clusters: Vec<Cluster>,
    /// Of each node.
    pub(super) nodes: Vec<Point>,
}

/// Between the rims of two discs: room for the words at a link.
const GAP: f64 = 150.0;
const MARGIN: f64 = 90.0;
const NODE_ROOM: f64 = 72.0;
/// Between two rows.
const ROW_ROOM: f64 = 130.0;
const ROUNDS: usize = 400;

impl Layout {
    pub(super) fn of(topology: &Topology) -> Self {
        let mut members: Vec<(Option<usize>, Vec<usize>)> =
            (0..topology.sites.len()).map(|site| (Some(site), Vec::new())).collect();
        for (id, node) in topology.nodes.iter().enumerate() {
            match node.site {
                Some(site) => members[site.0].1.push(id),
                None => members.push((None, vec![id])),
            }
        }
        members.retain(|(_, nodes)| !nodes.is_empty());
        let rows: Vec<_> = members.iter().map(|(_, nodes)| rows(topology, nodes)).collect();
        let radii: Vec<f64> = rows.iter().map(|rows| radius(rows)).collect();
        let mut centres = start(topology, &members, &radii);
        push_apart(&mut centres, &radii);
        let (low, high) = bounds(&centres, &radii);
        for centre in &mut centres {
            *centre = Point { x: centre.x - low.x + MARGIN, y: centre.y - low.y + MARGIN };
        }
        let mut nodes = vec![Point { x: 0.0, y: 0.0 }; topology.nodes.len()];
        let mut clusters = Vec::with_capacity(members.len());
        let places = rows.iter().zip(&centres).zip(&radii);
        for ((site, _), ((rows, centre), radius)) in members.iter().zip(places) {
            place(rows, *centre, *radius, &mut nodes);
            clusters.push(Cluster { centre: *centre, radius: *radius, site: *site });
        }
        let (width, height) = (high.x - low.x + 2.0 * MARGIN, high.y - low.y + 2.0 * MARGIN);
        Self { width, height, clusters, nodes }
    }
}

/// The nodes of a site in rows from the top: hosts below the switches that they are at, and these below
/// the switches that join them. A site with one switch has it in the middle of a ring: one row.
fn rows(topology: &Topology, ids: &[usize]) -> Vec<Vec<usize>> {
    let is_host = |id: &usize| topology.nodes[*id].kind == Kind::Host;
    let mut ordered = ids.to_vec();
    ordered.sort_by_key(|id| is_host(id));
    if ids.iter().filter(|id| !is_host(id)).count() < 3 {
        return vec![ordered];
    }
    let (hosts, mut rest): (Vec<usize>, Vec<usize>) = ids.iter().partition(|id| is_host(id));
    let mut rows = vec![hosts];
    while !rest.is_empty() {
        let below = rows.last().map_or(&[][..], Vec::as_slice);
        let joins = |id: &usize| {
            let mut ends = topology.links.iter().map(|link| link.ends.map(|end| end.node.0));
            ends.any(|[a, b]| (a == *id && below.contains(&b)) || (b == *id && below.contains(&a)))
        };
        let (mut row, mut left): (Vec<usize>, Vec<usize>) = rest.iter().partition(|id| joins(id));
        if row.is_empty() {
            std::mem::swap(&mut row, &mut left);
        }
        rows.push(row);
        rest = left;
    }
    rows.retain(|row| !row.is_empty());
    rows.reverse();
    rows
}

/// Of a disc that holds them.
fn radius(rows: &[Vec<usize>]) -> f64 {
    let nodes = rows.iter().map(Vec::len).max().unwrap_or(0);
    match rows.len() {
        0 | 1 if nodes <= 1 => 30.0,
        0 | 1 => (nodes as f64 * NODE_ROOM / TAU).max(46.0) + 30.0,
        count => {
            let (wide, high) = (nodes as f64 * NODE_ROOM, (count - 1) as f64 * ROW_ROOM);
            (wide / 2.0).hypot(high / 2.0)
        }
    }
}

/// By longitude and latitude (equirectangular, true at the middle); what has no position on a ring.
fn start(
    topology: &Topology,
    members: &[(Option<usize>, Vec<usize>)],
    radii: &[f64],
) -> Vec<Point> {
    let position = |site: &Option<usize>| site.and_then(|site| topology.sites[site].position);
    let known: Vec<_> = members.iter().filter_map(|(site, _)| position(site)).collect();
    let middle = known.iter().map(|at| at.latitude).sum::<f64>() / known.len().max(1) as f64;
    let east = middle.to_radians().cos();
    let (west, right) = range(known.iter().map(|at| at.longitude * east));
    let (south, north) = range(known.iter().map(|at| at.latitude));
    let wide = 900.0_f64.max(radii.iter().sum());
    let scale = wide / (right - west).max(north - south).max(1e-6);
    let ring = wide / 2.0 + 200.0;
    let point = |(number, (site, _)): (usize, &(Option<usize>, Vec<usize>))| match position(site) {
        Some(at) => {
            Point { x: (at.longitude * east - west) * scale, y: (north - at.latitude) * scale }
        }
        None => {
            let angle = TAU * number as f64 / members.len() as f64;
            Point { x: wide / 2.0 + ring * angle.cos(), y: wide / 4.0 + ring * angle.sin() }
        }
    };
    members.iter().enumerate().map(point).collect()
}

fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
        (low.min(value), high.max(value))
    })
}

/// Moves discs that are too near away from each other, a little at a time.
fn push_apart(centres: &mut [Point], radii: &[f64]) {
    for _ in 0..ROUNDS {
        let mut moved = false;
        for a in 0..centres.len() {
            for b in a + 1..centres.len() {
                let (mut dx, dy) = (centres[b].x - centres[a].x, centres[b].y - centres[a].y);
                if dx == 0.0 && dy == 0.0 {
                    dx = 1.0;
                }
                let apart = dx.hypot(dy);
                let lacking = radii[a] + radii[b] + GAP - apart;
                if lacking > 0.5 {
                    let (x, y) = (dx / apart * lacking / 2.0, dy / apart * lacking / 2.0);
                    centres[a] = Point { x: centres[a].x - x, y: centres[a].y - y };
                    centres[b] = Point { x: centres[b].x + x, y: centres[b].y + y };
                    moved = true;
                }
            }
        }
        if !moved {
            return;
        }
    }
}

fn bounds(centres: &[Point], radii: &[f64]) -> (Point, Point) {
    let discs = || centres.iter().zip(radii);
    let (left, _) = range(discs().map(|(centre, radius)| centre.x - radius));
    let (_, right) = range(discs().map(|(centre, radius)| centre.x + radius));
    let (top, _) = range(discs().map(|(centre, radius)| centre.y - radius));
    let (_, bottom) = range(discs().map(|(centre, radius)| centre.y + radius));
    if centres.is_empty() {
        return (Point { x: 0.0, y: 0.0 }, Point { x: 200.0, y: 100.0 });
    }
    (Point { x: left, y: top }, Point { x: right, y: bottom })
}

/// In rows, or one row as a ring with the first of it, a switch, in the middle.
fn place(rows: &[Vec<usize>], centre: Point, radius: f64, nodes: &mut [Point]) {
    if let [row] = rows {
        let around = match row.as_slice() {
            [first, rest @ ..] => {
                nodes[*first] = centre;
                rest
            }
            [] => &[],
        };
        for (number, id) in around.iter().enumerate() {
            let angle = TAU * (number as f64 / around.len() as f64 - 0.25);
            let ring = radius - 30.0;
            nodes[*id] =
                Point { x: centre.x + ring * angle.cos(), y: centre.y + ring * angle.sin() };
        }
        return;
    }
    for (number, row) in rows.iter().enumerate() {
        let y = centre.y + (number as f64 - (rows.len() - 1) as f64 / 2.0) * ROW_ROOM;
        let widest = rows.iter().map(Vec::len).max().unwrap_or(1) as f64 * NODE_ROOM;
        for (place, id) in row.iter().enumerate() {
            let x = (place as f64 + 0.5) / row.len() as f64 - 0.5;
            nodes[*id] = Point { x: centre.x + x * widest, y };
        }
    }
}
