//! Text form of link settings: `delay=30ms rate=1G loss=0.1%`.

use std::str::FromStr;
use std::time::Duration;

use penstock_units::{BitRate, ByteCount, ParseQuantityError, parse_duration};

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
#[error("'{text}' is not a setting of a link: {fault}")]
pub struct LinkSettingError {
    /// Text that should be a setting.
    pub text: String,
    /// Fault of the text.
    pub fault: LinkSettingFault,
}

/// Fault of a text that should be a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkSettingFault {
    /// No setting of this name.
    #[error(
        "write rate, delay, jitter, loss, loss_burst, queue or mark, as in rate=10G delay=30ms loss=0.1%"
    )]
    Name,
    /// A value that is no rate, size or duration.
    #[error(transparent)]
    Quantity(#[from] ParseQuantityError),
    /// A duration without a unit.
    #[error("write the unit too, as in 5ms")]
    Unit,
    /// A duration above the limit.
    #[error("at most {}s", DELAY_MAX.as_secs())]
    LongDelay,
    /// A rate of 0.
    #[error("nothing passes at 0: cut the link instead")]
    ZeroRate,
    /// A loss that is no share.
    #[error("write a share from 0 to 1, as 0.001 or 0.1%")]
    Share,
    /// A mean length of bursts out of range.
    #[error("write how many packets are lost together, 1 or more")]
    Burst,
}

const DELAY_MAX: Duration = Duration::from_secs(10);
const BURST_MAX: f64 = 1e6;

impl FromStr for LinkSetting {
    type Err = LinkSettingError;

    fn from_str(text: &str) -> Result<Self, LinkSettingError> {
        parse(text).map_err(|fault| LinkSettingError { text: text.to_owned(), fault })
    }
}

fn parse(text: &str) -> Result<LinkSetting, LinkSettingFault> {
    let (word, value) = text.split_once('=').ok_or(LinkSettingFault::Name)?;
    let bytes = || match value {
        "none" => Ok(None),
        value => value.parse::<ByteCount>().map(Some),
    };
    match word {
        "rate" if value == "none" => Ok(LinkSetting::Rate(None)),
        "rate" => match value.parse::<BitRate>()? {
            BitRate(0) => Err(LinkSettingFault::ZeroRate),
            rate => Ok(LinkSetting::Rate(Some(rate))),
        },
        "delay" => delay(value).map(LinkSetting::Delay),
        "jitter" => delay(value).map(LinkSetting::Jitter),
        "loss" => share(value).map(LinkSetting::Loss).ok_or(LinkSettingFault::Share),
        "loss_burst" => match value.parse::<f64>() {
            Ok(burst) if (1.0..=BURST_MAX).contains(&burst) => Ok(LinkSetting::LossBurst(burst)),
            _ => Err(LinkSettingFault::Burst),
        },
        "queue" => Ok(LinkSetting::Queue(bytes()?)),
        "mark" => Ok(LinkSetting::Mark(bytes()?)),
        _ => Err(LinkSettingFault::Name),
    }
}

fn delay(value: &str) -> Result<Duration, LinkSettingFault> {
    let time = parse_duration(value)?;
    // Milliseconds to some, seconds to others.
    if !time.is_zero() && value.ends_with(|c: char| c.is_ascii_digit()) {
        return Err(LinkSettingFault::Unit);
    }
    if time > DELAY_MAX { Err(LinkSettingFault::LongDelay) } else { Ok(time) }
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
