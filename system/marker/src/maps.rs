//! Layouts of keys and values in the kernel's maps, as bytes; `bpf/maps.h` declares the same in C.
//!
//! Byte arrays, so that no unsafe code is needed to pass them to the kernel. Numbers are in native byte order,
//! addresses and ports in network order. A change of any layout needs another [`FORMAT`].

use std::net::Ipv6Addr;

use penstock_scitags::Scitag;

use crate::rule::{AddressMatch, LabelAction, Method, Prefix, Protocol, mask};

/// Directory of the pinned maps; versions with another layout use another one.
pub(crate) const FORMAT: &str = "maps2";

/// Names of the pinned maps.
pub(crate) const NAMES: [&str; 11] = [
    "sockets",
    "settings",
    "shapes",
    "rules",
    "cgroups",
    "programs",
    "leaving",
    "slots",
    "slots_taken",
    "labelled",
    "passed",
];

/// Sizes of keys and values in bytes.
pub(crate) const MAP_SIZES: [(&str, usize, usize); 10] = [
    ("sockets", 4, size_of::<TagValue>()),
    ("settings", 4, size_of::<SettingsValue>()),
    ("shapes", 4, size_of::<ShapesValue>()),
    ("rules", size_of::<RuleKey>(), size_of::<RuleValue>()),
    ("cgroups", 8, size_of::<ActionBytes>()),
    ("programs", size_of::<ProgramKey>(), size_of::<ActionBytes>()),
    ("slots", size_of::<LabelKey>(), 4),
    ("slots_taken", 4, 4),
    ("labelled", 4, size_of::<CountValue>()),
    ("passed", 4, size_of::<CountValue>()),
];

/// Most shapes of rules at once.
pub const SHAPES_MAX: usize = 32;

const SHAPE_BYTES: usize = 40;

pub(crate) type ActionBytes = [u8; 8];
pub(crate) type RuleKey = [u8; 40];
pub(crate) type RuleValue = [u8; 16];
pub(crate) type ShapesValue = [u8; SHAPES_MAX * SHAPE_BYTES];
pub(crate) type SettingsValue = [u8; 16];
pub(crate) type TagValue = [u8; 32];
pub(crate) type ProgramKey = [u8; 16];
pub(crate) type LabelKey = [u8; 4];
pub(crate) type CountValue = [u8; 16];

/// Source of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The file of rules.
    File,
    /// A line on the pipe.
    Pipe,
    /// The HTTP API.
    Api,
}

impl Origin {
    /// `file`, `pipe` or `api`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Pipe => "pipe",
            Self::Api => "api",
        }
    }
}

pub(crate) fn action_bytes(action: LabelAction) -> ActionBytes {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&action.base_label().to_ne_bytes());
    bytes[4..6].copy_from_slice(&action.tag().owner().to_be_bytes());
    bytes[6] = action.tag().activity();
    bytes[7] = action.method().bits();
    bytes
}

pub(crate) fn action_of(bytes: &[u8]) -> Option<LabelAction> {
    let owner = u16::from_be_bytes(bytes.get(4..6)?.try_into().ok()?);
    let tag = Scitag::new(owner.into(), (*bytes.get(6)?).into()).ok()?;
    LabelAction::new(tag, Method::from_bits(*bytes.get(7)?)?).ok()
}

pub(crate) fn rule_value(action: LabelAction, origin: Origin, until_s: u32) -> RuleValue {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&action_bytes(action));
    bytes[8] = origin as u8;
    bytes[12..].copy_from_slice(&until_s.to_ne_bytes());
    bytes
}

pub(crate) fn rule_of(value: &RuleValue) -> Option<(LabelAction, Origin, u32)> {
    let origin = [Origin::File, Origin::Pipe, Origin::Api]
        .into_iter()
        .find(|origin| *origin as u8 == value[8])?;
    Some((action_of(value)?, origin, u32_at(value, 12)))
}

pub(crate) fn rule_key(rule: &AddressMatch, shape: u8, generation: u8) -> RuleKey {
    let mut key = [0; 40];
    key[..16].copy_from_slice(&rule.source.address().octets());
    key[16..32].copy_from_slice(&rule.destination.address().octets());
    key[32..34].copy_from_slice(&rule.source_port.unwrap_or(0).to_be_bytes());
    key[34..36].copy_from_slice(&rule.destination_port.unwrap_or(0).to_be_bytes());
    key[36] = rule.protocol.map_or(0, Protocol::number);
    key[37] = shape;
    key[38] = generation;
    key
}

pub(crate) fn generation_of(key: &RuleKey) -> u8 {
    key[38]
}

/// Decodes a key by its shape.
pub(crate) fn match_of(key: &RuleKey, shapes: &[RuleShape]) -> Option<AddressMatch> {
    let shape = shapes.get(usize::from(key[37]))?;
    let address = |at: usize| <[u8; 16]>::try_from(&key[at..at + 16]).ok().map(Ipv6Addr::from);
    let port = |at: usize| u16::from_be_bytes([key[at], key[at + 1]]);
    Some(AddressMatch {
        source: Prefix::new(address(0)?, shape.source),
        destination: Prefix::new(address(16)?, shape.destination),
        source_port: shape.source_port.then(|| port(32)),
        destination_port: shape.destination_port.then(|| port(34)),
        protocol: if shape.protocol { Some(Protocol::from_number(key[36])?) } else { None },
    })
}

/// Fields that a rule matches: prefix lengths in bits, ports, protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RuleShape {
    pub(crate) source: u8,
    pub(crate) destination: u8,
    pub(crate) source_port: bool,
    pub(crate) destination_port: bool,
    pub(crate) protocol: bool,
}

impl RuleShape {
    pub(crate) fn of(rule: &AddressMatch) -> Self {
        Self {
            source: rule.source.length(),
            destination: rule.destination.length(),
            source_port: rule.source_port.is_some(),
            destination_port: rule.destination_port.is_some(),
            protocol: rule.protocol.is_some(),
        }
    }

    /// Count of matched bits: more bits are more specific.
    pub(crate) fn bits(&self) -> u32 {
        u32::from(self.source)
            + u32::from(self.destination)
            + 16 * u32::from(self.source_port)
            + 16 * u32::from(self.destination_port)
            + 8 * u32::from(self.protocol)
    }
}

pub(crate) fn shapes_value(shapes: &[RuleShape]) -> ShapesValue {
    let mut value = [0; SHAPES_MAX * SHAPE_BYTES];
    for (shape, bytes) in shapes.iter().zip(value.chunks_exact_mut(SHAPE_BYTES)) {
        bytes[..16].copy_from_slice(&mask(shape.source).to_be_bytes());
        bytes[16..32].copy_from_slice(&mask(shape.destination).to_be_bytes());
        bytes[32..34].fill(if shape.source_port { 0xFF } else { 0 });
        bytes[34..36].fill(if shape.destination_port { 0xFF } else { 0 });
        bytes[36] = if shape.protocol { 0xFF } else { 0 };
        bytes[37] = 1;
    }
    value
}

pub(crate) fn shapes_of(value: &ShapesValue) -> Vec<RuleShape> {
    let length = |bytes: &[u8]| bytes.iter().map(|byte| byte.count_ones() as u8).sum();
    value
        .chunks_exact(SHAPE_BYTES)
        .take_while(|bytes| bytes[37] != 0)
        .map(|bytes| RuleShape {
            source: length(&bytes[..16]),
            destination: length(&bytes[16..32]),
            source_port: bytes[32] != 0,
            destination_port: bytes[34] != 0,
            protocol: bytes[36] != 0,
        })
        .collect()
}

/// Global settings of the eBPF programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProgramSettings {
    /// Incremented with each change of address rules; invalidates cached look-ups.
    pub(crate) epoch: u32,
    pub(crate) cgroup_levels: u32,
    pub(crate) programs: bool,
    pub(crate) destination: bool,
}

impl ProgramSettings {
    /// Active set of address rules, 0 or 1.
    pub(crate) fn generation(self) -> u8 {
        (self.epoch & 1) as u8
    }

    pub(crate) fn value(self) -> SettingsValue {
        let words =
            [self.epoch, self.cgroup_levels, u32::from(self.programs), u32::from(self.destination)];
        let mut value = [0; 16];
        for (word, bytes) in words.into_iter().zip(value.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
        value
    }

    pub(crate) fn of(value: &SettingsValue) -> Self {
        Self {
            epoch: u32_at(value, 0),
            cgroup_levels: u32_at(value, 4),
            programs: u32_at(value, 8) != 0,
            destination: u32_at(value, 12) != 0,
        }
    }
}

fn u32_at(bytes: &[u8; 16], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Packets and bytes of one CPU.
pub(crate) fn count_of(value: &CountValue) -> (u64, u64) {
    let word = |at: usize| u64::from_ne_bytes(value[at..at + 8].try_into().expect("8 bytes"));
    (word(0), word(8))
}

/// The kernel's name of a program: at most 15 bytes, the rest zero.
pub(crate) fn program_key(name: &str) -> Option<ProgramKey> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > 15 || bytes.contains(&0) {
        return None;
    }
    let mut key = [0; 16];
    key[..bytes.len()].copy_from_slice(bytes);
    Some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn rules_round_trip(
            source: u128, destination: u128, source_bits in 0_u8..=128, destination_bits in 0_u8..=128,
            source_port: Option<u16>, destination_port: Option<u16>, protocol: bool, until: u32,
        ) {
            let rule = AddressMatch {
                source: Prefix::new(Ipv6Addr::from_bits(source), source_bits),
                destination: Prefix::new(Ipv6Addr::from_bits(destination), destination_bits),
                source_port,
                destination_port,
                protocol: protocol.then_some(Protocol::Tcp),
            };
            let shapes = shapes_of(&shapes_value(&[RuleShape::of(&AddressMatch::ALL), RuleShape::of(&rule)]));
            prop_assert_eq!(match_of(&rule_key(&rule, 1, 1), &shapes), Some(rule));
            let action = LabelAction::new(Scitag::new(3, 14).unwrap(), Method::Both).unwrap();
            prop_assert_eq!(
                rule_of(&rule_value(action, Origin::Pipe, until)),
                Some((action, Origin::Pipe, until))
            );
        }

        #[test]
        fn arbitrary_map_bytes_never_panic(key: [u8; 32], value: [u8; 16]) {
            let mut rule = [0; 40];
            rule[8..].copy_from_slice(&key);
            let _ = match_of(&rule, &[RuleShape::of(&AddressMatch::ALL)]);
            let _ = rule_of(&value);
            let _ = ProgramSettings::of(&value);
        }
    }
}
