//! SVG for web pages and print: sites as on the map, line width by rate, light or dark by the reader's
//! preference.

use std::collections::HashMap;
use std::fmt::Write as _;

use penstock_units::BitRate;

use super::curves::{Bundle, LinkCurve};
use super::describe;
use super::layout::{Area, Layout, Point, text_width};
use crate::{Link, NodeKind, Topology};

const STYLE: &str = "text{font:11px sans-serif;fill:#24303c;text-anchor:middle}\
.back{fill:#fff}.site{fill:#eef3f8;stroke:#c3d0dd}.sitename{font-size:13px;font-weight:bold;fill:#3f566e}\
.link{fill:none;stroke:#2a6fb0;stroke-linecap:round}\
.behind{fill:#fff}\
.name,.sitename{paint-order:stroke;stroke:#eef3f8;stroke-width:4px;stroke-linejoin:round}\
.host{fill:#fff;stroke:#2a6fb0;stroke-width:1.5}.switch{fill:#2a6fb0}\
@media(prefers-color-scheme:dark){text{fill:#d7e1eb}.back{fill:#10161d}.site{fill:#1a2530;stroke:#3a4c5f}\
.sitename{fill:#a9c2da}.link{stroke:#5b9fdc}.behind{fill:#10161d}.name,.sitename{stroke:#1a2530}\
.host{fill:#10161d;stroke:#5b9fdc}.switch{fill:#5b9fdc}}";

/// Link utilisation, from idle to overloaded; overload is recognisable without colour.
const UTILISATION_STYLE: &str = ".idle{stroke:#b8c4d0}.low{stroke:#4d9221}.half{stroke:#d0a010}.high{stroke:#e08214}\
.over{stroke:#d0213d;stroke-dasharray:9 5}";

/// Draws the topology as a complete SVG document.
#[must_use]
pub fn svg(topology: &Topology) -> String {
    svg_loaded(topology, &[])
}

/// As [`svg`], with the load of each link, in the order of the topology, as colour and label.
#[must_use]
pub fn svg_loaded(topology: &Topology, loads: &[BitRate]) -> String {
    let layout = Layout::of(topology);
    let rates = topology.links.iter().zip(loads);
    let loads: LoadByName<'_> = rates.map(|(link, load)| (link.name.as_str(), *load)).collect();
    let utilisation_style = if loads.is_empty() { "" } else { UTILISATION_STYLE };
    let size = layout.size;
    let title = topology.title.as_deref().unwrap_or(&topology.name);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{} {} {} {}\" width=\"{}\" height=\"{}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}{utilisation_style}</style>\n",
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
    for (bundle, curve) in layout.bundles.iter().zip(&layout.curves) {
        draw_line(&mut text, bundle, curve, &loads);
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
    for (bundle, curve) in layout.bundles.iter().zip(&layout.curves) {
        let Some((at, label)) = &curve.label else { continue };
        // Replaces delay and loss, so that the width suffices.
        let label = &match used(bundle, &loads) {
            Some(used) => {
                format!("{}, {}", label.split(", ").next().unwrap_or(label), percent(used))
            }
            None => label.clone(),
        };
        let behind = Area::around(*at, text_width(label), 16.0);
        let _ = writeln!(
            text,
            "<rect class=\"behind\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"16\" rx=\"4\"/><text class=\"words\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            behind.left,
            behind.top,
            behind.width,
            at.x,
            at.y + 4.0,
            escaped(label)
        );
    }
    text + "</svg>\n"
}

/// Load of each link by its name.
type LoadByName<'a> = HashMap<&'a str, BitRate>;

/// Highest utilisation of the links of a bundle, as a share of the rate.
fn used(bundle: &Bundle<'_>, loads: &LoadByName<'_>) -> Option<f64> {
    let used = bundle.links.iter().filter_map(|link| share(link, *loads.get(link.name.as_str())?));
    used.max_by(f64::total_cmp)
}

fn share(link: &Link, load: BitRate) -> Option<f64> {
    (link.rate.0 > 0).then(|| load.0 as f64 / link.rate.0 as f64)
}

fn percent(share: f64) -> String {
    format!("{:.0} % used", share * 100.0)
}

/// CSS class of a utilisation, from idle to overloaded.
fn level(share: f64) -> &'static str {
    match share {
        share if share > 1.0 => " over",
        share if share > 0.8 => " high",
        share if share > 0.5 => " half",
        share if share > 0.0 => " low",
        _ => " idle",
    }
}

fn draw_line(text: &mut String, bundle: &Bundle<'_>, curve: &LinkCurve, loads: &LoadByName<'_>) {
    let LinkCurve { from, control, to, width, .. } = curve;
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

fn draw_node(text: &mut String, kind: NodeKind, name: &str, Point { x, y }: Point) {
    let _ = match kind {
        NodeKind::Host => writeln!(
            text,
            "<rect class=\"host\" x=\"{:.1}\" y=\"{:.1}\" width=\"20\" height=\"16\" rx=\"3\"/>",
            x - 10.0,
            y - 8.0
        ),
        NodeKind::Switch => {
            writeln!(text, "<circle class=\"switch\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\"/>")
        }
    };
    let (y, name) = (y + 22.0, escaped(name));
    let _ = writeln!(text, "<text class=\"name\" x=\"{x:.1}\" y=\"{y:.1}\">{name}</text>");
}

/// Escapes a text for XML.
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            // Not allowed in XML 1.0.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}
