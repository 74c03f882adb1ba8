//! Addresses that lead elsewhere than they seem to: IPv6 forms of IPv4 addresses, links, cloud metadata.

use std::net::{IpAddr, Ipv4Addr};

/// Metadata services of clouds outside of the link-local prefixes: Alibaba, Oracle, Azure.
const METADATA_IPV4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
];

/// The same in IPv6: Amazon, Google, Scaleway.
const METADATA_IPV6: [[u16; 8]; 3] = [
    [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254],
    [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254],
    [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42],
];

/// Returns the IPv4 address that an IPv6 address contains: IPv4-mapped and IPv4-compatible ones (RFC 4291 section 2.5.5),
/// NAT64 (RFC 6052) and 6to4 (RFC 3056). Other addresses are returned as they are.
#[must_use]
pub fn inner_address(address: IpAddr) -> IpAddr {
    let IpAddr::V6(ipv6) = address.to_canonical() else { return address.to_canonical() };
    let [a, b, c, d, e, f, high, low] = ipv6.segments();
    let ipv4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    };
    match [a, b, c, d, e, f] {
        // `::` and `::1` are no IPv4-compatible addresses.
        [0, 0, 0, 0, 0, 0] if high != 0 || low > 1 => ipv4(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0] => ipv4(high, low),
        [0x2002, ..] => ipv4(b, c),
        _ => address,
    }
}

/// Returns true for link-local addresses, and those of the metadata services of clouds, which give credentials to any
/// program on the machine.
#[must_use]
pub fn is_link_or_metadata(address: IpAddr) -> bool {
    match inner_address(address) {
        IpAddr::V4(ip) => ip.is_link_local() || METADATA_IPV4.contains(&ip),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || METADATA_IPV6.contains(&ip.segments()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inner_ipv4_addresses_are_found() {
        for (address, inner) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("::127.0.0.1", "127.0.0.1"),
            ("64:ff9b::a9fe:a9fe", "169.254.169.254"),
            ("2002:7f00:1::", "127.0.0.1"),
            ("::", "::"),
            ("::1", "::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("64:ff9c::1", "64:ff9c::1"),
        ] {
            let found = inner_address(address.parse().unwrap());
            assert_eq!(found, inner.parse::<IpAddr>().unwrap(), "{address}");
        }
    }

    #[test]
    fn metadata_addresses_are_known() {
        for address in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
            "fd00:ec2::254",
            "fe80::1",
            "100.100.100.200",
        ] {
            assert!(is_link_or_metadata(address.parse().unwrap()), "{address}");
        }
        for address in ["127.0.0.1", "::1", "10.0.0.1", "fd00::1", "192.0.2.1"] {
            assert!(!is_link_or_metadata(address.parse().unwrap()), "{address}");
        }
    }
}
