//! The topology file of containerlab (<https://containerlab.dev/manual/topo-def-file/>). It has no words
//! for rate, delay and loss of a link: they stand behind it as comments. Names are quoted: YAML takes `on`,
//! `null` and `0x10` for something else.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use super::describe;
use crate::{End, Kind, Link, Node, NodeId, Topology};

/// IFNAMSIZ, less the terminator.
const DEVICE_CHARACTERS_MAX: usize = 15;
/// The one that containerlab itself attaches, to its management network.
const MANAGEMENT: &str = "eth0";

/// The YAML, with hosts as `linux` nodes and switches as `bridge`s, which containerlab wants to be there before.
#[must_use]
pub fn containerlab(topology: &Topology) -> String {
    let mut names = Names::new(topology);
    let mut text = format!("name: {}\ntopology:\n  nodes:", quoted(&topology.name));
    text += if topology.nodes.is_empty() { " {}\n" } else { "\n" };
    for (node, name) in topology.nodes.iter().zip(&names.nodes) {
        let comment = if *name == node.name { String::new() } else { format!(" # {}", node.name) };
        let _ = writeln!(text, "    {}:{comment}", quoted(name));
        text += match node.kind {
            Kind::Host => "      kind: linux\n      image: \"debian:12\"\n",
            Kind::Switch => "      kind: bridge\n",
        };
        if node.interfaces.iter().any(|interface| interface.name == MANAGEMENT) {
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

/// What nodes and ends of links are called.
struct Names<'a> {
    topology: &'a Topology,
    nodes: Vec<String>,
    /// Bridges and their ports are devices of one machine, where each needs a name of its own.
    devices: HashSet<String>,
    ports: usize,
    interfaces: HashMap<NodeId, HashSet<String>>,
    /// Interfaces of several links, which have a device for each VLAN.
    shared: HashSet<End>,
}

impl<'a> Names<'a> {
    fn new(topology: &'a Topology) -> Self {
        let mut devices: HashSet<String> = ["lo", "all", "default"].map(str::to_owned).into();
        devices.extend(topology.hosts().map(|(_, host)| host.name.clone()));
        let name = |node: &Node| match node.kind {
            Kind::Host => node.name.clone(),
            Kind::Switch => free(&mut devices, &node.name, ""),
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

    /// As `node:device`.
    fn end(&mut self, link: &Link, end: End) -> String {
        let node = &self.topology.nodes[end.node.0];
        let of_host = self.interfaces.entry(end.node).or_default();
        let device = match (node.kind, end.interface) {
            (Kind::Switch, _) => {
                self.ports += 1;
                free(&mut self.devices, &format!("port{}", self.ports), "")
            }
            (Kind::Host, None) => {
                let number = of_host.len() + 1;
                free(of_host, &format!("eth{number}"), "")
            }
            (Kind::Host, Some(interface)) => {
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

/// The name with this at its end, as short as Linux takes it, and a number where it is taken.
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
