//! Addresses of this machine's interfaces, and the egress interface for a host.
//!
//! Errors give an empty answer: callers use it as a hint for NUMA placement.

use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::ptr;

/// Name of the egress interface for packets to `host`.
pub fn interface_towards(host: &str) -> Option<String> {
    let peer = (host, 9).to_socket_addrs().ok()?.next()?;
    let any: IpAddr =
        if peer.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing; it only queries the routing table.
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    interface_with(socket.local_addr().ok()?.ip())
}

/// True if an interface of this machine has the address, or it is a loopback address.
pub fn is_own_address(address: IpAddr) -> bool {
    address.to_canonical().is_loopback() || interface_with(address).is_some()
}

/// Names and addresses of all interfaces of this machine, in the kernel's order.
pub fn own_addresses() -> Vec<(String, IpAddr)> {
    let mut all = Vec::new();
    for_each_address(|address, name| {
        all.push((name.to_string_lossy().into_owned(), address));
        false
    });
    all
}

/// [`own_addresses`] without deprecated ones (RFC 4862 section 5.5.4), which only explicit binds use.
pub fn preferred_addresses() -> Vec<(String, IpAddr)> {
    let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6").unwrap_or_default();
    let deprecated: Vec<Ipv6Addr> = table.lines().filter_map(deprecated).collect();
    let mut all = own_addresses();
    all.retain(|(_, ip)| !matches!(ip, IpAddr::V6(ip) if deprecated.contains(ip)));
    all
}

/// The address of a line of `if_inet6` (address, index, prefix, scope, flags in hexadecimal, name), if it is deprecated.
fn deprecated(line: &str) -> Option<Ipv6Addr> {
    let mut words = line.split_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    (flags & libc::IFA_F_DEPRECATED != 0).then(|| Ipv6Addr::from(address))
}

/// Name of the interface that has the address.
pub fn interface_with(address: IpAddr) -> Option<String> {
    // Dual-stack sockets report IPv4 peers as IPv4-mapped IPv6 addresses.
    let address = address.to_canonical();
    let mut found = None;
    for_each_address(|has, name| {
        if has == address {
            found = Some(name.to_string_lossy().into_owned());
        }
        found.is_some()
    });
    found
}

/// Calls `stop` with each address and its interface's name, until it returns true.
fn for_each_address(mut stop: impl FnMut(IpAddr, &CStr) -> bool) {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the pointer is valid for the write of one pointer.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return;
    }
    let mut next = first;
    while !next.is_null() {
        // SAFETY: getifaddrs gave a list whose entries stay valid until freeifaddrs.
        let entry = unsafe { &*next };
        // SAFETY: the name is a C string that lives as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        if address_of(entry).is_some_and(|address| stop(address, name)) {
            break;
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs and nothing borrowed from it is kept.
    unsafe { libc::freeifaddrs(first) };
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    if entry.ifa_addr.is_null() {
        return None;
    }
    // SAFETY: the address is at least a sockaddr, whose family says what it really is.
    match i32::from(unsafe { (*entry.ifa_addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a sockaddr_in.
            let v4 = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in>() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family is a sockaddr_in6.
            let v6 = unsafe { &*entry.ifa_addr.cast::<libc::sockaddr_in6>() };
            Some(Ipv6Addr::from(v6.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_through_itself() {
        assert_eq!(interface_towards("127.0.0.1").as_deref(), Some("lo"));
        assert_eq!(interface_towards("no such host"), None);
    }

    #[test]
    fn own_addresses_are_those_of_interfaces() {
        assert!(own_addresses().contains(&("lo".to_owned(), Ipv4Addr::LOCALHOST.into())));
        assert!(is_own_address(Ipv4Addr::LOCALHOST.into()));
        assert!(is_own_address(Ipv4Addr::new(127, 9, 9, 9).into()));
        assert!(is_own_address(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into()));
        assert!(!is_own_address(Ipv4Addr::new(192, 0, 2, 1).into()));
        assert!(preferred_addresses().iter().all(|one| own_addresses().contains(one)));
    }

    #[test]
    fn deprecated_addresses_have_the_flag() {
        let line = "fd706e73800000000000000000000001 02 80 00 a0     eth0";
        assert_eq!(deprecated(line), Some("fd70:6e73:8000::1".parse().unwrap()));
        assert_eq!(deprecated("fd706e73000000000000000000000001 02 40 00 82     eth0"), None);
        assert_eq!(deprecated("nonsense"), None);
    }
}
