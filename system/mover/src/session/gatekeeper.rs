//! Authorisation of clients: the interface of the policy, which callers of the mover bring.

use std::net::SocketAddr;
use std::sync::Arc;

use penstock_identity::Fingerprint;
use penstock_protocol::open::{Mark, Refusal};
use penstock_scopes::{PathAccess, TokenGrant};
use penstock_sys::fs::Dir;

use crate::net::cleartext_networks::CleartextNetworks;

/// Authenticated client of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Name of its token or certificate.
    pub name: String,
    /// Number of the pass that it presented, if the gatekeeper issued one for a single purpose.
    /// Transfers of such callers never write one file concurrently.
    pub pass: Option<u64>,
    /// SHA-256 of its token; `None` for a certificate or a pass.
    pub token: Option<[u8; 32]>,
    /// Rights that its token states by itself; `None` for a client whose rights the gatekeeper knows by name.
    pub grant: Option<Arc<TokenGrant>>,
}

/// Resolved path of a client.
#[derive(Debug)]
pub struct ResolvedPath {
    /// Directory that confines the client.
    pub root: Dir,
    /// Path below `root`; empty for the directory itself.
    pub path: Vec<u8>,
    /// Path as the client names it.
    pub shown: String,
}

/// An export with the space of its file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSpace {
    /// Name, such as `/store/cms`.
    pub name: String,
    /// True if clients may read files of the export.
    pub reads: bool,
    /// True if clients may write files to the export.
    pub writes: bool,
    /// Free bytes; 0 where the directory cannot be opened.
    pub available_bytes: u64,
}

/// Authorisation policy; the mover itself has none.
pub trait Gatekeeper: Send + Sync {
    /// Authenticates a client by its token or certificate.
    ///
    /// # Errors
    /// If the client is unknown; the refusal states the remedy.
    fn authenticate(
        &self,
        token: &str,
        certificate: Option<&Fingerprint>,
        peer: &str,
    ) -> Result<Caller, Refusal>;

    /// True if an admitted client is still valid: its token, certificate or order may have been
    /// withdrawn.
    fn still_admits(&self, _caller: &Caller) -> bool {
        true
    }

    /// True if the token or certificate of a client that was admitted is withdrawn. The end of a grant's validity is no
    /// withdrawal.
    fn has_withdrawn(&self, _caller: &Caller) -> bool {
        false
    }

    /// Resolves a path for one use of it. [`PathAccess::Replace`] is for a client that may both create and replace.
    ///
    /// # Errors
    /// If the path does not exist or this client may not use it.
    fn place(
        &self,
        caller: &Caller,
        path: &[u8],
        access: PathAccess,
    ) -> Result<ResolvedPath, Refusal>;

    /// Names of the exports that this client may use, such as `/store/cms`.
    fn exports(&self, _caller: &Caller) -> Vec<String> {
        Vec::new()
    }

    /// All exports with their space; this may wait for a file system.
    fn export_space(&self) -> Vec<ExportSpace> {
        Vec::new()
    }

    /// Returns the scitag of data that a client sends to or gets from a path; `asked` is the client's
    /// choice.
    ///
    /// # Errors
    /// If this client may not set it.
    fn mark(
        &self,
        _caller: &Caller,
        _path: &[u8],
        asked: Option<Mark>,
    ) -> Result<Option<Mark>, Refusal> {
        Ok(asked)
    }

    /// Authorises sending files to `to` for a third-party copy. `from_here` is set when the client is
    /// on this host or `to` is this agent.
    ///
    /// # Errors
    /// If it is not allowed.
    fn may_send_to(&self, _to: SocketAddr, _from_here: bool) -> Result<(), Refusal> {
        Ok(())
    }

    /// Networks in which the operator allows RDMA for copies with encryption.
    fn cleartext_networks(&self) -> CleartextNetworks {
        CleartextNetworks::default()
    }

    /// True if clients act for the user of this process and may therefore set owners.
    fn trusts_owners(&self) -> bool {
        false
    }
}
