//! What has few values, counted together: where a packet was seen, whose it is, which sites it joins.

use penstock_scitags::Scitag;

use crate::observe::Direction;
use crate::packet::Version;
use crate::scitag::Verdict;
use crate::sflow::Interface;

/// Where something was seen: in one direction at one exporter nothing is seen twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vantage {
    /// Number of the exporter.
    pub exporter: u32,
    /// Samples of what comes in and of what goes out overlap.
    pub direction: Direction,
}

/// Number of a site, as the caller counts them.
pub type SiteNumber = u16;

/// Sent or received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// By the source.
    Sent,
    /// By the destination.
    Received,
}

/// Whose traffic it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// Nobody says.
    Unlabelled,
    /// It says so and is not believed.
    Untrusted(Scitag),
    /// It is believed.
    Trusted(Scitag),
}

impl From<Verdict> for Label {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Unlabelled => Self::Unlabelled,
            Verdict::Untrusted(tag, ..) => Self::Untrusted(tag),
            Verdict::Trusted(tag, ..) => Self::Trusted(tag),
        }
    }
}

/// All that is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// Where it was seen.
    pub vantage: Vantage,
    /// Came in here.
    pub input: Interface,
    /// Went out there.
    pub output: Interface,
    /// VLAN; of two tags the outer one.
    pub vlan: Option<u16>,
    /// The VLAN within that one (QinQ).
    pub inner_vlan: Option<u16>,
    /// IP version; `None` for what is not IP.
    pub version: Option<Version>,
    /// Whose.
    pub label: Label,
    /// The site it comes from.
    pub source_site: Option<SiteNumber>,
    /// The site it goes to.
    pub destination_site: Option<SiteNumber>,
}

/// A [`Group`] in three words: a third of the time of counting a sample would go into comparing the fields
/// one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PackedGroup([u64; 3]);

/// Where the lower ten bits of the inner VLAN stand in the first word, and the others in the second.
const INNER_LOW_AT: u32 = 22;
const INNER_HIGH_AT: u32 = 52;

impl From<&Group> for PackedGroup {
    #[inline]
    fn from(group: &Group) -> Self {
        // Format in 3 bits, value in 32. Formats beyond 7 do not exist and lose their upper bits.
        let interface = |interface: Interface| {
            let (format, value) = interface.expanded();
            u64::from(format & 7) << 32 | u64::from(value)
        };
        let site = |site: Option<SiteNumber>| site.map_or(0, |site| u64::from(site) + 1);
        let label = match group.label {
            Label::Unlabelled => 0,
            Label::Untrusted(tag) => 1 << 16 | u64::from(tag.number()),
            Label::Trusted(tag) => 2 << 16 | u64::from(tag.number()),
        };
        let version = match group.version {
            None => 0,
            Some(Version::V4) => 1,
            Some(Version::V6) => 2,
        };
        let direction = match group.vantage.direction {
            Direction::Unknown => 0,
            Direction::Ingress => 1,
            Direction::Egress => 2,
        };
        let vlan = |vlan: Option<u16>| vlan.map_or(0, |vlan| u64::from(vlan & 0x0FFF) + 1);
        let (vlan, inner) = (vlan(group.vlan), vlan(group.inner_vlan));
        Self([
            u64::from(group.vantage.exporter) << 32
                | (inner & 0x3FF) << INNER_LOW_AT
                | label << 4
                | version << 2
                | direction,
            // The inner VLAN has 13 bits: ten above the label, three above the interface.
            (inner >> 10) << INNER_HIGH_AT | interface(group.input) << 17 | site(group.source_site),
            // 35 bits, 17 and the lower 12 of the VLAN; 4096 + 1 values need a thirteenth.
            interface(group.output) << 29 | site(group.destination_site) << 12 | vlan & 0x0FFF,
        ])
        .with_vlan_top(vlan >> 12)
    }
}

impl PackedGroup {
    #[inline]
    fn with_vlan_top(mut self, top: u64) -> Self {
        self.0[1] |= top << 63;
        self
    }
}

impl From<&PackedGroup> for Group {
    fn from(packed: &PackedGroup) -> Self {
        let [first, second, third] = packed.0;
        let interface = |bits: u64| Interface::from_expanded((bits >> 32 & 7) as u32, bits as u32);
        let site = |bits: u64| (bits & 0x1_FFFF).checked_sub(1).map(|site| site as SiteNumber);
        let tag = Scitag::from_number(first >> 4 & 0xFFFF);
        Self {
            vantage: Vantage {
                exporter: (first >> 32) as u32,
                direction: match first & 3 {
                    1 => Direction::Ingress,
                    2 => Direction::Egress,
                    _ => Direction::Unknown,
                },
            },
            input: interface(second >> 17 & 0x7_FFFF_FFFF),
            output: interface(third >> 29),
            vlan: (second >> 63 << 12 | third & 0x0FFF).checked_sub(1).map(|vlan| vlan as u16),
            inner_vlan: ((second >> INNER_HIGH_AT & 7) << 10 | first >> INNER_LOW_AT & 0x3FF)
                .checked_sub(1)
                .map(|vlan| vlan as u16),
            version: match first >> 2 & 3 {
                1 => Some(Version::V4),
                2 => Some(Version::V6),
                _ => None,
            },
            label: match (first >> 20 & 3, tag) {
                (1, Ok(tag)) => Label::Untrusted(tag),
                (2, Ok(tag)) => Label::Trusted(tag),
                _ => Label::Unlabelled,
            },
            source_site: site(second),
            destination_site: site(third >> 12),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interface() -> impl Strategy<Value = Interface> {
        (0_u32..8, any::<u32>()).prop_map(|(format, value)| Interface::from_expanded(format, value))
    }

    proptest! {
        #[test]
        fn groups_are_packed_without_loss(
            exporter: u32,
            kinds in (0_u8..3, 0_u8..3, 0_u8..3),
            input in interface(),
            output in interface(),
            vlan in prop::option::of(0_u16..4096),
            inner_vlan in prop::option::of(0_u16..4096),
            sites: (Option<u16>, Option<u16>),
            tag in (1_u64..1024, 1_u64..64),
        ) {
            let tag = Scitag::new(tag.0, tag.1).unwrap();
            let group = Group {
                vantage: Vantage {
                    exporter,
                    direction: [Direction::Ingress, Direction::Egress, Direction::Unknown][kinds.0 as usize],
                },
                input,
                output,
                vlan,
                inner_vlan,
                version: [None, Some(Version::V4), Some(Version::V6)][kinds.1 as usize],
                label: [Label::Unlabelled, Label::Untrusted(tag), Label::Trusted(tag)][kinds.2 as usize],
                source_site: sites.0,
                destination_site: sites.1,
            };
            prop_assert_eq!(Group::from(&PackedGroup::from(&group)), group);
        }
    }
}
