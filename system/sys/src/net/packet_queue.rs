//! Packets that wait in the kernel for a verdict (nfnetlink_queue): their length and first bytes come here, their
//! payload stays where it is.
//!
//! Packets come in the order in which they wait and are numbered so; super-packets stay whole. One verdict can let
//! everything up to a number go. What has no verdict when the queue is closed is dropped.
//!
//! The kernel says when a packet arrived, so that it does not matter how long a thread takes to hear of it. It notes
//! that time while any socket of the machine asks for it; each queue has one that does.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::{Duration, SystemTime};

use super::divert::protocol;
use super::netlink::{Netlink, attributes, put, set_option, u16_at, u32_at};
use super::options::{set_int, set_receive_room};

/// include/uapi/linux/netfilter/nfnetlink_queue.h.
const PACKET: u16 = 3 << 8;
const CONFIGURE: u16 = (3 << 8) | 2;
const VERDICT: u16 = (3 << 8) | 1;
const VERDICT_BATCH: u16 = (3 << 8) | 3;
const CONFIG_COMMAND: u16 = 1;
const CONFIG_PARAMETERS: u16 = 2;
const CONFIG_LENGTH_MAX: u16 = 3;
const CONFIG_MASK: u16 = 4;
const CONFIG_FLAGS: u16 = 5;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Super-packets come whole.
const FLAG_GSO: u32 = 4;
const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
const MARK: u16 = 3;
const TIMESTAMP: u16 = 4;
const PAYLOAD: u16 = 10;
const LENGTH: u16 = 13;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
/// netlink.h: more than fits is dropped without an error.
const OPTION_NO_ENOBUFS: i32 = 5;

const MESSAGE_BYTES: usize = 512;
const BATCH: usize = 32;
const WAITING_MAX: u32 = 1 << 20;
const BUFFER_BYTES: usize = 128 << 20;

/// A packet that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting<'a> {
    /// Its number; those that came later have higher ones, until it wraps.
    pub id: u32,
    /// Its bytes, IP header included.
    pub bytes: u32,
    /// The first of them.
    pub head: &'a [u8],
    /// When it arrived.
    pub arrived: Option<SystemTime>,
}

/// A queue of the namespace in which it was opened.
pub struct PacketQueue {
    netlink: Netlink,
    // Has the kernel note when packets arrive.
    _clock: UdpSocket,
    number: u16,
    buffers: Box<[[u8; MESSAGE_BYTES]; BATCH]>,
    lengths: [usize; BATCH],
}

impl PacketQueue {
    /// Opens queue `number` of the namespace in which the calling thread is; `head_bytes` of each packet come here,
    /// at most 256.
    ///
    /// # Errors
    /// `ResourceBusy` where another program has it; `Unsupported` where the kernel has no such queues.
    pub fn open(number: u16, head_bytes: u32) -> io::Result<Self> {
        let netlink = Netlink::open(Some(protocol()))?;
        let queue = Self {
            netlink,
            _clock: clock()?,
            number,
            buffers: Box::new([[0; MESSAGE_BYTES]; BATCH]),
            lengths: [0; BATCH],
        };
        queue.configure(|body| put(body, CONFIG_COMMAND, &[BIND, 0, 0, 0]))?;
        queue.configure(|body| {
            let mut parameters = head_bytes.min(256).to_be_bytes().to_vec();
            parameters.push(COPY_PACKET);
            put(body, CONFIG_PARAMETERS, &parameters);
            put(body, CONFIG_LENGTH_MAX, &WAITING_MAX.to_be_bytes());
            put(body, CONFIG_FLAGS, &FLAG_GSO.to_be_bytes());
            put(body, CONFIG_MASK, &FLAG_GSO.to_be_bytes());
        })?;
        set_receive_room(&queue, BUFFER_BYTES)?;
        set_option(queue.netlink.fd(), OPTION_NO_ENOBUFS)?;
        Ok(queue)
    }

    fn configure(&self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut body = self.head();
        fill(&mut body);
        self.netlink.change(CONFIGURE, 0, &body)
    }

    /// struct nfgenmsg.
    fn head(&self) -> Vec<u8> {
        let mut body = vec![0, 0];
        body.extend(self.number.to_be_bytes());
        body
    }

    /// Takes up to [`BATCH`] packets that began to wait, without waiting for them itself; gives how many there were.
    ///
    /// # Errors
    /// Whatever the socket says; nothing there is none.
    pub fn take(&mut self, mut each: impl FnMut(Waiting<'_>)) -> io::Result<usize> {
        let count = self.receive()?;
        for (buffer, length) in self.buffers.iter().zip(self.lengths).take(count) {
            if let Some(waiting) = read(&buffer[..length.min(MESSAGE_BYTES)]) {
                each(waiting);
            }
        }
        Ok(count)
    }

    fn receive(&mut self) -> io::Result<usize> {
        // SAFETY: all zeroes are a valid value of these C structures.
        let mut parts: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        for ((part, message), buffer) in
            parts.iter_mut().zip(&mut messages).zip(self.buffers.iter_mut())
        {
            part.iov_base = buffer.as_mut_ptr().cast();
            part.iov_len = MESSAGE_BYTES;
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each message points at one part, each part at a buffer of its length; all outlive the call.
        let count = unsafe {
            libc::recvmmsg(
                self.netlink.fd().as_raw_fd(),
                messages.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        if count < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(0) } else { Err(error) };
        }
        let count = usize::try_from(count).unwrap_or(0);
        for (length, message) in self.lengths.iter_mut().zip(&messages).take(count) {
            *length = message.msg_len as usize;
        }
        Ok(count)
    }

    /// Lets every packet that waits with a number up to this one go, with this mark.
    ///
    /// # Errors
    /// Whatever the socket says.
    pub fn accept_up_to(&self, id: u32, mark: Option<u32>) -> io::Result<()> {
        self.decide(VERDICT_BATCH, ACCEPT, id, mark)
    }

    /// Drops every packet that waits with a number up to this one.
    ///
    /// # Errors
    /// Whatever the socket says.
    pub fn drop_up_to(&self, id: u32) -> io::Result<()> {
        self.decide(VERDICT_BATCH, DROP, id, None)
    }

    /// Drops one packet. The kernel finds it by a walk past all that wait before it.
    ///
    /// # Errors
    /// Whatever the socket says.
    pub fn drop_one(&self, id: u32) -> io::Result<()> {
        self.decide(VERDICT, DROP, id, None)
    }

    fn decide(&self, kind: u16, verdict: u32, id: u32, mark: Option<u32>) -> io::Result<()> {
        let mut body = self.head();
        let decision = [verdict.to_be_bytes(), id.to_be_bytes()].concat();
        put(&mut body, VERDICT_HEADER, &decision);
        if let Some(mark) = mark {
            put(&mut body, MARK, &mark.to_be_bytes());
        }
        self.netlink.tell(kind, &body)
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.fd()
    }
}

impl std::fmt::Debug for PacketQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketQueue").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A socket for which the kernel notes when packets arrive.
fn clock() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    set_int(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    Ok(socket)
}

/// struct nfqnl_msg_packet_timestamp: seconds and microseconds.
fn time(value: &[u8]) -> Option<SystemTime> {
    let word = |at: usize| Some(u64::from_be_bytes(value.get(at..at + 8)?.try_into().ok()?));
    let (seconds, micros) =
        (Duration::from_secs(word(0)?), Duration::from_micros(word(8)?.min(1_000_000)));
    SystemTime::UNIX_EPOCH.checked_add(seconds)?.checked_add(micros)
}

fn read(message: &[u8]) -> Option<Waiting<'_>> {
    if u16_at(message, 4)? != PACKET {
        return None;
    }
    let mut waiting = Waiting { id: 0, bytes: 0, head: &[], arrived: None };
    let mut known = false;
    for (kind, value) in attributes(message.get(20..)?) {
        match kind {
            PACKET_HEADER => {
                waiting.id = u32_at(value, 0)?.to_be();
                known = true;
            }
            PAYLOAD => {
                waiting.head = value;
                waiting.bytes = waiting.bytes.max(u32::try_from(value.len()).unwrap_or(0));
            }
            TIMESTAMP => waiting.arrived = time(value),
            LENGTH => waiting.bytes = u32_at(value, 0)?.to_be(),
            _ => {}
        }
    }
    known.then_some(waiting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NetworkNamespace;
    use crate::net::{CONGESTED, Configurator, Diversion, divert};
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn packets_wait_for_their_verdict() {
        let Ok(namespace) = NetworkNamespace::new() else {
            println!("skipped: needs root");
            return;
        };
        namespace
            .inside(|| {
                let lo = Configurator::here().unwrap();
                let device = lo.index_of("lo").unwrap();
                lo.set_up(device).unwrap();
                let mut queue = PacketQueue::open(3, 64).unwrap();
                assert!(PacketQueue::open(3, 64).is_err());
                let means = divert(&[Diversion { device, to: None, queue: 3 }]).unwrap();
                println!("by {means:?}");
                for address in ["127.0.0.1:0", "[::1]:0"] {
                    let there = UdpSocket::bind(address).unwrap();
                    there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    let here = UdpSocket::bind(address).unwrap();
                    for text in ["one", "two", "three"] {
                        here.send_to(text.as_bytes(), there.local_addr().unwrap()).unwrap();
                    }
                    let mut seen = Vec::new();
                    while seen.len() < 3 {
                        queue.take(|waiting| seen.push((waiting.id, waiting.bytes))).unwrap();
                    }
                    let header = if address.starts_with('[') { 48 } else { 28 };
                    let lengths: Vec<_> = seen.iter().map(|(_, bytes)| bytes - header).collect();
                    assert_eq!(lengths, [3, 3, 5]);
                    queue.accept_up_to(seen[0].0, None).unwrap();
                    queue.drop_up_to(seen[1].0).unwrap();
                    queue.accept_up_to(seen[2].0, Some(CONGESTED)).unwrap();
                    let mut text = [0; 9];
                    for expected in ["one", "three"] {
                        let length = there.recv(&mut text).unwrap();
                        assert_eq!(&text[..length], expected.as_bytes());
                    }
                }
                // Nothing is diverted any more.
                divert(&[]).unwrap();
                let there = UdpSocket::bind("127.0.0.1:0").unwrap();
                there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                there.send_to(b"four", there.local_addr().unwrap()).unwrap();
                assert_eq!(there.recv(&mut [0; 9]).unwrap(), 4);
            })
            .unwrap();
    }

    #[test]
    fn whatever_arrives_is_no_panic() {
        for length in 0..80 {
            for byte in [0, 1, 3, 4, 10, 255] {
                let _ = read(&vec![byte; length]);
            }
        }
    }
}
