//! Streams over RDMA: a queue pair beside each data connection, which carries its parameters and its end.
//!
//! `write`: the sender writes messages into slots of the receiver, which grants them again. `read`: the receiver reads
//! slots of the sender. At the end the initiator sends the bytes of the whole stream on the data connection.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use penstock_protocol::pace::Pacer;
use penstock_rdma::adapter::display_gid;
use penstock_rdma::answer_timer::AnswerTimer;
use penstock_rdma::connection::{ConnectionPart, ConnectionSettings, RdmaEvent};
use penstock_rdma::credit::{PostedRequest, ReceiverCredits, SenderCredits};
use penstock_rdma::parameters::signal_interval;
use penstock_rdma::{RdmaAdapter, RdmaConnection, RdmaFailure};
use penstock_sys::net::TcpInfo;
use serde::{Deserialize, Serialize};

use crate::message::{StreamReport, StreamRole};
use crate::params::{RDMA_MEMORY_BYTES_MAX, RdmaParams, RdmaVerb};
use crate::stream::{ByteCounter, Stream};

/// Time limit for the other end's parameters.
const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait without a check for the end of the test.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Round trips that are measured before the messages.
const PROBE_COUNT: u32 = 5;
/// Headers of IP and TCP that the segment size leaves out.
const TCP_HEADER_BYTES: u32 = 40;

/// Properties of a stream's queue pair.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RdmaStreamReport {
    /// Name of the device at this end.
    pub device: String,
    /// Address of the GID at this end.
    pub gid: String,
    /// Path MTU in bytes.
    pub path_mtu: u32,
    /// Exponent of the retransmission timer.
    pub timeout_exponent: u8,
    /// Fastest of the round trips measured by RDMA before the messages, in microseconds; 0 at the target.
    pub round_trip_min_us: u32,
    /// Mean of them, in microseconds.
    pub round_trip_us: u32,
}

/// Runs one end of a stream. Its failures name the remedy.
pub(crate) fn run(
    stream: &Stream,
    mut socket: TcpStream,
    params: RdmaParams,
    report: &mut StreamReport,
    counter: &mut ByteCounter,
) -> io::Result<()> {
    let result = match (params.verb, stream.role) {
        (RdmaVerb::Write, StreamRole::Sender) | (RdmaVerb::Read, StreamRole::Receiver) => {
            initiate(stream, &mut socket, params, report, counter)
        }
        (RdmaVerb::Write, StreamRole::Receiver) => {
            take_writes(stream, &mut socket, params, report, counter)
        }
        (RdmaVerb::Read, StreamRole::Sender) => {
            answer_reads(stream, &mut socket, params, report, counter)
        }
    };
    // The other end must not wait for this one.
    let _ = socket.shutdown(Shutdown::Both);
    result.map_err(io::Error::other)
}

/// Connects the queue pair of a stream.
fn open(
    stream: &Stream,
    socket: &mut TcpStream,
    params: RdmaParams,
    part: ConnectionPart,
    report: &mut StreamReport,
) -> Result<(RdmaConnection, Duration), RdmaFailure> {
    socket.set_read_timeout(Some(EXCHANGE_TIMEOUT)).map_err(RdmaFailure::Exchange)?;
    socket.set_nodelay(true).map_err(RdmaFailure::Exchange)?;
    let adapter = RdmaAdapter::for_address(socket.local_addr().map_err(RdmaFailure::Exchange)?)?;
    let info = TcpInfo::of(&*socket).ok();
    let round_trip = Duration::from_micros(info.as_ref().map_or(0, |info| info.rtt_us).into());
    let message_bytes = message_bytes(stream);
    let streams = u64::from(stream.shared.params.connections());
    let distinct = RDMA_MEMORY_BYTES_MAX / streams / u64::from(message_bytes);
    let mut sequence = [0; 4];
    aws_lc_rs::rand::fill(&mut sequence)
        .map_err(|_| RdmaFailure::Exchange(io::Error::other("no random numbers")))?;
    let settings = ConnectionSettings {
        part,
        depth: params.depth,
        message_bytes,
        head_bytes: None,
        distinct_slots: u32::try_from(distinct).unwrap_or(u32::MAX),
        round_trip,
        ip_mtu: info.map(|info| info.snd_mss + TCP_HEADER_BYTES),
        traffic_class: stream.shared.params.traffic_class().unwrap_or(0),
        flow_label: 0,
        sequence: u32::from_be_bytes(sequence),
    };
    let connection = RdmaConnection::open(&adapter, &settings, socket)?;
    report.path = format!("rdma {}", params.verb.name());
    report.rdma = Some(RdmaStreamReport {
        device: adapter.context().name().to_owned(),
        gid: display_gid(&adapter.gid().gid),
        path_mtu: connection.mtu_bytes(),
        timeout_exponent: connection.timeout_exponent(),
        ..RdmaStreamReport::default()
    });
    Ok((connection, round_trip))
}

fn message_bytes(stream: &Stream) -> u32 {
    stream.shared.params.message_bytes()
}

/// Writes or reads messages until the test ends, then sends the bytes of the stream.
fn initiate(
    stream: &Stream,
    socket: &mut TcpStream,
    params: RdmaParams,
    report: &mut StreamReport,
    counter: &mut ByteCounter,
) -> Result<(), RdmaFailure> {
    let reads = params.verb == RdmaVerb::Read;
    let (connection, round_trip) = open(stream, socket, params, ConnectionPart::Initiator, report)?;
    let mut probes = Vec::new();
    for _ in 0..PROBE_COUNT {
        probes.push(connection.probe(reads, round_trip, socket.as_fd())?);
    }
    let micros = |time: Duration| u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    if let Some(rdma) = &mut report.rdma {
        rdma.round_trip_min_us = probes.iter().min().copied().map_or(0, micros);
        rdma.round_trip_us = micros(probes.iter().sum::<Duration>() / PROBE_COUNT);
        (report.rtt_us, report.rtt_min_us) = (rdma.round_trip_us, rdma.round_trip_min_us);
    }
    let message_bytes = message_bytes(stream);
    let slots = connection.peer().slots;
    let interval = signal_interval(params.depth);
    let mut credits =
        SenderCredits::new(slots.min(params.depth), params.depth + interval, interval);
    let shared = &stream.shared;
    let rate_bps = shared.params.stream_bytes_per_second().map(|bytes| bytes.saturating_mul(8));
    // The test begins here: connecting takes seconds where neighbours do not resolve at once.
    let begun = Instant::now();
    let has_ended = || {
        let duration = shared.params.duration();
        shared.stop.load(Relaxed) || duration.is_some_and(|time| begun.elapsed() >= time)
    };
    let mut pacer = Pacer::new(rate_bps, begun.elapsed());
    // Slot and bytes of each message in flight.
    let mut in_flight: VecDeque<(u32, u32)> = VecDeque::new();
    let mut events = Vec::new();
    let mut total = 0_u64;
    let mut is_spent = false;
    let mut answers = AnswerTimer::new(connection.answer_timeout());
    loop {
        while !is_spent && credits.may_post() && !has_ended() {
            let bytes = shared.claim(u64::from(message_bytes)) as u32;
            if bytes == 0 {
                is_spent = true;
                break;
            }
            let mut wait = pacer.take(bytes.into(), begun.elapsed());
            while !wait.is_zero() && !has_ended() {
                let part = wait.min(WAIT_MAX);
                std::thread::sleep(part);
                wait -= part;
            }
            let request = credits.post(true).expect("checked above");
            post(&connection, reads, request, bytes)?;
            in_flight.push_back((request.slot, bytes));
        }
        let is_over = is_spent || has_ended();
        if is_over && credits.in_flight() == 0 {
            break;
        }
        if is_over && credits.request_completion() {
            connection.mark(reads)?;
        }
        let ready = connection.events(socket.as_fd(), WAIT_MAX, &mut events)?;
        let before = credits.in_flight();
        for event in &events {
            let completed = match event {
                RdmaEvent::Message { immediate, .. } => {
                    connection.post_receive()?;
                    credits.on_grant(*immediate)?;
                    continue;
                }
                RdmaEvent::Completed(sequence) => credits.on_completion(*sequence)?,
                RdmaEvent::Marker => credits.on_marker(),
            };
            for (slot, bytes) in in_flight.drain(..completed as usize) {
                total += u64::from(bytes);
                counter.add(bytes.into(), begun.elapsed());
                shared.passed[stream.slot].0.fetch_add(bytes.into(), Relaxed);
                if reads {
                    credits.on_grant(slot)?;
                }
            }
        }
        answers.check(credits.in_flight() < before, credits.awaits_completion())?;
        if ready.any() {
            return Err(RdmaFailure::PeerClosed);
        }
    }
    socket.write_all(&total.to_be_bytes()).map_err(RdmaFailure::Exchange)?;
    socket.shutdown(Shutdown::Write).map_err(RdmaFailure::Exchange)?;
    // The target closes when it has counted everything. A copy goes on where a stop of this process interrupts a read.
    io::copy(socket, &mut io::sink()).map(|_| ()).map_err(RdmaFailure::Exchange)
}

fn post(
    connection: &RdmaConnection,
    reads: bool,
    request: PostedRequest,
    bytes: u32,
) -> Result<(), RdmaFailure> {
    if reads { connection.read(request, bytes) } else { connection.write(request, bytes) }
}

/// Counts messages and grants their slots again, until all that the sender counted are there.
fn take_writes(
    stream: &Stream,
    socket: &mut TcpStream,
    params: RdmaParams,
    report: &mut StreamReport,
    counter: &mut ByteCounter,
) -> Result<(), RdmaFailure> {
    let (connection, _) = open(stream, socket, params, ConnectionPart::WriteTarget, report)?;
    let mut credits =
        ReceiverCredits::new(params.depth, params.depth, signal_interval(params.depth));
    let shared = &stream.shared;
    let begun = Instant::now();
    let mut events = Vec::new();
    let mut received = 0;
    let mut total = None;
    while total != Some(received) {
        let ready = connection.events(socket.as_fd(), WAIT_MAX, &mut events)?;
        for event in &events {
            match event {
                RdmaEvent::Message { bytes, immediate } => {
                    credits.on_message(*immediate)?;
                    received += u64::from(*bytes);
                    counter.add((*bytes).into(), begun.elapsed());
                    shared.passed[stream.slot].0.fetch_add((*bytes).into(), Relaxed);
                    credits.release(*immediate)?;
                }
                RdmaEvent::Completed(sequence) => credits.on_completion(*sequence)?,
                RdmaEvent::Marker => {}
            }
        }
        while total.is_none()
            && let Some(request) = credits.grant()
        {
            connection.grant(request)?;
        }
        if ready.any() && total.is_none() {
            total = Some(read_total(socket)?);
        }
    }
    Ok(())
}

/// Waits while the receiver reads.
fn answer_reads(
    stream: &Stream,
    socket: &mut TcpStream,
    params: RdmaParams,
    report: &mut StreamReport,
    counter: &mut ByteCounter,
) -> Result<(), RdmaFailure> {
    let (connection, _) = open(stream, socket, params, ConnectionPart::ReadTarget, report)?;
    let shared = &stream.shared;
    let mut events = Vec::new();
    while !connection.events(socket.as_fd(), WAIT_MAX, &mut events)?.any() {}
    let total = read_total(socket)?;
    counter.add(total, shared.started.elapsed());
    shared.passed[stream.slot].0.fetch_add(total, Relaxed);
    Ok(())
}

/// Reads the bytes of the whole stream from the initiator.
fn read_total(socket: &mut TcpStream) -> Result<u64, RdmaFailure> {
    let mut total = [0; 8];
    socket.read_exact(&mut total).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => RdmaFailure::PeerClosed,
        _ => RdmaFailure::Exchange(error),
    })?;
    Ok(u64::from_be_bytes(total))
}
