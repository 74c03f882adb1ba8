//! Rules for quantities: syntax, bounds, and the fallback for an invalid value.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount, parse_duration};
use serde::{Deserialize, Deserializer, de};

use crate::table::ValueRule;

#[derive(Debug, Clone, Copy)]
pub(super) struct Delay(pub(super) Duration);

/// Length of a link in metres.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length(pub(super) f64);

/// Fraction of packets; the type checks no bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fraction(pub(super) f64);

const RATE_BPS_MAX: u64 = 1_000_000_000_000_000;
/// RFC 8200 section 5: the least link MTU of IPv6.
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65_535;
/// One-way delay; more than twice a hop over a geostationary satellite.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// More than once around the Earth.
const LENGTH_METRES_MAX: f64 = 100_000_000.0;
/// In packets.
const LOSS_BURST_MAX: f64 = 1_000_000.0;

/// Rate of a link. The fallback is never above an interface.
pub(super) const RATE: ValueRule<BitRate> = ValueRule {
    expected: "a rate is above 0 and up to 1 Pb/s: write it like 10G, 400M or 2.5Gb/s",
    is_valid: |rate| (1..=RATE_BPS_MAX).contains(&rate.0),
    fallback: BitRate(1),
};
/// The fallback is never below a link.
pub(super) const INTERFACE_RATE: ValueRule<BitRate> =
    ValueRule { fallback: BitRate(RATE_BPS_MAX), ..RATE };
/// The fallback is never above a queue.
pub(super) const MTU: ValueRule<u32> = ValueRule {
    expected: "an MTU is 1280 (IPv6 needs it) to 65535 bytes",
    is_valid: |mtu| (MTU_MIN..=MTU_MAX).contains(mtu),
    fallback: 0,
};
pub(super) const NUMA_NODE: ValueRule<u32> = ValueRule {
    expected: "a NUMA node is a number from 0: where there is none, leave it out",
    is_valid: |_| true,
    fallback: 0,
};
pub(super) const LATITUDE: ValueRule<f64> = ValueRule {
    expected: "a latitude is in degrees north, from -90 to 90",
    is_valid: |latitude| (-90.0..=90.0).contains(latitude),
    fallback: 0.0,
};
pub(super) const LONGITUDE: ValueRule<f64> = ValueRule {
    expected: "a longitude is in degrees east, from -180 to 180",
    is_valid: |longitude| (-180.0..=180.0).contains(longitude),
    fallback: 0.0,
};
pub(super) const BUFFER: ValueRule<ByteCount> = ValueRule {
    expected: "a buffer is a number of bytes: write it like 4MiB, 500M or 65536",
    is_valid: |_| true,
    fallback: ByteCount(0),
};
/// The fallback is larger than any packet and any mark.
pub(super) const QUEUE: ValueRule<ByteCount> = ValueRule {
    expected: "a queue is a number of bytes: write it like 4MiB, 500M or 65536",
    is_valid: |_| true,
    fallback: ByteCount(u64::MAX),
};
pub(super) const MARK: ValueRule<ByteCount> = ValueRule {
    expected: "a mark is at least 1 byte, like 4MiB, 500M or 65536: without marking, leave it out",
    is_valid: |mark| mark.0 > 0,
    fallback: ByteCount(1),
};
/// The fallback exceeds any jitter.
pub(super) const DELAY: ValueRule<Delay> = ValueRule {
    expected: "a delay is up to 10 s, with its unit: write it like 5ms",
    is_valid: |delay| delay.0 <= DELAY_MAX,
    fallback: Delay(DELAY_MAX),
};
pub(super) const JITTER: ValueRule<Delay> = ValueRule {
    expected: "a jitter is a time with its unit: write it like 5ms",
    is_valid: |_| true,
    fallback: Delay(Duration::ZERO),
};
/// The fallback gives a delay above most jitters.
pub(super) const LENGTH: ValueRule<Length> = ValueRule {
    expected: "a length is 0 to 100000km: write it like 120km or 300m",
    is_valid: |length| (0.0..=LENGTH_METRES_MAX).contains(&length.0),
    fallback: Length(LENGTH_METRES_MAX),
};
/// The fallback is enough for any burst.
pub(super) const LOSS: ValueRule<Fraction> = ValueRule {
    expected: "a loss is at least 0 and less than 100%: write it like \"0.01%\" or 0.0001",
    is_valid: |loss| (0.0..1.0).contains(&loss.0),
    fallback: Fraction(f64::MIN_POSITIVE),
};
pub(super) const LOSS_BURST: ValueRule<f64> = ValueRule {
    expected: "a loss_burst is the mean number of packets lost together, 1 to 1000000",
    is_valid: |burst| (1.0..=LOSS_BURST_MAX).contains(burst),
    fallback: 1.0,
};
/// The fallback clashes with no valid VLAN.
pub(super) const VLAN: ValueRule<u16> = ValueRule {
    expected: "a VLAN is a number from 1 to 4094 (IEEE 802.1Q)",
    is_valid: |vlan| (1..=4094).contains(vlan),
    fallback: 0,
};

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // A bare number would be seconds: surely a mistake.
        if !text.trim().ends_with(char::is_alphabetic) {
            return Err(de::Error::custom("no unit"));
        }
        parse_duration(&text).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let (number, metres) = match text.trim().strip_suffix("km") {
            Some(number) => (number, 1000.0),
            None => (text.trim().strip_suffix('m').unwrap_or("no length"), 1.0),
        };
        let number = number.trim().parse::<f64>().map_err(de::Error::custom)?;
        Ok(Self(number * metres))
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum FractionValue {
            Number(f64),
            Text(String),
        }
        match FractionValue::deserialize(from)? {
            FractionValue::Number(fraction) => Ok(Self(fraction)),
            FractionValue::Text(text) => {
                let number = text.trim().strip_suffix('%').unwrap_or("no share");
                let percent = number.trim().parse::<f64>().map_err(de::Error::custom)?;
                Ok(Self(percent / 100.0))
            }
        }
    }
}
