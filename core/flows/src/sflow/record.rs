//! Records of a flow sample: the packet's first bytes, and its context in the device.
//!
//! Names are the specification's in Rust spelling, with units. Two values mean
//! "unknown" everywhere: a VLAN or priority of 0xFFFFFFFF, an address of type 0.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::xdr::{Mac, Opaque, XdrList, records, structures};

/// [`SampledHeader::protocol`]: Ethernet, from the destination address on.
pub const HEADER_ETHERNET: u32 = 1;
/// [`SampledHeader::protocol`]: an IPv4 packet.
pub const HEADER_IPV4: u32 = 11;
/// [`SampledHeader::protocol`]: an IPv6 packet.
pub const HEADER_IPV6: u32 = 12;
/// [`SampledHeader::protocol`]: an MPLS label stack.
pub const HEADER_MPLS: u32 = 13;

/// Unknown VLAN or priority (erratum to [`ExtendedSwitch`]).
pub const VLAN_UNKNOWN: u32 = u32::MAX;

/// [`AsSegment::kind`]: an unordered set.
pub const AS_SET: u32 = 1;
/// [`AsSegment::kind`]: a sequence.
pub const AS_SEQUENCE: u32 = 2;

structures! {
    /// The first bytes of a packet. `frame_length` is its length on the wire, including `stripped` bytes (4 for the frame
    /// check sequence).
    SampledHeader<'a> { protocol: u32, frame_length: u32, stripped: u32, header: Opaque<'a> }
    /// An Ethernet frame.
    SampledEthernet { length: u32, source: Mac, destination: Mac, ether_type: u32 }
    /// An IPv4 packet; `length` without the frame around it.
    SampledIpv4 {
        length: u32, protocol: u32, source: Ipv4Addr, destination: Ipv4Addr,
        source_port: u32, destination_port: u32, tcp_flags: u32, tos: u32,
    }
    /// An IPv6 packet; `length` without the frame around it.
    SampledIpv6 {
        length: u32, protocol: u32, source: Ipv6Addr, destination: Ipv6Addr,
        source_port: u32, destination_port: u32, tcp_flags: u32, priority: u32,
    }
    /// VLANs and priorities in the switch.
    ExtendedSwitch { source_vlan: u32, source_priority: u32, destination_vlan: u32, destination_priority: u32 }
    /// Next hop and prefix lengths of the route.
    ExtendedRouter { next_hop: Option<IpAddr>, source_mask_bits: u32, destination_mask_bits: u32 }
    /// Segment of an AS path (RFC 4271 section 4.3).
    AsSegment<'a> { kind: u32, asns: XdrList<'a, u32> }
    /// BGP route: next hop, AS path, communities.
    ExtendedGateway<'a> {
        next_hop: Option<IpAddr>, as_number: u32, source_as: u32, source_peer_as: u32,
        as_path: XdrList<'a, AsSegment<'a>>, communities: XdrList<'a, u32>, local_preference: u32,
    }
    /// User names at both ends.
    ExtendedUser<'a> {
        source_charset: u32, source_user: Opaque<'a>, destination_charset: u32, destination_user: Opaque<'a>,
    }
    /// URL of the request that the packet belongs to.
    ExtendedUrl<'a> { direction: u32, url: Opaque<'a>, host: Opaque<'a> }
    /// Label stacks in and out.
    ExtendedMpls<'a> { next_hop: Option<IpAddr>, in_stack: XdrList<'a, u32>, out_stack: XdrList<'a, u32> }
    /// Addresses after translation.
    ExtendedNat { source: Option<IpAddr>, destination: Option<IpAddr> }
    /// Ports after translation.
    ExtendedNatPort { source_port: u32, destination_port: u32 }
    /// An MPLS tunnel.
    ExtendedMplsTunnel<'a> { name: Opaque<'a>, tunnel_id: u32, cos: u32 }
    /// An MPLS virtual circuit.
    ExtendedMplsVc<'a> { name: Opaque<'a>, vc_id: u32, label_cos: u32 }
    /// An MPLS forwarding class.
    ExtendedMplsFtn<'a> { description: Opaque<'a>, mask: u32 }
    /// The prefix length of an LDP forwarding class.
    ExtendedMplsLdpFec { prefix_length_bits: u32 }
    /// 802.1Q tags that were stripped, outermost first: TPID and TCI in one word.
    VlanStack<'a> { tags: XdrList<'a, u32> }
    /// The unencrypted payload of a Wi-Fi frame.
    Extended80211Payload<'a> { cipher_suite: u32, data: Opaque<'a> }
    /// Received Wi-Fi frame.
    Extended80211Rx<'a> {
        ssid: Opaque<'a>, bssid: Mac, version: u32, channel: u32, speed_bps: u64,
        rsni: u32, rcpi: u32, packet_duration_us: u32,
    }
    /// Transmitted Wi-Fi frame.
    Extended80211Tx<'a> {
        ssid: Opaque<'a>, bssid: Mac, version: u32, transmissions: u32, packet_duration_us: u32,
        retransmission_duration_us: u32, channel: u32, speed_bps: u64, power_mw: u32,
    }
    /// Offset of the inner header, in bytes from the start of the sampled one.
    ExtendedDecapsulate { inner_header_offset_bytes: u32 }
    /// A virtual network.
    ExtendedVni { vni: u32 }
    /// InfiniBand's local routing header.
    ExtendedIbLrh {
        source_vl: u32, source_sl: u32, source_dlid: u32, source_slid: u32, source_lnh: u32,
        destination_vl: u32, destination_sl: u32, destination_dlid: u32, destination_slid: u32,
        destination_lnh: u32,
    }
    /// InfiniBand's global routing header.
    ExtendedIbGrh {
        flow_label: u32, traffic_class: u32, source_gid: [u8; 16], destination_gid: [u8; 16],
        next_header: u32, length: u32,
    }
    /// InfiniBand's base transport header.
    ExtendedIbBth { partition_key: u32, destination_qp: u32, opcode: u32 }
    /// Egress queue of the packet.
    ExtendedEgressQueue { queue: u32 }
    /// Access list that dropped the packet; direction 1 ingress, 2 egress.
    ExtendedAcl<'a> { number: u32, name: Opaque<'a>, direction: u32 }
    /// Kernel function that dropped the packet.
    ExtendedFunction<'a> { symbol: Opaque<'a> }
    /// Delay in the switch, saturating at 0xFFFFFFFF.
    ExtendedTransit { delay_ns: u32 }
    /// Depth of the packet's queue in bytes.
    ExtendedQueue { depth_bytes: u32 }
    /// Hardware trap (devlink-trap) that dropped the packet.
    ExtendedHwTrap<'a> { group: Opaque<'a>, trap: Opaque<'a> }
    /// Drop reason of the Linux kernel (`enum skb_drop_reason`).
    ExtendedLinuxDropReason<'a> { reason: Opaque<'a> }
    /// Time of the observation, in nanoseconds since 1970 UTC.
    ExtendedTimestamp { nanoseconds: u64 }
    /// Socket of the flow at the agent.
    SocketIpv4 { protocol: u32, local: Ipv4Addr, remote: Ipv4Addr, local_port: u32, remote_port: u32 }
    /// Socket of the flow at the agent.
    SocketIpv6 { protocol: u32, local: Ipv6Addr, remote: Ipv6Addr, local_port: u32, remote_port: u32 }
    /// An operation of memcached.
    MemcacheOperation<'a> {
        protocol: u32, command: u32, key: Opaque<'a>, keys: u32, value_bytes: u32, duration_us: u32, status: u32,
    }
    /// Application, operation and attributes.
    Context<'a> { application: Opaque<'a>, operation: Opaque<'a>, attributes: Opaque<'a> }
    /// An operation of a program.
    AppOperation<'a> {
        context: Context<'a>, status_text: Opaque<'a>, request_bytes: u64, response_bytes: u64,
        duration_us: u32, status: u32,
    }
    /// An initiator or target of a request.
    Actor<'a> { actor: Opaque<'a> }
    /// A request of HTTP.
    HttpRequest<'a> {
        method: u32, protocol: u32, uri: Opaque<'a>, host: Opaque<'a>, referer: Opaque<'a>,
        user_agent: Opaque<'a>, forwarded_for: Opaque<'a>, user: Opaque<'a>, mime_type: Opaque<'a>,
        request_bytes: u64, response_bytes: u64, duration_us: u32, status: u32,
    }
    /// The request of a proxy.
    ExtendedProxyRequest<'a> { uri: Opaque<'a>, host: Opaque<'a> }
    /// The state of the agent's TCP connection (`struct tcp_info`). Direction 1 received, 2 sent.
    ExtendedTcpInfo {
        direction: u32, send_mss_bytes: u32, receive_mss_bytes: u32, unacknowledged: u32, lost: u32,
        retransmitted: u32, path_mtu_bytes: u32, rtt_us: u32, rtt_variance_us: u32, send_cwnd: u32,
        reordering: u32, min_rtt_us: u32,
    }
    /// Data sources of source and destination of the packet.
    ExtendedEntities {
        source_class: u32, source_index: u32, destination_class: u32, destination_index: u32,
    }
}

impl ExtendedGateway<'_> {
    /// Destination AS: the last number of the last segment of the path.
    #[must_use]
    pub fn destination_as(&self) -> Option<u32> {
        self.as_path.iter().filter_map(|segment| segment.asns.iter().last()).last()
    }

    /// Neighbour AS on the path: its first number.
    #[must_use]
    pub fn destination_peer_as(&self) -> Option<u32> {
        self.as_path.iter().find_map(|segment| segment.asns.iter().next())
    }
}

records! {
    /// A record of a flow sample or of a dropped packet.
    FlowRecord {
        /// The packet's first bytes.
        (0, 1) Header(SampledHeader<'a>),
        /// Ethernet header without payload.
        (0, 2) Ethernet(SampledEthernet),
        /// IPv4 header without payload.
        (0, 3) Ipv4(SampledIpv4),
        /// IPv6 header without payload.
        (0, 4) Ipv6(SampledIpv6),
        /// VLANs.
        (0, 1001) Switch(ExtendedSwitch),
        /// Next hop and prefixes.
        (0, 1002) Router(ExtendedRouter),
        /// AS path.
        (0, 1003) Gateway(ExtendedGateway<'a>),
        /// Users.
        (0, 1004) User(ExtendedUser<'a>),
        /// URL.
        (0, 1005) Url(ExtendedUrl<'a>),
        /// MPLS label stacks.
        (0, 1006) Mpls(ExtendedMpls<'a>),
        /// Translated addresses.
        (0, 1007) Nat(ExtendedNat),
        /// MPLS tunnel.
        (0, 1008) MplsTunnel(ExtendedMplsTunnel<'a>),
        /// MPLS virtual circuit.
        (0, 1009) MplsVc(ExtendedMplsVc<'a>),
        /// MPLS forwarding class.
        (0, 1010) MplsFtn(ExtendedMplsFtn<'a>),
        /// LDP forwarding class.
        (0, 1011) MplsLdpFec(ExtendedMplsLdpFec),
        /// Stripped VLAN tags, outermost first.
        (0, 1012) VlanTunnel(VlanStack<'a>),
        /// Wi-Fi payload.
        (0, 1013) Wifi(Extended80211Payload<'a>),
        /// Wi-Fi reception.
        (0, 1014) WifiRx(Extended80211Rx<'a>),
        /// Wi-Fi transmission.
        (0, 1015) WifiTx(Extended80211Tx<'a>),
        /// Translated ports.
        (0, 1020) NatPort(ExtendedNatPort),
        /// Ethernet header of a tunnel added at egress.
        (0, 1021) L2TunnelEgress(SampledEthernet),
        /// Ethernet header of a tunnel removed at ingress.
        (0, 1022) L2TunnelIngress(SampledEthernet),
        /// IPv4 header of a tunnel added at egress.
        (0, 1023) Ipv4TunnelEgress(SampledIpv4),
        /// IPv4 header of a tunnel removed at ingress.
        (0, 1024) Ipv4TunnelIngress(SampledIpv4),
        /// IPv6 header of a tunnel added at egress.
        (0, 1025) Ipv6TunnelEgress(SampledIpv6),
        /// IPv6 header of a tunnel removed at ingress.
        (0, 1026) Ipv6TunnelIngress(SampledIpv6),
        /// Inner header of a tunnel that ends behind this interface.
        (0, 1027) DecapsulateEgress(ExtendedDecapsulate),
        /// Inner header of a tunnel that ends here.
        (0, 1028) DecapsulateIngress(ExtendedDecapsulate),
        /// Virtual network, out.
        (0, 1029) VniEgress(ExtendedVni),
        /// Virtual network, in.
        (0, 1030) VniIngress(ExtendedVni),
        /// InfiniBand, local.
        (0, 1031) IbLrh(ExtendedIbLrh),
        /// InfiniBand, global.
        (0, 1032) IbGrh(ExtendedIbGrh),
        /// InfiniBand, transport.
        (0, 1033) IbBth(ExtendedIbBth),
        /// Tags of the received frame.
        (0, 1034) VlanIn(VlanStack<'a>),
        /// Tags of the sent frame.
        (0, 1035) VlanOut(VlanStack<'a>),
        /// Queue.
        (0, 1036) EgressQueue(ExtendedEgressQueue),
        /// Access list that dropped the packet.
        (0, 1037) Acl(ExtendedAcl<'a>),
        /// Kernel function that dropped the packet.
        (0, 1038) Function(ExtendedFunction<'a>),
        /// Time in the switch.
        (0, 1039) Transit(ExtendedTransit),
        /// Depth of the packet's queue.
        (0, 1040) Queue(ExtendedQueue),
        /// Hardware trap that dropped the packet.
        (0, 1041) HwTrap(ExtendedHwTrap<'a>),
        /// Kernel's reason for the drop.
        (0, 1042) LinuxDropReason(ExtendedLinuxDropReason<'a>),
        /// Time of the observation.
        (0, 1043) Timestamp(ExtendedTimestamp),
        /// The agent's socket.
        (0, 2100) SocketIpv4(SocketIpv4),
        /// The agent's socket.
        (0, 2101) SocketIpv6(SocketIpv6),
        /// The socket behind a proxy.
        (0, 2102) ProxySocketIpv4(SocketIpv4),
        /// The socket behind a proxy.
        (0, 2103) ProxySocketIpv6(SocketIpv6),
        /// memcached.
        (0, 2200) Memcache(MemcacheOperation<'a>),
        /// An operation of a program.
        (0, 2202) AppOperation(AppOperation<'a>),
        /// Parent operation of the application.
        (0, 2203) AppParent(Context<'a>),
        /// Initiator of the operation.
        (0, 2204) AppInitiator(Actor<'a>),
        /// Target of the operation.
        (0, 2205) AppTarget(Actor<'a>),
        /// HTTP.
        (0, 2206) Http(HttpRequest<'a>),
        /// Request of a proxy.
        (0, 2207) ProxyRequest(ExtendedProxyRequest<'a>),
        /// State of a TCP connection.
        (0, 2209) TcpInfo(ExtendedTcpInfo),
        /// Both ends as data sources.
        (0, 2210) Entities(ExtendedEntities),
    }
}
