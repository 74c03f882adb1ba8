//! Calibration: measures round-trip time and rate of an emulated link against its settings.
//!
//! UDP probes between the ends of the link measure the round-trip time; the rate is the arrival rate of datagrams under
//! overload.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use penstock_sys::machine;
use penstock_sys::net::options::{set_receive_buffer, set_udp_segments};
use penstock_topology::LinkId;
use penstock_units::BitRate;

use crate::lab::{Lab, LabError};
use crate::line::ETHERNET_BYTES;

const PROBE_COUNT: usize = 20;
/// Time-out of a probe beyond the round-trip time.
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);
/// Slower links are not measured: the overload would fill their queue for seconds.
const RATE_MEASURED_MIN: BitRate = BitRate(100_000);
/// Duration of the overload.
const OVERLOAD_TIME: Duration = Duration::from_millis(250);
/// Receive buffer, for datagrams that arrive while the receiver is not scheduled.
const RECEIVE_BUFFER_BYTES: usize = 128 << 20;
/// IPv6 and UDP headers.
const HEADER_BYTES: u64 = 48;
/// Most bytes per send call with UDP_SEGMENT.
const DATAGRAM_BYTES_MAX: usize = 65_000;

/// Configured and measured values of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Configured round-trip time: the sum of both delays.
    pub rtt_wanted: Duration,
    /// Measured median; `None` when all probes were lost.
    pub rtt: Option<Duration>,
    /// Measured 95th percentile of the round-trip time.
    pub rtt_p95: Option<Duration>,
    /// Configured rate; `None` is unlimited.
    pub rate_wanted: Option<BitRate>,
    /// Measured rate on the wire, framing included.
    pub rate: Option<BitRate>,
    /// True if the link is too slow to be measured.
    pub too_slow: bool,
}

impl Calibration {
    /// True if the round-trip time is within 1 ms or 5 %, and the rate within 5 %, of the settings.
    #[must_use]
    pub fn is_good(&self) -> bool {
        if self.too_slow {
            return true;
        }
        let slack = (self.rtt_wanted / 20).max(Duration::from_millis(1));
        let rtt =
            self.rtt.is_some_and(|rtt| rtt >= self.rtt_wanted && rtt <= self.rtt_wanted + slack);
        let rate = match (self.rate_wanted, self.rate) {
            (Some(wanted), Some(got)) => (got.0 as f64 / wanted.0 as f64 - 1.0).abs() <= 0.05,
            _ => true,
        };
        rtt && rate
    }
}

impl Lab {
    /// Measures a link. Takes some round trips and 250 ms.
    ///
    /// # Errors
    /// A socket error at one of its ends.
    pub fn calibrate(&self, link: LinkId) -> Result<Calibration, LabError> {
        self.ends(link)?.measure().map_err(|source| self.link_error(link, source))
    }

    /// Opens the sockets for a measurement of a link.
    pub(crate) fn ends(&self, link: LinkId) -> Result<LinkSockets, LabError> {
        LinkSockets::open(self, link).map_err(|source| self.link_error(link, source))
    }
}

/// Sockets at both ends of a link.
#[derive(Debug)]
pub(crate) struct LinkSockets {
    here: UdpSocket,
    there: UdpSocket,
    to: SocketAddr,
    rtt_wanted: Duration,
    rate_wanted: Option<BitRate>,
    datagram_bytes: u16,
}

impl LinkSockets {
    fn open(lab: &Lab, link: LinkId) -> io::Result<Self> {
        let open = |side| {
            let (node, number) = lab.plan().port_of(link, side);
            let port = &lab.plan().nodes[node.0].ports[number];
            let socket =
                lab.namespace(node).inside(|| UdpSocket::bind((port.addresses.v6, 0)))??;
            Ok::<_, io::Error>((socket, port.mtu))
        };
        let ((here, mtu), (there, _)) = (open(0)?, open(1)?);
        let [one, other] = lab.wanted(link);
        let datagram_bytes = u16::try_from(u64::from(mtu) - HEADER_BYTES).unwrap_or(u16::MAX);
        Ok(Self {
            to: there.local_addr()?,
            here,
            there,
            rtt_wanted: one.delay + other.delay,
            rate_wanted: one.rate,
            datagram_bytes,
        })
    }

    /// Measures the link, unless it is too slow.
    pub(crate) fn measure(&self) -> io::Result<Calibration> {
        if self.rate_wanted.is_some_and(|rate| rate < RATE_MEASURED_MIN) {
            return Ok(Calibration {
                rtt_wanted: self.rtt_wanted,
                rtt: None,
                rtt_p95: None,
                rate_wanted: self.rate_wanted,
                rate: None,
                too_slow: true,
            });
        }
        set_receive_buffer(&self.there, RECEIVE_BUFFER_BYTES)?;
        let mut trips = on_time(|| self.round_trips())?;
        trips.sort_unstable();
        let rate = self.rate()?;
        Ok(Calibration {
            rtt_wanted: self.rtt_wanted,
            rtt: trips.get(trips.len() / 2).copied(),
            rtt_p95: trips.get(trips.len() * 19 / 20).copied(),
            rate_wanted: self.rate_wanted,
            rate,
            too_slow: false,
        })
    }

    fn round_trips(&self) -> io::Result<Vec<Duration>> {
        let patience = self.rtt_wanted + PROBE_TIMEOUT;
        for socket in [&self.here, &self.there] {
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
        }
        let mut trips = Vec::new();
        // The first probe warms caches and does not count.
        for probe in 0..=PROBE_COUNT as u64 {
            let since = Instant::now();
            if received(|| self.here.send_to(&probe.to_ne_bytes(), self.to))?.is_none() {
                continue;
            }
            if echo(&self.there, probe)? && back(&self.here, probe)? && probe > 0 {
                trips.push(since.elapsed());
            }
        }
        Ok(trips)
    }

    /// Overloads the link and measures the arrival rate.
    fn rate(&self) -> io::Result<Option<BitRate>> {
        set_udp_segments(&self.here, self.datagram_bytes)?;
        set_udp_segments(&self.there, self.datagram_bytes)?;
        let segments = (DATAGRAM_BYTES_MAX / usize::from(self.datagram_bytes)).clamp(1, 64);
        let payload = vec![0x5A; segments * usize::from(self.datagram_bytes)];
        let over = AtomicBool::new(false);
        self.there.set_read_timeout(Some(self.rtt_wanted + PROBE_TIMEOUT))?;
        // A full shaper blocks the sender.
        self.here.set_write_timeout(Some(OVERLOAD_TIME))?;
        thread::scope(|scope| {
            scope.spawn(|| {
                let since = Instant::now();
                while since.elapsed() < OVERLOAD_TIME && !over.load(Ordering::Relaxed) {
                    // Errors of a full queue are expected.
                    let _ = self.here.send_to(&payload, self.to);
                }
            });
            let arrived = on_time(|| self.arrivals());
            over.store(true, Ordering::Relaxed);
            arrived
        })
    }

    fn arrivals(&self) -> io::Result<Option<BitRate>> {
        let mut buffer = vec![0; 1 << 16];
        let (mut first, mut last, mut bytes) = (None, Duration::ZERO, 0);
        let since = Instant::now();
        // Datagrams queued after the sender has stopped do not count.
        while since.elapsed() < OVERLOAD_TIME + self.rtt_wanted {
            let Some(length) = received(|| self.there.recv(&mut buffer))? else { break };
            let now = since.elapsed();
            if first.is_none() {
                first = Some(now);
            } else {
                let segments = (length as u64).div_ceil(u64::from(self.datagram_bytes));
                bytes += length as u64 + segments * (HEADER_BYTES + ETHERNET_BYTES);
                last = now;
            }
        }
        let took = first.map(|first| last.saturating_sub(first)).filter(|took| !took.is_zero());
        Ok(took.map(|took| BitRate::over(bytes, took)))
    }
}

/// Runs `work` with real-time priority, so that scheduling delays do not count.
fn on_time<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // Without the privilege the measurement runs at normal priority.
            let _ = machine::become_realtime();
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Echoes a probe; true if it arrived.
fn echo(socket: &UdpSocket, probe: u64) -> io::Result<bool> {
    let mut text = [0; 8];
    loop {
        match socket.recv_from(&mut text) {
            Ok((_, from)) if text == probe.to_ne_bytes() => {
                return socket.send_to(&text, from).map(|_| true);
            }
            // An earlier probe, already timed out.
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_silence(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn back(socket: &UdpSocket, probe: u64) -> io::Result<bool> {
    let mut text = [0; 8];
    loop {
        match received(|| socket.recv(&mut text))? {
            Some(_) if text == probe.to_ne_bytes() => return Ok(true),
            Some(_) => {}
            None => return Ok(false),
        }
    }
}

/// Calls until no signal interrupts it; `None` after the socket's timeout.
fn received(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_silence(&error) => return Ok(None),
            result => return result.map(Some),
        }
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
