//! Exports: disks of the kernel's NVMe target.
//!
//! An export lives as long as its process. Its record, the journal, is written and synced before the first change: it
//! names all objects that the export makes. The process holds the lock of the record, so that another one can tell an
//! export whose process was killed, and removes its objects.
//!
//! Objects in the order of Documentation/nvme of Linux: subsystem, namespace, hosts, port, and last the link of the port to
//! the subsystem, which opens the port. They are removed in reverse. Each address is a port of the one subsystem, in whose
//! first ANA group the namespace is: a host that connects by several has as many paths to one device.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};
use penstock_nvme::auth::HostSecret;
use penstock_nvme::nqn;
use penstock_sys::lock::ExclusiveFileLock;
use serde::{Deserialize, Serialize};

use crate::check::{self, CheckedPart};
use crate::config_fs::ConfigStep;
use crate::{DiskError, DiskUse, FabricsTransport};

/// Directory of the target in configfs.
const TARGET_ROOT: &str = "/sys/kernel/config/nvmet";
/// Largest record that is read.
const RECORD_BYTES_MAX: u64 = 1 << 20;
/// Largest number of a port.
const PORT_NUMBER_MAX: u32 = 65_535;

/// Export that is wanted.
#[derive(Debug, Clone)]
pub struct ExportRequest {
    /// Name of the disk, or its qualified name.
    pub name: String,
    /// File or block device.
    pub path: PathBuf,
    /// Hosts that may connect.
    pub hosts: Vec<AdmittedHost>,
    /// Transport of the connections of hosts.
    pub transport: FabricsTransport,
    /// Addresses and ports on which the target listens.
    pub listens: Vec<SocketAddr>,
}

/// Host that may connect to a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmittedHost {
    /// Qualified name by which the kernel admits it (NQN).
    pub nqn: String,
    /// Secret that it must prove. The kernel has one for each host, of all its disks.
    pub secret: Option<HostSecret>,
}

impl ExportRequest {
    fn has_secret(&self) -> bool {
        self.hosts.iter().any(|host| host.secret.is_some())
    }
}

/// Record of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRecord {
    /// Qualified name of the disk.
    pub nqn: String,
    /// File or block device.
    pub path: PathBuf,
    /// Transport of the connections of hosts.
    pub transport: FabricsTransport,
    /// Addresses and ports on which the target listens.
    pub listens: Vec<SocketAddr>,
    /// Hosts that may connect.
    pub hosts: Vec<String>,
    /// True where they need a secret.
    pub has_secret: bool,
    /// Boot in which it was made: the kernel forgets its objects at a restart.
    boot_id: String,
    /// Steps that are undone, in the order in which they are made.
    steps: Vec<ConfigStep>,
}

/// Export of this process; removed when dropped.
#[derive(Debug)]
pub struct DiskExport {
    record: ExportRecord,
    store: ExportStore,
    lock: Option<ExclusiveFileLock>,
    _held: DiskUse,
}

/// Records of the exports of this host.
#[derive(Debug, Clone)]
pub struct ExportStore {
    directory: PathBuf,
    root: PathBuf,
}

impl ExportStore {
    /// Records in `directory`, which is made if missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(directory: &Path) -> Result<Self, DiskError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| local(directory, &error))?;
        Ok(Self { directory: directory.to_owned(), root: PathBuf::from(TARGET_ROOT) })
    }

    fn record_path(&self, nqn: &str) -> PathBuf {
        let name = nqn.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '.', "_");
        self.directory.join(format!("{name}.json"))
    }

    /// Lock under which objects are made and removed.
    fn lock_all(&self) -> Result<ExclusiveFileLock, DiskError> {
        let path = self.directory.join("lock");
        let begun = std::time::Instant::now();
        loop {
            match ExclusiveFileLock::try_lock_at(&path).map_err(|error| local(&path, &error))? {
                Some(lock) => return Ok(lock),
                None if begun.elapsed() > std::time::Duration::from_secs(30) => {
                    let reason = "another penstock disk holds the lock for 30 s: wait for its end";
                    return Err(refused(&path, reason));
                }
                None => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
    }

    /// Records with their paths. A record that cannot be read is an error: its objects would remain.
    fn records(&self) -> Result<Vec<(PathBuf, ExportRecord)>, DiskError> {
        let mut records = Vec::new();
        let entries = fs::read_dir(&self.directory);
        for entry in entries.map_err(|error| local(&self.directory, &error))?.flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            if entry.metadata().is_ok_and(|found| found.len() > RECORD_BYTES_MAX) {
                return Err(refused(&path, "the record is too large: it is none of penstock"));
            }
            let text = fs::read_to_string(&path).map_err(|error| local(&path, &error))?;
            let record = serde_json::from_str(&text).map_err(|error| {
                refused(&path, &format!("damaged record ({error}): remove its objects in {TARGET_ROOT}, then the file"))
            })?;
            records.push((path, record));
        }
        records.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(records)
    }

    /// Exports of running processes, and of ended ones whose objects remain.
    ///
    /// # Errors
    /// When a record cannot be read.
    pub fn list(&self) -> Result<Vec<(ExportRecord, bool)>, DiskError> {
        // Records come and go under this lock, and a check of their own locks would refuse an export.
        let _all = self.lock_all()?;
        let boot_id = penstock_sys::machine::boot_id().unwrap_or_default();
        let records = self.records()?.into_iter().filter(|(_, one)| one.boot_id == boot_id);
        Ok(records
            .map(|(path, record)| {
                let lock = ExclusiveFileLock::try_lock_at(&path.with_extension("lock"));
                (record, matches!(lock, Ok(None)))
            })
            .collect())
    }

    /// Removes the objects of exports whose process has ended; returns their qualified names.
    ///
    /// # Errors
    /// When an object cannot be removed.
    pub fn remove_ended(&self) -> Result<Vec<String>, DiskError> {
        let _all = self.lock_all()?;
        self.remove_ended_locked()
    }

    fn remove_ended_locked(&self) -> Result<Vec<String>, DiskError> {
        let boot_id = penstock_sys::machine::boot_id().unwrap_or_default();
        let mut removed = Vec::new();
        for (path, record) in self.records()? {
            let lock_path = path.with_extension("lock");
            let lock = ExclusiveFileLock::try_lock_at(&lock_path);
            let Some(_lock) = lock.map_err(|error| local(&lock_path, &error))? else { continue };
            if record.boot_id == boot_id {
                self.undo(&record.steps)?;
                removed.push(record.nqn);
            }
            fs::remove_file(&path).map_err(|error| local(&path, &error))?;
            let _ = fs::remove_file(lock_path);
        }
        Ok(removed)
    }

    fn undo(&self, steps: &[ConfigStep]) -> Result<(), DiskError> {
        for step in steps.iter().rev() {
            let path = self.root.join(step.path());
            step.undo(&self.root).map_err(|error| local(&path, &error))?;
        }
        Ok(())
    }

    /// Exports a disk. Removes the objects of ended exports first.
    ///
    /// # Errors
    /// If the kernel has no target, the file or device is in use, or an object cannot be made: then no object remains.
    pub fn export(&self, request: &ExportRequest) -> Result<DiskExport, DiskError> {
        let nqn = nqn::of_disk(&request.name)?;
        for host in &request.hosts {
            nqn::checked(&host.nqn)?;
        }
        let parts = check::target_parts(request.transport, request.has_secret());
        if let Some((path, reason)) = parts.iter().find_map(CheckedPart::missing) {
            return Err(DiskError::Local { path, reason });
        }
        let _all = self.lock_all()?;
        self.remove_ended_locked()?;
        let held = DiskUse::hold(&request.path)?;
        self.check_free(&nqn, &held.path)?;
        let ours: Vec<PathBuf> = self.claimed()?;
        let ports = self.ports_for(request)?;
        let steps = steps(request, &nqn, &held, &self.root, &ports, &ours)?;
        let record_path = self.record_path(&nqn);
        let lock_path = record_path.with_extension("lock");
        let lock = ExclusiveFileLock::try_lock_at(&lock_path);
        let lock = lock
            .map_err(|error| local(&lock_path, &error))?
            .ok_or_else(|| refused(&lock_path, "another process exports a disk of this name"))?;
        let record = ExportRecord {
            nqn,
            path: held.path.clone(),
            transport: request.transport,
            listens: request.listens.clone(),
            hosts: request.hosts.iter().map(|host| host.nqn.clone()).collect(),
            has_secret: request.has_secret(),
            boot_id: penstock_sys::machine::boot_id().unwrap_or_default(),
            steps: steps.iter().filter(|step| step.is_undone()).cloned().collect(),
        };
        write_record(&record_path, &record)?;
        let mut export = DiskExport { record, store: self.clone(), lock: Some(lock), _held: held };
        for step in &steps {
            if let Err(error) = step.apply(&self.root) {
                let error = step_failed(&self.root, step, &error, request.transport, &ports);
                export.remove_objects()?;
                return Err(error);
            }
        }
        Ok(export)
    }

    /// Refuses a subsystem or a file that another program exports.
    fn check_free(&self, nqn: &str, path: &Path) -> Result<(), DiskError> {
        let subsystems = self.root.join("subsystems");
        let own = subsystems.join(nqn);
        if own.exists() {
            return Err(refused(&own, "a disk of this name exists: choose another --name"));
        }
        for subsystem in entries(&subsystems) {
            for namespace in entries(&subsystem.join("namespaces")) {
                let used = fs::read_to_string(namespace.join("device_path")).unwrap_or_default();
                if Path::new(used.trim_end()) == path {
                    let name = subsystem.file_name().unwrap_or_default().to_string_lossy();
                    return Err(refused(path, &format!("{name} exports it already")));
                }
            }
        }
        Ok(())
    }

    /// Shared objects that running exports of penstock claim.
    fn claimed(&self) -> Result<Vec<PathBuf>, DiskError> {
        let shared = |step: &ConfigStep| match step {
            ConfigStep::Share { path } => Some(path.clone()),
            _ => None,
        };
        let records = self.records()?;
        Ok(records.iter().flat_map(|(_, record)| record.steps.iter().filter_map(shared)).collect())
    }

    /// Number of the port with each wanted address, or of a new one.
    fn ports_for(&self, request: &ExportRequest) -> Result<Vec<(u32, SocketAddr)>, DiskError> {
        let ports = entries(&self.root.join("ports"));
        let read = |port: &Path, name: &str| {
            let text = fs::read_to_string(port.join(name)).unwrap_or_default();
            text.trim_end().to_owned()
        };
        let number = |port: &Path| port.file_name()?.to_str()?.parse::<u32>().ok();
        let mut used: Vec<u32> = ports.iter().filter_map(|port| number(port)).collect();
        let mut found = Vec::new();
        for listens in &request.listens {
            let present = ports.iter().find(|port| {
                read(port, "addr_trtype") == request.transport.name()
                    && read(port, "addr_traddr") == listens.ip().to_string()
                    && read(port, "addr_trsvcid") == listens.port().to_string()
            });
            let number = present.and_then(|port| number(port)).or_else(|| {
                let free = (1..=PORT_NUMBER_MAX).find(|number| !used.contains(number))?;
                used.push(free);
                Some(free)
            });
            let none = || refused(&self.root.join("ports"), "all numbers of ports are in use");
            found.push((number.ok_or_else(none)?, *listens));
        }
        Ok(found)
    }
}

impl DiskExport {
    /// Record of the export.
    #[must_use]
    pub const fn record(&self) -> &ExportRecord {
        &self.record
    }

    /// Admits a further host; the connections of the others go on.
    ///
    /// # Errors
    /// When an object cannot be made, or the host has another secret: then the export is as before.
    pub fn admit(&mut self, host: &AdmittedHost) -> Result<(), DiskError> {
        nqn::checked(&host.nqn)?;
        if self.record.hosts.contains(&host.nqn) {
            return Ok(());
        }
        let _all = self.store.lock_all()?;
        let subsystem = PathBuf::from("subsystems").join(&self.record.nqn);
        let steps = host_steps(host, &subsystem, &self.store.root, &self.store.claimed()?)?;
        let path = self.store.record_path(&self.record.nqn);
        let mut record = self.record.clone();
        record.hosts.push(host.nqn.clone());
        record.steps.extend(steps.iter().filter(|step| step.is_undone()).cloned());
        write_record(&path, &record)?;
        for step in &steps {
            if let Err(error) = step.apply(&self.store.root) {
                self.store.undo(&steps)?;
                write_record(&path, &self.record)?;
                return Err(local(&self.store.root.join(step.path()), &error));
            }
        }
        self.record = record;
        Ok(())
    }

    /// Removes the objects of the export and its record.
    ///
    /// # Errors
    /// When an object cannot be removed: the record stays for `penstock disk export`, which tries again.
    pub fn remove(mut self) -> Result<(), DiskError> {
        let _all = self.store.lock_all()?;
        self.remove_objects()
    }

    fn remove_objects(&mut self) -> Result<(), DiskError> {
        let Some(lock) = self.lock.take() else { return Ok(()) };
        self.store.undo(&self.record.steps)?;
        let path = self.store.record_path(&self.record.nqn);
        fs::remove_file(&path).map_err(|error| local(&path, &error))?;
        let _ = fs::remove_file(path.with_extension("lock"));
        drop(lock);
        Ok(())
    }
}

impl Drop for DiskExport {
    fn drop(&mut self) {
        let _ = self.remove_objects();
    }
}

/// Steps that export a disk.
fn steps(
    request: &ExportRequest,
    nqn: &str,
    held: &DiskUse,
    root: &Path,
    ports: &[(u32, SocketAddr)],
    ours: &[PathBuf],
) -> Result<Vec<ConfigStep>, DiskError> {
    let mut steps = Vec::new();
    let subsystem = PathBuf::from("subsystems").join(nqn);
    let write = |path: PathBuf, value: &str| ConfigStep::Write { path, value: value.to_owned() };
    let hash = digest(&SHA256, format!("{nqn} {}", held.path.display()).as_bytes());
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&hash.as_ref()[..16]);
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    let serial: String = hash.as_ref()[16..26].iter().map(|byte| format!("{byte:02x}")).collect();
    steps.push(ConfigStep::Create { path: subsystem.clone() });
    steps.push(write(subsystem.join("attr_allow_any_host"), "0"));
    steps.push(write(subsystem.join("attr_serial"), &serial));
    let namespace = subsystem.join("namespaces/1");
    steps.push(ConfigStep::Create { path: namespace.clone() });
    steps.push(write(namespace.join("device_path"), &held.path.to_string_lossy()));
    // Devices keep their names at the hosts.
    steps.push(write(namespace.join("device_uuid"), &nqn::uuid_text(&uuid)));
    if held.buffered {
        steps.push(write(namespace.join("buffered_io"), "1"));
    }
    steps.push(write(namespace.join("enable"), "1"));
    for host in &request.hosts {
        steps.extend(host_steps(host, &subsystem, root, ours)?);
    }
    for (port, listens) in ports {
        let port_path = PathBuf::from("ports").join(port.to_string());
        let is_new = !root.join(&port_path).exists();
        steps.extend(share_step(&port_path, root, ours));
        if is_new {
            let family = if listens.is_ipv4() { "ipv4" } else { "ipv6" };
            for (name, value) in [
                ("addr_adrfam", family.to_owned()),
                ("addr_trtype", request.transport.to_string()),
                ("addr_traddr", listens.ip().to_string()),
                ("addr_trsvcid", listens.port().to_string()),
                // A write whose data is in its command takes one round trip instead of two.
                ("param_inline_data_size", request.transport.in_capsule_bytes_max().to_string()),
            ] {
                steps.push(write(port_path.join(name), &value));
            }
        }
        let link = port_path.join("subsystems").join(nqn);
        steps.push(ConfigStep::Link { target: subsystem.clone(), link });
    }
    Ok(steps)
}

/// Step that makes an object unless another program has made it: that one is used, but not removed.
fn share_step(path: &Path, root: &Path, ours: &[PathBuf]) -> Option<ConfigStep> {
    let is_theirs = root.join(path).exists() && !ours.iter().any(|one| one == path);
    (!is_theirs).then(|| ConfigStep::Share { path: path.to_owned() })
}

/// Steps that admit a host to a subsystem. A host with another secret, or with one where none is wanted or the reverse, is
/// refused: a new secret would be that of its other disks, too.
fn host_steps(
    host: &AdmittedHost,
    subsystem: &Path,
    root: &Path,
    ours: &[PathBuf],
) -> Result<Vec<ConfigStep>, DiskError> {
    let path = PathBuf::from("hosts").join(&host.nqn);
    let is_new = !root.join(&path).exists();
    let mut steps: Vec<ConfigStep> = share_step(&path, root, ours).into_iter().collect();
    let key = path.join("dhchap_key");
    let present = fs::read_to_string(root.join(&key)).unwrap_or_default();
    let present = present.trim_end().trim_end_matches('\0');
    let refused = |reason| Err(refused(&root.join(&key), reason));
    match &host.secret {
        Some(secret) if is_new => {
            steps.push(ConfigStep::Write { path: key, value: secret.text() });
        }
        Some(_) if present.is_empty() => {
            return refused(
                "this host has exports without a secret, and Linux has one secret for each host: end them first",
            );
        }
        Some(secret) if present != secret.text() => {
            return refused(
                "this host has another secret already: give that one, or end its exports",
            );
        }
        None if !present.is_empty() => {
            return refused(
                "this host has a secret, and Linux has one for each host: give that one, or end its exports",
            );
        }
        _ => {}
    }
    let link = subsystem.join("allowed_hosts").join(&host.nqn);
    steps.push(ConfigStep::Link { target: path, link });
    Ok(steps)
}

/// Error of a step, with a remedy.
fn step_failed(
    root: &Path,
    step: &ConfigStep,
    error: &io::Error,
    transport: FabricsTransport,
    ports: &[(u32, SocketAddr)],
) -> DiskError {
    let path = root.join(step.path());
    let is_of = |number: u32| step.path().starts_with(Path::new("ports").join(number.to_string()));
    let port = ports.iter().find(|(number, _)| is_of(*number));
    let is_link = matches!(step, ConfigStep::Link { .. });
    let Some((_, listens)) = port.filter(|_| is_link) else {
        return DiskError::Local { path: path.display().to_string(), reason: error.to_string() };
    };
    let not_listening = format!("the kernel does not listen on {listens} over {transport}");
    let module = transport.target_module();
    let reason = match (error.kind(), transport) {
        (io::ErrorKind::AddrInUse, _) => {
            format!("port {} is in use: choose another --port", listens.port())
        }
        // The kernel returns ENODEV where no RDMA device has the address.
        (io::ErrorKind::AddrNotAvailable, FabricsTransport::Tcp) => {
            format!("{} is no address of this machine: choose another --address", listens.ip())
        }
        (io::ErrorKind::InvalidInput, _) => {
            format!("{not_listening}: is the module {module} loaded? (modprobe {module})")
        }
        (_, FabricsTransport::Tcp) => format!("{not_listening}: {error}"),
        (_, FabricsTransport::Rdma) => {
            format!(
                "{not_listening}: {error}: give --address the address of an RDMA device (rdma link show)"
            )
        }
    };
    DiskError::Local { path: path.display().to_string(), reason }
}

fn write_record(path: &Path, record: &ExportRecord) -> Result<(), DiskError> {
    let write = || -> io::Result<()> {
        // Atomic: a record that is cut would keep its objects and stop all exports.
        let new = path.with_extension("new");
        let mut how = fs::OpenOptions::new();
        let mut file = how.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string(record)?.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    write().map_err(|error| local(path, &error))
}

/// Paths in a directory, sorted; none where it cannot be read.
fn entries(directory: &Path) -> Vec<PathBuf> {
    let found = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

fn local(path: &Path, error: &io::Error) -> DiskError {
    DiskError::Local { path: path.display().to_string(), reason: error.to_string() }
}

fn refused(path: &Path, reason: &str) -> DiskError {
    DiskError::Local { path: path.display().to_string(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(secret: Option<HostSecret>) -> AdmittedHost {
        AdmittedHost { nqn: "nqn.2020-01.org.example:h".to_owned(), secret }
    }

    fn request(path: &Path, secret: Option<HostSecret>) -> ExportRequest {
        ExportRequest {
            name: "run-7".to_owned(),
            path: path.to_owned(),
            hosts: vec![host(secret)],
            transport: FabricsTransport::Tcp,
            listens: vec!["10.0.0.2:4420".parse().unwrap()],
        }
    }

    fn ports(number: u32) -> [(u32, SocketAddr); 1] {
        [(number, "10.0.0.2:4420".parse().unwrap())]
    }

    fn held(folder: &Path) -> DiskUse {
        let path = folder.join("image");
        fs::write(&path, vec![0; 8192]).unwrap();
        DiskUse::hold(&path).unwrap()
    }

    #[test]
    fn port_opens_last() {
        let folder = tempfile::tempdir().unwrap();
        let held = held(folder.path());
        let secret = HostSecret::of_key([7; 32]);
        let request = request(&held.path, Some(secret.clone()));
        let nqn = nqn::of_disk("run-7").unwrap();
        let steps = steps(&request, &nqn, &held, folder.path(), &ports(3), &[]).unwrap();
        let paths: Vec<String> =
            steps.iter().map(|step| step.path().display().to_string()).collect();
        let at = |end: &str| paths.iter().position(|path| path.ends_with(end)).unwrap();
        assert_eq!(at("param_inline_data_size") + 1, paths.len() - 1);
        assert!(
            at("device_uuid") < at("enable")
                && at("dhchap_key") < at("allowed_hosts/nqn.2020-01.org.example:h")
        );
        assert!(
            matches!(steps.last(), Some(ConfigStep::Link { link, .. }) if link.starts_with("ports/3"))
        );
        // Secrets are not in the record.
        let kept: Vec<_> = steps.iter().filter(|step| step.is_undone()).collect();
        assert!(!serde_json::to_string(&kept).unwrap().contains(&secret.text()));
    }

    #[test]
    fn objects_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let held = held(folder.path());
        let request = request(&held.path, None);
        let nqn = nqn::of_disk("run-7").unwrap();
        let host = PathBuf::from("hosts/nqn.2020-01.org.example:h");
        fs::create_dir_all(folder.path().join(&host)).unwrap();
        let shares = |ours: &[PathBuf]| {
            let steps = steps(&request, &nqn, &held, folder.path(), &ports(1), ours).unwrap();
            steps.iter().filter(|step| matches!(step, ConfigStep::Share { .. })).count()
        };
        assert_eq!((shares(&[]), shares(&[host])), (1, 2));
    }

    #[test]
    fn other_secret_of_host_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("hosts/nqn.2020-01.org.example:h");
        let [own, other] = [1, 2].map(|byte| HostSecret::of_key([byte; 32]));
        let steps = |secret: Option<&HostSecret>| {
            host_steps(&host(secret.cloned()), Path::new("subsystems/nqn.x"), folder.path(), &[])
        };
        let reason = |secret| steps(secret).unwrap_err().to_string();
        assert_eq!((steps(None).unwrap().len(), steps(Some(&own)).unwrap().len()), (2, 3));
        fs::create_dir_all(&directory).unwrap();
        assert!(steps(None).is_ok() && reason(Some(&own)).contains("exports without a secret"));
        fs::write(directory.join("dhchap_key"), format!("{}\n", own.text())).unwrap();
        assert_eq!(steps(Some(&own)).unwrap().len(), 1);
        assert!(reason(Some(&other)).contains("another secret already"));
        assert!(reason(None).contains("this host has a secret"));
    }

    #[test]
    fn each_address_is_a_port() {
        let folder = tempfile::tempdir().unwrap();
        let store = ExportStore {
            root: folder.path().to_owned(),
            ..ExportStore::open(&folder.path().join("disks")).unwrap()
        };
        let write = |name: &str, text: &str| {
            let path = folder.path().join("ports").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        // Port 2 has the second address by RDMA, port 3 by TCP.
        for (port, transport) in [(2, "rdma"), (3, "tcp")] {
            write(&format!("{port}/addr_trtype"), &format!("{transport}\n"));
            write(&format!("{port}/addr_traddr"), "10.0.1.2\n");
            write(&format!("{port}/addr_trsvcid"), "4420\n");
        }
        let listens: Vec<SocketAddr> = ["10.0.0.2:4420", "10.0.1.2:4420", "10.0.2.2:4420"]
            .map(|one| one.parse().unwrap())
            .into();
        let held = held(folder.path());
        let mut request = ExportRequest { listens, ..request(&held.path, None) };
        let numbers = |request: &ExportRequest| -> Vec<u32> {
            store.ports_for(request).unwrap().into_iter().map(|(number, _)| number).collect()
        };
        assert_eq!(numbers(&request), [1, 3, 4]);
        request.transport = FabricsTransport::Rdma;
        assert_eq!(numbers(&request), [1, 2, 4]);
        let ports = store.ports_for(&request).unwrap();
        let steps = steps(&request, "nqn.x", &held, folder.path(), &ports, &[]).unwrap();
        let has = |name: &str, value: &str| {
            steps.iter().any(|step| {
                matches!(step, ConfigStep::Write { path, value: found } if path.ends_with(name) && found == value)
            })
        };
        assert!(
            has("ports/4/addr_trtype", "rdma") && has("ports/4/param_inline_data_size", "16384")
        );
        // The port of another program has its own attributes.
        assert!(!has("ports/2/addr_trtype", "rdma"));
        let links = steps.iter().filter(
            |step| matches!(step, ConfigStep::Link { link, .. } if link.starts_with("ports")),
        );
        assert_eq!(links.count(), 3);
    }

    #[test]
    fn failed_link_names_its_address() {
        let ports = ports(1);
        let link = ConfigStep::Link {
            target: "subsystems/nqn.x".into(),
            link: "ports/1/subsystems/nqn.x".into(),
        };
        let reason = |kind: io::ErrorKind, transport| {
            step_failed(Path::new("/"), &link, &kind.into(), transport, &ports).to_string()
        };
        let tcp = FabricsTransport::Tcp;
        assert!(reason(io::ErrorKind::AddrInUse, tcp).contains("port 4420 is in use"));
        assert!(reason(io::ErrorKind::AddrNotAvailable, tcp).contains("--address"));
        let rdma = reason(io::ErrorKind::AddrNotAvailable, FabricsTransport::Rdma);
        assert!(rdma.contains("10.0.0.2:4420 over rdma") && rdma.contains("RDMA device"), "{rdma}");
        let module = reason(io::ErrorKind::InvalidInput, FabricsTransport::Rdma);
        assert!(module.contains("modprobe nvmet-rdma"), "{module}");
    }

    fn record(steps: Vec<ConfigStep>) -> ExportRecord {
        ExportRecord {
            nqn: "nqn.x".to_owned(),
            path: "/data/image".into(),
            transport: FabricsTransport::Rdma,
            listens: vec!["10.0.0.2:4420".parse().unwrap()],
            hosts: Vec::new(),
            has_secret: false,
            boot_id: penstock_sys::machine::boot_id().unwrap_or_default(),
            steps,
        }
    }

    #[test]
    fn admitted_host_is_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("nvmet");
        let store = ExportStore {
            root: root.clone(),
            ..ExportStore::open(&folder.path().join("disks")).unwrap()
        };
        let allowed = root.join("subsystems/nqn.x/allowed_hosts");
        fs::create_dir_all(&allowed).unwrap();
        fs::create_dir_all(root.join("hosts")).unwrap();
        let lock =
            ExclusiveFileLock::try_lock_at(&store.record_path("nqn.x").with_extension("lock"));
        let mut export = DiskExport {
            record: record(Vec::new()),
            store: store.clone(),
            lock: lock.unwrap(),
            _held: held(folder.path()),
        };
        let admitted = |nqn: &str| AdmittedHost { nqn: nqn.to_owned(), secret: None };
        let host = "nqn.2020-01.org.example:h";
        export.admit(&admitted(host)).unwrap();
        assert!(allowed.join(host).exists());
        assert_eq!(store.list().unwrap()[0].0.hosts, [host]);
        // Without its directory the second link fails: nothing of the host stays.
        fs::remove_dir_all(&allowed).unwrap();
        let other = "nqn.2020-01.org.example:i";
        assert!(export.admit(&admitted(other)).is_err());
        assert!(!root.join("hosts").join(other).exists());
        assert_eq!(store.list().unwrap()[0].0.hosts, [host]);
        export.remove().unwrap();
        assert!(!root.join("hosts").join(host).exists() && store.list().unwrap().is_empty());
    }

    #[test]
    fn ended_exports_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("nvmet");
        let store = ExportStore {
            root: root.clone(),
            ..ExportStore::open(&folder.path().join("disks")).unwrap()
        };
        let subsystem = PathBuf::from("subsystems/nqn.x");
        fs::create_dir_all(root.join(&subsystem)).unwrap();
        let record = record(vec![ConfigStep::Create { path: subsystem.clone() }]);
        let path = store.record_path("nqn.x");
        write_record(&path, &record).unwrap();
        let lock = ExclusiveFileLock::try_lock_at(&path.with_extension("lock")).unwrap();
        assert_eq!(store.list().unwrap(), [(record, true)]);
        assert_eq!(store.remove_ended().unwrap(), Vec::<String>::new());
        drop(lock);
        assert!(!store.list().unwrap()[0].1);
        assert_eq!(store.remove_ended().unwrap(), ["nqn.x"]);
        assert!(!root.join(&subsystem).exists() && store.list().unwrap().is_empty());
    }

    #[test]
    fn damaged_record_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let store = ExportStore::open(folder.path()).unwrap();
        fs::write(folder.path().join("x.json"), "{").unwrap();
        assert!(store.list().unwrap_err().to_string().contains("damaged record"));
    }
}
