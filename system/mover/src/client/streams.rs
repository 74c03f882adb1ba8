//! The data streams of a client: as many as are wanted, over the ways that are chosen.
//!
//! A stream that breaks is connected again. When other ways are chosen the streams move one by one: each is asked to
//! leave, ends once what it carries has arrived, and is connected over a new way before the next one is asked. Where
//! nothing of one arrives for [`DEAD_AFTER`] the old ways are taken for dead, all that are left there go at once, and
//! what they carried is sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_protocol::open::Opened;
use penstock_protocol::sender::StreamId;

use super::Shared;
use crate::contact::Backoff;
use crate::granting::AnyEnd;
use crate::sending::spawn;
use crate::session::{Ending, lock};

/// How long nothing of what a leaving stream has on its way may arrive before it is broken.
const DEAD_AFTER: Duration = Duration::from_secs(1);

/// How long it may have nothing on its way: its rate is low, or the other end is slow to say what it has written.
const IDLE_AFTER: Duration = Duration::from_secs(3);

/// How often is looked at what is wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A place for a stream.
struct Slot {
    state: Arc<State>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    /// Number of the stream that is there now.
    stream: AtomicU32,
    /// Whether one is.
    connected: AtomicBool,
    /// Which choice of ways it was connected by.
    choice: AtomicU64,
    /// It is to make place for one over another way.
    leave: AtomicBool,
}

impl State {
    fn is_old(&self, choice: u64) -> bool {
        self.connected.load(Ordering::SeqCst) && self.choice.load(Ordering::SeqCst) != choice
    }
}

/// Streams that move to other ways.
#[derive(Default)]
struct Moving {
    /// Those that were asked to leave.
    leaving: Vec<Leaving>,
    /// Those that are left have nothing to wait for.
    hurry: bool,
}

/// A stream that was asked to leave.
struct Leaving {
    state: Arc<State>,
    stream: StreamId,
    /// Bytes that had arrived when there were others last.
    arrived: u64,
    /// When that was.
    since: Instant,
}

/// Keeps as many streams connected as are wanted, until the session is over.
pub(super) fn keep(shared: &Arc<Shared>, end: &AnyEnd, opened: &Opened) {
    let next = Arc::new(AtomicU32::new(0));
    let mut slots: Vec<Slot> = Vec::new();
    let mut moving = Moving::default();
    let mut alive = Instant::now();
    let session = end.session();
    let dial = &shared.plan.contact.dial;
    let mut control_choice = None;
    while !session.is_over() {
        let wanted = session.wanted_streams.load(Ordering::SeqCst).min(opened.streams_max);
        slots.retain(|slot| !slot.thread.is_finished());
        for slot in slots.len()..usize::from(wanted) {
            let state = Arc::new(State::default());
            let (shared, end, opened) = (Arc::clone(shared), end.clone(), opened.clone());
            let (next, slot) = (Arc::clone(&next), u16::try_from(slot).unwrap_or(u16::MAX));
            let thread = spawn("stream", {
                let state = Arc::clone(&state);
                move || keep_one(&shared, &end, &opened, slot, &state, &next)
            });
            slots.push(Slot { state, thread });
        }
        let choice = dial.choice();
        if control_choice.replace(choice) != Some(choice) {
            let control = lock(&shared.control);
            // It comes back by itself, over a way that is chosen.
            control.iter().filter(|control| !dial.is_chosen(control)).for_each(|c| c.shut_down());
        }
        moving.step(&slots, choice, end);
        if session.stream_count() > 0 {
            alive = Instant::now();
        } else if alive.elapsed() > shared.plan.contact.give_up_after {
            let why = format!(
                "no data stream to {} lived for {} s",
                shared.plan.contact.shown(),
                shared.plan.contact.give_up_after.as_secs()
            );
            session.end(Ending::Failed(why));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    for slot in slots {
        let _ = slot.thread.join();
    }
}

impl Moving {
    /// Looks after streams that are still on ways that were chosen before.
    fn step(&mut self, slots: &[Slot], choice: u64, end: &AnyEnd) {
        let there = |state: &State, stream: StreamId| {
            state.connected.load(Ordering::SeqCst) && state.stream.load(Ordering::SeqCst) == stream
        };
        // The place is taken again by a stream over a new way, or is not needed any more.
        let is_back = |state: &Arc<State>| {
            let is_slot = slots.iter().any(|slot| Arc::ptr_eq(&slot.state, state));
            !is_slot || (state.connected.load(Ordering::SeqCst) && !state.is_old(choice))
        };
        self.leaving.retain(|one| !is_back(&one.state));
        for one in &mut self.leaving {
            let (arrived, is_under_way) =
                end.session().progress_of(one.stream).unwrap_or((one.arrived, true));
            if arrived > one.arrived {
                (one.arrived, one.since) = (arrived, Instant::now());
            }
            let patience = if is_under_way { DEAD_AFTER } else { IDLE_AFTER };
            // A receiving end hears of no wish: its streams are broken and their blocks asked for again.
            let waits = matches!(end, AnyEnd::Send(_)) && one.since.elapsed() <= patience;
            if there(&one.state, one.stream) && !waits {
                self.hurry = true;
                end.session().break_stream(one.stream);
            }
        }
        let is_asked =
            |state: &Arc<State>| self.leaving.iter().any(|one| Arc::ptr_eq(&one.state, state));
        let mut old: Vec<_> = slots
            .iter()
            .filter(|slot| slot.state.is_old(choice) && !is_asked(&slot.state))
            .collect();
        if old.is_empty() {
            self.hurry &= !self.leaving.is_empty();
            return;
        }
        if !self.hurry {
            old.truncate(usize::from(self.leaving.is_empty()));
        }
        for slot in old {
            let stream = slot.state.stream.load(Ordering::SeqCst);
            slot.state.leave.store(true, Ordering::SeqCst);
            let (state, since) = (Arc::clone(&slot.state), Instant::now());
            self.leaving.push(Leaving { state, stream, arrived: 0, since });
        }
    }
}

/// Keeps the stream of one place.
fn keep_one(
    shared: &Shared,
    end: &AnyEnd,
    opened: &Opened,
    slot: u16,
    state: &State,
    next: &AtomicU32,
) {
    let session = end.session();
    let wanted = || slot < session.wanted_streams.load(Ordering::SeqCst);
    let mut backoff = Backoff::default();
    while !session.is_over() && wanted() {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let mark = session.options.mark.filter(|_| matches!(end, AnyEnd::Send(_)));
        state.leave.store(false, Ordering::SeqCst);
        state.choice.store(shared.plan.contact.dial.choice(), Ordering::SeqCst);
        let joined = shared.plan.contact.join(opened, number, mark);
        let result = joined.and_then(|(channel, nonces, label)| {
            session.name_label(label);
            state.stream.store(number, Ordering::SeqCst);
            state.connected.store(true, Ordering::SeqCst);
            let stays = || wanted() && !state.leave.load(Ordering::SeqCst);
            let result = end.run_stream_while(number, channel, &nonces, stays);
            state.connected.store(false, Ordering::SeqCst);
            result
        });
        if session.is_over() {
            return;
        }
        if let Err(error) = result {
            tracing::debug!("stream {number}: {error}");
        }
        if start.elapsed() > Duration::from_secs(5) {
            backoff = Backoff::default();
        }
        if !state.leave.load(Ordering::SeqCst) {
            backoff.pause();
        }
    }
}
