//! Coverage of seconds: datagrams that arrived, datagrams that were dropped, and silence of all
//! exporters. Pure.
//!
//! A second with drops is measured in proportion to the datagrams received. A second without
//! datagrams is measured if silence is usual, and unknown otherwise: the network may be idle, or
//! the telemetry may be cut off. The sequence number of the first datagram after a silence shows
//! whether any are missing.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::timeline::ClockTimeline;

/// Silence is unusual beyond both limits: this time, and this multiple of the longest usual pause.
const SILENCE_MIN: Duration = Duration::from_secs(3);
const SILENCE_FACTOR: f64 = 3.0;

/// Decay time of the longest usual pause.
const PAUSE_MEMORY_S: f64 = 600.0;

/// Shortest pause that may be an outage.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Most pauses stored until they are taken.
const PAUSES_MAX: usize = 64;

/// Most seconds that are open.
const SECONDS_MAX: usize = 4_096;

/// Datagrams of a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Datagrams {
    taken: u64,
    dropped: f64,
}

/// A time in which no exporter sent a datagram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pause {
    /// Time of the last datagram before it.
    pub(crate) from: Duration,
    /// Time of the first datagram after it.
    pub(crate) to: Duration,
    /// True if the sequence number of the first one shows a loss.
    pub(crate) missing: bool,
}

/// Datagrams of open seconds, and the pauses between them.
#[derive(Debug, Default)]
pub(crate) struct DatagramArrivals {
    seconds: BTreeMap<u64, Datagrams>,
    newest: Option<Duration>,
    /// Longest recent pause between two datagrams.
    usual_pause_s: f64,
    pauses: Vec<Pause>,
}

impl DatagramArrivals {
    /// Counts a datagram; `missing` is true if others before it are lost.
    pub(crate) fn record(&mut self, at: Duration, number: u64, missing: bool) {
        if self.seconds.len() < SECONDS_MAX || self.seconds.contains_key(&number) {
            self.seconds.entry(number).or_default().taken += 1;
        }
        let Some(newest) = self.newest else {
            self.newest = Some(at);
            return;
        };
        let pause = at.saturating_sub(newest);
        if pause.is_zero() {
            return;
        }
        self.newest = Some(at);
        if pause >= PAUSE_MIN && self.pauses.len() < PAUSES_MAX {
            self.pauses.push(Pause { from: newest, to: at, missing });
        }
        let pause_s = pause.as_secs_f64();
        // An outage is not a usual pause.
        if !missing {
            let kept = self.usual_pause_s * (-pause_s / PAUSE_MEMORY_S).exp();
            self.usual_pause_s = kept.max(pause_s);
        }
    }

    /// Distributes drops between two times over the seconds.
    pub(crate) fn note_drops(
        &mut self,
        line: &ClockTimeline,
        from: Duration,
        to: Duration,
        dropped: u32,
    ) {
        let (from, to) = (from.min(to), to);
        let length_s = (to - from).as_secs_f64();
        for number in line.number(from)..=line.number(to) {
            if self.seconds.len() >= SECONDS_MAX && !self.seconds.contains_key(&number) {
                break;
            }
            let span = line.span(number);
            let overlap = to.min(span.end).saturating_sub(from.max(span.start)).as_secs_f64();
            let share = if length_s > 0.0 { overlap / length_s } else { 1.0 };
            self.seconds.entry(number).or_default().dropped += f64::from(dropped) * share;
        }
    }

    /// Returns true if a silence until `now` exceeds that of an idle network.
    pub(crate) fn is_cut_off(&self, now: Duration) -> bool {
        let Some(newest) = self.newest else { return true };
        let usual = Duration::from_secs_f64(SILENCE_FACTOR * self.usual_pause_s).max(SILENCE_MIN);
        now.saturating_sub(newest) > usual
    }

    /// Time of the last datagram.
    pub(crate) fn newest(&self) -> Option<Duration> {
        self.newest
    }

    /// Closes a second and returns the part of it that was measured, 0 to 1.
    pub(crate) fn close(&mut self, number: u64, end: Duration) -> f64 {
        let open = self.seconds.split_off(&(number + 1));
        let closed = std::mem::replace(&mut self.seconds, open);
        let Datagrams { taken, dropped } = closed.get(&number).copied().unwrap_or_default();
        match taken {
            0 if dropped >= 0.5 || self.is_cut_off(end) => 0.0,
            0 => 1.0,
            taken => taken as f64 / (taken as f64 + dropped),
        }
    }

    /// Returns the pauses that ended since the last call.
    pub(crate) fn pauses(&mut self) -> Vec<Pause> {
        std::mem::take(&mut self.pauses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Ten datagrams a second until `to`.
    fn busy(to: u32) -> (DatagramArrivals, ClockTimeline) {
        let (mut arrivals, line) =
            (DatagramArrivals::default(), ClockTimeline::new(at(0.0), 1_000.0));
        for tenth in 0..10 * to {
            let now = at(f64::from(tenth) / 10.0 + 0.05);
            arrivals.record(now, line.number(now), false);
        }
        (arrivals, line)
    }

    #[test]
    fn dropped_datagrams_are_unmeasured_time() {
        let (mut arrivals, line) = busy(4);
        // The buffer was full from 3.5 until 8.5; no datagram between was received.
        arrivals.note_drops(&line, at(3.5), at(8.5), 50);
        let shares: Vec<f64> =
            (1..=10).map(|number| arrivals.close(number, line.span(number).end)).collect();
        assert_eq!(shares[..3], [1.0; 3]);
        assert!((shares[3] - 10.0 / 15.0).abs() < 1e-9, "{shares:?}");
        assert_eq!(shares[4..9], [0.0; 5]);
    }

    #[test]
    fn unusual_silence_is_unknown() {
        let (mut arrivals, line) = busy(5);
        assert!(!arrivals.is_cut_off(at(7.0)) && arrivals.is_cut_off(at(9.0)));
        assert_eq!(
            (arrivals.close(6, line.span(6).end), arrivals.close(9, line.span(9).end)),
            (1.0, 0.0)
        );
        arrivals.record(at(12.0), line.number(at(12.0)), true);
        let pauses = arrivals.pauses();
        assert!(pauses.len() == 1 && pauses[0].missing && pauses[0].to == at(12.0), "{pauses:?}");
        // The outage did not become a usual pause.
        assert!(arrivals.is_cut_off(at(16.0)));
        // An exporter that sends only counters.
        for round in 1..10 {
            arrivals.record(at(12.0 + 20.0 * f64::from(round)), 12 + 20 * round as u64, false);
        }
        assert!(!arrivals.is_cut_off(at(192.0 + 59.0)) && arrivals.is_cut_off(at(192.0 + 61.0)));
        // Before the first datagram nothing is known.
        assert!(DatagramArrivals::default().is_cut_off(at(0.0)));
    }
}
