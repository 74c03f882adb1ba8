//! Longest-prefix match of an address: sites by their networks, marking hosts, AS numbers.
//!
//! Prefixes are split once into ranges that do not overlap, so a lookup is one binary search.

use std::net::IpAddr;

use crate::packet::MappedAddress;

/// Most prefixes in a table.
pub const PREFIXES_MAX: usize = 65_536;

/// Range of mapped IPv4 addresses, which `::/0` does not cover.
const IPV4_MAPPED_PREFIX: (u128, u8) = (0xFFFF << 32, 96);

/// Error of building a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// More prefixes than the limit: count and limit.
    #[error("{0} prefixes are too many: at most {1}; join neighbours into shorter ones")]
    TooMany(usize, usize),
    /// More bits than the address has: address, bits, limit.
    #[error("{0}/{1}: a prefix of this version has at most {2} bits")]
    Bits(IpAddr, u8, u8),
}

/// A map from prefixes to values.
#[derive(Debug, Clone)]
pub struct Prefixes<T> {
    /// Start of each range and its value. The first starts at 0.
    pieces: Vec<(u128, Option<T>)>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<T: Copy> Prefixes<T> {
    /// Builds a table of addresses, prefix lengths and values. Bits beyond the prefix are ignored;
    /// of two equal prefixes the later one counts.
    ///
    /// # Errors
    /// When there are too many, or one has too many bits.
    pub fn new(prefixes: impl IntoIterator<Item = (IpAddr, u8, T)>) -> Result<Self, PrefixError> {
        Self::limited(prefixes, PREFIXES_MAX)
    }

    /// As [`Self::new`], with another limit than [`PREFIXES_MAX`].
    ///
    /// # Errors
    /// When there are more than `prefixes_max`, or one has too many bits.
    pub fn limited(
        prefixes: impl IntoIterator<Item = (IpAddr, u8, T)>,
        prefixes_max: usize,
    ) -> Result<Self, PrefixError> {
        let mut ranges = vec![(IPV4_MAPPED_PREFIX.0, IPV4_MAPPED_PREFIX.1, None)];
        for (ip, bits, value) in prefixes {
            let most = if ip.is_ipv4() { 32 } else { 128 };
            if bits > most {
                return Err(PrefixError::Bits(ip, bits, most));
            }
            let bits = if ip.is_ipv4() { bits + 96 } else { bits };
            ranges.push((MappedAddress::from(ip).0 & mask(bits), bits, Some(value)));
            if ranges.len() > prefixes_max + 1 {
                return Err(PrefixError::TooMany(ranges.len() - 1, prefixes_max));
            }
        }
        // Outer prefixes before inner ones; stable, so that the later of two equal ones wins.
        ranges.sort_by_key(|(start, bits, _)| (*start, *bits));
        let mut pieces: Vec<(u128, Option<T>)> = vec![(0, None)];
        let mut open: Vec<(u128, Option<T>)> = Vec::new();
        for (start, bits, value) in ranges {
            close(&mut pieces, &mut open, Some(start));
            open.push((start | !mask(bits), value));
            put(&mut pieces, start, value);
        }
        close(&mut pieces, &mut open, None);
        Ok(Self { pieces })
    }

    /// Value of the longest prefix that contains `address`.
    #[must_use]
    #[inline]
    pub fn find(&self, address: MappedAddress) -> Option<T> {
        let after = self.pieces.partition_point(|(start, _)| *start <= address.0);
        self.pieces.get(after.checked_sub(1)?)?.1
    }

    /// Returns true if no prefix has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pieces.iter().all(|(_, value)| value.is_none())
    }
}

fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

/// Closes the ranges that end before `start`.
fn close<T: Copy>(
    pieces: &mut Vec<(u128, Option<T>)>,
    open: &mut Vec<(u128, Option<T>)>,
    start: Option<u128>,
) {
    while let Some(&(end, _)) = open.last() {
        if start.is_some_and(|start| start <= end) {
            return;
        }
        open.pop();
        let outer = open.last().and_then(|(_, value)| *value);
        if let Some(after) = end.checked_add(1) {
            put(pieces, after, outer);
        }
    }
}

fn put<T: Copy>(pieces: &mut Vec<(u128, Option<T>)>, start: u128, value: Option<T>) {
    match pieces.last_mut() {
        Some(last) if last.0 == start => last.1 = value,
        _ => pieces.push((start, value)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn find(table: &Prefixes<u16>, ip: &str) -> Option<u16> {
        table.find(MappedAddress::from(ip.parse::<IpAddr>().unwrap()))
    }

    #[test]
    fn longest_prefix_of_its_version_wins() {
        let prefix = |ip: &str, bits, value| (ip.parse::<IpAddr>().unwrap(), bits, value);
        let table = Prefixes::new([
            prefix("::", 0, 1),
            prefix("2001:db8::", 32, 2),
            prefix("2001:db8:7::", 48, 3),
            prefix("2001:db8:7::1", 128, 4),
            prefix("192.0.2.0", 24, 5),
            prefix("192.0.2.255", 32, 6),
            prefix("ffff::", 16, 7),
        ])
        .unwrap();
        for (ip, value) in [
            ("::1", Some(1)),
            ("2001:db8::1", Some(2)),
            ("2001:db8:7::", Some(3)),
            ("2001:db8:7::1", Some(4)),
            ("2001:db8:7::2", Some(3)),
            ("2001:db8:8::", Some(2)),
            ("2001:db9::", Some(1)),
            ("192.0.2.1", Some(5)),
            ("192.0.2.255", Some(6)),
            ("192.0.3.0", None),
            ("ffff:ffff::", Some(7)),
        ] {
            assert_eq!(find(&table, ip), value, "{ip}");
        }
        assert_eq!(Prefixes::<u16>::default().find(MappedAddress(0)), None);
        let bits = Prefixes::new([prefix("192.0.2.0", 33, 0)]).unwrap_err();
        assert_eq!(bits.to_string(), "192.0.2.0/33: a prefix of this version has at most 32 bits");
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn matches_linear_search(
            prefixes in prop::collection::vec((0_u32..16, 0_u8..=32), 0..12),
            // Few distinct bits, so that prefixes nest and meet.
            address in 0_u32..16,
        ) {
            let ip = |value: u32| IpAddr::from((value << 28 | value).to_be_bytes());
            let given = prefixes.iter().enumerate().map(|(at, (value, bits))| (ip(*value), *bits, at));
            let table = Prefixes::new(given.clone()).unwrap();
            let address = MappedAddress::from(ip(address));
            let found = given
                .filter(|(ip, bits, _)| address.prefix(*bits) == MappedAddress::from(*ip).prefix(*bits))
                .max_by_key(|(_, bits, at)| (*bits, *at));
            prop_assert_eq!(table.find(address), found.map(|(_, _, at)| at));
        }
    }
}
