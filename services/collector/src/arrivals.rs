//! Coverage of seconds: datagrams that arrived, datagrams that were dropped, and silence of all
//! exporters. Pure.
//!
//! Each thread records its own datagrams ([`ShardArrivals`]); the thread that closes a second
//! collects them ([`DatagramArrivals`]). A pause is one of all threads.
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

/// Most spans of a thread until they are collected.
const SPANS_MAX: usize = 256;

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

/// A time in which a shard received datagrams without a pause of [`PAUSE_MIN`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct ActiveSpan {
    from: Duration,
    to: Duration,
    /// True if the sequence number of the first datagram shows a loss.
    missing: bool,
}

/// Datagrams that one thread received since they were last collected.
#[derive(Debug, Default)]
pub(crate) struct ShardArrivals {
    seconds: BTreeMap<u64, Datagrams>,
    /// Second of the last datagrams and their count, which `seconds` lacks.
    current: (u64, u64),
    spans: Vec<ActiveSpan>,
    newest: Option<Duration>,
}

impl ShardArrivals {
    /// Counts a datagram; `missing` is true if others before it are lost.
    #[inline]
    pub(crate) fn record(&mut self, at: Duration, number: u64, missing: bool) {
        if self.current.0 != number {
            self.flush();
            self.current.0 = number;
        }
        self.current.1 += 1;
        self.newest = self.newest.max(Some(at));
        let full = self.spans.len() >= SPANS_MAX;
        match self.spans.last_mut() {
            Some(last) if at >= last.from && (full || at < last.to + PAUSE_MIN) => {
                last.to = last.to.max(at);
            }
            _ if !full => self.spans.push(ActiveSpan { from: at, to: at, missing }),
            _ => {}
        }
    }

    /// Time of the last datagram.
    pub(crate) fn newest(&self) -> Option<Duration> {
        self.newest
    }

    fn flush(&mut self) {
        let (number, taken) = std::mem::take(&mut self.current);
        let room = self.seconds.len() < SECONDS_MAX || self.seconds.contains_key(&number);
        if taken > 0 && room {
            self.seconds.entry(number).or_default().taken += taken;
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
}

/// Datagrams of open seconds of all threads, and the pauses between them.
#[derive(Debug, Default)]
pub(crate) struct DatagramArrivals {
    seconds: BTreeMap<u64, Datagrams>,
    /// Spans that end after the last closed second.
    spans: Vec<ActiveSpan>,
    newest: Option<Duration>,
    /// Longest recent pause between two datagrams; those below [`PAUSE_MIN`] do not count.
    usual_pause_s: f64,
    pauses: Vec<Pause>,
}

impl DatagramArrivals {
    /// Takes the datagrams of a thread.
    pub(crate) fn collect(&mut self, shard: &mut ShardArrivals) {
        shard.flush();
        for (number, of_shard) in std::mem::take(&mut shard.seconds) {
            if self.seconds.len() < SECONDS_MAX || self.seconds.contains_key(&number) {
                let second = self.seconds.entry(number).or_default();
                second.taken += of_shard.taken;
                second.dropped += of_shard.dropped;
            }
        }
        self.spans.append(&mut shard.spans);
    }

    /// Processes the datagrams until `end`, up to which every thread's were collected.
    fn advance(&mut self, end: Duration) {
        let mut spans = std::mem::take(&mut self.spans);
        spans.sort_by_key(|span| (span.from, span.to));
        for span in spans {
            if span.from >= end {
                self.spans.push(span);
                continue;
            }
            self.begin(span.from, span.missing);
            self.extend(span.to.min(end));
            if span.to > end {
                // It goes on beyond the end: no pause there.
                self.spans.push(ActiveSpan { from: end, to: span.to, missing: false });
            }
        }
    }

    /// Processes the first datagram of a span.
    fn begin(&mut self, at: Duration, missing: bool) {
        let newest = *self.newest.get_or_insert(at);
        let pause = at.saturating_sub(newest);
        if pause.is_zero() {
            return;
        }
        self.newest = Some(at);
        if pause >= PAUSE_MIN && self.pauses.len() < PAUSES_MAX {
            self.pauses.push(Pause { from: newest, to: at, missing });
        }
        // An outage is not a usual pause.
        if !missing {
            self.decay(pause);
            self.usual_pause_s = self.usual_pause_s.max(pause.as_secs_f64());
        }
    }

    /// Processes the other datagrams of a span.
    fn extend(&mut self, to: Duration) {
        let newest = *self.newest.get_or_insert(to);
        self.decay(to.saturating_sub(newest));
        self.newest = self.newest.max(Some(to));
    }

    fn decay(&mut self, passed: Duration) {
        self.usual_pause_s *= (-passed.as_secs_f64() / PAUSE_MEMORY_S).exp();
    }

    /// Returns true if the silence from `newest` until `now` exceeds that of an idle network.
    pub(crate) fn is_cut_off_since(&self, newest: Option<Duration>, now: Duration) -> bool {
        let Some(newest) = newest else { return true };
        let usual = Duration::from_secs_f64(SILENCE_FACTOR * self.usual_pause_s).max(SILENCE_MIN);
        now.saturating_sub(newest) > usual
    }

    /// Returns true if a silence until `now` exceeds that of an idle network.
    pub(crate) fn is_cut_off(&self, now: Duration) -> bool {
        self.is_cut_off_since(self.newest, now)
    }

    /// Time of the last datagram, as of the last closed second.
    pub(crate) fn newest(&self) -> Option<Duration> {
        self.newest
    }

    /// Closes a second and returns the part of it that was measured, 0 to 1.
    pub(crate) fn close(&mut self, number: u64, end: Duration) -> f64 {
        self.advance(end);
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

    /// Ten datagrams a second until `to`, in turn at two threads.
    fn busy(to: u32) -> ([ShardArrivals; 2], ClockTimeline) {
        let (mut shards, line) =
            (<[ShardArrivals; 2]>::default(), ClockTimeline::new(at(0.0), 1_000.0));
        for tenth in 0..10 * to {
            let now = at(f64::from(tenth) / 10.0 + 0.05);
            shards[tenth as usize % 2].record(now, line.number(now), false);
        }
        (shards, line)
    }

    fn collected(shards: &mut [ShardArrivals]) -> DatagramArrivals {
        let mut arrivals = DatagramArrivals::default();
        shards.iter_mut().for_each(|shard| arrivals.collect(shard));
        arrivals
    }

    #[test]
    fn dropped_datagrams_are_unmeasured_time() {
        let (mut shards, line) = busy(4);
        // The buffer was full from 3.5 until 8.5; no datagram between was received.
        shards[1].note_drops(&line, at(3.5), at(8.5), 50);
        let mut arrivals = collected(&mut shards);
        let shares: Vec<f64> =
            (1..=10).map(|number| arrivals.close(number, line.span(number).end)).collect();
        assert_eq!(shares[..3], [1.0; 3]);
        assert!((shares[3] - 10.0 / 15.0).abs() < 1e-9, "{shares:?}");
        assert_eq!(shares[4..9], [0.0; 5]);
    }

    #[test]
    fn unusual_silence_is_unknown() {
        let (mut shards, line) = busy(5);
        let mut arrivals = collected(&mut shards);
        arrivals.advance(at(5.0));
        assert!(!arrivals.is_cut_off(at(7.0)) && arrivals.is_cut_off(at(9.0)));
        assert_eq!(
            (arrivals.close(6, line.span(6).end), arrivals.close(9, line.span(9).end)),
            (1.0, 0.0)
        );
        shards[0].record(at(12.0), line.number(at(12.0)), true);
        arrivals.collect(&mut shards[0]);
        arrivals.advance(at(13.0));
        let pauses = arrivals.pauses();
        assert!(pauses.len() == 1 && pauses[0].missing && pauses[0].to == at(12.0), "{pauses:?}");
        // The outage did not become a usual pause.
        assert!(arrivals.is_cut_off(at(16.0)));
        // An exporter that sends only counters.
        for round in 1..10 {
            shards[1].record(at(12.0 + 20.0 * f64::from(round)), 12 + 20 * round as u64, false);
        }
        arrivals.collect(&mut shards[1]);
        arrivals.advance(at(193.0));
        assert!(!arrivals.is_cut_off(at(192.0 + 59.0)) && arrivals.is_cut_off(at(192.0 + 61.0)));
        // Before the first datagram nothing is known.
        assert!(DatagramArrivals::default().is_cut_off(at(0.0)));
    }

    #[test]
    fn pause_of_one_thread_is_none() {
        let mut shards = <[ShardArrivals; 2]>::default();
        for (shard, seconds) in [(0, 0.1), (0, 4.9), (0, 6.2), (1, 0.3), (1, 1.2), (1, 4.0)] {
            shards[shard].record(at(seconds), 1 + seconds as u64, false);
        }
        let mut arrivals = collected(&mut shards);
        arrivals.advance(at(5.0));
        let only = Pause { from: at(1.2), to: at(4.0), missing: false };
        assert_eq!(arrivals.pauses(), [only]);
        // The rest waits for what other threads received before it.
        shards[1].record(at(5.5), 6, false);
        arrivals.collect(&mut shards[1]);
        arrivals.advance(at(7.0));
        assert_eq!((arrivals.pauses(), arrivals.newest()), (vec![], Some(at(6.2))));
    }
}
