//! Names of exporters, interfaces, hosts and autonomous systems.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use penstock_flows::exporter::{ExportProtocol, Exporter, ExporterKey};

/// Most exporters that are stored; the oldest are evicted first.
const ENTRIES_MAX: usize = 16_384;

/// Longest stored name of a host, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Names of one exporter.
#[derive(Debug, Clone)]
pub struct ExporterEntry {
    /// Address, with `/2` for its sub-agent or domain.
    pub key: Arc<str>,
    /// Name by the configuration or the exporter itself.
    pub name: Option<Arc<str>>,
    /// True if it reported host records.
    pub host: bool,
}

/// A name that an exporter reports.
#[derive(Debug)]
pub(crate) struct ReportedName {
    /// Number and identity of the exporter.
    pub(crate) exporter: (u32, ExporterKey),
    /// Interface; `None` for the host itself.
    pub(crate) interface: Option<u32>,
    pub(crate) name: String,
}

/// Names by exporter, interface, address and AS number.
#[derive(Debug, Clone, Default)]
pub struct NameDirectory {
    entries: HashMap<u32, ExporterEntry>,
    order: VecDeque<u32>,
    names: HashMap<Arc<str>, (Option<Arc<str>>, bool)>,
    interfaces: HashMap<(Arc<str>, u32), Arc<str>>,
    systems: Arc<BTreeMap<u32, String>>,
    hosts: Arc<HashMap<IpAddr, String>>,
    /// Names that hosts among the exporters reported, by their agent address.
    exporter_hosts: HashMap<IpAddr, Arc<str>>,
}

/// Stable name of an exporter, without its port.
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

/// Address in the key of an exporter.
pub(crate) fn address_in_key(key: &str) -> &str {
    let prefixes = ["netflow5:", "netflow9:", "ipfix:"];
    let address = prefixes.iter().find_map(|prefix| key.strip_prefix(prefix)).unwrap_or(key);
    address.split('/').next().unwrap_or(address)
}

impl NameDirectory {
    /// Starts with the names of the configuration, by address of the exporter.
    #[must_use]
    pub fn new(names: impl IntoIterator<Item = (String, String)>) -> Self {
        let names = names
            .into_iter()
            .map(|(key, name)| (Arc::from(key), (Some(Arc::from(name)), false)))
            .collect();
        Self { names, ..Self::default() }
    }

    /// Returns true if the exporter is known.
    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        self.entries.contains_key(&id)
    }

    /// Adds an exporter, if it is new.
    pub fn add_exporter(&mut self, exporter: &Exporter) {
        self.entry(exporter.id, &exporter.key);
    }

    fn entry(&mut self, id: u32, exporter: &ExporterKey) -> &mut ExporterEntry {
        if !self.entries.contains_key(&id) {
            if self.order.len() >= ENTRIES_MAX
                && let Some(gone) = self.order.pop_front()
                && let Some(gone) = self.entries.remove(&gone)
            {
                self.interfaces.retain(|(key, _), _| *key != gone.key);
            }
            self.order.push_back(id);
            let key: Arc<str> = exporter_key(exporter).into();
            let (name, host) = self.names.get(address_in_key(&key)).cloned().unwrap_or_default();
            self.entries.insert(id, ExporterEntry { key, name, host });
        }
        self.entries.get_mut(&id).expect("it is there now")
    }

    /// Returns true if the name is stored, or the exporter as a host of any name.
    pub(crate) fn has_name(&self, reported: &ReportedName) -> bool {
        let (id, _) = reported.exporter;
        match reported.interface {
            Some(index) => self.has_interface(id, index, &reported.name),
            None => self.get(id).is_some_and(|entry| entry.host),
        }
    }

    /// Stores the name of a host or an interface.
    pub(crate) fn add_name(&mut self, reported: &ReportedName) {
        let (id, key) = &reported.exporter;
        match reported.interface {
            Some(index) => self.interface(*id, key, index, &reported.name),
            None => self.host(*id, key, &reported.name),
        }
    }

    /// Marks an exporter as a host of this name.
    fn host(&mut self, id: u32, exporter: &ExporterKey, name: &str) {
        let entry = self.entry(id, exporter);
        entry.host = true;
        if entry.name.is_none() && !name.is_empty() {
            entry.name = Some(name[..name.floor_char_boundary(NAME_BYTES_MAX)].into());
        }
        if let Some(name) = entry.name.clone() {
            let own = exporter.address.ip().to_canonical();
            if self.exporter_hosts.len() < ENTRIES_MAX || self.exporter_hosts.contains_key(&own) {
                self.exporter_hosts.insert(own, name);
            }
        }
    }

    /// Stores the name of an interface.
    fn interface(&mut self, id: u32, exporter: &ExporterKey, index: u32, name: &str) {
        let key = Arc::clone(&self.entry(id, exporter).key);
        self.interfaces.insert((key, index), name.into());
    }

    /// Returns true if the interface is stored under this name.
    fn has_interface(&self, id: u32, index: u32, name: &str) -> bool {
        let key = self.entries.get(&id).map(|entry| (Arc::clone(&entry.key), index));
        key.and_then(|key| self.interfaces.get(&key)).is_some_and(|known| **known == *name)
    }

    /// Entry of the exporter with this number.
    #[must_use]
    pub fn get(&self, id: u32) -> Option<&ExporterEntry> {
        self.entries.get(&id)
    }

    /// Display name of an exporter.
    #[must_use]
    pub fn name(&self, key: &str) -> Arc<str> {
        let found = self.entries.values().find(|entry| &*entry.key == key);
        found.and_then(|entry| entry.name.clone()).unwrap_or_else(|| key.into())
    }

    /// Replaces the names of hosts.
    pub fn set_hosts(&mut self, hosts: HashMap<IpAddr, String>) {
        self.hosts = hosts.into();
    }

    /// Name of the host with this address, from the hosts file or from an exporter there.
    #[must_use]
    pub fn host_name(&self, address: IpAddr) -> Option<&str> {
        let address = address.to_canonical();
        let listed = self.hosts.get(&address).map(String::as_str);
        listed.or_else(|| self.exporter_hosts.get(&address).map(|name| &**name))
    }

    /// Replaces the names of autonomous systems.
    pub fn set_systems(&mut self, systems: BTreeMap<u32, String>) {
        self.systems = systems.into();
    }

    /// Display name of an autonomous system.
    #[must_use]
    pub fn system_name(&self, number: u32) -> String {
        match self.systems.get(&number) {
            Some(name) => format!("AS{number} {name}"),
            None => format!("AS{number}"),
        }
    }

    /// Display name of an interface.
    #[must_use]
    pub fn interface_name(&self, key: &str, index: u32) -> String {
        let exporter = self.name(key);
        match self.interfaces.get(&(Arc::from(key), index)) {
            Some(name) => format!("{exporter} {name}"),
            None => format!("{exporter} #{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_name_applies_by_address() {
        let names = [("192.0.2.1", "switch1"), ("2001:db8::1", "switch2")];
        let names = names.map(|(address, name)| (address.to_owned(), name.to_owned()));
        let mut directory = NameDirectory::new(names);
        let mut number = 0;
        for (address, name) in [("192.0.2.1", "switch1"), ("2001:db8::1", "switch2")] {
            let ip: IpAddr = address.parse().unwrap();
            for protocol in [
                ExportProtocol::Sflow,
                ExportProtocol::NetflowV5,
                ExportProtocol::NetflowV9,
                ExportProtocol::Ipfix,
            ] {
                for domain in [0, 3] {
                    let key = ExporterKey { protocol, address: ip.into(), port: 9, domain };
                    number += 1;
                    let found = directory.entry(number, &key).clone();
                    assert_eq!(found.name.as_deref(), Some(name), "{}", found.key);
                    // Links are found by it, too.
                    assert_eq!(address_in_key(&found.key), address);
                }
            }
        }
    }
}
