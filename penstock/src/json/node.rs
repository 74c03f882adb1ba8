//! `penstock serve`, `login`, `controller init` and `generate`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Serialize;
use utoipa::ToSchema;

/// First line of a daemon that is ready.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Ready {
    /// Addresses and ports of the collector's inputs, by format: `sflow`, `ipfix`, `fireflies`.
    pub(crate) telemetry: BTreeMap<String, Vec<String>>,
    /// Addresses and ports for transfers.
    pub(crate) listen: Vec<String>,
    /// Addresses and ports of the HTTP API.
    pub(crate) http: Vec<String>,
    /// URLs of the gateway: the exports over HTTP and WebDAV.
    pub(crate) webdav: Vec<String>,
    /// URLs of the gateway for clients of XRootD, `root://` for reading.
    pub(crate) xrootd: Vec<String>,
    /// SHA-256 of the certificate, as `login --fingerprint` takes it.
    pub(crate) fingerprint: String,
}

/// Result of a login.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LoggedIn {
    /// Address and port of the agent.
    pub(crate) address: String,
    /// Name of the token or certificate at the agent; null where the agent was not reached.
    pub(crate) known_as: Option<String>,
    /// Reason why the agent was not reached.
    pub(crate) error: Option<String>,
}

/// A controller that was set up.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Initialized {
    /// Directory of the controller: configuration, topology and tokens.
    #[schema(value_type = String)]
    pub(crate) directory: PathBuf,
    /// Address and port of the controller's HTTP API.
    pub(crate) controller: String,
    /// SHA-256 of the controller's certificate, as `login --fingerprint` takes it.
    pub(crate) fingerprint: String,
    /// Hosts of the topology.
    pub(crate) hosts: Vec<InitializedHost>,
    /// Commands that start the controller and the agents of this machine, in their order.
    pub(crate) commands: Vec<String>,
}

/// A host that was set up.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct InitializedHost {
    /// Name of the host.
    pub(crate) name: String,
    /// Site of the host.
    pub(crate) site: String,
    /// Directory with the configuration and token of the host's agent.
    #[schema(value_type = String)]
    pub(crate) directory: PathBuf,
}

/// Man pages that were written.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ManPages {
    /// Paths of the pages.
    pub(crate) files: Vec<String>,
}

/// Completions for a shell.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Completions {
    /// Name of the shell.
    pub(crate) shell: String,
    /// Text for that shell to read.
    pub(crate) text: String,
}
