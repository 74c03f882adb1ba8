//! Transfers over other protocols, such as HTTP, in the accounts of the agent.
//!
//! A gateway reads and writes files by itself. Here its transfers count against the agent's limits, share its rate, carry
//! its labels, and appear in its list and its counters as those of the mover do. One transfer covers the files that one
//! connection moves in one direction.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use penstock_protocol::control::Settings;
use penstock_protocol::open::{Mark, Refusal, RefusalKind};
use penstock_sys::net::TcpInfo;

use super::agent::{Agent, AgentInner};
use super::ended_log::{EndedTransfer, StartConditions, host_of};
use super::listing::{ListedTransfer, TransferDirection, finished_state};
use crate::base::lock::lock;
use crate::client::stream_tuning::{GATEWAY, TuningReport};
use crate::net::firefly::Fireflies;
use crate::net::labels::label_accepted;
use crate::net::transport::Transport;
use crate::session::counters::AgentCounters;
use crate::session::gatekeeper::{Caller, Gatekeeper};
use crate::session::rate_limit::SharedPacer;

/// Least time between two samples of the rate.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(450);

/// A transfer that a gateway is about to do.
#[derive(Debug)]
pub struct GatewayRequest {
    /// Client that the gatekeeper authenticated.
    pub caller: Caller,
    /// Address of the other end.
    pub peer: String,
    /// Direction, as this agent sees it.
    pub direction: TransferDirection,
    /// Protocol, such as `http`.
    pub protocol: &'static str,
    /// Path of the first file, as clients name it.
    pub path: String,
    /// Scitag of the data, as [`crate::Gatekeeper::mark`] decides.
    pub mark: Option<Mark>,
    /// Connection of the data, for its label and its fireflies.
    pub connection: Option<TcpStream>,
}

/// A transfer that a gateway does.
#[derive(Debug)]
pub struct GatewayTransfer {
    id: u64,
    caller: Caller,
    peer: String,
    direction: TransferDirection,
    protocol: &'static str,
    mark: Option<Mark>,
    started: SystemTime,
    conditions: StartConditions,
    clock: Instant,
    /// Path of the current file.
    path: Mutex<String>,
    /// Limit of this transfer alone.
    pacer: SharedPacer,
    /// Limit of all transfers of the agent.
    agent_pacer: Arc<SharedPacer>,
    moved_bytes: AtomicU64,
    announced_bytes: AtomicU64,
    done_bytes: AtomicU64,
    done_files: AtomicU64,
    failed_files: AtomicU64,
    /// Nanoseconds that the limits delayed it.
    paced_ns: AtomicU64,
    cancelled: AtomicBool,
    /// Set when the last check found its client withdrawn.
    withdrawn: AtomicBool,
    streams: AtomicU16,
    rate: Mutex<RateSample>,
    connection: Mutex<GatewayConnection>,
    fireflies: Option<Fireflies>,
    agent: Agent,
}

/// The latest connection that carries data.
#[derive(Debug, Default)]
struct GatewayConnection {
    socket: Option<TcpStream>,
    /// `flow` or `none`, with the reason.
    label: String,
}

#[derive(Debug)]
struct RateSample {
    at: Instant,
    bytes: u64,
    paced_ns: u64,
    bits_per_second: u64,
    is_paced: bool,
}

impl Agent {
    /// Begins a transfer of a gateway within the agent's limits. It ends when the last handle is dropped.
    ///
    /// # Errors
    /// If a limit is reached or the agent shuts down.
    pub fn begin_gateway_transfer(
        &self,
        request: GatewayRequest,
    ) -> Result<Arc<GatewayTransfer>, Refusal> {
        let inner = &self.0;
        if inner.stopping.load(Ordering::SeqCst) {
            return Err(Refusal::new(RefusalKind::Busy, "the agent is shutting down"));
        }
        let limits = lock(&inner.limits).clone();
        inner.check_room(&limits, 0)?;
        inner.check_share(&limits, &request.caller)?;
        let GatewayRequest { caller, peer, direction, protocol, path, mark, connection } = request;
        let sends = direction == TransferDirection::Send;
        // The sending end labels and reports.
        let counters = Arc::clone(&inner.fireflies);
        let fireflies = Fireflies::new(mark.filter(|_| sends), &inner.config.collectors, counters);
        let id = inner.next_id.fetch_add(1, Ordering::Relaxed);
        let verb = direction.verb();
        tracing::info!("transfer {id}: {verb} {path} over {protocol} for {}", caller.name);
        let transfer = Arc::new(GatewayTransfer {
            id,
            caller,
            peer,
            direction,
            protocol,
            mark,
            started: SystemTime::now(),
            conditions: inner.start_conditions(None),
            clock: Instant::now(),
            path: Mutex::new(path),
            pacer: SharedPacer::new(None),
            agent_pacer: Arc::clone(&inner.pace),
            moved_bytes: AtomicU64::new(0),
            announced_bytes: AtomicU64::new(0),
            done_bytes: AtomicU64::new(0),
            done_files: AtomicU64::new(0),
            failed_files: AtomicU64::new(0),
            paced_ns: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            withdrawn: AtomicBool::new(false),
            streams: AtomicU16::new(1),
            rate: Mutex::new(RateSample {
                at: Instant::now(),
                bytes: 0,
                paced_ns: 0,
                bits_per_second: 0,
                is_paced: false,
            }),
            connection: Mutex::default(),
            fireflies,
            agent: self.clone(),
        });
        if let Some(tcp) = connection {
            transfer.carry_over(tcp);
        }
        lock(&inner.gateway).insert(id, Arc::downgrade(&transfer));
        lock(&inner.totals).transfers_started += 1;
        Ok(transfer)
    }
}

impl AgentInner {
    /// Running transfers of gateways.
    pub(super) fn gateway_transfers(&self) -> Vec<Arc<GatewayTransfer>> {
        lock(&self.gateway).values().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// The running transfer of a gateway with this number.
    pub(super) fn gateway_transfer(&self, id: u64) -> Option<Arc<GatewayTransfer>> {
        lock(&self.gateway).get(&id).and_then(std::sync::Weak::upgrade)
    }
}

impl GatewayTransfer {
    /// Number at this agent.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Client of the transfer.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Direction, as the agent sees it.
    #[must_use]
    pub fn direction(&self) -> TransferDirection {
        self.direction
    }

    /// Scitag of the data.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Label of the packets: `flow` or `none`, with the reason; empty if none was requested.
    #[must_use]
    pub fn label(&self) -> String {
        lock(&self.connection).label.clone()
    }

    /// Takes the connection that carries the data from now on: labels its packets, and reports the flow.
    pub fn carry_over(&self, tcp: TcpStream) {
        let sends = self.direction == TransferDirection::Send;
        let marker = &self.agent.0.config.marker;
        let label = label_accepted(self.mark.filter(|_| sends), &tcp, marker);
        if let Some(fireflies) = &self.fireflies
            && let Ok(tcp) = tcp.try_clone()
        {
            fireflies.end(0);
            fireflies.begin(0, &Transport::Tcp(tcp));
        }
        *lock(&self.connection) = GatewayConnection { socket: Some(tcp), label };
    }

    /// Address of the other end of the data's connection.
    #[must_use]
    pub fn peer_address(&self) -> Option<std::net::SocketAddr> {
        lock(&self.connection).socket.as_ref()?.peer_addr().ok()
    }

    /// Sets the number of connections that carry the data.
    pub fn set_streams(&self, streams: u16) {
        self.streams.store(streams, Ordering::Relaxed);
    }

    /// Bytes moved so far.
    #[must_use]
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// Begins the next file, of `bytes` if its size is known.
    pub fn begin_file(&self, path: &str, bytes: Option<u64>) {
        path.clone_into(&mut lock(&self.path));
        self.announced_bytes.fetch_add(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    /// Counts bytes that are about to be sent, or were received, and returns the delay that the limits ask for.
    #[must_use]
    pub fn count_moved(&self, bytes: usize) -> Duration {
        self.moved_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.count_repeated(bytes)
    }

    /// Returns the delay that the limits ask for bytes that were counted before the connection broke.
    #[must_use]
    pub fn count_repeated(&self, bytes: usize) -> Duration {
        let delay = [&self.pacer, &*self.agent_pacer]
            .map(|pacer| pacer.remaining(pacer.reserve(bytes)))
            .into_iter()
            .max()
            .unwrap_or_default();
        let delay_ns = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        self.paced_ns.fetch_add(delay_ns, Ordering::Relaxed);
        delay
    }

    /// Counts files that are whole, with the sum of their sizes.
    pub fn finish_files(&self, files: u64, bytes: u64) {
        self.done_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.done_files.fetch_add(files, Ordering::Relaxed);
    }

    /// Counts a file that failed.
    pub fn fail_file(&self) {
        self.failed_files.fetch_add(1, Ordering::Relaxed);
    }

    /// True once an operator has cancelled it; the gateway then ends the connection.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn cancel(&self, reason: &str) {
        tracing::info!("transfer {}: cancelled: {reason}", self.id);
        self.cancelled.store(true, Ordering::Relaxed);
        if let Some(tcp) = &lock(&self.connection).socket {
            // Also ends a connection whose client neither reads nor writes; one that uploads gets an answer.
            let direction = match self.direction {
                TransferDirection::Send => Shutdown::Both,
                TransferDirection::Receive => Shutdown::Read,
            };
            let _ = tcp.shutdown(direction);
        }
    }

    /// Changes the rate limit; a connection has one stream.
    pub(super) fn change(&self, settings: &Settings) {
        if let Some(rate_bps) = settings.rate_bps {
            self.pacer.set(Some(rate_bps).filter(|rate| *rate > 0));
        }
    }

    /// Reports the flow again where a report is due, and samples the rate.
    pub(super) fn tick(&self) {
        if let Some(fireflies) = &self.fireflies {
            fireflies.tick();
        }
        self.sample();
    }

    /// Ends it once its client is withdrawn. A token file that is being rewritten may be empty for a moment, so that the second
    /// check in a row counts.
    pub(super) fn end_if_withdrawn(&self, keeper: &dyn Gatekeeper) {
        let is_withdrawn = keeper.has_withdrawn(&self.caller);
        let was_withdrawn = self.withdrawn.swap(is_withdrawn, Ordering::Relaxed);
        if is_withdrawn && was_withdrawn && !self.is_cancelled() {
            self.cancel(&format!("the token or certificate of {} was removed", self.caller.name));
        }
    }

    pub(super) fn count(&self, counters: &mut AgentCounters) {
        let moved = self.moved_bytes.load(Ordering::Relaxed);
        match self.direction {
            TransferDirection::Send => counters.sent_bytes += moved,
            TransferDirection::Receive => counters.received_bytes += moved,
        }
    }

    /// Takes a sample if the last one is old enough; returns the rate and the bottleneck.
    fn sample(&self) -> (u64, &'static str) {
        let mut last = lock(&self.rate);
        let elapsed = last.at.elapsed();
        if elapsed >= SAMPLE_INTERVAL {
            let bytes = self.moved_bytes.load(Ordering::Relaxed);
            let paced_ns = self.paced_ns.load(Ordering::Relaxed);
            let bits = (bytes - last.bytes) as f64 * 8.0;
            let paced = (paced_ns - last.paced_ns) as f64 * 1e-9;
            *last = RateSample {
                at: Instant::now(),
                bytes,
                paced_ns,
                bits_per_second: (bits / elapsed.as_secs_f64()) as u64,
                is_paced: paced > elapsed.as_secs_f64() / 2.0,
            };
        }
        (last.bits_per_second, if last.is_paced { "rate limit" } else { "-" })
    }

    fn state(&self, ended: bool) -> &'static str {
        let done = self.done_files.load(Ordering::Relaxed);
        match ended {
            _ if self.is_cancelled() => "cancelled",
            false => "running",
            true => finished_state(self.failed_files.load(Ordering::Relaxed), done > 0),
        }
    }

    pub(super) fn show(&self, ended: bool) -> ListedTransfer {
        let (present, bound_by) = self.sample();
        let moved = self.moved_bytes.load(Ordering::Relaxed);
        let seconds = self.clock.elapsed().as_secs_f64();
        let mean = (moved as f64 * 8.0 / seconds.max(1e-6)) as u64;
        let connection = lock(&self.connection);
        let info = connection.socket.as_ref().and_then(|tcp| TcpInfo::of(tcp).ok());
        drop(connection);
        ListedTransfer {
            id: self.id,
            caller: self.caller.name.clone(),
            peer: self.peer.clone(),
            direction: self.direction.verb(),
            path: lock(&self.path).clone(),
            state: self.state(ended),
            started: self.started,
            seconds,
            bytes: self.done_bytes.load(Ordering::Relaxed),
            moved_bytes: moved,
            resumed_bytes: 0,
            announced_bytes: self.announced_bytes.load(Ordering::Relaxed),
            files: self.done_files.load(Ordering::Relaxed),
            failed: self.failed_files.load(Ordering::Relaxed),
            streams: self.streams.load(Ordering::Relaxed),
            readers: 0,
            writers: 0,
            rate_bps: self.pacer.rate_bps(),
            bits_per_second: if ended { mean } else { present },
            bound_by: bound_by.to_owned(),
            engine: self.protocol.to_owned(),
            retransmits: info.map_or(0, |info| u64::from(info.retransmits)),
            scitag: self.mark.map(|mark| mark.scitag),
            transport: "tcp",
            transport_reason: String::new(),
        }
    }
}

impl Drop for GatewayTransfer {
    fn drop(&mut self) {
        if let Some(fireflies) = &self.fireflies {
            fireflies.end(0);
        }
        let inner = Arc::clone(&self.agent.0);
        let history = lock(&inner.history);
        lock(&inner.gateway).remove(&self.id);
        let listed = self.show(true);
        let connection = lock(&self.connection);
        let info = connection.socket.as_ref().and_then(|tcp| TcpInfo::of(tcp).ok());
        drop(connection);
        let ended = EndedTransfer {
            protocol: self.protocol,
            other_host: host_of(&listed.peer),
            streams_peak: listed.streams,
            streams_settled: None,
            rtt_us: info.map(|info| info.rtt_min_us).filter(|rtt| *rtt > 0),
            start: self.conditions,
            samples: Arc::default(),
            listed,
        };
        let tuning = Some(TuningReport::kept(GATEWAY));
        inner.record_ended(history, ended, tuning, |totals| self.count(totals));
    }
}
