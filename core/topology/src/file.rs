//! The TOML format of a topology: reads and checks a file and lowers it to a [`Topology`].
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

use crate::fault::{FaultCollector, FileFaults, shown};
use crate::table::{TableReader, parse};
use crate::{Interface, LinkEnd, LinkId, Node, NodeId, NodeKind, Position, Site, SiteId, Topology};

mod link;
mod names;
mod quantities;

use quantities::{BUFFER, INTERFACE_RATE, LATITUDE, LONGITUDE, MTU, NUMA_NODE};

/// Largest file that [`Topology::read`] accepts, in bytes.
pub const FILE_BYTES_MAX: usize = 16 << 20;

const MTU_DEFAULT: u32 = 1500;

impl Topology {
    /// Reads and checks a topology in TOML.
    ///
    /// # Errors
    /// All faults of the file, or the syntax errors alone where it is not TOML.
    pub fn read(text: &str) -> Result<Self, FileFaults> {
        let (table, faults) = parse(text, FILE_BYTES_MAX, "a topology")?;
        let mut reader = TopologyReader::new(faults);
        let topology = reader.topology(table);
        let faults = reader.faults.into_faults();
        if faults.0.is_empty() { Ok(topology) } else { Err(faults) }
    }
}

/// Checks a file while lowering it; a value at fault is noted and skipped, or replaced by a fallback.
struct TopologyReader<'a> {
    faults: FaultCollector<'a>,
    sites: HashMap<String, SiteId>,
    nodes: HashMap<String, NodeId>,
    interfaces: HashMap<(NodeId, String), usize>,
    /// Names in `/etc/hosts`, in lower case: the host, and a description of the owner for messages.
    host_file_names: HashMap<String, (Option<NodeId>, String)>,
    /// Number of interfaces that links have added to each host without configured interfaces.
    implicit_interfaces: HashMap<NodeId, usize>,
    links: HashMap<String, LinkId>,
    /// Link of each interface and VLAN.
    links_by_interface: HashMap<(LinkEnd, Option<u16>), LinkId>,
    /// Last number appended to each link name that would otherwise be ambiguous.
    parallel: HashMap<String, usize>,
}

impl<'a> TopologyReader<'a> {
    fn new(faults: FaultCollector<'a>) -> Self {
        Self {
            faults,
            sites: HashMap::new(),
            nodes: HashMap::new(),
            interfaces: HashMap::new(),
            host_file_names: names::DEFAULT_HOSTS_FILE_NAMES
                .map(|name| (name.to_owned(), (None, "a name of every machine".to_owned())))
                .into(),
            implicit_interfaces: HashMap::new(),
            links: HashMap::new(),
            links_by_interface: HashMap::new(),
            parallel: HashMap::new(),
        }
    }

    fn topology(&mut self, mut table: TableReader<'_>) -> Topology {
        let faults = &mut self.faults;
        let name = table.required::<String>("name", faults);
        let title = table.text("title", faults);
        let source = table.text("source", faults);
        let sites = table.tables("site", "a site", faults);
        let hosts = table.tables("host", "a host", faults);
        let switches = table.tables("switch", "a switch", faults);
        let links = table.tables("link", "a link", faults);
        table.finish(faults);
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
            self.node(NodeKind::Host, host, &mut topology.nodes);
        }
        for switch in switches {
            self.node(NodeKind::Switch, switch, &mut topology.nodes);
        }
        for link in links {
            self.link(link, &mut topology);
        }
        topology
    }

    fn site(&mut self, mut table: TableReader<'_>, sites: &mut Vec<Site>) {
        let faults = &mut self.faults;
        let name = table.required::<String>("name", faults);
        let title = table.text("title", faults);
        let latitude = table.checked("latitude", &LATITUDE, faults);
        let longitude = table.checked("longitude", &LONGITUDE, faults);
        table.finish(faults);
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

    fn node(&mut self, kind: NodeKind, mut table: TableReader<'_>, nodes: &mut Vec<Node>) {
        let id = NodeId(nodes.len());
        let name = table.required::<String>("name", &mut self.faults);
        let name = name.map(|name| self.node_name(kind, id, name)).unwrap_or_default();
        let site = table.optional::<String>("site", &mut self.faults);
        let mut buffer = None;
        let mut interfaces = Vec::new();
        match kind {
            NodeKind::Host => {
                for one in table.tables("interface", "an interface", &mut self.faults) {
                    self.interface(one, (id, &name), &mut interfaces);
                }
            }
            NodeKind::Switch => buffer = table.checked("buffer", &BUFFER, &mut self.faults),
        }
        table.finish(&mut self.faults);
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

    fn interface(
        &mut self,
        mut table: TableReader<'_>,
        host: (NodeId, &str),
        all: &mut Vec<Interface>,
    ) {
        let faults = &mut self.faults;
        let name = table.required::<String>("name", faults);
        let rate = table.checked("rate", &INTERFACE_RATE, faults).map(Spanned::into_inner);
        let mtu = table.checked("mtu", &MTU, faults).map_or(MTU_DEFAULT, Spanned::into_inner);
        let numa_node = table.checked("numa_node", &NUMA_NODE, faults).map(Spanned::into_inner);
        table.finish(faults);
        let Some(name) = name else { return };
        let name = self.interface_name(name, host, all);
        all.push(Interface { name, rate, mtu, numa_node });
    }
}

#[cfg(test)]
mod tests;
