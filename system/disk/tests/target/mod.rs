//! NVMe/TCP target in this process, over loopback, with faults on demand. The kernel's own target is what
//! `cargo xtask kernels --room nvmeof` tests against.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use aws_lc_rs::hmac;

const BLOCK_BYTES: usize = 512;
const AUTHENTICATION_REQUIRED: u64 = 1 << 17;

/// Fault of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TargetFault {
    #[default]
    None,
    /// Answers no ICReq.
    NoInitialization,
    /// Sends its ICResp byte by byte.
    SlowInitialization,
    /// Speaks HTTP.
    OtherProtocol,
    /// Refuses the host.
    HostNotAllowed,
    /// Does not know the disk.
    UnknownDisk,
    /// Fails the read of this number.
    FailedRead(usize),
    /// Closes the connection within the data of this read.
    TruncatedData(usize),
    /// Closes the connection at this read.
    Closed(usize),
    /// Exchanges the halves of the data of this read.
    SwappedData(usize),
    /// Reports success without the second half of the data of this read.
    ShortData(usize),
    /// Asks for data of this read.
    ReadyToTransfer(usize),
    /// Answers nothing from this read on.
    Silent(usize),
}

/// Behaviour of a target.
#[derive(Debug, Clone, Default)]
pub(crate) struct TargetBehaviour {
    pub(crate) fault: TargetFault,
    /// Answers waiting reads in reverse, with alternating data PDUs.
    pub(crate) is_reversed: bool,
    /// Sends a response after the data instead of the flag.
    pub(crate) sends_responses: bool,
    /// Key of the host, which must then authenticate.
    pub(crate) key: Option<[u8; 32]>,
    /// Closes the connection at a wrong response, before its answer.
    pub(crate) closes_at_response: bool,
    /// Demands this DH group.
    pub(crate) dh_group: u8,
}

/// Running target.
#[derive(Debug)]
pub(crate) struct TestTarget {
    pub(crate) address: SocketAddr,
}

struct TargetDisk {
    data: Vec<u8>,
    behaviour: TargetBehaviour,
    reads: AtomicUsize,
}

impl TestTarget {
    pub(crate) fn start(address: &str, data: Vec<u8>, behaviour: TargetBehaviour) -> Option<Self> {
        let listener = TcpListener::bind(address).ok()?;
        let address = listener.local_addr().ok()?;
        let disk = Arc::new(TargetDisk { data, behaviour, reads: AtomicUsize::new(0) });
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let disk = Arc::clone(&disk);
                std::thread::spawn(move || TargetQueue::new(socket, &disk).serve());
            }
        });
        Some(Self { address })
    }

    pub(crate) fn location(&self) -> String {
        format!("{}/test", self.address)
    }
}

struct TargetQueue<'a> {
    socket: TcpStream,
    disk: &'a TargetDisk,
    waiting: Vec<(u16, usize, usize)>,
    challenge_transaction: u16,
    is_proven: bool,
}

struct Capsule {
    entry: [u8; 64],
    data: Vec<u8>,
}

impl Capsule {
    fn id(&self) -> u16 {
        u16::from_le_bytes([self.entry[2], self.entry[3]])
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.entry[at..at + 4].try_into().unwrap())
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.entry[at..at + 8].try_into().unwrap())
    }
}

impl<'a> TargetQueue<'a> {
    fn new(socket: TcpStream, disk: &'a TargetDisk) -> Self {
        Self { socket, disk, waiting: Vec::new(), challenge_transaction: 0, is_proven: false }
    }

    fn serve(mut self) -> io::Result<()> {
        let fault = self.disk.behaviour.fault;
        let mut request = [0; 128];
        self.socket.read_exact(&mut request)?;
        match fault {
            TargetFault::NoInitialization => loop {
                self.socket.read_exact(&mut request)?;
            },
            TargetFault::OtherProtocol => {
                let page = [b"HTTP/1.1 400 Bad Request\r\n".as_slice(), &[b' '; 128]].concat();
                return self.socket.write_all(&page);
            }
            _ => {}
        }
        request[0] = 1;
        if fault == TargetFault::SlowInitialization {
            for byte in request {
                self.socket.write_all(&[byte])?;
                std::thread::sleep(Duration::from_millis(20));
            }
        } else {
            self.socket.write_all(&request)?;
        }
        loop {
            let capsule = self.capsule()?;
            match (capsule.entry[0], capsule.entry[4]) {
                (0x7F, 0x01) => self.connect(&capsule)?,
                (0x7F, 0x05) => {
                    self.authentication(&capsule)?;
                    self.respond(capsule.id(), 0, 0)?;
                }
                (0x7F, 0x06) => self.authentication_reply(&capsule)?,
                (0x7F, 0x04) => {
                    // CAP: 64 entries; CSTS: ready.
                    let value = if capsule.entry[40] == 1 { 1 << 24 | 63 } else { 1 };
                    self.respond(capsule.id(), value, 0)?;
                }
                (0x06, _) => self.identify(&capsule)?,
                (0x09, _) => self.respond(capsule.id(), 3 | 3 << 16, 0)?,
                (0x02, _)
                    if capsule.entry[40] == 0x70
                        && capsule.entry[1] == 0x40
                        && capsule.u32_at(4) == 0 =>
                {
                    let bytes = capsule.u32_at(32) as usize;
                    self.data(capsule.id(), 0, &vec![0; bytes], 0b1100)?;
                }
                (0x02, _) => self.read(&capsule)?,
                _ => self.respond(capsule.id(), 0, 0)?,
            }
        }
    }

    fn capsule(&mut self) -> io::Result<Capsule> {
        let mut header = [0; 8];
        self.socket.read_exact(&mut header)?;
        let total = u32::from_le_bytes(header[4..].try_into().unwrap()) as usize;
        assert!(header[0] == 4 && (72..9000).contains(&total), "{header:?}");
        let mut rest = vec![0; total - 8];
        self.socket.read_exact(&mut rest)?;
        let data =
            if header[3] == 0 { Vec::new() } else { rest[usize::from(header[3]) - 8..].to_vec() };
        Ok(Capsule { entry: rest[..64].try_into().unwrap(), data })
    }

    fn respond(&mut self, id: u16, result: u64, status: u16) -> io::Result<()> {
        let mut pdu = [0; 24];
        pdu[..8].copy_from_slice(&[5, 0, 24, 0, 24, 0, 0, 0]);
        pdu[8..16].copy_from_slice(&result.to_le_bytes());
        pdu[20..22].copy_from_slice(&id.to_le_bytes());
        pdu[22..].copy_from_slice(&(status << 1).to_le_bytes());
        self.socket.write_all(&pdu)
    }

    fn data(&mut self, id: u16, offset: usize, data: &[u8], flags: u8) -> io::Result<()> {
        let mut pdu = vec![7, flags, 24, 24];
        pdu.extend(((data.len() + 24) as u32).to_le_bytes());
        pdu.extend(id.to_le_bytes());
        pdu.extend([0; 2]);
        pdu.extend((offset as u32).to_le_bytes());
        pdu.extend((data.len() as u32).to_le_bytes());
        pdu.extend([0; 4]);
        pdu.extend(data);
        self.socket.write_all(&pdu)
    }

    fn connect(&mut self, capsule: &Capsule) -> io::Result<()> {
        assert_eq!(capsule.data.len(), 1024);
        let is_discovery = capsule.data[256..].starts_with(b"nqn.2014-08.org.nvmexpress.discovery");
        match self.disk.behaviour.fault {
            TargetFault::HostNotAllowed if !is_discovery => {
                self.respond(capsule.id(), 1 << 16 | 512, 0x4184)
            }
            TargetFault::UnknownDisk if !is_discovery => {
                self.respond(capsule.id(), 1 << 16 | 256, 0x4182)
            }
            _ => {
                let authentication = self.disk.behaviour.key.map_or(0, |_| AUTHENTICATION_REQUIRED);
                self.respond(capsule.id(), 1 | authentication, 0)
            }
        }
    }

    fn authentication(&mut self, capsule: &Capsule) -> io::Result<()> {
        let message = &capsule.data;
        self.challenge_transaction = u16::from_le_bytes([message[4], message[5]]);
        if message[..2] == [1, 2] {
            let key = hmac::Key::new(hmac::HMAC_SHA256, &self.disk.behaviour.key.unwrap());
            let mut fields = vec![0xC5; 32];
            fields.extend(9_u32.to_le_bytes());
            fields.extend(self.challenge_transaction.to_le_bytes());
            fields.extend(
                b"\0HostHostnqn.2020-01.org.example:h\0nqn.2014-08.org.nvmexpress:penstock:test",
            );
            self.is_proven = hmac::verify(&key, &fields, &message[16..48]).is_ok();
            if !self.is_proven && self.disk.behaviour.closes_at_response {
                return Err(io::ErrorKind::Other.into());
            }
            self.waiting.push((0, 0, 0));
        }
        Ok(())
    }

    fn authentication_reply(&mut self, capsule: &Capsule) -> io::Result<()> {
        let mut message = vec![0; 4096];
        message[4..6].copy_from_slice(&self.challenge_transaction.to_le_bytes());
        match (self.waiting.pop().is_some(), self.is_proven) {
            (false, _) => {
                message[..2].copy_from_slice(&[1, 1]);
                message[6..10].copy_from_slice(&[32, 0, 1, self.disk.behaviour.dh_group]);
                message[12] = 9;
                message[16..48].fill(0xC5);
            }
            (true, true) => message[..2].copy_from_slice(&[1, 3]),
            (true, false) => {
                message[..2].copy_from_slice(&[0, 0xF1]);
                message[6..8].copy_from_slice(&[1, 1]);
            }
        }
        self.data(capsule.id(), 0, &message, 0b0100)?;
        self.respond(capsule.id(), 0, 0)
    }

    fn identify(&mut self, capsule: &Capsule) -> io::Result<()> {
        let mut page = vec![0; 4096];
        match capsule.entry[40] {
            0 => {
                let blocks = (self.disk.data.len() / BLOCK_BYTES) as u64;
                page[..8].copy_from_slice(&blocks.to_le_bytes());
                page[128 + 2] = 9;
            }
            // MDTS: 2^8 pages of 4 KiB.
            1 => page[77] = 8,
            _ => page[0] = 1,
        }
        self.data(capsule.id(), 0, &page, 0b1100)
    }

    fn read(&mut self, capsule: &Capsule) -> io::Result<()> {
        let first = capsule.u64_at(40) as usize * BLOCK_BYTES;
        let bytes = (capsule.u32_at(48) as usize + 1) * BLOCK_BYTES;
        self.waiting.push((capsule.id(), first, bytes));
        if self.disk.behaviour.is_reversed && self.has_input()? {
            return Ok(());
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.reverse();
        for pair in waiting.chunks(2) {
            if let [(a, a_first, bytes), (b, b_first, b_bytes)] = *pair
                && bytes == b_bytes
            {
                let disk = self.disk;
                let half = bytes / 2;
                for (id, first) in [(a, a_first), (b, b_first)] {
                    self.data(id, 0, &disk.data[first..first + half], 0)?;
                }
                for (id, first) in [(a, a_first), (b, b_first)] {
                    self.data(id, half, &disk.data[first + half..first + bytes], 0b1100)?;
                }
                continue;
            }
            for (id, first, bytes) in pair {
                self.answer(*id, *first, *bytes)?;
            }
        }
        Ok(())
    }

    /// True where a further capsule waits.
    fn has_input(&self) -> io::Result<bool> {
        self.socket.set_nonblocking(true)?;
        let waits = matches!(self.socket.peek(&mut [0]), Ok(1));
        self.socket.set_nonblocking(false)?;
        Ok(waits)
    }

    fn answer(&mut self, id: u16, first: usize, bytes: usize) -> io::Result<()> {
        let number = self.disk.reads.fetch_add(1, Relaxed);
        let disk = self.disk;
        let data = &disk.data[first..first + bytes];
        let half = bytes / 2;
        match disk.behaviour.fault {
            TargetFault::FailedRead(at) if at == number => return self.respond(id, 0, 0x4281),
            TargetFault::Closed(at) if at == number => return Err(io::ErrorKind::Other.into()),
            TargetFault::Silent(at) if at <= number => return Ok(()),
            TargetFault::TruncatedData(at) if at == number => {
                let mut pdu = vec![7, 0b1100, 24, 24];
                pdu.extend(((bytes + 24) as u32).to_le_bytes());
                pdu.extend(id.to_le_bytes());
                pdu.extend([0; 6]);
                pdu.extend((bytes as u32).to_le_bytes());
                pdu.extend([0; 4]);
                pdu.extend(&data[..half]);
                self.socket.write_all(&pdu)?;
                return Err(io::ErrorKind::Other.into());
            }
            TargetFault::SwappedData(at) if at == number => {
                self.data(id, half, &data[half..], 0)?;
                return self.data(id, 0, &data[..half], 0b1100);
            }
            TargetFault::ShortData(at) if at == number => {
                return self.data(id, 0, &data[..half], 0b1100);
            }
            TargetFault::ReadyToTransfer(at) if at == number => {
                let mut pdu = [0; 24];
                pdu[..8].copy_from_slice(&[9, 0, 24, 0, 24, 0, 0, 0]);
                pdu[8..10].copy_from_slice(&id.to_le_bytes());
                return self.socket.write_all(&pdu);
            }
            _ => {}
        }
        if disk.behaviour.sends_responses {
            self.data(id, 0, data, 0b0100)?;
            return self.respond(id, 0, 0);
        }
        self.data(id, 0, data, 0b1100)
    }
}

/// Bytes that differ at each place.
pub(crate) fn pattern(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut data = Vec::with_capacity(bytes + 8);
    while data.len() < bytes {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(bytes);
    data
}
