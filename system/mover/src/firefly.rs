//! Tells what the streams of a session carry: a label for their packets, and fireflies about them.
//!
//! The end that sends data does both, whichever end made the connection. A firefly goes out when a stream
//! begins, once a minute while it runs and when it ends, to the stream's peer and to the site's collectors.
//! It is one datagram that nobody answers: whatever becomes of it, data goes on.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_marker::{Action, Method, SocketTags};
use penstock_protocol::open::{Label, Mark};
use penstock_protocol::sender::StreamId;
use penstock_scitags::Scitag;
use penstock_scitags::firefly::{Count, Firefly, Flow, PORT, Phase, Protocol, TcpInfo};
use penstock_scitags::label::{ENTROPY_MAX, FlowLabel};
use penstock_scitags::time::UtcTime;
use penstock_sys::net;

use crate::agent::software;
use crate::session::lock;
use crate::transport::Transport;

/// How often a stream that runs is told about.
const ONGOING_EVERY: Duration = Duration::from_secs(60);

/// The label of the packets of a stream, where it has one. Streams of a session differ in the bits that
/// spread them over parallel paths.
#[must_use]
pub fn flow_label(mark: Option<Mark>, stream: StreamId) -> Option<u32> {
    let mark = mark.filter(|mark| mark.label == Label::Flow)?;
    let tag = Scitag::from_number(u64::from(mark.scitag)).ok()?;
    let entropy = u8::try_from(stream % (u32::from(ENTROPY_MAX) + 1)).ok()?;
    FlowLabel::new(tag, entropy).ok().map(FlowLabel::value)
}

/// How the packets that this end sends on a connection that it made are labelled, or why they are not;
/// empty where nobody asked.
#[must_use]
pub fn label_of(mark: Option<Mark>, transport: &Transport) -> String {
    let Some(mark) = mark else { return String::new() };
    if mark.label == Label::None {
        return "none: fireflies alone were asked for".to_owned();
    }
    let tag = Scitag::from_number(u64::from(mark.scitag));
    let ipv6 = match transport {
        Transport::Tcp(tcp) => tcp.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_ipv6()),
        Transport::Local(_) => return "none: data goes inside another program".to_owned(),
    };
    match tag.map(Scitag::fits_on_packets) {
        Err(error) => format!("none: {error}"),
        Ok(Err(error)) => format!("none: {error}"),
        Ok(Ok(())) if !ipv6 => "none: IPv4 packets have no flow label, fireflies tell".to_owned(),
        Ok(Ok(())) => "flow".to_owned(),
    }
}

/// As [`label_of`] for a connection that this end accepted: the marker labels it from now on, where one
/// runs that pinned its maps in `pin` and lets this process use them.
#[must_use]
pub fn label_accepted(mark: Option<Mark>, transport: &Transport, pin: &Path) -> String {
    let label = label_of(mark, transport);
    let (Some(mark), Transport::Tcp(tcp), "flow") = (mark, transport, label.as_str()) else {
        return label;
    };
    let action = Scitag::from_number(u64::from(mark.scitag))
        .ok()
        .and_then(|tag| Action::new(tag, Method::Label).ok());
    match SocketTags::open(pin).and_then(|mut tags| tags.set(tcp, action)) {
        Ok(()) => label,
        Err(error) => format!(
            "none: the sending end accepted its connections, which only the marker labels: {error}"
        ),
    }
}

/// The fireflies of one sending end.
#[derive(Debug)]
pub struct Fireflies {
    tag: Scitag,
    collectors: Vec<SocketAddr>,
    host: String,
    streams: Mutex<BTreeMap<StreamId, Lit>>,
}

/// A stream that was told about.
#[derive(Debug)]
struct Lit {
    flow: Flow,
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
    pub fn new(mark: Option<Mark>, collectors: &[SocketAddr]) -> Option<Self> {
        let tag = Scitag::from_number(u64::from(mark?.scitag)).ok()?;
        Some(Self {
            tag,
            collectors: collectors.to_vec(),
            host: penstock_sys::machine::host_name(),
            streams: Mutex::default(),
        })
    }

    /// A stream begins.
    pub fn begin(&self, stream: StreamId, transport: &Transport) {
        let Transport::Tcp(tcp) = transport else { return };
        let (Ok(ours), Ok(theirs)) = (tcp.local_addr(), tcp.peer_addr()) else { return };
        let Ok(flow) = Flow::new(ours, theirs, Protocol::Tcp) else { return };
        let Ok(transport) = transport.try_clone() else { return };
        let lit = Lit { flow, started: now(), told: Instant::now(), transport };
        self.tell(&lit, Phase::Start);
        lock(&self.streams).insert(stream, lit);
    }

    /// Tells about streams that have not been told about for a while.
    pub fn tick(&self) {
        for lit in lock(&self.streams).values_mut() {
            if lit.told.elapsed() >= ONGOING_EVERY {
                self.tell(lit, Phase::Ongoing);
                lit.told = Instant::now();
            }
        }
    }

    /// A stream has ended.
    pub fn end(&self, stream: StreamId) {
        if let Some(lit) = lock(&self.streams).remove(&stream) {
            self.tell(&lit, Phase::End(now()));
        }
    }

    fn tell(&self, lit: &Lit, phase: Phase) {
        let info = net::TcpInfo::of(&lit.transport).unwrap_or_default();
        let firefly = Firefly {
            phase,
            started: lit.started,
            now: match phase {
                Phase::End(at) => at,
                Phase::Start | Phase::Ongoing => now(),
            },
            flow: lit.flow,
            tag: self.tag,
            application: software().replace(' ', " v"),
            bytes: Some(Count { received: info.bytes_received, sent: info.bytes_acked }),
            packets: Some(Count {
                received: u64::from(info.segments_received),
                sent: u64::from(info.segments_sent),
            }),
            tcp: Some(facts(&info)),
        };
        let datagram = firefly.datagram(&self.host, "penstock");
        let destination = SocketAddr::new(lit.flow.destination().ip(), PORT);
        for to in self.collectors.iter().copied().chain([destination]) {
            if let Err(error) = send(&datagram, to) {
                tracing::debug!("firefly to {to}: {error}");
            }
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

fn facts(info: &net::TcpInfo) -> TcpInfo {
    TcpInfo {
        rtt_us: info.rtt_us,
        min_rtt_us: info.rtt_min_us,
        snd_mss: info.snd_mss,
        rcv_mss: info.rcv_mss,
        snd_cwnd: info.snd_cwnd,
        total_retrans: info.retransmits,
        segs_in: info.segments_received,
        segs_out: info.segments_sent,
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
        delivery_rate: info.delivery_rate_bps / 8,
        busy_time_us: info.busy_us,
        rwnd_limited_us: info.rwnd_limited_us,
        sndbuf_limited_us: info.sndbuf_limited_us,
        ..TcpInfo::default()
    }
}
