//! The thread that ends each second: takes its sums, keeps them and tells those who follow.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::live::Namer;
use crate::minute::{Gathering, Minute};
use crate::second::Second;
use crate::shared::{Shared, unix_now};

/// The wall clock may go apart from the monotonic one by so much in a second before it counts as a step.
const STEP_S: f64 = 1.5;

/// Longest sleep before it looks whether the service ends.
const NAP: Duration = Duration::from_millis(100);

/// Runs until the service ends.
pub(crate) fn run(shared: &Shared, stored: Option<&UnboundedSender<Minute>>) {
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
        number += 1;
        // A second that was cut short, as the first is, or that took longer has the name of the one it begins in.
        let at_s = wall.round() as i64 - length_s.round().max(1.0) as i64;
        let second = Arc::new(Second::new(number, at_s, length_s, &sums));
        drop(sums);
        shared.live_mut().push(Arc::clone(&second));
        if let Some(stored) = stored {
            if gathering.is_over(&second) {
                store(shared, &mut gathering, stored);
            }
            gathering.add(&second);
        }
        let feed = shared.feed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(feed) = feed.as_ref() {
            // Nobody need listen.
            let _ = feed.send(second);
        }
    }
    if let Some(stored) = stored {
        store(shared, &mut gathering, stored);
    }
}

/// Gives a minute to be stored, as much of it as there is.
fn store(shared: &Shared, gathering: &mut Gathering, stored: &UnboundedSender<Minute>) {
    let counted = shared.live_mut().take_minutes();
    let directory = shared.directory();
    let namer = Namer::new(&directory, &shared.sites);
    // No other number of any run is the same: it is drawn from 63 bits.
    let id = (RandomState::new().hash_one(Instant::now()) >> 1) as i64;
    if let Some(minute) = gathering.take(id, &namer, counted) {
        // The other end is there until this thread has ended.
        let _ = stored.send(minute);
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
    let mut directory = shared.directory_mut();
    for exporter in intake.exporters().iter() {
        directory.meet(exporter);
    }
}
