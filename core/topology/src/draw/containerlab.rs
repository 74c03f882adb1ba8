//! The topology file of containerlab (<https://containerlab.dev/manual/topo-def-file/>). Rate, delay and loss
//! of links are comments: the format has no keys for them. Names are quoted, since YAML reads `on`, `null` and
//! `0x10` as other types.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::describe;
use crate::{Link, LinkEnd, Node, NodeId, NodeKind, Topology};

/// IFNAMSIZ without the terminating NUL.
const DEVICE_CHARACTERS_MAX: usize = 15;
/// Interface that containerlab attaches to its management network.
const MANAGEMENT_INTERFACE: &str = "eth0";

/// Formats the YAML. Hosts are `linux` nodes and switches `bridge`s, which must exist before deployment.
#[must_use]
pub fn containerlab(topology: &Topology) -> String {
    let mut names = DeviceNames::new(topology);
    let mut text = format!("name: {}\ntopology:\n  nodes:", quoted(&topology.name));
    text += if topology.nodes.is_empty() { " {}\n" } else { "\n" };
    for (node, name) in topology.nodes.iter().zip(&names.nodes) {
        let comment = if *name == node.name { String::new() } else { format!(" # {}", node.name) };
        let _ = writeln!(text, "    {}:{comment}", quoted(name));
        text += match node.kind {
            NodeKind::Host => "      kind: linux\n      image: \"debian:12\"\n",
            NodeKind::Switch => "      kind: bridge\n",
        };
        if node.interfaces.iter().any(|interface| interface.name == MANAGEMENT_INTERFACE) {
            text += "      network-mode: none\n";
        }
    }
    text += "  links:";
    text += if topology.links.is_empty() { " []\n" } else { "\n" };
    for link in &topology.links {
        let [a, b] = link.ends.map(|end| quoted(&names.end(link, end)));
        let _ = writeln!(text, "    # {}: {}", link.name, describe(link));
        let _ = writeln!(text, "    - endpoints: [{a}, {b}]");
    }
    text
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Allocates device names that are valid and unique.
struct DeviceNames<'a> {
    topology: &'a Topology,
    nodes: Vec<String>,
    /// Bridges and their ports share one namespace, where each needs a unique name.
    devices: HashSet<String>,
    ports: usize,
    interfaces: HashMap<NodeId, HashSet<String>>,
    /// Ends of several links, which get a device per VLAN.
    shared: HashSet<LinkEnd>,
}

impl<'a> DeviceNames<'a> {
    fn new(topology: &'a Topology) -> Self {
        let mut devices: HashSet<String> = ["lo", "all", "default"].map(str::to_owned).into();
        devices.extend(topology.hosts().map(|(_, host)| host.name.clone()));
        let name = |node: &Node| match node.kind {
            NodeKind::Host => node.name.clone(),
            NodeKind::Switch => free(&mut devices, &node.name, ""),
        };
        let nodes = topology.nodes.iter().map(name).collect();
        let of_host = |(id, host): (NodeId, &Node)| {
            (id, host.interfaces.iter().map(|interface| interface.name.clone()).collect())
        };
        let interfaces = topology.hosts().map(of_host).collect();
        let mut seen = HashSet::new();
        let ends = topology.links.iter().flat_map(|link| link.ends);
        let shared = ends.filter(|end| end.interface.is_some() && !seen.insert(*end)).collect();
        Self { topology, nodes, devices, ports: 0, interfaces, shared }
    }

    /// Formats an end as `node:device`.
    fn end(&mut self, link: &Link, end: LinkEnd) -> String {
        let node = &self.topology.nodes[end.node.0];
        let of_host = self.interfaces.entry(end.node).or_default();
        let device = match (node.kind, end.interface) {
            (NodeKind::Switch, _) => {
                self.ports += 1;
                free(&mut self.devices, &format!("port{}", self.ports), "")
            }
            (NodeKind::Host, None) => {
                let number = of_host.len() + 1;
                free(of_host, &format!("eth{number}"), "")
            }
            (NodeKind::Host, Some(interface)) => {
                let name = &node.interfaces[interface].name;
                match link.vlan.filter(|_| self.shared.contains(&end)) {
                    Some(vlan) => free(of_host, name, &format!(".{vlan}")),
                    None => name.clone(),
                }
            }
        };
        format!("{}:{device}", self.nodes[end.node.0])
    }
}

/// Returns `name` with the suffix `end`, cut to the length that Linux allows, and numbered where taken.
fn free(taken: &mut HashSet<String>, name: &str, end: &str) -> String {
    let mut number = 1;
    loop {
        let end = if number == 1 { end.to_owned() } else { format!("{end}-{number}") };
        let room = DEVICE_CHARACTERS_MAX.saturating_sub(end.len());
        let found: String = name.chars().take(room).chain(end.chars()).collect();
        if taken.insert(found.clone()) {
            return found;
        }
        number += 1;
    }
}
