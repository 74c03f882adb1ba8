//! The configuration file as written. Paths in it are relative to its directory.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};

use penstock_control::quota::ClientQuota;
use penstock_daemon::IdentityFiles;
use penstock_daemon::config::values::{
    AddressAndPort, ListenAddress, Retention, count, one_or_many, quantity,
};
use penstock_daemon::config::{ConfigError, ConfigFault, ConfigFile};
use penstock_disk::FabricsTransport;
use penstock_disk::nvme::nqn;
use penstock_host::placement::PlacementPolicy;
use penstock_http::access::ReadPolicy;
use penstock_mover::{CleartextNetworks, DscpPolicy};
use penstock_units::{BitRate, ByteCount, Dscp};
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::error::AgentConfigError;
use super::types::{
    AccessMode, AgentValueError, Audience, CertificateFingerprint, ExportName, MetricsAccess,
    Principal, ReadSetting, RoleName, Tag, TransportSetting, TunerUse,
};
use super::{Export, Layer};
use crate::controller;
use crate::destinations::{CleartextNetwork, DestinationRule, DestinationRules};
use crate::disks::{DiskConfig, DiskExportPolicy, DiskOrigin, DiskSecrets};
use crate::fireflies::TagRule;
use crate::tokens::{TokenSource, check_token_name};
use penstock_http::Url;
use penstock_tokens::IssuerConfig;

/// The lowered content of a configuration file.
#[derive(Debug, Default)]
pub(super) struct FileConfig {
    pub(super) layer: Layer,
    pub(super) exports: Vec<Export>,
    pub(super) disks: Vec<DiskConfig>,
    pub(super) disk_exports: DiskExportPolicy,
    pub(super) tokens: Vec<TokenSource>,
    pub(super) token_tags: HashMap<String, TagRule>,
    pub(super) registry: Option<Url>,
    pub(super) collectors: Vec<ListenAddress>,
    pub(super) marker: Option<PathBuf>,
    pub(super) destinations: DestinationRules,
    pub(super) cleartext: CleartextNetworks,
    pub(super) reading: ReadPolicy,
    pub(super) connections: Option<NonZeroUsize>,
    pub(super) controller: Option<controller::Config>,
    pub(super) issuers: Vec<IssuerConfig>,
    pub(super) quotas: Vec<ClientQuota>,
    pub(super) dscp: DscpPolicy,
    pub(super) identity: Option<IdentityFiles>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentDocument {
    tokens: Option<PathBuf>,
    #[serde(default, deserialize_with = "one_or_many")]
    roles: Option<Vec<RoleName>>,
    #[serde(default)]
    http: HttpTable,
    /// Read by the collector.
    #[serde(default, rename = "collector")]
    _collector: IgnoredAny,
    /// Read by the gateway.
    #[serde(default, rename = "gateway")]
    _gateway: IgnoredAny,
    /// Read by the controller.
    #[serde(default, rename = "controller")]
    _controller: IgnoredAny,
    #[serde(default)]
    agent: AgentTable,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    tuning: TuningTable,
    #[serde(default)]
    scitags: ScitagsTable,
    #[serde(default)]
    third_party: ThirdPartyTable,
    #[serde(default)]
    rdma: RdmaTable,
    #[serde(default)]
    export: Vec<Spanned<ExportTable>>,
    #[serde(default)]
    disk: Vec<Spanned<DiskTable>>,
    #[serde(default)]
    disks: DiskExportsTable,
    #[serde(default)]
    token: Vec<Spanned<TokenTable>>,
    #[serde(default)]
    issuer: Vec<Spanned<IssuerTable>>,
    #[serde(default)]
    quota: Vec<Spanned<TransferQuotaTable>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentTable {
    #[serde(default, deserialize_with = "one_or_many")]
    listen: Option<Vec<ListenAddress>>,
    #[serde(default, deserialize_with = "one_or_many")]
    http: Option<Vec<ListenAddress>>,
    state: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    root: Option<PathBuf>,
    metrics: Option<MetricsAccess>,
    keep_unfinished: Option<Retention>,
    cpu: Option<PlacementPolicy>,
    dscp: Option<Dscp>,
    controller: Option<ControllerLinkTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerLinkTable {
    url: Url,
    token: PathBuf,
    host: String,
    fingerprint: Option<CertificateFingerprint>,
    authorities: Option<PathBuf>,
    #[serde(default, deserialize_with = "quantity")]
    safe_rate: Option<BitRate>,
    #[serde(default)]
    transport: TransportSetting,
    #[serde(default)]
    addresses: Vec<AddressAndPort>,
    #[serde(default)]
    interfaces: Vec<String>,
    #[serde(default, deserialize_with = "quantity")]
    network: Option<BitRate>,
    #[serde(default, deserialize_with = "quantity")]
    read: Option<BitRate>,
    #[serde(default, deserialize_with = "quantity")]
    write: Option<BitRate>,
}

impl ControllerLinkTable {
    fn lower(self, beside: impl Fn(PathBuf) -> PathBuf) -> controller::Config {
        let bps = |rate: Option<BitRate>| rate.map(|rate| rate.0).filter(|rate| *rate > 0);
        controller::Config {
            url: self.url,
            token: beside(self.token),
            fingerprint: self.fingerprint.map(|certificate| certificate.0),
            authorities: self.authorities.map(beside),
            host: self.host,
            safe_rate_bps: self.safe_rate.map_or(controller::SAFE_RATE_BPS, |rate| rate.0),
            transport: self.transport.0,
            addresses: self.addresses.into_iter().map(|address| address.0).collect(),
            interfaces: self.interfaces,
            network_bps: bps(self.network),
            read_bps: bps(self.read),
            write_bps: bps(self.write),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpTable {
    read: Option<ReadSetting>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default, deserialize_with = "count")]
    connections: Option<NonZeroUsize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    #[serde(default, deserialize_with = "quantity")]
    rate: Option<BitRate>,
    #[serde(default, deserialize_with = "count")]
    transfers: Option<NonZeroUsize>,
    #[serde(default, deserialize_with = "count")]
    transfers_per_caller: Option<NonZeroUsize>,
    #[serde(default, deserialize_with = "count")]
    streams: Option<NonZeroU16>,
    #[serde(default, deserialize_with = "quantity")]
    memory: Option<ByteCount>,
    dscp: Option<Vec<Dscp>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TuningTable {
    mode: Option<TunerUse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScitagsTable {
    registry: Option<Url>,
    #[serde(default, deserialize_with = "one_or_many")]
    collectors: Option<Vec<ListenAddress>>,
    marker: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThirdPartyTable {
    #[serde(default, deserialize_with = "one_or_many")]
    to: Option<Vec<DestinationRule>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RdmaTable {
    #[serde(default, deserialize_with = "one_or_many")]
    unencrypted: Option<Vec<CleartextNetwork>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExportTable {
    path: PathBuf,
    name: ExportName,
    #[serde(default = "read_only")]
    mode: AccessMode,
    #[serde(default)]
    who: Vec<Principal>,
    scitag: Option<Tag>,
    #[serde(default)]
    force_scitag: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskTable {
    path: PathBuf,
    name: Option<String>,
    #[serde(default, deserialize_with = "one_or_many")]
    to: Option<Vec<String>>,
    #[serde(default)]
    transport: FabricsTransport,
    #[serde(default, deserialize_with = "one_or_many")]
    address: Option<Vec<IpAddr>>,
    port: Option<u16>,
    secret_file: Option<PathBuf>,
}

impl DiskTable {
    fn lower(self, file: &ConfigFile) -> Result<DiskConfig, ConfigFault> {
        let stem = || self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let name = self.name.clone().unwrap_or_else(stem);
        nqn::of_disk(&name)?;
        let hosts = self.to.unwrap_or_default();
        if hosts.is_empty() {
            let text = format!(
                "disk {name} admits no host: add to = [\"nqn...\"]; penstock disk list prints the name of a host"
            );
            return Err(text.into());
        }
        for host in &hosts {
            nqn::checked(host)?;
        }
        let listens = target_addresses(self.address, self.port);
        Ok(DiskConfig {
            name,
            path: file.beside(self.path),
            hosts,
            transport: self.transport,
            listens,
            secrets: self
                .secret_file
                .map_or(DiskSecrets::None, |path| DiskSecrets::Shared(file.beside(path))),
            origin: DiskOrigin::Configuration,
        })
    }
}

/// Addresses on which a target listens.
fn target_addresses(addresses: Option<Vec<IpAddr>>, port: Option<u16>) -> Vec<SocketAddr> {
    let port = port.unwrap_or(penstock_disk::DEFAULT_PORT);
    let addresses = addresses.unwrap_or_else(|| vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)]);
    addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Exports by clients of the API.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskExportsTable {
    #[serde(default, deserialize_with = "one_or_many")]
    allow: Option<Vec<PathBuf>>,
    #[serde(default, deserialize_with = "one_or_many")]
    address: Option<Vec<IpAddr>>,
    port: Option<u16>,
    secrets: Option<bool>,
}

impl DiskExportsTable {
    fn lower(self, beside: impl Fn(PathBuf) -> PathBuf) -> DiskExportPolicy {
        DiskExportPolicy {
            allow: self.allow.unwrap_or_default().into_iter().map(beside).collect(),
            listens: target_addresses(self.address, self.port),
            secrets: self.secrets.unwrap_or(true),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenTable {
    name: String,
    sha256: Option<String>,
    file: Option<PathBuf>,
    scitag: Option<Tag>,
    #[serde(default)]
    force_scitag: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct IssuerTable {
    name: String,
    url: String,
    #[serde(default, deserialize_with = "one_or_many")]
    audience: Option<Vec<Audience>>,
    base: ExportName,
    jwks_file: Option<PathBuf>,
    authorities: Option<PathBuf>,
    #[serde(default)]
    reads_api: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TransferQuotaTable {
    client: String,
    bytes: ByteCount,
}

impl IssuerTable {
    fn lower(self, file: &ConfigFile) -> IssuerConfig {
        let audiences = self.audience.unwrap_or_default();
        IssuerConfig {
            name: self.name,
            url: self.url,
            audiences: audiences.into_iter().map(|audience| audience.0).collect(),
            base: self.base.to_scope_path(),
            jwks_file: self.jwks_file.map(|path| file.beside(path)),
            authorities: self.authorities.map(|path| file.beside(path)),
            reads_api: self.reads_api,
        }
    }
}

/// Builds the tag rule of an export or a token.
fn rule(tag: Option<Tag>, force: bool) -> Result<Option<TagRule>, AgentValueError> {
    match tag {
        Some(Tag(tag)) => Ok(Some(TagRule { tag, force })),
        None if force => Err(AgentValueError::NoForcedScitag),
        None => Ok(None),
    }
}

fn read_only() -> AccessMode {
    AccessMode::Read
}

/// Reads and checks the file at `path`.
pub(super) fn read(path: &Path) -> Result<FileConfig, ConfigError> {
    parse(&ConfigFile::read(path)?)
}

pub(super) fn parse(file: &ConfigFile) -> Result<FileConfig, ConfigError> {
    let document: AgentDocument = file.document()?;
    let at = |offset: usize, fault: ConfigFault| file.error_at(offset, fault);
    let beside = |path: PathBuf| file.beside(path);

    let mut exports = Vec::new();
    let mut names = HashSet::new();
    for table in document.export {
        let offset = table.span().start;
        let ExportTable { path, name, mode, who, scitag, force_scitag } = table.into_inner();
        let scitag = rule(scitag, force_scitag).map_err(|error| at(offset, error.into()))?;
        if !names.insert(name.clone()) {
            let text = format!("a second export is called {name}: rename one of them");
            return Err(at(offset, text.into()));
        }
        if who.is_empty() {
            let text = format!(
                "export {name} admits no client: add who = [\"*\"] for everyone with a token, or a list of token names"
            );
            return Err(at(offset, text.into()));
        }
        exports.push(Export { name, path: beside(path), mode, principals: who, scitag });
    }

    let mut disks: Vec<DiskConfig> = Vec::new();
    for table in document.disk {
        let offset = table.span().start;
        let disk = table.into_inner().lower(file).map_err(|fault| at(offset, fault))?;
        if disks.iter().any(|other| other.name == disk.name) {
            let text = format!("a second disk is called {}: give one another name", disk.name);
            return Err(at(offset, text.into()));
        }
        disks.push(disk);
    }

    let mut tokens = Vec::new();
    let mut token_tags = HashMap::new();
    for table in document.token {
        let offset = table.span().start;
        let TokenTable { name, sha256, file, scitag, force_scitag } = table.into_inner();
        if let Some(rule) = rule(scitag, force_scitag).map_err(|error| at(offset, error.into()))? {
            token_tags.insert(name.clone(), rule);
        }
        check_token_name(&name).map_err(|error| at(offset, error.into()))?;
        tokens.push(match (sha256, file) {
            (Some(hex), None) => {
                TokenSource::hashed(name, &hex).map_err(|error| at(offset, error.into()))?
            }
            (None, Some(file)) => TokenSource::File { name, file: beside(file) },
            _ => {
                let text = format!("token {name}: give sha256 or file, one of them");
                return Err(at(offset, text.into()));
            }
        });
    }

    let mut issuers: Vec<IssuerConfig> = Vec::new();
    for table in document.issuer {
        let offset = table.span().start;
        let issuer = table.into_inner().lower(file);
        check_token_name(&issuer.name).map_err(|error| at(offset, error.into()))?;
        issuer.check().map_err(|error| at(offset, error.into()))?;
        let IssuerConfig { name, url, .. } = &issuer;
        if issuers.iter().any(|other| other.name == *name || other.url == *url) {
            let text = format!("a second issuer is called {name} or has its url");
            return Err(at(offset, text.into()));
        }
        issuers.push(issuer);
    }

    let mut quotas: Vec<ClientQuota> = Vec::new();
    for table in document.quota {
        let offset = table.span().start;
        let TransferQuotaTable { client, bytes } = table.into_inner();
        let quota = ClientQuota { client, requests: None, bytes: Some(bytes.0) };
        quotas.push(quota.checked(&quotas).map_err(|error| at(offset, error.into()))?);
    }

    let identity = match (document.agent.certificate, document.agent.key) {
        (Some(certificate), Some(key)) => {
            Some(IdentityFiles { certificate: beside(certificate), key: beside(key) })
        }
        (None, None) => None,
        _ => return Err(ConfigError::combined(AgentConfigError::HalfIdentity)),
    };
    let layer = Layer {
        listen: document.agent.listen,
        http: document.agent.http,
        state: document.agent.state.map(beside),
        root: document.agent.root.map(beside),
        metrics: document.agent.metrics,
        tokens: document.tokens.map(beside),
        rate: document.limits.rate,
        transfers: document.limits.transfers,
        transfers_per_caller: document.limits.transfers_per_caller,
        streams: document.limits.streams,
        memory: document.limits.memory,
        keep_unfinished: document.agent.keep_unfinished,
        cpu: document.agent.cpu,
        tuning: document.tuning.mode,
        roles: document.roles,
    };
    Ok(FileConfig {
        controller: document.agent.controller.map(|table| table.lower(beside)),
        layer,
        exports,
        disks,
        disk_exports: document.disks.lower(beside),
        tokens,
        token_tags,
        registry: document.scitags.registry,
        collectors: document.scitags.collectors.unwrap_or_default(),
        marker: document.scitags.marker.map(beside),
        destinations: document.third_party.to.map(DestinationRules).unwrap_or_default(),
        cleartext: document.rdma.unencrypted.into_iter().flatten().map(|one| one.0).collect(),
        reading: ReadPolicy {
            read: document.http.read.map(|access| access.0).unwrap_or_default(),
            names: document.http.names,
        },
        connections: document.http.connections,
        issuers,
        quotas,
        dscp: DscpPolicy {
            own: document.agent.dscp.unwrap_or_default(),
            clients: document.limits.dscp.unwrap_or_else(|| DscpPolicy::default().clients),
        },
        identity,
    })
}
