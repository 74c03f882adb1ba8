//! The topology file of containerlab (<https://containerlab.dev/manual/topo-def-file/>). It has no words
//! for rate, delay and loss of a link: they stand behind it as comments.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::describe;
use crate::{Kind, NodeId, Topology};

/// The YAML, with hosts as `linux` nodes and switches as `bridge`s.
#[must_use]
pub fn containerlab(topology: &Topology) -> String {
    let mut text = format!("name: {}\ntopology:\n  nodes:\n", topology.name);
    for node in &topology.nodes {
        let kind = match node.kind {
            Kind::Host => "kind: linux\n      image: debian:12",
            Kind::Switch => "kind: bridge",
        };
        let _ = writeln!(text, "    {}:\n      {kind}", node.name);
    }
    text += "  links:\n";
    let mut ports: HashMap<NodeId, usize> = HashMap::new();
    for link in &topology.links {
        let ends = link.ends.map(|end| {
            let node = &topology.nodes[end.node.0];
            let port = ports.entry(end.node).or_default();
            *port += 1;
            match end.interface {
                Some(interface) => format!("{}:{}", node.name, node.interfaces[interface].name),
                None => format!("{}:eth{port}", node.name),
            }
        });
        let _ = writeln!(text, "    # {}: {}", link.name, describe(link));
        let _ = writeln!(text, "    - endpoints: [\"{}\", \"{}\"]", ends[0], ends[1]);
    }
    text
}
