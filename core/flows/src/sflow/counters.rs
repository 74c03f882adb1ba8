//! Counter records: of interfaces, optics, and the machine.
//!
//! A counter of all ones is unsupported by the agent: [`known`] and [`known64`] map it to `None`.
//! Counters of 32 bits wrap (packets of a full 400 Gb/s link in 13 minutes), so only differences
//! are useful; `crate::interface` computes them.

use std::net::IpAddr;

use super::xdr::{Cut, Mac, Opaque, Xdr, XdrList, XdrReader, records, structures};

/// Maps an unsupported 32-bit counter to `None`.
#[must_use]
pub const fn known(counter: u32) -> Option<u32> {
    if counter == u32::MAX { None } else { Some(counter) }
}

/// Maps an unsupported 64-bit counter to `None`.
#[must_use]
pub const fn known64(counter: u64) -> Option<u64> {
    if counter == u64::MAX { None } else { Some(counter) }
}

/// [`GenericInterface::status`]: enabled by the operator.
pub const STATUS_ADMIN_UP: u32 = 1;
/// [`GenericInterface::status`]: operational, ifOperStatus up (RFC 2863).
pub const STATUS_OPER_UP: u32 = 2;

structures! {
    /// Counters of an interface (RFC 2233). Octets include the frame's header and check sequence.
    GenericInterface {
        index: u32, kind: u32, speed_bps: u64, direction: u32, status: u32,
        in_octets: u64, in_unicast: u32, in_multicast: u32, in_broadcast: u32,
        in_discards: u32, in_errors: u32, in_unknown_protocols: u32,
        out_octets: u64, out_unicast: u32, out_multicast: u32, out_broadcast: u32,
        out_discards: u32, out_errors: u32, promiscuous: u32,
    }
    /// Counters of Ethernet (RFC 2358).
    EthernetInterface {
        alignment_errors: u32, fcs_errors: u32, single_collision_frames: u32,
        multiple_collision_frames: u32, sqe_test_errors: u32, deferred_transmissions: u32,
        late_collisions: u32, excessive_collisions: u32, internal_mac_transmit_errors: u32,
        carrier_sense_errors: u32, frames_too_long: u32, internal_mac_receive_errors: u32,
        symbol_errors: u32,
    }
    /// Counters of a token ring (RFC 1748).
    TokenRing {
        line_errors: u32, burst_errors: u32, ac_errors: u32, abort_transmission_errors: u32,
        internal_errors: u32, lost_frame_errors: u32, receive_congestions: u32,
        frame_copied_errors: u32, token_errors: u32, soft_errors: u32, hard_errors: u32,
        signal_loss: u32, transmit_beacons: u32, recoveries: u32, lobe_wires: u32, removes: u32,
        singles: u32, frequency_errors: u32,
    }
    /// Counters of 100BASE-VG (RFC 2020).
    VgInterface {
        in_high_frames: u32, in_high_octets: u64, in_normal_frames: u32, in_normal_octets: u64,
        in_ipm_errors: u32, in_oversize_errors: u32, in_data_errors: u32, in_null_addressed: u32,
        out_high_frames: u32, out_high_octets: u64, transition_into_trainings: u32,
        hc_in_high_octets: u64, hc_in_normal_octets: u64, hc_out_high_octets: u64,
    }
    /// Counters of a VLAN.
    Vlan { vlan: u32, octets: u64, unicast: u32, multicast: u32, broadcast: u32, discards: u32 }
    /// Counters of a member of a link aggregation. The bytes of `port_state` are admin and oper state
    /// of this end, then of the other.
    LagPort {
        actor_system: Mac, partner_system: Mac, attached_aggregate: u32, port_state: u32,
        lacpdus_in: u32, markers_in: u32, marker_responses_in: u32, unknown_in: u32, illegal_in: u32,
        lacpdus_out: u32, markers_out: u32, marker_responses_out: u32,
    }
    /// Packets that the hardware passed to the CPU, by reason.
    SlowPath { unknown: u32, other: u32, cam_miss: u32, cam_full: u32, no_hardware_support: u32, control: u32 }
    /// One lane of an optical module.
    Lane {
        index: u32, tx_bias_ua: u32, tx_power_uw: u32, tx_power_min_uw: u32, tx_power_max_uw: u32,
        tx_wavelength_nm: u32, rx_power_uw: u32, rx_power_min_uw: u32, rx_power_max_uw: u32,
        rx_wavelength_nm: u32,
    }
    /// An optical module.
    Optics<'a> {
        module: u32, lanes_total: u32, supply_voltage_mv: u32, temperature_millicelsius: i32,
        lanes: XdrList<'a, Lane>,
    }
    /// CPU of the device; shares in hundredths of a percent, -1 unknown.
    Processor {
        busy_5s: i32, busy_1m: i32, busy_5m: i32, memory_total_bytes: u64, memory_free_bytes: u64,
    }
    /// A Wi-Fi radio.
    RadioUtilization { elapsed_ms: u32, on_channel_ms: u32, on_channel_busy_ms: u32 }
    /// Histogram of queue lengths on packet arrival, in segments.
    QueueLength {
        queue: u32, segment_bytes: u32, segments: u32, length_0: u32, length_1: u32, length_2: u32,
        length_4: u32, length_8: u32, length_32: u32, length_128: u32, length_1024: u32,
        length_more: u32, dropped: u32,
    }
    /// Number of the port in OpenFlow.
    OpenFlowPort { datapath: u64, port: u32 }
    /// Name of the interface (ifName), as also available by SNMP.
    PortName<'a> { name: Opaque<'a> }
    /// The machine.
    HostId<'a> { hostname: Opaque<'a>, uuid: [u8; 16], machine: u32, os: u32, os_release: Opaque<'a> }
    /// One adapter of the machine.
    Adapter<'a> { index: u32, macs: XdrList<'a, Mac> }
    /// The adapters of the machine.
    HostAdapters<'a> { adapters: XdrList<'a, Adapter<'a>> }
    /// The parent of the machine: its hypervisor or container host.
    HostParent { class: u32, index: u32 }
    /// Time that the processors had for guests.
    GuestCpu { steal_ms: u32, guest_ms: u32, guest_nice_ms: u32 }
    /// The processors of the machine. `guests` came in December 2014; older agents do not have it.
    HostCpu {
        load_1m: f32, load_5m: f32, load_15m: f32, running: u32, processes: u32, cpus: u32,
        speed_mhz: u32, uptime_s: u32, user_ms: u32, nice_ms: u32, system_ms: u32, idle_ms: u32,
        wait_ms: u32, interrupt_ms: u32, soft_interrupt_ms: u32, interrupts: u32, contexts: u32,
        guests: Option<GuestCpu>,
    }
    /// The memory of the machine.
    HostMemory {
        total_bytes: u64, free_bytes: u64, shared_bytes: u64, buffers_bytes: u64, cached_bytes: u64,
        swap_total_bytes: u64, swap_free_bytes: u64, pages_in: u32, pages_out: u32, swaps_in: u32,
        swaps_out: u32,
    }
    /// The disks of the machine; the fullest part in hundredths of a percent.
    HostDisk {
        total_bytes: u64, free_bytes: u64, fullest_part: i32, reads: u32, read_bytes: u64,
        read_ms: u32, writes: u32, written_bytes: u64, write_ms: u32,
    }
    /// The network of the machine, all interfaces together.
    HostNet {
        in_bytes: u64, in_packets: u32, in_errors: u32, in_drops: u32,
        out_bytes: u64, out_packets: u32, out_errors: u32, out_drops: u32,
    }
    /// IP (RFC 1213).
    Mib2Ip {
        forwarding: u32, default_ttl: u32, in_receives: u32, in_header_errors: u32,
        in_address_errors: u32, forwarded: u32, in_unknown_protocols: u32, in_discards: u32,
        in_delivers: u32, out_requests: u32, out_discards: u32, out_no_routes: u32,
        reassembly_timeout: u32, reassembly_required: u32, reassembly_oks: u32,
        reassembly_fails: u32, fragment_oks: u32, fragment_fails: u32, fragment_creates: u32,
    }
    /// ICMP (RFC 1213).
    Mib2Icmp {
        in_messages: u32, in_errors: u32, in_unreachables: u32, in_time_exceeded: u32,
        in_parameter_problems: u32, in_source_quenches: u32, in_redirects: u32, in_echos: u32,
        in_echo_replies: u32, in_timestamps: u32, in_address_masks: u32, in_address_mask_replies: u32,
        out_messages: u32, out_errors: u32, out_unreachables: u32, out_time_exceeded: u32,
        out_parameter_problems: u32, out_source_quenches: u32, out_redirects: u32, out_echos: u32,
        out_echo_replies: u32, out_timestamps: u32, out_timestamp_replies: u32,
        out_address_masks: u32, out_address_mask_replies: u32,
    }
    /// TCP (RFC 1213).
    Mib2Tcp {
        rto_algorithm: u32, rto_min_ms: u32, rto_max_ms: u32, connections_max: u32,
        active_opens: u32, passive_opens: u32, attempt_fails: u32, established_resets: u32,
        established: u32, in_segments: u32, out_segments: u32, retransmitted: u32, in_errors: u32,
        out_resets: u32, in_checksum_errors: u32,
    }
    /// UDP (RFC 1213).
    Mib2Udp {
        in_datagrams: u32, no_ports: u32, in_errors: u32, out_datagrams: u32,
        receive_buffer_errors: u32, send_buffer_errors: u32, in_checksum_errors: u32,
    }
    /// A machine that holds virtual ones.
    VirtualNode { speed_mhz: u32, cpus: u32, memory_bytes: u64, memory_free_bytes: u64, domains: u32 }
    /// Processors of a virtual machine.
    VirtualCpu { state: u32, time_ms: u32, cpus: u32 }
    /// Memory of a virtual machine.
    VirtualMemory { used_bytes: u64, max_bytes: u64 }
    /// Disks of a virtual machine.
    VirtualDisk {
        capacity_bytes: u64, allocation_bytes: u64, physical_bytes: u64, reads: u32, read_bytes: u64,
        writes: u32, written_bytes: u64, errors: u32,
    }
    /// Network of a virtual machine.
    VirtualNet {
        in_bytes: u64, in_packets: u32, in_errors: u32, in_drops: u32,
        out_bytes: u64, out_packets: u32, out_errors: u32, out_drops: u32,
    }
    /// Buffers of a switch chip, in hundredths of a percent, highest since the last report.
    ChipBuffers { unicast: i32, multicast: i32 }
    /// Buffers of a port, in hundredths of a percent, highest since the last report.
    PortBuffers<'a> {
        ingress_unicast: i32, ingress_multicast: i32, egress_unicast: i32, egress_multicast: i32,
        egress_queue_unicast: XdrList<'a, i32>, egress_queue_multicast: XdrList<'a, i32>,
    }
    /// Tables of a switch chip, used and greatest.
    ChipTables {
        hosts: u32, hosts_max: u32, ipv4: u32, ipv4_max: u32, ipv6: u32, ipv6_max: u32,
        ipv4_ipv6: u32, ipv4_ipv6_max: u32, long_ipv6: u32, long_ipv6_max: u32, routes: u32,
        routes_max: u32, ecmp_next_hops: u32, ecmp_next_hops_max: u32, macs: u32, macs_max: u32,
        ipv4_neighbours: u32, ipv6_neighbours: u32, ipv4_routes: u32, ipv6_routes: u32,
        acl_ingress: u32, acl_ingress_max: u32, acl_ingress_counters: u32,
        acl_ingress_counters_max: u32, acl_ingress_meters: u32, acl_ingress_meters_max: u32,
        acl_ingress_slices: u32, acl_ingress_slices_max: u32, acl_egress: u32, acl_egress_max: u32,
        acl_egress_counters: u32, acl_egress_counters_max: u32, acl_egress_meters: u32,
        acl_egress_meters_max: u32, acl_egress_slices: u32, acl_egress_slices_max: u32,
    }
    /// A virtual interface of Xen.
    XenInterface { index: u32, address: Option<IpAddr>, domain: u32, network: u32, flags: u32 }
    /// GPUs (NVML).
    Gpu {
        devices: u32, processes: u32, gpu_ms: u32, memory_ms: u32, memory_total_bytes: u64,
        memory_free_bytes: u64, ecc_errors: u32, energy_mj: u32, temperature_celsius: u32, fan_percent: u32,
    }
}

/// Optional field at the end, absent from older agents.
impl<'a> Xdr<'a> for Option<GuestCpu> {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        if from.rest().is_empty() {
            return Ok(None);
        }
        from.get().map(Some)
    }
    fn write(&self, to: &mut Vec<u8>) {
        if let Some(guests) = self {
            guests.write(to);
        }
    }
}

records! {
    /// A record of a counter sample.
    CounterRecord {
        /// An interface.
        (0, 1) Interface(GenericInterface),
        /// Ethernet.
        (0, 2) Ethernet(EthernetInterface),
        /// Token ring.
        (0, 3) TokenRing(TokenRing),
        /// 100BASE-VG.
        (0, 4) Vg(VgInterface),
        /// A VLAN.
        (0, 5) Vlan(Vlan),
        /// A member of a link aggregation.
        (0, 7) Lag(LagPort),
        /// The slow path.
        (0, 8) SlowPath(SlowPath),
        /// An optical module.
        (0, 10) Optics(Optics<'a>),
        /// The device's processor.
        (0, 1001) Processor(Processor),
        /// A Wi-Fi radio.
        (0, 1002) Radio(RadioUtilization),
        /// Queue lengths.
        (0, 1003) QueueLength(QueueLength),
        /// OpenFlow's number.
        (0, 1004) OpenFlowPort(OpenFlowPort),
        /// The interface's name.
        (0, 1005) PortName(PortName<'a>),
        /// The machine.
        (0, 2000) HostId(HostId<'a>),
        /// Its adapters.
        (0, 2001) HostAdapters(HostAdapters<'a>),
        /// Its parent.
        (0, 2002) HostParent(HostParent),
        /// Its processors.
        (0, 2003) HostCpu(HostCpu),
        /// Its memory.
        (0, 2004) HostMemory(HostMemory),
        /// Its disks.
        (0, 2005) HostDisk(HostDisk),
        /// Its network.
        (0, 2006) HostNet(HostNet),
        /// IP.
        (0, 2007) Mib2Ip(Mib2Ip),
        /// ICMP.
        (0, 2008) Mib2Icmp(Mib2Icmp),
        /// TCP.
        (0, 2009) Mib2Tcp(Mib2Tcp),
        /// UDP.
        (0, 2010) Mib2Udp(Mib2Udp),
        /// A machine that holds virtual ones.
        (0, 2100) VirtualNode(VirtualNode),
        /// Processors of a virtual machine.
        (0, 2101) VirtualCpu(VirtualCpu),
        /// Memory of a virtual machine.
        (0, 2102) VirtualMemory(VirtualMemory),
        /// Disks of a virtual machine.
        (0, 2103) VirtualDisk(VirtualDisk),
        /// Network of a virtual machine.
        (0, 2104) VirtualNet(VirtualNet),
        /// Xen.
        (4300, 2) Xen(XenInterface),
        /// Buffers of a switch chip.
        (4413, 1) ChipBuffers(ChipBuffers),
        /// Buffers of a port.
        (4413, 2) PortBuffers(PortBuffers<'a>),
        /// Tables of a switch chip.
        (4413, 3) ChipTables(ChipTables),
        /// GPUs.
        (5703, 1) Gpu(Gpu),
    }
}
