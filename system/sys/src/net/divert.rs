//! Packets that arrive on a device wait in a queue for a verdict (nf_tables rules, set by nfnetlink).
//!
//! The rules stand in a table of their own, at the very beginning of a packet's way through the namespace, before
//! it is forwarded or delivered. A second chain behind them sets the congestion-experienced bits (RFC 3168) of
//! packets that came out of the queue with [`CONGESTED`] as their mark.

use std::io;
use std::net::Ipv6Addr;

use rustix::net::{Protocol, netlink::NETFILTER};

use super::netlink::{Netlink, message, nest, put};

/// The mark of packets whose congestion-experienced bits are to be set.
pub const CONGESTED: u32 = 0x5053_4345;

/// include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h.
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
const DELETE_RULE: u16 = (SUBSYSTEM << 8) | 8;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;
const ACKNOWLEDGE: u16 = 4;

const TABLE_NAME: u16 = 1;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const PREROUTING: u32 = 0;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const REGISTER_1: u32 = 1;
const META_REGISTER: u16 = 1;
const META_KEY: u16 = 2;
const META_SOURCE: u16 = 3;
const META_MARK: u32 = 3;
const META_INPUT: u32 = 4;
const COMPARE_REGISTER: u16 = 1;
const COMPARE_OPERATION: u16 = 2;
const COMPARE_DATA: u16 = 3;
const DATA_VALUE: u16 = 1;
const QUEUE_NUMBER: u16 = 1;
const QUEUE_TOTAL: u16 = 2;
const TARGET_NAME: u16 = 1;
const TARGET_REVISION: u16 = 2;
const TARGET_INFO: u16 = 3;
const IMMEDIATE_REGISTER: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
/// nf_tables.h: the base of an expression `payload`.
const NETWORK_HEADER: u32 = 1;

const TABLE: &[u8] = b"penstock-lab\0";
const WAITING: &[u8] = b"waiting\0";
const MARKING: &[u8] = b"marking\0";
/// Before everything that distributions and people set (`raw` is -300).
const WAITING_PRIORITY: i32 = -500;
const MARKING_PRIORITY: i32 = -499;

/// Packets that arrive on a device wait in this queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diversion {
    /// Index of the device.
    pub device: u32,
    /// Only those to this network of 64 bits; all without. Of several diversions of a packet the first counts.
    pub to: Option<Ipv6Addr>,
    /// Number of the queue ([`PacketQueue`](super::PacketQueue)).
    pub queue: u16,
}

/// By which rule the kernel does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The `queue` expression of nf_tables.
    Queue,
    /// The NFQUEUE target of iptables, through nf_tables' compatibility layer.
    Target,
}

#[derive(Debug, Clone, Copy)]
enum Family {
    V4 = 2,
    V6 = 10,
}

/// Diverts packets of the namespace in which the calling thread is; these diversions replace those before, at once.
///
/// # Errors
/// `NotFound` where the kernel has neither means (nft_queue, or nft_compat with xt_NFQUEUE); `PermissionDenied`
/// without CAP_NET_ADMIN.
pub fn divert(diversions: &[Diversion]) -> io::Result<Means> {
    match divert_by(Means::Queue, diversions) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            divert_by(Means::Target, diversions).map(|()| Means::Target)
        }
        other => other.map(|()| Means::Queue),
    }
}

fn divert_by(means: Means, diversions: &[Diversion]) -> io::Result<()> {
    for family in [Family::V4, Family::V6] {
        let mut messages = vec![frame(BATCH_BEGIN)];
        messages.push(table(family));
        for (name, priority) in [(WAITING, WAITING_PRIORITY), (MARKING, MARKING_PRIORITY)] {
            messages.push(chain(family, name, priority));
            messages.push(empty(family, name));
        }
        let meant = |one: &&Diversion| one.to.is_none() || matches!(family, Family::V6);
        for diversion in diversions.iter().filter(meant) {
            messages.push(rule(family, WAITING, |list| wait(list, means, *diversion)));
        }
        messages.push(rule(family, MARKING, |list| mark_congestion(list, family)));
        messages.push(frame(BATCH_END));
        Netlink::open(Some(NETFILTER))?.batch(&messages)?;
    }
    Ok(())
}

fn frame(kind: u16) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(SUBSYSTEM.to_be_bytes());
    message(kind, 0, &body)
}

fn head(family: Family) -> Vec<u8> {
    vec![family as u8, 0, 0, 0]
}

fn table(family: Family) -> Vec<u8> {
    let mut body = head(family);
    put(&mut body, TABLE_NAME, TABLE);
    message(NEW_TABLE, CREATE | ACKNOWLEDGE, &body)
}

fn chain(family: Family, name: &[u8], priority: i32) -> Vec<u8> {
    let mut body = head(family);
    put(&mut body, CHAIN_TABLE, TABLE);
    put(&mut body, CHAIN_NAME, name);
    nest(&mut body, CHAIN_HOOK, |hook| {
        put(hook, HOOK_NUMBER, &PREROUTING.to_be_bytes());
        put(hook, HOOK_PRIORITY, &priority.to_be_bytes());
    });
    put(&mut body, CHAIN_TYPE, b"filter\0");
    message(NEW_CHAIN, CREATE | ACKNOWLEDGE, &body)
}

/// Removes the rules and leaves the chain: with the chain the kernel would drop whatever waits.
fn empty(family: Family, chain: &[u8]) -> Vec<u8> {
    let mut body = head(family);
    put(&mut body, RULE_TABLE, TABLE);
    put(&mut body, RULE_CHAIN, chain);
    message(DELETE_RULE, ACKNOWLEDGE, &body)
}

fn rule(family: Family, chain: &[u8], fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = head(family);
    put(&mut body, RULE_TABLE, TABLE);
    put(&mut body, RULE_CHAIN, chain);
    nest(&mut body, RULE_EXPRESSIONS, fill);
    message(NEW_RULE, CREATE | APPEND | ACKNOWLEDGE, &body)
}

fn wait(list: &mut Vec<u8>, means: Means, diversion: Diversion) {
    when(list, META_INPUT, diversion.device);
    if let Some(network) = diversion.to {
        when_to(list, network);
    }
    match means {
        Means::Queue => expression(list, b"queue\0", |data| {
            put(data, QUEUE_NUMBER, &diversion.queue.to_be_bytes());
            put(data, QUEUE_TOTAL, &1_u16.to_be_bytes());
        }),
        Means::Target => expression(list, b"target\0", |data| {
            // struct xt_NFQ_info_v3: number, total, flags; padded to eight bytes.
            let info = [diversion.queue, 1, 0, 0].map(u16::to_ne_bytes).concat();
            put(data, TARGET_NAME, b"NFQUEUE\0");
            put(data, TARGET_REVISION, &3_u32.to_be_bytes());
            put(data, TARGET_INFO, &info);
        }),
    }
}

/// Goes on with the rule where the first 64 bits of the destination (RFC 8200 section 3) are those of this address.
fn when_to(list: &mut Vec<u8>, network: Ipv6Addr) {
    const DESTINATION_AT: u32 = 24;
    expression(list, b"payload\0", |data| {
        put(data, 1, &REGISTER_1.to_be_bytes());
        put(data, 2, &NETWORK_HEADER.to_be_bytes());
        put(data, 3, &DESTINATION_AT.to_be_bytes());
        put(data, 4, &8_u32.to_be_bytes());
    });
    compare(list, &network.octets()[..8]);
}

/// Sets the two ECN bits of packets with the mark, and takes the mark away.
fn mark_congestion(list: &mut Vec<u8>, family: Family) {
    const CHECKSUM_INTERNET: u32 = 1;
    when(list, META_MARK, CONGESTED);
    // Version, header length and type of service; or version, traffic class and the first bits of the flow label.
    let bits: [u8; 2] = match family {
        Family::V4 => [0, 0x03],
        Family::V6 => [0, 0x30],
    };
    let place = |data: &mut Vec<u8>, register: u16| {
        put(data, register, &REGISTER_1.to_be_bytes());
        put(data, 2, &NETWORK_HEADER.to_be_bytes());
        put(data, 3, &0_u32.to_be_bytes());
        put(data, 4, &2_u32.to_be_bytes());
    };
    expression(list, b"payload\0", |data| place(data, 1));
    expression(list, b"bitwise\0", |data| {
        put(data, 1, &REGISTER_1.to_be_bytes());
        put(data, 2, &REGISTER_1.to_be_bytes());
        put(data, 3, &2_u32.to_be_bytes());
        nest(data, 4, |mask| put(mask, DATA_VALUE, &bits.map(|byte| !byte)));
        nest(data, 5, |xor| put(xor, DATA_VALUE, &bits));
    });
    expression(list, b"payload\0", |data| {
        place(data, 5);
        if matches!(family, Family::V4) {
            put(data, 6, &CHECKSUM_INTERNET.to_be_bytes());
            put(data, 7, &10_u32.to_be_bytes());
        }
    });
    expression(list, b"immediate\0", |data| {
        put(data, IMMEDIATE_REGISTER, &REGISTER_1.to_be_bytes());
        nest(data, IMMEDIATE_DATA, |value| put(value, DATA_VALUE, &0_u32.to_ne_bytes()));
    });
    expression(list, b"meta\0", |data| {
        put(data, META_KEY, &META_MARK.to_be_bytes());
        put(data, META_SOURCE, &REGISTER_1.to_be_bytes());
    });
}

/// Goes on with the rule where a fact about the packet is this.
fn when(list: &mut Vec<u8>, fact: u32, value: u32) {
    expression(list, b"meta\0", |data| {
        put(data, META_REGISTER, &REGISTER_1.to_be_bytes());
        put(data, META_KEY, &fact.to_be_bytes());
    });
    compare(list, &value.to_ne_bytes());
}

/// Goes on with the rule where what was loaded is this.
fn compare(list: &mut Vec<u8>, value: &[u8]) {
    expression(list, b"cmp\0", |data| {
        put(data, COMPARE_REGISTER, &REGISTER_1.to_be_bytes());
        put(data, COMPARE_OPERATION, &0_u32.to_be_bytes());
        nest(data, COMPARE_DATA, |data| put(data, DATA_VALUE, value));
    });
}

fn expression(list: &mut Vec<u8>, name: &[u8], fill: impl FnOnce(&mut Vec<u8>)) {
    nest(list, LIST_ELEMENT, |element| {
        put(element, EXPRESSION_NAME, name);
        nest(element, EXPRESSION_DATA, fill);
    });
}

/// The protocol of packet filters.
pub(super) const fn protocol() -> Protocol {
    NETFILTER
}
