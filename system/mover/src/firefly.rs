//! Tells what the streams of a session carry, beside the data: fireflies.
//!
//! The end that sends data tells, whichever end made the connection. A firefly goes out when a stream
//! begins, once a minute while it runs and when it ends, to the stream's peer and to the site's collectors.
//! It is one datagram that nobody answers: whatever becomes of it, data goes on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_protocol::open::Mark;
use penstock_protocol::sender::StreamId;
use penstock_scitags::Scitag;
use penstock_scitags::firefly::{
    DirectionCounts, FIREFLY_PORT, Firefly, FireflyFlow, FlowPhase, TcpStats, TransportProtocol,
};
use penstock_scitags::time::UtcTime;
use penstock_sys::net;

use crate::agent::software;
use crate::session::lock;
use crate::transport::Transport;

/// How often a stream that runs is told about.
const ONGOING_EVERY: Duration = Duration::from_secs(60);

/// The states of a flow that fireflies tell of.
pub const STATES: [&str; 3] = ["start", "ongoing", "end"];

/// How many datagrams were sent and how many could not be, of each of [`STATES`], by all sessions that share
/// this. What becomes of a sent one nobody knows.
#[derive(Debug, Default)]
pub struct Sent {
    sent: [AtomicU64; 3],
    failed: [AtomicU64; 3],
}

impl Sent {
    /// Sent ones and failed ones, in the order of [`STATES`].
    #[must_use]
    pub fn counts(&self) -> ([u64; 3], [u64; 3]) {
        let load = |counts: &[AtomicU64; 3]| counts.each_ref().map(|one| one.load(Relaxed));
        (load(&self.sent), load(&self.failed))
    }
}

/// The fireflies of one sending end.
#[derive(Debug)]
pub struct Fireflies {
    tag: Scitag,
    collectors: Vec<SocketAddr>,
    counts: Arc<Sent>,
    host: String,
    streams: Mutex<BTreeMap<StreamId, Lit>>,
}

/// A stream that was told about.
#[derive(Debug)]
struct Lit {
    flow: FireflyFlow,
    started: UtcTime,
    told: Instant,
    transport: Transport,
}

fn now() -> UtcTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UtcTime::new(since.as_secs(), since.subsec_micros())
}

impl Fireflies {
    /// For a session with this mark; none without one.
    #[must_use]
    pub fn new(mark: Option<Mark>, collectors: &[SocketAddr], counts: Arc<Sent>) -> Option<Self> {
        let tag = Scitag::from_number(u64::from(mark?.scitag)).ok()?;
        Some(Self {
            tag,
            collectors: collectors.to_vec(),
            counts,
            host: penstock_sys::machine::host_name(),
            streams: Mutex::default(),
        })
    }

    /// A stream begins.
    pub fn begin(&self, stream: StreamId, transport: &Transport) {
        let Transport::Tcp(tcp) = transport else { return };
        let (Ok(ours), Ok(theirs)) = (tcp.local_addr(), tcp.peer_addr()) else { return };
        let Ok(flow) = FireflyFlow::new(ours, theirs, TransportProtocol::Tcp) else { return };
        let Ok(transport) = transport.try_clone() else { return };
        let lit = Lit { flow, started: now(), told: Instant::now(), transport };
        self.tell(&lit, FlowPhase::Start);
        lock(&self.streams).insert(stream, lit);
    }

    /// Tells about streams that have not been told about for a while.
    pub fn tick(&self) {
        for lit in lock(&self.streams).values_mut() {
            if lit.told.elapsed() >= ONGOING_EVERY {
                self.tell(lit, FlowPhase::Ongoing);
                lit.told = Instant::now();
            }
        }
    }

    /// A stream has ended.
    pub fn end(&self, stream: StreamId) {
        if let Some(lit) = lock(&self.streams).remove(&stream) {
            self.tell(&lit, FlowPhase::End(now()));
        }
    }

    fn tell(&self, lit: &Lit, phase: FlowPhase) {
        // A connection that cannot be asked has no counts: 0 would be a measurement.
        let info = net::TcpInfo::of(&lit.transport).ok();
        let firefly = Firefly {
            phase,
            started: lit.started,
            now: match phase {
                FlowPhase::End(at) => at,
                FlowPhase::Start | FlowPhase::Ongoing => now(),
            },
            flow: lit.flow,
            tag: self.tag,
            application: software().replace(' ', " v"),
            bytes: info.map(|info| DirectionCounts {
                received: info.bytes_received,
                sent: info.bytes_acked,
            }),
            packets: info.map(|info| DirectionCounts {
                received: u64::from(info.segments_received),
                sent: u64::from(info.segments_sent),
            }),
            tcp: info.as_ref().map(facts),
        };
        let datagram = firefly.datagram(&self.host, "penstock");
        let destination = SocketAddr::new(lit.flow.destination().ip(), FIREFLY_PORT);
        for to in self.collectors.iter().copied().chain([destination]) {
            let state = match phase {
                FlowPhase::Start => 0,
                FlowPhase::Ongoing => 1,
                FlowPhase::End(_) => 2,
            };
            match send(&datagram, to) {
                Ok(()) => self.counts.sent[state].fetch_add(1, Relaxed),
                Err(error) => {
                    tracing::debug!("firefly to {to}: {error}");
                    self.counts.failed[state].fetch_add(1, Relaxed)
                }
            };
        }
    }
}

fn send(datagram: &[u8], to: SocketAddr) -> std::io::Result<()> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_nonblocking(true)?;
    socket.send_to(datagram, to).map(|_| ())
}

/// The values that `net::TcpInfo` reads. Round-trip times of 0 and a delivery rate of 0 are those of a connection
/// on which the kernel has not measured any.
fn facts(info: &net::TcpInfo) -> TcpStats {
    let measured = |value: u32| (value != 0).then_some(value);
    TcpStats {
        rtt_us: measured(info.rtt_us),
        min_rtt_us: measured(info.rtt_min_us),
        snd_mss: Some(info.snd_mss),
        rcv_mss: Some(info.rcv_mss),
        snd_cwnd: Some(info.snd_cwnd),
        total_retrans: Some(info.retransmits),
        segs_in: Some(info.segments_received),
        segs_out: Some(info.segments_sent),
        bytes_acked: Some(info.bytes_acked),
        bytes_received: Some(info.bytes_received),
        delivery_rate: (info.delivery_rate_bps != 0).then_some(info.delivery_rate_bps / 8),
        busy_time_us: Some(info.busy_us),
        rwnd_limited_us: Some(info.rwnd_limited_us),
        sndbuf_limited_us: Some(info.sndbuf_limited_us),
        ..TcpStats::default()
    }
}
