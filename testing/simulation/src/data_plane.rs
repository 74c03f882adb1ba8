//! Simulated movers: hosts, the files at their sites, and transfers that move bytes at the ordered rate.
//!
//! A transfer connects, shows its ticket, and copies its files by the mover's protocol ([`crate::session`]). It waits while
//! an end is down, does not run or cannot be reached. All hosts of a site share its files.

use std::collections::{BTreeMap, BTreeSet};

use penstock_agent::orders::FailureAction;
use penstock_control::orders::OrderId;
use penstock_mover::CopyError;
use penstock_mover::TransferSnapshot;
use penstock_protocol::control::Settled;
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_random::Random;

use crate::scenario::Defect;
use crate::session::{PartialFile, ProtocolSession};

/// Time for which a transfer reconnects by itself.
const RECONNECT_MS: u64 = 20_000;

/// Time between attempts to connect.
const CONNECT_INTERVAL_MS: u64 = 500;

/// Rate of a transfer without a limit.
const UNLIMITED_BPS: u64 = 10_000_000_000;

/// A file of a site.
pub(crate) type FileKey = (String, String);

/// Content of a file: its identity and its size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileContent {
    pub(crate) identity: u64,
    pub(crate) bytes: u64,
}

/// A host with what its mover holds.
#[derive(Debug)]
pub(crate) struct DataHost {
    pub(crate) site: String,
    pub(crate) is_up: bool,
    pub(crate) is_hung: bool,
    /// Divisor of its speed.
    pub(crate) slowness: u64,
    /// Count of the starts of its process.
    pub(crate) start: u64,
    /// Valid tickets: the order and the directory that each admits to.
    pub(crate) tickets: BTreeMap<String, (OrderId, String)>,
    /// Tickets on its disk.
    pub(crate) stored_tickets: Option<String>,
}

/// State of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SimulatedConnection {
    Connecting {
        since_ms: u64,
        next_ms: u64,
    },
    /// A session that the ticket of an order admits, at this start of the receiving process.
    Session {
        order: OrderId,
        start: u64,
        is_ended: bool,
    },
}

/// A transfer of a sending host.
#[derive(Debug)]
pub(crate) struct DataPlaneTransfer {
    pub(crate) from: String,
    pub(crate) to: String,
    ticket: String,
    pub(crate) source: String,
    pub(crate) target: String,
    /// Paths without an outcome.
    pub(crate) files: Vec<String>,
    pub(crate) rate_bps: Option<u64>,
    connection: SimulatedConnection,
    pub(crate) session: Option<Box<ProtocolSession>>,
    pub(crate) settled: Vec<Settled>,
    pub(crate) moved_bytes: u64,
    sessions: u32,
    pub(crate) cancelled: Option<String>,
    pub(crate) outcome: Option<Result<(), CopyError>>,
    /// Set once no order asks for it any more.
    pub(crate) is_released: bool,
}

/// The simulated movers of all hosts.
#[derive(Debug)]
pub(crate) struct DataPlane {
    pub(crate) now_ms: u64,
    pub(crate) random: Random,
    pub(crate) hosts: BTreeMap<String, DataHost>,
    pub(crate) files: BTreeMap<FileKey, FileContent>,
    /// Contents that were ever committed or found in place.
    pub(crate) committed: BTreeSet<(FileKey, FileContent)>,
    pub(crate) transfers: BTreeMap<u64, DataPlaneTransfer>,
    next_transfer: u64,
    /// Pairs of hosts that cannot connect.
    pub(crate) cut: BTreeSet<(String, String)>,
    pub(crate) file_faults_permille: u64,
    /// Share of steps of a session in which its control link or a stream breaks, in thousandths.
    pub(crate) session_faults_permille: u64,
    /// Unfinished files at their destinations, by path and content of the source.
    pub(crate) partials: BTreeMap<(FileKey, FileContent), PartialFile>,
    pub(crate) defect: Option<Defect>,
    /// Orders that wrote a file, the last one at the end.
    writers: BTreeMap<FileKey, Vec<OrderId>>,
    /// Tickets of withdrawn orders by the sending host and the start of its process.
    pub(crate) withdrawn: BTreeSet<(String, u64, String)>,
    /// First violation of an invariant.
    pub(crate) violation: Option<String>,
    /// Notes for the trace.
    pub(crate) notes: Vec<String>,
}

/// Path of a file below a directory.
pub(crate) fn join(directory: &str, path: &str) -> String {
    format!("{}/{path}", directory.trim_end_matches('/'))
}

impl DataPlane {
    pub(crate) fn new(random: Random, file_faults_permille: u64) -> Self {
        Self {
            now_ms: 0,
            random,
            hosts: BTreeMap::new(),
            files: BTreeMap::new(),
            committed: BTreeSet::new(),
            transfers: BTreeMap::new(),
            next_transfer: 1,
            cut: BTreeSet::new(),
            file_faults_permille,
            session_faults_permille: 0,
            partials: BTreeMap::new(),
            defect: None,
            writers: BTreeMap::new(),
            withdrawn: BTreeSet::new(),
            violation: None,
            notes: Vec::new(),
        }
    }

    pub(crate) fn violate(&mut self, text: String) {
        self.violation.get_or_insert(text);
    }

    /// Starts a transfer of an order that a host sends.
    pub(crate) fn send(
        &mut self,
        from: &str,
        order: &penstock_control::orders::Send,
        paths: Vec<String>,
        rate_bps: Option<u64>,
    ) -> Result<u64, FailureAction> {
        let host = &self.hosts[from];
        if self.withdrawn.contains(&(from.to_owned(), host.start, order.ticket.clone())) {
            self.violate(format!("{from} starts an order that was withdrawn"));
        }
        let to = order.addresses.first().and_then(|address| address.split(':').next());
        let Some(to) = to.filter(|to| self.hosts.contains_key(*to)) else {
            return Err(FailureAction::Wait("no such host".to_owned()));
        };
        let transfer = DataPlaneTransfer {
            from: from.to_owned(),
            to: to.to_owned(),
            ticket: order.ticket.clone(),
            source: order.from.clone(),
            target: order.to.clone(),
            files: paths,
            rate_bps,
            connection: SimulatedConnection::Connecting {
                since_ms: self.now_ms,
                next_ms: self.now_ms + 20,
            },
            session: None,
            settled: Vec::new(),
            moved_bytes: 0,
            sessions: 0,
            cancelled: None,
            outcome: None,
            is_released: false,
        };
        let id = self.next_transfer;
        self.next_transfer += 1;
        self.transfers.insert(id, transfer);
        Ok(id)
    }

    /// Ends the process of a host: its transfers and sessions are gone, its disk stays.
    pub(crate) fn crash(&mut self, host: &str) {
        self.transfers.retain(|_, transfer| transfer.from != host);
        let state = self.hosts.get_mut(host).expect("a host of the scenario");
        state.is_up = false;
        state.tickets.clear();
    }

    /// Starts the process of a host again.
    pub(crate) fn restart(&mut self, host: &str) {
        let state = self.hosts.get_mut(host).expect("a host of the scenario");
        (state.is_up, state.is_hung, state.start) = (true, false, state.start + 1);
    }

    /// Revokes the ticket of an order at a receiving host.
    pub(crate) fn revoke_ticket(&mut self, host: &str, order: OrderId) {
        if self.defect != Some(Defect::TicketsKept) {
            let host = self.hosts.get_mut(host).expect("a host of the scenario");
            host.tickets.retain(|_, (granted, _)| *granted != order);
        }
    }

    pub(crate) fn end_sessions(&mut self, host: &str, ended: OrderId) {
        if matches!(self.defect, Some(Defect::TicketsKept | Defect::CancelledWritersKept)) {
            return;
        }
        let to_host = self.transfers.values_mut().filter(|transfer| transfer.to == host);
        for transfer in to_host {
            if let SimulatedConnection::Session { order, is_ended, .. } = &mut transfer.connection {
                *is_ended |= *order == ended;
            }
        }
    }

    fn connects(&self, one: &str, other: &str) -> bool {
        let pair = (one.to_owned(), other.to_owned());
        let reverse = (other.to_owned(), one.to_owned());
        !self.cut.contains(&pair) && !self.cut.contains(&reverse)
    }

    fn runs(&self, host: &str) -> bool {
        let host = &self.hosts[host];
        host.is_up && !host.is_hung
    }

    /// Returns the order under which a transfer writes now, if it does.
    fn writes_for(&self, transfer: &DataPlaneTransfer) -> Option<OrderId> {
        let SimulatedConnection::Session { order, start, is_ended: false } = transfer.connection
        else {
            return None;
        };
        let is_live = transfer.outcome.is_none()
            && self.cancellation(transfer).is_none()
            && self.runs(&transfer.from)
            && self.runs(&transfer.to)
            && self.hosts[&transfer.to].start == start
            && self.connects(&transfer.from, &transfer.to);
        is_live.then_some(order)
    }

    /// Returns the reason for which a transfer has to stop.
    fn cancellation<'a>(&self, transfer: &'a DataPlaneTransfer) -> Option<&'a String> {
        let is_ignored = self.defect == Some(Defect::CancelledWritersKept);
        transfer.cancelled.as_ref().filter(|_| !is_ignored)
    }

    /// Transfers that have not ended.
    pub(crate) fn live(&self) -> impl Iterator<Item = &DataPlaneTransfer> {
        self.transfers.values().filter(|transfer| transfer.outcome.is_none())
    }

    /// Moves bytes up to a time.
    pub(crate) fn advance(&mut self, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.now_ms);
        self.now_ms = now_ms;
        if elapsed_ms == 0 || self.transfers.is_empty() {
            return;
        }
        let ids: Vec<u64> = self.transfers.keys().copied().collect();
        for id in ids {
            let Some(mut transfer) = self.transfers.remove(&id) else { continue };
            if transfer.outcome.is_none() && self.runs(&transfer.from) {
                self.step(&mut transfer, elapsed_ms);
            }
            if !transfer.is_released || transfer.outcome.is_none() {
                self.transfers.insert(id, transfer);
            }
        }
    }

    fn step(&mut self, transfer: &mut DataPlaneTransfer, elapsed_ms: u64) {
        match transfer.connection {
            SimulatedConnection::Connecting { since_ms, next_ms } => {
                if let Some(reason) = self.cancellation(transfer) {
                    transfer.outcome = Some(Err(CopyError::Cancelled(reason.clone())));
                } else if self.now_ms >= next_ms {
                    self.connect(transfer, since_ms);
                }
            }
            SimulatedConnection::Session { order, start, is_ended } => {
                let host = &self.hosts[&transfer.to];
                let is_lost = !host.is_up
                    || host.start != start
                    || !self.connects(&transfer.from, &transfer.to);
                if is_lost || is_ended {
                    // The end of a session arrives as a failure or as a lost connection.
                    if is_ended && !is_lost && self.random.one_in(2) {
                        let text = "the session was ended".to_owned();
                        transfer.outcome = Some(Err(CopyError::Session(text)));
                        return;
                    }
                    self.lose_session(transfer);
                    transfer.connection = SimulatedConnection::Connecting {
                        since_ms: self.now_ms,
                        next_ms: self.now_ms + CONNECT_INTERVAL_MS,
                    };
                } else if self.hosts[&transfer.to].is_hung {
                    // The connection stays, and nothing moves.
                } else if let Some(reason) = self.cancellation(transfer) {
                    transfer.outcome = Some(Err(CopyError::Cancelled(reason.clone())));
                } else {
                    self.advance_session(transfer, order, elapsed_ms);
                }
            }
        }
    }

    fn connect(&mut self, transfer: &mut DataPlaneTransfer, since_ms: u64) {
        let shown = transfer.to.clone();
        let refused = |kind, text: &str| {
            Some(Err(CopyError::Refused(shown.clone(), Refusal::new(kind, text))))
        };
        if !self.connects(&transfer.from, &transfer.to) || !self.runs(&transfer.to) {
            if self.now_ms - since_ms > RECONNECT_MS {
                let text = "no answer".to_owned();
                transfer.outcome = Some(Err(CopyError::Unreachable(shown, text)));
            } else {
                let next_ms = self.now_ms + CONNECT_INTERVAL_MS;
                transfer.connection = SimulatedConnection::Connecting { since_ms, next_ms };
            }
            return;
        }
        let host = &self.hosts[&transfer.to];
        transfer.outcome = match host.tickets.get(&transfer.ticket) {
            None => refused(RefusalKind::Identity, "the token is not known"),
            Some((_, below)) if *below != transfer.target => {
                refused(RefusalKind::Permission, "another directory")
            }
            Some((order, _)) => {
                let (order, start) = (*order, host.start);
                transfer.connection =
                    SimulatedConnection::Session { order, start, is_ended: false };
                transfer.session = Some(Box::new(self.begin_session(transfer)));
                transfer.sessions += 1;
                None
            }
        };
    }

    /// Moves bytes within a session, at the rate of the transfer.
    fn advance_session(
        &mut self,
        transfer: &mut DataPlaneTransfer,
        order: OrderId,
        elapsed_ms: u64,
    ) {
        let slowness = self.hosts[&transfer.from].slowness.max(self.hosts[&transfer.to].slowness);
        let rate_bps = transfer.rate_bps.filter(|rate| *rate > 0).unwrap_or(UNLIMITED_BPS);
        let bytes = u128::from(rate_bps) * u128::from(elapsed_ms) / 8000 / u128::from(slowness);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let Some(mut session) = transfer.session.take() else { return };
        self.run_session(&mut session, transfer, order, bytes);
        if transfer.outcome.is_none() {
            transfer.session = Some(session);
        }
    }

    /// Checks that no other order writes the file, and that orders do not alternate.
    pub(crate) fn note_write(
        &mut self,
        target: &FileKey,
        order: OrderId,
        transfer: &DataPlaneTransfer,
    ) {
        let writers = self.writers.entry(target.clone()).or_default();
        let (site, path) = target;
        if writers.last() != Some(&order) {
            let wrote_before = writers.contains(&order);
            let last = writers.last().copied();
            writers.push(order);
            if let (true, Some(last)) = (wrote_before, last) {
                self.violate(format!("{site}:{path}: order {order} writes after order {last}"));
            }
        }
        let also = self.transfers.values().find(|other| {
            let is_target = |file: &String| join(&other.target, file) == *path;
            self.hosts[&other.to].site == *site
                && self.writes_for(other).is_some_and(|writes| writes != order)
                && other.files.iter().any(is_target)
        });
        let text = also.and_then(|other| Some((self.writes_for(other)?, &other.from))).map(
            |(other, from)| {
                format!(
                    "{site}:{path}: orders {order} ({}) and {other} ({from}) write at a time",
                    transfer.from
                )
            },
        );
        if let Some(text) = text {
            self.violate(text);
        }
    }

    pub(crate) fn outcome(&self, id: u64) -> Option<Result<(), CopyError>> {
        match self.transfers.get(&id) {
            Some(transfer) => match &transfer.cancelled {
                Some(reason) if self.defect == Some(Defect::CancelledWritersKept) => {
                    Some(Err(CopyError::Cancelled(reason.clone())))
                }
                _ => transfer.outcome.clone(),
            },
            None => Some(Err(CopyError::Session("the transfer is gone".to_owned()))),
        }
    }

    pub(crate) fn snapshot(&self, id: u64) -> TransferSnapshot {
        let mut snapshot = TransferSnapshot::default();
        let Some(transfer) = self.transfers.get(&id) else { return snapshot };
        snapshot.tally.moved_bytes = transfer.moved_bytes;
        snapshot.sessions = transfer.sessions;
        snapshot.rate_bps = transfer.rate_bps.filter(|rate| *rate > 0);
        snapshot.bound_by = "rate limit";
        if self.writes_for(transfer).is_some() {
            snapshot.streams = 1;
            snapshot.bits_per_second = transfer.rate_bps.unwrap_or(0);
        } else {
            snapshot.waiting = Some("it connects".to_owned());
        }
        snapshot
    }

    pub(crate) fn take_settled(&mut self, id: u64) -> Vec<Settled> {
        let Some(transfer) = self.transfers.get_mut(&id) else { return Vec::new() };
        std::mem::take(&mut transfer.settled)
    }
}

impl DataPlaneTransfer {
    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.connection, SimulatedConnection::Session { .. })
    }
}
