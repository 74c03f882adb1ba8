//! Controller of a remote disk: queue 0, the description of the disk, and its further queues.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use penstock_nvme::command::{
    CONFIGURATION_ENABLED, ControllerCapabilities, ControllerProperty, IdentifyKind, NvmeCommand,
};
use penstock_nvme::identify::{
    ControllerData, DISCOVERY_ENTRY_BYTES, DiscoveredSubsystem, NamespaceData, active_namespaces,
    discovery_entries, discovery_entry_count,
};
use penstock_nvme::nqn::DISCOVERY_NQN;
use penstock_sys::net::TcpInfo;

use crate::connection::QueueConnection;
use crate::{DiskError, DiskHost, DiskLocation};

/// Time without a sign of life after which the target ends the controller.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Interval of signs of life.
pub(crate) const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Commands of queue 0.
const ADMIN_DEPTH: u16 = 31;
/// Interval of queries for a controller that becomes ready.
const READY_INTERVAL: Duration = Duration::from_millis(20);
/// Entries of the discovery log page in one read.
const DISCOVERY_ENTRIES_AT_ONCE: usize = 16;

/// Connected controller of a remote disk.
#[derive(Debug)]
pub struct RemoteController {
    admin: QueueConnection,
    host: DiskHost,
    nqn: String,
    number: u16,
    capabilities: ControllerCapabilities,
    data: ControllerData,
}

impl RemoteController {
    /// Connects to the controller of a disk, authenticates and enables it.
    ///
    /// # Errors
    /// The cause of the failure, with a remedy. Where the target does not know the disk, the error lists those that it
    /// shows this host.
    pub fn connect(location: &DiskLocation, host: &DiskHost) -> Result<Self, DiskError> {
        let peer = location.address()?;
        Self::open(peer, &location.nqn, host).map_err(|error| match error {
            DiskError::UnknownDisk { peer, nqn, .. } => {
                let known = discover(peer, host).unwrap_or_default();
                let names = known.into_iter().filter(|one| !one.is_discovery).map(|one| one.nqn);
                DiskError::UnknownDisk { peer, nqn, known: names.collect() }
            }
            other => other,
        })
    }

    fn open(peer: SocketAddr, nqn: &str, host: &DiskHost) -> Result<Self, DiskError> {
        let mut admin = QueueConnection::open(peer, 0, host)?;
        let number = admin.join(host, nqn, 0, None, ADMIN_DEPTH, KEEP_ALIVE)?;
        let capabilities = enable(&mut admin)?;
        let mut reply = Vec::new();
        let identify = NvmeCommand::identify(IdentifyKind::Controller);
        admin.succeed(&identify, &[], &mut reply, "identifying the controller")?;
        let data = ControllerData::parse(&reply);
        Ok(Self { admin, host: host.clone(), nqn: nqn.to_owned(), number, capabilities, data })
    }

    /// Address of the target.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.admin.peer()
    }

    /// Most commands of a queue, at most what 16 bits hold.
    #[must_use]
    pub fn depth_max(&self) -> u16 {
        // One entry stays free.
        u16::try_from(self.capabilities.queue_entries_max - 1).unwrap_or(u16::MAX).max(1)
    }

    /// Longest data of a command, in bytes; `None` without a limit.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        self.data.transfer_pages_max.map(|pages| pages.saturating_mul(4096))
    }

    /// Facts of the controller.
    #[must_use]
    pub const fn data(&self) -> &ControllerData {
        &self.data
    }

    /// Smallest round-trip time of the connection so far.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        let info = TcpInfo::of(self.admin.socket()).ok();
        Duration::from_micros(info.map_or(0, |info| u64::from(info.rtt_min_us.max(1))))
    }

    /// Numbers of the namespaces.
    ///
    /// # Errors
    /// When the target does not answer.
    pub fn namespaces(&mut self) -> Result<Vec<u32>, DiskError> {
        let mut reply = Vec::new();
        let kind = IdentifyKind::ActiveNamespaces { after: 0 };
        self.admin.succeed(
            &NvmeCommand::identify(kind),
            &[],
            &mut reply,
            "listing the namespaces",
        )?;
        Ok(active_namespaces(&reply))
    }

    /// Format and size of a namespace; `None` is the first one.
    ///
    /// # Errors
    /// If it does not exist, or cannot be read.
    pub fn namespace(&mut self, number: Option<u32>) -> Result<NamespaceData, DiskError> {
        let peer = self.peer();
        let number = match number {
            Some(number) => number,
            None => {
                let first = self.namespaces()?.first().copied();
                first.ok_or_else(|| DiskError::NoNamespace { peer, nqn: self.nqn.clone() })?
            }
        };
        let mut reply = Vec::new();
        let identify = NvmeCommand::identify(IdentifyKind::Namespace(number));
        self.admin.succeed(
            &identify,
            &[],
            &mut reply,
            &format!("identifying namespace {number}"),
        )?;
        NamespaceData::parse(number, &reply).map_err(|fault| DiskError::Namespace { peer, fault })
    }

    /// Asks for queues of reads; returns the number that the target grants.
    ///
    /// # Errors
    /// When the target refuses.
    pub fn request_queues(&mut self, queues: u16) -> Result<u16, DiskError> {
        let command = NvmeCommand::set_queue_count(queues);
        let granted = self.admin.succeed(&command, &[], &mut Vec::new(), "asking for queues")?;
        let (submission, completion) = (granted & 0xFFFF, granted >> 16 & 0xFFFF);
        let granted = submission.min(completion).saturating_add(1);
        Ok(u16::try_from(granted).unwrap_or(u16::MAX).min(queues))
    }

    /// Connects queue `queue`, from 1, for `depth` commands.
    pub(crate) fn open_queue(&self, queue: u16, depth: u16) -> Result<QueueConnection, DiskError> {
        let mut connection = QueueConnection::open(self.peer(), queue, &self.host)?;
        connection.join(&self.host, &self.nqn, queue, Some(self.number), depth, Duration::ZERO)?;
        Ok(connection)
    }

    /// Shows the target that this host lives.
    ///
    /// # Errors
    /// When the target does not answer.
    pub fn keep_alive(&mut self) -> Result<(), DiskError> {
        let command = NvmeCommand::keep_alive();
        self.admin.succeed(&command, &[], &mut Vec::new(), "keep alive").map(drop)
    }

    /// Label of the packets of queue 0.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.admin.label
    }
}

/// Enables the controller of a queue 0 and waits until it is ready.
fn enable(admin: &mut QueueConnection) -> Result<ControllerCapabilities, DiskError> {
    let mut reply = Vec::new();
    let get = NvmeCommand::property_get(ControllerProperty::Capabilities);
    let value = admin.succeed(&get, &[], &mut reply, "reading the capabilities")?;
    let capabilities = ControllerCapabilities::of(value);
    let set = NvmeCommand::property_set(ControllerProperty::Configuration, CONFIGURATION_ENABLED);
    admin.succeed(&set, &[], &mut reply, "enabling the controller")?;
    let wait = Duration::from_millis(u64::from(capabilities.ready_timeout_ms.max(500)));
    let begun = Instant::now();
    loop {
        let get = NvmeCommand::property_get(ControllerProperty::Status);
        let status = admin.succeed(&get, &[], &mut reply, "reading the status")?;
        if status & 1 == 1 {
            return Ok(capabilities);
        }
        if begun.elapsed() > wait {
            let remedy = "the controller does not become ready: see the kernel log of the target";
            return Err(DiskError::Silent { peer: admin.peer(), after: wait, remedy });
        }
        std::thread::sleep(READY_INTERVAL);
    }
}

/// Disks that a target shows this host, from its discovery service.
///
/// # Errors
/// When the target does not answer, or refuses.
pub fn discover(peer: SocketAddr, host: &DiskHost) -> Result<Vec<DiscoveredSubsystem>, DiskError> {
    let mut admin = QueueConnection::open(peer, 0, host)?;
    admin.join(host, DISCOVERY_NQN, 0, None, ADMIN_DEPTH, KEEP_ALIVE)?;
    enable(&mut admin)?;
    let mut reply = Vec::new();
    let words = "reading the discovery log page";
    let header = NvmeCommand::discovery_log(0, DISCOVERY_ENTRY_BYTES as u32);
    admin.succeed(&header, &[], &mut reply, words)?;
    let count = discovery_entry_count(&reply);
    let mut found = Vec::new();
    while found.len() < count {
        let entries = (count - found.len()).min(DISCOVERY_ENTRIES_AT_ONCE);
        let offset = (1 + found.len()) * DISCOVERY_ENTRY_BYTES;
        let bytes = entries * DISCOVERY_ENTRY_BYTES;
        let command = NvmeCommand::discovery_log(offset as u64, bytes as u32);
        admin.succeed(&command, &[], &mut reply, words)?;
        found.extend(discovery_entries(&reply));
    }
    Ok(found)
}
