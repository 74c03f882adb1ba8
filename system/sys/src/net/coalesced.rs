//! Bulk UDP: connected sockets, and a receiver that takes coalesced datagrams (`UDP_GRO`) in batches (`recvmmsg`).
//!
//! The kernel passes up to 64 datagrams of equal length as one buffer with their length as a control message; on loopback
//! it passes what the sender wrote with `UDP_SEGMENT`. Without the option each buffer is one datagram.

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Socket, Type};

use super::options::set_int;

/// Most datagrams that one write with `UDP_SEGMENT` may contain (`UDP_MAX_SEGMENTS`; 128 since Linux 6.9).
pub const UDP_SEGMENTS_MAX: usize = 64;
/// Largest payload of one write, in bytes: the IPv4 packet has 65,535.
pub const UDP_WRITE_BYTES_MAX: usize = 65_507;
/// Above the longest coalesced buffer.
const BUFFER_BYTES: usize = 65_536;

/// Buffer for the control message UDP_GRO (24 bytes), with the alignment of `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct SegmentControl([u8; 64]);

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
    buffers: Vec<u8>,
    controls: Vec<SegmentControl>,
    /// Total length and segment length of each buffer of the last batch.
    lengths: Vec<(usize, usize)>,
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
            buffers: vec![0; batch * BUFFER_BYTES],
            controls: vec![SegmentControl([0; 64]); batch],
            lengths: Vec::with_capacity(batch),
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
        self.lengths.clear();
        let mut vectors: Vec<libc::iovec> = self
            .buffers
            .chunks_exact_mut(BUFFER_BYTES)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let rooms = self.controls.iter_mut().zip(&mut vectors);
        let mut messages: Vec<libc::mmsghdr> = rooms
            .map(|(control, vector)| {
                // SAFETY: all zeros is a valid mmsghdr, which is plain data.
                let mut message: libc::mmsghdr = unsafe { zeroed() };
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message.msg_hdr.msg_control = std::ptr::from_mut(control).cast();
                message.msg_hdr.msg_controllen = size_of::<SegmentControl>() as _;
                message
            })
            .collect();
        // SAFETY: each message points to its own vector, buffer and control room with their true lengths, and all of
        // them outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(false),
                _ => Err(error),
            };
        }
        for message in messages.iter().take(count as usize) {
            let length = (message.msg_len as usize).min(BUFFER_BYTES);
            let segment = segment_bytes(&message.msg_hdr).filter(|segment| *segment > 0);
            self.lengths.push((length, segment.unwrap_or(length).max(1)));
        }
        Ok(count > 0)
    }

    /// Datagrams of the last [`Self::receive`], in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers
            .chunks_exact(BUFFER_BYTES)
            .zip(&self.lengths)
            .flat_map(|(buffer, &(length, segment))| buffer[..length].chunks(segment))
    }
}

/// Length of the coalesced datagrams; `None` for a single one.
fn segment_bytes(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the header is as recvmmsg filled it, with its control room still alive; the CMSG macros stay within
    // msg_controllen, and a message of UDP_GRO carries an int.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            if ((*control).cmsg_level, (*control).cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
                let bytes = libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned();
                return usize::try_from(bytes).ok();
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
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
        while got.len() < count && receiver.receive().unwrap() {
            got.extend(receiver.datagrams().map(<[u8]>::to_vec));
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
