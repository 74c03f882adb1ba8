//! Classes of work: owner, admission, share of the network and hours of operation.

use std::fmt;
use std::str::FromStr;

/// Seconds per week.
const WEEK_S: i64 = 7 * 86_400;

const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// A class of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkClass {
    /// Name, unique among classes.
    pub name: String,
    /// Owner and activity in the scitags registry, where the class maps to them.
    pub label: Option<(String, String)>,
    /// 16-bit scitag of its packets.
    pub scitag: Option<u16>,
    /// Names of tokens that may submit to the class; empty for any token with the scope.
    pub who: Vec<String>,
    /// Relative to other classes of its tier.
    pub weight: u32,
    /// Lower bound of its rate while it has work, in bits per second.
    pub floor_bps: u64,
    /// Soft high-water mark in bits per second: upper bound while other classes can use the rest.
    pub mark_bps: Option<u64>,
    /// Hard upper bound in bits per second.
    pub cap_bps: Option<u64>,
    /// Tiers are served in ascending order, 0 first.
    pub tier: u8,
    /// Hours of operation in UTC; empty for always.
    pub windows: Vec<WeeklyWindow>,
}

impl WorkClass {
    /// Creates a class of tier 0 with weight 1 and no limit.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            label: None,
            scitag: None,
            who: Vec::new(),
            weight: 1,
            floor_bps: 0,
            mark_bps: None,
            cap_bps: None,
            tier: 0,
            windows: Vec::new(),
        }
    }

    /// True if the class may run at this Unix time.
    #[must_use]
    pub fn is_open(&self, now_s: i64) -> bool {
        self.windows.is_empty() || self.windows.iter().any(|window| window.contains(now_s))
    }

    /// Returns the Unix time at which the class may run next; `now_s` if it may run now.
    #[must_use]
    pub fn opens(&self, now_s: i64) -> i64 {
        if self.is_open(now_s) {
            return now_s;
        }
        self.windows.iter().map(|window| window.next(now_s)).min().unwrap_or(now_s)
    }
}

/// A weekly window in UTC: `mon-fri 18:00-06:00`, `sat,sun`, `22:00-04:00`.
///
/// A window whose end is before its start lasts into the next day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeeklyWindow {
    /// Days on which it starts, Monday first.
    days: [bool; 7],
    /// Start in minutes of the day.
    from: u16,
    minutes: u16,
}

/// Returns the seconds since Monday, 00:00. 1970-01-01 was a Thursday.
fn second_of_week(now_s: i64) -> i64 {
    (now_s + 3 * 86_400).rem_euclid(WEEK_S)
}

impl WeeklyWindow {
    /// Returns its starts in seconds of the week.
    fn begins(self) -> impl Iterator<Item = i64> {
        let days = self.days.into_iter().enumerate().filter(|(_, on)| *on);
        days.map(move |(day, _)| day as i64 * 86_400 + i64::from(self.from) * 60)
    }

    /// True if the window contains this Unix time.
    #[must_use]
    pub fn contains(self, now_s: i64) -> bool {
        let now = second_of_week(now_s);
        let length = i64::from(self.minutes) * 60;
        self.begins().any(|begin| (now - begin).rem_euclid(WEEK_S) < length)
    }

    /// Returns the Unix time of its next start.
    fn next(self, now_s: i64) -> i64 {
        let now = second_of_week(now_s);
        let waits = self.begins().map(|begin| (begin - now).rem_euclid(WEEK_S));
        now_s + waits.min().unwrap_or(WEEK_S)
    }
}

/// A text that is no weekly window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no time of the week: write it like \"mon-fri 18:00-06:00\", \"sat,sun\" or \"22:00-04:00\" (UTC)"
)]
pub struct InvalidWindow(String);

impl FromStr for WeeklyWindow {
    type Err = InvalidWindow;

    fn from_str(text: &str) -> Result<Self, InvalidWindow> {
        let bad = || InvalidWindow(text.to_owned());
        let mut days = None;
        let mut times = None;
        for word in text.split_whitespace() {
            let seen = if word.contains(':') {
                times.replace(minutes(word).ok_or_else(bad)?).is_some()
            } else {
                days.replace(read_days(word).ok_or_else(bad)?).is_some()
            };
            if seen {
                return Err(bad());
            }
        }
        if days.is_none() && times.is_none() {
            return Err(bad());
        }
        let (from, minutes) = times.unwrap_or((0, 24 * 60));
        Ok(Self { days: days.unwrap_or([true; 7]), from, minutes })
    }
}

/// Parses `18:00-06:00` into start and length in minutes.
fn minutes(word: &str) -> Option<(u16, u16)> {
    let time = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        let digits = |text: &str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        let (hour, minute) = (
            Some(hour).filter(|text| digits(text))?.parse::<u16>().ok()?,
            Some(minute).filter(|text| digits(text))?.parse::<u16>().ok()?,
        );
        (minute < 60 && (hour < 24 || (hour == 24 && minute == 0))).then_some(hour * 60 + minute)
    };
    let (from, to) = word.split_once('-')?;
    let (from, to) = (time(from)?, time(to)?);
    let length = (to + 24 * 60 - from % (24 * 60)) % (24 * 60);
    Some((from % (24 * 60), if length == 0 { 24 * 60 } else { length }))
}

/// Parses `mon-fri,sun`.
fn read_days(word: &str) -> Option<[bool; 7]> {
    let day = |text: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(text));
    let mut days = [false; 7];
    for part in word.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // A range may wrap over Sunday.
        for step in 0..=(last + 7 - first) % 7 {
            days[(first + step) % 7] = true;
        }
    }
    Some(days)
}

impl fmt::Display for WeeklyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.days.iter().zip(DAYS).filter(|(on, _)| **on).map(|(_, day)| day);
        let to = (self.from + self.minutes) % (24 * 60);
        write!(
            f,
            "{} {:02}:{:02}-{:02}:{:02}",
            days.collect::<Vec<_>>().join(","),
            self.from / 60,
            self.from % 60,
            to / 60,
            to % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Unix time of Sunday, 22 November 2026, 00:00 UTC.
    const SUNDAY_S: i64 = 1_795_305_600;

    fn window(text: &str) -> WeeklyWindow {
        text.parse().unwrap()
    }

    #[test]
    fn windows_wrap_over_midnight_and_week() {
        let hour = |day: i64, hour: i64| SUNDAY_S + day * 86_400 + hour * 3600;
        let nights = window("mon-fri 18:00-06:00");
        // Friday's night ends on Saturday at six.
        for (day, at, open) in
            [(5, 19, true), (6, 5, true), (6, 6, false), (6, 19, false), (1, 5, false)]
        {
            assert_eq!(nights.contains(hour(day, at)), open, "day {day}, {at} h");
        }
        // Sunday's ends on Monday.
        assert!(window("sun 22:00-04:00").contains(hour(1, 3)));
        assert!(window("sat-mon").contains(hour(0, 12)) && !window("sat-mon").contains(hour(2, 0)));
        assert!(window("00:00-24:00").contains(hour(3, 3)));
    }

    #[test]
    fn closed_class_returns_next_opening() {
        let mut class = WorkClass::new("x");
        assert!(class.is_open(SUNDAY_S) && class.opens(SUNDAY_S) == SUNDAY_S);
        class.windows = vec![window("tue 10:00-12:00"), window("mon 01:30-02:00")];
        assert!(!class.is_open(SUNDAY_S));
        assert_eq!(class.opens(SUNDAY_S), SUNDAY_S + 86_400 + 5400);
    }

    #[test]
    fn window_display_round_trips() {
        for text in ["mon-fri 18:00-06:00", "sat,sun", "22:00-04:00"] {
            let read = window(text);
            assert_eq!(window(&read.to_string()), read, "{text} as {read}");
        }
        for text in
            ["", "someday", "25:00-26:00", "1:00-2:00", "mon tue", "mon 10:00", "10:00-11:60"]
        {
            assert!(
                text.parse::<WeeklyWindow>()
                    .unwrap_err()
                    .to_string()
                    .contains("mon-fri 18:00-06:00"),
                "{text}"
            );
        }
    }
}
