//! Statistics of one TCP connection: `getsockopt(TCP_INFO)`.
//!
//! The kernel's structure grows with releases; the kernel copies as many bytes as both sides know. Fields that an older
//! kernel does not have stay zero.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

/// `struct tcp_info` of include/uapi/linux/tcp.h up to `tcpi_reord_seen` (Linux 4.19), which is
/// older than any kernel we run on. The libc crate's copy for glibc stops much earlier.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawTcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    wscale: u8,
    flags: u8,
    rto: u32,
    ato: u32,
    snd_mss: u32,
    rcv_mss: u32,
    unacked: u32,
    sacked: u32,
    lost: u32,
    retrans: u32,
    fackets: u32,
    last_data_sent: u32,
    last_ack_sent: u32,
    last_data_recv: u32,
    last_ack_recv: u32,
    pmtu: u32,
    rcv_ssthresh: u32,
    rtt: u32,
    rttvar: u32,
    snd_ssthresh: u32,
    snd_cwnd: u32,
    advmss: u32,
    reordering: u32,
    rcv_rtt: u32,
    rcv_space: u32,
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_time: u64,
    rwnd_limited: u64,
    sndbuf_limited: u64,
    delivered: u32,
    delivered_ce: u32,
    bytes_sent: u64,
    bytes_retrans: u64,
    dsack_dups: u32,
    reord_seen: u32,
}

// The offset of the last 64-bit pair fixes the whole layout; see `struct tcp_info`.
const _: () = assert!(size_of::<RawTcpInfo>() == 224);

/// A connection's state at one moment. Counters run from the connection's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Smallest round-trip time; 0 before the first measurement.
    pub rtt_min_us: u32,
    /// The receiver's own estimate of the round-trip time, for the end that only reads.
    pub receiver_rtt_us: u32,
    /// Segments retransmitted since the start.
    pub retransmits: u32,
    /// Most recent rate at which data was delivered to the peer, in bits per second.
    pub delivery_rate_bps: u64,
    /// Bytes the peer has acknowledged.
    pub bytes_acked: u64,
    /// Payload bytes retransmitted since the start.
    pub bytes_retransmitted: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments sent, those without data included.
    pub segments_sent: u32,
    /// Segments received, those without data included.
    pub segments_received: u32,
    /// Bytes in the send buffer that were never sent.
    pub notsent_bytes: u32,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Time since the last acknowledgement.
    pub last_acknowledged_ms: u32,
    /// Congestion window in segments.
    pub snd_cwnd: u32,
    /// Largest segment sent, in bytes of payload.
    pub snd_mss: u32,
    /// Largest segment received, in bytes of payload.
    pub rcv_mss: u32,
    /// MSS that this end advertised, in bytes.
    pub advertised_mss: u32,
    /// Time with data outstanding.
    pub busy_us: u64,
    /// Time limited by the peer's receive window.
    pub rwnd_limited_us: u64,
    /// Time limited by this end's send buffer.
    pub sndbuf_limited_us: u64,
    /// Segments that arrived at the peer with a congestion mark (ECN).
    pub delivered_ce: u32,
}

impl TcpInfo {
    /// Reads the statistics of `socket`.
    ///
    /// # Errors
    /// The error of `getsockopt`, as for sockets other than TCP.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut raw = RawTcpInfo::default();
        let mut length = libc::socklen_t::try_from(size_of::<RawTcpInfo>()).unwrap_or(0);
        // SAFETY: the descriptor is open for as long as `socket` is borrowed; the pointer and
        // length describe `raw`, a plain C structure for which every bit pattern is valid and
        // which the kernel fills at most up to `length`.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut raw).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::from(raw))
    }
}

impl From<RawTcpInfo> for TcpInfo {
    fn from(raw: RawTcpInfo) -> Self {
        Self {
            rtt_us: raw.rtt,
            // All ones: not measured yet.
            rtt_min_us: if raw.min_rtt == u32::MAX { 0 } else { raw.min_rtt },
            receiver_rtt_us: raw.rcv_rtt,
            retransmits: raw.total_retrans,
            delivery_rate_bps: raw.delivery_rate.saturating_mul(8),
            bytes_acked: raw.bytes_acked,
            bytes_retransmitted: raw.bytes_retrans,
            bytes_received: raw.bytes_received,
            segments_sent: raw.segs_out,
            segments_received: raw.segs_in,
            notsent_bytes: raw.notsent_bytes,
            unacked_segments: raw.unacked,
            last_acknowledged_ms: raw.last_ack_recv,
            snd_cwnd: raw.snd_cwnd,
            snd_mss: raw.snd_mss,
            rcv_mss: raw.rcv_mss,
            advertised_mss: raw.advmss,
            busy_us: raw.busy_time,
            rwnd_limited_us: raw.rwnd_limited,
            sndbuf_limited_us: raw.sndbuf_limited,
            delivered_ce: raw.delivered_ce,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::TcpInfo;

    #[test]
    fn loopback_connection_counts_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
        server.write_all(b"x").unwrap();
        client.read_exact(&mut [0; 1]).unwrap();

        let receiver = TcpInfo::of(&server).unwrap();
        assert_eq!(receiver.bytes_received, 10_000);
        let sender = TcpInfo::of(&client).unwrap();
        assert!(sender.bytes_acked >= 10_000, "{sender:?}");
        assert!(sender.snd_mss > 500 && sender.snd_cwnd > 0, "{sender:?}");
    }

    #[test]
    fn udp_socket_is_an_error() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::of(&socket).is_err());
    }
}
