//! What a link really does, measured before anything is believed: its round trip and its rate.
//!
//! Probes go from one end of the link to the other and back, nothing else; the rate is that at which datagrams arrive
//! when more are sent than the link carries.

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

const PROBES: usize = 20;
/// Lost probes are not waited for longer than this beyond the delay.
const PROBE_PATIENCE: Duration = Duration::from_millis(300);
/// Slower links are not measured: what is sent for it would fill them for seconds.
const RATE_MEASURED_MIN: BitRate = BitRate(100_000);
/// How long more is sent than the link carries.
const BLAST: Duration = Duration::from_millis(250);
/// Room for what arrives while the receiver waits for a processor.
const ROOM_BYTES: usize = 128 << 20;
/// Of IPv6 and UDP headers.
const HEADER_BYTES: u64 = 48;
/// The kernel takes up to this in one call.
const DATAGRAM_BYTES_MAX: usize = 65_000;

/// Wanted and got.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Twice the delay.
    pub rtt_wanted: Duration,
    /// The median round trip; none when every probe was lost.
    pub rtt: Option<Duration>,
    /// The slowest but one in twenty.
    pub rtt_p95: Option<Duration>,
    /// The rate of the link; none is as fast as the machine.
    pub rate_wanted: Option<BitRate>,
    /// The rate at which a queue of datagrams arrived, with everything on the wire.
    pub rate: Option<BitRate>,
    /// Whether it is too slow to be measured.
    pub too_slow: bool,
}

impl Calibration {
    /// Whether the link does what it is to do, to a millisecond or 5 % of the round trip, and to 5 % of its rate.
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
    /// Measures a link. Takes some round trips and a quarter of a second.
    ///
    /// # Errors
    /// When its ends cannot be reached.
    pub fn calibrate(&self, link: LinkId) -> Result<Calibration, LabError> {
        self.ends(link)?.measure().map_err(|source| self.link_error(link, source))
    }

    /// The ends of a link, to measure between.
    pub(crate) fn ends(&self, link: LinkId) -> Result<Ends, LabError> {
        Ends::open(self, link).map_err(|source| self.link_error(link, source))
    }
}

/// Sockets at both ends of a link.
#[derive(Debug)]
pub(crate) struct Ends {
    here: UdpSocket,
    there: UdpSocket,
    to: SocketAddr,
    rtt_wanted: Duration,
    rate_wanted: Option<BitRate>,
    datagram_bytes: u16,
}

impl Ends {
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

    /// What the link does; nothing of one that is too slow for it.
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
        set_receive_buffer(&self.there, ROOM_BYTES)?;
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
        let patience = self.rtt_wanted + PROBE_PATIENCE;
        for socket in [&self.here, &self.there] {
            socket.set_read_timeout(Some(patience))?;
            socket.set_write_timeout(Some(patience))?;
        }
        let mut trips = Vec::new();
        // The first finds caches cold.
        for probe in 0..=PROBES as u64 {
            let since = Instant::now();
            if received(self.here.send_to(&probe.to_ne_bytes(), self.to))?.is_none() {
                continue;
            }
            if echo(&self.there, probe)? && back(&self.here, probe)? && probe > 0 {
                trips.push(since.elapsed());
            }
        }
        Ok(trips)
    }

    /// Sends more than the link carries and sees at what rate it arrives.
    fn rate(&self) -> io::Result<Option<BitRate>> {
        set_udp_segments(&self.here, self.datagram_bytes)?;
        set_udp_segments(&self.there, self.datagram_bytes)?;
        let segments = (DATAGRAM_BYTES_MAX / usize::from(self.datagram_bytes)).clamp(1, 64);
        let payload = vec![0x5A; segments * usize::from(self.datagram_bytes)];
        let over = AtomicBool::new(false);
        self.there.set_read_timeout(Some(self.rtt_wanted + PROBE_PATIENCE))?;
        // A shaper that has no room makes the sender wait.
        self.here.set_write_timeout(Some(BLAST))?;
        thread::scope(|scope| {
            scope.spawn(|| {
                let since = Instant::now();
                while since.elapsed() < BLAST && !over.load(Ordering::Relaxed) {
                    // A queue of the kernel that is full is what this is about.
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
        // What still waits in a queue when the sender has stopped does not count: it is enough.
        while since.elapsed() < BLAST + self.rtt_wanted {
            let Some(length) = received(self.there.recv(&mut buffer))? else { break };
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

/// Before all ordinary threads, so that the link is measured and not the wait for a processor.
fn on_time<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // Without the privilege it is measured all the same.
            let _ = machine::become_realtime();
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Sends a probe back; whether it came.
fn echo(socket: &UdpSocket, probe: u64) -> io::Result<bool> {
    let mut text = [0; 8];
    loop {
        match socket.recv_from(&mut text) {
            Ok((_, from)) if text == probe.to_ne_bytes() => {
                return socket.send_to(&text, from).map(|_| true);
            }
            // One that was given up before.
            Ok(_) => {}
            Err(error) if is_silence(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn back(socket: &UdpSocket, probe: u64) -> io::Result<bool> {
    let mut text = [0; 8];
    loop {
        match received(socket.recv(&mut text))? {
            Some(_) if text == probe.to_ne_bytes() => return Ok(true),
            Some(_) => {}
            None => return Ok(false),
        }
    }
}

fn received(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(length) => Ok(Some(length)),
        Err(error) if is_silence(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
