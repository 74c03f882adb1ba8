//! What the collector is told: the table `[collector]` of the configuration file.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penstock_flows::asn::AsTable;
use penstock_flows::prefixes::Prefixes;
use penstock_http::fetch::Url;
use penstock_scitags::firefly;
use penstock_topology::Topology;
use penstock_units::ByteCount;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::alert::{Of, RULES_MAX, Rule};
use crate::query::View;

mod clickhouse;
mod parquet;

pub use clickhouse::{ClickHouse, Secret};
pub use parquet::Parquet;

/// UDP port of sFlow.
pub const SFLOW_PORT: u16 = 6343;

/// UDP port of IPFIX, where NetFlow is taken, too.
pub const IPFIX_PORT: u16 = 4739;

/// Most bytes of storage where nothing is said.
const STORE_BYTES: u64 = 4 << 30;

/// Longest file of prefixes.
const SYSTEMS_BYTES_MAX: u64 = 256 << 20;

/// A number of bytes as text: `4GiB`.
#[derive(Debug, Clone, Copy)]
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size: ByteCount = text.parse().map_err(serde::de::Error::custom)?;
        Ok(Self(size.0))
    }
}

/// An error in what the collector was told, in one line.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {text}", file.display(), line.map_or(String::new(), |line| format!(":{line}")))]
pub struct ConfigError {
    file: PathBuf,
    line: Option<usize>,
    text: String,
}

/// A network: `192.0.2.0/24`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network(pub IpAddr, pub u8);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is no network: write it like 192.0.2.0/24 or 2001:db8::/32");
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
        Ok(Self(ip, bits))
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A site and its networks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// As the topology calls it, where there is one.
    pub name: String,
    /// What belongs to it.
    pub networks: Vec<Network>,
}

/// What is known of an exporter beforehand.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownExporter {
    /// Its address.
    pub address: IpAddr,
    /// What it is called: as the topology calls it, where there is one.
    pub name: Option<String>,
    /// One of so many packets, where it does not say it itself.
    pub sampling_rate: Option<u32>,
    /// Links of the topology by the interface that they are at: its ifIndex or the name that the exporter gives it.
    #[serde(default)]
    pub links: BTreeMap<String, String>,
}

/// What the collector does.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where sFlow is taken.
    pub sflow: Vec<SocketAddr>,
    /// Where IPFIX and NetFlow are taken.
    pub ipfix: Vec<SocketAddr>,
    /// Where fireflies are taken.
    pub fireflies: Vec<SocketAddr>,
    /// Room for datagrams that wait, of each socket.
    pub receive_buffer_bytes: usize,
    /// The network, if it is described.
    pub topology: Option<Topology>,
    /// Sites by their networks.
    pub sites: Vec<Site>,
    /// Where prefixes of autonomous systems stand.
    pub prefixes: Option<PathBuf>,
    /// Names of hosts by address, in the format of hosts(5).
    pub hosts: Option<PathBuf>,
    /// Hosts whose marks are believed.
    pub marking: Vec<Network>,
    /// Hosts that pass on fireflies of others.
    pub relays: Vec<Network>,
    /// What is known beforehand.
    pub exporters: Vec<KnownExporter>,
    /// How vantages become one figure.
    pub combine: View,
    /// When to tell someone.
    pub alerts: Vec<Rule>,
    /// Whether minutes and hours are stored.
    pub store: bool,
    /// Most bytes that they take.
    pub store_bytes_max: u64,
    /// Where minutes go besides, and where they are asked for.
    pub clickhouse: Option<ClickHouse>,
    /// Where raw samples go.
    pub parquet: Option<Parquet>,
    /// Whether an input that cannot be had is an error.
    pub required: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Document {
    #[serde(default)]
    collector: Table,
    #[serde(flatten)]
    _others: std::collections::HashMap<String, IgnoredAny>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    sflow: Option<Vec<SocketAddr>>,
    ipfix: Option<Vec<SocketAddr>>,
    fireflies: Option<Vec<SocketAddr>>,
    receive_buffer_bytes: Option<usize>,
    topology: Option<Spanned<PathBuf>>,
    prefixes: Option<PathBuf>,
    hosts: Option<PathBuf>,
    #[serde(default)]
    site: Vec<Site>,
    #[serde(default)]
    marking: Vec<Network>,
    #[serde(default)]
    relays: Vec<Network>,
    #[serde(default)]
    exporter: Vec<KnownExporter>,
    #[serde(default)]
    alert: Vec<Rule>,
    webhook: Option<Url>,
    combine: Option<View>,
    store: Option<bool>,
    store_bytes_max: Option<Size>,
    clickhouse: Option<clickhouse::Table>,
    parquet: Option<parquet::Table>,
}

impl Config {
    /// What the file says; the defaults where there is none. `required` when the role was asked for by name.
    ///
    /// # Errors
    /// With one line that names the file and the line in it.
    pub fn load(file: Option<&Path>, required: bool) -> Result<Self, ConfigError> {
        let Some(file) = file else {
            let document = Table::default();
            return Ok(lower(document, required, None));
        };
        let failed = |line, text| ConfigError { file: file.to_owned(), line, text };
        let text =
            std::fs::read_to_string(file).map_err(|error| failed(None, error.to_string()))?;
        let line = |at: usize| Some(text.bytes().take(at).filter(|b| *b == b'\n').count() + 1);
        let document: Document = toml::from_str(&text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            failed(line(at), error.message().replace('\n', " "))
        })?;
        let mut table = document.collector;
        let topology = match table.topology.take() {
            None => None,
            Some(path) => {
                let at = line(path.span().start);
                let path = file.parent().unwrap_or(Path::new(".")).join(path.into_inner());
                let text = std::fs::read_to_string(&path)
                    .map_err(|error| failed(at, format!("{}: {error}", path.display())))?;
                let network = Topology::read(&text).map_err(|faults| {
                    let first = faults.to_string().lines().next().unwrap_or_default().to_owned();
                    failed(at, format!("{}: {first}: see penstock topology check", path.display()))
                })?;
                Some(network)
            }
        };
        if table.site.len() > usize::from(u16::MAX) {
            return Err(failed(None, "more than 65535 [[collector.site]]".to_owned()));
        }
        if table.alert.len() > RULES_MAX {
            return Err(failed(None, format!("more than {RULES_MAX} [[collector.alert]]")));
        }
        for rule in &table.alert {
            let Some(key) = rule.key.as_deref().filter(|_| rule.of == Of::Link) else { continue };
            if topology.as_ref().is_none_or(|topology| topology.link(key).is_none()) {
                return Err(failed(
                    None,
                    format!("alert '{}': the topology has no link '{key}'", rule.name),
                ));
            }
        }
        for exporter in &table.exporter {
            for link in exporter.links.values() {
                check_link(exporter, link, topology.as_ref()).map_err(|text| failed(None, text))?;
            }
        }
        let all = table.site.iter().flat_map(|site| &site.networks);
        let all: Vec<_> = all.copied().collect();
        for networks in [all.as_slice(), &table.marking, &table.relays] {
            prefixes(networks).map_err(|error| failed(None, error))?;
        }
        let dir = file.parent().unwrap_or(Path::new("."));
        let clickhouse = table.clickhouse.take().map(|table| table.lower(dir)).transpose();
        let clickhouse = clickhouse.map_err(|(at, text)| failed(line(at), text))?;
        let parquet = table.parquet.take().map(|table| table.lower(dir)).transpose();
        let parquet = parquet.map_err(|(at, text)| failed(line(at), text))?;
        table.prefixes = table.prefixes.take().map(|path| dir.join(path));
        table.hosts = table.hosts.take().map(|path| dir.join(path));
        Ok(Self { clickhouse, parquet, ..lower(table, required, topology) })
    }
}

/// A link that an exporter's interface is said to be at is one of the node of that name.
fn check_link(
    exporter: &KnownExporter,
    name: &str,
    topology: Option<&Topology>,
) -> Result<(), String> {
    let of = format!("exporter {}: links", exporter.address);
    let topology = topology.ok_or_else(|| format!("{of}: give a topology that has '{name}'"))?;
    let node = exporter.name.as_deref().ok_or_else(|| format!("{of}: give its name, too"))?;
    let link = topology.links.iter().find(|link| link.name == name);
    let link = link.ok_or_else(|| format!("{of}: the topology has no link '{name}'"))?;
    if link.ends.iter().any(|end| topology.nodes[end.node.0].name == node) {
        return Ok(());
    }
    Err(format!("{of}: '{name}' does not end at '{node}'"))
}

/// Reads prefixes of autonomous systems.
///
/// # Errors
/// With one line that names the file, and the line in it.
pub(crate) fn systems(file: &Path) -> Result<AsTable, String> {
    let name = file.display();
    let bytes = std::fs::metadata(file).map_err(|error| format!("{name}: {error}"))?.len();
    if bytes > SYSTEMS_BYTES_MAX {
        return Err(format!("{name}: {bytes} bytes are more than {SYSTEMS_BYTES_MAX}"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
    AsTable::read(&text).map_err(|error| format!("{name}:{error}"))
}

/// The networks as a table that is searched.
///
/// # Errors
/// When there are too many.
pub(crate) fn prefixes(networks: &[Network]) -> Result<Prefixes<()>, String> {
    Prefixes::new(networks.iter().map(|network| (network.0, network.1, ())))
        .map_err(|error| error.to_string())
}

fn lower(table: Table, required: bool, topology: Option<Topology>) -> Config {
    let webhook = table.webhook;
    let default = |port| vec![SocketAddr::new(any(), port)];
    Config {
        sflow: table.sflow.unwrap_or_else(|| default(SFLOW_PORT)),
        ipfix: table.ipfix.unwrap_or_else(|| default(IPFIX_PORT)),
        fireflies: table.fireflies.unwrap_or_else(|| default(firefly::FIREFLY_PORT)),
        receive_buffer_bytes: table.receive_buffer_bytes.unwrap_or(32 << 20),
        topology,
        sites: table.site,
        prefixes: table.prefixes,
        hosts: table.hosts,
        marking: table.marking,
        relays: table.relays,
        exporters: table.exporter,
        combine: table.combine.unwrap_or_default(),
        alerts: table
            .alert
            .into_iter()
            .map(|rule| Rule { webhook: rule.webhook.or_else(|| webhook.clone()), ..rule })
            .collect(),
        store: table.store.unwrap_or(true),
        store_bytes_max: table.store_bytes_max.map_or(STORE_BYTES, |size| size.0),
        clickhouse: None,
        parquet: None,
        required,
    }
}

/// Every address of the machine; IPv4 alone where the kernel has no IPv6.
fn any() -> IpAddr {
    match UdpSocket::bind("[::]:0") {
        Ok(_) => IpAddr::from([0_u8; 16]),
        Err(_) => IpAddr::from([0_u8; 4]),
    }
}
