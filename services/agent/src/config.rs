//! Configuration of an agent, in layers: the file, then `PENSTOCK_*` variables, then flags; later layers win.
//!
//! For: one checked [`Config`]. Not for: the client's side (`penstock login` has its own file), nor for
//! changing a running agent.
//!
//! An error is one line that names the file and line, the variable or the flag. Unknown variables that start
//! with `PENSTOCK_` are ignored: Kubernetes sets some (`PENSTOCK_SERVICE_HOST`) in every container beside a
//! service called penstock.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penstock_host::placement::PlacementPolicy;
use penstock_mover::agent::Limits;
use penstock_mover::session::STREAMS_MAX;
use penstock_units::{BitRate, ByteCount};

use crate::controller;
use crate::destinations::DestinationRules;
use crate::fireflies::{self, TagRule};
use crate::tokens::{CONTROLLER, OWNER, TokenSource};
use penstock_http::CONNECTIONS_MAX;
use penstock_http::access::ReadPolicy;
use penstock_http::fetch::Url;

mod file;
mod types;

pub use types::{
    AccessMode, ExportName, ListenAddress, MetricsAccess, Principal, Retention, RoleName, Tag,
    parse_count, parse_list,
};

/// Read if it exists and no other file is named.
pub const DEFAULT_FILE: &str = "/etc/penstock/penstock.toml";

/// Default TCP port of the mover.
pub const MOVER_PORT: u16 = 8620;

/// Default TCP port of the HTTP API.
pub const HTTP_PORT: u16 = 8621;

/// Least `limits.memory`: one transfer needs this for its buffers.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// An error in the configuration, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An error at a line of the file.
    #[error("{}:{line}: {text}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Message: the error and its remedy.
        text: String,
    },
    /// The file cannot be read.
    #[error("{}: {text}", file.display())]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Reason.
        text: String,
    },
    /// An error in an environment variable.
    #[error("environment variable {name}: {text}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Message: the error and its remedy.
        text: String,
    },
    /// An error in the combined layers.
    #[error("{0}")]
    Whole(String),
}

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
    /// Limit on the streams of all transfers together.
    pub streams: Option<NonZeroU16>,
    /// Limit on buffer memory of all transfers.
    pub memory: Option<ByteCount>,
    /// Retention of partial files of abandoned transfers.
    pub keep_unfinished: Option<Retention>,
    /// Processors that the agent uses.
    pub cpu: Option<PlacementPolicy>,
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
    /// Directory trees that callers may read or write, by name.
    pub exports: Vec<Export>,
    /// Limits on all clients together.
    pub limits: Limits,
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
    /// Controller that gives this agent orders.
    pub controller: Option<controller::Config>,
    /// Processors that the agent uses; none for any.
    pub cpu: Option<PlacementPolicy>,
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

    /// Combines the layers. `file` is the one the user named, `variable` reads the environment.
    ///
    /// # Errors
    /// When the file cannot be read, a value in any layer is invalid, or nothing is exported.
    pub fn load(
        file: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        flags: Layer,
    ) -> Result<Self, ConfigError> {
        // An empty variable counts as absent: compose files and charts always name them.
        let variable = &|name: &str| variable(name).filter(|value| !value.is_empty());
        let named = file.map(PathBuf::from).or_else(|| variable("PENSTOCK_CONFIG").map(Into::into));
        let default = || Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists());
        let file = named.or_else(default);
        let mut contents = match &file {
            Some(file) => file::read(file)?,
            None => file::FileConfig::default(),
        };
        contents.layer = flags.over(Layer::from_variables(variable)?).over(contents.layer);
        lower(contents, file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), variable)
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
            streams: self.streams.or(below.streams),
            memory: self.memory.or(below.memory),
            keep_unfinished: self.keep_unfinished.or(below.keep_unfinished),
            cpu: self.cpu.or(below.cpu),
            roles: self.roles.or(below.roles),
        }
    }

    fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Self, ConfigError> {
        Ok(Self {
            listen: parsed(variable, "PENSTOCK_LISTEN", types::parse_list)?,
            http: parsed(variable, "PENSTOCK_HTTP", types::parse_list)?,
            state: variable("PENSTOCK_STATE").map(Into::into),
            root: variable("PENSTOCK_ROOT").map(Into::into),
            metrics: parsed(variable, "PENSTOCK_METRICS", MetricsAccess::from_str)?,
            tokens: variable("PENSTOCK_TOKENS").map(Into::into),
            rate: parsed(variable, "PENSTOCK_RATE", BitRate::from_str)?,
            transfers: parsed(variable, "PENSTOCK_TRANSFERS", parse_count::<NonZeroUsize>)?,
            streams: parsed(variable, "PENSTOCK_STREAMS", parse_count::<NonZeroU16>)?,
            memory: parsed(variable, "PENSTOCK_MEMORY", ByteCount::from_str)?,
            keep_unfinished: parsed(variable, "PENSTOCK_KEEP_UNFINISHED", Retention::from_str)?,
            cpu: parsed(variable, "PENSTOCK_CPU", PlacementPolicy::from_str)?,
            roles: parsed(variable, "PENSTOCK_ROLES", types::parse_list)?,
        })
    }
}

fn parsed<T, E: std::fmt::Display>(
    variable: &dyn Fn(&str) -> Option<OsString>,
    name: &'static str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = variable(name) else { return Ok(None) };
    let failed = |text| ConfigError::Variable { name, text };
    let text = value.to_str().ok_or_else(|| failed("is not UTF-8".into()))?;
    parse(text).map(Some).map_err(|error| failed(error.to_string()))
}

fn lower(
    contents: file::FileConfig,
    file: &Path,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Config, ConfigError> {
    let file::FileConfig {
        layer,
        mut exports,
        mut tokens,
        token_tags,
        registry,
        collectors,
        marker,
        destinations,
        reading,
        connections,
        controller,
    } = contents;
    let collectors = collectors.iter().map(fireflies::address);
    let collectors = collectors.collect::<Result<_, _>>().map_err(whole)?;
    if let Some(path) = layer.root {
        if exports.iter().any(|export| export.name.as_str() == "/") {
            return Err(whole(
                "both a root directory and an [[export]] with name = \"/\" are given: drop one",
            ));
        }
        let path = std::path::absolute(path).map_err(|error| whole(format!("root: {error}")))?;
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
        controller.check().map_err(whole)?;
    }
    let plays_agent = plays(layer.roles.as_deref(), RoleName::Agent);
    if exports.is_empty() && plays_agent {
        return Err(whole(format!(
            "nothing is exported: give --root DIR, or [[export]] in {}, or --roles without agent",
            file.display()
        )));
    }
    for export in &exports {
        if !export.path.is_dir() {
            let path = export.path.display();
            return Err(whole(format!(
                "export {}: {path} is not a directory: create it, mount it or name another",
                export.name
            )));
        }
    }
    if let Some(file) = layer.tokens {
        tokens.push(TokenSource::List { file });
    }
    if !tokens.iter().any(|source| matches!(source, TokenSource::List { .. })) {
        check_principals(&exports, &tokens, controller.is_some())?;
    }
    let state = match layer.state {
        Some(state) => state,
        None => crate::state::directory(variable).map_err(|error| whole(error.to_string()))?,
    };
    let listen = layer.listen.unwrap_or_else(|| vec![default_listen()]);
    if listen.is_empty() {
        return Err(whole("the agent listens on no address: give --listen ADDR:PORT"));
    }
    let mut limits = limits(layer.rate, layer.transfers, layer.streams, layer.memory)?;
    limits.keep_unfinished = layer.keep_unfinished.unwrap_or(Retention::DEFAULT).0;
    let http = layer.http.unwrap_or_else(|| vec![ListenAddress::new("127.0.0.1", HTTP_PORT)]);
    if !plays_agent && http.is_empty() {
        return Err(whole(
            "without the role agent and without http the node serves nothing: give --http ADDR:PORT",
        ));
    }
    Ok(Config {
        file: file.exists().then(|| file.to_owned()),
        roles: layer.roles,
        reading,
        connections: connections.map_or(CONNECTIONS_MAX, usize::from),
        listen: resolve(&listen, MOVER_PORT)?,
        http: resolve(&http, HTTP_PORT)?,
        state: std::path::absolute(state).map_err(|error| whole(format!("state: {error}")))?,
        exports,
        limits,
        tokens,
        metrics: layer.metrics.unwrap_or(MetricsAccess::Loopback),
        registry,
        collectors,
        marker: marker.unwrap_or_else(|| penstock_marker::DEFAULT_PIN.into()),
        token_tags,
        destinations,
        controller,
        cpu: layer.cpu,
    })
}

/// Refuses an export that names a token which does not exist.
fn check_principals(
    exports: &[Export],
    tokens: &[TokenSource],
    controlled: bool,
) -> Result<(), ConfigError> {
    let known =
        |name: &str| name == OWNER || tokens.iter().any(|source| source.name() == Some(name));
    for export in exports {
        for principal in &export.principals {
            if matches!(principal, Principal::Token(name) if name == CONTROLLER) {
                if !controlled {
                    return Err(whole(format!(
                        "export {} admits '{CONTROLLER}', but no controller is named: add [agent.controller]",
                        export.name
                    )));
                }
                continue;
            }
            if let Principal::Token(name) = principal
                && !known(name)
            {
                return Err(whole(format!(
                    "export {} admits '{name}', but no token has this name: add [[token]] name = \"{name}\"",
                    export.name
                )));
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
) -> Result<Limits, ConfigError> {
    let mut limits = Limits::default();
    // Zero means no limit, as for a transfer.
    limits.rate_bps = rate.map(|rate| rate.0).filter(|rate| *rate > 0).or(limits.rate_bps);
    limits.transfers = transfers.map_or(limits.transfers, usize::from);
    limits.streams = streams.map_or(limits.streams, |streams| usize::from(streams.get()));
    limits.streams_per_transfer =
        streams.map_or(STREAMS_MAX, |streams| streams.get().min(STREAMS_MAX));
    limits.memory_bytes = memory.map_or(limits.memory_bytes, |memory| memory.0);
    if limits.memory_bytes < MEMORY_BYTES_MIN {
        return Err(whole(format!(
            "limit memory: {} is too little for a transfer: give at least {}",
            ByteCount(limits.memory_bytes),
            ByteCount(MEMORY_BYTES_MIN)
        )));
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

fn resolve(listen: &[ListenAddress], default_port: u16) -> Result<Vec<SocketAddr>, ConfigError> {
    let mut seen = HashSet::new();
    let mut addresses = Vec::new();
    for one in listen {
        let port = one.port.unwrap_or(default_port);
        let found = (one.host.as_str(), port).to_socket_addrs().map_err(|error| {
            whole(format!(
                "cannot listen on {}: {error}: give an address of this machine",
                one.host
            ))
        })?;
        // Each port 0 is a different free port.
        addresses.extend(found.filter(|address| address.port() == 0 || seen.insert(*address)));
    }
    Ok(addresses)
}

fn whole(text: impl Into<String>) -> ConfigError {
    ConfigError::Whole(text.into())
}

#[cfg(test)]
mod tests;
