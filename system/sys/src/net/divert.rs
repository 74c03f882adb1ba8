//! nf_tables rules that divert packets received on a device into an NFQUEUE.
//!
//! The rules have a separate table and run first in prerouting, before forwarding and local delivery. A second chain
//! behind them sets the ECN field (RFC 3168) of packets reinjected with the mark [`CE_MARK`] to CE.

use std::io;
use std::net::Ipv6Addr;

use rustix::net::netlink::NETFILTER;

use super::netlink::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, message, nest, put};
use super::netlink_socket::NetlinkSocket;

/// Packet mark that requests ECN CE (congestion experienced) on reinjection: "PSCE" in ASCII.
pub const CE_MARK: u32 = 0x5053_4345;

// libc declares these as `c_int`; message types and attributes have 16 bits, values 32.
const NFNL_MSG_BATCH_BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
const NFNL_MSG_BATCH_END: u16 = libc::NFNL_MSG_BATCH_END as u16;
const NFNL_SUBSYS_NFTABLES: u16 = libc::NFNL_SUBSYS_NFTABLES as u16;
const NFT_MSG_NEWTABLE: u16 = (NFNL_SUBSYS_NFTABLES << 8) | libc::NFT_MSG_NEWTABLE as u16;
const NFT_MSG_NEWCHAIN: u16 = (NFNL_SUBSYS_NFTABLES << 8) | libc::NFT_MSG_NEWCHAIN as u16;
const NFT_MSG_NEWRULE: u16 = (NFNL_SUBSYS_NFTABLES << 8) | libc::NFT_MSG_NEWRULE as u16;
const NFT_MSG_DELRULE: u16 = (NFNL_SUBSYS_NFTABLES << 8) | libc::NFT_MSG_DELRULE as u16;
const NF_INET_PRE_ROUTING: u32 = libc::NF_INET_PRE_ROUTING as u32;
const NFT_REG_1: u32 = libc::NFT_REG_1 as u32;
const NFT_META_MARK: u32 = libc::NFT_META_MARK as u32;
const NFT_META_IIF: u32 = libc::NFT_META_IIF as u32;
const NFT_CMP_EQ: u32 = libc::NFT_CMP_EQ as u32;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = libc::NFT_PAYLOAD_NETWORK_HEADER as u32;
const NFT_PAYLOAD_CSUM_INET: u32 = libc::NFT_PAYLOAD_CSUM_INET as u32;

// include/uapi/linux/netfilter/nf_tables.h, nf_tables_compat.h; libc does not have these.
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_META_DREG: u16 = 1;
const NFTA_META_KEY: u16 = 2;
const NFTA_META_SREG: u16 = 3;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_QUEUE_NUM: u16 = 1;
const NFTA_QUEUE_TOTAL: u16 = 2;
const NFTA_TARGET_NAME: u16 = 1;
const NFTA_TARGET_REV: u16 = 2;
const NFTA_TARGET_INFO: u16 = 3;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFTA_PAYLOAD_SREG: u16 = 5;
const NFTA_PAYLOAD_CSUM_TYPE: u16 = 6;
const NFTA_PAYLOAD_CSUM_OFFSET: u16 = 7;
const NFTA_BITWISE_SREG: u16 = 1;
const NFTA_BITWISE_DREG: u16 = 2;
const NFTA_BITWISE_LEN: u16 = 3;
const NFTA_BITWISE_MASK: u16 = 4;
const NFTA_BITWISE_XOR: u16 = 5;

const TABLE_NAME: &[u8] = b"penstock-lab\0";
const QUEUE_CHAIN: &[u8] = b"waiting\0";
const CE_CHAIN: &[u8] = b"marking\0";
/// Before the chains of distributions and administrators (`raw` is -300).
const QUEUE_CHAIN_PRIORITY: i32 = -500;
const CE_CHAIN_PRIORITY: i32 = -499;

/// A device and the queue to which its received packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Diversion {
    /// Index of the device.
    pub device: u32,
    /// Only packets to this /64 network; `None` matches all. The first matching diversion applies.
    pub to: Option<Ipv6Addr>,
    /// Queue number ([`PacketQueue`](super::PacketQueue)).
    pub queue: u16,
}

/// Kind of rule that queues the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiversionMethod {
    /// The `queue` expression of nf_tables.
    Queue,
    /// The NFQUEUE target of iptables, through nft_compat.
    Target,
}

#[derive(Debug, Clone, Copy)]
enum Family {
    V4 = libc::NFPROTO_IPV4 as isize,
    V6 = libc::NFPROTO_IPV6 as isize,
}

/// Replaces the diversions of the calling thread's network namespace, atomically for each address family.
///
/// # Errors
/// `NotFound` where the kernel has neither method (nft_queue, or nft_compat with xt_NFQUEUE); `PermissionDenied`
/// without CAP_NET_ADMIN.
pub fn divert(diversions: &[Diversion]) -> io::Result<DiversionMethod> {
    match divert_by(DiversionMethod::Queue, diversions) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            divert_by(DiversionMethod::Target, diversions).map(|()| DiversionMethod::Target)
        }
        other => other.map(|()| DiversionMethod::Queue),
    }
}

fn divert_by(method: DiversionMethod, diversions: &[Diversion]) -> io::Result<()> {
    for family in [Family::V4, Family::V6] {
        let mut messages = vec![batch_message(NFNL_MSG_BATCH_BEGIN)];
        messages.push(table(family));
        for (name, priority) in [(QUEUE_CHAIN, QUEUE_CHAIN_PRIORITY), (CE_CHAIN, CE_CHAIN_PRIORITY)]
        {
            messages.push(chain(family, name, priority));
            messages.push(flush_chain(family, name));
        }
        let applies = |one: &&Diversion| one.to.is_none() || matches!(family, Family::V6);
        for diversion in diversions.iter().filter(applies) {
            messages
                .push(rule(family, QUEUE_CHAIN, |list| queue_packets(list, method, *diversion)));
        }
        messages.push(rule(family, CE_CHAIN, |list| set_ce(list, family)));
        messages.push(batch_message(NFNL_MSG_BATCH_END));
        NetlinkSocket::open(Some(NETFILTER))?.batch(messages)?;
    }
    Ok(())
}

fn batch_message(kind: u16) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(NFNL_SUBSYS_NFTABLES.to_be_bytes());
    message(kind, 0, &body)
}

/// Encodes `struct nfgenmsg`.
fn nfgenmsg(family: Family) -> Vec<u8> {
    vec![family as u8, 0, 0, 0]
}

fn table(family: Family) -> Vec<u8> {
    let mut body = nfgenmsg(family);
    put(&mut body, NFTA_TABLE_NAME, TABLE_NAME);
    message(NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_ACK, &body)
}

fn chain(family: Family, name: &[u8], priority: i32) -> Vec<u8> {
    let mut body = nfgenmsg(family);
    put(&mut body, NFTA_CHAIN_TABLE, TABLE_NAME);
    put(&mut body, NFTA_CHAIN_NAME, name);
    nest(&mut body, NFTA_CHAIN_HOOK, |hook| {
        put(hook, NFTA_HOOK_HOOKNUM, &NF_INET_PRE_ROUTING.to_be_bytes());
        put(hook, NFTA_HOOK_PRIORITY, &priority.to_be_bytes());
    });
    put(&mut body, NFTA_CHAIN_TYPE, b"filter\0");
    message(NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_ACK, &body)
}

/// Removes the rules and keeps the chain: on removal of the chain the kernel drops all queued packets.
fn flush_chain(family: Family, chain: &[u8]) -> Vec<u8> {
    let mut body = nfgenmsg(family);
    put(&mut body, NFTA_RULE_TABLE, TABLE_NAME);
    put(&mut body, NFTA_RULE_CHAIN, chain);
    message(NFT_MSG_DELRULE, NLM_F_ACK, &body)
}

fn rule(family: Family, chain: &[u8], fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = nfgenmsg(family);
    put(&mut body, NFTA_RULE_TABLE, TABLE_NAME);
    put(&mut body, NFTA_RULE_CHAIN, chain);
    nest(&mut body, NFTA_RULE_EXPRESSIONS, fill);
    message(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND | NLM_F_ACK, &body)
}

fn queue_packets(list: &mut Vec<u8>, method: DiversionMethod, diversion: Diversion) {
    match_meta(list, NFT_META_IIF, diversion.device);
    if let Some(network) = diversion.to {
        match_destination(list, network);
    }
    match method {
        DiversionMethod::Queue => expression(list, b"queue\0", |data| {
            put(data, NFTA_QUEUE_NUM, &diversion.queue.to_be_bytes());
            put(data, NFTA_QUEUE_TOTAL, &1_u16.to_be_bytes());
        }),
        DiversionMethod::Target => expression(list, b"target\0", |data| {
            // struct xt_NFQ_info_v3: number, total, flags; padded to eight bytes.
            let info = [diversion.queue, 1, 0, 0].map(u16::to_ne_bytes).concat();
            put(data, NFTA_TARGET_NAME, b"NFQUEUE\0");
            put(data, NFTA_TARGET_REV, &3_u32.to_be_bytes());
            put(data, NFTA_TARGET_INFO, &info);
        }),
    }
}

/// Matches packets whose IPv6 destination (RFC 8200 section 3) begins with the first 64 bits of `network`.
fn match_destination(list: &mut Vec<u8>, network: Ipv6Addr) {
    /// Of the destination address in the IPv6 header.
    const IPV6_DESTINATION_OFFSET: u32 = 24;
    expression(list, b"payload\0", |data| {
        put(data, NFTA_PAYLOAD_DREG, &NFT_REG_1.to_be_bytes());
        put(data, NFTA_PAYLOAD_BASE, &NFT_PAYLOAD_NETWORK_HEADER.to_be_bytes());
        put(data, NFTA_PAYLOAD_OFFSET, &IPV6_DESTINATION_OFFSET.to_be_bytes());
        put(data, NFTA_PAYLOAD_LEN, &8_u32.to_be_bytes());
    });
    match_register(list, &network.octets()[..8]);
}

/// Sets the ECN field of packets with [`CE_MARK`] to CE and clears the mark.
fn set_ce(list: &mut Vec<u8>, family: Family) {
    /// Of the checksum in the IPv4 header.
    const IPV4_CHECKSUM_OFFSET: u32 = 10;
    match_meta(list, NFT_META_MARK, CE_MARK);
    // IPv4: version, header length and type of service. IPv6: version, traffic class and the first bits of the flow label.
    let bits: [u8; 2] = match family {
        Family::V4 => [0, 0x03],
        Family::V6 => [0, 0x30],
    };
    let first_two_bytes = |data: &mut Vec<u8>, register: u16| {
        put(data, register, &NFT_REG_1.to_be_bytes());
        put(data, NFTA_PAYLOAD_BASE, &NFT_PAYLOAD_NETWORK_HEADER.to_be_bytes());
        put(data, NFTA_PAYLOAD_OFFSET, &0_u32.to_be_bytes());
        put(data, NFTA_PAYLOAD_LEN, &2_u32.to_be_bytes());
    };
    expression(list, b"payload\0", |data| first_two_bytes(data, NFTA_PAYLOAD_DREG));
    expression(list, b"bitwise\0", |data| {
        put(data, NFTA_BITWISE_SREG, &NFT_REG_1.to_be_bytes());
        put(data, NFTA_BITWISE_DREG, &NFT_REG_1.to_be_bytes());
        put(data, NFTA_BITWISE_LEN, &2_u32.to_be_bytes());
        nest(data, NFTA_BITWISE_MASK, |mask| put(mask, NFTA_DATA_VALUE, &bits.map(|byte| !byte)));
        nest(data, NFTA_BITWISE_XOR, |xor| put(xor, NFTA_DATA_VALUE, &bits));
    });
    expression(list, b"payload\0", |data| {
        first_two_bytes(data, NFTA_PAYLOAD_SREG);
        if matches!(family, Family::V4) {
            put(data, NFTA_PAYLOAD_CSUM_TYPE, &NFT_PAYLOAD_CSUM_INET.to_be_bytes());
            put(data, NFTA_PAYLOAD_CSUM_OFFSET, &IPV4_CHECKSUM_OFFSET.to_be_bytes());
        }
    });
    expression(list, b"immediate\0", |data| {
        put(data, NFTA_IMMEDIATE_DREG, &NFT_REG_1.to_be_bytes());
        nest(data, NFTA_IMMEDIATE_DATA, |value| put(value, NFTA_DATA_VALUE, &0_u32.to_ne_bytes()));
    });
    expression(list, b"meta\0", |data| {
        put(data, NFTA_META_KEY, &NFT_META_MARK.to_be_bytes());
        put(data, NFTA_META_SREG, &NFT_REG_1.to_be_bytes());
    });
}

/// Matches packets whose metadata `key` (`NFT_META_*`) has this value.
fn match_meta(list: &mut Vec<u8>, key: u32, value: u32) {
    expression(list, b"meta\0", |data| {
        put(data, NFTA_META_DREG, &NFT_REG_1.to_be_bytes());
        put(data, NFTA_META_KEY, &key.to_be_bytes());
    });
    match_register(list, &value.to_ne_bytes());
}

/// Matches where register 1 has this value.
fn match_register(list: &mut Vec<u8>, value: &[u8]) {
    expression(list, b"cmp\0", |data| {
        put(data, NFTA_CMP_SREG, &NFT_REG_1.to_be_bytes());
        put(data, NFTA_CMP_OP, &NFT_CMP_EQ.to_be_bytes());
        nest(data, NFTA_CMP_DATA, |data| put(data, NFTA_DATA_VALUE, value));
    });
}

fn expression(list: &mut Vec<u8>, name: &[u8], fill: impl FnOnce(&mut Vec<u8>)) {
    nest(list, NFTA_LIST_ELEM, |element| {
        put(element, NFTA_EXPR_NAME, name);
        nest(element, NFTA_EXPR_DATA, fill);
    });
}
