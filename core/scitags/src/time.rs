//! UTC times as fireflies and the registry write them: RFC 3339 with microseconds.
//!
//! For: printing and parsing. Not for: clocks; the caller passes the time.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// 9999-12-31T23:59:59, the last second of a four-digit year.
const SECONDS_MAX: u64 = 253_402_300_799;

const DAY_SECONDS: u64 = 86_400;

/// A point in time in UTC, from 1970 to the end of 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UtcTime {
    seconds: u64,
    micros: u32,
}

/// The text is not an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a UTC time: write it like 2026-03-01T10:00:00.000000+00:00")]
pub struct TimeError;

impl UtcTime {
    /// Time `micros` after `seconds` since 1970. Larger values are clamped to the last second of
    /// 9999 and the last microsecond of the second.
    #[must_use]
    pub fn new(seconds: u64, micros: u32) -> Self {
        Self { seconds: seconds.min(SECONDS_MAX), micros: micros.min(999_999) }
    }

    /// Whole seconds since the start of 1970.
    #[must_use]
    pub fn seconds(self) -> u64 {
        self.seconds
    }

    /// Microseconds of the second, 0..=999999.
    #[must_use]
    pub fn micros(self) -> u32 {
        self.micros
    }
}

/// `2026-03-01T10:00:00.000000+00:00`, always with microseconds: the form that all collectors read.
impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date_of(self.seconds / DAY_SECONDS);
        let second = self.seconds % DAY_SECONDS;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let micros = self.micros;
        write!(
            f,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}+00:00"
        )
    }
}

impl Serialize for UtcTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses RFC 3339 with any offset and any number of decimals (those after the sixth are dropped).
/// A time without offset is taken as UTC.
impl FromStr for UtcTime {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, TimeError> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| digits(bytes.get(from..to)?);
        let read = || {
            let separated = bytes.get(4) == Some(&b'-')
                && bytes.get(7) == Some(&b'-')
                && matches!(bytes.get(10)?, b'T' | b't' | b' ')
                && bytes.get(13) == Some(&b':')
                && bytes.get(16) == Some(&b':');
            let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
            let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
            let days = days_of(year, month, day)?;
            // RFC 3339 section 5.7: 60 is a leap second, which this count does not have.
            if !separated || hour > 23 || minute > 59 || second > 60 {
                return None;
            }
            let (micros, zone) = fraction(bytes.get(19..)?)?;
            let local = days * DAY_SECONDS + hour * 3600 + minute * 60 + second.min(59);
            let seconds = local.checked_add_signed(-offset(zone)?)?;
            (seconds <= SECONDS_MAX).then_some(Self { seconds, micros })
        };
        read().ok_or(TimeError)
    }
}

fn digits(bytes: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    bytes.iter().try_fold(0, |number, byte| Some(number * 10 + digit(byte)?))
}

/// Microseconds, and the bytes after them.
fn fraction(rest: &[u8]) -> Option<(u32, &[u8])> {
    let Some((b'.' | b',', decimals)) = rest.split_first() else { return Some((0, rest)) };
    let end = decimals.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(decimals.len());
    let (decimals, zone) = decimals.split_at(end);
    if decimals.is_empty() {
        return None;
    }
    let micros = (0..6).fold(0, |micros, at| {
        micros * 10 + u32::from(decimals.get(at).map_or(0, |byte| byte - b'0'))
    });
    Some((micros, zone))
}

/// Seconds that local time is ahead of UTC.
fn offset(zone: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match zone {
        [] | [b'Z' | b'z'] => return Some(0),
        [sign @ (b'+' | b'-'), a, b, b':', c, d] | [sign @ (b'+' | b'-'), a, b, c, d] => {
            (sign, digits(&[*a, *b])?, digits(&[*c, *d])?)
        }
        _ => return None,
    };
    let seconds = i64::try_from(hours * 3600 + minutes * 60).ok()?;
    (hours < 24 && minutes < 60).then_some(if *sign == b'-' { -seconds } else { seconds })
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_days(year: u64, month: u64) -> Option<u64> {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => Some(31),
        4 | 6 | 9 | 11 => Some(30),
        2 => Some(if is_leap(year) { 29 } else { 28 }),
        _ => None,
    }
}

/// Leap days before the start of `year`, counted from year 0.
fn leap_days(year: u64) -> u64 {
    let before = year - 1;
    before / 4 - before / 100 + before / 400
}

/// Days from the start of 1970 to a date of the Gregorian calendar.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || day < 1 || day > month_days(year, month)? {
        return None;
    }
    let years = (year - 1970) * 365 + leap_days(year) - leap_days(1970);
    Some(years + (1..month).filter_map(|month| month_days(year, month)).sum::<u64>() + day - 1)
}

fn date_of(days: u64) -> (u64, u64, u64) {
    // 366 days a year is never too many: the estimate is at most the year, and few steps below it.
    let mut year = 1970 + days / 366;
    while days_of(year + 1, 1, 1).is_some_and(|first| first <= days) {
        year += 1;
    }
    let mut left = days - days_of(year, 1, 1).unwrap_or_default();
    let mut month = 1;
    while let Some(length) = month_days(year, month).filter(|length| *length <= left) {
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_moments() {
        for (seconds, micros, text) in [
            (0, 0, "1970-01-01T00:00:00.000000+00:00"),
            (951_782_400, 1, "2000-02-29T00:00:00.000001+00:00"),
            (1_709_164_799, 999_999, "2024-02-28T23:59:59.999999+00:00"),
            (1_756_987_315, 844_133, "2025-09-04T12:01:55.844133+00:00"),
            (4_107_542_400, 0, "2100-03-01T00:00:00.000000+00:00"),
            (SECONDS_MAX, 0, "9999-12-31T23:59:59.000000+00:00"),
        ] {
            assert_eq!(UtcTime::new(seconds, micros).to_string(), text);
            assert_eq!(text.parse(), Ok(UtcTime::new(seconds, micros)));
        }
    }

    #[test]
    fn other_time_formats_are_parsed() {
        let moment = UtcTime::new(1_772_359_200, 500_000);
        for text in [
            "2026-03-01T10:00:00.5Z",
            "2026-03-01T10:00:00.500000123Z",
            "2026-03-01 10:00:00.5",
            "2026-03-01t12:30:00,5+02:30",
            "2026-03-01T05:00:00.500-0500",
        ] {
            assert_eq!(text.parse(), Ok(moment), "{text}");
        }
    }

    #[test]
    fn malformed_time_is_refused() {
        for text in [
            "",
            "-",
            "2026",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "2026-01-01T00:00:00Zx",
            "9999-12-31T23:59:59-00:01",
            "2026-01-01T00:00:0é",
        ] {
            assert_eq!(text.parse::<UtcTime>(), Err(TimeError), "{text}");
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn times_round_trip(seconds in 0..=SECONDS_MAX, micros in 0_u32..1_000_000) {
            let moment = UtcTime::new(seconds, micros);
            prop_assert_eq!(moment.to_string().parse(), Ok(moment));
        }

        #[test]
        fn never_panics(text in "\\PC{0,40}", seconds: u64, micros: u32) {
            let _ = text.parse::<UtcTime>();
            let _ = UtcTime::new(seconds, micros).to_string();
        }
    }
}
