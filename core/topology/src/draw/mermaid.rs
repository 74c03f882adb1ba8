//! Mermaid, which many viewers of Markdown draw.

use std::fmt::Write as _;

use super::describe;
use crate::{Kind, Topology};

/// A flowchart: sites are frames, hosts boxes, switches round.
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
        Kind::Host => format!("n{id}[\"{}\"]", node.name),
        Kind::Switch => format!("n{id}((\"{}\"))", node.name),
    }
}

/// In a quoted text of Mermaid a quote and a line end are entities.
fn quoted(text: &str) -> String {
    text.replace('#', "#35;").replace('"', "#quot;").replace(['\n', '\r'], " ")
}
