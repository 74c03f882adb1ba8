//! Configuration of an agent, in layers: the file, then `PENSTOCK_*` variables, then flags; later layers win.
//!
//! For: one checked [`Config`]. Not for: the client's side (`penstock login` has its own file), nor for
//! changing a running agent.
//!
//! [`penstock_daemon::config`] reads file and variables. Unknown variables that start with `PENSTOCK_` are ignored:
//! Kubernetes sets some (`PENSTOCK_SERVICE_HOST`) in every container beside a service called penstock.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penstock_control::quota::ClientQuota;
use penstock_daemon::config::values::{
    self, ListenAddress, Retention, parse_count, resolve_listen_addresses,
};
use penstock_daemon::config::{ConfigError, DEFAULT_FILE, Environment, find_file};
use penstock_daemon::state;
use penstock_daemon::{DaemonConfig, IdentityFiles};
use penstock_host::placement::PlacementPolicy;
use penstock_mover::{AgentLimits, CleartextNetworks, STREAMS_MAX};
use penstock_tokens::IssuerConfig;
use penstock_units::{BitRate, ByteCount};

use crate::controller;
use crate::destinations::DestinationRules;
use crate::disks::{DiskConfig, DiskExportPolicy};
use crate::fireflies::{self, TagRule};
use crate::tokens::{CONTROLLER, OWNER, TokenSource};
use penstock_http::CONNECTIONS_MAX;
use penstock_http::Url;
use penstock_http::access::ReadPolicy;
use penstock_http::issued_tokens::{ISSUED_TOKENS, IssuedTokenList};

mod error;
mod file;
mod types;

pub use error::AgentConfigError;
pub use types::{AccessMode, ExportName, MetricsAccess, Principal, RoleName, Tag, TunerUse};

/// Default TCP port of the mover.
pub const MOVER_PORT: u16 = 8620;

/// Default TCP port of the HTTP API.
pub const HTTP_PORT: u16 = 8621;

/// Least `limits.memory`: one transfer needs this for its buffers.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// A directory tree that clients may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// Name for clients, such as `/store`.
    pub name: ExportName,
    /// Directory on this host.
    pub path: PathBuf,
    /// Operations that clients may do.
    pub mode: AccessMode,
    /// Clients that may use the export.
    pub principals: Vec<Principal>,
    /// Scitag of the data in the export.
    pub scitag: Option<TagRule>,
}

/// One layer of the configuration; a lower layer supplies values that are absent.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// Addresses on which the mover listens.
    pub listen: Option<Vec<ListenAddress>>,
    /// Addresses on which the HTTP API listens; empty for no API.
    pub http: Option<Vec<ListenAddress>>,
    /// State directory of the agent.
    pub state: Option<PathBuf>,
    /// Directory to export as `/`, readable and writable for every client with a token.
    pub root: Option<PathBuf>,
    /// Access to `/metrics` without a token.
    pub metrics: Option<MetricsAccess>,
    /// File with lines of `name token`.
    pub tokens: Option<PathBuf>,
    /// Limit on the total rate of all transfers.
    pub rate: Option<BitRate>,
    /// Limit on concurrent transfers.
    pub transfers: Option<NonZeroUsize>,
    /// Limit on the concurrent transfers of one client over gateways.
    pub transfers_per_caller: Option<NonZeroUsize>,
    /// Limit on the streams of all transfers together.
    pub streams: Option<NonZeroU16>,
    /// Limit on buffer memory of all transfers.
    pub memory: Option<ByteCount>,
    /// Retention of partial files of abandoned transfers.
    pub keep_unfinished: Option<Retention>,
    /// Processors that the agent uses.
    pub cpu: Option<PlacementPolicy>,
    /// Use of the tuner.
    pub tuning: Option<TunerUse>,
    /// Roles that this node plays.
    pub roles: Option<Vec<RoleName>>,
}

/// The checked configuration of an agent.
#[derive(Debug, Clone)]
pub struct Config {
    /// File that was read; none where there is none.
    pub file: Option<PathBuf>,
    /// Roles that this node plays; none for all that are configured.
    pub roles: Option<Vec<RoleName>>,
    /// Read access to the HTTP API without a token.
    pub reading: ReadPolicy,
    /// Limit on concurrent HTTP connections.
    pub connections: usize,
    /// Addresses on which the mover listens.
    pub listen: Vec<SocketAddr>,
    /// Addresses on which the HTTP API listens; empty for no API.
    pub http: Vec<SocketAddr>,
    /// Absolute path of the state directory.
    pub state: PathBuf,
    /// Certificate and key to use; the state directory makes its own without them.
    pub identity: Option<IdentityFiles>,
    /// Directory trees that callers may read or write, by name.
    pub exports: Vec<Export>,
    /// Disks that the agent exports by the kernel's NVMe target.
    pub disks: Vec<DiskConfig>,
    /// Limits of the exports by clients of the API.
    pub disk_exports: DiskExportPolicy,
    /// Limits on all clients together.
    pub limits: AgentLimits,
    /// Tokens besides the agent's own.
    pub tokens: Vec<TokenSource>,
    /// Access to `/metrics` without a token.
    pub metrics: MetricsAccess,
    /// Source from which the scitags registry is renewed daily; none for never.
    pub registry: Option<Url>,
    /// Collectors that get fireflies besides the peers.
    pub collectors: Vec<SocketAddr>,
    /// Directory on bpffs where a marker on this host pins its maps.
    pub marker: PathBuf,
    /// Scitags of the data that bearers of tokens move, by token name.
    pub token_tags: HashMap<String, TagRule>,
    /// Permitted destinations of third-party copies.
    pub destinations: DestinationRules,
    /// Networks in which RDMA may carry copies with encryption.
    pub cleartext: CleartextNetworks,
    /// Controller that gives this agent orders.
    pub controller: Option<controller::Config>,
    /// Processors that the agent uses; none for any.
    pub cpu: Option<PlacementPolicy>,
    /// Issuers whose tokens the agent accepts.
    pub issuers: Vec<IssuerConfig>,
    /// Quotas of the clients that submit transfers, of which the first that applies to one counts.
    pub quotas: Vec<ClientQuota>,
}

/// Returns true if a node with these roles plays `role`.
fn plays(roles: Option<&[RoleName]>, role: RoleName) -> bool {
    roles.is_none_or(|roles| roles.contains(&role))
}

impl Config {
    /// Returns true if this node plays `role`.
    #[must_use]
    pub fn plays(&self, role: RoleName) -> bool {
        plays(self.roles.as_deref(), role)
    }

    /// Combines the layers. `file` is the one the user named,
    ///
    /// # Errors
    /// When the file cannot be read, a value in any layer is invalid, or nothing is exported.
    pub fn load(
        file: Option<&Path>,
        environment: Environment<'_>,
        flags: Layer,
    ) -> Result<Self, ConfigError> {
        let file = find_file(file, environment);
        let mut contents = match &file {
            Some(file) => file::read(file)?,
            None => file::FileConfig::default(),
        };
        contents.layer = flags.over(Layer::from_environment(environment)?).over(contents.layer);
        lower(contents, file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), environment)
    }

    /// Settings of the daemon around the roles.
    #[must_use]
    pub fn daemon(&self) -> DaemonConfig {
        DaemonConfig {
            state: self.state.clone(),
            identity: self.identity.clone(),
            http: self.http.clone(),
            connections: self.connections,
            reading: self.reading.clone(),
            metrics: self.metrics.into(),
        }
    }

    /// Finds an export by its name.
    #[must_use]
    pub fn export(&self, name: &str) -> Option<&Export> {
        self.exports.iter().find(|export| export.name.as_str() == name)
    }
}

impl Layer {
    fn over(self, below: Self) -> Self {
        Self {
            listen: self.listen.or(below.listen),
            http: self.http.or(below.http),
            state: self.state.or(below.state),
            root: self.root.or(below.root),
            metrics: self.metrics.or(below.metrics),
            tokens: self.tokens.or(below.tokens),
            rate: self.rate.or(below.rate),
            transfers: self.transfers.or(below.transfers),
            transfers_per_caller: self.transfers_per_caller.or(below.transfers_per_caller),
            streams: self.streams.or(below.streams),
            memory: self.memory.or(below.memory),
            keep_unfinished: self.keep_unfinished.or(below.keep_unfinished),
            cpu: self.cpu.or(below.cpu),
            tuning: self.tuning.or(below.tuning),
            roles: self.roles.or(below.roles),
        }
    }

    fn from_environment(environment: Environment<'_>) -> Result<Self, ConfigError> {
        Ok(Self {
            listen: environment.parsed("PENSTOCK_LISTEN", values::parse_list)?,
            http: environment.parsed("PENSTOCK_HTTP", values::parse_list)?,
            state: environment.path("PENSTOCK_STATE"),
            root: environment.path("PENSTOCK_ROOT"),
            metrics: environment.parsed("PENSTOCK_METRICS", MetricsAccess::from_str)?,
            tokens: environment.path("PENSTOCK_TOKENS"),
            rate: environment.parsed("PENSTOCK_RATE", BitRate::from_str)?,
            transfers: environment.parsed("PENSTOCK_TRANSFERS", parse_count::<NonZeroUsize>)?,
            transfers_per_caller: None,
            streams: environment.parsed("PENSTOCK_STREAMS", parse_count::<NonZeroU16>)?,
            memory: environment.parsed("PENSTOCK_MEMORY", ByteCount::from_str)?,
            keep_unfinished: environment.parsed("PENSTOCK_KEEP_UNFINISHED", Retention::from_str)?,
            cpu: environment.parsed("PENSTOCK_CPU", PlacementPolicy::from_str)?,
            tuning: environment.parsed("PENSTOCK_TUNING", TunerUse::from_str)?,
            roles: environment.parsed("PENSTOCK_ROLES", values::parse_list)?,
        })
    }
}

fn lower(
    contents: file::FileConfig,
    file: &Path,
    environment: Environment<'_>,
) -> Result<Config, ConfigError> {
    let file::FileConfig {
        layer,
        mut exports,
        disks,
        disk_exports,
        mut tokens,
        token_tags,
        registry,
        collectors,
        marker,
        destinations,
        cleartext,
        reading,
        connections,
        controller,
        issuers,
        quotas,
        dscp,
        identity,
    } = contents;
    let collectors = collectors.iter().map(fireflies::address);
    let collectors = collectors.collect::<Result<_, _>>().map_err(ConfigError::combined)?;
    if let Some(path) = layer.root {
        if exports.iter().any(|export| export.name.as_str() == "/") {
            return Err(ConfigError::combined(AgentConfigError::RootTwice));
        }
        let path = std::path::absolute(path).map_err(|error| {
            ConfigError::combined(AgentConfigError::Absolute { key: "root", error })
        })?;
        let name = ExportName::root();
        exports.push(Export {
            name,
            path,
            mode: AccessMode::ReadWrite,
            principals: vec![Principal::Anyone],
            scitag: None,
        });
    }
    if let Some(controller) = &controller {
        controller.check().map_err(ConfigError::combined)?;
    }
    let plays_agent = plays(layer.roles.as_deref(), RoleName::Agent);
    if exports.is_empty() && plays_agent {
        let file = file.to_owned();
        return Err(ConfigError::combined(AgentConfigError::NoExport { file }));
    }
    for export in &exports {
        if !export.path.is_dir() {
            let (path, export) = (export.path.clone(), export.name.clone());
            return Err(ConfigError::combined(AgentConfigError::NoDirectory { export, path }));
        }
    }
    check_nested(&exports).map_err(ConfigError::combined)?;
    if let Some(file) = layer.tokens {
        tokens.push(TokenSource::List { file });
    }
    let state = match layer.state {
        Some(state) => state,
        None => state::directory(environment).map_err(ConfigError::combined)?,
    };
    if !tokens.iter().any(|source| matches!(source, TokenSource::List { .. })) {
        // A file that cannot be read is reported when a token of it is used.
        let issued = IssuedTokenList::read(&state.join(ISSUED_TOKENS)).unwrap_or_default();
        check_principals(&exports, &tokens, &issued, controller.is_some())?;
    }
    check_issuers(&exports, &issuers)?;
    let listen = layer.listen.unwrap_or_else(|| vec![default_listen()]);
    if listen.is_empty() {
        return Err(ConfigError::combined(AgentConfigError::NoAddress));
    }
    let mut limits = limits(layer.rate, layer.transfers, layer.streams, layer.memory)?;
    limits.transfers_per_caller = layer
        .transfers_per_caller
        .map_or(AgentLimits::per_caller_default(limits.transfers), usize::from);
    limits.keep_unfinished = layer.keep_unfinished.unwrap_or(Retention::DEFAULT).0;
    limits.tuning = layer.tuning.map_or(limits.tuning, |tuning| tuning.0);
    limits.dscp = dscp;
    let http = layer.http.unwrap_or_else(|| vec![ListenAddress::new("127.0.0.1", HTTP_PORT)]);
    if !plays_agent && http.is_empty() {
        return Err(ConfigError::combined(AgentConfigError::NothingServed));
    }
    Ok(Config {
        file: file.exists().then(|| file.to_owned()),
        roles: layer.roles,
        reading,
        connections: connections.map_or(CONNECTIONS_MAX, usize::from),
        listen: resolve_listen_addresses(&listen, MOVER_PORT)?,
        http: resolve_listen_addresses(&http, HTTP_PORT)?,
        state: std::path::absolute(state).map_err(|error| {
            ConfigError::combined(AgentConfigError::Absolute { key: "state", error })
        })?,
        identity,
        exports,
        disks,
        disk_exports,
        limits,
        tokens,
        metrics: layer.metrics.unwrap_or(MetricsAccess::Loopback),
        registry,
        collectors,
        marker: marker.unwrap_or_else(|| penstock_marker::DEFAULT_PIN.into()),
        token_tags,
        destinations,
        cleartext,
        controller,
        cpu: layer.cpu,
        issuers,
        quotas,
    })
}

/// Refuses an export inside another one on disk that withholds what the outer one permits: by the name of the outer one,
/// its clients read, copy, move and delete the directory of the inner one.
fn check_nested(exports: &[Export]) -> Result<(), AgentConfigError> {
    // Links in the paths would hide that one is inside the other.
    let real: Vec<_> = exports
        .iter()
        .map(|export| export.path.canonicalize().unwrap_or_else(|_| export.path.clone()))
        .collect();
    let admits = |export: &Export, principal: &Principal| {
        let is_known = matches!(principal, Principal::Token(_) | Principal::Certificate(_));
        export.principals.contains(principal)
            || is_known && export.principals.contains(&Principal::Anyone)
    };
    let withholds = |inner: &Export, outer: &Export| {
        let mut ways = [false, true].into_iter();
        ways.any(|writes| outer.mode.allows(writes) && !inner.mode.allows(writes))
            || outer.principals.iter().any(|principal| !admits(inner, principal))
    };
    for (inner, path) in exports.iter().zip(&real) {
        for (outer, outer_path) in exports.iter().zip(&real) {
            let is_inside = path != outer_path && path.starts_with(outer_path);
            if is_inside && withholds(inner, outer) {
                return Err(AgentConfigError::NestedExports {
                    inner: inner.name.clone(),
                    outer: outer.name.clone(),
                    path: path.clone(),
                    outer_path: outer_path.clone(),
                });
            }
        }
    }
    Ok(())
}

/// Refuses exports that name an unknown issuer, and issuers whose tokens no export admits.
fn check_issuers(exports: &[Export], issuers: &[IssuerConfig]) -> Result<(), ConfigError> {
    for export in exports {
        let mut named = export.principals.iter().filter_map(Principal::issuer);
        if let Some(name) = named.find(|name| !issuers.iter().any(|one| one.name == *name)) {
            let (export, issuer) = (export.name.clone(), name.to_owned());
            return Err(ConfigError::combined(AgentConfigError::UnknownIssuer { export, issuer }));
        }
    }
    for IssuerConfig { name, base, .. } in issuers {
        let serves = |export: &Export| {
            let path = export.name.to_scope_path();
            export.principals.iter().any(|one| one.issuer() == Some(name))
                && (path.covers(base) || base.covers(&path))
        };
        if !exports.iter().any(serves) {
            let (base, issuer) = (base.clone(), name.clone());
            return Err(ConfigError::combined(AgentConfigError::UnusedIssuer { base, issuer }));
        }
    }
    Ok(())
}

/// Refuses an export that names a token which does not exist.
fn check_principals(
    exports: &[Export],
    tokens: &[TokenSource],
    issued: &IssuedTokenList,
    controlled: bool,
) -> Result<(), ConfigError> {
    let known = |name: &str| {
        name == OWNER
            || tokens.iter().any(|source| source.name() == Some(name))
            || issued.tokens.iter().any(|token| token.name == name)
    };
    for export in exports {
        for principal in &export.principals {
            if matches!(principal, Principal::Token(name) if name == CONTROLLER) {
                if !controlled {
                    let (export, principal) = (export.name.clone(), CONTROLLER);
                    let error = AgentConfigError::NoController { export, principal };
                    return Err(ConfigError::combined(error));
                }
                continue;
            }
            if let Principal::Token(name) = principal
                && !known(name)
            {
                let (export, token) = (export.name.clone(), name.clone());
                return Err(ConfigError::combined(AgentConfigError::UnknownToken {
                    export,
                    token,
                }));
            }
        }
    }
    Ok(())
}

fn limits(
    rate: Option<BitRate>,
    transfers: Option<NonZeroUsize>,
    streams: Option<NonZeroU16>,
    memory: Option<ByteCount>,
) -> Result<AgentLimits, ConfigError> {
    let mut limits = AgentLimits::default();
    // Zero means no limit, as for a transfer.
    limits.rate_bps = rate.map(|rate| rate.0).filter(|rate| *rate > 0).or(limits.rate_bps);
    limits.transfers = transfers.map_or(limits.transfers, usize::from);
    limits.streams = streams.map_or(limits.streams, |streams| usize::from(streams.get()));
    limits.streams_per_transfer =
        streams.map_or(STREAMS_MAX, |streams| streams.get().min(STREAMS_MAX));
    limits.memory_bytes = memory.map_or(limits.memory_bytes, |memory| memory.0);
    if limits.memory_bytes < MEMORY_BYTES_MIN {
        let (given, least) = (ByteCount(limits.memory_bytes), ByteCount(MEMORY_BYTES_MIN));
        return Err(ConfigError::combined(AgentConfigError::Memory { given, least }));
    }
    Ok(limits)
}

/// The wildcard address; that of IPv4 where the kernel has no IPv6.
fn default_listen() -> ListenAddress {
    match TcpListener::bind("[::]:0") {
        Ok(_) => ListenAddress::new("::", MOVER_PORT),
        Err(_) => ListenAddress::new("0.0.0.0", MOVER_PORT),
    }
}

#[cfg(test)]
mod tests;
