//! Bulk UDP: connected sockets, and a receiver that takes coalesced datagrams (`UDP_GRO`) in batches (`recvmmsg`).
//!
//! The kernel passes up to 64 datagrams of equal length as one buffer with their length as a control message; on loopback
//! it passes what the sender wrote with `UDP_SEGMENT`. Without the option each buffer is one datagram.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

use super::options::set_int;
use super::receive_batch::ReceiveBatch;

/// Most datagrams that one write with `UDP_SEGMENT` may contain (`UDP_MAX_SEGMENTS`; 128 since Linux 6.9).
pub const UDP_SEGMENTS_MAX: usize = 64;
/// Largest payload of one write, in bytes: the IPv4 packet has 65,535.
pub const UDP_WRITE_BYTES_MAX: usize = 65_507;
/// Binds a UDP socket that shares its address with the sockets of [`accept_datagrams`]. `[::]` receives IPv4 as well.
///
/// # Errors
/// The kernel's error.
pub fn bind_datagrams(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Makes a UDP socket at `local`, which another one shares, that receives the datagrams of `peer` only. Those of other
/// peers that arrived between bind and connect are still queued.
///
/// # Errors
/// The kernel's error.
pub fn accept_datagrams(local: SocketAddr, peer: SocketAddr) -> io::Result<UdpSocket> {
    let socket = bind_datagrams(local)?;
    socket.connect(peer)?;
    Ok(socket)
}

/// Makes a UDP socket connected to `peer`, from `source` or any address.
///
/// # Errors
/// The kernel's error.
pub fn connect_datagrams(peer: SocketAddr, source: Option<IpAddr>) -> io::Result<UdpSocket> {
    let any = match peer {
        SocketAddr::V4(_) => IpAddr::from([0; 4]),
        SocketAddr::V6(_) => IpAddr::from([0_u8; 16]),
    };
    let socket = UdpSocket::bind((source.unwrap_or(any), 0))?;
    socket.connect(peer)?;
    Ok(socket)
}

/// Sets the length into which the kernel cuts each write of a UDP socket (`UDP_SEGMENT`); 0 cuts none.
///
/// # Errors
/// The error of `setsockopt`.
pub fn set_write_segment(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set_int(socket, libc::SOL_UDP, libc::UDP_SEGMENT, i32::from(bytes))
}

/// A connected UDP socket with buffers for a batch of coalesced datagrams.
pub struct CoalescedReceiver {
    socket: UdpSocket,
    batch: ReceiveBatch,
    /// Length of the datagrams in each buffer of the last batch; `None` for a single one.
    segments: Vec<Option<usize>>,
    coalesces: bool,
}

impl std::fmt::Debug for CoalescedReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoalescedReceiver").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl CoalescedReceiver {
    /// Wraps a socket, whose read timeout applies to [`Self::receive`], with `batch` buffers of 64 KiB. Uses `UDP_GRO`
    /// where the kernel has it.
    #[must_use]
    pub fn new(socket: UdpSocket, batch: usize) -> Self {
        let batch = batch.clamp(1, UDP_SEGMENTS_MAX);
        let coalesces = set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        Self {
            socket,
            batch: ReceiveBatch::new(batch, false),
            segments: Vec::with_capacity(batch),
            coalesces,
        }
    }

    /// True if the kernel coalesces datagrams.
    #[must_use]
    pub fn coalesces(&self) -> bool {
        self.coalesces
    }

    /// Receives what is queued, or blocks for the next datagram. False after a timeout or a signal.
    ///
    /// # Errors
    /// The kernel's other errors.
    pub fn receive(&mut self) -> io::Result<bool> {
        let Self { socket, batch, segments, .. } = self;
        segments.clear();
        let count = batch.receive(socket, true, |messages| {
            let segment = messages.get::<libc::c_int>(libc::SOL_UDP, libc::UDP_GRO);
            segments.push(segment.and_then(|bytes| usize::try_from(bytes).ok()));
        })?;
        Ok(count > 0)
    }

    /// Datagrams of the last [`Self::receive`], in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.batch.datagrams().zip(&self.segments).flat_map(|(buffer, segment)| {
            buffer.chunks(segment.filter(|bytes| *bytes > 0).unwrap_or(buffer.len()).max(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn pair() -> (UdpSocket, CoalescedReceiver, UdpSocket) {
        let port = bind_datagrams("127.0.0.1:0".parse().unwrap()).unwrap();
        let local = port.local_addr().unwrap();
        let sender = connect_datagrams(local, None).unwrap();
        let socket = accept_datagrams(local, sender.local_addr().unwrap()).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        (sender, CoalescedReceiver::new(socket, 4), port)
    }

    fn receive(receiver: &mut CoalescedReceiver, count: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        // A signal ends a wait, too.
        for _ in 0..100 {
            if got.len() < count && receiver.receive().unwrap() {
                got.extend(receiver.datagrams().map(<[u8]>::to_vec));
            }
        }
        got
    }

    #[test]
    fn segmented_write_arrives_as_datagrams() {
        let (sender, mut receiver, _port) = pair();
        set_write_segment(&sender, 1000).unwrap();
        let bytes: Vec<u8> = (0..10_500_u32).map(|n| (n / 1000) as u8).collect();
        assert_eq!(sender.send(&bytes).unwrap(), 10_500);
        let expected: Vec<Vec<u8>> = bytes.chunks(1000).map(<[u8]>::to_vec).collect();
        assert_eq!(receive(&mut receiver, 11), expected);
        assert!(receiver.coalesces());
    }

    #[test]
    fn plain_datagrams_keep_their_lengths() {
        let (sender, mut receiver, _port) = pair();
        let sent: Vec<Vec<u8>> = (1..=9_u8).map(|n| vec![n; usize::from(n) * 100]).collect();
        for datagram in &sent {
            sender.send(datagram).unwrap();
        }
        assert_eq!(receive(&mut receiver, 9), sent);
        assert!(!receiver.receive().unwrap(), "nothing is left");
    }

    #[test]
    fn accepted_socket_takes_its_peer_only() {
        let (sender, mut receiver, port) = pair();
        let other = connect_datagrams(port.local_addr().unwrap(), None).unwrap();
        other.send(b"other").unwrap();
        sender.send(b"mine").unwrap();
        assert_eq!(receive(&mut receiver, 1), [b"mine"]);
        let mut bytes = [0; 16];
        assert_eq!(port.recv(&mut bytes).unwrap(), 5);
    }
}
