//! The TOML file: what may stand in it, and what is checked before it is a [`Topology`].
//!
//! ```toml
//! name = "two-sites"
//!
//! [[site]]
//! name = "uvic"
//! latitude = 48.463
//! longitude = -123.312
//!
//! [[host]]
//! name = "dtn1"
//! site = "uvic"
//! interface = [{ name = "eth0", rate = "400G", mtu = 9000, numa_node = 0 }]
//!
//! [[switch]]
//! name = "core"
//! buffer = "64MiB"
//!
//! [[link]]
//! ends = ["dtn1:eth0", "core"]
//! rate = "400G"
//! delay = "5us"        # or length = "120km", or neither: the great circle between the sites
//! jitter = "20us"
//! loss = "0.001%"
//! loss_burst = 3
//! queue = "32MiB"
//! mark = "4MiB"
//! vlan = 2026
//! risk_groups = ["duct-7"]
//! operator = "CANARIE"
//! ```

use std::collections::HashMap;

use toml::Spanned;

use crate::fault::{Collector, Faults, shown};
use crate::words::{Words, parse};
use crate::{End, Interface, Kind, LinkId, Node, NodeId, Position, Site, SiteId, Topology};

mod link;
mod names;
mod quantities;

use quantities::{BUFFER, INTERFACE_RATE, LATITUDE, LONGITUDE, MTU, NUMA_NODE};

/// The largest file that is read.
pub const FILE_BYTES_MAX: usize = 16 << 20;

const MTU_USUAL: u32 = 1500;

impl Topology {
    /// Reads a file.
    ///
    /// # Errors
    /// All faults of it; where it is no TOML, those of its syntax alone.
    pub fn read(text: &str) -> Result<Self, Faults> {
        let (words, faults) = parse(text, FILE_BYTES_MAX, "a topology")?;
        let mut reader = Reader::new(faults);
        let topology = reader.topology(words);
        let faults = reader.faults.into_faults();
        if faults.0.is_empty() { Ok(topology) } else { Err(faults) }
    }
}

/// Checks while it translates; what is at fault is noted, and left out or stood for.
struct Reader<'a> {
    faults: Collector<'a>,
    sites: HashMap<String, SiteId>,
    nodes: HashMap<String, NodeId>,
    interfaces: HashMap<(NodeId, String), usize>,
    /// Names of hosts files, in lower case: the host, and whose each is in words.
    entered: HashMap<String, (Option<NodeId>, String)>,
    /// Links of hosts without interfaces.
    unnamed: HashMap<NodeId, usize>,
    links: HashMap<String, LinkId>,
    /// Interfaces and the VLANs on them.
    taken: HashMap<(End, Option<u16>), LinkId>,
    /// The last number behind the name of links with the same ends.
    parallel: HashMap<String, usize>,
}

impl<'a> Reader<'a> {
    fn new(faults: Collector<'a>) -> Self {
        Self {
            faults,
            sites: HashMap::new(),
            nodes: HashMap::new(),
            interfaces: HashMap::new(),
            entered: names::NAMES_OF_EVERY_MACHINE
                .map(|name| (name.to_owned(), (None, "a name of every machine".to_owned())))
                .into(),
            unnamed: HashMap::new(),
            links: HashMap::new(),
            taken: HashMap::new(),
            parallel: HashMap::new(),
        }
    }

    fn topology(&mut self, mut words: Words<'_>) -> Topology {
        let faults = &mut self.faults;
        let name = words.needed::<String>("name", faults);
        let title = words.text("title", faults);
        let source = words.text("source", faults);
        let sites = words.tables("site", "a site", faults);
        let hosts = words.tables("host", "a host", faults);
        let switches = words.tables("switch", "a switch", faults);
        let links = words.tables("link", "a link", faults);
        words.finish(faults);
        let name = name.map(|name| self.checked_name("a topology", name)).unwrap_or_default();
        let mut topology = Topology {
            name,
            title,
            source,
            sites: Vec::new(),
            nodes: Vec::new(),
            links: Vec::new(),
        };
        for site in sites {
            self.site(site, &mut topology.sites);
        }
        for host in hosts {
            self.node(Kind::Host, host, &mut topology.nodes);
        }
        for switch in switches {
            self.node(Kind::Switch, switch, &mut topology.nodes);
        }
        for link in links {
            self.link(link, &mut topology);
        }
        topology
    }

    fn site(&mut self, mut words: Words<'_>, sites: &mut Vec<Site>) {
        let faults = &mut self.faults;
        let name = words.needed::<String>("name", faults);
        let title = words.text("title", faults);
        let latitude = words.formed("latitude", &LATITUDE, faults);
        let longitude = words.formed("longitude", &LONGITUDE, faults);
        words.finish(faults);
        let position = match (&latitude, &longitude) {
            (Some(latitude), Some(longitude)) => {
                Some(Position { latitude: *latitude.get_ref(), longitude: *longitude.get_ref() })
            }
            (None, None) => None,
            (Some(only), None) | (None, Some(only)) => {
                self.faults.note(only.span(), "latitude and longitude stand together");
                None
            }
        };
        let Some(name) = name else { return };
        let (at, name) = (name.span(), self.checked_name("a site", name));
        if self.sites.contains_key(&name) {
            self.faults.note(at, format!("there is another site '{}'", shown(&name)));
        } else {
            self.sites.insert(name.clone(), SiteId(sites.len()));
        }
        sites.push(Site { name, title, position });
    }

    fn node(&mut self, kind: Kind, mut words: Words<'_>, nodes: &mut Vec<Node>) {
        let id = NodeId(nodes.len());
        let name = words.needed::<String>("name", &mut self.faults);
        let name = name.map(|name| self.node_name(kind, id, name)).unwrap_or_default();
        let site = words.optional::<String>("site", &mut self.faults);
        let mut buffer = None;
        let mut interfaces = Vec::new();
        match kind {
            Kind::Host => {
                for one in words.tables("interface", "an interface", &mut self.faults) {
                    self.interface(one, (id, &name), &mut interfaces);
                }
            }
            Kind::Switch => buffer = words.formed("buffer", &BUFFER, &mut self.faults),
        }
        words.finish(&mut self.faults);
        let site = site.and_then(|site| self.find_site(&site));
        nodes.push(Node { name, kind, site, buffer: buffer.map(Spanned::into_inner), interfaces });
    }

    fn find_site(&mut self, name: &Spanned<String>) -> Option<SiteId> {
        let found = self.sites.get(name.get_ref()).copied();
        if found.is_none() {
            let near = self.faults.suggest(name.get_ref(), self.sites.keys().map(String::as_str));
            let text = format!("there is no site '{}'{near}", shown(name.get_ref()));
            self.faults.note(name.span(), text);
        }
        found
    }

    fn interface(&mut self, mut words: Words<'_>, host: (NodeId, &str), all: &mut Vec<Interface>) {
        let faults = &mut self.faults;
        let name = words.needed::<String>("name", faults);
        let rate = words.formed("rate", &INTERFACE_RATE, faults).map(Spanned::into_inner);
        let mtu = words.formed("mtu", &MTU, faults).map_or(MTU_USUAL, Spanned::into_inner);
        let numa_node = words.formed("numa_node", &NUMA_NODE, faults).map(Spanned::into_inner);
        words.finish(faults);
        let Some(name) = name else { return };
        let name = self.interface_name(name, host, all);
        all.push(Interface { name, rate, mtu, numa_node });
    }
}

#[cfg(test)]
mod tests;
