//! Disks that the agent exports by the kernel's NVMe target while it runs, and what a host needs to connect.
//!
//! Those of the configuration (`[[disk]]`) are made at the start or a reload and removed when they leave it, and when the
//! agent stops. Clients of the API export further ones below paths that the operator allows ([`DiskExportPolicy`]); these
//! are kept in the state directory and made again at the next start. A disk that cannot be exported is logged with the
//! remedy and tried again at the next reload: the mover works without it.
//!
//! Each host of the API's disks has a secret of its own, made when the first of them admits it and dropped with the last:
//! a host that is admitted again gets another. The kernel has one secret for each host, of all its disks, so a host of the
//! configuration, whose secret is the operator's or none, is not admitted by the API.
//!
//! Not for disks of `penstock disk export`, which have their own process; both have their records in one directory.

use std::fmt;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_daemon::state::StateDir;
use penstock_disk::export::{AdmittedHost, DiskExport, ExportRequest, ExportStore};
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::nvme::nqn;
use penstock_disk::{DiskError, FabricsTransport};

use crate::http::disks::{DiskConnectionFacts, DiskFacts};

mod requested;

pub use requested::{DiskExportPolicy, RequestedDisk, RequestedDisksError};

use requested::RequestedDisks;

/// Directory of the records in the state directory, as `penstock disk` has it.
const RECORDS: &str = "disks";

/// Most disks that clients of the API export.
const REQUESTED_DISKS_MAX: usize = 256;

/// Most hosts of a disk that a client of the API exports.
pub(crate) const DISK_HOSTS_MAX: usize = 256;

/// Origin of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOrigin {
    /// `[[disk]]` of the configuration.
    Configuration,
    /// A client of the API.
    Api,
}

impl DiskOrigin {
    fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Api => "api",
        }
    }
}

/// Secrets that the hosts of a disk need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSecrets {
    /// None: the name of a host is enough.
    None,
    /// The one in this file, for all hosts.
    Shared(PathBuf),
    /// One of its own for each host, made by the agent.
    PerHost,
}

/// Disk to export, with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// Name of the disk, or its qualified name.
    pub name: String,
    /// File or block device.
    pub path: PathBuf,
    /// Qualified names of the hosts that may connect.
    pub hosts: Vec<String>,
    /// Transport of the connections of hosts.
    pub transport: FabricsTransport,
    /// Addresses and ports on which the target listens.
    pub listens: Vec<SocketAddr>,
    /// Secrets that the hosts need.
    pub secrets: DiskSecrets,
    /// Origin of the disk.
    pub origin: DiskOrigin,
}

/// A disk that is not exported.
#[derive(Debug, thiserror::Error)]
pub enum DiskExportError {
    /// The kernel or the file does not allow it.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The secret cannot be read.
    #[error("{}: {reason}", file.display())]
    Secret {
        /// File with the secret.
        file: PathBuf,
        /// Reason.
        reason: String,
    },
    /// The operator does not allow clients of the API to export it.
    #[error("{}: no file or device below the paths that the operator allows ([disks] allow)", .0.display())]
    Path(PathBuf),
    /// The host has its secret, or none, from the configuration.
    #[error(
        "the host {host} is one of disk {disk} of the configuration of the agent, and Linux has one secret for each host: its operator adds the disk there"
    )]
    ConfiguredHost {
        /// Qualified name of the host.
        host: String,
        /// Name of the disk of the configuration.
        disk: String,
    },
}

/// Reason why the agent withholds address and secret of a disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskConnectionError {
    /// No disk of this name.
    #[error("no disk is called '{}': GET /api/v1/disks lists them", .0.escape_debug())]
    Unknown(String),
    /// The disk does not admit the host.
    #[error(
        "disk {name} does not admit the host {}: its operator adds it to the disk's `to` and sends SIGHUP, or admits it by the API",
        host.escape_debug()
    )]
    Host {
        /// Name of the disk.
        name: String,
        /// Qualified name of the host.
        host: String,
    },
    /// The disk is not exported.
    #[error("disk {name} is not exported: {reason}")]
    NotExported {
        /// Name of the disk.
        name: String,
        /// Reason.
        reason: String,
    },
}

/// Reason why a client of the API cannot create, change or end an export.
#[derive(Debug, thiserror::Error)]
pub enum DiskChangeError {
    /// No disk of this name.
    #[error("no disk is called '{}': GET /api/v1/disks lists them", .0.escape_debug())]
    Unknown(String),
    /// The disk does not admit the host.
    #[error("disk {0} does not admit the host {1}")]
    UnknownHost(String, String),
    /// The disk is one of the configuration.
    #[error("disk {0} is of the configuration of the agent: its operator changes it there")]
    Configured(String),
    /// Another disk has the name.
    #[error("another disk is called {0}: end its export, change its hosts, or choose another name")]
    Other(String),
    /// The disk would admit no host.
    #[error("disk {0} admits no other host: end its export instead")]
    LastHost(String),
    /// A limit is reached.
    #[error("there are {0} {1} already, which is the limit")]
    Limit(usize, &'static str),
    /// The agent exports no disks now.
    #[error("this node does not export disks now: it stops, or does not play the role agent")]
    Stopped,
    /// The target refuses.
    #[error(transparent)]
    Export(#[from] DiskExportError),
    /// The list of disks cannot be written.
    #[error(transparent)]
    List(#[from] RequestedDisksError),
}

/// Target of the exports: that of the kernel, or one of a test.
pub trait ExportTarget: fmt::Debug + Send {
    /// Removes the exports of killed processes; returns the qualified names of the disks.
    ///
    /// # Errors
    /// When one cannot be removed.
    fn remove_ended(&self) -> Result<Vec<String>, DiskError>;

    /// Exports a disk until it is removed.
    ///
    /// # Errors
    /// If the target is missing, the file or device is in use, or the target refuses it.
    fn export(&self, request: &ExportRequest) -> Result<Box<dyn TargetExport>, DiskError>;
}

/// An export of a [`ExportTarget`].
pub trait TargetExport: fmt::Debug + Send {
    /// Admits a further host; the connections of the others go on.
    ///
    /// # Errors
    /// When the target refuses: the export is then as before.
    fn admit(&mut self, host: &AdmittedHost) -> Result<(), DiskError>;

    /// Ends the export and the connections of its hosts.
    ///
    /// # Errors
    /// When the target refuses; the next start tries again.
    fn remove(self: Box<Self>) -> Result<(), DiskError>;
}

/// The kernel's target, with the records of the exports in this directory.
#[derive(Debug)]
struct KernelTarget(PathBuf);

impl ExportTarget for KernelTarget {
    fn remove_ended(&self) -> Result<Vec<String>, DiskError> {
        match self.0.exists() {
            true => ExportStore::open(&self.0)?.remove_ended(),
            false => Ok(Vec::new()),
        }
    }

    fn export(&self, request: &ExportRequest) -> Result<Box<dyn TargetExport>, DiskError> {
        Ok(Box::new(ExportStore::open(&self.0)?.export(request)?))
    }
}

impl TargetExport for DiskExport {
    fn admit(&mut self, host: &AdmittedHost) -> Result<(), DiskError> {
        Self::admit(self, host)
    }

    fn remove(self: Box<Self>) -> Result<(), DiskError> {
        Self::remove(*self)
    }
}

/// A disk to export, and its export or the reason for which there is none.
#[derive(Debug)]
struct KnownDisk {
    config: DiskConfig,
    bytes: Option<u64>,
    export: Result<ActiveExport, DiskExportError>,
}

/// An export with the secrets of its hosts.
#[derive(Debug)]
struct ActiveExport {
    export: Box<dyn TargetExport>,
    hosts: Vec<AdmittedHost>,
}

/// Disks that the agent exports.
#[derive(Debug)]
pub struct ExportedDisks {
    state: StateDir,
    target: Box<dyn ExportTarget>,
    policy: DiskExportPolicy,
    /// Disks that clients of the API export, with the secrets of their hosts, as the state directory has them.
    requested: RequestedDisks,
    disks: Vec<KnownDisk>,
    is_stopped: bool,
}

impl ExportedDisks {
    /// Exports `configs` and the disks that clients exported before, after the removal of what a killed agent left in the
    /// kernel.
    #[must_use]
    pub fn start(state: &StateDir, configs: Vec<DiskConfig>, policy: DiskExportPolicy) -> Self {
        let target = KernelTarget(state.path().join(RECORDS));
        Self::start_with(Box::new(target), state, configs, policy)
    }

    /// As [`Self::start`], at this target.
    #[must_use]
    pub fn start_with(
        target: Box<dyn ExportTarget>,
        state: &StateDir,
        configs: Vec<DiskConfig>,
        policy: DiskExportPolicy,
    ) -> Self {
        match target.remove_ended() {
            Ok(removed) => removed.iter().for_each(|nqn| {
                tracing::info!("removed disk {nqn}, whose process was killed");
            }),
            Err(error) => tracing::error!("disks of killed processes remain: {error}"),
        }
        let requested = requested::read(state).unwrap_or_else(|error| {
            tracing::error!("disks that clients exported are lost: {error}");
            RequestedDisks::default()
        });
        let mut exported = Self {
            state: state.clone(),
            target,
            policy: DiskExportPolicy::default(),
            requested,
            disks: Vec::new(),
            is_stopped: false,
        };
        exported.apply(configs, policy);
        exported
    }

    /// No disks, for a node that does not play the role agent.
    #[must_use]
    pub fn none(state: &StateDir) -> Self {
        Self {
            state: state.clone(),
            target: Box::new(KernelTarget(state.path().join(RECORDS))),
            policy: DiskExportPolicy::default(),
            requested: RequestedDisks::default(),
            disks: Vec::new(),
            is_stopped: true,
        }
    }

    /// Removes disks that `configs` lacks or changes, then exports new ones and those that failed before.
    pub fn apply(&mut self, mut configs: Vec<DiskConfig>, policy: DiskExportPolicy) {
        if self.is_stopped {
            return;
        }
        self.policy = policy;
        // Also where the list cannot be written: no host of the API is admitted without its secret.
        let former = self.requested.clone();
        self.requested.settle_secrets(self.policy.secrets);
        if self.requested != former
            && let Err(error) = requested::write(&self.state, &self.requested)
        {
            tracing::error!("secrets of hosts are lost at the next start: {error}");
        }
        for disk in &self.requested.disks {
            let config = self.policy.config_of(disk);
            match configs.iter().any(|other| other.nqn() == config.nqn()) {
                true => {
                    tracing::warn!("disk {}: the configuration has one of this name", disk.name)
                }
                false => configs.push(config),
            }
        }
        let former = std::mem::take(&mut self.disks);
        // Disks of the configuration have their hosts before others.
        let is_kept = |disk: &KnownDisk| {
            configs.contains(&disk.config) && disk.config.check_hosts(configs.iter()).is_ok()
        };
        let (kept, dropped): (Vec<_>, Vec<_>) = former.into_iter().partition(is_kept);
        dropped.into_iter().for_each(remove);
        self.disks = kept;
        for config in configs {
            let position = self.disks.iter().position(|disk| disk.config == config);
            if position.is_some_and(|at| self.disks[at].export.is_ok()) {
                continue;
            }
            let disk = self.export(config);
            match position {
                Some(at) => self.disks[at] = disk,
                None => self.disks.push(disk),
            }
        }
    }

    /// Exports a disk, and logs why it cannot.
    fn export(&self, config: DiskConfig) -> KnownDisk {
        let export = self.try_export(&config, &self.requested);
        match &export {
            Ok(_) => tracing::info!("disk {}: exported on {:?}", config.name, config.listens()),
            Err(error) => tracing::error!("disk {}: not exported: {error}", config.name),
        }
        KnownDisk { bytes: size_of(&config.path), config, export }
    }

    /// Exports a disk; `requested` has the secrets of hosts of the API.
    fn try_export(
        &self,
        config: &DiskConfig,
        requested: &RequestedDisks,
    ) -> Result<ActiveExport, DiskExportError> {
        // Links may have come since the client asked.
        let is_allowed = || self.policy.resolve(&config.path).as_ref() == Some(&config.path);
        if config.origin == DiskOrigin::Api && !is_allowed() {
            return Err(DiskExportError::Path(config.path.clone()));
        }
        config.check_hosts(self.disks.iter().map(|disk| &disk.config))?;
        let shared = match &config.secrets {
            DiskSecrets::Shared(file) => Some(read_secret(file)?),
            DiskSecrets::None | DiskSecrets::PerHost => None,
        };
        let admitted = |nqn: &String| match config.secrets {
            DiskSecrets::PerHost => requested.admitted(nqn),
            _ => AdmittedHost { nqn: nqn.clone(), secret: shared.clone() },
        };
        let request = ExportRequest {
            name: config.name.clone(),
            path: config.path.clone(),
            hosts: config.hosts.iter().map(admitted).collect(),
            transport: config.transport,
            listens: config.listens.clone(),
        };
        Ok(ActiveExport { export: self.target.export(&request)?, hosts: request.hosts })
    }

    /// The disks of the configuration in its order, then those of the API.
    pub(crate) fn list(&self) -> Vec<DiskFacts> {
        self.disks.iter().map(KnownDisk::facts).collect()
    }

    /// Address, transport and secret of a disk, by its name or qualified name, for a host that it admits.
    ///
    /// # Errors
    /// If there is no such disk, it does not admit the host, or it is not exported.
    pub(crate) fn connection(
        &self,
        name: &str,
        host: &str,
    ) -> Result<DiskConnectionFacts, DiskConnectionError> {
        let at = self.find(name).ok_or_else(|| DiskConnectionError::Unknown(name.to_owned()))?;
        let disk = &self.disks[at];
        disk.config.admit(host)?;
        match &disk.export {
            Ok(active) => {
                let admitted = active.hosts.iter().find(|one| one.nqn == host);
                Ok(disk.config.connection(admitted.and_then(|one| one.secret.as_ref())))
            }
            Err(error) => Err(DiskConnectionError::NotExported {
                name: disk.config.name.clone(),
                reason: error.to_string(),
            }),
        }
    }

    /// Position of a disk by its name or qualified name.
    fn find(&self, name: &str) -> Option<usize> {
        let wanted = nqn::of_disk(name).ok()?;
        self.disks.iter().position(|disk| disk.config.nqn() == wanted)
    }

    /// Position of a disk that clients of the API may change.
    fn find_requested(&self, name: &str) -> Result<usize, DiskChangeError> {
        if self.is_stopped {
            return Err(DiskChangeError::Stopped);
        }
        let at = self.find(name).ok_or_else(|| DiskChangeError::Unknown(name.to_owned()))?;
        match self.disks[at].config.origin {
            DiskOrigin::Api => Ok(at),
            DiskOrigin::Configuration => Err(DiskChangeError::Configured(name.to_owned())),
        }
    }

    /// Exports a disk for a client of the API, also after a restart. Returns it, and true unless it was exported before.
    ///
    /// # Errors
    /// If the operator does not allow the path, another disk has the name, or the target refuses it: no disk is added.
    pub(crate) fn create(
        &mut self,
        mut disk: RequestedDisk,
    ) -> Result<(DiskFacts, bool), DiskChangeError> {
        let resolved = self.policy.resolve(&disk.path);
        disk.path = resolved.ok_or_else(|| DiskExportError::Path(disk.path.clone()))?;
        disk.hosts.sort();
        disk.hosts.dedup();
        let config = self.policy.config_of(&disk);
        match self.find_requested(&disk.name) {
            Ok(at) if self.disks[at].config == config => {
                return Ok((self.disks[at].facts(), false));
            }
            Ok(_) => return Err(DiskChangeError::Other(disk.name)),
            Err(DiskChangeError::Unknown(_)) => {}
            Err(error) => return Err(error),
        }
        if self.requested.disks.len() >= REQUESTED_DISKS_MAX {
            return Err(DiskChangeError::Limit(REQUESTED_DISKS_MAX, "exports by the API"));
        }
        let mut requested = self.requested.clone();
        requested.disks.push(disk);
        requested.settle_secrets(self.policy.secrets);
        let export = Ok(self.try_export(&config, &requested)?);
        let known = KnownDisk { bytes: size_of(&config.path), config, export };
        if let Err(error) = self.keep(requested) {
            remove(known);
            return Err(error);
        }
        let facts = known.facts();
        self.disks.push(known);
        Ok((facts, true))
    }

    /// Admits a further host to a disk of the API; the connections of the others go on.
    ///
    /// # Errors
    /// If there is no such disk, or the target refuses the host.
    pub(crate) fn admit(&mut self, name: &str, host: &str) -> Result<DiskFacts, DiskChangeError> {
        let at = self.find_requested(name)?;
        let config = &self.disks[at].config;
        if config.hosts.iter().any(|one| one == host) {
            return Ok(self.disks[at].facts());
        }
        if config.hosts.len() >= DISK_HOSTS_MAX {
            return Err(DiskChangeError::Limit(DISK_HOSTS_MAX, "hosts of this disk"));
        }
        let mut changed = config.clone();
        changed.hosts.push(host.to_owned());
        changed.hosts.sort();
        changed.check_hosts(self.disks.iter().map(|disk| &disk.config))?;
        let former = self.keep_hosts(at, changed.hosts)?;
        let admitted = self.requested.admitted(host);
        if let Ok(active) = &mut self.disks[at].export {
            if let Err(error) = active.export.admit(&admitted) {
                self.keep_hosts(at, former)?;
                return Err(DiskExportError::from(error).into());
            }
            active.hosts.push(admitted);
        }
        Ok(self.disks[at].facts())
    }

    /// Removes a host from a disk of the API. The disk is exported anew, as the kernel keeps the connections of a host that
    /// is not allowed any more; the other hosts connect again.
    ///
    /// # Errors
    /// If there is no such disk or host, or it is the last one.
    pub(crate) fn dismiss(&mut self, name: &str, host: &str) -> Result<DiskFacts, DiskChangeError> {
        let at = self.find_requested(name)?;
        let mut hosts = self.disks[at].config.hosts.clone();
        hosts.retain(|one| one != host);
        if hosts.len() == self.disks[at].config.hosts.len() {
            return Err(DiskChangeError::UnknownHost(name.to_owned(), host.to_owned()));
        }
        if hosts.is_empty() {
            return Err(DiskChangeError::LastHost(name.to_owned()));
        }
        self.keep_hosts(at, hosts)?;
        let disk = self.disks.remove(at);
        let config = disk.config.clone();
        remove(disk);
        let disk = self.export(config);
        self.disks.insert(at, disk);
        Ok(self.disks[at].facts())
    }

    /// Ends the export of a disk of the API; returns it as it was.
    ///
    /// # Errors
    /// If there is no such disk.
    pub(crate) fn delete(&mut self, name: &str) -> Result<DiskFacts, DiskChangeError> {
        let at = self.find_requested(name)?;
        let mut requested = self.requested.clone();
        requested.disks.retain(|disk| disk.name != self.disks[at].config.name);
        self.keep(requested)?;
        let disk = self.disks.remove(at);
        let facts = disk.facts();
        remove(disk);
        Ok(facts)
    }

    /// Stores the list of the disks of the API, with secrets of the hosts that they admit and of no others.
    fn keep(&mut self, mut requested: RequestedDisks) -> Result<(), DiskChangeError> {
        requested.settle_secrets(self.policy.secrets);
        requested::write(&self.state, &requested)?;
        self.requested = requested;
        Ok(())
    }

    /// Stores the hosts of a disk of the API; returns the former ones.
    fn keep_hosts(
        &mut self,
        at: usize,
        hosts: Vec<String>,
    ) -> Result<Vec<String>, DiskChangeError> {
        let name = &self.disks[at].config.name;
        let mut requested = self.requested.clone();
        for disk in requested.disks.iter_mut().filter(|disk| disk.name == *name) {
            disk.hosts.clone_from(&hosts);
        }
        self.keep(requested)?;
        Ok(std::mem::replace(&mut self.disks[at].config.hosts, hosts))
    }

    /// Removes all disks from the kernel; those of the API come back at the next start.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.disks.drain(..).for_each(remove);
    }
}

impl DiskConfig {
    fn nqn(&self) -> String {
        nqn::of_disk(&self.name).unwrap_or_else(|_| self.name.clone())
    }

    fn listens(&self) -> Vec<String> {
        self.listens.iter().map(ToString::to_string).collect()
    }

    /// Refuses hosts of the API that are hosts of the configuration, too, unless none of them has a secret.
    fn check_hosts<'a>(
        &self,
        others: impl Iterator<Item = &'a Self>,
    ) -> Result<(), DiskExportError> {
        if self.origin == DiskOrigin::Configuration {
            return Ok(());
        }
        for other in others.filter(|other| other.origin == DiskOrigin::Configuration) {
            if (&self.secrets, &other.secrets) == (&DiskSecrets::None, &DiskSecrets::None) {
                continue;
            }
            if let Some(host) = self.hosts.iter().find(|host| other.hosts.contains(host)) {
                let (host, disk) = (host.clone(), other.name.clone());
                return Err(DiskExportError::ConfiguredHost { host, disk });
            }
        }
        Ok(())
    }

    fn admit(&self, host: &str) -> Result<(), DiskConnectionError> {
        match self.hosts.iter().any(|admitted| admitted == host) {
            true => Ok(()),
            false => {
                let (name, host) = (self.name.clone(), host.to_owned());
                Err(DiskConnectionError::Host { name, host })
            }
        }
    }

    fn connection(&self, secret: Option<&HostSecret>) -> DiskConnectionFacts {
        DiskConnectionFacts {
            nqn: self.nqn(),
            transport: self.transport.name().to_owned(),
            listens: self.listens(),
            secret: secret.map(HostSecret::text),
        }
    }
}

impl KnownDisk {
    fn facts(&self) -> DiskFacts {
        let error = self.export.as_ref().err().map(ToString::to_string);
        DiskFacts {
            name: self.config.name.clone(),
            nqn: self.config.nqn(),
            transport: self.config.transport.name().to_owned(),
            listens: self.config.listens(),
            bytes: self.bytes,
            hosts: self.config.hosts.clone(),
            has_secret: self.config.secrets != DiskSecrets::None,
            origin: self.config.origin.name().to_owned(),
            state: if error.is_none() { "exported" } else { "failed" }.to_owned(),
            error,
        }
    }
}

/// Bytes of a file or block device; `None` where it cannot be opened.
fn size_of(path: &Path) -> Option<u64> {
    File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).ok()
}

fn read_secret(file: &Path) -> Result<HostSecret, DiskExportError> {
    let wrong = |reason: String| DiskExportError::Secret { file: file.to_owned(), reason };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    HostSecret::parse(text.trim()).map_err(|error| wrong(error.to_string()))
}

fn remove(disk: KnownDisk) {
    let Ok(active) = disk.export else { return };
    match active.export.remove() {
        Ok(()) => tracing::info!("disk {}: removed", disk.config.name),
        Err(error) => tracing::error!("disk {}: {error}", disk.config.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> DiskConfig {
        DiskConfig {
            name: name.to_owned(),
            path: "/no/such/image".into(),
            hosts: vec!["nqn.2020-01.org.example:h".to_owned()],
            transport: FabricsTransport::Tcp,
            listens: vec!["127.0.0.1:4420".parse().unwrap()],
            secrets: DiskSecrets::None,
            origin: DiskOrigin::Configuration,
        }
    }

    fn start(configs: Vec<DiskConfig>) -> (tempfile::TempDir, ExportedDisks) {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        let exported = ExportedDisks::start(&state, configs, DiskExportPolicy::default());
        (folder, exported)
    }

    #[test]
    fn disks_follow_the_configuration() {
        let (_folder, mut exported) = start(vec![config("a"), config("b")]);
        let names = |exported: &ExportedDisks| -> Vec<String> {
            exported.disks.iter().map(|disk| disk.config.name.clone()).collect()
        };
        assert_eq!(names(&exported), ["a", "b"]);
        // No file of this path: the disks are known and not exported.
        assert!(exported.disks.iter().all(|disk| disk.export.is_err()));
        let listed = &exported.list()[0];
        assert_eq!((listed.state.as_str(), listed.bytes), ("failed", None), "{listed:?}");
        assert!(listed.error.as_ref().is_some_and(|error| !error.is_empty()), "{listed:?}");
        let changed = DiskConfig { path: "/another".into(), ..config("a") };
        let policy = DiskExportPolicy::default();
        exported.apply(vec![config("b"), changed.clone(), config("c")], policy);
        assert_eq!(names(&exported), ["b", "a", "c"]);
        assert!(exported.disks.iter().any(|disk| disk.config == changed));
        exported.stop();
        assert!(exported.disks.is_empty());
    }

    #[test]
    fn connection_needs_admitted_host() {
        let (_folder, exported) = start(vec![config("a")]);
        let host = "nqn.2020-01.org.example:h";
        let refused = |name: &str, host: &str| exported.connection(name, host).unwrap_err();
        assert!(matches!(refused("b", host), DiskConnectionError::Unknown(_)));
        assert!(matches!(refused("a b", host), DiskConnectionError::Unknown(_)));
        assert!(matches!(refused("a", "nqn.other"), DiskConnectionError::Host { .. }));
        let by_nqn = nqn::of_disk("a").unwrap();
        assert!(matches!(refused(&by_nqn, host), DiskConnectionError::NotExported { .. }));
    }

    #[test]
    fn connection_has_address_and_secret() {
        let secret = HostSecret::of_key([7; 32]);
        let given = config("a").connection(Some(&secret));
        assert_eq!(
            (given.transport.as_str(), given.listens),
            ("tcp", vec!["127.0.0.1:4420".into()])
        );
        assert_eq!(given.nqn, nqn::of_disk("a").unwrap());
        assert!(HostSecret::parse(&given.secret.unwrap()).unwrap() == secret);
    }

    #[test]
    fn damaged_secret_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, "password").unwrap();
        let error = read_secret(&file).unwrap_err().to_string();
        assert!(error.contains("secret: ") && error.contains("DHHC-1"), "{error}");
    }
}
