//! Mermaid flowcharts, which many Markdown viewers render.

use std::fmt::Write as _;

use super::describe;
use crate::{NodeKind, Topology};

/// A flowchart: subgraphs are sites, rectangles hosts, circles switches.
#[must_use]
pub fn mermaid(topology: &Topology) -> String {
    let mut text = "graph LR\n".to_owned();
    for (number, site) in topology.sites.iter().enumerate() {
        let _ = writeln!(text, "    subgraph site{number} [\"{}\"]", quoted(site.shown()));
        for id in 0..topology.nodes.len() {
            if topology.nodes[id].site.is_some_and(|site| site.0 == number) {
                let _ = writeln!(text, "        {}", node(topology, id));
            }
        }
        text += "    end\n";
    }
    for id in 0..topology.nodes.len() {
        if topology.nodes[id].site.is_none() {
            let _ = writeln!(text, "    {}", node(topology, id));
        }
    }
    for link in &topology.links {
        let [a, b] = link.ends.map(|end| end.node.0);
        let _ = writeln!(text, "    n{a} ---|\"{}\"| n{b}", quoted(&describe(link)));
    }
    text
}

fn node(topology: &Topology, id: usize) -> String {
    let node = &topology.nodes[id];
    match node.kind {
        NodeKind::Host => format!("n{id}[\"{}\"]", node.name),
        NodeKind::Switch => format!("n{id}((\"{}\"))", node.name),
    }
}

/// Escapes what Mermaid or the HTML in its labels would interpret, as Mermaid entities.
fn quoted(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '#' => safe.push_str("#35;"),
            '"' => safe.push_str("#quot;"),
            '&' => safe.push_str("#amp;"),
            '<' => safe.push_str("#lt;"),
            '>' => safe.push_str("#gt;"),
            // A label in backticks is Markdown.
            '`' => safe.push_str("#96;"),
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}
