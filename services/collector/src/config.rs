//! Configuration of the collector: the table `[collector]` of the configuration file.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penstock_daemon::config::{ConfigError, ConfigFile};
use penstock_flows::asn::AsTable;
use penstock_flows::packet::MappedAddress;
use penstock_flows::prefixes::{PrefixError, Prefixes};
use penstock_flows::shard::SHARDS_MAX;
use penstock_http::Url;
use penstock_scitags::firefly;
use penstock_topology::Topology;
use penstock_units::{ByteCount, ParseQuantityError};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::alert::{AlertRule, AlertScope, RULES_MAX};
use crate::error::{ListFileError, read_text};
use crate::query::View;

mod clickhouse;
mod parquet;

pub use clickhouse::{ClickHouse, Secret};
pub use parquet::Parquet;

/// UDP port of sFlow.
pub const SFLOW_PORT: u16 = 6343;

/// UDP port of IPFIX, which receives NetFlow, too.
pub const IPFIX_PORT: u16 = 4739;

/// Most receiving threads without the key `threads`.
const DEFAULT_THREADS_MAX: usize = 8;

/// Default limit of storage in bytes.
const STORE_BYTES: u64 = 4 << 30;

/// Longest AS prefix file in bytes.
const AS_FILE_BYTES_MAX: u64 = 256 << 20;

/// A byte count as text: `4GiB`.
#[derive(Debug, Clone, Copy)]
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: ByteCount = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(size.0))
    }
}

/// A network: `192.0.2.0/24`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkPrefix(pub IpAddr, pub u8);

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkPrefixError {
    /// No address with a length.
    #[error("'{0}' is no network: write it like 192.0.2.0/24 or 2001:db8::/32")]
    Malformed(String),
    /// Bits of the host are set.
    #[error("'{text}' has bits set beyond its length: write {network}")]
    HostBits {
        /// Network as configured.
        text: String,
        /// The same without bits of the host.
        network: String,
    },
}

impl FromStr for NetworkPrefix {
    type Err = NetworkPrefixError;

    fn from_str(text: &str) -> Result<Self, NetworkPrefixError> {
        let bad = || NetworkPrefixError::Malformed(text.to_owned());
        let (ip, bits) = match text.split_once('/') {
            Some((ip, bits)) => (ip, Some(bits.parse::<u8>().map_err(|_| bad())?)),
            None => (text, None),
        };
        let ip: IpAddr = ip.parse().map_err(|_| bad())?;
        let most = if ip.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(bad());
        }
        let network = MappedAddress::from(ip).prefix(bits);
        if network != MappedAddress::from(ip) {
            let network = format!("{}/{bits}", network.ip().to_canonical());
            return Err(NetworkPrefixError::HostBits { text: text.to_owned(), network });
        }
        Ok(Self(ip, bits))
    }
}

impl<'de> Deserialize<'de> for NetworkPrefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A site and its networks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteNetworks {
    /// Name of the site, as in the topology.
    pub name: String,
    /// Networks of its hosts.
    pub networks: Vec<NetworkPrefix>,
}

/// Configured properties of an exporter.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownExporter {
    /// Address of its agent.
    pub address: IpAddr,
    /// Name of the exporter, as in the topology.
    pub name: Option<String>,
    /// Sampling rate, 1 of this many packets, if its records lack one.
    pub sampling_rate: Option<NonZeroU32>,
    /// Links of the topology by their interface: its ifIndex or the name that the exporter reports.
    #[serde(default)]
    pub links: BTreeMap<String, String>,
}

/// Configuration of the collector.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Listening addresses for sFlow.
    pub sflow: Vec<SocketAddr>,
    /// Listening addresses for IPFIX and NetFlow.
    pub ipfix: Vec<SocketAddr>,
    /// Listening addresses for fireflies.
    pub fireflies: Vec<SocketAddr>,
    /// Threads that receive telemetry; each has a socket for each listening address.
    pub threads: usize,
    /// Receive buffer of each socket in bytes.
    pub receive_buffer_bytes: usize,
    /// Topology of the network, if given.
    pub topology: Option<Topology>,
    /// Sites by their networks.
    pub sites: Vec<SiteNetworks>,
    /// File of AS prefixes.
    pub prefixes: Option<PathBuf>,
    /// Host names by address, in the format of hosts(5).
    pub hosts: Option<PathBuf>,
    /// Hosts whose marks are trusted.
    pub marking: Vec<NetworkPrefix>,
    /// Hosts that relay fireflies of others.
    pub relays: Vec<NetworkPrefix>,
    /// Exporters with configured properties.
    pub exporters: Vec<KnownExporter>,
    /// Default way to combine vantages.
    pub combine: View,
    /// Alert rules, in order.
    pub alerts: Vec<AlertRule>,
    /// True if minutes and hours are stored.
    pub store: bool,
    /// Most bytes of the store.
    pub store_bytes_max: u64,
    /// Shared database that receives minutes and answers queries.
    pub clickhouse: Option<ClickHouse>,
    /// Parquet archive of raw samples.
    pub parquet: Option<Parquet>,
    /// True if a socket that cannot be opened is an error.
    pub required: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct CollectorTable {
    sflow: Option<Vec<SocketAddr>>,
    ipfix: Option<Vec<SocketAddr>>,
    fireflies: Option<Vec<SocketAddr>>,
    threads: Option<Spanned<usize>>,
    receive_buffer_bytes: Option<usize>,
    topology: Option<Spanned<PathBuf>>,
    prefixes: Option<PathBuf>,
    hosts: Option<PathBuf>,
    #[serde(default)]
    site: Vec<Spanned<SiteNetworks>>,
    #[serde(default)]
    marking: Vec<NetworkPrefix>,
    #[serde(default)]
    relays: Vec<NetworkPrefix>,
    #[serde(default)]
    exporter: Vec<Spanned<KnownExporter>>,
    #[serde(default)]
    alert: Vec<Spanned<AlertRule>>,
    webhook: Option<Url>,
    combine: Option<View>,
    store: Option<bool>,
    store_bytes_max: Option<Size>,
    clickhouse: Option<clickhouse::ClickHouseTable>,
    parquet: Option<parquet::ParquetTable>,
}

impl Config {
    /// Loads the file, or the defaults without one. `required` is true if the role was requested by
    /// name.
    ///
    /// # Errors
    /// With one line that names the file and the line number.
    pub fn load(file: Option<&Path>, required: bool) -> Result<Self, ConfigError> {
        let Some(file) = file else {
            let document = CollectorTable::default();
            return Ok(lower(document, required, None));
        };
        let file = ConfigFile::read(file)?;
        let mut table: CollectorTable = file.table("collector")?.unwrap_or_default();
        let topology = match table.topology.take() {
            None => None,
            Some(path) => {
                let at = path.span().start;
                let path = file.beside(path.into_inner());
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| file.error_at(at, format!("{}: {error}", path.display())))?;
                let network = Topology::read(&text).map_err(|faults| {
                    let first = faults.to_string().lines().next().unwrap_or_default().to_owned();
                    file.error_at(
                        at,
                        format!("{}: {first}: see penstock topology check", path.display()),
                    )
                })?;
                Some(network)
            }
        };
        if let Some(threads) = &table.threads
            && !(1..=SHARDS_MAX).contains(threads.get_ref())
        {
            let at = threads.span().start;
            return Err(file.error_at(
                at,
                format!("threads must be 1 to {SHARDS_MAX}; leave it out for one for every two processors"),
            ));
        }
        if table.site.len() > usize::from(u16::MAX) {
            return Err(file.error("more than 65535 [[collector.site]]"));
        }
        if table.alert.len() > RULES_MAX {
            return Err(file.error(format!("more than {RULES_MAX} [[collector.alert]]")));
        }
        check_repetitions(&table, &file)?;
        for rule in table.alert.iter().map(Spanned::get_ref) {
            let Some(key) = rule.key.as_deref().filter(|_| rule.of == AlertScope::Link) else {
                continue;
            };
            if topology.as_ref().is_none_or(|topology| topology.link(key).is_none()) {
                return Err(
                    file.error(format!("alert '{}': the topology has no link '{key}'", rule.name))
                );
            }
        }
        for exporter in table.exporter.iter().map(Spanned::get_ref) {
            for link in exporter.links.values() {
                check_link(exporter, link, topology.as_ref()).map_err(|error| file.error(error))?;
            }
        }
        let all = table.site.iter().flat_map(|site| &site.get_ref().networks);
        let all: Vec<_> = all.copied().collect();
        for networks in [all.as_slice(), &table.marking, &table.relays] {
            prefixes(networks).map_err(|error| file.error(error))?;
        }
        let dir = file.path().parent().unwrap_or(Path::new("."));
        let clickhouse = table.clickhouse.take().map(|table| table.lower(dir)).transpose();
        let clickhouse = clickhouse.map_err(|error| file.error_at(error.at, error.fault))?;
        let parquet = table.parquet.take().map(|table| table.lower(dir)).transpose();
        let parquet = parquet.map_err(|error| file.error_at(error.at, error.fault))?;
        table.prefixes = table.prefixes.take().map(|path| dir.join(path));
        table.hosts = table.hosts.take().map(|path| dir.join(path));
        Ok(Self { clickhouse, parquet, ..lower(table, required, topology) })
    }
}

/// A value of the tables `clickhouse` and `parquet` that cannot be used.
#[derive(Debug)]
struct TableValueError {
    /// Offset of the value in the file.
    at: usize,
    fault: TableValueFault,
}

/// Fault of a value of the tables `clickhouse` and `parquet`.
#[derive(Debug, thiserror::Error)]
enum TableValueFault {
    #[error("rotate: {0}")]
    Rotate(ParseQuantityError),
    #[error("rotate: at least 1s")]
    RotateShort,
    #[error("database '{0}': write letters, digits and _")]
    DatabaseName(String),
    #[error("password_file {}: {error}", .path.display())]
    PasswordFile { path: PathBuf, error: io::Error },
    #[error("batch_rows: 1 to {}", clickhouse::BATCH_ROWS_MAX)]
    BatchRows,
    #[error("interval: {0}")]
    Interval(ParseQuantityError),
    #[error("interval: at most 5m, or figures of the last minutes are in neither place")]
    IntervalLong,
}

impl TableValueFault {
    /// Adds the offset of the value in the file.
    fn at(self, at: usize) -> TableValueError {
        TableValueError { at, fault: self }
    }
}

/// Checks that no exporter, network of a site or alert is given twice, and that there is a
/// listener.
fn check_repetitions(table: &CollectorTable, file: &ConfigFile) -> Result<(), ConfigError> {
    let mut addresses = HashSet::new();
    for exporter in &table.exporter {
        let address = exporter.get_ref().address.to_canonical();
        if !addresses.insert(address) {
            let fault =
                format!("exporter {address} is given twice: write one [[collector.exporter]]");
            return Err(file.error_at(exporter.span().start, fault));
        }
    }
    let mut networks = HashSet::new();
    for site in &table.site {
        let SiteNetworks { name, networks: of_site } = site.get_ref();
        for NetworkPrefix(ip, bits) in of_site {
            if !networks.insert((*ip, *bits)) {
                let fault = format!("site '{name}': network {ip}/{bits} is given twice");
                return Err(file.error_at(site.span().start, fault));
            }
        }
    }
    let mut names = HashSet::new();
    for rule in &table.alert {
        let name = &rule.get_ref().name;
        if !names.insert(name) {
            let fault = format!("alert '{name}' is given twice: give each a name of its own");
            return Err(file.error_at(rule.span().start, fault));
        }
    }
    Ok(())
}

/// A link of an exporter that the topology does not have at its node.
#[derive(Debug, thiserror::Error)]
#[error("exporter {exporter}: links: {fault}")]
struct ExporterLinkError {
    exporter: IpAddr,
    fault: ExporterLinkFault,
}

#[derive(Debug, thiserror::Error)]
enum ExporterLinkFault {
    #[error("give a topology that has '{0}'")]
    NoTopology(String),
    #[error("give its name, too")]
    NoName,
    #[error("the topology has no link '{0}'")]
    NoLink(String),
    #[error("'{link}' does not end at '{node}'")]
    OtherNode { link: String, node: String },
}

/// Checks that a link of an exporter ends at the node of that name.
fn check_link(
    exporter: &KnownExporter,
    name: &str,
    topology: Option<&Topology>,
) -> Result<(), ExporterLinkError> {
    let failed = |fault| ExporterLinkError { exporter: exporter.address, fault };
    let topology =
        topology.ok_or_else(|| failed(ExporterLinkFault::NoTopology(name.to_owned())))?;
    let node = exporter.name.as_deref().ok_or_else(|| failed(ExporterLinkFault::NoName))?;
    let link = topology.links.iter().find(|link| link.name == name);
    let link = link.ok_or_else(|| failed(ExporterLinkFault::NoLink(name.to_owned())))?;
    if link.ends.iter().any(|end| topology.nodes[end.node.0].name == node) {
        return Ok(());
    }
    let (link, node) = (name.to_owned(), node.to_owned());
    Err(failed(ExporterLinkFault::OtherNode { link, node }))
}

/// Loads the prefixes of autonomous systems.
///
/// # Errors
/// When the file cannot be read or a line has a fault.
pub(crate) fn load_as_table(file: &Path) -> Result<AsTable, ListFileError> {
    let text = read_text(file, AS_FILE_BYTES_MAX)?;
    AsTable::read(&text).map_err(|source| ListFileError::Prefix { file: file.to_owned(), source })
}

/// Builds a lookup table of the networks of sites; values are positions in `sites`.
///
/// # Errors
/// When there are too many networks.
pub(crate) fn site_prefixes(sites: &[SiteNetworks]) -> Result<Prefixes<u16>, PrefixError> {
    let networks = sites.iter().enumerate().flat_map(|(number, site)| {
        site.networks.iter().map(move |network| (network.0, network.1, number as u16))
    });
    Prefixes::new(networks)
}

/// Builds a lookup table of networks.
///
/// # Errors
/// When there are too many networks.
pub(crate) fn prefixes(networks: &[NetworkPrefix]) -> Result<Prefixes<()>, PrefixError> {
    Prefixes::new(networks.iter().map(|network| (network.0, network.1, ())))
}

fn lower(table: CollectorTable, required: bool, topology: Option<Topology>) -> Config {
    let webhook = table.webhook;
    let default = |port| vec![SocketAddr::new(any(), port)];
    Config {
        sflow: table.sflow.unwrap_or_else(|| default(SFLOW_PORT)),
        ipfix: table.ipfix.unwrap_or_else(|| default(IPFIX_PORT)),
        fireflies: table.fireflies.unwrap_or_else(|| default(firefly::FIREFLY_PORT)),
        threads: table.threads.map_or_else(default_threads, Spanned::into_inner),
        receive_buffer_bytes: table.receive_buffer_bytes.unwrap_or(32 << 20),
        topology,
        sites: table.site.into_iter().map(Spanned::into_inner).collect(),
        prefixes: table.prefixes,
        hosts: table.hosts,
        marking: table.marking,
        relays: table.relays,
        exporters: table.exporter.into_iter().map(Spanned::into_inner).collect(),
        combine: table.combine.unwrap_or_default(),
        alerts: table
            .alert
            .into_iter()
            .map(Spanned::into_inner)
            .map(|rule| AlertRule { webhook: rule.webhook.or_else(|| webhook.clone()), ..rule })
            .collect(),
        store: table.store.unwrap_or(true),
        store_bytes_max: table.store_bytes_max.map_or(STORE_BYTES, |size| size.0),
        clickhouse: None,
        parquet: None,
        required,
    }
}

/// A thread for every two processors, since transfers and queries need some, too: 1 to
/// [`DEFAULT_THREADS_MAX`].
fn default_threads() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / 2).clamp(1, DEFAULT_THREADS_MAX)
}

/// Wildcard address of the machine; IPv4 only if the kernel has no IPv6.
fn any() -> IpAddr {
    match UdpSocket::bind("[::]:0") {
        Ok(_) => IpAddr::from([0_u8; 16]),
        Err(_) => IpAddr::from([0_u8; 4]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First line of the error of a file with this table.
    fn fault(table: &str) -> String {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("c.toml");
        std::fs::write(&file, format!("[collector]\n{table}")).unwrap();
        let text = Config::load(Some(&file), true).unwrap_err().to_string();
        text.rsplit_once("c.toml").unwrap().1.to_owned()
    }

    #[test]
    fn contradictions_are_refused_with_line() {
        let exporter =
            |rest: &str| format!("[[collector.exporter]]\naddress = \"192.0.2.1\"\n{rest}");
        let site = |name: &str, network: &str| {
            format!("[[collector.site]]\nname = \"{name}\"\nnetworks = [\"{network}\"]\n")
        };
        let alert = |above: &str| {
            format!("[[collector.alert]]\nname = \"a\"\nkind = \"loss\"\nabove = \"{above}\"\n")
        };
        let twice = |text: String| format!("{text}{text}");
        for (table, line, words) in [
            (exporter("sampling_rate = 0\n"), 4, "nonzero"),
            (twice(exporter("")), 4, "exporter 192.0.2.1 is given twice"),
            (
                site("a", "192.0.2.0/24") + &site("b", "192.0.2.0/24"),
                5,
                "site 'b': network 192.0.2.0/24",
            ),
            (site("a", "10.0.0.1/8"), 4, "write 10.0.0.0/8"),
            (site("a", "2001:db8::1/32"), 4, "write 2001:db8::/32"),
            (alert("150%"), 2, "a share is at most 1 (100%)"),
            (twice(alert("10%")), 6, "alert 'a' is given twice"),
        ] {
            let found = fault(&table);
            let at = format!(":{line}:");
            assert!(found.starts_with(&at) && found.contains(words), "{table}: {found}");
        }
    }
}
