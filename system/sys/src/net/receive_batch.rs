//! Buffers of `recvmmsg`, which the receivers of this folder share.

use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

/// Above the longest UDP datagram.
const BUFFER_BYTES: usize = 65_536;

/// Buffer for the control messages of a datagram, at most SO_RXQ_OVFL (24 bytes) and SCM_TIMESTAMPNS (32 bytes), with the
/// alignment of `cmsghdr`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// Buffers for a batch of datagrams, with the addresses of their senders if asked for.
pub(super) struct ReceiveBatch {
    buffers: Vec<u8>,
    controls: Vec<ControlBuffer>,
    /// Addresses of the senders; empty where they are not needed.
    names: Vec<libc::sockaddr_storage>,
    /// Lengths of the datagrams of the last batch.
    lengths: Vec<usize>,
}

impl ReceiveBatch {
    /// Makes buffers for `count` datagrams.
    pub(super) fn new(count: usize, with_senders: bool) -> Self {
        // SAFETY: all zeros is a valid sockaddr_storage, which is plain data.
        let name: libc::sockaddr_storage = unsafe { zeroed() };
        Self {
            buffers: vec![0; count * BUFFER_BYTES],
            controls: vec![ControlBuffer([0; 64]); count],
            names: vec![name; if with_senders { count } else { 0 }],
            lengths: Vec::with_capacity(count),
        }
    }

    /// Receives what is queued, or blocks for the next datagram if `wait` is true. Returns the count; 0 after a time-out
    /// or signal. `each` gets the control messages of every datagram, in order.
    pub(super) fn receive(
        &mut self,
        socket: &UdpSocket,
        wait: bool,
        mut each: impl FnMut(ControlMessages<'_>),
    ) -> io::Result<usize> {
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
                message.msg_hdr.msg_controllen = size_of::<ControlBuffer>() as _;
                message
            })
            .collect();
        for (message, name) in messages.iter_mut().zip(&mut self.names) {
            message.msg_hdr.msg_name = std::ptr::from_mut(name).cast();
            message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        }
        // SAFETY: each message points to its own vector, buffer, control room and, if any, name with their true lengths,
        // and all of them outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                messages.len() as libc::c_uint,
                if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT } as _,
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
        for message in messages.iter().take(count as usize) {
            self.lengths.push((message.msg_len as usize).min(BUFFER_BYTES));
            each(ControlMessages { header: &message.msg_hdr });
        }
        Ok(count as usize)
    }

    /// Datagrams of the last batch, in order of arrival.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let buffers = self.buffers.chunks_exact(BUFFER_BYTES);
        buffers.zip(&self.lengths).map(|(buffer, length)| &buffer[..*length])
    }

    /// Sender of a datagram of the last batch; IPv4-mapped addresses as IPv4.
    pub(super) fn sender(&self, at: usize) -> Option<SocketAddr> {
        self.names.get(at).and_then(address)
    }
}

/// Control messages of a datagram that `recvmmsg` has filled.
pub(super) struct ControlMessages<'a> {
    header: &'a libc::msghdr,
}

impl ControlMessages<'_> {
    /// Reads the content of the message with this level and type as a `T`, which is plain data.
    pub(super) fn get<T: Copy>(&self, level: libc::c_int, kind: libc::c_int) -> Option<T> {
        // SAFETY: the header is as recvmmsg filled it, with its control room still alive; the CMSG macros stay within
        // msg_controllen, and the content is read only where the message has room for it.
        unsafe {
            let mut control = libc::CMSG_FIRSTHDR(self.header);
            while !control.is_null() {
                let fits = (*control).cmsg_len as usize
                    >= libc::CMSG_LEN(size_of::<T>() as libc::c_uint) as usize;
                if ((*control).cmsg_level, (*control).cmsg_type) == (level, kind) && fits {
                    return Some(libc::CMSG_DATA(control).cast::<T>().read_unaligned());
                }
                control = libc::CMSG_NXTHDR(self.header, control);
            }
        }
        None
    }
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
