//! Quantities that only links have, as they are written: a delay, a length of fibre, a share of packets.
//! Fails with what the text is not, and one that would do.

use std::time::Duration;

use penstock_units::parse_duration;
use serde::{Deserialize, Deserializer, de};

#[derive(Debug)]
pub(super) struct Delay(pub(super) Duration);

/// Metres.
#[derive(Debug)]
pub(super) struct Length(pub(super) f64);

/// 0 to 1, unchecked.
#[derive(Debug)]
pub(super) struct Share(pub(super) f64);

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
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
        number.trim().parse::<f64>().map(|number| Self(number * metres)).map_err(|_| {
            de::Error::custom(format!("'{text}' is not a length: write it like 120km or 300m"))
        })
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
                let number = text.trim().strip_suffix("%");
                let percent = number.map(|number| number.trim().parse::<f64>());
                match percent {
                    Some(Ok(percent)) => Ok(Self(percent / 100.0)),
                    _ => Err(de::Error::custom(format!(
                        "'{text}' is not a share of packets: write it like \"0.01%\" or 0.0001"
                    ))),
                }
            }
        }
    }
}
