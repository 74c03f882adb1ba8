//! The thread that ends each second: takes its sums, keeps them and tells those who follow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::live::Namer;
use crate::minute::{Gathering, Minute, draw_id};
use crate::second::Second;
use crate::shared::{Shared, unix_now};

/// The wall clock may go apart from the monotonic one by so much in a second before it counts as a step.
const STEP_S: f64 = 1.5;

/// Longest sleep before it looks whether the service ends.
const NAP: Duration = Duration::from_millis(100);

/// Runs until the service ends.
pub(crate) fn run(shared: &Shared, stored: &[UnboundedSender<Arc<Minute>>]) {
    let mut gathering = Gathering::default();
    let (mut last, mut last_wall) = (Instant::now(), unix_now());
    let mut number = 0;
    while wait_for_second(shared) {
        let sums = shared.intake().take();
        let (now, wall) = (Instant::now(), unix_now());
        let length_s = now.duration_since(last).as_secs_f64();
        let step = wall - last_wall - length_s;
        if step.abs() > STEP_S {
            shared.clock_steps.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                "the wall clock was set by {step:.0} s; sums go by the time that really passed"
            );
        }
        (last, last_wall) = (now, wall);
        meet_exporters(shared);
        // A second that was cut short, as the first is, or that took longer has the name of the one it begins in.
        let at_s = wall.round() as i64 - length_s.round().max(1.0) as i64;
        let long = Second::new(number + 1, at_s, length_s, &sums);
        drop(sums);
        for second in long.apart() {
            number = second.number;
            tell(shared, &mut gathering, stored, Arc::new(second));
        }
    }
    if !stored.is_empty() {
        store(shared, &mut gathering, stored);
    }
}

/// Keeps a second and tells those who follow.
fn tell(
    shared: &Shared,
    gathering: &mut Gathering,
    stored: &[UnboundedSender<Arc<Minute>>],
    second: Arc<Second>,
) {
    shared.live_mut().push(Arc::clone(&second));
    if !stored.is_empty() {
        if gathering.is_over(&second) {
            store(shared, gathering, stored);
        }
        gathering.add(&second);
    }
    let feed = shared.feed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(feed) = feed.as_ref() {
        // Nobody need listen.
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

/// Sleeps until the wall clock begins a second; whether the service goes on.
fn wait_for_second(shared: &Shared) -> bool {
    let until = Instant::now() + Duration::from_secs_f64(1.001 - unix_now().fract());
    loop {
        if shared.stopping.load(Ordering::Relaxed) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(NAP));
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
    use penstock_flows::aggregate::{Aggregator, Limits};
    use penstock_flows::intake::Intake;
    use penstock_flows::prefixes::Prefixes;
    use penstock_flows::scitag::Trust;
    use penstock_scitags::Registry;

    use super::*;
    use crate::config::Config;
    use crate::shared::Stores;

    /// Answers of seconds hold names and seconds: whoever ends a second must not wait for them.
    #[test]
    fn a_question_that_takes_long_holds_no_second_up() {
        let registry = Registry::builtin().clone();
        let none = Prefixes::default;
        let trust = Trust::new(registry.clone(), none(), none(), 1);
        let aggregator = Aggregator::new(Limits::default(), Prefixes::default(), 1);
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
        let sums = shared.intake().take();
        meet_exporters(&shared);
        for second in Second::new(1, 100, 1.0, &sums).apart() {
            tell(&shared, &mut Gathering::default(), &[], Arc::new(second));
        }
        assert_eq!(shared.live().seconds().count(), 1);
        let id = shared.intake().exporters().iter().next().unwrap().id;
        assert!(shared.directory().has(id) && !asked.0.has(id));
    }
}
