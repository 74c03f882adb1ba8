//! SVG, for pages and printing: sites as on the map, links as wide as they are fast, light or dark as the
//! reader has it.

use std::collections::HashMap;
use std::fmt::Write as _;

use penstock_units::BitRate;

use super::describe;
use super::layout::{Area, Layout, Point, text_width};
use super::wires::{Bundle, Wire};
use crate::{Kind, Link, Topology};

const STYLE: &str = "text{font:11px sans-serif;fill:#24303c;text-anchor:middle}\
.back{fill:#fff}.site{fill:#eef3f8;stroke:#c3d0dd}.sitename{font-size:13px;font-weight:bold;fill:#3f566e}\
.link{fill:none;stroke:#2a6fb0;stroke-linecap:round}\
.behind{fill:#fff}\
.name,.sitename{paint-order:stroke;stroke:#eef3f8;stroke-width:4px;stroke-linejoin:round}\
.host{fill:#fff;stroke:#2a6fb0;stroke-width:1.5}.switch{fill:#2a6fb0}\
@media(prefers-color-scheme:dark){text{fill:#d7e1eb}.back{fill:#10161d}.site{fill:#1a2530;stroke:#3a4c5f}\
.sitename{fill:#a9c2da}.link{stroke:#5b9fdc}.behind{fill:#10161d}.name,.sitename{stroke:#1a2530}\
.host{fill:#10161d;stroke:#5b9fdc}.switch{fill:#5b9fdc}}";

/// Use of a link, from none to more than there is; the last can be told without its colour.
const STYLE_OF_USE: &str = ".idle{stroke:#b8c4d0}.low{stroke:#4d9221}.half{stroke:#d0a010}.high{stroke:#e08214}\
.over{stroke:#d0213d;stroke-dasharray:9 5}";

/// A whole SVG document.
#[must_use]
pub fn svg(topology: &Topology) -> String {
    svg_loaded(topology, &[])
}

/// The same with what links carry, in the order of the topology: colours of use, and words.
#[must_use]
pub fn svg_loaded(topology: &Topology, loads: &[BitRate]) -> String {
    let layout = Layout::of(topology);
    let rates = topology.links.iter().zip(loads);
    let loads: Loads<'_> = rates.map(|(link, load)| (link.name.as_str(), *load)).collect();
    let of_use = if loads.is_empty() { "" } else { STYLE_OF_USE };
    let size = layout.size;
    let title = topology.title.as_deref().unwrap_or(&topology.name);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{} {} {} {}\" width=\"{}\" height=\"{}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}{of_use}</style>\n",
        size.left,
        size.top,
        size.width,
        size.height,
        size.width,
        size.height,
        escaped(title)
    );
    let _ = writeln!(
        text,
        "<rect class=\"back\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
        size.left, size.top, size.width, size.height
    );
    for (_, area) in &layout.sites {
        let _ = writeln!(
            text,
            "<rect class=\"site\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"10\"/>",
            area.left, area.top, area.width, area.height
        );
    }
    for (bundle, wire) in layout.bundles.iter().zip(&layout.wires) {
        draw_line(&mut text, bundle, wire, &loads);
    }
    for (node, at) in topology.nodes.iter().zip(&layout.nodes) {
        draw_node(&mut text, node.kind, &node.name, *at);
    }
    for (site, area) in &layout.sites {
        let _ = writeln!(
            text,
            "<text class=\"sitename\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            area.left + area.width / 2.0,
            area.top + 20.0,
            escaped(topology.sites[*site].shown())
        );
    }
    for (bundle, wire) in layout.bundles.iter().zip(&layout.wires) {
        let Some((at, words)) = &wire.words else { continue };
        // In the place of delay and loss, for which there was room.
        let words = &match used(bundle, &loads) {
            Some(used) => {
                format!("{}, {}", words.split(", ").next().unwrap_or(words), percent(used))
            }
            None => words.clone(),
        };
        let behind = Area::around(*at, text_width(words), 16.0);
        let _ = writeln!(
            text,
            "<rect class=\"behind\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"4\"/><text class=\"words\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            behind.left,
            behind.top,
            behind.width,
            at.x,
            at.y + 4.0,
            escaped(words)
        );
    }
    text + "</svg>\n"
}

/// What each link carries, by its name.
type Loads<'a> = HashMap<&'a str, BitRate>;

/// The largest use of its links, as a share of their rate.
fn used(bundle: &Bundle<'_>, loads: &Loads<'_>) -> Option<f64> {
    let used = bundle.links.iter().filter_map(|link| share(link, *loads.get(link.name.as_str())?));
    used.max_by(f64::total_cmp)
}

fn share(link: &Link, load: BitRate) -> Option<f64> {
    (link.rate.0 > 0).then(|| load.0 as f64 / link.rate.0 as f64)
}

fn percent(share: f64) -> String {
    format!("{:.0} % used", share * 100.0)
}

/// From light to heavy use; the last is more than there is.
fn level(share: f64) -> &'static str {
    match share {
        share if share > 1.0 => " over",
        share if share > 0.8 => " high",
        share if share > 0.5 => " half",
        share if share > 0.0 => " low",
        _ => " idle",
    }
}

fn draw_line(text: &mut String, bundle: &Bundle<'_>, wire: &Wire, loads: &Loads<'_>) {
    let Wire { from, control, to, width, .. } = wire;
    let level = used(bundle, loads).map_or("", level);
    let _ = write!(
        text,
        "<path class=\"link{level}\" stroke-width=\"{width:.1}\" d=\"M{:.1} {:.1}Q{:.1} {:.1} {:.1} {:.1}\"><title>",
        from.x, from.y, control.x, control.y, to.x, to.y,
    );
    for (number, link) in bundle.links.iter().enumerate() {
        let gap = if number == 0 { "" } else { "\n" };
        let _ = write!(text, "{gap}{}: {}", escaped(&link.name), escaped(&describe(link)));
        if let Some(load) = loads.get(link.name.as_str()) {
            let share = share(link, *load).unwrap_or_default();
            let _ = write!(text, ": carries {load}, {}", percent(share));
        }
    }
    text.push_str("</title></path>\n");
}

fn draw_node(text: &mut String, kind: Kind, name: &str, Point { x, y }: Point) {
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
    let (y, name) = (y + 22.0, escaped(name));
    let _ = writeln!(text, "<text class=\"name\" x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>");
}

/// A text as it may stand in XML.
#[must_use]
pub fn escaped(text: &str) -> String {
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
