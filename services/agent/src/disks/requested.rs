//! Disks that clients of the API export: what the operator allows (`[disks]`), and their list in the state directory with the
//! secrets of their hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use penstock_daemon::state::{StateDir, StateError};
use penstock_disk::FabricsTransport;
use penstock_disk::export::AdmittedHost;
use penstock_disk::nvme::auth::{HostSecret, SecretError};
use serde::{Deserialize, Serialize};

use super::{DiskConfig, DiskOrigin, DiskSecrets};

/// File of the list in the state directory.
const REQUESTED_DISKS_FILE: &str = "requested-disks.json";

/// Limits of the exports by the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskExportPolicy {
    /// Files, devices and directories of which clients may export; none unless configured.
    pub allow: Vec<PathBuf>,
    /// Addresses and ports on which the target listens.
    pub listens: Vec<SocketAddr>,
    /// True where each host needs a secret of its own, which the agent makes.
    pub secrets: bool,
}

impl Default for DiskExportPolicy {
    fn default() -> Self {
        let listens = vec![(Ipv4Addr::UNSPECIFIED, penstock_disk::DEFAULT_PORT).into()];
        Self { allow: Vec::new(), listens, secrets: true }
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
            secrets: if self.secrets { DiskSecrets::PerHost } else { DiskSecrets::None },
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

/// Disks of the API, and the secrets of the hosts that they admit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RequestedDisks {
    /// In the order of their creation.
    pub(super) disks: Vec<RequestedDisk>,
    /// By the qualified name of the host.
    secrets: BTreeMap<String, StoredSecret>,
}

impl RequestedDisks {
    /// Makes secrets of new hosts and drops those of hosts that no disk admits; all, unless hosts have secrets.
    pub(super) fn settle_secrets(&mut self, has_secrets: bool) {
        let hosts = self.disks.iter().flat_map(|disk| &disk.hosts).filter(|_| has_secrets);
        let hosts: BTreeSet<&String> = hosts.collect();
        self.secrets.retain(|host, _| hosts.contains(host));
        for host in hosts {
            self.secrets.entry(host.clone()).or_insert_with(StoredSecret::generate);
        }
    }

    /// A host with its secret.
    pub(super) fn admitted(&self, host: &str) -> AdmittedHost {
        let secret = self.secrets.get(host).map(|stored| stored.0.clone());
        AdmittedHost { nqn: host.to_owned(), secret }
    }
}

/// Secret as its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct StoredSecret(HostSecret);

impl StoredSecret {
    fn generate() -> Self {
        Self(penstock_disk::new_secret().expect("the system's random generator works"))
    }
}

impl TryFrom<String> for StoredSecret {
    type Error = SecretError;

    fn try_from(text: String) -> Result<Self, SecretError> {
        HostSecret::parse(&text).map(Self)
    }
}

impl From<StoredSecret> for String {
    fn from(stored: StoredSecret) -> Self {
        stored.0.text()
    }
}

/// Reads the list of an agent that ran before.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub(super) fn read(state: &StateDir) -> Result<RequestedDisks, RequestedDisksError> {
    let Some(text) = state.read(REQUESTED_DISKS_FILE)? else {
        return Ok(RequestedDisks::default());
    };
    serde_json::from_str(&text).map_err(|error| {
        RequestedDisksError::Damaged(state.path().join(REQUESTED_DISKS_FILE), error)
    })
}

/// Replaces the list atomically and durably.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(state: &StateDir, disks: &RequestedDisks) -> Result<(), RequestedDisksError> {
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

    /// Disks with their hosts.
    fn requested(disks: &[(&str, &[&str])]) -> RequestedDisks {
        let disk = |(name, hosts): &(&str, &[&str])| RequestedDisk {
            name: (*name).to_owned(),
            path: "/data/run-7.img".into(),
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            transport: FabricsTransport::Rdma,
        };
        RequestedDisks { disks: disks.iter().map(disk).collect(), secrets: BTreeMap::new() }
    }

    #[test]
    fn secrets_live_with_admitted_hosts() {
        let mut list = requested(&[("run-7", &["nqn.a", "nqn.b"]), ("run-8", &["nqn.a"])]);
        let secret = |list: &RequestedDisks, host| list.admitted(host).secret;
        assert_eq!(secret(&list, "nqn.a"), None);
        list.settle_secrets(true);
        let [a, b] = ["nqn.a", "nqn.b"].map(|host| secret(&list, host));
        assert!(a.is_some() && b.is_some() && a != b);
        // The last disk of the host nqn.b goes; that of nqn.a stays.
        let all = list.disks.clone();
        list.disks.remove(0);
        list.settle_secrets(true);
        assert_eq!((secret(&list, "nqn.a"), secret(&list, "nqn.b")), (a.clone(), None));
        list.disks = all;
        list.settle_secrets(true);
        assert_eq!(secret(&list, "nqn.a"), a);
        assert!(secret(&list, "nqn.b").is_some_and(|new| Some(new) != b));
        list.settle_secrets(false);
        assert!(list.secrets.is_empty());
    }

    #[test]
    fn damaged_list_names_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state")).unwrap();
        assert_eq!(read(&state).unwrap(), RequestedDisks::default());
        let mut requested = requested(&[("run-7", &["nqn.a", "nqn.b"])]);
        requested.settle_secrets(true);
        write(&state, &requested).unwrap();
        assert_eq!(read(&state).unwrap(), requested);
        let text = state.read(REQUESTED_DISKS_FILE).unwrap().unwrap();
        let cut = text.replacen("DHHC-1:00:", "DHHC-1:00:x", 1);
        state.write(REQUESTED_DISKS_FILE, cut.as_bytes(), 0o600).unwrap();
        assert!(read(&state).unwrap_err().to_string().contains("damaged"));
        state.write(REQUESTED_DISKS_FILE, b"[", 0o600).unwrap();
        let error = read(&state).unwrap_err().to_string();
        assert!(error.contains("requested-disks.json: damaged"), "{error}");
    }
}
