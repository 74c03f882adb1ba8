//! Facts that a node reports to the controller: addresses, capacity, counters.

use std::net::{IpAddr, SocketAddr};

use penstock_control::orders::{Capacity, InterfaceCounters};
use penstock_mover::AgentLimits;
use penstock_sys::net::{CountedDevice, preferred_addresses, speed_bps};

use super::Config;

/// Addresses and interfaces in a report, at most.
const REPORTED_ITEMS_MAX: usize = 64;

pub(super) fn addresses(configured: &[SocketAddr], listening: &[SocketAddr]) -> Vec<String> {
    if !configured.is_empty() {
        return configured.iter().map(ToString::to_string).collect();
    }
    let mut found: Vec<SocketAddr> = Vec::new();
    for address in listening {
        match address.ip().is_unspecified() {
            false => found.push(*address),
            true => {
                let family = |ip: &IpAddr| address.is_ipv6() || ip.is_ipv4();
                let all = preferred_addresses().into_iter().map(|(_, ip)| ip).filter(family);
                found.extend(all.map(|ip| SocketAddr::new(ip, address.port())));
            }
        }
    }
    // IPv6 first: it carries labels.
    found.sort_by_key(|address| (is_near(address.ip()), address.is_ipv4()));
    found.dedup();
    if found.first().is_some_and(|address| !is_near(address.ip())) {
        found.retain(|address| !is_near(address.ip()));
    }
    found.iter().take(REPORTED_ITEMS_MAX).map(ToString::to_string).collect()
}

/// True for loopback and link-local addresses.
fn is_near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local(),
    }
}

/// Capacity of this host.
pub(super) fn capacity(config: &Config, limits: &AgentLimits) -> Capacity {
    let speeds = || -> Option<u64> {
        let names = devices(&config.interfaces).into_iter().map(|device| device.name);
        let known: Vec<u64> =
            names.filter_map(|name| speed_bps(&name).ok().flatten()).map(|(bps, _)| bps).collect();
        (!known.is_empty()).then(|| known.iter().sum())
    };
    let interfaces = config.network_bps.or_else(speeds);
    Capacity {
        network_bps: interfaces.into_iter().chain(limits.rate_bps).min(),
        read_bps: config.read_bps,
        write_bps: config.write_bps,
        transfers: u32::try_from(limits.transfers).unwrap_or(u32::MAX),
        streams: u32::try_from(limits.streams).unwrap_or(u32::MAX),
    }
}

/// Counters of the named interfaces, or of all that are up, with their addresses at which the mover is
/// reachable.
pub(super) fn interfaces(named: &[String], listening: &[SocketAddr]) -> Vec<InterfaceCounters> {
    let is_reached = |ip: IpAddr| {
        listening
            .iter()
            .any(|at| at.ip() == ip || (at.ip().is_unspecified() && (at.is_ipv6() || ip.is_ipv4())))
    };
    let all = preferred_addresses();
    let addresses = |name: &str| {
        let own = all.iter().filter(|(of, ip)| of == name && !is_near(*ip) && is_reached(*ip));
        own.take(REPORTED_ITEMS_MAX).map(|(_, ip)| ip.to_string()).collect()
    };
    let counters = |device: CountedDevice| InterfaceCounters {
        addresses: addresses(&device.name),
        name: device.name,
        sent_bytes: device.statistics.tx_bytes,
        received_bytes: device.statistics.rx_bytes,
    };
    devices(named).into_iter().map(counters).collect()
}

fn devices(named: &[String]) -> Vec<CountedDevice> {
    // Best effort: nothing depends on counters.
    let mut all = CountedDevice::all().unwrap_or_default();
    all.retain(|device| match named {
        [] => device.up && device.ethernet && device.name != "lo",
        named => named.contains(&device.name),
    });
    all.truncate(REPORTED_ITEMS_MAX);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reported_addresses_are_reachable() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let configured = [parse("[2001:db8::1]:8620")];
        assert_eq!(addresses(&configured, &[parse("[::]:1")]), ["[2001:db8::1]:8620"]);
        assert_eq!(addresses(&[], &[parse("127.0.0.1:5")]), ["127.0.0.1:5"]);
        let both = [parse("127.0.0.1:5"), parse("192.0.2.1:5"), parse("[2001:db8::2]:5")];
        assert_eq!(addresses(&[], &both), ["[2001:db8::2]:5", "192.0.2.1:5"]);
        assert!(!addresses(&[], &[parse("[::]:7")]).is_empty());
    }
}
