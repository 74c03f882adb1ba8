//! The thread that closes each second: takes its sums, keeps them and sends them to those who follow.
//!
//! A second is closed when it is over and every socket is drained beyond its end, so that what the kernel received in it is
//! in it, even where this program was stopped meanwhile. What was not received is unknown, not zero (`crate::arrivals`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;

use crate::live::Namer;
use crate::minute::{Gathering, Minute, draw_id};
use crate::second::{Second, Strata, strata};
use crate::shared::Shared;

/// A difference of the clocks from which on the wall clock was set, and did not only drift.
const STEP_S: f64 = 1.5;

/// Longest sleep before it looks whether the service ends.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Between two looks at sockets that are not drained.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// After so many looks (a minute of this program's own time, not of one that it was stopped) a second is closed
/// whether sockets are drained or not.
const DRAIN_LOOKS_MAX: u32 = 12_000;

/// Runs until the service ends.
pub(crate) fn run(shared: &Shared, stored: &[UnboundedSender<Arc<Minute>>]) {
    let mut gathering = Gathering::default();
    let mut number = 1;
    while wait_for_end(shared, number) {
        close(shared, &mut gathering, stored, number);
        number += 1;
    }
    if !stored.is_empty() {
        store(shared, &mut gathering, stored);
    }
}

/// Closes the second with this number.
fn close(
    shared: &Shared,
    gathering: &mut Gathering,
    stored: &[UnboundedSender<Arc<Minute>>],
    number: u64,
) {
    let line = shared.timeline();
    let span = line.span(number);
    let sums = {
        let mut intake = shared.intake();
        shared.open_from.store(number + 1, Ordering::Relaxed);
        intake.aggregator.take_interval(number)
    };
    let (measured, pauses, silent_since) = {
        let mut arrivals = shared.arrivals();
        let measured = arrivals.close(number, span.end);
        let silent_since = arrivals.newest().filter(|_| arrivals.is_cut_off(span.end));
        (measured, arrivals.pauses(), silent_since)
    };
    meet_exporters(shared);
    let second = (Arc::new(Second::new(span, measured, &sums)), strata(&sums));
    drop(sums);
    publish(shared, gathering, stored, second);
    let mut settle = |from: Duration, to: Duration, measured| {
        let numbers = line.number(from) + 1..line.number(to);
        for (at_s, seconds) in shared.live_mut().settle(numbers, measured) {
            gathering.settle(at_s, seconds);
        }
    };
    // A silence that turns out to be one of an outage began with the last datagram.
    if let Some(since) = silent_since {
        settle(since, span.end, false);
    }
    for pause in pauses {
        settle(pause.from, pause.to, !pause.missing);
    }
}

/// Keeps a second and sends it to those who follow.
fn publish(
    shared: &Shared,
    gathering: &mut Gathering,
    stored: &[UnboundedSender<Arc<Minute>>],
    (second, strata): (Arc<Second>, Strata),
) {
    shared.live_mut().push(Arc::clone(&second), strata);
    if !stored.is_empty() {
        if gathering.is_over(&second) {
            store(shared, gathering, stored);
        }
        gathering.add(&second);
    }
    let feed = shared.feed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(feed) = feed.as_ref() {
        // An error means that there is no follower.
        let _ = feed.send(second);
    }
}

/// Gives a minute to be stored, as much of it as there is.
fn store(shared: &Shared, gathering: &mut Gathering, stored: &[UnboundedSender<Arc<Minute>>]) {
    let counted = shared.live_mut().take_minutes();
    let directory = shared.directory();
    let namer = Namer::new(&directory, &shared.sites);
    if let Some(minute) = gathering.take(draw_id(), &namer, counted) {
        let minute = Arc::new(minute);
        for stored in stored {
            // The other end is there until this thread has ended.
            let _ = stored.send(Arc::clone(&minute));
        }
    }
}

/// Waits until a second is over and was taken from every socket; whether the service goes on.
fn wait_for_end(shared: &Shared, number: u64) -> bool {
    let mut looks = 0;
    loop {
        if shared.stopping.load(Ordering::Relaxed) {
            return false;
        }
        let step_s = shared.adjust_timeline().unwrap_or(0.0);
        if step_s.abs() > STEP_S {
            shared.live_mut().clock_was_set();
            shared.clock_steps.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                "the wall clock was set by {step_s:.0} s; sums go by the time that really passed"
            );
        }
        let (now, end) = (shared.now(), shared.timeline().span(number).end);
        if now < end {
            std::thread::sleep((end - now).min(SLEEP_MAX));
        } else if shared.drained() >= end || looks >= DRAIN_LOOKS_MAX {
            return true;
        } else {
            looks += 1;
            std::thread::sleep(DRAIN_INTERVAL);
        }
    }
}

fn meet_exporters(shared: &Shared) {
    let intake = shared.intake();
    let known = shared.directory();
    let new: Vec<_> = intake.exporters().iter().filter(|one| !known.has(one.id)).collect();
    drop(known);
    if !new.is_empty() {
        shared.change_directory(|directory| {
            new.into_iter().for_each(|exporter| directory.meet(exporter));
        });
    }
}

#[cfg(test)]
mod tests {
    use penstock_flows::aggregate::{AggregateLimits, Aggregator};
    use penstock_flows::intake::Intake;
    use penstock_flows::prefixes::Prefixes;
    use penstock_flows::scitag::Trust;
    use penstock_scitags::Registry;

    use super::*;
    use crate::config::Config;
    use crate::shared::Stores;

    /// Answers of seconds hold names and seconds: the thread that closes a second must not wait for them.
    #[test]
    fn a_question_that_takes_long_holds_no_second_up() {
        let registry = Registry::builtin().clone();
        let none = Prefixes::default;
        let trust = Trust::new(registry.clone(), none(), none(), 1);
        let aggregator = Aggregator::new(AggregateLimits::default(), Prefixes::default(), 1);
        let mut intake = Intake::new(trust, aggregator, 1);
        let mut encoder = penstock_flows::sflow::Encoder::new([192, 0, 2, 1].into(), 0, 1400);
        let counters = encoder.counters(1, 1, penstock_flows::sflow::Source::interface(1), &[]);
        let datagram = counters.unwrap().or_else(|| encoder.take(1)).unwrap();
        let from = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
        intake.sflow(Duration::ZERO, from, &datagram, &mut ()).unwrap();
        let stores = Stores { store: None, clickhouse: None, archive: None };
        let shared =
            Shared::new(Config::default(), registry, intake, (Vec::new(), Vec::new()), stores);
        let asked = (shared.directory(), shared.live().newest().cloned());
        close(&shared, &mut Gathering::default(), &[], 1);
        assert_eq!(shared.live().seconds().count(), 1);
        let id = shared.intake().exporters().iter().next().unwrap().id;
        assert!(shared.directory().has(id) && !asked.0.has(id));
    }
}
