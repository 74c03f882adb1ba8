//! Links as lines: those that differ in nothing but name, rate and VLAN are one line, others between the same
//! two nodes bend away from each other, and words stand where they cover least.

use std::collections::HashMap;
use std::time::Duration;

use super::layout::{Area, Point, text_width};
use super::path_words;
use crate::{Link, Topology};

/// More words than these would cover each other whatever one does; then only titles have them.
const WORDS_MAX: usize = 200;
/// Between lines of the same two nodes.
const BEND: f64 = 34.0;
/// A link within a site has words when it is as long as one between sites.
const FAR: Duration = Duration::from_micros(100);

/// One or more links as one line.
pub(super) struct Bundle<'a> {
    pub(super) links: Vec<&'a Link>,
    pub(super) nodes: [usize; 2],
    /// Which of those with the same nodes: 0, 1, -1, 2, ...
    side: f64,
    pub(super) has_words: bool,
}

/// A line as a quadratic curve.
pub(super) struct Wire {
    pub(super) from: Point,
    pub(super) control: Point,
    pub(super) to: Point,
    pub(super) width: f64,
    /// Middle of the words.
    pub(super) words: Option<(Point, String)>,
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
        let has_words = from != to || link.delay >= FAR || link.loss > 0.0;
        all.push(Bundle { links: vec![link], nodes, side, has_words });
    }
    all
}

/// Lines between nodes that stand somewhere already, around frames and nodes that they have nothing to do
/// with;
/// `taken` is where no words should stand.
pub(super) fn wires(
    bundles: &[Bundle<'_>],
    nodes: &[Point],
    frames: &[Area],
    taken: &[Area],
) -> Vec<Wire> {
    let mut taken = taken.to_vec();
    let marks: Vec<Area> = nodes.iter().map(|at| Area::around(*at, 24.0, 24.0)).collect();
    let few = bundles.iter().filter(|bundle| bundle.has_words).count() <= WORDS_MAX;
    let wire = |bundle: &Bundle<'_>| {
        let mut wire = Wire::new(bundle, nodes, bundle.side);
        if few && bundle.has_words {
            let around = [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 4.0, -4.0];
            let bent = around.map(|more| Wire::new(bundle, nodes, bundle.side + more));
            let is_free = |wire: &Wire| {
                let line: Vec<Point> =
                    (0..=80).map(|part| wire.at(f64::from(part) / 80.0)).collect();
                !frames.iter().chain(&marks).any(|area| area.is_crossed(&line))
            };
            wire = bent.into_iter().find(is_free).unwrap_or(wire);
            let words = path_words(&bundle.links);
            let at = wire.place(text_width(&words), &taken, frames);
            taken.push(Area::around(at, text_width(&words), 16.0));
            wire.words = Some((at, words));
        }
        wire
    };
    bundles.iter().map(wire).collect()
}

impl Wire {
    fn new(bundle: &Bundle<'_>, nodes: &[Point], side: f64) -> Self {
        let [from, to] = bundle.nodes.map(|node| nodes[node]);
        let length = from.to(to).max(1.0);
        let bend = side * BEND * 2.0;
        let control = Point {
            x: f64::midpoint(from.x, to.x) - (to.y - from.y) / length * bend,
            y: f64::midpoint(from.y, to.y) + (to.x - from.x) / length * bend,
        };
        let rate: u64 = bundle.links.iter().map(|link| link.rate.0).fold(0, u64::saturating_add);
        // 1 at a gigabit, one more for each factor of ten.
        let width = ((rate.max(1) as f64).log10() - 8.0).clamp(1.0, 5.0);
        Self { from, control, to, width, words: None }
    }

    /// Of the quadratic Bézier curve, 0 to 1.
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

    /// Where words of this width cover least, the middle first; better in a frame than on other words.
    fn place(&self, width: f64, taken: &[Area], frames: &[Area]) -> Point {
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
