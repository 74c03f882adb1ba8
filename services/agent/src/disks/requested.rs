//! Disks that clients of the API export: what the operator allows (`[disks]`), and their list in the state directory.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use penstock_daemon::state::{StateDir, StateError};
use penstock_disk::FabricsTransport;
use serde::{Deserialize, Serialize};

use super::{DiskConfig, DiskOrigin};

/// File of the list in the state directory.
const REQUESTED_DISKS_FILE: &str = "requested-disks.json";

/// Limits of the exports by the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskExportPolicy {
    /// Files, devices and directories of which clients may export; none unless configured.
    pub allow: Vec<PathBuf>,
    /// Addresses and ports on which the target listens.
    pub listens: Vec<SocketAddr>,
    /// File with a secret that the hosts need.
    pub secret_file: Option<PathBuf>,
}

impl Default for DiskExportPolicy {
    fn default() -> Self {
        let listens = vec![(Ipv4Addr::UNSPECIFIED, penstock_disk::DEFAULT_PORT).into()];
        Self { allow: Vec::new(), listens, secret_file: None }
    }
}

impl DiskExportPolicy {
    /// Path without links of a file or device that may be exported; `None` for any other, also for a missing one.
    pub(super) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let found = path.is_absolute().then(|| path.canonicalize().ok()).flatten()?;
        let mut allowed = self.allow.iter().filter_map(|one| one.canonicalize().ok());
        allowed.any(|one| found.starts_with(one)).then_some(found)
    }

    pub(super) fn config_of(&self, disk: &RequestedDisk) -> DiskConfig {
        DiskConfig {
            name: disk.name.clone(),
            path: disk.path.clone(),
            hosts: disk.hosts.clone(),
            transport: disk.transport,
            listens: self.listens.clone(),
            secret_file: self.secret_file.clone(),
            origin: DiskOrigin::Api,
        }
    }
}

/// Disk as a client of the API asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestedDisk {
    /// Name of the disk, or its qualified name.
    pub name: String,
    /// File or block device.
    pub path: PathBuf,
    /// Qualified names of the hosts that may connect.
    pub hosts: Vec<String>,
    /// Transport of the connections of hosts.
    pub transport: FabricsTransport,
}

/// Reads the list of an agent that ran before.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub(super) fn read(state: &StateDir) -> Result<Vec<RequestedDisk>, RequestedDisksError> {
    let Some(text) = state.read(REQUESTED_DISKS_FILE)? else { return Ok(Vec::new()) };
    serde_json::from_str(&text).map_err(|error| {
        RequestedDisksError::Damaged(state.path().join(REQUESTED_DISKS_FILE), error)
    })
}

/// Replaces the list atomically and durably.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(state: &StateDir, disks: &[RequestedDisk]) -> Result<(), RequestedDisksError> {
    let text = serde_json::to_vec(disks).map_err(io::Error::from)?;
    Ok(state.write(REQUESTED_DISKS_FILE, &text, 0o600)?)
}

/// A list of disks that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RequestedDisksError {
    /// The state directory does not allow it.
    #[error(transparent)]
    State(#[from] StateError),
    /// The text cannot be made.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is none of this program.
    #[error("{}: damaged ({}): remove it, and export its disks again", .0.display(), .1)]
    Damaged(PathBuf, serde_json::Error),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_allowed_paths_are_resolved() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for name in ["images/run-7.img", "images-old/run-6.img", "alone.img", "secret.img"] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        symlink(root.join("secret.img"), root.join("images/link.img")).unwrap();
        symlink(root.join("images"), root.join("linked")).unwrap();
        let allow = ["images", "alone.img", "missing"].map(|name| root.join(name)).to_vec();
        let policy = DiskExportPolicy { allow, ..DiskExportPolicy::default() };
        let resolve = |name: &str| policy.resolve(&root.join(name));
        assert_eq!(resolve("images/run-7.img"), Some(root.join("images/run-7.img")));
        assert_eq!(resolve("linked/run-7.img"), Some(root.join("images/run-7.img")));
        assert_eq!(resolve("alone.img"), Some(root.join("alone.img")));
        for name in [
            "secret.img",
            "images/link.img",
            "images/../secret.img",
            "images-old/run-6.img",
            "images/missing.img",
        ] {
            assert_eq!(resolve(name), None, "{name}");
        }
        assert_eq!(policy.resolve(Path::new("alone.img")), None);
        let none = DiskExportPolicy::default();
        assert_eq!(none.resolve(&root.join("alone.img")), None);
    }

    #[test]
    fn damaged_list_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        assert!(read(&state).unwrap().is_empty());
        let disk = RequestedDisk {
            name: "run-7".to_owned(),
            path: "/data/run-7.img".into(),
            hosts: vec!["nqn.2020-01.org.example:h".to_owned()],
            transport: FabricsTransport::Rdma,
        };
        write(&state, std::slice::from_ref(&disk)).unwrap();
        assert_eq!(read(&state).unwrap(), [disk]);
        state.write(REQUESTED_DISKS_FILE, b"[", 0o600).unwrap();
        let error = read(&state).unwrap_err().to_string();
        assert!(error.contains("requested-disks.json: damaged"), "{error}");
    }
}
