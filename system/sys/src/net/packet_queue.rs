//! NFQUEUE: packets that wait in the kernel for a verdict (nfnetlink_queue). The kernel sends their length and first bytes
//! and keeps the payload.
//!
//! Packets come in queue order with increasing ids; super-packets stay whole. A batch verdict applies to all packets up to
//! an id. Closing the queue drops packets without a verdict.
//!
//! The kernel timestamps packets on arrival, so that the delay of the receiving thread does not matter. It does so while
//! any socket of the machine requests timestamps; each queue holds one that does.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::{Duration, SystemTime};

use rustix::net::netlink::NETFILTER;

use super::netlink::{NLMSGHDR_BYTES, attributes, put, u16_at, u32_at};
use super::netlink_socket::NetlinkSocket;
use super::options::{set_int, set_receive_buffer};

// libc declares these as `c_int`; message types and attributes have 16 bits.
const NFNL_SUBSYS_QUEUE: u16 = libc::NFNL_SUBSYS_QUEUE as u16;
const NFQNL_MSG_PACKET: u16 = (NFNL_SUBSYS_QUEUE << 8) | libc::NFQNL_MSG_PACKET as u16;
const NFQNL_MSG_VERDICT: u16 = (NFNL_SUBSYS_QUEUE << 8) | libc::NFQNL_MSG_VERDICT as u16;
const NFQNL_MSG_CONFIG: u16 = (NFNL_SUBSYS_QUEUE << 8) | libc::NFQNL_MSG_CONFIG as u16;
const NFQNL_MSG_VERDICT_BATCH: u16 =
    (NFNL_SUBSYS_QUEUE << 8) | libc::NFQNL_MSG_VERDICT_BATCH as u16;
const NFQA_CFG_CMD: u16 = libc::NFQA_CFG_CMD as u16;
const NFQA_CFG_PARAMS: u16 = libc::NFQA_CFG_PARAMS as u16;
const NFQA_CFG_QUEUE_MAXLEN: u16 = libc::NFQA_CFG_QUEUE_MAXLEN as u16;
const NFQA_CFG_MASK: u16 = libc::NFQA_CFG_MASK as u16;
const NFQA_CFG_FLAGS: u16 = libc::NFQA_CFG_FLAGS as u16;
const NFQNL_CFG_CMD_BIND: u8 = libc::NFQNL_CFG_CMD_BIND as u8;
const NFQNL_COPY_PACKET: u8 = libc::NFQNL_COPY_PACKET as u8;
/// Delivers super-packets (GSO) unsegmented.
const NFQA_CFG_F_GSO: u32 = libc::NFQA_CFG_F_GSO as u32;
const NFQA_PACKET_HDR: u16 = libc::NFQA_PACKET_HDR as u16;
const NFQA_VERDICT_HDR: u16 = libc::NFQA_VERDICT_HDR as u16;
const NFQA_MARK: u16 = libc::NFQA_MARK as u16;
const NFQA_TIMESTAMP: u16 = libc::NFQA_TIMESTAMP as u16;
const NFQA_PAYLOAD: u16 = libc::NFQA_PAYLOAD as u16;
const NFQA_CAP_LEN: u16 = libc::NFQA_CAP_LEN as u16;
const NF_ACCEPT: u32 = libc::NF_ACCEPT as u32;
const NF_DROP: u32 = libc::NF_DROP as u32;

/// Size of `struct nlmsghdr` and `struct nfgenmsg`.
const HEADERS_BYTES: usize = NLMSGHDR_BYTES + 4;
const MESSAGE_BYTES: usize = 512;
const MESSAGES_PER_RECV_MAX: usize = 32;
const QUEUE_PACKETS_MAX: u32 = 1 << 20;
const SOCKET_BUFFER_BYTES: usize = 128 << 20;

/// A packet that waits for a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuedPacket<'a> {
    /// Increases with each packet of the queue and wraps.
    pub id: u32,
    /// Length in bytes with the IP header.
    pub bytes: u32,
    /// First bytes of the packet, from the IP header.
    pub head: &'a [u8],
    /// Arrival time by the wall clock; `None` without a timestamp.
    pub arrived: Option<SystemTime>,
}

/// An NFQUEUE of the network namespace in which it was opened.
pub struct PacketQueue {
    netlink: NetlinkSocket,
    // Requests timestamps (SO_TIMESTAMPNS).
    _timestamps: UdpSocket,
    number: u16,
    buffers: Box<[[u8; MESSAGE_BYTES]; MESSAGES_PER_RECV_MAX]>,
    lengths: [usize; MESSAGES_PER_RECV_MAX],
}

impl PacketQueue {
    /// Opens queue `number` of the calling thread's network namespace; the kernel copies `head_bytes` of each packet, at
    /// most 256.
    ///
    /// # Errors
    /// `ResourceBusy` where another program has the queue; `Unsupported` where the kernel has no NFQUEUE.
    pub fn open(number: u16, head_bytes: u32) -> io::Result<Self> {
        let netlink = NetlinkSocket::open(Some(NETFILTER))?;
        let queue = Self {
            netlink,
            _timestamps: timestamping_socket()?,
            number,
            buffers: Box::new([[0; MESSAGE_BYTES]; MESSAGES_PER_RECV_MAX]),
            lengths: [0; MESSAGES_PER_RECV_MAX],
        };
        queue.configure(|body| put(body, NFQA_CFG_CMD, &[NFQNL_CFG_CMD_BIND, 0, 0, 0]))?;
        queue.configure(|body| {
            let mut parameters = head_bytes.min(256).to_be_bytes().to_vec();
            parameters.push(NFQNL_COPY_PACKET);
            put(body, NFQA_CFG_PARAMS, &parameters);
            put(body, NFQA_CFG_QUEUE_MAXLEN, &QUEUE_PACKETS_MAX.to_be_bytes());
            put(body, NFQA_CFG_FLAGS, &NFQA_CFG_F_GSO.to_be_bytes());
            put(body, NFQA_CFG_MASK, &NFQA_CFG_F_GSO.to_be_bytes());
        })?;
        set_receive_buffer(&queue, SOCKET_BUFFER_BYTES)?;
        queue.netlink.set_option(libc::NETLINK_NO_ENOBUFS)?;
        Ok(queue)
    }

    fn configure(&self, fill: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut body = self.nfgenmsg();
        fill(&mut body);
        self.netlink.change(NFQNL_MSG_CONFIG, 0, &body)
    }

    /// Encodes `struct nfgenmsg`.
    fn nfgenmsg(&self) -> Vec<u8> {
        let mut body = vec![0, 0];
        body.extend(self.number.to_be_bytes());
        body
    }

    /// Passes up to [`MESSAGES_PER_RECV_MAX`] new packets to `each` and returns their count. Does not block.
    ///
    /// # Errors
    /// The socket's error; an empty queue is none.
    pub fn take(&mut self, mut each: impl FnMut(QueuedPacket<'_>)) -> io::Result<usize> {
        let count = self.receive()?;
        for (buffer, length) in self.buffers.iter().zip(self.lengths).take(count) {
            if let Some(packet) = parse(&buffer[..length.min(MESSAGE_BYTES)]) {
                each(packet);
            }
        }
        Ok(count)
    }

    fn receive(&mut self) -> io::Result<usize> {
        // SAFETY: all zeroes are a valid value of these C structures.
        let mut parts: [libc::iovec; MESSAGES_PER_RECV_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; MESSAGES_PER_RECV_MAX] = unsafe { std::mem::zeroed() };
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
                self.netlink.as_fd().as_raw_fd(),
                messages.as_mut_ptr(),
                MESSAGES_PER_RECV_MAX as libc::c_uint,
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

    /// Accepts all packets up to this id, with this mark.
    ///
    /// # Errors
    /// The socket's error.
    pub fn accept_up_to(&self, id: u32, mark: Option<u32>) -> io::Result<()> {
        self.send_verdict(NFQNL_MSG_VERDICT_BATCH, NF_ACCEPT, id, mark)
    }

    /// Drops all packets up to this id.
    ///
    /// # Errors
    /// The socket's error.
    pub fn drop_up_to(&self, id: u32) -> io::Result<()> {
        self.send_verdict(NFQNL_MSG_VERDICT_BATCH, NF_DROP, id, None)
    }

    /// Drops one packet. The kernel searches the queue from its head.
    ///
    /// # Errors
    /// The socket's error.
    pub fn drop_one(&self, id: u32) -> io::Result<()> {
        self.send_verdict(NFQNL_MSG_VERDICT, NF_DROP, id, None)
    }

    fn send_verdict(&self, kind: u16, verdict: u32, id: u32, mark: Option<u32>) -> io::Result<()> {
        let mut body = self.nfgenmsg();
        let decision = [verdict.to_be_bytes(), id.to_be_bytes()].concat();
        put(&mut body, NFQA_VERDICT_HDR, &decision);
        if let Some(mark) = mark {
            put(&mut body, NFQA_MARK, &mark.to_be_bytes());
        }
        self.netlink.send(kind, &body)
    }
}

impl AsFd for PacketQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.netlink.as_fd()
    }
}

impl std::fmt::Debug for PacketQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketQueue").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Opens a socket that makes the kernel timestamp packets.
fn timestamping_socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    set_int(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    Ok(socket)
}

/// Decodes `struct nfqnl_msg_packet_timestamp`: seconds and microseconds.
fn time(value: &[u8]) -> Option<SystemTime> {
    let word = |at: usize| Some(u64::from_be_bytes(value.get(at..at + 8)?.try_into().ok()?));
    let (seconds, micros) =
        (Duration::from_secs(word(0)?), Duration::from_micros(word(8)?.min(1_000_000)));
    SystemTime::UNIX_EPOCH.checked_add(seconds)?.checked_add(micros)
}

fn parse(message: &[u8]) -> Option<QueuedPacket<'_>> {
    if u16_at(message, 4)? != NFQNL_MSG_PACKET {
        return None;
    }
    let mut packet = QueuedPacket { id: 0, bytes: 0, head: &[], arrived: None };
    let mut known = false;
    for (kind, value) in attributes(message.get(HEADERS_BYTES..)?) {
        match kind {
            NFQA_PACKET_HDR => {
                packet.id = u32_at(value, 0)?.to_be();
                known = true;
            }
            NFQA_PAYLOAD => {
                packet.head = value;
                packet.bytes = packet.bytes.max(u32::try_from(value.len()).unwrap_or(0));
            }
            NFQA_TIMESTAMP => packet.arrived = time(value),
            NFQA_CAP_LEN => packet.bytes = u32_at(value, 0)?.to_be(),
            _ => {}
        }
    }
    known.then_some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NetworkNamespace;
    use crate::net::{CE_MARK, Configurator, Diversion, divert};
    use penstock_testkit::raw::uninterrupted;
    use std::net::UdpSocket;
    use std::time::Duration;

    #[test]
    fn packets_wait_for_their_verdict() {
        let Ok(namespace) = NetworkNamespace::new() else {
            penstock_testkit::skip(penstock_testkit::Requirement::Root, "needs root");
            return;
        };
        namespace
            .inside(|| {
                let lo = Configurator::open().unwrap();
                let device = lo.index_of("lo").unwrap();
                lo.set_up(device).unwrap();
                let mut queue = PacketQueue::open(3, 64).unwrap();
                assert!(PacketQueue::open(3, 64).is_err());
                let method = divert(&[Diversion { device, to: None, queue: 3 }]).unwrap();
                println!("by {method:?}");
                for address in ["127.0.0.1:0", "[::1]:0"] {
                    let there = UdpSocket::bind(address).unwrap();
                    there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                    let here = UdpSocket::bind(address).unwrap();
                    for text in ["one", "two", "three"] {
                        here.send_to(text.as_bytes(), there.local_addr().unwrap()).unwrap();
                    }
                    let mut seen = Vec::new();
                    while seen.len() < 3 {
                        queue.take(|packet| seen.push((packet.id, packet.bytes))).unwrap();
                    }
                    let header = if address.starts_with('[') { 48 } else { 28 };
                    let lengths: Vec<_> = seen.iter().map(|(_, bytes)| bytes - header).collect();
                    assert_eq!(lengths, [3, 3, 5]);
                    queue.accept_up_to(seen[0].0, None).unwrap();
                    queue.drop_up_to(seen[1].0).unwrap();
                    queue.accept_up_to(seen[2].0, Some(CE_MARK)).unwrap();
                    let mut text = [0; 9];
                    for expected in ["one", "three"] {
                        let length = uninterrupted(|| there.recv(&mut text)).unwrap();
                        assert_eq!(&text[..length], expected.as_bytes());
                    }
                }
                // Without diversions packets pass.
                divert(&[]).unwrap();
                let there = UdpSocket::bind("127.0.0.1:0").unwrap();
                there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                there.send_to(b"four", there.local_addr().unwrap()).unwrap();
                assert_eq!(uninterrupted(|| there.recv(&mut [0; 9])).unwrap(), 4);
            })
            .unwrap();
    }

    #[test]
    fn malformed_messages_do_not_panic() {
        for length in 0..80 {
            for byte in [0, 1, 3, 4, 10, 255] {
                let _ = parse(&vec![byte; length]);
            }
        }
    }
}
