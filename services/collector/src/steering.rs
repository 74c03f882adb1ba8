//! Filter program by which the kernel gives each datagram to the thread of its exporter.
//!
//! Classic BPF, which needs no privilege: it reads the exporter's address from the datagram and
//! computes [`shard_of`](penstock_flows::shard::shard_of). Loads begin at the payload of UDP; those
//! of the IP header are relative to `SKF_NET_OFF` (include/uapi/linux/filter.h). A load beyond the
//! datagram ends the program with 0: the first thread refuses what is too short.

use penstock_flows::shard::{AGENT_TYPE_AT, HASH_LOW_BITS, HASH_MULTIPLIER, SteeringKind};
use penstock_sys::net::FilterInstruction;

/// Opcodes (include/uapi/linux/bpf_common.h).
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const LOAD_CONSTANT: u16 = 0x00;
const LOAD_INDEX_MEMORY: u16 = 0x61;
const STORE_WORD: u16 = 0x02;
const ADD_INDEX: u16 = 0x0C;
const MULTIPLY_BY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN_ACCUMULATOR: u16 = 0x16;

/// Offset of the IP header for loads (`SKF_NET_OFF`).
const NETWORK_HEADER: u32 = -0x10_0000_i32 as u32;

/// Offsets of the source address in the header of IPv4 and IPv6.
const SOURCE_V4: u32 = NETWORK_HEADER + 12;
const SOURCE_V6: u32 = NETWORK_HEADER + 8;

/// Word of an IPv4-mapped address before the IPv4 address.
const MAPPED_WORD: u32 = 0xFFFF;

/// Program in the making; jumps are forward, to the end of a block.
#[derive(Default)]
struct Assembler(Vec<FilterInstruction>);

impl Assembler {
    fn push(&mut self, code: u16, value: u32) {
        self.0.push(FilterInstruction { code, jump_true: 0, jump_false: 0, value });
    }

    /// Runs `block` only if the accumulator has this value; the block does not return here, but
    /// jumps over the rest up to [`Self::join`].
    fn case(&mut self, value: u32, exits: &mut Vec<usize>, block: impl FnOnce(&mut Self)) {
        let at = self.0.len();
        self.push(JUMP_IF_EQUAL, value);
        block(self);
        exits.push(self.0.len());
        self.push(JUMP_ALWAYS, 0);
        // The longest block has nine instructions.
        self.0[at].jump_false = (self.0.len() - at - 1) as u8;
    }

    /// Lets the jumps of earlier cases end here.
    fn join(&mut self, exits: Vec<usize>) {
        for at in exits {
            self.0[at].value = (self.0.len() - at - 1) as u32;
        }
    }

    /// Stores the four words of an IPv6 address.
    fn store_v6(&mut self, offset: u32) {
        for word in 0..4 {
            self.push(LOAD_WORD, offset + 4 * word);
            self.push(STORE_WORD, word);
        }
    }

    /// Stores an IPv4 address as the mapped IPv6 address.
    fn store_v4(&mut self, offset: u32) {
        self.push(LOAD_WORD, offset);
        self.push(STORE_WORD, 3);
        self.push(LOAD_CONSTANT, 0);
        self.push(STORE_WORD, 0);
        self.push(STORE_WORD, 1);
        self.push(LOAD_CONSTANT, MAPPED_WORD);
        self.push(STORE_WORD, 2);
    }
}

/// Program that returns the shard of a datagram, of `shards`.
#[must_use]
pub(crate) fn program(kind: SteeringKind, shards: usize) -> Vec<FilterInstruction> {
    let mut program = Assembler::default();
    let mut exits = Vec::new();
    if kind == SteeringKind::Agent {
        let address = AGENT_TYPE_AT as u32 + 4;
        program.push(LOAD_WORD, AGENT_TYPE_AT as u32);
        program.case(1, &mut exits, |program| program.store_v4(address));
        program.case(2, &mut exits, |program| program.store_v6(address));
    }
    program.push(LOAD_BYTE, NETWORK_HEADER);
    program.push(SHIFT_RIGHT, 4);
    program.case(6, &mut exits, |program| program.store_v6(SOURCE_V6));
    program.store_v4(SOURCE_V4);
    program.join(exits);
    program.push(LOAD_CONSTANT, 0);
    for word in 0..4 {
        program.push(LOAD_INDEX_MEMORY, word);
        program.push(ADD_INDEX, 0);
        program.push(MULTIPLY_BY, HASH_MULTIPLIER);
    }
    program.push(SHIFT_RIGHT, HASH_LOW_BITS);
    program.push(MULTIPLY_BY, shards as u32);
    program.push(SHIFT_RIGHT, HASH_LOW_BITS);
    program.push(RETURN_ACCUMULATOR, 0);
    program.0
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr, UdpSocket};
    use std::time::Duration;

    use penstock_flows::shard::{exporter_address, shard_of};
    use penstock_sys::net::DatagramReceiver;

    use super::*;

    const SHARD_COUNT: usize = 3;

    fn group(address: &str, kind: SteeringKind) -> Vec<DatagramReceiver> {
        let wait = Duration::from_millis(50);
        let first = DatagramReceiver::bind(address.parse().unwrap(), 1 << 20, wait).unwrap();
        let mut sockets = vec![first];
        for _ in 1..SHARD_COUNT {
            sockets.push(sockets[0].join(1 << 20, wait).unwrap());
        }
        sockets[0].steer(&program(kind, SHARD_COUNT)).unwrap();
        sockets
    }

    /// Sends datagrams from every address and many ports; each must arrive at its shard.
    fn check(kind: SteeringKind, sources: &[&str], to: &str, datagrams: &[Vec<u8>]) {
        let mut sockets = group(to, kind);
        let port = sockets[0].local_addr().unwrap().port();
        let (mut sent, mut received, mut used) = (0, 0, [false; SHARD_COUNT]);
        for source in sources {
            let source: IpAddr = source.parse().unwrap();
            let to: IpAddr =
                if source.is_ipv4() { [127, 0, 0, 1].into() } else { "::1".parse().unwrap() };
            for _ in 0..40 {
                let socket = UdpSocket::bind((source, 0)).unwrap();
                for datagram in datagrams {
                    socket.send_to(datagram, SocketAddr::from((to, port))).unwrap();
                    sent += 1;
                }
            }
        }
        for (at, socket) in sockets.iter_mut().enumerate() {
            while socket.receive_queued().unwrap() > 0 {
                for datagram in socket.datagrams() {
                    let address = exporter_address(kind, datagram.from.ip(), datagram.bytes);
                    assert_eq!(shard_of(address.unwrap(), SHARD_COUNT), at, "{:?}", datagram.from);
                    (received, used[at]) = (received + 1, true);
                }
            }
        }
        assert_eq!(received, sent);
        assert_eq!(used, [true; SHARD_COUNT], "the addresses reach every shard");
    }

    const V4_SOURCES: [&str; 6] =
        ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.1.4", "127.9.0.5", "127.200.3.6"];

    #[test]
    fn source_address_chooses_the_shard() {
        check(SteeringKind::Source, &V4_SOURCES, "127.0.0.1:0", &[vec![7; 40]]);
        // A socket of both versions receives IPv4 with its own header.
        let both: Vec<_> = V4_SOURCES.into_iter().chain(["::1"]).collect();
        check(SteeringKind::Source, &both, "[::]:0", &[vec![7; 40], vec![1]]);
    }

    #[test]
    fn agent_address_chooses_the_shard() {
        let header = |kind: u32, address: &[u8]| {
            [&5_u32.to_be_bytes()[..], &kind.to_be_bytes(), address, &[0; 16]].concat()
        };
        let mut datagrams: Vec<_> = (0..20).map(|n| header(1, &[192, 0, 2, n])).collect();
        let v6 = |n: u16| std::net::Ipv6Addr::new(0x2001, 0xdb8, n, 0, 0, 0, n, 1);
        datagrams.extend((0..20).map(|n| header(2, &v6(n).octets())));
        datagrams.push(header(2, &std::net::Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().octets()));
        datagrams.push(header(0, &[]));
        check(SteeringKind::Agent, &["127.0.0.1", "127.0.0.2", "::1"], "[::]:0", &datagrams);
    }

    #[test]
    fn other_programs_cannot_join() {
        let sockets = group("127.0.0.1:0", SteeringKind::Source);
        let address = sockets[0].local_addr().unwrap();
        let other = DatagramReceiver::bind(address, 1 << 20, Duration::from_millis(50));
        assert_eq!(other.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
