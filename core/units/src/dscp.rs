//! Differentiated services code point (DSCP, RFC 2474): the class of a packet in six bits of the IP header.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names of code points: `default` and class selectors (RFC 2474), AF (RFC 2597), EF (RFC 3246), VA (RFC 5865), LE (RFC 8622).
const DSCP_NAMES: [(&str, u8); 23] = [
    ("default", 0),
    ("le", 1),
    ("cs1", 8),
    ("af11", 10),
    ("af12", 12),
    ("af13", 14),
    ("cs2", 16),
    ("af21", 18),
    ("af22", 20),
    ("af23", 22),
    ("cs3", 24),
    ("af31", 26),
    ("af32", 28),
    ("af33", 30),
    ("cs4", 32),
    ("af41", 34),
    ("af42", 36),
    ("af43", 38),
    ("cs5", 40),
    ("va", 44),
    ("ef", 46),
    ("cs6", 48),
    ("cs7", 56),
];

/// Other names that are accepted.
const DSCP_ALIASES: [(&str, u8); 2] = [("cs0", 0), ("voice-admit", 44)];

/// A code point, 0 to 63. Parses and prints names; one without a name is printed as its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Dscp(u8);

/// A text or number that is no code point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{}' is not a DSCP: write 0 to 63, 0x00 to 0x3f, or default, le, ef, va (voice-admit), cs0 to cs7, or af11 to af43",
    text.escape_debug()
)]
pub struct ParseDscpError {
    text: String,
}

impl Dscp {
    /// Best effort, the code point of packets without another one.
    pub const DEFAULT: Self = Self(0);
    /// Lower effort, below best effort (RFC 8622).
    pub const LOWER_EFFORT: Self = Self(1);

    /// Creates a code point; `None` above 63.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < 64 { Some(Self(number)) } else { None }
    }

    /// Number, 0 to 63.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Byte of the IP header with this code point (type of service of IPv4, traffic class of IPv6), without ECN.
    #[must_use]
    pub const fn traffic_class(self) -> u8 {
        self.0 << 2
    }
}

impl FromStr for Dscp {
    type Err = ParseDscpError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.to_ascii_lowercase();
        let named = DSCP_NAMES.iter().chain(&DSCP_ALIASES).find(|(known, _)| *known == name);
        if let Some((_, number)) = named {
            return Ok(Self(*number));
        }
        let (digits, radix) = match name.strip_prefix("0x") {
            Some(digits) => (digits, 16),
            None => (name.as_str(), 10),
        };
        // A sign is no part of a code point.
        let is_number = digits.starts_with(|first: char| first.is_ascii_hexdigit());
        let number = u8::from_str_radix(digits, radix).ok().filter(|_| is_number);
        number.and_then(Self::new).ok_or_else(|| ParseDscpError { text: text.to_owned() })
    }
}

impl fmt::Display for Dscp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DSCP_NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.pad(name),
            None => self.0.fmt(f),
        }
    }
}

impl Serialize for Dscp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Dscp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DscpVisitor;

        impl serde::de::Visitor<'_> for DscpVisitor {
            type Value = Dscp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a DSCP: a name such as \"af31\", or 0 to 63")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Dscp, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Dscp, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Dscp, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(DscpVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_numbers_are_parsed() {
        for (text, number) in [
            ("0", 0),
            ("default", 0),
            ("cs0", 0),
            ("LE", 1),
            ("46", 46),
            ("0x2E", 46),
            ("0X2e", 46),
            ("Ef", 46),
            ("va", 44),
            ("voice-admit", 44),
            ("af43", 38),
            ("63", 63),
            ("0x3f", 63),
        ] {
            assert_eq!(text.parse::<Dscp>().map(Dscp::number), Ok(number), "{text}");
        }
    }

    #[test]
    fn classes_follow_their_formulas() {
        for class in 1..=7 {
            assert_eq!(format!("cs{class}").parse(), Ok(Dscp(8 * class)));
        }
        for (class, drop) in (1..=4).flat_map(|class| (1..=3).map(move |drop| (class, drop))) {
            let text = format!("af{class}{drop}");
            assert_eq!(text.parse(), Ok(Dscp(8 * class + 2 * drop)), "{text}");
        }
        assert_eq!(Dscp(46).traffic_class(), 0xb8);
        assert_eq!(Dscp(63).traffic_class(), 0xfc);
    }

    #[test]
    fn refusal_names_accepted_values() {
        for text in ["", "64", "0x40", "256", "-1", "+1", "0x", "0x+1", "af44", "cs8", "gold", " 1"]
        {
            let error = text.parse::<Dscp>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("'{text}' is not a DSCP: ")), "{error}");
            assert!(error.contains("0 to 63") && error.contains("af11 to af43"), "{error}");
        }
    }

    #[test]
    fn unnamed_points_print_numbers() {
        let shown = |number| Dscp(number).to_string();
        assert_eq!(["default", "le", "2", "va", "63"], [0, 1, 2, 44, 63].map(shown)[..]);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn text_of_each_point_is_parsed(number in 0_u8..64, other in ".{0,12}") {
            let dscp = Dscp::new(number).expect("below 64");
            prop_assert_eq!(dscp.to_string().parse(), Ok(dscp));
            prop_assert_eq!(format!("{number}").parse(), Ok(dscp));
            prop_assert_eq!(format!("{number:#x}").parse(), Ok(dscp));
            let _ = other.parse::<Dscp>();
        }
    }
}
