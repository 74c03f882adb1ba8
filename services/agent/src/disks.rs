//! Disks that the agent exports by the kernel's NVMe target while it runs (`[[disk]]`).
//!
//! Each is made at the start or a reload and removed when it leaves the configuration, and when the agent stops. A disk
//! that cannot be exported is logged with the remedy and tried again at the next reload: the mover works without it.
//!
//! Not for disks of `penstock disk export`, which have their own process; both have their records in one directory.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use penstock_disk::export::{DiskExport, ExportRequest, ExportStore};
use penstock_disk::nvme::auth::HostSecret;
use penstock_disk::{DiskError, FabricsTransport};

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

/// A disk of the configuration, and its export where that was possible.
#[derive(Debug)]
struct ConfiguredDisk {
    config: DiskConfig,
    export: Option<DiskExport>,
}

/// Disks that the agent exports.
#[derive(Debug)]
pub(crate) struct ExportedDisks {
    directory: PathBuf,
    disks: Vec<ConfiguredDisk>,
}

impl ExportedDisks {
    /// Exports `configs`, after the removal of what a killed agent left in the kernel.
    pub(crate) fn start(state: &Path, configs: Vec<DiskConfig>) -> Self {
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
    pub(crate) fn apply(&mut self, configs: Vec<DiskConfig>) {
        let former = std::mem::take(&mut self.disks);
        let (kept, dropped): (Vec<_>, Vec<_>) =
            former.into_iter().partition(|disk| configs.contains(&disk.config));
        dropped.into_iter().for_each(remove);
        self.disks = kept;
        for config in configs {
            let position = self.disks.iter().position(|disk| disk.config == config);
            if position.is_some_and(|at| self.disks[at].export.is_some()) {
                continue;
            }
            let export = match export(&self.directory, &config) {
                Ok(export) => {
                    let listens = &export.record().listens;
                    tracing::info!("disk {}: exported on {listens:?}", config.name);
                    Some(export)
                }
                Err(error) => {
                    tracing::error!("disk {}: not exported: {error}", config.name);
                    None
                }
            };
            match position {
                Some(at) => self.disks[at].export = export,
                None => self.disks.push(ConfiguredDisk { config, export }),
            }
        }
    }

    /// Removes all disks from the kernel.
    pub(crate) fn stop(&mut self) {
        self.disks.drain(..).for_each(remove);
    }
}

fn export(directory: &Path, config: &DiskConfig) -> Result<DiskExport, DiskExportError> {
    let secret = match &config.secret_file {
        Some(file) => Some(read_secret(file)?),
        None => None,
    };
    let request = ExportRequest {
        name: config.name.clone(),
        path: config.path.clone(),
        hosts: config.hosts.clone(),
        secret,
        transport: config.transport,
        listens: config.listens.clone(),
    };
    Ok(ExportStore::open(directory)?.export(&request)?)
}

fn read_secret(file: &Path) -> Result<HostSecret, DiskExportError> {
    let wrong = |reason: String| DiskExportError::Secret { file: file.to_owned(), reason };
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    HostSecret::parse(text.trim()).map_err(|error| wrong(error.to_string()))
}

fn remove(disk: ConfiguredDisk) {
    let Some(export) = disk.export else { return };
    match export.remove() {
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
        assert!(exported.disks.iter().all(|disk| disk.export.is_none()));
        let changed = DiskConfig { path: "/another".into(), ..config("a") };
        exported.apply(vec![config("b"), changed.clone(), config("c")]);
        assert_eq!(names(&exported), ["b", "a", "c"]);
        assert!(exported.disks.iter().any(|disk| disk.config == changed));
        exported.stop();
        assert!(exported.disks.is_empty());
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
