//! Packets that tcpdump captures while something runs.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};

/// Bytes of the header of a capture file, and of each packet in it (pcap-savefile(5)).
const FILE_HEADER_BYTES: usize = 24;
const PACKET_HEADER_BYTES: usize = 16;
const ETHERNET_HEADER_BYTES: usize = 14;
const TCP_PROTOCOL: u8 = 6;
const UDP_PROTOCOL: u8 = 17;
/// Flags of TCP that end a connection: FIN and RST.
const TCP_END_FLAGS: u8 = 0x05;

/// Command that captures the packets of `device` that match `filter`.
pub fn tcpdump(device: &str, filter: &str) -> Command {
    let mut command = Command::new("tcpdump");
    command.args(["-i", device, "-n", "-s", "128", "-B", "65536", "--immediate-mode", "-U"]);
    command.args(filter.split_whitespace());
    command
}

/// Runs `tcpdump` into `file` while `work` runs.
pub fn capture<T>(mut tcpdump: Command, file: &Path, work: impl FnOnce() -> T) -> T {
    tcpdump.arg("-w").arg(file).stderr(Stdio::piped());
    let mut child = tcpdump.spawn().expect("tcpdump starts");
    // tcpdump prints a line when it captures.
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    stderr.read_line(&mut line).expect("a line");
    let rest = std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    let done = work();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill").success());
    child.wait().expect("it ends");
    rest.join().expect("no panic").expect("it reads");
    done
}

/// A packet of TCP or UDP.
#[derive(Debug, Clone, Copy)]
pub struct CapturedPacket {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub dscp: u8,
    pub ecn: u8,
    pub data_bytes: usize,
    /// True for one with FIN or RST.
    pub is_end: bool,
}

/// Packets of TCP and UDP in a file of tcpdump, in order.
pub fn read(file: &Path) -> Vec<CapturedPacket> {
    let bytes = std::fs::read(file).expect("the capture");
    let mut rest = bytes.get(FILE_HEADER_BYTES..).expect("a header");
    let mut packets = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(PACKET_HEADER_BYTES) {
        let length = u32::from_ne_bytes(header[8..12].try_into().expect("four bytes")) as usize;
        let Some((frame, after)) = after.split_at_checked(length) else { break };
        packets.extend(decode(&frame[ETHERNET_HEADER_BYTES..]));
        rest = after;
    }
    packets
}

fn decode(packet: &[u8]) -> Option<CapturedPacket> {
    let number = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    let (class, protocol, header, total, source, destination): (_, _, _, _, IpAddr, IpAddr) =
        match packet[0] >> 4 {
            4 => {
                let address = |at: usize| {
                    Ipv4Addr::from_bits(u32::from_be_bytes(
                        packet[at..at + 4].try_into().expect("four bytes"),
                    ))
                };
                let header = usize::from(packet[0] & 15) * 4;
                let (from, to) = (address(12).into(), address(16).into());
                (packet[1], packet[9], header, usize::from(number(2)), from, to)
            }
            6 => {
                let address = |at: usize| {
                    Ipv6Addr::from_bits(u128::from_be_bytes(
                        packet[at..at + 16].try_into().expect("16 bytes"),
                    ))
                };
                let class = packet[0] << 4 | packet[1] >> 4;
                let (from, to) = (address(8).into(), address(24).into());
                (class, packet[6], 40, 40 + usize::from(number(4)), from, to)
            }
            _ => return None,
        };
    let (headers, is_end) = match protocol {
        TCP_PROTOCOL => {
            let tcp = usize::from(packet[header + 12] >> 4) * 4;
            (header + tcp, packet[header + 13] & TCP_END_FLAGS != 0)
        }
        UDP_PROTOCOL => (header + 8, false),
        _ => return None,
    };
    Some(CapturedPacket {
        source: SocketAddr::new(source, number(header)),
        destination: SocketAddr::new(destination, number(header + 2)),
        dscp: class >> 2,
        ecn: class & 3,
        data_bytes: total - headers,
        is_end,
    })
}
