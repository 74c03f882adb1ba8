//! Parsing and formatting of quantities: bytes (`4MiB`), bit rates (`10G`), durations (`65ms`), and of DSCP (`af31`).
//!
//! Prefixes are SI (`k M G T P`, powers of 1000) or binary (`Ki Mi Gi Ti Pi`, powers of 1024), for sizes and rates alike.
//! Fractions are accepted and rounded to a whole number of units (`1.5G`). Parsing never panics; every error names the
//! text and shows a valid example.

#![forbid(unsafe_code)]

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use dscp::{Dscp, ParseDscpError};

mod dscp;

/// A text that does not parse as the expected quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {what}: write it like {example}")]
pub struct ParseQuantityError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteCount(pub u64);

/// A rate in bits per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BitRate(pub u64);

impl ByteCount {
    const WHAT: (&'static str, &'static str) = ("a number of bytes", "4MiB, 500M or 65536");
}

impl BitRate {
    const WHAT: (&'static str, &'static str) =
        ("a rate in bits per second", "10G, 400M or 2.5Gb/s");

    /// Mean rate of `bytes` over `elapsed`; zero if `elapsed` is zero.
    #[must_use]
    pub fn over(bytes: u64, elapsed: Duration) -> Self {
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 { Self(0) } else { Self((bytes as f64 * 8.0 / seconds) as u64) }
    }

    /// Converts to bytes per second, rounded down.
    #[must_use]
    pub const fn bytes_per_second(self) -> u64 {
        self.0 / 8
    }
}

impl FromStr for ByteCount {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = split(text, Self::WHAT)?;
        let prefix = match unit {
            "" | "B" => "",
            _ => unit.strip_suffix('B').unwrap_or(unit),
        };
        let multiplier = prefix_multiplier(prefix).ok_or_else(|| failed(text, Self::WHAT))?;
        scaled(number, multiplier).map(Self).ok_or_else(|| failed(text, Self::WHAT))
    }
}

impl FromStr for BitRate {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = split(text, Self::WHAT)?;
        let unit = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps")).unwrap_or(unit);
        let (prefix, bits) = match unit.strip_suffix('B') {
            Some(prefix) => (prefix, 8),
            None => {
                (unit.strip_suffix("bit").or_else(|| unit.strip_suffix('b')).unwrap_or(unit), 1)
            }
        };
        let multiplier = prefix_multiplier(prefix).ok_or_else(|| failed(text, Self::WHAT))?;
        scaled(number, multiplier * bits).map(Self).ok_or_else(|| failed(text, Self::WHAT))
    }
}

/// Parses a duration: `65ms`, `10s`, `2m`, `1.5h`, `3d`; a bare number is seconds.
///
/// # Errors
/// When the text is not a number with one of the units `ns us ms s m min h d`, or overflows.
pub fn parse_duration(text: &str) -> Result<Duration, ParseQuantityError> {
    const WHAT: (&str, &str) = ("a duration", "65ms, 10s or 2m");
    let (number, unit) = split(text, WHAT)?;
    let nanos = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" | "min" => 60 * 1_000_000_000,
        "h" => 3_600 * 1_000_000_000,
        "d" => 86_400 * 1_000_000_000,
        _ => return Err(failed(text, WHAT)),
    };
    scaled(number, nanos).map(Duration::from_nanos).ok_or_else(|| failed(text, WHAT))
}

/// Formats a duration: `12ms`, `3.4s`, `2m05s`, `1h04m`, `3d02h`.
#[must_use]
pub fn display_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..=9 => format!("{:.1}s", duration.as_secs_f64()),
        10..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Formats a count with its noun, in the plural unless it is one: `1 file`, `2 files`, `0 files`.
#[must_use]
pub fn display_count(count: u64, noun: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}

/// Formats a latency in three significant digits: `850 ns`, `12.3 us`, `65.0 ms`.
#[must_use]
pub fn display_latency(latency: Duration) -> String {
    const TIME_UNITS: [(&str, f64); 4] = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let seconds = latency.as_secs_f64();
    if seconds == 0.0 {
        return "0".to_owned();
    }
    let fits = |(_, unit): &&(&str, f64)| seconds < unit * 999.5;
    let (name, unit) = TIME_UNITS.iter().find(fits).unwrap_or(&TIME_UNITS[3]);
    format!("{} {name}", three_digits(seconds / unit))
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TIME_UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let step = (0..5).find(|step| self.0 < 1024 << (10 * step)).unwrap_or(5);
        if step == 0 {
            return write!(f, "{} B", self.0);
        }
        let value = self.0 as f64 / (1_u64 << (10 * step)) as f64;
        write!(f, "{} {}", three_digits(value), TIME_UNITS[step])
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const TIME_UNITS: [&str; 6] = ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s", "Pb/s"];
        let mut value = self.0 as f64;
        let mut step = 0;
        while value >= 999.5 && step < 5 {
            value /= 1000.0;
            step += 1;
        }
        if step == 0 {
            return write!(f, "{} b/s", self.0);
        }
        write!(f, "{} {}", three_digits(value), TIME_UNITS[step])
    }
}

/// Formats three significant digits, about the precision of a measurement.
fn three_digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Digits of a decimal number before and after the point, exact until scaled.
struct Decimal<'a> {
    whole: &'a str,
    fraction: &'a str,
}

fn split<'a>(
    text: &'a str,
    what: (&'static str, &'static str),
) -> Result<(Decimal<'a>, &'a str), ParseQuantityError> {
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(fraction) || (number.contains('.') && fraction.is_empty()) {
        return Err(failed(text, what));
    }
    Ok((Decimal { whole, fraction }, unit.trim_start()))
}

fn scaled(number: Decimal<'_>, multiplier: u64) -> Option<u64> {
    let whole: u128 = number.whole.parse().ok()?;
    let mut total = whole.checked_mul(u128::from(multiplier))?;
    // Digits beyond the 18th change the product with a u64 multiplier by less than one unit.
    let fraction = &number.fraction[..number.fraction.len().min(18)];
    if !fraction.is_empty() {
        let parts: u128 = fraction.parse().ok()?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        total += (parts * u128::from(multiplier) + scale / 2) / scale;
    }
    u64::try_from(total).ok()
}

fn prefix_multiplier(prefix: &str) -> Option<u64> {
    const PREFIX_LETTERS: [u8; 5] = [b'k', b'm', b'g', b't', b'p'];
    let (letter, base) = match prefix.as_bytes() {
        [] => return Some(1),
        [letter] => (letter, 1000_u64),
        [letter, b'i'] => (letter, 1024),
        _ => return None,
    };
    let power = PREFIX_LETTERS.iter().position(|l| *l == letter.to_ascii_lowercase())? + 1;
    Some(base.pow(u32::try_from(power).ok()?))
}

fn failed(text: &str, (what, example): (&'static str, &'static str)) -> ParseQuantityError {
    ParseQuantityError { text: text.to_owned(), what, example }
}

macro_rules! serde_as_number_or_text {
    ($quantity:ident) => {
        impl Serialize for $quantity {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_u64(self.0)
            }
        }

        impl<'de> Deserialize<'de> for $quantity {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $quantity;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "{} such as {}", $quantity::WHAT.0, $quantity::WHAT.1)
                    }
                    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<$quantity, E> {
                        Ok($quantity(value))
                    }
                    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<$quantity, E> {
                        u64::try_from(value).map($quantity).map_err(E::custom)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$quantity, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_any(Visitor)
            }
        }
    };
}

serde_as_number_or_text!(ByteCount);
serde_as_number_or_text!(BitRate);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bytes_accept_si_and_binary_prefixes() {
        for (text, bytes) in [
            ("0", 0),
            ("65536", 65_536),
            ("4MiB", 4 << 20),
            ("4Mi", 4 << 20),
            ("500M", 500_000_000),
            ("500 MB", 500_000_000),
            ("1.5GiB", 3 << 29),
            ("1k", 1000),
            ("2KiB", 2048),
            ("16PiB", 16 << 50),
        ] {
            assert_eq!(text.parse(), Ok(ByteCount(bytes)), "{text}");
        }
    }

    #[test]
    fn rates_default_to_bits() {
        for (text, bits) in [
            ("10G", 10_000_000_000),
            ("10Gbps", 10_000_000_000),
            ("10Gb/s", 10_000_000_000),
            ("2.5Gbit/s", 2_500_000_000),
            ("1GB/s", 8_000_000_000),
            ("400M", 400_000_000),
        ] {
            assert_eq!(text.parse(), Ok(BitRate(bits)), "{text}");
        }
    }

    #[test]
    fn durations_take_units() {
        assert_eq!(parse_duration("65ms"), Ok(Duration::from_millis(65)));
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
    }

    #[test]
    fn error_shows_valid_example() {
        for text in ["", "G", "-1", "1.", ".5", "4XiB", "4MM", "99999999999999999999P", "1e9", "١"]
        {
            let error = text.parse::<ByteCount>().expect_err(text).to_string();
            assert!(error.contains("4MiB") && error.contains(text), "{error}");
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn prints_three_digits() {
        assert_eq!(ByteCount(1023).to_string(), "1023 B");
        assert_eq!(ByteCount(4 << 20).to_string(), "4.00 MiB");
        assert_eq!(BitRate(9_999_999_999).to_string(), "10.0 Gb/s");
        assert_eq!(BitRate(812).to_string(), "812 b/s");
        assert_eq!(display_duration(Duration::from_secs(125)), "2m05s");
        let latency = |nanoseconds| display_latency(Duration::from_nanos(nanoseconds));
        let shown = [0, 850, 12_340, 999_600, 65_000_000, 2_500_000_000].map(latency);
        assert_eq!(shown, ["0", "850 ns", "12.3 us", "1.00 ms", "65.0 ms", "2.50 s"]);
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn never_panics(text in "\\PC{0,24}") {
            let _ = text.parse::<ByteCount>();
            let _ = text.parse::<BitRate>();
            let _ = parse_duration(&text);
        }

        #[test]
        fn plain_numbers_round_trip(bytes: u64) {
            prop_assert_eq!(bytes.to_string().parse(), Ok(ByteCount(bytes)));
        }
    }
}
