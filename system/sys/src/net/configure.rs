//! Devices, addresses, routes and queueing disciplines of a network namespace, set by rtnetlink.
//!
//! A [`Configurator`] belongs to the namespace in which it was opened and works on it from anywhere. Every call
//! returns when the kernel has made the change; nothing is parsed from the output of tools.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use super::netlink::{NESTED, Netlink, attributes, cut, nest, put, u32_at};
use super::route::octets;

/// rtnetlink(7): kinds of messages.
const NEWLINK: u16 = 16;
const DELLINK: u16 = 17;
const GETLINK: u16 = 18;
const NEWADDR: u16 = 20;
const DELADDR: u16 = 21;
const NEWROUTE: u16 = 24;
const DELROUTE: u16 = 25;
const NEWNEIGH: u16 = 28;
const NEWRULE: u16 = 32;
const NEWQDISC: u16 = 36;
const DELQDISC: u16 = 37;
const GETQDISC: u16 = 38;

/// netlink(7): flags of a request.
const REPLACE: u16 = 0x100;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;

/// include/uapi/linux/if_link.h.
const LINK_ADDRESS: u16 = 1;
const LINK_NAME: u16 = 3;
const LINK_MTU: u16 = 4;
const LINK_QDISC: u16 = 6;
const LINK_STATE: u16 = 16;
const LINK_INFO: u16 = 18;
const LINK_STATS64: u16 = 23;
const LINK_NAMESPACE_FD: u16 = 28;
const LINK_GSO_MAX_SEGS: u16 = 40;
const LINK_GSO_MAX_SIZE: u16 = 41;
const LINK_GSO_IPV4_MAX_SIZE: u16 = 63;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VETH_PEER: u16 = 1;
const UP: u32 = 1;
/// RFC 2863: a device whose other end is there too, and through which packets go.
const STATE_UP: u8 = 6;
/// Of devices that do not tell (TAP): then the carrier does.
const STATE_UNKNOWN: u8 = 0;
const LOWER_UP: u32 = 0x1_0000;
/// It drops everything, until the kernel has seen the carrier.
const QDISC_OF_NOTHING: &[u8] = b"noop\0";

/// include/uapi/linux/if_addr.h, rtnetlink.h, fib_rules.h, neighbour.h.
const ADDR_ADDRESS: u16 = 1;
const ADDR_LOCAL: u16 = 2;
const ADDR_LIFETIMES: u16 = 6;
const ADDR_FLAGS: u16 = 8;
const FOR_EVER: u32 = u32::MAX;
/// No duplicate address detection: the address is there at once.
const ADDR_NODAD: u32 = 2;
const ROUTE_TO: u16 = 1;
const ROUTE_DEVICE: u16 = 4;
const ROUTE_VIA: u16 = 5;
const ROUTE_SOURCE: u16 = 7;
const ROUTE_TABLE: u16 = 15;
const PROTOCOL_STATIC: u8 = 4;
const TYPE_UNICAST: u8 = 1;
const TABLE_MAIN: u32 = 254;
const RULE_TO: u16 = 1;
const RULE_FROM: u16 = 2;
const RULE_PRIORITY: u16 = 6;
const RULE_TABLE: u16 = 15;
const RULE_LOOKUP: u8 = 1;
const NEIGHBOUR_ADDRESS: u16 = 1;
const NEIGHBOUR_HARDWARE: u16 = 2;
const NEIGHBOUR_PERMANENT: u16 = 0x80;

/// include/uapi/linux/pkt_sched.h.
const QDISC_KIND: u16 = 1;
const QDISC_OPTIONS: u16 = 2;
const QDISC_STATS2: u16 = 7;
const STATS_QUEUE: u16 = 3;
const QDISC_ROOT: u32 = 0xFFFF_FFFF;
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const LINKLAYER_ETHERNET: u8 = 1;
const NETEM_LOSS: u16 = 5;
const NETEM_RATE: u16 = 6;
const NETEM_RATE64: u16 = 8;
const NETEM_LATENCY64: u16 = 10;
const NETEM_JITTER64: u16 = 11;
const NETEM_SEED: u16 = 13;
const NETEM_LOSS_GILBERT_ELLIOTT: u16 = 2;

/// A device to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDevice<'a> {
    /// Its name, up to 15 bytes.
    pub name: &'a str,
    /// Its Ethernet address.
    pub hardware: [u8; 6],
    /// Its longest packet in bytes.
    pub mtu: u32,
}

/// What a device has received since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Packets received; a super-packet counts once.
    pub received_packets: u64,
    /// Their bytes with Ethernet headers.
    pub received_bytes: u64,
}

/// A route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The prefix that it leads to.
    pub to: (IpAddr, u8),
    /// The next hop; none where the prefix is on the link.
    pub via: Option<IpAddr>,
    /// The device by which it leaves.
    pub device: u32,
    /// The source that packets without one get.
    pub source: Option<IpAddr>,
    /// The routing table; none is the main one.
    pub table: Option<u32>,
}

/// What netem does to packets that leave a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Netem {
    /// How long each is held.
    pub delay: Duration,
    /// Standard deviation of that.
    pub jitter: Duration,
    /// Bits per second; none has no limit.
    pub rate_bps: Option<u64>,
    /// Bytes of the wire that each packet takes beyond its own.
    pub overhead_bytes: i32,
    /// Probability that a packet is lost: of the transition into the bad state and out of it (Gilbert).
    pub loss: Option<(f64, f64)>,
    /// Packets that are held at most.
    pub packets_max: u32,
    /// Of its random numbers; kernels before 6.6 take none and refuse.
    pub seed: Option<u64>,
}

impl Netem {
    /// Packets go on as they come.
    pub const NOTHING: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        rate_bps: None,
        overhead_bytes: 0,
        loss: None,
        packets_max: 1000,
        seed: None,
    };
}

/// A socket to rtnetlink of one network namespace.
#[derive(Debug)]
pub struct Configurator(Netlink);

impl Configurator {
    /// For the namespace in which the calling thread is.
    ///
    /// # Errors
    /// Whatever the socket says.
    pub fn here() -> io::Result<Self> {
        Netlink::open(None).map(Self)
    }

    /// Two devices, each other's only neighbour: one here, one in another namespace. Both are down.
    ///
    /// # Errors
    /// `AlreadyExists` for a name that is taken; else the kernel's refusal.
    pub fn add_veth(
        &self,
        here: &NewDevice<'_>,
        there: &NewDevice<'_>,
        namespace: &impl AsFd,
    ) -> io::Result<()> {
        let mut body = link(0, 0);
        describe(&mut body, here);
        nest(&mut body, LINK_INFO, |info| {
            put(info, INFO_KIND, b"veth");
            nest(info, INFO_DATA, |data| {
                nest(data, VETH_PEER, |peer| {
                    peer.extend(link(0, 0));
                    describe(peer, there);
                    let fd = namespace.as_fd().as_raw_fd();
                    put(peer, LINK_NAMESPACE_FD, &fd.to_ne_bytes());
                });
            });
        });
        self.0.change(NEWLINK, CREATE | EXCLUSIVE, &body)
    }

    /// The index of a device.
    ///
    /// # Errors
    /// `NotFound` where there is none.
    pub fn index_of(&self, name: &str) -> io::Result<u32> {
        let mut body = link(0, 0);
        put(&mut body, LINK_NAME, &[name.as_bytes(), &[0]].concat());
        let answer = self.0.ask(GETLINK, &body)?;
        u32_at(&answer, 4).ok_or_else(cut)
    }

    /// Takes a device up.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_up(&self, device: u32) -> io::Result<()> {
        self.0.change(NEWLINK, 0, &link(device, UP))
    }

    /// Whether packets go through a device: it is up and so is its other end. The kernel sees to that a moment after
    /// both were taken up, and drops what comes earlier.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn is_running(&self, device: u32) -> io::Result<bool> {
        let answer = self.0.ask(GETLINK, &link(device, 0))?;
        let carrier = u32_at(&answer, 8).ok_or_else(cut)? & LOWER_UP != 0;
        let told = |wanted: u16| {
            attributes(answer.get(16..).unwrap_or_default())
                .find(|(kind, _)| *kind == wanted)
                .map_or(&[][..], |(_, value)| value)
        };
        let state = told(LINK_STATE);
        let up = state == [STATE_UP] || (state == [STATE_UNKNOWN] && carrier);
        Ok(up && told(LINK_QDISC) != QDISC_OF_NOTHING)
    }

    /// Removes a device.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn remove(&self, device: u32) -> io::Result<()> {
        self.0.change(DELLINK, 0, &link(device, 0))
    }

    /// Name, address and longest packet of a device that is there and down.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn describe(&self, device: u32, as_this: &NewDevice<'_>) -> io::Result<()> {
        let mut body = link(device, 0);
        describe(&mut body, as_this);
        self.0.change(NEWLINK, 0, &body)
    }

    /// How many segments a packet that leaves by this device may have; with one, the kernel segments before it sends.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_segments_max(&self, device: u32, segments: u32) -> io::Result<()> {
        let mut body = link(device, 0);
        put(&mut body, LINK_GSO_MAX_SEGS, &segments.to_ne_bytes());
        self.0.change(NEWLINK, 0, &body)
    }

    /// How many bytes a super-packet that leaves by this device may have; longer ones are cut into segments first.
    ///
    /// # Errors
    /// The kernel's refusal: before Linux 6.3 it has no such limit for IPv4.
    pub fn set_super_packet_max(&self, device: u32, bytes: u32) -> io::Result<()> {
        let mut body = link(device, 0);
        for limit in [LINK_GSO_MAX_SIZE, LINK_GSO_IPV4_MAX_SIZE] {
            put(&mut body, limit, &bytes.to_ne_bytes());
        }
        self.0.change(NEWLINK, 0, &body)
    }

    /// What a device has sent and received.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn counters(&self, device: u32) -> io::Result<DeviceCounters> {
        let answer = self.0.ask(GETLINK, &link(device, 0))?;
        let mut found = attributes(answer.get(16..).unwrap_or_default());
        let (_, stats) = found.find(|(kind, _)| *kind == LINK_STATS64).ok_or_else(cut)?;
        // struct rtnl_link_stats64: received and sent packets, their bytes.
        let at = |word: usize| {
            let bytes = stats.get(word * 8..word * 8 + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        Ok(DeviceCounters {
            received_packets: at(0).ok_or_else(cut)?,
            received_bytes: at(2).ok_or_else(cut)?,
        })
    }

    /// Gives a device an address, usable at once.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add_address(&self, device: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut body = described_address(device, address, prefix);
        put(&mut body, ADDR_FLAGS, &ADDR_NODAD.to_ne_bytes());
        self.0.change(NEWADDR, CREATE | REPLACE, &body)
    }

    /// Gives a device an address, usable at once by who binds it and by nobody else (deprecated, RFC 4862 section 5.5.4).
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add_address_for_who_binds_it(
        &self,
        device: u32,
        address: IpAddr,
        prefix: u8,
    ) -> io::Result<()> {
        let mut body = described_address(device, address, prefix);
        put(&mut body, ADDR_FLAGS, &ADDR_NODAD.to_ne_bytes());
        // struct ifa_cacheinfo: preferred and valid for so many seconds, and two times that the kernel fills in.
        let lifetimes = [0, FOR_EVER, 0, 0].map(u32::to_ne_bytes).concat();
        put(&mut body, ADDR_LIFETIMES, &lifetimes);
        self.0.change(NEWADDR, CREATE | REPLACE, &body)
    }

    /// Takes an address from a device.
    ///
    /// # Errors
    /// `AddrNotAvailable` where it has not got it; else the kernel's refusal.
    pub fn remove_address(&self, device: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        self.0.change(DELADDR, 0, &described_address(device, address, prefix))
    }

    /// Says once and for all which Ethernet address a neighbour has, so that nobody asks over the wire.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn add_neighbour(&self, device: u32, of: IpAddr, hardware: [u8; 6]) -> io::Result<()> {
        let (octets, family) = octets(of);
        let mut body = vec![family, 0, 0, 0];
        body.extend(device.to_ne_bytes());
        body.extend(NEIGHBOUR_PERMANENT.to_ne_bytes());
        body.extend([0, 0]);
        put(&mut body, NEIGHBOUR_ADDRESS, &octets);
        put(&mut body, NEIGHBOUR_HARDWARE, &hardware);
        self.0.change(NEWNEIGH, CREATE | REPLACE, &body)
    }

    /// Adds a route or replaces the one to the same prefix.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn replace_route(&self, route: &Route) -> io::Result<()> {
        self.0.change(NEWROUTE, CREATE | REPLACE, &described_route(route))
    }

    /// Removes a route.
    ///
    /// # Errors
    /// The kernel's refusal, as when there is none.
    pub fn remove_route(&self, route: &Route) -> io::Result<()> {
        self.0.change(DELROUTE, 0, &described_route(route))
    }

    /// Has packets between these addresses routed by a table of their own; either may be any.
    ///
    /// # Errors
    /// `AlreadyExists` for one that is there; else the kernel's refusal.
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
        let mut body = vec![family, bits(to), bits(from), 0, 0, 0, 0, RULE_LOOKUP];
        body.extend(0_u32.to_ne_bytes());
        for (kind, address) in [(RULE_TO, to), (RULE_FROM, from)] {
            if let Some(address) = address {
                put(&mut body, kind, &octets(address).0);
            }
        }
        put(&mut body, RULE_PRIORITY, &priority.to_ne_bytes());
        put(&mut body, RULE_TABLE, &table.to_ne_bytes());
        self.0.change(NEWRULE, CREATE | EXCLUSIVE, &body)
    }

    /// Has packets leave a device at most this fast, with a token bucket of `burst` bytes and `limit` bytes waiting.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no tbf; else its refusal.
    pub fn replace_tbf(
        &self,
        device: u32,
        rate_bps: u64,
        burst: u32,
        limit: u32,
    ) -> io::Result<()> {
        let bytes_per_second = (rate_bps / 8).max(1);
        let small = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
        let mut body = qdisc(device, 0);
        put(&mut body, QDISC_KIND, b"tbf\0");
        nest(&mut body, QDISC_OPTIONS, |options| {
            // struct tc_tbf_qopt: two tc_ratespec, limit, buffer, mtu.
            let mut parameters = vec![0, LINKLAYER_ETHERNET];
            parameters.resize(8, 0);
            parameters.extend(small.to_ne_bytes());
            parameters.resize(24, 0);
            parameters.extend(limit.to_ne_bytes());
            parameters.resize(36, 0);
            put(options, TBF_PARAMETERS, &parameters);
            put(options, TBF_BURST, &burst.to_ne_bytes());
            if bytes_per_second > u64::from(u32::MAX) {
                put(options, TBF_RATE64, &bytes_per_second.to_ne_bytes());
            }
        });
        self.0.change(NEWQDISC, CREATE | REPLACE, &body)
    }

    /// Has netem treat packets that leave a device.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no netem; else its refusal.
    pub fn replace_netem(&self, device: u32, netem: &Netem) -> io::Result<()> {
        let nanoseconds = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let mut body = qdisc(device, 0);
        put(&mut body, QDISC_KIND, b"netem\0");
        let mut options = Vec::new();
        // struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter.
        options.extend(0_u32.to_ne_bytes());
        options.extend(netem.packets_max.to_ne_bytes());
        options.resize(24, 0);
        put(&mut options, NETEM_LATENCY64, &nanoseconds(netem.delay).to_ne_bytes());
        put(&mut options, NETEM_JITTER64, &nanoseconds(netem.jitter).to_ne_bytes());
        if let Some(rate) = netem.rate_bps {
            let bytes_per_second = (rate / 8).max(1);
            if bytes_per_second >= u64::from(u32::MAX) {
                put(&mut options, NETEM_RATE64, &bytes_per_second.to_ne_bytes());
            }
            let mut parameters = Vec::new();
            let small = u32::try_from(bytes_per_second).unwrap_or(u32::MAX);
            parameters.extend(small.to_ne_bytes());
            parameters.extend(netem.overhead_bytes.to_ne_bytes());
            parameters.resize(16, 0);
            put(&mut options, NETEM_RATE, &parameters);
        }
        if let Some((into, out_of)) = netem.loss {
            nest(&mut options, NETEM_LOSS, |loss| {
                // struct tc_netem_gemodel: p, r, h (loss in the good state is 1 - h... of the bad one), 1 - k.
                let model: Vec<u8> = [share(into), share(out_of), 0, 0]
                    .into_iter()
                    .flat_map(u32::to_ne_bytes)
                    .collect();
                put(loss, NETEM_LOSS_GILBERT_ELLIOTT, &model);
            });
        }
        if let Some(seed) = netem.seed {
            put(&mut options, NETEM_SEED, &seed.to_ne_bytes());
        }
        put(&mut body, QDISC_OPTIONS, &options);
        self.0.change(NEWQDISC, CREATE | REPLACE, &body)
    }

    /// How many packets the queueing discipline of a device dropped; none without one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn qdisc_drops(&self, device: u32) -> io::Result<u64> {
        // Of one that is none (noqueue) the kernel says nothing.
        let answer = match self.0.ask_if_any(GETQDISC, &qdisc(device, 0)) {
            Err(error) if is_nothing_there(&error) => None,
            other => other?,
        };
        let answer = answer.unwrap_or_default();
        let stats = attributes(answer.get(20..).unwrap_or_default())
            .find(|(kind, _)| kind & !NESTED == QDISC_STATS2)
            .and_then(|(_, stats)| attributes(stats).find(|(kind, _)| *kind == STATS_QUEUE));
        // struct gnet_stats_queue: length, backlog, drops.
        Ok(stats.and_then(|(_, queue)| u32_at(queue, 8)).map_or(0, u64::from))
    }

    /// Takes away what [`Self::replace_tbf`] or [`Self::replace_netem`] set; nothing there is no error.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn remove_qdisc(&self, device: u32) -> io::Result<()> {
        match self.0.change(DELQDISC, 0, &qdisc(device, 0)) {
            Err(error) if is_nothing_there(&error) => Ok(()),
            other => other,
        }
    }
}

/// struct ifaddrmsg.
fn described_address(device: u32, address: IpAddr, prefix: u8) -> Vec<u8> {
    let (octets, family) = octets(address);
    let mut body = vec![family, prefix, 0, 0];
    body.extend(device.to_ne_bytes());
    put(&mut body, ADDR_LOCAL, &octets);
    put(&mut body, ADDR_ADDRESS, &octets);
    body
}

/// struct rtmsg.
fn described_route(route: &Route) -> Vec<u8> {
    let (to, family) = octets(route.to.0);
    let mut body = vec![family, route.to.1, 0, 0, 0, PROTOCOL_STATIC, 0, TYPE_UNICAST];
    body.extend(0_u32.to_ne_bytes());
    put(&mut body, ROUTE_TO, &to);
    put(&mut body, ROUTE_DEVICE, &route.device.to_ne_bytes());
    if let Some(via) = route.via {
        put(&mut body, ROUTE_VIA, &octets(via).0);
    }
    if let Some(source) = route.source {
        put(&mut body, ROUTE_SOURCE, &octets(source).0);
    }
    put(&mut body, ROUTE_TABLE, &route.table.unwrap_or(TABLE_MAIN).to_ne_bytes());
    body
}

/// In the words of older and newer kernels.
fn is_nothing_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
}

/// struct ifinfomsg; a device is taken up by the flag and left as it is without.
fn link(device: u32, flags: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(device.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body
}

fn describe(body: &mut Vec<u8>, device: &NewDevice<'_>) {
    put(body, LINK_NAME, &[device.name.as_bytes(), &[0]].concat());
    put(body, LINK_ADDRESS, &device.hardware);
    put(body, LINK_MTU, &device.mtu.to_ne_bytes());
}

/// struct tcmsg.
fn qdisc(device: u32, handle: u32) -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [device, handle, QDISC_ROOT, 0] {
        body.extend(word.to_ne_bytes());
    }
    body
}

/// A probability as the kernel has it.
fn share(probability: f64) -> u32 {
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
    fn two_namespaces_are_joined_and_shaped() {
        let Ok(a) = NetworkNamespace::new() else {
            println!("skipped: needs root");
            return;
        };
        let b = NetworkNamespace::new().unwrap();
        let at_a = a.inside(Configurator::here).unwrap().unwrap();
        let at_b = b.inside(Configurator::here).unwrap().unwrap();
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
            there.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let here = a.inside(|| {
                let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
                std::net::UdpSocket::bind(any).unwrap()
            });
            here.unwrap().send_to(b"hello", there.local_addr().unwrap()).unwrap();
            assert_eq!(there.recv(&mut [0; 9]).unwrap(), 5);
        }
        assert!(at_b.counters(y).unwrap().received_packets >= 2);
        at_a.set_segments_max(x, 1).unwrap();
        at_a.replace_tbf(x, 40_000_000_000, 1 << 20, 1 << 24).unwrap();
        at_a.replace_tbf(x, 10_000_000, 20_000, 1 << 20).unwrap();
        assert_eq!(at_a.qdisc_drops(x).unwrap(), 0);
        at_a.remove_qdisc(x).unwrap();
        at_a.remove_qdisc(x).unwrap();
        assert_eq!(at_a.qdisc_drops(x).unwrap(), 0);
        let route = Route {
            to: ("fd01::".parse().unwrap(), 64),
            via: Some("fd00::2".parse().unwrap()),
            device: x,
            source: Some("fd00::1".parse().unwrap()),
            table: Some(100),
        };
        at_a.replace_route(&route).unwrap();
        at_a.replace_route(&Route { table: None, ..route }).unwrap();
        at_a.add_rule(Some("fd00::1".parse().unwrap()), None, 100, 100).unwrap();
        assert!(at_a.index_of("nothing").is_err());
        at_a.remove(x).unwrap();
        assert!(at_b.index_of("y").is_err());
    }
}
