//! Networks in which RDMA may carry copies that are encrypted elsewhere.
//!
//! For: private networks whose operators take the path itself as protection. Both ends must name the network. Control
//! connections, and streams that use TCP, are encrypted there, too.

use std::net::IpAddr;
use std::sync::Arc;

use penstock_marker::Prefix;

/// Networks, IPv4 ones as IPv4-mapped; none by default. Clones share them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleartextNetworks(Arc<[Prefix]>);

impl CleartextNetworks {
    /// True for no networks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if one of them has this address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl FromIterator<Prefix> for CleartextNetworks {
    fn from_iter<T: IntoIterator<Item = Prefix>>(networks: T) -> Self {
        Self(networks.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn addresses_match_by_prefix() {
        let ten = Prefix::new(Ipv4Addr::new(10, 1, 0, 0).to_ipv6_mapped(), 96 + 16);
        let six = Prefix::new("2001:db8:7::".parse().unwrap(), 48);
        let networks: CleartextNetworks = [ten, six].into_iter().collect();
        let has = |address: &str| networks.contains(address.parse().unwrap());
        assert!(has("10.1.255.255") && has("::ffff:10.1.0.1") && has("2001:db8:7:ffff::1"));
        assert!(!has("10.2.0.0") && !has("2001:db8:8::1") && !has("::1"));
        assert!(!CleartextNetworks::default().contains("10.1.0.1".parse().unwrap()));
    }
}
