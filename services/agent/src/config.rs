//! What an agent is told to do: the file, then `PENSTOCK_*` variables, then flags; the later wins.
//!
//! For: one checked [`Config`] that the rest of the agent obeys without asking again. Not for: the
//! client's side (`penstock login` has its own file), nor for changing a running agent.
//!
//! Fails with one line that names the file and the line in it, the variable or the flag. Variables that
//! start with `PENSTOCK_` but are not listed here are left alone: Kubernetes sets such ones
//! (`PENSTOCK_SERVICE_HOST`) in every container beside a service called penstock.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penstock_host::placement::Wish;
use penstock_mover::agent::Limits;
use penstock_mover::session::STREAMS_MAX;
use penstock_units::{BitRate, ByteCount};

use crate::controller;
use crate::destinations::Destinations;
use crate::fireflies::{self, TagRule};
use crate::tokens::{CONTROLLER, OWNER, TokenSource};
use penstock_http::CONNECTIONS_MAX;
use penstock_http::access::ReadPolicy;
use penstock_http::fetch::Url;

mod file;
mod words;

pub use words::{
    ExportName, Keep, Listen, MetricsAccess, Mode, RoleName, Tag, Who, parse_count, parse_list,
};

/// Read when it is there and no other file is named.
pub const DEFAULT_FILE: &str = "/etc/penstock/penstock.toml";

/// TCP port of the mover.
pub const MOVER_PORT: u16 = 8620;

/// TCP port of the HTTP API.
pub const HTTP_PORT: u16 = 8621;

/// The least memory for buffers with which a transfer gets anywhere.
const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// An error in what the agent was told, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// In the file.
    #[error("{}:{line}: {text}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Line in it, from 1.
        line: usize,
        /// What is wrong and how to mend it.
        text: String,
    },
    /// The file itself.
    #[error("{}: {text}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        text: String,
    },
    /// In a variable.
    #[error("environment variable {name}: {text}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        text: String,
    },
    /// In the whole.
    #[error("{0}")]
    Whole(String),
}

/// A directory tree that clients may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// What clients call it: `/store`.
    pub name: ExportName,
    /// Where it is.
    pub path: PathBuf,
    /// What may be done there.
    pub mode: Mode,
    /// By whom.
    pub who: Vec<Who>,
    /// Whose data is there.
    pub scitag: Option<TagRule>,
}

/// What one layer (variables, flags) says; the layer below holds where it says nothing.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    /// Addresses of the mover.
    pub listen: Option<Vec<Listen>>,
    /// Addresses of the HTTP API; an empty list for no API.
    pub http: Option<Vec<Listen>>,
    /// The state directory.
    pub state: Option<PathBuf>,
    /// A directory to export as `/`, to be read and written by everyone who has a token.
    pub root: Option<PathBuf>,
    /// Who reads `/metrics`.
    pub metrics: Option<MetricsAccess>,
    /// File with lines of `name token`.
    pub tokens: Option<PathBuf>,
    /// Total rate of all transfers.
    pub rate: Option<BitRate>,
    /// Most transfers at once.
    pub transfers: Option<NonZeroUsize>,
    /// Most streams of all transfers together.
    pub streams: Option<NonZeroU16>,
    /// Memory for buffers of all transfers.
    pub memory: Option<ByteCount>,
    /// How long unfinished files of abandoned transfers are kept.
    pub keep_unfinished: Option<Keep>,
    /// On which processors.
    pub cpu: Option<Wish>,
    /// What this node does.
    pub roles: Option<Vec<RoleName>>,
}

/// What an agent does; see the module.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file that was read; `None` where there is none.
    pub file: Option<PathBuf>,
    /// What this node does; `None` for everything that it can.
    pub roles: Option<Vec<RoleName>>,
    /// Who reads over HTTP without a token.
    pub reading: ReadPolicy,
    /// Connections of HTTP at once.
    pub connections: usize,
    /// Addresses of the mover.
    pub listen: Vec<SocketAddr>,
    /// Addresses of the HTTP API; empty for none.
    pub http: Vec<SocketAddr>,
    /// The state directory.
    pub state: PathBuf,
    /// What clients may use.
    pub exports: Vec<Export>,
    /// Bounds on all clients together.
    pub limits: Limits,
    /// Tokens besides the agent's own.
    pub tokens: Vec<TokenSource>,
    /// Who reads `/metrics`.
    pub metrics: MetricsAccess,
    /// From where the scitags registry is renewed daily; `None` for never.
    pub registry: Option<Url>,
    /// Where fireflies go, besides to the peers of what is sent.
    pub collectors: Vec<SocketAddr>,
    /// Where a marker on this host pins its maps.
    pub marker: PathBuf,
    /// Whose data the bearers of tokens move.
    pub token_tags: HashMap<String, TagRule>,
    /// Where files go to in copies between agents.
    pub destinations: Destinations,
    /// Who gives this agent orders.
    pub controller: Option<controller::Config>,
    /// On which processors it runs: any, if it is not said.
    pub cpu: Option<Wish>,
}

/// Whether a node with these roles plays this one.
fn plays(roles: Option<&[RoleName]>, role: RoleName) -> bool {
    roles.is_none_or(|roles| roles.contains(&role))
}

impl Config {
    /// Whether this role is played.
    #[must_use]
    pub fn plays(&self, role: RoleName) -> bool {
        plays(self.roles.as_deref(), role)
    }

    /// Puts the layers together. `file` is the one the user named, `variable` the environment.
    ///
    /// # Errors
    /// When the file cannot be read, any layer has something that cannot be, or nothing is exported.
    pub fn load(
        file: Option<&Path>,
        variable: &dyn Fn(&str) -> Option<OsString>,
        flags: Layer,
    ) -> Result<Self, ConfigError> {
        // Set to nothing means not set, as in compose files and charts that always name a variable.
        let variable = &|name: &str| variable(name).filter(|value| !value.is_empty());
        let named = file.map(PathBuf::from).or_else(|| variable("PENSTOCK_CONFIG").map(Into::into));
        let default = || Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists());
        let file = named.or_else(default);
        let mut contents = match &file {
            Some(file) => file::read(file)?,
            None => file::Contents::default(),
        };
        contents.layer = flags.over(Layer::from_variables(variable)?).over(contents.layer);
        lower(contents, file.as_deref().unwrap_or(Path::new(DEFAULT_FILE)), variable)
    }

    /// The export of this name.
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
            listen: parsed(variable, "PENSTOCK_LISTEN", words::parse_list)?,
            http: parsed(variable, "PENSTOCK_HTTP", words::parse_list)?,
            state: variable("PENSTOCK_STATE").map(Into::into),
            root: variable("PENSTOCK_ROOT").map(Into::into),
            metrics: parsed(variable, "PENSTOCK_METRICS", MetricsAccess::from_str)?,
            tokens: variable("PENSTOCK_TOKENS").map(Into::into),
            rate: parsed(variable, "PENSTOCK_RATE", BitRate::from_str)?,
            transfers: parsed(variable, "PENSTOCK_TRANSFERS", parse_count::<NonZeroUsize>)?,
            streams: parsed(variable, "PENSTOCK_STREAMS", parse_count::<NonZeroU16>)?,
            memory: parsed(variable, "PENSTOCK_MEMORY", ByteCount::from_str)?,
            keep_unfinished: parsed(variable, "PENSTOCK_KEEP_UNFINISHED", Keep::from_str)?,
            cpu: parsed(variable, "PENSTOCK_CPU", Wish::from_str)?,
            roles: parsed(variable, "PENSTOCK_ROLES", words::parse_list)?,
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
    contents: file::Contents,
    file: &Path,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Config, ConfigError> {
    let file::Contents {
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
            mode: Mode::ReadWrite,
            who: vec![Who::Anyone],
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
        check_who(&exports, &tokens, controller.is_some())?;
    }
    let state = match layer.state {
        Some(state) => state,
        None => crate::state::directory(variable).map_err(|error| whole(error.to_string()))?,
    };
    let listen = layer.listen.unwrap_or_else(|| vec![default_listen()]);
    if listen.is_empty() {
        return Err(whole("the agent listens nowhere: give --listen ADDR:PORT"));
    }
    let mut limits = limits(layer.rate, layer.transfers, layer.streams, layer.memory)?;
    limits.keep_unfinished = layer.keep_unfinished.unwrap_or(Keep::DEFAULT).0;
    let http = layer.http.unwrap_or_else(|| vec![Listen::new("127.0.0.1", HTTP_PORT)]);
    if !plays_agent && http.is_empty() {
        return Err(whole(
            "without the role agent and without http there is nothing to ask: give --http ADDR:PORT",
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

/// Refuses an export that names a token which cannot come.
fn check_who(
    exports: &[Export],
    tokens: &[TokenSource],
    controlled: bool,
) -> Result<(), ConfigError> {
    let known =
        |name: &str| name == OWNER || tokens.iter().any(|source| source.name() == Some(name));
    for export in exports {
        for who in &export.who {
            if matches!(who, Who::Token(name) if name == CONTROLLER) {
                if !controlled {
                    return Err(whole(format!(
                        "export {} lets in '{CONTROLLER}', but no controller is named: add [agent.controller]",
                        export.name
                    )));
                }
                continue;
            }
            if let Who::Token(name) = who
                && !known(name)
            {
                return Err(whole(format!(
                    "export {} lets in '{name}', but no token is called so: add [[token]] name = \"{name}\"",
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
    // Zero means no limit here as it does for a transfer.
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

/// Every address of the machine; IPv4 alone where the kernel has no IPv6.
fn default_listen() -> Listen {
    match TcpListener::bind("[::]:0") {
        Ok(_) => Listen::new("::", MOVER_PORT),
        Err(_) => Listen::new("0.0.0.0", MOVER_PORT),
    }
}

fn resolve(listen: &[Listen], default_port: u16) -> Result<Vec<SocketAddr>, ConfigError> {
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
        // Port 0 asks for any port, each time another.
        addresses.extend(found.filter(|address| address.port() == 0 || seen.insert(*address)));
    }
    Ok(addresses)
}

fn whole(text: impl Into<String>) -> ConfigError {
    ConfigError::Whole(text.into())
}

#[cfg(test)]
mod tests;
