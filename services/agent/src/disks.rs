//! Disks that the agent exports by the kernel's NVMe target while it runs (`[[disk]]`), and what a host needs to connect.
//!
//! Each is made at the start or a reload and removed when it leaves the configuration, and when the agent stops. A disk
//! that cannot be exported is logged with the remedy and tried again at the next reload: the mover works without it.
//!
//! Not for disks of `penstock disk export`, which have their own process; both have their records in one directory.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_disk::export::{DiskExport, ExportRequest, ExportStore};
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::nvme::nqn;
use penstock_disk::{DiskError, FabricsTransport};

use crate::http::disks::{DiskConnectionFacts, DiskFacts};

/// Directory of the records in the state directory, as `penstock disk` has it.
const RECORDS: &str = "disks";

/// Disk of the configuration.
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
    /// File with a secret that the hosts need.
    pub secret_file: Option<PathBuf>,
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
}

/// Reason why the agent withholds address and secret of a disk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskConnectionError {
    /// No disk of this name.
    #[error("no disk is called '{}': GET /api/v1/disks lists them", .0.escape_debug())]
    Unknown(String),
    /// The configuration does not admit the host.
    #[error(
        "disk {name} does not admit the host {}: its operator adds it to the disk's `to`, then sends SIGHUP",
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

/// A disk of the configuration, and its export or the reason for which there is none.
#[derive(Debug)]
struct ConfiguredDisk {
    config: DiskConfig,
    bytes: Option<u64>,
    export: Result<ActiveExport, DiskExportError>,
}

/// An export with the secret of its hosts.
#[derive(Debug)]
struct ActiveExport {
    export: DiskExport,
    secret: Option<HostSecret>,
}

/// Disks that the agent exports.
#[derive(Debug)]
pub struct ExportedDisks {
    directory: PathBuf,
    disks: Vec<ConfiguredDisk>,
}

impl ExportedDisks {
    /// Exports `configs`, after the removal of what a killed agent left in the kernel.
    #[must_use]
    pub fn start(state: &Path, configs: Vec<DiskConfig>) -> Self {
        let mut exported = Self { directory: state.join(RECORDS), disks: Vec::new() };
        if exported.directory.exists() {
            let store = ExportStore::open(&exported.directory);
            match store.and_then(|store| store.remove_ended()) {
                Ok(removed) => removed.iter().for_each(|nqn| {
                    tracing::info!("removed disk {nqn}, whose process was killed");
                }),
                Err(error) => tracing::error!("disks of killed processes remain: {error}"),
            }
        }
        exported.apply(configs);
        exported
    }

    /// Removes disks that `configs` lacks or changes, then exports new ones and those that failed before.
    pub fn apply(&mut self, configs: Vec<DiskConfig>) {
        let former = std::mem::take(&mut self.disks);
        let (kept, dropped): (Vec<_>, Vec<_>) =
            former.into_iter().partition(|disk| configs.contains(&disk.config));
        dropped.into_iter().for_each(remove);
        self.disks = kept;
        for config in configs {
            let position = self.disks.iter().position(|disk| disk.config == config);
            if position.is_some_and(|at| self.disks[at].export.is_ok()) {
                continue;
            }
            let export = export(&self.directory, &config);
            match &export {
                Ok(active) => {
                    let listens = &active.export.record().listens;
                    tracing::info!("disk {}: exported on {listens:?}", config.name);
                }
                Err(error) => tracing::error!("disk {}: not exported: {error}", config.name),
            }
            let bytes = size_of(&config.path);
            let disk = ConfiguredDisk { config, bytes, export };
            match position {
                Some(at) => self.disks[at] = disk,
                None => self.disks.push(disk),
            }
        }
    }

    /// The disks of the configuration, in its order.
    pub(crate) fn list(&self) -> Vec<DiskFacts> {
        self.disks.iter().map(ConfiguredDisk::facts).collect()
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
        let wanted = nqn::of_disk(name).ok();
        let disk = self.disks.iter().find(|disk| wanted.as_deref() == Some(disk.nqn().as_str()));
        let disk = disk.ok_or_else(|| DiskConnectionError::Unknown(name.to_owned()))?;
        disk.config.admit(host)?;
        match &disk.export {
            Ok(active) => Ok(disk.config.connection(active.secret.as_ref())),
            Err(error) => Err(DiskConnectionError::NotExported {
                name: disk.config.name.clone(),
                reason: error.to_string(),
            }),
        }
    }

    /// Removes all disks from the kernel.
    pub fn stop(&mut self) {
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

impl ConfiguredDisk {
    fn nqn(&self) -> String {
        self.config.nqn()
    }

    fn facts(&self) -> DiskFacts {
        let error = self.export.as_ref().err().map(ToString::to_string);
        DiskFacts {
            name: self.config.name.clone(),
            nqn: self.nqn(),
            transport: self.config.transport.name().to_owned(),
            listens: self.config.listens(),
            bytes: self.bytes,
            hosts: self.config.hosts.clone(),
            has_secret: self.config.secret_file.is_some(),
            state: if error.is_none() { "exported" } else { "failed" }.to_owned(),
            error,
        }
    }
}

/// Bytes of a file or block device; `None` where it cannot be opened.
fn size_of(path: &Path) -> Option<u64> {
    File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0))).ok()
}

fn export(directory: &Path, config: &DiskConfig) -> Result<ActiveExport, DiskExportError> {
    let secret = match &config.secret_file {
        Some(file) => Some(read_secret(file)?),
        None => None,
    };
    let request = ExportRequest {
        name: config.name.clone(),
        path: config.path.clone(),
        hosts: config.hosts.clone(),
        secret: secret.clone(),
        transport: config.transport,
        listens: config.listens.clone(),
    };
    let export = ExportStore::open(directory)?.export(&request)?;
    Ok(ActiveExport { export, secret })
}

fn read_secret(file: &Path) -> Result<HostSecret, DiskExportError> {
    let wrong = |reason: String| DiskExportError::Secret { file: file.to_owned(), reason };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    HostSecret::parse(text.trim()).map_err(|error| wrong(error.to_string()))
}

fn remove(disk: ConfiguredDisk) {
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
            secret_file: None,
        }
    }

    #[test]
    fn disks_follow_the_configuration() {
        let state = tempfile::tempdir().unwrap();
        let mut exported = ExportedDisks::start(state.path(), vec![config("a"), config("b")]);
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
        exported.apply(vec![config("b"), changed.clone(), config("c")]);
        assert_eq!(names(&exported), ["b", "a", "c"]);
        assert!(exported.disks.iter().any(|disk| disk.config == changed));
        exported.stop();
        assert!(exported.disks.is_empty());
    }

    #[test]
    fn connection_needs_admitted_host() {
        let state = tempfile::tempdir().unwrap();
        let exported = ExportedDisks::start(state.path(), vec![config("a")]);
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
