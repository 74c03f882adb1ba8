//! Text form of link settings: `delay=30ms rate=1G loss=0.1%`.

use std::str::FromStr;
use std::time::Duration;

use penstock_units::{BitRate, ByteCount, parse_duration};

use crate::line::Impairment;

/// One change of a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkSetting {
    /// Rate; `None` is unlimited.
    Rate(Option<BitRate>),
    /// One-way delay.
    Delay(Duration),
    /// Standard deviation of the delay.
    Jitter(Duration),
    /// Share of packets lost.
    Loss(f64),
    /// Mean length of a loss burst in packets.
    LossBurst(f64),
    /// Queue limit; `None` is the default.
    Queue(Option<ByteCount>),
    /// Queue length from which packets are marked; `None` marks none.
    Mark(Option<ByteCount>),
}

/// Text that cannot be parsed as a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a setting of a link: {why}")]
pub struct LinkSettingError {
    text: String,
    why: String,
}

const SYNTAX: &str =
    "rate, delay, jitter, loss, loss_burst, queue or mark, as in rate=10G delay=30ms loss=0.1%";
const DELAY_MAX: Duration = Duration::from_secs(10);
const BURST_MAX: f64 = 1e6;

impl FromStr for LinkSetting {
    type Err = LinkSettingError;

    fn from_str(text: &str) -> Result<Self, LinkSettingError> {
        let fault = |why: String| LinkSettingError { text: text.to_owned(), why };
        let Some((word, value)) = text.split_once('=') else {
            return Err(fault(format!("write {SYNTAX}")));
        };
        let none = value == "none";
        let bytes =
            || value.parse::<ByteCount>().map(Some).map_err(|error| fault(error.to_string()));
        let time = || match parse_duration(value) {
            // Milliseconds to some, seconds to others.
            Ok(time) if !time.is_zero() && value.ends_with(|c: char| c.is_ascii_digit()) => {
                Err(fault("write the unit too, as in 5ms".to_owned()))
            }
            Ok(time) if time <= DELAY_MAX => Ok(time),
            Ok(_) => Err(fault("at most 10s".to_owned())),
            Err(error) => Err(fault(error.to_string())),
        };
        match word {
            "rate" if none => Ok(Self::Rate(None)),
            "rate" => match value.parse::<BitRate>() {
                Ok(rate) if rate.0 > 0 => Ok(Self::Rate(Some(rate))),
                Ok(_) => Err(fault("nothing passes at 0: cut the link instead".to_owned())),
                Err(error) => Err(fault(error.to_string())),
            },
            "delay" => time().map(Self::Delay),
            "jitter" => time().map(Self::Jitter),
            "loss" => share(value)
                .map(Self::Loss)
                .ok_or_else(|| fault("write a share from 0 to 1, as 0.001 or 0.1%".to_owned())),
            "loss_burst" => match value.parse::<f64>() {
                Ok(burst) if (1.0..=BURST_MAX).contains(&burst) => Ok(Self::LossBurst(burst)),
                _ => Err(fault("write how many packets are lost together, 1 or more".to_owned())),
            },
            "queue" if none => Ok(Self::Queue(None)),
            "queue" => bytes().map(Self::Queue),
            "mark" if none => Ok(Self::Mark(None)),
            "mark" => bytes().map(Self::Mark),
            _ => Err(fault(format!("write {SYNTAX}"))),
        }
    }
}

fn share(text: &str) -> Option<f64> {
    let (number, unit) = match text.strip_suffix('%') {
        Some(number) => (number, 100.0),
        None => (text, 1.0),
    };
    let share = number.parse::<f64>().ok()? / unit;
    (0.0..=1.0).contains(&share).then_some(share)
}

impl LinkSetting {
    /// Returns the impairment with this setting changed.
    #[must_use]
    pub const fn apply(self, mut to: Impairment) -> Impairment {
        match self {
            Self::Rate(rate) => to.rate = rate,
            Self::Delay(delay) => to.delay = delay,
            Self::Jitter(jitter) => to.jitter = jitter,
            Self::Loss(loss) => to.loss = loss,
            Self::LossBurst(burst) => to.loss_burst = burst,
            Self::Queue(queue) => to.queue = queue,
            Self::Mark(mark) => to.mark = mark,
        }
        to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_change_what_they_name() {
        let mut line = Impairment::default();
        for text in [
            "rate=10G",
            "delay=30ms",
            "jitter=1ms",
            "loss=0.1%",
            "loss_burst=4",
            "queue=1MiB",
            "mark=10kB",
        ] {
            line = text.parse::<LinkSetting>().unwrap().apply(line);
        }
        assert_eq!(line.rate, Some(BitRate(10_000_000_000)));
        assert_eq!(
            (line.delay, line.jitter),
            (Duration::from_millis(30), Duration::from_millis(1))
        );
        assert_eq!((line.loss, line.loss_burst), (0.001, 4.0));
        assert_eq!((line.queue, line.mark), (Some(ByteCount(1 << 20)), Some(ByteCount(10_000))));
        line = "rate=none".parse::<LinkSetting>().unwrap().apply(line);
        assert_eq!(line.rate, None);
    }

    #[test]
    fn invalid_settings_name_the_reason() {
        for (text, why) in [
            ("", "write rate, delay"),
            ("speed=1", "write rate, delay"),
            ("rate=0", "cut the link"),
            ("rate=fast", "fast"),
            ("delay=11s", "at most 10s"),
            ("delay=5", "write the unit too"),
            ("loss=101%", "from 0 to 1"),
            ("loss=NaN", "from 0 to 1"),
            ("loss_burst=0.5", "1 or more"),
        ] {
            let error = text.parse::<LinkSetting>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
