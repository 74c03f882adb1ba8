//! Batched UDP I/O (recvmmsg, sendmmsg), with timestamps and the kernel's drop counter.

use std::io;
use std::mem::zeroed;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::options::{set_int, set_receive_buffer};
use super::receive_batch::ReceiveBatch;

/// Most datagrams per system call.
pub const DATAGRAMS_PER_CALL_MAX: usize = 64;

/// include/uapi/asm-generic/socket.h; libc does not have it.
const SO_MEMINFO: libc::c_int = 55;

/// Instruction of a classic BPF program (`struct sock_filter`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterInstruction {
    /// Operation (`BPF_LD | BPF_W | BPF_ABS`, ...).
    pub code: u16,
    /// Instructions to skip if a comparison is true.
    pub jump_true: u8,
    /// Instructions to skip if it is false.
    pub jump_false: u8,
    /// Operand: a constant, an offset, or the distance of a jump.
    pub value: u32,
}

/// A bound socket that receives datagrams in batches.
pub struct DatagramReceiver {
    socket: UdpSocket,
    batch: ReceiveBatch,
    /// Control messages of the last batch.
    infos: Vec<DatagramInfo>,
    dropped_last: u32,
    dropped: u64,
    buffer_bytes: usize,
}

/// Control messages of one datagram.
#[derive(Debug, Clone, Copy)]
struct DatagramInfo {
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
        Self::open(address, buffer_bytes, wait, false)
    }

    /// Opens another socket with the same address, with which this one shares the datagrams (`SO_REUSEPORT`). The kernel
    /// chooses between them by a hash of addresses and ports, or as [`Self::steer`] says. This socket was bound without
    /// the option: `bind` failed if any other program had the address. Later the kernel lets only programs of the same
    /// user join that set the option, too.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn join(&self, buffer_bytes: usize, wait: Duration) -> io::Result<Self> {
        set_int(&self.socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        Self::open(self.local_addr()?, buffer_bytes, wait, true)
    }

    /// Attaches a program that chooses the socket of each datagram among those joined, by their order
    /// (`SO_ATTACH_REUSEPORT_CBPF`). Loads begin at the payload of UDP, or at the IP header with `SKF_NET_OFF`.
    ///
    /// # Errors
    /// The kernel's error: `EINVAL` for a program that it refuses, or a socket that shares with no other.
    pub fn steer(&self, program: &[FilterInstruction]) -> io::Result<()> {
        let mut filter: Vec<_> = program
            .iter()
            .map(|one| libc::sock_filter {
                code: one.code,
                jt: one.jump_true,
                jf: one.jump_false,
                k: one.value,
            })
            .collect();
        let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
        // SAFETY: the descriptor is open; the program points to `length` instructions, which the kernel copies.
        let result = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn open(
        address: SocketAddr,
        buffer_bytes: usize,
        wait: Duration,
        shared: bool,
    ) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.ip() == IpAddr::from([0_u8; 16]) {
            socket.set_only_v6(false)?;
        }
        if shared {
            set_int(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        socket.bind(&address.into())?;
        socket.set_read_timeout(Some(wait))?;
        set_receive_buffer(&socket, buffer_bytes)?;
        // The kernel reports twice the requested size, for its bookkeeping (socket(7)).
        let buffer_bytes = socket.recv_buffer_size()? / 2;
        set_int(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
        set_int(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
        Ok(Self {
            socket: socket.into(),
            batch: ReceiveBatch::new(DATAGRAMS_PER_CALL_MAX, true),
            infos: Vec::with_capacity(DATAGRAMS_PER_CALL_MAX),
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
        self.receive_batch(true)
    }

    /// Receives the queued datagrams without blocking. Returns their count.
    ///
    /// # Errors
    /// The kernel's other errors.
    pub fn receive_queued(&mut self) -> io::Result<usize> {
        self.receive_batch(false)
    }

    fn receive_batch(&mut self, wait: bool) -> io::Result<usize> {
        let Self { socket, batch, infos, dropped_last, dropped, .. } = self;
        infos.clear();
        batch.receive(socket, wait, |messages| {
            // The kernel sends no counter before its first drop.
            let counter = messages.get(libc::SOL_SOCKET, libc::SO_RXQ_OVFL);
            let dropped_before = counter.unwrap_or(*dropped_last).wrapping_sub(*dropped_last);
            // A queued datagram has the counter of its arrival, which may be older than the last read one.
            let dropped_before = if dropped_before > u32::MAX / 2 { 0 } else { dropped_before };
            *dropped_last = dropped_last.wrapping_add(dropped_before);
            *dropped += u64::from(dropped_before);
            let time = messages.get(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
            infos.push(DatagramInfo { received_at: time.and_then(since_epoch), dropped_before });
        })
    }

    /// True if the last [`Self::receive`] emptied the queue.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.infos.len() < DATAGRAMS_PER_CALL_MAX
    }

    /// Datagrams of the last [`Self::receive`], in order of arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = ReceivedDatagram<'_>> {
        let datagrams = self.batch.datagrams().zip(&self.infos).enumerate();
        datagrams.filter_map(|(at, (bytes, info))| {
            let from = self.batch.sender(at)?;
            let DatagramInfo { received_at, dropped_before } = *info;
            Some(ReceivedDatagram { from, bytes, received_at, dropped_before })
        })
    }
}

impl AsFd for DatagramReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

fn since_epoch(time: libc::timespec) -> Option<Duration> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
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
        let (mut taken, mut reported, mut idle) = (0, 0, 0);
        // A signal ends one wait, too.
        while idle < 2 {
            let more = receiver.receive().unwrap();
            taken += more;
            reported += receiver.datagrams().map(|one| u64::from(one.dropped_before)).sum::<u64>();
            idle = if more == 0 { idle + 1 } else { 0 };
        }
        assert!(receiver.is_drained());
        // All queued datagrams came before the first drop and report none; getsockopt does.
        let since = u64::from(receiver.dropped_since().unwrap());
        assert!(since > 0 && receiver.dropped() == reported + since);
        assert_eq!(taken as u64 + receiver.dropped(), sent as u64);
        // The next one repeats the count.
        assert_eq!(sender.send(&many[..1]).unwrap(), 1);
        while receiver.receive().unwrap() == 0 {}
        assert_eq!(receiver.datagrams().next().unwrap().dropped_before, 0);
        assert_eq!(receiver.dropped_since().unwrap(), 0);
    }
}
