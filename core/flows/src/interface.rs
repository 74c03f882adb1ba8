//! State of an interface: its counters, compared with its samples.
//!
//! Counters are exact and arrive every half minute or so; samples arrive at once and have an error.
//! Totals come from counters, and samples divide them (`crate::rates`).

use std::time::Duration;

use crate::exporter::REORDERED_MS;
use crate::rates::{Amount, FRAME_BYTES_MAX, LINE_BPS_MAX, SampleTally, SamplingCalibration};
use crate::sflow::counters::{GenericInterface, known, known64};

/// Longest stored name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest interval between two counter samples that are compared.
const INTERVAL_MAX: Duration = Duration::from_secs(3600);

/// Counters above the interface's speed by more than this factor are implausible.
const SPEED_FACTOR_MAX: u64 = 2;

/// Count of expected but missing samples that proves a direction is not sampled.
const MISSED_SAMPLES: f64 = 20.0;

/// Difference of the counters of one direction. `None` for counters that the agent lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CounterDelta {
    /// Octets with frame header and check sequence.
    pub octets: Option<u64>,
    /// Unicast, multicast and broadcast packets.
    pub packets: Option<u64>,
    /// Packets discarded without an error.
    pub discards: Option<u64>,
    /// Packets discarded because of errors.
    pub errors: Option<u64>,
}

/// Difference of two counter samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterInterval {
    /// Time between the two samples.
    pub length: Duration,
    /// Traffic that the interface received.
    pub input: CounterDelta,
    /// Traffic that the interface sent.
    pub output: CounterDelta,
}

impl CounterInterval {
    /// Bits per second received; `None` if not counted.
    #[must_use]
    pub fn input_bps(&self) -> Option<f64> {
        self.input.octets.map(|octets| octets as f64 * 8.0 / self.length.as_secs_f64())
    }

    /// Bits per second sent; `None` if not counted.
    #[must_use]
    pub fn output_bps(&self) -> Option<f64> {
        self.output.octets.map(|octets| octets as f64 * 8.0 / self.length.as_secs_f64())
    }
}

/// Reason why two counter samples give no interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoInterval {
    /// There is no earlier sample, or it is too old.
    First,
    /// No time passed between them, or the agent read this one earlier: a duplicate or a late one.
    Same,
    /// Counters fell: the agent or the interface restarted.
    StartedOver,
    /// They exceed the speed of the interface.
    Implausible,
}

#[derive(Debug, Clone, Copy)]
struct CounterReading {
    uptime_ms: u32,
    now: Duration,
    counters: GenericInterface,
}

/// State of an interface.
#[derive(Debug, Clone, Default)]
pub struct InterfaceState {
    /// Name, once the agent reported it.
    pub name: Option<String>,
    /// Speed in bits per second, if reported.
    pub speed_bps: Option<u64>,
    /// Admin and oper state, as in [`crate::sflow::counters::STATUS_OPER_UP`], once reported.
    pub status: Option<u32>,
    /// Time of the last counter sample.
    pub counters_at: Option<Duration>,
    /// The last interval between counter samples.
    pub interval: Option<CounterInterval>,
    /// Samples in that interval, received and sent.
    pub sampled: (SampleTally, SampleTally),
    /// Calibration of received traffic.
    pub calibration_in: SamplingCalibration,
    /// Calibration of sent traffic.
    pub calibration_out: SamplingCalibration,
    /// Count of implausible intervals.
    pub implausible: u64,
    last: Option<CounterReading>,
    running: (SampleTally, SampleTally),
    /// Octets counted since the last sample, received and sent.
    unsampled: (u64, u64),
    /// Sampling rate of the last sample in either direction; 0 before the first.
    rate: u32,
}

impl InterfaceState {
    /// Counts a sample of a received or a sent packet.
    #[inline]
    pub fn sample(&mut self, received: bool, rate: u32, amount: &Amount) {
        self.rate = rate;
        let tally = if received { &mut self.running.0 } else { &mut self.running.1 };
        tally.count(amount);
    }

    /// Returns true unless too many octets were counted since the last sample: chance omits
    /// [`MISSED_SAMPLES`] expected samples in 1 of 10⁸ cases. `exporter_rate` is the sampling rate
    /// of the exporter's last sample, 0 before it: an exporter that samples nothing samples nothing
    /// here.
    #[must_use]
    pub fn is_sampled(&self, received: bool, exporter_rate: u32) -> bool {
        let octets = if received { self.unsampled.0 } else { self.unsampled.1 };
        let rate = if self.rate > 0 { self.rate } else { exporter_rate };
        rate > 0 && (octets as f64) < MISSED_SAMPLES * f64::from(rate) * FRAME_BYTES_MAX
    }

    /// Discards the last counters, because the agent restarted.
    pub fn restart(&mut self) {
        self.last = None;
        self.running = Default::default();
    }

    /// Stores the name, cut to [`NAME_BYTES_MAX`].
    pub fn set_name(&mut self, name: &str) {
        let cut = name.floor_char_boundary(NAME_BYTES_MAX);
        self.name = Some(name[..cut].to_owned()).filter(|name| !name.is_empty());
    }

    /// Updates the state with a counter sample. The length of the interval is the agent's uptime if
    /// plausible, because that is when it read the counters.
    ///
    /// # Errors
    /// When it gives no interval with the last sample.
    pub fn read(
        &mut self,
        now: Duration,
        uptime_ms: u32,
        counters: GenericInterface,
    ) -> Result<CounterInterval, NoInterval> {
        self.speed_bps = known64(counters.speed_bps).filter(|speed| *speed > 0);
        (self.status, self.counters_at) = (Some(counters.status), Some(now));
        let reading = CounterReading { uptime_ms, now, counters };
        let last = self.last.filter(|last| now.saturating_sub(last.now) <= INTERVAL_MAX);
        let Some(last) = last else {
            self.start(reading);
            return Err(NoInterval::First);
        };
        let late_ms = last.uptime_ms.wrapping_sub(uptime_ms);
        if (1..=REORDERED_MS).contains(&late_ms) {
            return Err(NoInterval::Same);
        }
        let of_agent = Duration::from_millis(uptime_ms.wrapping_sub(last.uptime_ms).into());
        let of_clock = now.saturating_sub(last.now);
        let length =
            if of_agent.is_zero() || of_agent > INTERVAL_MAX { of_clock } else { of_agent };
        if length.is_zero() {
            return Err(NoInterval::Same);
        }
        match interval(length, &last.counters, &counters) {
            None => {
                self.start(reading);
                Err(NoInterval::StartedOver)
            }
            Some(interval) if self.exceeds_speed(&interval) => {
                self.implausible += 1;
                self.start(reading);
                Err(NoInterval::Implausible)
            }
            Some(interval) => {
                self.sampled = std::mem::take(&mut self.running);
                let count = |octets: &mut u64, sampled: &SampleTally, counted: CounterDelta| {
                    let more = counted.octets.unwrap_or(0);
                    *octets = if sampled.samples > 0 { 0 } else { octets.saturating_add(more) };
                };
                count(&mut self.unsampled.0, &self.sampled.0, interval.input);
                count(&mut self.unsampled.1, &self.sampled.1, interval.output);
                if let Some(octets) = interval.input.octets {
                    self.calibration_in.interval(octets, &self.sampled.0, self.rate);
                }
                if let Some(octets) = interval.output.octets {
                    self.calibration_out.interval(octets, &self.sampled.1, self.rate);
                }
                self.interval = Some(interval);
                self.last = Some(reading);
                Ok(interval)
            }
        }
    }

    fn start(&mut self, reading: CounterReading) {
        self.last = Some(reading);
        self.running = Default::default();
    }

    fn exceeds_speed(&self, interval: &CounterInterval) -> bool {
        let by_speed = |speed: u64| speed.saturating_mul(SPEED_FACTOR_MAX);
        let most = self.speed_bps.map_or(LINE_BPS_MAX, by_speed) as f64;
        [interval.input_bps(), interval.output_bps()].into_iter().flatten().any(|bps| bps > most)
    }
}

/// Difference of two counter samples; `None` if octets fell. They have 64 bits and do not wrap in
/// the life of an interface.
fn interval(
    length: Duration,
    old: &GenericInterface,
    new: &GenericInterface,
) -> Option<CounterInterval> {
    let octets = |old, new| match (known64(old), known64(new)) {
        (Some(old), Some(new)) => new.checked_sub(old).map(Some),
        _ => Some(None),
    };
    let counter = |old, new| Some(u64::from(known(new)?.wrapping_sub(known(old)?)));
    let sum = |pairs: [(u32, u32); 3]| {
        // Agents without separate multicast counters count it as unicast.
        let counted = pairs.map(|(old, new)| counter(old, new));
        counted[0].map(|unicast| unicast + counted[1].unwrap_or(0) + counted[2].unwrap_or(0))
    };
    Some(CounterInterval {
        length,
        input: CounterDelta {
            octets: octets(old.in_octets, new.in_octets)?,
            packets: sum([
                (old.in_unicast, new.in_unicast),
                (old.in_multicast, new.in_multicast),
                (old.in_broadcast, new.in_broadcast),
            ]),
            discards: counter(old.in_discards, new.in_discards),
            errors: counter(old.in_errors, new.in_errors),
        },
        output: CounterDelta {
            octets: octets(old.out_octets, new.out_octets)?,
            packets: sum([
                (old.out_unicast, new.out_unicast),
                (old.out_multicast, new.out_multicast),
                (old.out_broadcast, new.out_broadcast),
            ]),
            discards: counter(old.out_discards, new.out_discards),
            errors: counter(old.out_errors, new.out_errors),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sflow::xdr::XdrReader;

    fn counters(in_octets: u64, in_unicast: u32) -> GenericInterface {
        let mut counters: GenericInterface = XdrReader::new(&[0; 88]).get().unwrap();
        (counters.in_octets, counters.in_unicast) = (in_octets, in_unicast);
        (counters.speed_bps, counters.out_octets) = (10_000_000_000, u64::MAX);
        (counters.in_multicast, counters.in_errors) = (u32::MAX, u32::MAX);
        counters
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn counters_wrap_and_may_be_absent() {
        let mut state = InterfaceState::default();
        let first = state.read(seconds(1), 1_000, counters(1_000, u32::MAX - 9));
        assert_eq!(first, Err(NoInterval::First));
        // The collector's clock says 21 s, the agent's 20.
        let interval = state.read(seconds(22), 21_000, counters(26_000_001_000, 90)).unwrap();
        assert_eq!(interval.length, seconds(20));
        assert_eq!(interval.input_bps(), Some(10.4e9));
        assert_eq!(interval.input.packets, Some(100));
        assert_eq!((interval.input.errors, interval.output.octets), (None, None));
        assert_eq!(state.read(seconds(22), 21_000, counters(1, 1)), Err(NoInterval::Same));
    }

    #[test]
    fn restarts_and_outliers_give_no_interval() {
        let mut state = InterfaceState::default();
        let _ = state.read(seconds(1), 1_000, counters(5_000, 1));
        let back = state.read(seconds(21), 21_000, counters(100, 1));
        assert_eq!(back, Err(NoInterval::StartedOver));
        let wild = state.read(seconds(41), 41_000, counters(u64::MAX - 1, 1));
        assert_eq!((wild, state.implausible), (Err(NoInterval::Implausible), 1));
        let late = state.read(seconds(9_999), 9_999_000, counters(u64::MAX - 1, 1));
        assert_eq!(late, Err(NoInterval::First));
        // The collector's clock jumped back by an hour: the agent's uptime counts.
        let jumped = state.read(seconds(6_000), 10_019_000, counters(u64::MAX - 1, 1));
        assert_eq!(jumped.unwrap().length, seconds(20));
    }

    #[test]
    fn missed_samples_show_an_unsampled_direction() {
        let mut state = InterfaceState::default();
        assert!(!state.is_sampled(true, 0) && state.is_sampled(true, 1_000));
        let read = |state: &mut InterfaceState, at_s: u64, octets| {
            let _ = state.read(seconds(at_s), at_s as u32 * 1_000, counters(octets, 0));
        };
        read(&mut state, 20, 0);
        // 19 samples of the longest frames would be due, then two more.
        read(&mut state, 40, 19 * 9_018_000);
        assert!(state.is_sampled(true, 1_000));
        read(&mut state, 60, 21 * 9_018_000);
        assert!(!state.is_sampled(true, 1_000) && state.is_sampled(false, 1_000));
        state.sample(true, 1_000, &Amount::new(1_000, 1, 1_500));
        read(&mut state, 80, 50 * 9_018_000);
        assert!(state.is_sampled(true, 0));
    }

    #[test]
    fn samples_are_calibrated_by_interval_counters() {
        let mut state = InterfaceState::default();
        let mut octets = 0;
        for round in 0..10_u32 {
            let _ = state.read(seconds(u64::from(round) * 20), round * 20_000, counters(octets, 0));
            // Half of what the counter says is sampled.
            (0..1_000).for_each(|_| state.sample(true, 1_000, &Amount::new(1_000, 1, 1_500)));
            octets += 3_000_000_000;
        }
        assert!(state.calibration_in.disagrees());
        assert!((state.calibration_in.last().unwrap().value - 2.0).abs() < 1e-9);
        assert_eq!(state.sampled.0.samples, 1_000);
    }
}
