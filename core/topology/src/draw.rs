//! Drawings of a topology: SVG, Mermaid, and a containerlab file.

mod containerlab;
mod curves;
mod layout;
mod mermaid;
mod svg;
mod tiers;

pub use containerlab::containerlab;
pub use mermaid::mermaid;
pub use svg::{escaped, svg, svg_loaded};

use std::collections::{BTreeMap, BTreeSet};

use penstock_units::display_latency;

use crate::{DelaySource, Link};

/// Describes a link: rate, then delay, jitter, loss and VLAN where set.
pub fn describe(link: &Link) -> String {
    bundle_label(&[link])
}

/// Label of a bundle: links that differ in name, rate and VLAN at most.
fn bundle_label(links: &[&Link]) -> String {
    let [link, ..] = links else { return String::new() };
    let mut rates: BTreeMap<_, usize> = BTreeMap::new();
    for link in links {
        *rates.entry(link.rate).or_default() += 1;
    }
    let rates = rates.iter().rev().map(|(rate, count)| match count {
        1 => rate.to_string(),
        _ => format!("{count} × {rate}"),
    });
    let mut text = rates.collect::<Vec<_>>().join(" + ");
    if !link.delay.is_zero() {
        let estimated = if link.delay_source == DelaySource::GreatCircle { "≥ " } else { "" };
        text += &format!(", {estimated}{}", display_latency(link.delay));
    }
    if !link.jitter.is_zero() {
        text += &format!(" ± {}", display_latency(link.jitter));
    }
    if link.loss > 0.0 {
        text += &format!(", {} lost", percent(link.loss));
        if link.loss_burst > 1.0 {
            text += &format!(" in bursts of {}", link.loss_burst);
        }
    }
    let vlans: BTreeSet<u16> = links.iter().filter_map(|link| link.vlan).collect();
    if !vlans.is_empty() {
        let vlans: Vec<_> = vlans.iter().map(ToString::to_string).collect();
        text += &format!(", VLAN {}", vlans.join(", "));
    }
    text
}

/// A share in percent with six significant digits, which hides rounding errors of floating point.
fn percent(share: f64) -> String {
    let digits = format!("{:.5e}", share * 100.0).parse().unwrap_or(share * 100.0);
    format!("{digits} %")
}

#[cfg(test)]
mod tests;
