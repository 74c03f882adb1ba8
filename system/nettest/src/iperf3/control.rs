//! Control connection of an iperf3 test: state bytes and JSON, each with a deadline.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use penstock_sys::net::options;

use super::results::{IperfResults, IperfStream};
use super::wire::{ControlState, json_frame};
use crate::NettestError;
use crate::message::{StreamReport, StreamRole};
use crate::session::{ControlEvent, RunningStreams, cpu_percent};
use crate::stream::DRAIN_TIME_MAX;

/// Time without acknowledgement after which a connection ends.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the streams of this end to finish after the end of a test.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(5);

/// Control connection of either end.
#[derive(Debug)]
pub(crate) struct IperfControl {
    pub(crate) socket: TcpStream,
}

impl IperfControl {
    pub(crate) fn new(socket: TcpStream) -> Result<Self, NettestError> {
        socket.set_write_timeout(Some(UNACKNOWLEDGED_TIMEOUT)).map_err(NettestError::Local)?;
        socket.set_nodelay(true).map_err(NettestError::Local)?;
        options::set_keepalive(&socket, UNACKNOWLEDGED_TIMEOUT).map_err(NettestError::Local)?;
        options::set_user_timeout(&socket, UNACKNOWLEDGED_TIMEOUT).map_err(NettestError::Local)?;
        Ok(Self { socket })
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), NettestError> {
        self.socket.write_all(bytes).map_err(NettestError::ControlLost)
    }

    pub(crate) fn send_state(&mut self, state: ControlState) -> Result<(), NettestError> {
        self.send(&[state.byte()])
    }

    pub(crate) fn send_json(&mut self, json: &[u8]) -> Result<(), NettestError> {
        self.send(&json_frame(json))
    }

    /// Waits for a byte; `None` after `wait`.
    pub(crate) fn poll_byte(&self, wait: Duration) -> io::Result<Option<u8>> {
        let mut byte = [0];
        match fill(&self.socket, &mut byte, Instant::now() + wait) {
            Ok(()) => Ok(Some(byte[0])),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for a state byte; `None` after `wait`.
    pub(crate) fn poll_state(
        &mut self,
        wait: Duration,
    ) -> Result<Option<ControlState>, NettestError> {
        match self.poll_byte(wait).map_err(NettestError::ControlLost)? {
            Some(byte) => ControlState::decode(byte).map(Some).ok_or(NettestError::Unexpected),
            None => Ok(None),
        }
    }

    /// Waits for a state byte until `deadline`.
    pub(crate) fn read_state(&mut self, deadline: Instant) -> Result<ControlState, NettestError> {
        let begun = Instant::now();
        self.poll_state(deadline.saturating_duration_since(begun))?
            .ok_or_else(|| NettestError::Stalled(begun.elapsed().as_secs_f64()))
    }

    pub(crate) fn read_exact(
        &mut self,
        bytes: &mut [u8],
        deadline: Instant,
    ) -> Result<(), NettestError> {
        fill(&self.socket, bytes, deadline).map_err(NettestError::ControlLost)
    }

    /// Reads JSON of at most `limit` bytes; `None` if it announces more.
    pub(crate) fn read_json(
        &mut self,
        limit: usize,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, NettestError> {
        let mut length = [0; 4];
        self.read_exact(&mut length, deadline)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > limit {
            return Ok(None);
        }
        let mut json = vec![0; length];
        self.read_exact(&mut json, deadline)?;
        Ok(Some(json))
    }
}

/// Reads all of `bytes` before `deadline`, at any speed.
fn fill(mut socket: &TcpStream, bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match socket.read(&mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

/// Ends the streams of this end and adds their reports to `reports`, in the order of their numbers.
pub(crate) fn end_streams(
    streams: &RunningStreams,
    events: &Receiver<ControlEvent>,
    reports: &mut Vec<StreamReport>,
) -> Result<(), NettestError> {
    streams.shared.end_all();
    match streams.collect(events, reports, DRAIN_TIME_MAX + STREAM_END_TIMEOUT) {
        true => Ok(()),
        false => Err(NettestError::Overdue),
    }
}

/// Results of this end. The time of each stream ends with the test, as in iperf3, or with the last byte that this end
/// counted if that came later: bytes that were under way then lengthen the time in which they are counted.
pub(crate) fn results_of(
    reports: &[StreamReport],
    udp: bool,
    omit: Duration,
    test_end: Duration,
) -> IperfResults {
    let last_us = reports.iter().map(|report| report.last_us).max().unwrap_or(0);
    let end = test_end.max(Duration::from_micros(last_us));
    let seconds = end.saturating_sub(omit).as_secs_f64();
    let sends = reports.iter().any(|report| report.role == StreamRole::Sender);
    IperfResults {
        cpu_percent: cpu_percent(reports),
        has_retransmits: sends.then_some(!udp),
        congestion: reports
            .first()
            .map(|report| report.congestion.clone())
            .filter(|name| !name.is_empty()),
        server_text: None,
        streams: reports
            .iter()
            .map(|report| IperfStream {
                index: report.index,
                bytes: report.bytes,
                retransmits: (report.role == StreamRole::Sender && !udp)
                    .then_some(report.retransmits.into()),
                jitter_seconds: report.jitter_ns as f64 / 1e9,
                lost: report.lost,
                omitted_lost: report.omitted_lost,
                packets: report.packets,
                omitted_packets: report.omitted_packets,
                seconds,
            })
            .collect(),
    }
}
