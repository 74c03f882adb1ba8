//! The process that owns a lab and serves its control socket.
//!
//! A lab has a directory: `lock`, held while it runs; `control`, the socket; `hosts`, the `/etc/hosts` of its nodes;
//! `record`, which identifies its namespaces after a crash, so that leftover processes can be killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penstock_sys::event::{EventFd, Interest, poll};
use penstock_sys::lock::{ExclusiveFileLock, SharedFileLock};
use penstock_sys::machine;
use penstock_sys::namespace::{NetworkNamespace, network_cookie};
use penstock_topology::{LinkId, NodeId, NodeKind};
use penstock_units::BitRate;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::backend::Backend;
use crate::calibration_task::{CalibrationError, CalibrationTask};
use crate::control::{
    CircuitLink, CircuitReport, DirectionReport, Directions, InterfaceStatus, LINE_BYTES_MAX,
    LabRequest, LinkReport, NodeStatus, Reply, RunningLab, ShutdownReport,
};
use crate::lab::{Lab, LabError};
use crate::line::ImpairmentError;
use crate::plan::{LabPlan, UnknownName};
use crate::setting::{LinkSetting, LinkSettingError};

/// Environment variable with the lab's directory, set for processes in a lab.
pub const LAB_VARIABLE: &str = "PENSTOCK_LAB";
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for processes that only look for a lab to release its lock.
const LOCK_WAIT: Duration = Duration::from_millis(500);

/// A request that the lab refuses.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum RequestError {
    Lab(#[from] LabError),
    Name(#[from] UnknownName),
    Setting(#[from] LinkSettingError),
    Impairment(#[from] ImpairmentError),
    Calibration(#[from] CalibrationError),
}

/// Identifies the namespaces of a lab after its supervisor died.
#[derive(Debug, Default, Serialize, Deserialize)]
struct LabRecord {
    /// Boot at which it ran: a restart leaves no namespaces.
    boot_id: String,
    /// Inodes of its namespaces, which the kernel may reuse, and their unique cookies (`None` before Linux 5.14).
    namespaces: BTreeMap<u64, Option<u64>>,
}

/// Owns a lab and serves its control socket.
#[derive(Debug)]
pub struct Supervisor {
    lab: Lab,
    directory: PathBuf,
    listener: UnixListener,
    seed: u64,
    user_namespace: Option<PathBuf>,
    notes: Vec<String>,
    calibration: CalibrationTask,
    // Dropped last: no other lab starts before this one is removed.
    _lock: ExclusiveFileLock,
}

/// A lab that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// A lab of this name is up.
    #[error("lab {0} is up already: penstock lab down --lab {0}")]
    Up(String),
    /// Its directory cannot be used.
    #[error("{path}: {reason}")]
    Directory {
        /// Directory of the lab.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// Namespaces or links cannot be created.
    #[error(transparent)]
    Lab(#[from] LabError),
}

impl Supervisor {
    /// Starts a lab in a directory, after killing leftovers of an earlier one.
    ///
    /// # Errors
    /// When one is up, or this machine cannot emulate it.
    pub fn start(
        directory: &Path,
        plan: LabPlan,
        backend: Backend,
        seed: u64,
        user_namespace: Option<PathBuf>,
    ) -> Result<Self, SupervisorError> {
        let fault = |reason| SupervisorError::Directory { path: directory.to_owned(), reason };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fault)?;
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let lock = lock(directory).map_err(fault)?.ok_or(SupervisorError::Up(name))?;
        sweep(directory).map_err(fault)?;
        let hosts = plan.hosts_file();
        let lab = Lab::new(plan, backend, seed)?;
        let mut notes = Vec::new();
        if let Err(error) = real_time() {
            notes.push(format!("links run without real-time priority ({error}): they may be late"));
        }
        let supervisor = Self {
            listener: listen(directory).map_err(fault)?,
            lab,
            directory: directory.to_owned(),
            seed,
            user_namespace,
            notes,
            calibration: CalibrationTask::new().map_err(fault)?,
            _lock: lock,
        };
        fs::write(directory.join("hosts"), hosts).map_err(fault)?;
        supervisor.write_record().map_err(fault)?;
        Ok(supervisor)
    }

    fn write_record(&self) -> io::Result<()> {
        // Atomic.
        let new = self.directory.join("record.new");
        fs::write(&new, serde_json::to_vec(&self.record()?)?)?;
        fs::rename(new, self.directory.join("record"))
    }

    fn record(&self) -> io::Result<LabRecord> {
        let nodes = (0..self.lab.plan().nodes.len()).map(|node| {
            let namespace = self.lab.namespace(NodeId(node));
            Ok((namespace.inode()?, namespace.inside(network_cookie)?.ok()))
        });
        Ok(LabRecord {
            boot_id: machine::boot_id()?,
            namespaces: nodes.collect::<io::Result<_>>()?,
        })
    }

    /// Serves requests until [`LabRequest::Down`] or `stop`; then kills all processes in the lab.
    ///
    /// # Errors
    /// The error of `poll`.
    pub fn run(mut self, stop: &EventFd) -> io::Result<()> {
        loop {
            let sources = [
                (self.listener.as_fd(), Interest::READ),
                (stop.as_fd(), Interest::READ),
                (self.calibration.as_fd(), Interest::READ),
            ];
            let ready = poll(&sources, None)?;
            let is_ready = |source: usize| ready.get(source).is_some_and(|ready| ready.any());
            if is_ready(1) {
                return self.end().map(|_| ());
            }
            if is_ready(2) {
                self.send_calibration();
            }
            if !is_ready(0) {
                continue;
            }
            let Ok((stream, _)) = self.listener.accept() else { continue };
            match self.serve(&stream) {
                Ok(true) => {
                    let ended = self.end();
                    let answer = match &ended {
                        Ok(ended) => Reply::Ok(json!(ended)),
                        Err(error) => Reply::Error(error.to_string()),
                    };
                    // The client may start another lab as soon as it has the reply.
                    drop(self);
                    let _ = reply(&stream, &answer);
                    return ended.map(|_| ());
                }
                Ok(false) => {}
                Err(error) => tracing::debug!("a request failed: {error}"),
            }
        }
    }

    /// Serves one request; true if it was the last.
    fn serve(&mut self, stream: &UnixStream) -> io::Result<bool> {
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_write_timeout(Some(CLIENT_TIMEOUT))?;
        let mut line = String::new();
        BufReader::new(io::Read::take(stream, LINE_BYTES_MAX)).read_line(&mut line)?;
        let answer = match serde_json::from_str(&line) {
            Ok(LabRequest::Down) => return Ok(true),
            Ok(LabRequest::Calibrate { links }) => match self.calibrate(&links, stream) {
                // The reply follows the measurement.
                Ok(()) => return Ok(false),
                Err(error) => Reply::Error(error.to_string()),
            },
            Ok(request) => match self.answer(request) {
                Ok(value) => Reply::Ok(value),
                Err(error) => Reply::Error(error.to_string()),
            },
            Err(error) => Reply::Error(format!("not a request: {error}")),
        };
        reply(stream, &answer).map(|()| false)
    }

    fn answer(&mut self, request: LabRequest) -> Result<Value, RequestError> {
        let value = match request {
            LabRequest::Status => json!(self.status()?),
            LabRequest::Set { link, settings, directions } => {
                let settings: Vec<LinkSetting> = settings
                    .iter()
                    .map(|text| text.parse::<LinkSetting>())
                    .collect::<Result<_, _>>()?;
                self.change(&link, directions, |mut one| {
                    settings.iter().for_each(|setting| one = setting.apply(one));
                    one
                })?
            }
            LabRequest::Cut { link, directions } => {
                self.change(&link, directions, |one| crate::line::Impairment { cut: true, ..one })?
            }
            LabRequest::Mend { link } => self.change(&link, Directions::Both, |one| {
                crate::line::Impairment { cut: false, ..one }
            })?,
            LabRequest::Route { from, to, links } => {
                let plan = self.lab.plan();
                let (from, to) = (plan.party_named(&from)?, plan.party_named(&to)?);
                let links: Vec<LinkId> =
                    links.iter().map(|link| self.link(link)).collect::<Result<_, _>>()?;
                self.lab.pin(from, to, &links)?;
                Value::Null
            }
            LabRequest::Circuit { name, rate_bps, from, to, links } => {
                let nodes = |names: &[String]| -> Result<Vec<NodeId>, UnknownName> {
                    names.iter().map(|one| self.node(one)).collect()
                };
                let (from, to) = (nodes(&from)?, nodes(&to)?);
                let links: Vec<LinkId> =
                    links.iter().map(|link| self.link(link)).collect::<Result<_, _>>()?;
                self.lab.make_circuit(&name, BitRate(rate_bps), [&from, &to], &links)?;
                json!(self.circuit(&name))
            }
            LabRequest::Release { name } => {
                self.lab.release_circuit(&name)?;
                Value::Null
            }
            LabRequest::Circuits => json!(self.circuits()),
            LabRequest::Forgive => {
                let all: Vec<LinkId> = self.lab.plan().all_links().collect();
                self.lab.reset_timing_error(&all);
                Value::Null
            }
            LabRequest::Calibrate { .. } | LabRequest::Down => Value::Null,
        };
        Ok(value)
    }

    fn link(&self, name: &str) -> Result<LinkId, UnknownName> {
        self.lab.plan().link_named(name)
    }

    fn node(&self, name: &str) -> Result<NodeId, UnknownName> {
        self.lab.plan().node_named(name)
    }

    fn change(
        &mut self,
        link: &str,
        directions: Directions,
        change: impl Fn(crate::line::Impairment) -> crate::line::Impairment,
    ) -> Result<Value, RequestError> {
        let link = self.link(link)?;
        let mut wanted = self.lab.wanted(link);
        for (one, meant) in wanted.iter_mut().zip(directions.each()) {
            if meant {
                let changed = change(*one);
                // A cut does not depend on the settings, which may be invalid from the start.
                if changed.cut == one.cut {
                    changed.check()?;
                }
                *one = changed;
            }
        }
        self.lab.set(link, wanted)?;
        let report = self.report(link)?;
        Ok(json!(report))
    }

    fn calibrate(&mut self, names: &[String], stream: &UnixStream) -> Result<(), RequestError> {
        let links: Vec<LinkId> = if names.is_empty() {
            self.lab.plan().all_links().collect()
        } else {
            names.iter().map(|name| self.link(name)).collect::<Result<_, _>>()?
        };
        let stream = stream.try_clone().map_err(CalibrationError::Io)?;
        let ready = self.calibration.prepare(&self.lab, links.clone(), stream)?;
        self.lab.pause_counters(&links);
        self.calibration.begin(ready).inspect_err(|_| self.lab.resume_counters())?;
        Ok(())
    }

    fn send_calibration(&mut self) {
        let Some(done) = self.calibration.take() else { return };
        // The measurement's own traffic does not count.
        self.lab.reset_timing_error(&done.links);
        self.lab.resume_counters();
        let answer = match done.found {
            Ok(measured) => Reply::Ok(json!(measured)),
            Err(error) => Reply::Error(error.to_string()),
        };
        if let Err(error) = reply(&done.stream, &answer) {
            tracing::debug!("cannot send the measurement: {error}");
        }
    }

    /// Reads the state of the lab.
    ///
    /// # Errors
    /// The kernel's error for a counter.
    pub fn status(&self) -> Result<RunningLab, LabError> {
        let plan = self.lab.plan();
        let links = (0..plan.topology.links.len()).map(|link| self.report(LinkId(link)));
        Ok(RunningLab {
            name: self.directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            topology: plan.topology.name.clone(),
            backend: self.lab.backend(),
            seed: self.seed,
            pid: std::process::id(),
            user_namespace: self.user_namespace.clone(),
            notes: self.notes.clone(),
            nodes: (0..plan.nodes.len()).map(|node| self.node_status(NodeId(node))).collect(),
            links: links.collect::<Result<_, _>>()?,
            circuits: self.circuits(),
        })
    }

    fn circuits(&self) -> Vec<CircuitReport> {
        self.lab.circuits().keys().filter_map(|name| self.circuit(name)).collect()
    }

    fn circuit(&self, name: &str) -> Option<CircuitReport> {
        let topology = &self.lab.plan().topology;
        let (rate, lanes) = self.lab.circuit_status(name)?;
        let addresses = self.lab.circuit_addresses(name)?.into_iter();
        let links = lanes.into_iter().map(|lane| CircuitLink {
            link: topology.links[lane.link.0].name.clone(),
            is_cut: lane.is_cut,
            forward: lane.counters[0],
            back: lane.counters[1],
        });
        Some(CircuitReport {
            name: name.to_owned(),
            rate_bps: rate.0,
            addresses: addresses
                .map(|(host, address)| (topology.nodes[host.0].name.clone(), address))
                .collect(),
            links: links.collect(),
        })
    }

    fn node_status(&self, id: NodeId) -> NodeStatus {
        let plan = self.lab.plan();
        let node = &plan.nodes[id.0];
        let fd = self.lab.namespace(id).as_fd().as_raw_fd();
        NodeStatus {
            name: node.name.clone(),
            host: node.kind == NodeKind::Host,
            namespace: format!("/proc/{}/fd/{fd}", std::process::id()).into(),
            interfaces: node
                .ports
                .iter()
                .map(|port| InterfaceStatus {
                    device: port.device.clone(),
                    link: plan.topology.links[port.link.0].name.clone(),
                    ipv6: port.addresses.v6,
                    ipv4: port.addresses.v4,
                    mtu: port.mtu,
                })
                .collect(),
        }
    }

    fn report(&self, link: LinkId) -> Result<LinkReport, LabError> {
        let topology = &self.lab.plan().topology;
        let [one, other] = self.lab.status(link)?;
        let ends = &topology.links[link.0].ends;
        let [a, b] = [0, 1].map(|side| topology.nodes[ends[side].node.0].name.as_str());
        Ok(LinkReport {
            name: topology.links[link.0].name.clone(),
            directions: [DirectionReport::new(a, b, &one), DirectionReport::new(b, a, &other)],
        })
    }

    /// Kills all processes in the lab and removes its files from the directory.
    fn end(&self) -> io::Result<ShutdownReport> {
        let processes = kill_in(&self.record()?, None)?;
        for file in ["control", "hosts", "record"] {
            let _ = fs::remove_file(self.directory.join(file));
        }
        let plan = self.lab.plan();
        let hosts = plan.nodes.iter().filter(|node| node.kind == NodeKind::Host).count();
        let (switches, links) = (plan.nodes.len() - hosts, plan.topology.links.len());
        Ok(ShutdownReport { hosts, switches, links, processes })
    }
}

fn real_time() -> io::Result<()> {
    std::thread::scope(|scope| scope.spawn(machine::become_realtime).join().unwrap_or(Ok(())))
}

fn reply(stream: &UnixStream, answer: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    let mut stream = stream;
    stream.write_all(line.as_bytes())
}

/// Binds through the open directory: paths of sockets are limited to 107 bytes.
fn listen(directory: &Path) -> io::Result<UnixListener> {
    let directory = fs::File::open(directory)?;
    let path = format!("/proc/self/fd/{}/control", directory.as_raw_fd());
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

/// Locks a directory against other supervisors; `None` while one holds it. A process that only looks for one holds it for
/// a moment, too.
fn lock(directory: &Path) -> io::Result<Option<ExclusiveFileLock>> {
    let begun = Instant::now();
    loop {
        match ExclusiveFileLock::try_lock_at(&directory.join("lock"))? {
            None if begun.elapsed() < LOCK_WAIT => std::thread::sleep(Duration::from_millis(5)),
            lock => return Ok(lock),
        }
    }
}

/// True if a process holds the lab of a directory.
#[must_use]
pub fn is_up(directory: &Path) -> bool {
    let lock = fs::File::open(directory.join("lock"));
    lock.is_ok_and(|lock| matches!(SharedFileLock::try_lock(lock), Ok(None)))
}

/// True if the supervisor of this directory's lab died and left its record.
#[must_use]
pub fn has_died(directory: &Path) -> bool {
    let Ok(lock) = fs::File::open(directory.join("lock")) else { return false };
    // A supervisor that ends removes the record first, and then releases the lock.
    let lock = SharedFileLock::try_lock(lock);
    matches!(lock, Ok(Some(_))) && directory.join("record").exists()
}

/// Kills the processes that a dead lab left and returns their count; `None` where no lab died.
///
/// # Errors
/// When its directory or `/proc` cannot be read.
pub fn kill_leftovers(directory: &Path) -> io::Result<Option<usize>> {
    match lock(directory)? {
        Some(_lock) if directory.join("record").exists() => sweep(directory).map(Some),
        _ => Ok(None),
    }
}

/// Kills the processes in the namespaces of a dead lab and returns their count. The caller holds the lock.
fn sweep(directory: &Path) -> io::Result<usize> {
    let Ok(text) = fs::read(directory.join("record")) else { return Ok(0) };
    let ended = match serde_json::from_slice::<LabRecord>(&text) {
        Ok(record) if record.boot_id == machine::boot_id()? => kill_in(&record, Some(directory))?,
        Ok(_) => 0,
        Err(error) => {
            tracing::warn!(
                "{}: its record cannot be read, so its processes are not killed: {error}",
                directory.display()
            );
            0
        }
    };
    for file in ["control", "hosts", "record"] {
        let _ = fs::remove_file(directory.join(file));
    }
    Ok(ended)
}

/// Kills all processes in these namespaces and returns their count. For a dead lab, `died_in` guards against reused
/// inodes.
fn kill_in(record: &LabRecord, died_in: Option<&Path>) -> io::Result<usize> {
    let mut killed = BTreeSet::new();
    // A killed process may have forked just before.
    for _ in 0..100 {
        let found = processes_in(record, died_in)?;
        if found.is_empty() {
            break;
        }
        found.iter().for_each(|pid| machine::kill(*pid));
        killed.extend(found);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(killed.len())
}

fn processes_in(record: &LabRecord, died_in: Option<&Path>) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A zombie has no namespace.
        let Ok(inside) = fs::metadata(entry.path().join("ns/net")) else { continue };
        let Some(cookie) = record.namespaces.get(&inside.ino()) else { continue };
        if died_in.is_none_or(|directory| is_of_lab(&entry.path(), *cookie, directory)) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// True if a process is in the namespace of this cookie; without cookies, if its environment names the lab.
fn is_of_lab(process: &Path, cookie: Option<u64>, directory: &Path) -> bool {
    let found = NetworkNamespace::at(&process.join("ns/net"))
        .and_then(|namespace| namespace.inside(network_cookie)?);
    match (found, cookie) {
        (Ok(found), Some(cookie)) => found == cookie,
        _ => was_started_in(process, directory),
    }
}

fn was_started_in(process: &Path, directory: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(environment) = fs::read(process.join("environ")) else { return false };
    let wanted = [LAB_VARIABLE.as_bytes(), b"=", directory.as_os_str().as_bytes()].concat();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_spare_starting_and_ending_labs() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        fs::write(directory.join("lock"), "").unwrap();
        std::thread::scope(|scope| {
            let labs = scope.spawn(|| {
                for _ in 0..300 {
                    let held = lock(directory).unwrap().expect("no other supervisor");
                    fs::write(directory.join("record"), "").unwrap();
                    fs::remove_file(directory.join("record")).unwrap();
                    drop(held);
                }
            });
            while !labs.is_finished() {
                let _ = is_up(directory);
                assert!(!has_died(directory));
            }
        });
    }
}
