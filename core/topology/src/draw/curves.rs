//! Bundles links into curves and places their labels. Links that differ in name, rate and VLAN at most are one
//! curve; others between the same nodes bend away from each other; labels go where they cover least.

use std::collections::HashMap;
use std::time::Duration;

use super::bundle_label;
use super::layout::{Area, Point, text_width};
use crate::{Link, Topology};

/// With more labels than this they would overlap; then only titles show them.
const LABELS_MAX: usize = 200;
/// Pixels between curves of the same two nodes.
const BEND_PIXELS: f64 = 34.0;
/// A link within a site has a label from this delay on, as between sites.
const LABEL_DELAY_MIN: Duration = Duration::from_micros(100);

/// Links that are drawn as one curve.
pub(super) struct Bundle<'a> {
    pub(super) links: Vec<&'a Link>,
    pub(super) nodes: [usize; 2],
    /// Position among the bundles of the same nodes: 0, 1, -1, 2, ...
    side: f64,
    pub(super) has_label: bool,
}

/// A quadratic Bézier curve.
pub(super) struct LinkCurve {
    pub(super) from: Point,
    pub(super) control: Point,
    pub(super) to: Point,
    pub(super) width: f64,
    /// Centre and text of the label.
    pub(super) label: Option<(Point, String)>,
}

pub(super) fn bundles(topology: &Topology) -> Vec<Bundle<'_>> {
    let mut all: Vec<Bundle<'_>> = Vec::new();
    let mut known = HashMap::new();
    let mut beside: HashMap<[usize; 2], usize> = HashMap::new();
    for link in &topology.links {
        let [a, b] = link.ends.map(|end| end.node.0);
        let nodes = [a.min(b), a.max(b)];
        let numbers = [link.loss.to_bits(), link.loss_burst.to_bits()];
        let key = (nodes, link.delay, link.jitter, numbers);
        if let Some(bundle) = known.get(&key).and_then(|at: &usize| all.get_mut(*at)) {
            bundle.links.push(link);
            continue;
        }
        known.insert(key, all.len());
        let number = beside.entry(nodes).or_default();
        *number += 1;
        let side = (*number / 2) as f64 * if number.is_multiple_of(2) { 1.0 } else { -1.0 };
        let [from, to] = nodes.map(|node| topology.nodes[node].site);
        let has_label = from != to || link.delay >= LABEL_DELAY_MIN || link.loss > 0.0;
        all.push(Bundle { links: vec![link], nodes, side, has_label });
    }
    all
}

/// Draws a curve for each bundle around frames and nodes that are not its ends; no label covers `taken`.
pub(super) fn curves(
    bundles: &[Bundle<'_>],
    nodes: &[Point],
    frames: &[Area],
    taken: &[Area],
) -> Vec<LinkCurve> {
    let mut taken = taken.to_vec();
    let marks: Vec<Area> = nodes.iter().map(|at| Area::around(*at, 24.0, 24.0)).collect();
    let few = bundles.iter().filter(|bundle| bundle.has_label).count() <= LABELS_MAX;
    let curve = |bundle: &Bundle<'_>| {
        let mut curve = LinkCurve::new(bundle, nodes, bundle.side);
        if few && bundle.has_label {
            let around = [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0];
            let bent = around.map(|more| LinkCurve::new(bundle, nodes, bundle.side + more));
            let is_free = |curve: &LinkCurve| {
                let line: Vec<Point> =
                    (0..=80).map(|part| curve.at(f64::from(part) / 80.0)).collect();
                !frames.iter().chain(&marks).any(|area| area.is_crossed(&line))
            };
            curve = bent.into_iter().find(is_free).unwrap_or(curve);
            let label = bundle_label(&bundle.links);
            let at = curve.label_position(text_width(&label), &taken, frames);
            taken.push(Area::around(at, text_width(&label), 16.0));
            curve.label = Some((at, label));
        }
        curve
    };
    bundles.iter().map(curve).collect()
}

impl LinkCurve {
    fn new(bundle: &Bundle<'_>, nodes: &[Point], side: f64) -> Self {
        let [from, to] = bundle.nodes.map(|node| nodes[node]);
        let length = from.to(to).max(1.0);
        let bend = side * BEND_PIXELS * 2.0;
        let control = Point {
            x: f64::midpoint(from.x, to.x) - (to.y - from.y) / length * bend,
            y: f64::midpoint(from.y, to.y) + (to.x - from.x) / length * bend,
        };
        let rate: u64 = bundle.links.iter().map(|link| link.rate.0).fold(0, u64::saturating_add);
        // 1 pixel at 1 Gb/s, one more for each factor of ten.
        let width = ((rate.max(1) as f64).log10() - 8.0).clamp(1.0, 5.0);
        Self { from, control, to, width, label: None }
    }

    /// Point of the curve at parameter `part`, 0 to 1.
    pub(super) fn at(&self, part: f64) -> Point {
        let mix = |a: f64, b: f64, c: f64| {
            let rest = 1.0 - part;
            rest * rest * a + 2.0 * rest * part * b + part * part * c
        };
        Point {
            x: mix(self.from.x, self.control.x, self.to.x),
            y: mix(self.from.y, self.control.y, self.to.y),
        }
    }

    /// Position where a label of this width covers least, the middle first; a frame is better than another
    /// label.
    fn label_position(&self, width: f64, taken: &[Area], frames: &[Area]) -> Point {
        let parts = [0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8];
        let covered = |at: &Point| -> f64 {
            let area = Area::around(*at, width, 16.0);
            let covered =
                |others: &[Area]| -> f64 { others.iter().map(|other| area.shared(*other)).sum() };
            covered(taken) + covered(frames) / 10.0
        };
        let mut best = (f64::INFINITY, self.at(0.5));
        for at in parts.map(|part| self.at(part)) {
            let covers = covered(&at);
            if covers < best.0 {
                best = (covers, at);
            }
        }
        best.1
    }
}
