//! Quantities as they are written: what each is, in which bounds, and what stands for one at fault.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount, parse_duration};
use serde::{Deserialize, Deserializer, de};

use crate::words::Form;

#[derive(Debug, Clone, Copy)]
pub(super) struct Delay(pub(super) Duration);

/// Metres.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length(pub(super) f64);

/// 0 to 1, unchecked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share(pub(super) f64);

const RATE_BPS_MAX: u64 = 1_000_000_000_000_000;
/// RFC 8200 section 5.
const MTU_MIN: u32 = 1280;
const MTU_MAX: u32 = 65_535;
/// One way, more than twice to a geostationary satellite and back.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// Once around the Earth and more.
const LENGTH_METRES_MAX: f64 = 100_000_000.0;
/// Packets; far beyond any burst that leaves a path in use.
const LOSS_BURST_MAX: f64 = 1_000_000.0;

/// Of a link. Instead: never faster than an interface.
pub(super) const RATE: Form<BitRate> = Form {
    is: "a rate is above 0 and up to 1 Pb/s: write it like 10G, 400M or 2.5Gb/s",
    holds: |rate| (1..=RATE_BPS_MAX).contains(&rate.0),
    instead: BitRate(1),
};
/// Instead: never slower than a link.
pub(super) const INTERFACE_RATE: Form<BitRate> = Form { instead: BitRate(RATE_BPS_MAX), ..RATE };
/// Instead: never larger than a queue.
pub(super) const MTU: Form<u32> = Form {
    is: "an MTU is 1280 (IPv6 needs it) to 65535 bytes",
    holds: |mtu| (MTU_MIN..=MTU_MAX).contains(mtu),
    instead: 0,
};
pub(super) const NUMA_NODE: Form<u32> = Form {
    is: "a NUMA node is a number from 0: where there is none, leave it out",
    holds: |_| true,
    instead: 0,
};
pub(super) const LATITUDE: Form<f64> = Form {
    is: "a latitude is in degrees north, from -90 to 90",
    holds: |latitude| (-90.0..=90.0).contains(latitude),
    instead: 0.0,
};
pub(super) const LONGITUDE: Form<f64> = Form {
    is: "a longitude is in degrees east, from -180 to 180",
    holds: |longitude| (-180.0..=180.0).contains(longitude),
    instead: 0.0,
};
pub(super) const BUFFER: Form<ByteCount> = Form {
    is: "a buffer is a number of bytes: write it like 4MiB, 500M or 65536",
    holds: |_| true,
    instead: ByteCount(0),
};
/// Instead: holds any packet, and any mark is in it.
pub(super) const QUEUE: Form<ByteCount> = Form {
    is: "a queue is a number of bytes: write it like 4MiB, 500M or 65536",
    holds: |_| true,
    instead: ByteCount(u64::MAX),
};
pub(super) const MARK: Form<ByteCount> = Form {
    is: "a mark is at least 1 byte, like 4MiB, 500M or 65536: without marking, leave it out",
    holds: |mark| mark.0 > 0,
    instead: ByteCount(1),
};
/// Instead: any jitter is below it.
pub(super) const DELAY: Form<Delay> = Form {
    is: "a delay is up to 10 s, with its unit: write it like 5ms",
    holds: |delay| delay.0 <= DELAY_MAX,
    instead: Delay(DELAY_MAX),
};
pub(super) const JITTER: Form<Delay> = Form {
    is: "a jitter is a time with its unit: write it like 5ms",
    holds: |_| true,
    instead: Delay(Duration::ZERO),
};
/// Instead: most jitters are below its delay.
pub(super) const LENGTH: Form<Length> = Form {
    is: "a length is 0 to 100000km: write it like 120km or 300m",
    holds: |length| (0.0..=LENGTH_METRES_MAX).contains(&length.0),
    instead: Length(LENGTH_METRES_MAX),
};
/// Instead: enough for any burst.
pub(super) const LOSS: Form<Share> = Form {
    is: "a loss is at least 0 and less than 100%: write it like \"0.01%\" or 0.0001",
    holds: |loss| (0.0..1.0).contains(&loss.0),
    instead: Share(f64::MIN_POSITIVE),
};
pub(super) const LOSS_BURST: Form<f64> = Form {
    is: "a loss_burst is the mean number of packets lost together, 1 to 1000000",
    holds: |burst| (1.0..=LOSS_BURST_MAX).contains(burst),
    instead: 1.0,
};
/// Instead: none that a link can have.
pub(super) const VLAN: Form<u16> = Form {
    is: "a VLAN is a number from 1 to 4094 (IEEE 802.1Q)",
    holds: |vlan| (1..=4094).contains(vlan),
    instead: 0,
};

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        // A bare number would be seconds, which no link has.
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

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Text(String),
        }
        match Form::deserialize(from)? {
            Form::Number(share) => Ok(Self(share)),
            Form::Text(text) => {
                let number = text.trim().strip_suffix('%').unwrap_or("no share");
                let percent = number.trim().parse::<f64>().map_err(de::Error::custom)?;
                Ok(Self(percent / 100.0))
            }
        }
    }
}
