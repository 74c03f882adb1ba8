//! SVG, for pages and printing: sites as on the map, links as wide as they are fast.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::describe;
use super::layout::{Layout, Point};
use crate::{Kind, Link, Topology};

const STYLE: &str = "text{font:13px sans-serif;fill:#1d2733}.site{fill:#eef3f8;stroke:#c3d0dd}\
.sitename{font-weight:bold;fill:#48607a}.link{fill:none;stroke:#2a6fb0;stroke-linecap:round}\
.at{font-size:11px;fill:#3d4c5c;paint-order:stroke;stroke:#fff;stroke-width:4px}\
.host{fill:#fff;stroke:#2a6fb0;stroke-width:1.5}.switch{fill:#2a6fb0}.port{fill:#fff}";

/// A whole SVG document.
#[must_use]
pub fn svg(topology: &Topology) -> String {
    let layout = Layout::of(topology);
    let (width, height) = (layout.width.ceil(), layout.height.ceil());
    let title = topology.title.as_deref().unwrap_or(&topology.name);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        escaped(title)
    );
    for cluster in &layout.clusters {
        let Some(site) = cluster.site else { continue };
        let (centre, radius) = (cluster.centre, cluster.radius);
        let name = topology.sites[site].title.as_deref().unwrap_or(&topology.sites[site].name);
        let _ = writeln!(
            text,
            "<circle class=\"site\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius:.1}\"/><text class=\"sitename\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            centre.x,
            centre.y,
            centre.x,
            centre.y - radius - 8.0,
            escaped(name)
        );
    }
    let mut beside: HashMap<(usize, usize), usize> = HashMap::new();
    for link in &topology.links {
        let [a, b] = link.ends.map(|end| end.node.0);
        let number = beside.entry((a.min(b), a.max(b))).or_default();
        *number += 1;
        let within =
            topology.nodes[a].site.is_some() && topology.nodes[a].site == topology.nodes[b].site;
        let ends = [layout.nodes[a.min(b)], layout.nodes[a.max(b)]];
        draw_link(&mut text, link, ends, *number, !within);
    }
    for (node, at) in topology.nodes.iter().zip(&layout.nodes) {
        draw_node(&mut text, node.kind, &node.name, *at);
    }
    text + "</svg>\n"
}

/// Links between the same two nodes bend away from each other.
fn draw_link(text: &mut String, link: &Link, [a, b]: [Point; 2], number: usize, words_too: bool) {
    let length = (b.x - a.x).hypot(b.y - a.y).max(1.0);
    let side = if number.is_multiple_of(2) { -1.0 } else { 1.0 };
    let bend = side * (number / 2) as f64 * 44.0;
    let middle = Point { x: f64::midpoint(a.x, b.x), y: f64::midpoint(a.y, b.y) };
    let control = Point {
        x: middle.x - (b.y - a.y) / length * bend * 2.0,
        y: middle.y + (b.x - a.x) / length * bend * 2.0,
    };
    // 1 at a gigabit, one more for each factor of ten, doubled.
    let width = ((link.rate.0.max(1) as f64).log10() - 8.5).clamp(1.0, 5.0) * 1.6;
    let words = escaped(&describe(link));
    let _ = writeln!(
        text,
        "<path class=\"link\" stroke-width=\"{width:.1}\" d=\"M{:.1} {:.1}Q{:.1} {:.1} {:.1} {:.1}\"><title>{}: {words}</title></path>",
        a.x,
        a.y,
        control.x,
        control.y,
        b.x,
        b.y,
        escaped(&link.name)
    );
    // Within a site there is no room for words: the title has them.
    if words_too {
        let at =
            Point { x: f64::midpoint(middle.x, control.x), y: f64::midpoint(middle.y, control.y) };
        let _ = writeln!(
            text,
            "<text class=\"at\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{words}</text>",
            at.x,
            at.y - 8.0
        );
    }
}

fn draw_node(text: &mut String, kind: Kind, name: &str, at: Point) {
    let Point { x, y } = at;
    let _ = match kind {
        Kind::Host => writeln!(
            text,
            "<rect class=\"host\" x=\"{:.1}\" y=\"{:.1}\" width=\"20\" height=\"16\" rx=\"3\"/>",
            x - 10.0,
            y - 8.0
        ),
        Kind::Switch => {
            writeln!(text, "<circle class=\"switch\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\"/>")
        }
    };
    let _ = writeln!(
        text,
        "<text class=\"at\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
        y + 21.0,
        escaped(name)
    );
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            // XML 1.0 has no place for them.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}
