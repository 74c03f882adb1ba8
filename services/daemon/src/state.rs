//! The state directory of a daemon or a client, and the secrets in it.
//!
//! It is `$PENSTOCK_STATE`, else `/var/lib/penstock` for root, else the user's XDG state directory, created
//! with mode 0700. An existing one may be readable by others, since secrets have mode 0600, but not writable:
//! replacing the key would be taking over the daemon.
//!
//! The identity and the token are created once, under a lock. One agent runs on a directory at a time. Files
//! are written under a temporary name and renamed, so that a crash leaves the old or the new one.
//!
//! Not for: transfer journals, which the mover keeps in the same directory.
//!
//! An error names the file, the reason and the command that repairs it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penstock_http::tokens::{TokenSyntaxError, check_token, hex};
use penstock_identity::{Identity, IdentityError};
use penstock_sys::lock::ExclusiveFileLock;
use penstock_sys::machine::effective_user;

use crate::config::Environment;

/// File of the agent's certificate (PEM).
pub const CERTIFICATE: &str = "agent.crt";

/// File of the private key (PEM, mode 0600).
pub const KEY: &str = "agent.key";

/// File of the agent's own token (mode 0600).
pub const TOKEN: &str = "token";

/// File of the key for derived tokens (mode 0600).
pub const MACAROON_KEY: &str = "macaroon.key";

/// Time to wait for the lock: creating a key takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Time for an agent that is shutting down or was killed to release the directory.
const AGENT_LOCK_WAIT: Duration = Duration::from_secs(2);

/// A state directory or file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("state {}: {fault}", path.display())]
pub struct StateError {
    /// Path of the directory or file.
    pub path: PathBuf,
    /// Fault of the directory or file.
    pub fault: StateFault,
}

/// Fault of a state directory or of a file in it.
#[derive(Debug, thiserror::Error)]
pub enum StateFault {
    /// No variable names a directory.
    #[error("HOME is not set: set PENSTOCK_STATE to a directory")]
    NoHome,
    /// An operation of the file system that failed.
    #[error("{failure}: {}", penstock_sys::fs::describe(source))]
    Io {
        /// The failure, such as `cannot be read`.
        failure: &'static str,
        /// Error of the operation.
        source: io::Error,
    },
    /// Another kind of file in place of the directory.
    #[error("is not a directory: remove it or set PENSTOCK_STATE to another")]
    NotADirectory,
    /// A directory of another user.
    #[error(
        "belongs to user {owner} and not to you (user {user}): set PENSTOCK_STATE to a directory of yours"
    )]
    Foreign {
        /// User that owns it.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// A directory with a mode by which others may write to it.
    #[error(
        "others may write to it (mode {0:04o}) and could put in their own key: chmod 700 it, or set PENSTOCK_STATE to a new directory inside it"
    )]
    Writable(u32),
    /// A secret with a mode by which others may read or change it.
    #[error(
        "holds a secret and others may read or change it (mode {0:04o}): chmod 600 it, and remove it instead if it may have been read"
    )]
    Exposed(u32),
    /// A certificate or key that cannot be used.
    #[error(
        "{0}: restore it, or remove {CERTIFICATE} and {KEY} to get a new identity (clients must log in again)"
    )]
    Identity(#[from] IdentityError),
    /// A certificate without its key.
    #[error(
        "its key {KEY} is gone: restore it, or remove {CERTIFICATE} and {KEY} to get a new identity (clients must log in again)"
    )]
    NoKey,
    /// A secret of another form.
    #[error("{source}: restore it, or remove it to get a new one ({loss})")]
    Secret {
        /// Fault of the secret.
        source: TokenSyntaxError,
        /// Consequence of a new secret.
        loss: &'static str,
    },
    /// A lock that another process holds for long.
    #[error("another process holds it for long: see who with fuser")]
    Locked,
    /// A directory on which another agent runs.
    #[error(
        "an agent runs on this directory already (process {process}): stop it, or give this one another with --state DIR"
    )]
    AgentRuns {
        /// Number of its process.
        process: String,
    },
}

impl StateFault {
    const fn io(failure: &'static str, source: io::Error) -> Self {
        Self::Io { failure, source }
    }

    fn at(self, path: impl Into<PathBuf>) -> StateError {
        StateError { path: path.into(), fault: self }
    }
}

/// Path of the state directory in an environment.
///
/// # Errors
/// When neither `PENSTOCK_STATE`, `XDG_STATE_HOME` nor `HOME` is set.
pub fn directory(environment: Environment<'_>) -> Result<PathBuf, StateError> {
    if let Some(path) = environment.path("PENSTOCK_STATE") {
        return Ok(path);
    }
    if effective_user() == 0 {
        return Ok("/var/lib/penstock".into());
    }
    // XDG Base Directory Specification: relative paths are invalid and must be ignored.
    let xdg = environment.path("XDG_STATE_HOME").filter(|path| path.is_absolute());
    xdg.or_else(|| environment.path("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("penstock"))
        .ok_or_else(|| StateFault::NoHome.at("directory"))
}

/// [`directory`] in the environment of this process.
///
/// # Errors
/// As [`directory`].
pub fn default_directory() -> Result<PathBuf, StateError> {
    directory(Environment::of_process())
}

/// An open state directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
}

/// Secrets that identify an agent.
#[derive(Debug)]
pub struct Credentials {
    /// Certificate with its private key.
    pub identity: Identity,
    /// Token of the agent's operator.
    pub token: String,
    /// True if any of these was created by this call.
    pub new: bool,
}

impl StateDir {
    /// Opens the directory at `path`, and creates it if needed.
    ///
    /// # Errors
    /// When it cannot be created, is no directory, belongs to another user or is writable by others.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        if !path.exists() {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)
                    .map_err(|error| StateFault::io("cannot be created", error).at(parent))?;
            }
            match DirBuilder::new().mode(0o700).create(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(StateFault::io("cannot be created", error).at(path));
                }
                _ => {}
            }
        }
        let facts =
            fs::metadata(path).map_err(|error| StateFault::io("cannot be used", error).at(path))?;
        let (owner, user) = (facts.uid(), effective_user());
        if !facts.is_dir() {
            return Err(StateFault::NotADirectory.at(path));
        }
        if owner != user && owner != 0 {
            return Err(StateFault::Foreign { owner, user }.at(path));
        }
        if facts.mode() & 0o022 != 0 {
            return Err(StateFault::Writable(facts.mode() & 0o7777).at(path));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// Path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The agent's identity and token, created on the first call.
    ///
    /// # Errors
    /// When a file cannot be read or written, is malformed, or is readable by others.
    pub fn credentials(&self) -> Result<Credentials, StateError> {
        let _lock = self.lock()?;
        let new = self.read(CERTIFICATE)?.is_none() || self.read(TOKEN)?.is_none();
        Ok(Credentials { identity: self.identity()?, token: self.token()?, new })
    }

    /// The agent's identity and token, or `None` if no agent was ever started on this directory.
    ///
    /// # Errors
    /// As [`Self::credentials`].
    pub fn existing_credentials(&self) -> Result<Option<Credentials>, StateError> {
        let (certificate, token) = (self.read(CERTIFICATE)?, self.read(TOKEN)?);
        if certificate.is_none() || token.is_none() {
            return Ok(None);
        }
        // Key and certificate are replaced one after the other. Without write access there is no lock.
        let _lock = self.lock().ok();
        Ok(Some(Credentials { identity: self.identity()?, token: self.token()?, new: false }))
    }

    /// Makes `certificate` and `key` (PEM) the identity of the directory, in place of an earlier one.
    ///
    /// # Errors
    /// When they are malformed or do not belong together, or the directory cannot be written.
    pub fn install_identity(&self, certificate: &str, key: &str) -> Result<(), StateError> {
        let _lock = self.lock()?;
        Identity::from_pem(certificate, key)
            .map_err(|error| StateFault::Identity(error).at(self.path.join(CERTIFICATE)))?;
        let is_present = self.read(CERTIFICATE)?.as_deref() == Some(certificate)
            && self.read(KEY)?.as_deref() == Some(key);
        if !is_present {
            self.write(KEY, key.as_bytes(), 0o600)?;
            self.write(CERTIFICATE, certificate.as_bytes(), 0o644)?;
        }
        Ok(())
    }

    /// The agent's identity as the files have it now; a new one where the certificate was removed.
    ///
    /// # Errors
    /// As [`Self::credentials`].
    pub fn stored_identity(&self) -> Result<Identity, StateError> {
        let _lock = self.lock()?;
        self.identity()
    }

    fn identity(&self) -> Result<Identity, StateError> {
        let failed = |fault: StateFault| fault.at(self.path.join(CERTIFICATE));
        match (self.read(CERTIFICATE)?, self.read_secret(KEY)?) {
            (Some(certificate), Some(key)) => {
                Identity::from_pem(&certificate, &key).map_err(|error| failed(error.into()))
            }
            (Some(_), None) => Err(failed(StateFault::NoKey)),
            // The certificate is written last: a lone key is the result of a crash.
            (None, _) => {
                let identity = Identity::generate().map_err(|error| failed(error.into()))?;
                self.write(KEY, identity.key_pem().as_bytes(), 0o600)?;
                self.write(CERTIFICATE, identity.certificate_pem().as_bytes(), 0o644)?;
                Ok(identity)
            }
        }
    }

    fn token(&self) -> Result<String, StateError> {
        self.secret(TOKEN, "clients must log in again")
    }

    /// The key by which the agent signs the tokens that it derives for clients, created on the first call.
    ///
    /// # Errors
    /// As [`Self::credentials`].
    pub fn macaroon_key(&self) -> Result<String, StateError> {
        let _lock = self.lock()?;
        self.secret(MACAROON_KEY, "derived tokens become invalid")
    }

    /// Reads the secret in the file `name`, or creates one of 64 hexadecimal digits.
    fn secret(&self, name: &str, loss: &'static str) -> Result<String, StateError> {
        if let Some(secret) = self.read_secret(name)? {
            let secret = secret.trim().to_owned();
            return match check_token(&secret) {
                Ok(()) => Ok(secret),
                Err(source) => Err(StateFault::Secret { source, loss }.at(self.path.join(name))),
            };
        }
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).expect("the system's random generator works");
        let secret = hex(&bytes);
        self.write(name, format!("{secret}\n").as_bytes(), 0o600)?;
        Ok(secret)
    }

    /// Reads the file `name`; `None` where it does not exist.
    ///
    /// # Errors
    /// When it exists and cannot be read.
    pub fn read(&self, name: &str) -> Result<Option<String>, StateError> {
        let path = self.path.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StateFault::io("cannot be read", error).at(path)),
        }
    }

    /// As [`Self::read`], for a file that only its owner may read.
    ///
    /// # Errors
    /// Also when others may read or change it.
    pub fn read_secret(&self, name: &str) -> Result<Option<String>, StateError> {
        let path = self.path.join(name);
        let Some(text) = self.read(name)? else { return Ok(None) };
        let facts = fs::metadata(&path)
            .map_err(|error| StateFault::io("cannot be read", error).at(&path))?;
        if facts.mode() & 0o077 != 0 {
            return Err(StateFault::Exposed(facts.mode() & 0o7777).at(path));
        }
        Ok(Some(text))
    }

    /// Replaces the file `name` atomically and durably.
    ///
    /// # Errors
    /// When the directory cannot be written.
    pub fn write(&self, name: &str, contents: &[u8], mode: u32) -> Result<(), StateError> {
        let path = self.path.join(name);
        let temporary = self.path.join(format!(".{name}.{}", std::process::id()));
        let put = || -> io::Result<()> {
            let _ = fs::remove_file(&temporary);
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
            file.write_all(contents)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.path)?.sync_all()
        };
        put().map_err(|error| {
            let _ = fs::remove_file(&temporary);
            StateFault::io("cannot be written", error).at(path)
        })
    }

    /// Locks the files against other writers, until dropped.
    ///
    /// # Errors
    /// When the directory cannot be written, or another process holds the lock for long.
    pub fn lock(&self) -> Result<ExclusiveFileLock, StateError> {
        self.lock_within("lock", LOCK_WAIT, |_| StateFault::Locked)
    }

    /// Locks the directory against other agents, until dropped.
    ///
    /// # Errors
    /// When another agent runs on it.
    pub fn hold(&self) -> Result<ExclusiveFileLock, StateError> {
        let lock = self.lock_within("agent.lock", AGENT_LOCK_WAIT, |path| {
            let process = fs::read_to_string(path).unwrap_or_default();
            StateFault::AgentRuns { process: process.trim().to_owned() }
        })?;
        // The process id is for the message above.
        let _ = lock.file().set_len(0);
        let _ = writeln!(lock.file(), "{}", std::process::id());
        Ok(lock)
    }

    fn lock_within(
        &self,
        name: &str,
        within: Duration,
        held: impl Fn(&Path) -> StateFault,
    ) -> Result<ExclusiveFileLock, StateError> {
        let path = self.path.join(name);
        let begun = Instant::now();
        loop {
            match ExclusiveFileLock::try_lock_at(&path).map_err(|error| {
                StateFault::io("the directory cannot be written", error).at(&path)
            })? {
                Some(lock) => return Ok(lock),
                None if begun.elapsed() > within => return Err(held(&path).at(path)),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
