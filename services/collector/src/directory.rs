//! Who exporters are: their numbers of this run, and names that stay.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use penstock_flows::exporter::{ExportProtocol, Exporter, ExporterKey};

/// Most exporters that are remembered; those that came first are forgotten first.
const ENTRIES_MAX: usize = 16_384;

/// Longest name of a host that is kept.
const NAME_BYTES_MAX: usize = 64;

/// An exporter.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its address, with `/2` for its second part.
    pub key: Arc<str>,
    /// What it or the configuration calls it.
    pub name: Option<Arc<str>>,
    /// Whether it told what a host tells of itself.
    pub host: bool,
}

/// All of them.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    entries: HashMap<u32, Entry>,
    order: VecDeque<u32>,
    names: HashMap<Arc<str>, (Option<Arc<str>>, bool)>,
    interfaces: HashMap<(Arc<str>, u32), Arc<str>>,
    systems: Arc<BTreeMap<u32, String>>,
    hosts: Arc<HashMap<IpAddr, String>>,
    /// Names that hosts among the exporters reported, by their agent address.
    exporter_hosts: HashMap<IpAddr, Arc<str>>,
}

/// How an exporter is called where numbers of ports do not matter.
#[must_use]
pub(crate) fn exporter_key(key: &ExporterKey) -> String {
    let ip = key.address.ip();
    let prefix = match key.protocol {
        ExportProtocol::Sflow => "",
        ExportProtocol::NetflowV5 => "netflow5:",
        ExportProtocol::NetflowV9 => "netflow9:",
        ExportProtocol::Ipfix => "ipfix:",
    };
    match key.domain {
        0 => format!("{prefix}{ip}"),
        domain => format!("{prefix}{ip}/{domain}"),
    }
}

impl Directory {
    /// Names that the configuration gives.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = (String, String)>) -> Self {
        let names = names
            .into_iter()
            .map(|(key, name)| (Arc::from(key), (Some(Arc::from(name)), false)))
            .collect();
        Self { names, ..Self::default() }
    }

    /// Whether it is known.
    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        self.entries.contains_key(&id)
    }

    /// Takes note of an exporter.
    pub fn meet(&mut self, exporter: &Exporter) {
        self.entry(exporter);
    }

    fn entry(&mut self, exporter: &Exporter) -> &mut Entry {
        if !self.entries.contains_key(&exporter.id) {
            if self.order.len() >= ENTRIES_MAX
                && let Some(gone) = self.order.pop_front()
                && let Some(gone) = self.entries.remove(&gone)
            {
                self.interfaces.retain(|(key, _), _| *key != gone.key);
            }
            self.order.push_back(exporter.id);
            let key: Arc<str> = exporter_key(&exporter.key).into();
            let (name, host) = self.names.get(&key).cloned().unwrap_or_default();
            self.entries.insert(exporter.id, Entry { key, name, host });
        }
        self.entries.get_mut(&exporter.id).expect("it is there now")
    }

    /// It is a host and calls itself so.
    pub fn host(&mut self, exporter: &Exporter, name: &str) {
        let entry = self.entry(exporter);
        entry.host = true;
        if entry.name.is_none() && !name.is_empty() {
            entry.name = Some(name[..name.floor_char_boundary(NAME_BYTES_MAX)].into());
        }
        if let Some(name) = entry.name.clone() {
            let own = exporter.key.address.ip().to_canonical();
            if self.exporter_hosts.len() < ENTRIES_MAX || self.exporter_hosts.contains_key(&own) {
                self.exporter_hosts.insert(own, name);
            }
        }
    }

    /// An interface of it is called so.
    pub fn interface(&mut self, exporter: &Exporter, index: u32, name: &str) {
        let key = Arc::clone(&self.entry(exporter).key);
        self.interfaces.insert((key, index), name.into());
    }

    /// Whether an interface is known by this name.
    #[must_use]
    pub fn has_interface(&self, id: u32, index: u32, name: &str) -> bool {
        let key = self.entries.get(&id).map(|entry| (Arc::clone(&entry.key), index));
        key.and_then(|key| self.interfaces.get(&key)).is_some_and(|known| **known == *name)
    }

    /// The exporter with this number.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Of an exporter, as people call it.
    #[must_use]
    pub fn name(&self, key: &str) -> Arc<str> {
        let found = self.entries.values().find(|entry| &*entry.key == key);
        found.and_then(|entry| entry.name.clone()).unwrap_or_else(|| key.into())
    }

    /// Names of hosts; those before are gone.
    pub fn set_hosts(&mut self, hosts: HashMap<IpAddr, String>) {
        self.hosts = hosts.into();
    }

    /// Name of the host with this address: of the file of hosts, or what an exporter there calls itself.
    #[must_use]
    pub fn host_name(&self, address: IpAddr) -> Option<&str> {
        let address = address.to_canonical();
        let listed = self.hosts.get(&address).map(String::as_str);
        listed.or_else(|| self.exporter_hosts.get(&address).map(|name| &**name))
    }

    /// Names of autonomous systems; those before are gone.
    pub fn set_systems(&mut self, systems: BTreeMap<u32, String>) {
        self.systems = systems.into();
    }

    /// Of an autonomous system, as people call it.
    #[must_use]
    pub fn system_name(&self, number: u32) -> String {
        match self.systems.get(&number) {
            Some(name) => format!("AS{number} {name}"),
            None => format!("AS{number}"),
        }
    }

    /// Of an interface, as people call it.
    #[must_use]
    pub fn interface_name(&self, key: &str, index: u32) -> String {
        let exporter = self.name(key);
        match self.interfaces.get(&(Arc::from(key), index)) {
            Some(name) => format!("{exporter} {name}"),
            None => format!("{exporter} #{index}"),
        }
    }
}
