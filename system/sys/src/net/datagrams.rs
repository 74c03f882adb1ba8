//! Batched UDP I/O (recvmmsg, sendmmsg), with timestamps and the kernel's drop counter.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::options::{set_int, set_receive_buffer};

/// Most datagrams per system call.
pub const DATAGRAMS_PER_CALL_MAX: usize = 64;

/// Above the longest UDP datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// include/uapi/asm-generic/socket.h; libc does not have it.
const SO_MEMINFO: libc::c_int = 55;

/// Buffer for the control messages SO_RXQ_OVFL (24 bytes) and SCM_TIMESTAMPNS (32 bytes), with the alignment of `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// A bound socket that receives datagrams in batches.
pub struct DatagramReceiver {
    socket: UdpSocket,
    buffers: Vec<u8>,
    names: Vec<libc::sockaddr_storage>,
    controls: Vec<ControlBuffer>,
    infos: Vec<DatagramInfo>,
    taken: usize,
    dropped_last: u32,
    dropped: u64,
    buffer_bytes: usize,
}

/// Length and control messages of one datagram.
#[derive(Debug, Clone, Copy, Default)]
struct DatagramInfo {
    length: usize,
    received_at: Option<Duration>,
    dropped_before: u32,
}

/// A datagram of the last [`DatagramReceiver::receive`].
#[derive(Debug, Clone, Copy)]
pub struct ReceivedDatagram<'a> {
    /// Source address; IPv4-mapped addresses as IPv4.
    pub from: SocketAddr,
    /// Payload without the UDP header.
    pub bytes: &'a [u8],
    /// Arrival time since 1970 by the wall clock (`SO_TIMESTAMPNS`); `None` without a timestamp.
    pub received_at: Option<Duration>,
    /// Datagrams that the kernel dropped between the previous one and this one because the buffer was full.
    pub dropped_before: u32,
}

impl std::fmt::Debug for DatagramReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DatagramReceiver").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl DatagramReceiver {
    /// Binds `address` with a receive buffer of `buffer_bytes`, or the kernel's limit ([`Self::buffer_bytes`]).
    /// [`Self::receive`] blocks for at most `wait`.
    ///
    /// # Errors
    /// The error of `bind`.
    pub fn bind(address: SocketAddr, buffer_bytes: usize, wait: Duration) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.ip() == IpAddr::from([0_u8; 16]) {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.set_read_timeout(Some(wait))?;
        set_receive_buffer(&socket, buffer_bytes)?;
        // The kernel reports twice the requested size, for its bookkeeping (socket(7)).
        let buffer_bytes = socket.recv_buffer_size()? / 2;
        set_int(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        set_int(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        // SAFETY: all zeros is a valid sockaddr_storage, which is plain data.
        let name: libc::sockaddr_storage = unsafe { zeroed() };
        Ok(Self {
            socket: socket.into(),
            buffers: vec![0; DATAGRAMS_PER_CALL_MAX * DATAGRAM_BYTES_MAX],
            names: vec![name; DATAGRAMS_PER_CALL_MAX],
            controls: vec![ControlBuffer([0; 64]); DATAGRAMS_PER_CALL_MAX],
            infos: vec![DatagramInfo::default(); DATAGRAMS_PER_CALL_MAX],
            taken: 0,
            dropped_last: 0,
            dropped: 0,
            buffer_bytes,
        })
    }

    /// Returns the bound address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Size of the kernel's receive buffer in bytes.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Datagrams dropped because the buffer was full, as of the last received one or of [`Self::dropped_since`].
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Reads how many datagrams the kernel dropped since the last received one. The next datagram reports them as well, but
    /// may come late.
    ///
    /// # Errors
    /// The error of `getsockopt`.
    pub fn dropped_since(&mut self) -> io::Result<u32> {
        const SK_MEMINFO_DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
        /// include/uapi/linux/sock_diag.h; libc does not have it.
        const SK_MEMINFO_VARS: usize = 9;
        let mut values = [0_u32; SK_MEMINFO_VARS];
        let mut length = size_of_val(&values) as libc::socklen_t;
        // SAFETY: the descriptor is open; pointer and length describe `values`, which the kernel fills up to `length`.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_MEMINFO,
                values.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let since = values[SK_MEMINFO_DROPS].wrapping_sub(self.dropped_last);
        self.dropped_last = values[SK_MEMINFO_DROPS];
        self.dropped += u64::from(since);
        Ok(since)
    }

    /// Receives the queued datagrams, or blocks for the next one. Returns their count; 0 after a time-out or signal.
    ///
    /// # Errors
    /// The kernel's other errors.
    pub fn receive(&mut self) -> io::Result<usize> {
        self.taken = 0;
        let mut vectors: Vec<libc::iovec> = self
            .buffers
            .chunks_exact_mut(DATAGRAM_BYTES_MAX)
            .map(|buffer| libc::iovec {
                iov_base: buffer.as_mut_ptr().cast(),
                iov_len: buffer.len(),
            })
            .collect();
        let rooms = self.names.iter_mut().zip(&mut self.controls).zip(&mut vectors);
        let mut messages: Vec<libc::mmsghdr> = rooms
            .map(|((name, control), vector)| {
                // SAFETY: all zeros is a valid mmsghdr, which is plain data.
                let mut message: libc::mmsghdr = unsafe { zeroed() };
                message.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
                message.msg_hdr.msg_namelen =
                    size_of::<libc::sockaddr_storage>() as libc::socklen_t;
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message.msg_hdr.msg_control = std::ptr::from_mut(control).cast();
                message.msg_hdr.msg_controllen = size_of::<ControlBuffer>() as _;
                message
            })
            .collect();
        // SAFETY: each message points to its own name, vector, buffer and control room with their true lengths, and
        // all of them outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                DATAGRAMS_PER_CALL_MAX as libc::c_uint,
                libc::MSG_WAITFORONE as _,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        self.taken = count as usize;
        for (info, message) in self.infos.iter_mut().zip(&messages).take(self.taken) {
            let (received_at, dropped) = control_messages(message);
            // The kernel sends no counter before its first drop.
            let dropped = dropped.unwrap_or(self.dropped_last);
            let dropped_before = dropped.wrapping_sub(self.dropped_last);
            // A queued datagram has the counter of its arrival, which may be older than the last read one.
            let dropped_before = if dropped_before > u32::MAX / 2 { 0 } else { dropped_before };
            self.dropped_last = self.dropped_last.wrapping_add(dropped_before);
            self.dropped += u64::from(dropped_before);
            let length = (message.msg_len as usize).min(DATAGRAM_BYTES_MAX);
            *info = DatagramInfo { length, received_at, dropped_before };
        }
        Ok(self.taken)
    }

    /// True if the last [`Self::receive`] emptied the queue.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.taken < DATAGRAMS_PER_CALL_MAX
    }

    /// Datagrams of the last [`Self::receive`], in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = ReceivedDatagram<'_>> {
        (0..self.taken).filter_map(|at| {
            let start = at * DATAGRAM_BYTES_MAX;
            let DatagramInfo { length, received_at, dropped_before } = self.infos[at];
            let bytes = &self.buffers[start..start + length];
            let from = address(&self.names[at])?;
            Some(ReceivedDatagram { from, bytes, received_at, dropped_before })
        })
    }
}

/// A connected socket that sends datagrams in batches.
#[derive(Debug)]
pub struct DatagramSender {
    socket: UdpSocket,
}

impl DatagramSender {
    /// Wraps a connected socket.
    #[must_use]
    pub fn new(socket: UdpSocket) -> Self {
        Self { socket }
    }

    /// Sends up to [`DATAGRAMS_PER_CALL_MAX`] datagrams. Returns how many the kernel accepted.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn send(&self, datagrams: &[Vec<u8>]) -> io::Result<usize> {
        let datagrams = &datagrams[..datagrams.len().min(DATAGRAMS_PER_CALL_MAX)];
        let mut vectors: Vec<libc::iovec> = datagrams
            .iter()
            .map(|bytes| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            })
            .collect();
        let mut messages: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .map(|vector| {
                // SAFETY: all zeros is a valid mmsghdr, which is plain data.
                let mut message: libc::mmsghdr = unsafe { zeroed() };
                message.msg_hdr.msg_iov = vector;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        // SAFETY: each message points to a vector of one buffer, all of which outlive the call; sending only reads.
        let count = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as libc::c_uint,
                0,
            )
        };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count as usize) }
    }
}

/// Decodes arrival time and drop counter of a datagram.
fn control_messages(message: &libc::mmsghdr) -> (Option<Duration>, Option<u32>) {
    let header = &message.msg_hdr;
    let (mut received_at, mut dropped) = (None, None);
    // SAFETY: the header is as recvmmsg filled it, with its control room still alive; the CMSG macros stay within
    // msg_controllen, a message of SO_RXQ_OVFL carries 32 bits and one of SO_TIMESTAMPNS a timespec.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            match ((*control).cmsg_level, (*control).cmsg_type) {
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    dropped = Some(libc::CMSG_DATA(control).cast::<u32>().read_unaligned());
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    let time = libc::CMSG_DATA(control).cast::<libc::timespec>().read_unaligned();
                    received_at = since_epoch(time);
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    (received_at, dropped)
}

fn since_epoch(time: libc::timespec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

fn address(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in, which a storage has room for.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in>() };
            let ip = IpAddr::from(name.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(ip, u16::from_be(name.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6, which a storage has room for.
            let name = unsafe { &*std::ptr::from_ref(name).cast::<libc::sockaddr_in6>() };
            let ip = IpAddr::from(name.sin6_addr.s6_addr).to_canonical();
            Some(SocketAddr::new(ip, u16::from_be(name.sin6_port)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_drops_are_counted() {
        let wait = Duration::from_millis(50);
        let mut receiver =
            DatagramReceiver::bind("[::]:0".parse().unwrap(), 64 << 10, wait).unwrap();
        assert_eq!(receiver.receive().unwrap(), 0, "nothing came");
        let port = receiver.local_addr().unwrap().port();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(("127.0.0.1", port)).unwrap();
        let from = socket.local_addr().unwrap();
        let sender = DatagramSender::new(socket);
        let few: Vec<Vec<u8>> = (0..10_u8).map(|n| vec![n; 100 + usize::from(n)]).collect();
        assert_eq!(sender.send(&few).unwrap(), 10);
        let (mut got, mut times) = (Vec::new(), Vec::new());
        while got.len() < 10 {
            receiver.receive().unwrap();
            got.extend(receiver.datagrams().map(|one| {
                times.push(one.received_at.expect("a time of the kernel"));
                (one.from, one.bytes.to_vec())
            }));
        }
        assert!(got.iter().all(|(source, _)| *source == from), "{got:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        assert!(times.is_sorted() && times[9] <= now && now - times[0] < Duration::from_secs(60));
        assert_eq!(got.into_iter().map(|one| one.1).collect::<Vec<_>>(), few);
        assert_eq!(receiver.dropped(), 0);

        // Beyond the receive buffer each datagram is either received or counted as dropped.
        let many = vec![vec![7; 1400]; DATAGRAMS_PER_CALL_MAX];
        let sent: usize = (0..20).map(|_| sender.send(&many).unwrap()).sum();
        let (mut taken, mut reported) = (0, 0);
        loop {
            let more = receiver.receive().unwrap();
            taken += more;
            reported += receiver.datagrams().map(|one| u64::from(one.dropped_before)).sum::<u64>();
            if more == 0 {
                break;
            }
        }
        assert!(receiver.is_drained());
        // All queued datagrams came before the first drop and report none; getsockopt does.
        let since = u64::from(receiver.dropped_since().unwrap());
        assert!(since > 0 && receiver.dropped() == reported + since);
        assert_eq!(taken as u64 + receiver.dropped(), sent as u64);
        // The next one repeats the count.
        assert_eq!(sender.send(&many[..1]).unwrap(), 1);
        assert_eq!(receiver.receive().unwrap(), 1);
        assert_eq!(receiver.datagrams().next().unwrap().dropped_before, 0);
        assert_eq!(receiver.dropped_since().unwrap(), 0);
    }
}
