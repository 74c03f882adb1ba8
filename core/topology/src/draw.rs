//! Pictures of a network: SVG for pages, Mermaid for documents, and the YAML of containerlab for its
//! users.

mod containerlab;
mod layout;
mod mermaid;
mod svg;

pub use containerlab::containerlab;
pub use mermaid::mermaid;
pub use svg::svg;

use penstock_units::display_latency;

use crate::{DelaySource, Link};

/// A link in a few words: rate, and delay, loss and VLAN where it has them.
pub fn describe(link: &Link) -> String {
    let mut text = link.rate.to_string();
    if !link.delay.is_zero() {
        let estimated = if link.delay_source == DelaySource::GreatCircle { "≥ " } else { "" };
        text += &format!(", {estimated}{}", display_latency(link.delay));
    }
    if link.loss > 0.0 {
        text += &format!(", {} % lost", link.loss * 100.0);
    }
    if let Some(vlan) = link.vlan {
        text += &format!(", VLAN {vlan}");
    }
    text
}

#[cfg(test)]
mod tests;
