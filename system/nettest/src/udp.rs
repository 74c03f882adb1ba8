//! Streams of datagrams: a sender that hands the kernel many at once (`UDP_SEGMENT`), and a receiver
//! that takes many at once (`UDP_GRO`, `recvmmsg`).
//!
//! All datagrams of one write have the same time of sending and, coalesced, the same time of arrival:
//! the jitter of a fast stream is one between writes. A rate limit shortens the writes to 1 ms of data. It is a mean since the
//! start, as that of iperf3 (`iperf_check_throttle`): the first datagram leaves at once, and a stalled stream catches up.

use std::io;
use std::net::{TcpStream, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use penstock_sys::net::{
    CoalescedReceiver, TcpInfo, UDP_SEGMENTS_MAX, UDP_WRITE_BYTES_MAX, options, set_write_segment,
};

use crate::datagram::{DATAGRAM_HEADER_BYTES_MAX, DatagramAccount, DatagramHeader};
use crate::message::StreamReport;
use crate::params::{DATAGRAM_BYTES, TestParams};
use crate::stream::{
    ByteCounter, END_CHECK_INTERVAL, ReceiverDrain, Stream, StreamSettings, is_timeout,
};

/// Datagram size where the MSS is unknown: fits Ethernet (`DEFAULT_UDP_BLKSIZE` of iperf3).
const DATAGRAM_BYTES_DEFAULT: u32 = 1_460;
/// Datagrams per second that a stream has at least, unless they would be small for Ethernet.
const DATAGRAMS_PER_SECOND_MIN: u64 = 100;
/// Receive buffer without a requested one; the kernel's default of 208 KiB overflows within
/// milliseconds at 1 Gb/s.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
/// Limit of the buffers of one batch, in units of 64 KiB.
const BATCH_MAX: usize = 16;
/// Pause after the kernel ran out of buffers (`ENOBUFS`).
const NO_BUFFER_PAUSE: Duration = Duration::from_micros(200);
/// Longest time for which a write blocks without a check for a stop.
const SEND_TIMEOUT: Duration = Duration::from_millis(200);

/// Size of a test's datagrams: as requested, or what fits the path of the control connection. On a path with
/// large packets a slow stream takes smaller ones, to have [`DATAGRAMS_PER_SECOND_MIN`].
pub(crate) fn datagram_bytes(params: &TestParams, control: &TcpStream) -> u32 {
    params.block_bytes.unwrap_or_else(|| {
        let mss = TcpInfo::of(control).map_or(0, |info| info.snd_mss);
        let fits = if DATAGRAM_BYTES.contains(&mss) { mss } else { DATAGRAM_BYTES_DEFAULT };
        let paced = params
            .stream_bytes_per_second()
            .map_or(u64::MAX, |rate| rate / DATAGRAMS_PER_SECOND_MIN);
        fits.min(u32::try_from(paced).unwrap_or(u32::MAX).max(DATAGRAM_BYTES_DEFAULT))
    })
}

/// Sets the socket options of a stream, at both ends.
pub(crate) fn prepare(
    params: &TestParams,
    settings: StreamSettings,
    socket: &UdpSocket,
) -> io::Result<()> {
    match params.window_bytes {
        Some(bytes) => options::set_window(socket, bytes)?,
        None => options::set_receive_buffer(socket, RECEIVE_BUFFER_BYTES)?,
    }
    if let Some(tos) = settings.tos {
        options::set_tos(socket, tos)?;
    }
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    socket.set_read_timeout(Some(END_CHECK_INTERVAL))
}

/// Number of datagrams in one write.
fn datagrams_per_write(bytes: usize, stream_bytes_per_second: Option<u64>) -> usize {
    let fits = (UDP_WRITE_BYTES_MAX / bytes).clamp(1, UDP_SEGMENTS_MAX);
    match stream_bytes_per_second {
        Some(rate) => {
            let in_a_millisecond = usize::try_from(rate / 1000).unwrap_or(usize::MAX) / bytes;
            fits.min(in_a_millisecond.max(1))
        }
        None => fits,
    }
}

/// Time since the start at which a stream that has sent `bytes` may send again.
fn next_write(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::try_from_secs_f64(bytes as f64 / bytes_per_second as f64).unwrap_or(Duration::MAX)
}

/// Sends until time, bytes or the user end the stream.
pub(crate) fn send(
    stream: &Stream,
    socket: &UdpSocket,
    report: &mut StreamReport,
    counter: &mut ByteCounter,
) -> io::Result<()> {
    let shared = &stream.shared;
    let settings = shared.settings;
    let size = (settings.datagram_bytes as usize).max(DATAGRAM_HEADER_BYTES_MAX + 1);
    let rate = shared.params.stream_bytes_per_second();
    let mut per_write = datagrams_per_write(size, rate);
    "send".clone_into(&mut report.path);
    if per_write > 1 {
        let segment = u16::try_from(size).unwrap_or(u16::MAX);
        match set_write_segment(socket, segment) {
            Ok(()) => "send(UDP_SEGMENT)".clone_into(&mut report.path),
            Err(error) => {
                per_write = 1;
                report.path_reason = Some(format!("UDP_SEGMENT: {error}"));
            }
        }
    }
    let content = stream.memory.bytes();
    let mut buffer: Vec<u8> = content.iter().copied().cycle().take(size * per_write).collect();
    let start = shared.started.elapsed();
    let mut sent_bytes = 0;
    loop {
        let claimed = shared.claim((size * per_write) as u64);
        // Datagrams are whole: the last one may exceed the budget.
        let length = usize::try_from(claimed).unwrap_or(0).div_ceil(size) * size;
        if length == 0 {
            return Ok(());
        }
        if let Some(rate) = rate {
            shared.sleep_until(start.saturating_add(next_write(sent_bytes, rate)));
        }
        if shared.is_over() {
            return Ok(());
        }
        let mut first = 0;
        while first < length {
            let write = &mut buffer[first..length.min(first + size * per_write)];
            let sent = shared.started.elapsed();
            for (datagram, number) in write.chunks_exact_mut(size).zip(1..) {
                DatagramHeader { sent, counter: report.packets + number }
                    .encode(settings.counters, datagram);
            }
            match socket.send(write) {
                Ok(taken) => {
                    let (taken, datagrams) = (taken as u64, (taken / size) as u64);
                    first += write.len();
                    sent_bytes += taken;
                    report.packets += datagrams;
                    if !counter.add(taken, shared.started.elapsed()) {
                        report.omitted_packets += datagrams;
                    }
                    shared.passed[stream.slot].0.fetch_add(taken, Relaxed);
                    shared.datagrams[stream.slot].packets.store(report.packets, Relaxed);
                }
                Err(_) if shared.is_over() => return Ok(()),
                Err(error) if is_timeout(&error) => {}
                // ENOBUFS: the device's queue is full.
                Err(error) if error.raw_os_error() == Some(105) => {
                    std::thread::sleep(NO_BUFFER_PAUSE);
                }
                // EIO, EINVAL, EMSGSIZE: a device that cannot cut this write.
                Err(error)
                    if per_write > 1 && matches!(error.raw_os_error(), Some(5 | 22 | 90)) =>
                {
                    per_write = 1;
                    set_write_segment(socket, 0)?;
                    "send".clone_into(&mut report.path);
                    report.path_reason = Some(format!("UDP_SEGMENT: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Receives until the control connection reports the sender's end.
pub(crate) fn receive(
    stream: &Stream,
    socket: UdpSocket,
    report: &mut StreamReport,
    counter: &mut ByteCounter,
) -> io::Result<()> {
    let shared = &stream.shared;
    let end = &shared.ends[stream.slot];
    let rtt_us = shared.settings.control_rtt_us;
    let size = shared.settings.datagram_bytes as usize;
    let mut receiver = CoalescedReceiver::new(socket, (stream.receive_bytes >> 16).min(BATCH_MAX));
    let path = if receiver.coalesces() { "recvmmsg(UDP_GRO)" } else { "recvmmsg" };
    path.clone_into(&mut report.path);
    let mut account = DatagramAccount::default();
    let mut drain = ReceiverDrain::new(shared, stream.slot);
    loop {
        let received = match receiver.receive() {
            // An ICMP error of an earlier datagram to this peer.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => false,
            result => result?,
        };
        if received {
            let now = shared.started.elapsed();
            let mut bytes = 0;
            for datagram in receiver.datagrams() {
                // A hello that came twice, or a datagram of someone else.
                if shared.settings.exact_size && datagram.len() != size {
                    continue;
                }
                let header = DatagramHeader::decode(shared.settings.counters, datagram);
                if header.is_some_and(|header| account.add(header, now)) {
                    bytes += datagram.len() as u64;
                }
            }
            if bytes > 0 && !counter.add(bytes, now) {
                (report.omitted_packets, report.omitted_lost) = (account.packets, account.lost);
            }
            shared.passed[stream.slot].0.fetch_add(bytes, Relaxed);
            shared.datagrams[stream.slot].publish(&account);
        }
        let all = end.packets.load(Relaxed);
        let complete = all > 0 && account.packets >= all && account.lost == 0;
        if complete || (if received { drain.is_overdue() } else { drain.is_idle(rtt_us) }) {
            break;
        }
    }
    report.packets = account.packets;
    report.lost = account.lost;
    (report.out_of_order, report.duplicates) =
        (Some(account.out_of_order), Some(account.duplicates));
    report.jitter_ns = (account.jitter_seconds * 1e9) as u64;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// iperf3 3.12 with `-u -b 1M -l 32K -t 1` sends four datagrams.
    #[test]
    fn first_datagram_leaves_at_once() {
        let (size, rate) = (32 << 10, 125_000);
        assert_eq!(next_write(0, rate), Duration::ZERO);
        let within = |time| (0..).take_while(|sent| next_write(sent * size, rate) < time).count();
        assert_eq!(within(Duration::from_secs(1)), 4);
        assert_eq!(within(Duration::from_secs(10)), 39);
    }

    #[test]
    fn slow_streams_write_single_datagrams() {
        assert_eq!(datagrams_per_write(1_448, None), 45);
        assert_eq!(datagrams_per_write(64, None), 64);
        assert_eq!(datagrams_per_write(65_507, None), 1);
        assert_eq!(datagrams_per_write(1_448, Some(125_000)), 1);
        assert_eq!(datagrams_per_write(1_448, Some(125_000_000)), 45);
        assert_eq!(datagrams_per_write(1_448, Some(12_500_000)), 8);
    }
}
