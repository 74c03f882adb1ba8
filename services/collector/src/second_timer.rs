//! The thread that closes each second: stores its sums and sends them to the live feed.
//!
//! A second is closed when it is over and every socket is drained beyond its end, so that it has
//! all datagrams that the kernel received in it, even if this program was stopped meanwhile.
//! Traffic without datagrams is unknown, not zero (`crate::arrivals`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_flows::aggregate::Aggregates;
use tokio::sync::mpsc::UnboundedSender;

use crate::directory::ReportedName;
use crate::live::Namer;
use crate::minute::{Minute, MinuteBuilder, draw_id};
use crate::second::{Second, Strata, strata};
use crate::shared::Shared;

/// Smallest difference of the clocks that counts as a step instead of drift.
const STEP_S: f64 = 1.5;

/// Longest sleep before a check for the end of the service.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Time between two checks of sockets that are not drained.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);

/// Checks (a minute of this program's own time, not of one in which it was stopped) after which a
/// second is closed without drained sockets.
const DRAIN_LOOKS_MAX: u32 = 12_000;

/// Closes seconds until the service ends.
pub(crate) fn run(shared: &Shared, stored: &[UnboundedSender<Arc<Minute>>]) {
    let mut gathering = MinuteBuilder::default();
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
    gathering: &mut MinuteBuilder,
    stored: &[UnboundedSender<Arc<Minute>>],
    number: u64,
) {
    let line = shared.timeline();
    let span = line.span(number);
    let sums = take_sums(shared, number);
    let (measured, pauses, silent_since) = {
        let mut arrivals = shared.arrivals();
        let measured = arrivals.close(number, span.end);
        let silent_since = arrivals.newest().filter(|_| arrivals.is_cut_off(span.end));
        (measured, arrivals.pauses(), silent_since)
    };
    add_new_exporters(shared);
    let second = (Arc::new(Second::new(span, measured, &sums)), strata(&sums));
    drop(sums);
    publish(shared, gathering, stored, second);
    let mut correct = |from: Duration, to: Duration, measured| {
        let numbers = line.number(from) + 1..line.number(to);
        for (at_s, seconds) in shared.live_mut().correct_measured(numbers, measured) {
            gathering.correct_measured(at_s, seconds);
        }
    };
    // A silence that is an outage began with the last datagram.
    if let Some(since) = silent_since {
        correct(since, span.end, false);
    }
    for pause in pauses {
        correct(pause.from, pause.to, !pause.missing);
    }
}

/// Takes the sums and the other results of a second from all shards.
fn take_sums(shared: &Shared, number: u64) -> Aggregates {
    let mut sums: Option<Aggregates> = None;
    for shard in &shared.shards {
        let (part, intervals, names) = {
            let mut state = shard.state();
            shard.empty_inbox(shared, &mut state);
            state.open_from = number + 1;
            state.intake.make_place(shared.now());
            shared.arrivals().collect(&mut state.output.arrivals);
            let intervals = std::mem::take(&mut state.output.intervals);
            let names = std::mem::take(&mut state.output.names);
            (state.intake.aggregator.take_interval(number), intervals, names)
        };
        add_names(shared, &names);
        let mut live = shared.live_mut();
        intervals.into_iter().for_each(|interval| live.count(interval));
        drop(live);
        match &mut sums {
            None => sums = Some(part),
            Some(sums) => sums.merge(part),
        }
    }
    sums.expect("there is at least one shard")
}

/// Stores a second and sends it to the live feed.
fn publish(
    shared: &Shared,
    gathering: &mut MinuteBuilder,
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
        // Without subscribers the channel returns an error.
        let _ = feed.send(second);
    }
}

/// Sends the current minute, complete or not, to the stores.
fn store(shared: &Shared, gathering: &mut MinuteBuilder, stored: &[UnboundedSender<Arc<Minute>>]) {
    let counted = shared.live_mut().take_minutes();
    let directory = shared.directory();
    let namer = Namer::new(&directory, &shared.sites);
    if let Some(minute) = gathering.finish(draw_id(), &namer, counted) {
        let minute = Arc::new(minute);
        for stored in stored {
            // The receiver lives until this thread has ended.
            let _ = stored.send(Arc::clone(&minute));
        }
    }
}

/// Waits until a second is over and drained from every socket; returns false when the service ends.
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

/// Stores the names that are new.
fn add_names(shared: &Shared, names: &[ReportedName]) {
    let known = shared.directory();
    let new: Vec<_> = names.iter().filter(|name| !known.has_name(name)).collect();
    drop(known);
    if !new.is_empty() {
        shared.change_directory(|directory| {
            new.into_iter().for_each(|name| directory.add_name(name));
        });
    }
}

fn add_new_exporters(shared: &Shared) {
    for state in shared.shard_states() {
        let known = shared.directory();
        let exporters = state.intake.exporters().iter();
        let mut new: Vec<_> = exporters.filter(|one| !known.has(one.id)).collect();
        drop(known);
        new.sort_by_key(|exporter| exporter.id);
        if !new.is_empty() {
            shared.change_directory(|directory| {
                new.into_iter().for_each(|exporter| directory.add_exporter(exporter));
            });
        }
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

    /// Queries hold names and seconds for a long time: the thread that closes a second must not
    /// wait for them.
    #[test]
    fn long_query_delays_no_second() {
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
        let shared = Shared::new(
            Config::default(),
            registry,
            vec![intake],
            (Vec::new(), Vec::new()),
            stores,
        );
        let asked = (shared.directory(), shared.live().newest().cloned());
        close(&shared, &mut MinuteBuilder::default(), &[], 1);
        assert_eq!(shared.live().seconds().count(), 1);
        let id = shared.shards[0].state().intake.exporters().iter().next().unwrap().id;
        assert!(shared.directory().has(id) && !asked.0.has(id));
    }
}
