//! Configuration of devices, addresses, routes and queueing disciplines of a network namespace by rtnetlink(7).
//!
//! A [`Configurator`] belongs to the namespace in which it was opened, whichever thread uses it. Each call returns when
//! the kernel has acknowledged the change.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::egress::octets;
use super::netlink::{
    IF_OPER_UNKNOWN, IF_OPER_UP, IFF_LOWER_UP, IFF_UP, IFINFOMSG_BYTES, IFLA_GSO_IPV4_MAX_SIZE,
    NLA_F_NESTED, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, TC_H_ROOT, TCMSG_BYTES, attributes,
    nest, put, truncated, u32_at,
};
use super::netlink_socket::NetlinkSocket;

// Constants of the kernel's headers that libc does not have.

/// include/uapi/linux/veth.h.
const VETH_INFO_PEER: u16 = 1;
/// include/uapi/linux/if_addr.h, include/net/addrconf.h.
const IFA_FLAGS: u16 = 8;
const INFINITY_LIFE_TIME: u32 = u32::MAX;
/// include/uapi/linux/fib_rules.h.
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
const FR_ACT_TO_TBL: u8 = 1;
/// include/uapi/linux/gen_stats.h, pkt_sched.h.
const TCA_STATS_QUEUE: u16 = 3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;
const TCA_NETEM_LOSS: u16 = 5;
const TCA_NETEM_RATE: u16 = 6;
const TCA_NETEM_RATE64: u16 = 8;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_NETEM_JITTER64: u16 = 11;
const TCA_NETEM_PRNG_SEED: u16 = 13;
const NETEM_LOSS_GE: u16 = 2;

/// IFLA_QDISC of a device that drops everything because the kernel has not seen its carrier yet.
const NOOP_QDISC: &[u8] = b"noop\0";

/// Name, address and MTU of a device to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDevice<'a> {
    /// Up to 15 bytes (IFNAMSIZ - 1).
    pub name: &'a str,
    /// Ethernet (MAC) address of the device.
    pub hardware: [u8; 6],
    /// In bytes, without the Ethernet header.
    pub mtu: u32,
}

/// Receive counters of a device since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// A super-packet (GRO) counts once.
    pub received_packets: u64,
    /// Received bytes with Ethernet headers.
    pub received_bytes: u64,
}

/// A unicast route (RTM_NEWROUTE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnicastRoute {
    /// Destination prefix: address and length in bits.
    pub to: (IpAddr, u8),
    /// Next hop; `None` where the prefix is on the link.
    pub via: Option<IpAddr>,
    /// Index of the outgoing device.
    pub device: u32,
    /// Preferred source address (RTA_PREFSRC).
    pub source: Option<IpAddr>,
    /// Routing table; `None` is the main table.
    pub table: Option<u32>,
}

/// Parameters of the netem queueing discipline (tc-netem(8)).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Netem {
    /// Mean delay of each packet.
    pub delay: Duration,
    /// Standard deviation of the delay.
    pub jitter: Duration,
    /// Bits per second; `None` is unlimited.
    pub rate_bps: Option<u64>,
    /// Bytes on the wire per packet beyond its length (framing).
    pub overhead_bytes: i32,
    /// Gilbert loss model: probabilities of the transition into the bad state and out of it, per packet.
    pub loss: Option<(f64, f64)>,
    /// Queue limit in packets.
    pub packets_max: u32,
    /// Seed of the random numbers; kernels before 6.6 refuse one.
    pub seed: Option<u64>,
}

impl Netem {
    /// No delay, loss or rate limit.
    pub const PASS_THROUGH: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        rate_bps: None,
        overhead_bytes: 0,
        loss: None,
        packets_max: 1000,
        seed: None,
    };
}

/// An rtnetlink socket of one network namespace.
#[derive(Debug)]
pub struct Configurator(NetlinkSocket);

impl Configurator {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The socket's error.
    pub fn open() -> io::Result<Self> {
        NetlinkSocket::open(None).map(Self)
    }

    /// Creates a veth pair: `here` in this namespace, `there` in `namespace`. Both are down.
    ///
    /// # Errors
    /// `AlreadyExists` for a name in use; else the kernel's error.
    pub fn add_veth(
        &self,
        here: &NewDevice<'_>,
        there: &NewDevice<'_>,
        namespace: &impl AsFd,
    ) -> io::Result<()> {
        let mut body = link_message(0, 0);
        put_identity(&mut body, here);
        nest(&mut body, libc::IFLA_LINKINFO, |info| {
            put(info, libc::IFLA_INFO_KIND, b"veth");
            nest(info, libc::IFLA_INFO_DATA, |data| {
                nest(data, VETH_INFO_PEER, |peer| {
                    peer.extend(link_message(0, 0));
                    put_identity(peer, there);
                    let fd = namespace.as_fd().as_raw_fd();
                    put(peer, libc::IFLA_NET_NS_FD, &fd.to_ne_bytes());
                });
            });
        });
        self.0.change(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &body)
    }

    /// Returns the index of the device with this name.
    ///
    /// # Errors
    /// `NotFound` without such a device.
    pub fn index_of(&self, name: &str) -> io::Result<u32> {
        let mut body = link_message(0, 0);
        put(&mut body, libc::IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        let answer = self.0.request(libc::RTM_GETLINK, &body)?;
        u32_at(&answer, 4).ok_or_else(truncated)
    }

    /// Sets a device up (IFF_UP).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_up(&self, device: u32) -> io::Result<()> {
        self.0.change(libc::RTM_NEWLINK, 0, &link_message(device, IFF_UP))
    }

    /// True if a device passes packets: it and its peer are up, and its queueing discipline is active. The kernel gets
    /// there a moment after both were set up, and drops earlier packets.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn is_running(&self, device: u32) -> io::Result<bool> {
        let answer = self.0.request(libc::RTM_GETLINK, &link_message(device, 0))?;
        let carrier = u32_at(&answer, 8).ok_or_else(truncated)? & IFF_LOWER_UP != 0;
        let attribute = |wanted: u16| {
            attributes(answer.get(IFINFOMSG_BYTES..).unwrap_or_default())
                .find(|(kind, _)| *kind == wanted)
                .map_or(&[][..], |(_, value)| value)
        };
        let state = attribute(libc::IFLA_OPERSTATE);
        let up = state == [IF_OPER_UP] || (state == [IF_OPER_UNKNOWN] && carrier);
        Ok(up && attribute(libc::IFLA_QDISC) != NOOP_QDISC)
    }

    /// Removes a device, and with it the other half of a veth pair.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove(&self, device: u32) -> io::Result<()> {
        self.0.change(libc::RTM_DELLINK, 0, &link_message(device, 0))
    }

    /// Sets name, Ethernet address and MTU of an existing device, which must be down.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_identity(&self, device: u32, identity: &NewDevice<'_>) -> io::Result<()> {
        let mut body = link_message(device, 0);
        put_identity(&mut body, identity);
        self.0.change(libc::RTM_NEWLINK, 0, &body)
    }

    /// Limits the segments of a super-packet on this device (IFLA_GSO_MAX_SEGS); 1 makes the kernel segment in software.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_segments_max(&self, device: u32, segments: u32) -> io::Result<()> {
        let mut body = link_message(device, 0);
        put(&mut body, libc::IFLA_GSO_MAX_SEGS, &segments.to_ne_bytes());
        self.0.change(libc::RTM_NEWLINK, 0, &body)
    }

    /// Limits the bytes of a super-packet on this device, IPv4 and IPv6 (IFLA_GSO_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE).
    ///
    /// # Errors
    /// The kernel's error: before Linux 6.3 it has no limit for IPv4.
    pub fn set_super_packet_max(&self, device: u32, bytes: u32) -> io::Result<()> {
        let mut body = link_message(device, 0);
        for limit in [libc::IFLA_GSO_MAX_SIZE, IFLA_GSO_IPV4_MAX_SIZE] {
            put(&mut body, limit, &bytes.to_ne_bytes());
        }
        self.0.change(libc::RTM_NEWLINK, 0, &body)
    }

    /// Reads the receive counters of a device.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn counters(&self, device: u32) -> io::Result<DeviceCounters> {
        let answer = self.0.request(libc::RTM_GETLINK, &link_message(device, 0))?;
        let mut found = attributes(answer.get(IFINFOMSG_BYTES..).unwrap_or_default());
        let (_, stats) =
            found.find(|(kind, _)| *kind == libc::IFLA_STATS64).ok_or_else(truncated)?;
        // struct rtnl_link_stats64: rx_packets, tx_packets, rx_bytes, tx_bytes.
        let at = |word: usize| {
            let bytes = stats.get(word * 8..word * 8 + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        Ok(DeviceCounters {
            received_packets: at(0).ok_or_else(truncated)?,
            received_bytes: at(2).ok_or_else(truncated)?,
        })
    }

    /// Adds an address to a device without duplicate address detection, so that it is usable at once.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add_address(&self, device: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut body = address_message(device, address, prefix);
        put(&mut body, IFA_FLAGS, &libc::IFA_F_NODAD.to_ne_bytes());
        self.0.change(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Adds a deprecated address (RFC 4862 section 5.5.4) to a device: the kernel uses it only for sockets that bind it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add_deprecated_address(
        &self,
        device: u32,
        address: IpAddr,
        prefix: u8,
    ) -> io::Result<()> {
        let mut body = address_message(device, address, prefix);
        put(&mut body, IFA_FLAGS, &libc::IFA_F_NODAD.to_ne_bytes());
        // struct ifa_cacheinfo: preferred and valid lifetime in seconds, and two times that the kernel fills in.
        let lifetimes = [0, INFINITY_LIFE_TIME, 0, 0].map(u32::to_ne_bytes).concat();
        put(&mut body, libc::IFA_CACHEINFO, &lifetimes);
        self.0.change(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Removes an address from a device.
    ///
    /// # Errors
    /// `AddrNotAvailable` where the device does not have it; else the kernel's error.
    pub fn remove_address(&self, device: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.0.change(libc::RTM_DELADDR, 0, &address_message(device, address, prefix))
    }

    /// Adds a permanent neighbour entry, so that the kernel sends no ARP or neighbour solicitation for it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn add_neighbour(&self, device: u32, of: IpAddr, hardware: [u8; 6]) -> io::Result<()> {
        let (octets, family) = octets(of);
        let mut body = vec![family, 0, 0, 0];
        body.extend(device.to_ne_bytes());
        body.extend(libc::NUD_PERMANENT.to_ne_bytes());
        body.extend([0, 0]);
        put(&mut body, libc::NDA_DST, &octets);
        put(&mut body, libc::NDA_LLADDR, &hardware);
        self.0.change(libc::RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Adds a route or replaces the one to the same prefix.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn replace_route(&self, route: &UnicastRoute) -> io::Result<()> {
        self.0.change(libc::RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, &route_message(route))
    }

    /// Removes the route that matches all fields of `route`.
    ///
    /// # Errors
    /// The kernel's error, also without such a route.
    pub fn remove_route(&self, route: &UnicastRoute) -> io::Result<()> {
        self.0.change(libc::RTM_DELROUTE, 0, &route_message(route))
    }

    /// Adds a policy rule: packets between these addresses use routing table `table`. `None` matches any address.
    ///
    /// # Errors
    /// `AlreadyExists` for an existing rule; else the kernel's error.
    pub fn add_rule(
        &self,
        from: Option<IpAddr>,
        to: Option<IpAddr>,
        priority: u32,
        table: u32,
    ) -> io::Result<()> {
        let family = from.or(to).map_or(0, |address| octets(address).1);
        let bits = |address: Option<IpAddr>| {
            address.map_or(0, |address| u8::try_from(octets(address).0.len() * 8).unwrap_or(0))
        };
        let mut body = vec![family, bits(to), bits(from), 0, 0, 0, 0, FR_ACT_TO_TBL];
        body.extend(0_u32.to_ne_bytes());
        for (kind, address) in [(FRA_DST, to), (FRA_SRC, from)] {
            if let Some(address) = address {
                put(&mut body, kind, &octets(address).0);
            }
        }
        put(&mut body, FRA_PRIORITY, &priority.to_ne_bytes());
        put(&mut body, FRA_TABLE, &table.to_ne_bytes());
        self.0.change(libc::RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, &body)
    }

    /// Sets the token bucket filter (tc-tbf(8)) as root qdisc; `burst` and `limit` (the queue) in bytes.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no tbf; else its error.
    pub fn replace_tbf(
        &self,
        device: u32,
        rate_bps: u64,
        burst: u32,
        limit: u32,
    ) -> io::Result<()> {
        let bytes_per_second = (rate_bps / 8).max(1);
        let small = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
        let mut body = qdisc_message(device, 0);
        put(&mut body, libc::TCA_KIND, b"tbf\0");
        nest(&mut body, libc::TCA_OPTIONS, |options| {
            // struct tc_tbf_qopt: two tc_ratespec, limit, buffer, mtu.
            let mut parameters = vec![0, TC_LINKLAYER_ETHERNET];
            parameters.resize(8, 0);
            parameters.extend(small.to_ne_bytes());
            parameters.resize(24, 0);
            parameters.extend(limit.to_ne_bytes());
            parameters.resize(36, 0);
            put(options, TCA_TBF_PARMS, &parameters);
            put(options, TCA_TBF_BURST, &burst.to_ne_bytes());
            if bytes_per_second > u64::from(u32::MAX) {
                put(options, TCA_TBF_RATE64, &bytes_per_second.to_ne_bytes());
            }
        });
        self.0.change(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Sets netem as root qdisc.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no netem; else its error.
    pub fn replace_netem(&self, device: u32, netem: &Netem) -> io::Result<()> {
        let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let mut body = qdisc_message(device, 0);
        put(&mut body, libc::TCA_KIND, b"netem\0");
        let mut options = Vec::new();
        // struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter.
        options.extend(0_u32.to_ne_bytes());
        options.extend(netem.packets_max.to_ne_bytes());
        options.resize(24, 0);
        put(&mut options, TCA_NETEM_LATENCY64, &nanoseconds(netem.delay).to_ne_bytes());
        put(&mut options, TCA_NETEM_JITTER64, &nanoseconds(netem.jitter).to_ne_bytes());
        if let Some(rate) = netem.rate_bps {
            let bytes_per_second = (rate / 8).max(1);
            if bytes_per_second >= u64::from(u32::MAX) {
                put(&mut options, TCA_NETEM_RATE64, &bytes_per_second.to_ne_bytes());
            }
            let mut parameters = Vec::new();
            let small = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
            parameters.extend(small.to_ne_bytes());
            parameters.extend(netem.overhead_bytes.to_ne_bytes());
            parameters.resize(16, 0);
            put(&mut options, TCA_NETEM_RATE, &parameters);
        }
        if let Some((into, out_of)) = netem.loss {
            nest(&mut options, TCA_NETEM_LOSS, |loss| {
                // struct tc_netem_gemodel: p, r, h (loss in the good state is 1 - h... of the bad one), 1 - k.
                let model: Vec<u8> = [scaled_probability(into), scaled_probability(out_of), 0, 0]
                    .into_iter()
                    .flat_map(u32::to_ne_bytes)
                    .collect();
                put(loss, NETEM_LOSS_GE, &model);
            });
        }
        if let Some(seed) = netem.seed {
            put(&mut options, TCA_NETEM_PRNG_SEED, &seed.to_ne_bytes());
        }
        put(&mut body, libc::TCA_OPTIONS, &options);
        self.0.change(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &body)
    }

    /// Packets that the root qdisc of a device dropped; 0 without one.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn qdisc_drops(&self, device: u32) -> io::Result<u64> {
        // The kernel sends no answer for noqueue.
        let answer = match self.0.request_optional(libc::RTM_GETQDISC, &qdisc_message(device, 0)) {
            Err(error) if is_missing(&error) => None,
            other => other?,
        };
        let answer = answer.unwrap_or_default();
        let stats = attributes(answer.get(TCMSG_BYTES..).unwrap_or_default())
            .find(|(kind, _)| kind & !NLA_F_NESTED == libc::TCA_STATS2)
            .and_then(|(_, stats)| attributes(stats).find(|(kind, _)| *kind == TCA_STATS_QUEUE));
        // struct gnet_stats_queue: qlen, backlog, drops.
        Ok(stats.and_then(|(_, queue)| u32_at(queue, 8)).map_or(0, u64::from))
    }

    /// Removes the root qdisc that [`Self::replace_tbf`] or [`Self::replace_netem`] set; a missing one is no error.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn remove_qdisc(&self, device: u32) -> io::Result<()> {
        match self.0.change(libc::RTM_DELQDISC, 0, &qdisc_message(device, 0)) {
            Err(error) if is_missing(&error) => Ok(()),
            other => other,
        }
    }
}

/// Encodes `struct ifaddrmsg` with both address attributes.
fn address_message(device: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let (octets, family) = octets(address);
    let mut body = vec![family, prefix, 0, 0];
    body.extend(device.to_ne_bytes());
    put(&mut body, libc::IFA_LOCAL, &octets);
    put(&mut body, libc::IFA_ADDRESS, &octets);
    body
}

/// Encodes `struct rtmsg` with its attributes.
fn route_message(route: &UnicastRoute) -> Vec<u8> {
    let (to, family) = octets(route.to.0);
    let mut body = vec![family, route.to.1, 0, 0, 0, libc::RTPROT_STATIC, 0, libc::RTN_UNICAST];
    body.extend(0_u32.to_ne_bytes());
    put(&mut body, libc::RTA_DST, &to);
    put(&mut body, libc::RTA_OIF, &route.device.to_ne_bytes());
    if let Some(via) = route.via {
        put(&mut body, libc::RTA_GATEWAY, &octets(via).0);
    }
    if let Some(source) = route.source {
        put(&mut body, libc::RTA_PREFSRC, &octets(source).0);
    }
    put(
        &mut body,
        libc::RTA_TABLE,
        &route.table.unwrap_or(libc::RT_TABLE_MAIN.into()).to_ne_bytes(),
    );
    body
}

/// True for the errors with which older and newer kernels answer for a missing qdisc.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

/// Encodes `struct ifinfomsg`; only `flags` change.
fn link_message(device: u32, flags: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(device.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body
}

fn put_identity(body: &mut Vec<u8>, device: &NewDevice<'_>) {
    put(body, libc::IFLA_IFNAME, &[device.name.as_bytes(), &[0]].concat());
    put(body, libc::IFLA_ADDRESS, &device.hardware);
    put(body, libc::IFLA_MTU, &device.mtu.to_ne_bytes());
}

/// Encodes `struct tcmsg` of the root qdisc.
fn qdisc_message(device: u32, handle: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [device, handle, TC_H_ROOT, 0] {
        body.extend(word.to_ne_bytes());
    }
    body
}

/// Probability as a share of `u32::MAX`, netem's unit.
fn scaled_probability(probability: f64) -> u32 {
    (probability.clamp(0.0, 1.0) * f64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NetworkNamespace;

    fn device(name: &str, last: u8) -> NewDevice<'_> {
        NewDevice { name, hardware: [2, 0, 0, 0, 0, last], mtu: 9000 }
    }

    #[test]
    fn veth_joins_two_namespaces() {
        let Ok(a) = NetworkNamespace::new() else {
            penstock_testkit::skip(penstock_testkit::Requirement::Root, "needs root");
            return;
        };
        let b = NetworkNamespace::new().unwrap();
        let at_a = a.inside(Configurator::open).unwrap().unwrap();
        let at_b = b.inside(Configurator::open).unwrap().unwrap();
        at_a.add_veth(&device("x", 1), &device("y", 2), &b).unwrap();
        let again = at_a.add_veth(&device("x", 1), &device("z", 2), &b).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let (x, y) = (at_a.index_of("x").unwrap(), at_b.index_of("y").unwrap());
        for (at, device, mine, other, hardware) in
            [(&at_a, x, 1, 2, [2, 0, 0, 0, 0, 2]), (&at_b, y, 2, 1, [2, 0, 0, 0, 0, 1])]
        {
            at.set_up(device).unwrap();
            for (base, prefix) in [("fd00::", 64), ("10.0.0.", 24)] {
                at.add_address(device, format!("{base}{mine}").parse().unwrap(), prefix).unwrap();
                at.add_neighbour(device, format!("{base}{other}").parse().unwrap(), hardware)
                    .unwrap();
            }
        }
        while !(at_a.is_running(x).unwrap() && at_b.is_running(y).unwrap()) {
            std::thread::yield_now();
        }
        for address in ["[fd00::2]:0", "10.0.0.2:0"] {
            let there = b.inside(|| std::net::UdpSocket::bind(address).unwrap()).unwrap();
            there.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            let here = a.inside(|| {
                let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
                std::net::UdpSocket::bind(any).unwrap()
            });
            let here = here.unwrap();
            // The kernel may drop a datagram while it still activates the queues of a device.
            let arrived = (0..100).any(|_| {
                here.send_to(b"hello", there.local_addr().unwrap()).unwrap();
                there.recv(&mut [0; 9]).is_ok_and(|bytes| bytes == 5)
            });
            assert!(arrived, "no datagram reached {address}");
        }
        assert!(at_b.counters(y).unwrap().received_packets >= 2);
        at_a.set_segments_max(x, 1).unwrap();
        at_a.replace_tbf(x, 40_000_000_000, 1 << 20, 1 << 24).unwrap();
        at_a.replace_tbf(x, 10_000_000, 20_000, 1 << 20).unwrap();
        assert_eq!(at_a.qdisc_drops(x).unwrap(), 0);
        at_a.remove_qdisc(x).unwrap();
        at_a.remove_qdisc(x).unwrap();
        assert_eq!(at_a.qdisc_drops(x).unwrap(), 0);
        let route = UnicastRoute {
            to: ("fd01::".parse().unwrap(), 64),
            via: Some("fd00::2".parse().unwrap()),
            device: x,
            source: Some("fd00::1".parse().unwrap()),
            table: Some(100),
        };
        at_a.replace_route(&route).unwrap();
        at_a.replace_route(&UnicastRoute { table: None, ..route }).unwrap();
        at_a.add_rule(Some("fd00::1".parse().unwrap()), None, 100, 100).unwrap();
        assert!(at_a.index_of("nothing").is_err());
        at_a.remove(x).unwrap();
        assert!(at_b.index_of("y").is_err());
    }
}
