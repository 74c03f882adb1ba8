//! The data streams of a client: as many as are wanted, over the ways that are chosen.
//!
//! A stream that breaks is connected again. When other ways are chosen each stream gets a successor over a new way, and
//! leaves once that is connected: it ends when what it carries has arrived. Where nothing of it arrives for
//! [`DEAD_AFTER`] its way is taken for dead, it is broken, and what it carried is sent again. So is what a slow
//! stream has under way that does not arrive within [`LEAVE_WITHIN`], if it carried a block before: else one that is moved
//! all the time would never carry any. The control connection follows the last stream.

use std::collections::HashSet;
use std::io;
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

/// How long nothing of what a stream on an old way has under way may arrive before it is broken.
const DEAD_AFTER: Duration = Duration::from_secs(1);

/// How long a stream may take to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// How long it may have nothing on its way: its rate is low, or the other end is slow to say what it has written.
const IDLE_AFTER: Duration = Duration::from_secs(3);

/// How often is looked at what is wanted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A stream, and its place among those that are wanted. One that is replaced and its successor have the same place.
struct Slot {
    place: u16,
    state: Arc<State>,
    thread: JoinHandle<()>,
    /// Since other ways were chosen than that by which it was connected.
    leaving: Option<Leaving>,
}

#[derive(Default)]
struct State {
    /// Number of the stream that is there now.
    stream: AtomicU32,
    /// Whether one is.
    connected: AtomicBool,
    /// Which choice of ways it was connected by.
    choice: AtomicU64,
    /// When it ends, no other comes.
    replaced: AtomicBool,
    /// It is to end.
    leave: AtomicBool,
    /// The agent has no place for it beside the one that it replaces.
    crowded: AtomicBool,
}

impl State {
    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
    }

    /// Whether it is connected, or connects, by another choice.
    fn is_old(&self, choice: u64) -> bool {
        self.choice.load(Ordering::SeqCst) != choice
    }
}

/// How a stream on an old way is doing.
struct Leaving {
    /// When it was asked to leave.
    asked: Option<Instant>,
    /// Bytes that had arrived when there were others last.
    arrived: u64,
    /// When that was.
    moved: Instant,
    /// Its way is dead.
    dead: bool,
}

/// Keeps as many streams connected as are wanted, until the session is over.
pub(super) fn keep(shared: &Arc<Shared>, end: &AnyEnd, opened: &Opened) {
    let next = Arc::new(AtomicU32::new(0));
    let mut slots: Vec<Slot> = Vec::new();
    let mut alive = Instant::now();
    let session = end.session();
    let dial = &shared.plan.contact.dial;
    let mut control_choice = None;
    while !session.is_over() {
        let choice = dial.choice();
        slots.retain(|slot| !slot.thread.is_finished());
        slots.iter_mut().for_each(|slot| slot.look(choice));
        let wanted = session.wanted_streams.load(Ordering::SeqCst).min(opened.streams_max);
        for place in 0..wanted {
            if slots.iter().any(|slot| slot.place == place && slot.leaving.is_none()) {
                continue;
            }
            let state = Arc::new(State { choice: choice.into(), ..State::default() });
            let (shared, end, opened) = (Arc::clone(shared), end.clone(), opened.clone());
            let next = Arc::clone(&next);
            let thread = spawn("stream", {
                let state = Arc::clone(&state);
                move || keep_one(&shared, &end, &opened, place, &state, &next)
            });
            slots.push(Slot { place, state, thread, leaving: None });
        }
        replace(&mut slots, end);
        let left = slots.iter().all(|slot| slot.leaving.as_ref().is_none_or(|one| one.dead));
        if control_choice != Some(choice) && left {
            control_choice = Some(choice);
            let control = lock(&shared.control);
            // It comes back by itself, over a way that is chosen.
            control.iter().filter(|control| !dial.is_chosen(control)).for_each(|c| c.shut_down());
        }
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

impl Slot {
    /// Notices that other ways are chosen.
    fn look(&mut self, choice: u64) {
        if self.leaving.is_none() && self.state.is_old(choice) {
            self.state.replaced.store(true, Ordering::SeqCst);
            let now = Instant::now();
            self.leaving = Some(Leaving { asked: None, arrived: 0, moved: now, dead: false });
        }
    }
}

/// Looks after streams that have a successor.
fn replace(slots: &mut [Slot], end: &AnyEnd) {
    let session = end.session();
    let block_bytes = u64::from(session.options.block_bytes);
    let mut room: HashSet<u16> = slots
        .iter()
        .filter(|slot| slot.leaving.is_none())
        .filter(|slot| slot.state.is_connected() || slot.state.crowded.load(Ordering::SeqCst))
        .map(|slot| slot.place)
        .collect();
    // The latest first: of two that leave one place the other one is broken, so that no more pile up.
    let mut seen = HashSet::new();
    for slot in slots.iter_mut().rev() {
        let Some(leaving) = &mut slot.leaving else { continue };
        let is_surplus = slot.state.is_connected() && !seen.insert(slot.place);
        let stream: StreamId = slot.state.stream.load(Ordering::SeqCst);
        if leaving.asked.is_none() && (is_surplus || room.remove(&slot.place)) {
            leaving.asked = Some(Instant::now());
            slot.state.leave.store(true, Ordering::SeqCst);
        }
        if !slot.state.is_connected() || session.is_broken(stream) {
            continue;
        }
        let Some(progress) = session.progress_of(stream) else { continue };
        if progress.arrived > leaving.arrived {
            (leaving.arrived, leaving.moved) = (progress.arrived, Instant::now());
        }
        let patience =
            if progress.is_under_way { DEAD_AFTER } else { IDLE_AFTER.max(session.turn() * 2) };
        let is_dead = leaving.moved.elapsed() > patience;
        let asked_for = leaving.asked.map(|asked| asked.elapsed());
        let is_late = asked_for.is_some_and(|time| match end {
            // What has arrived waits to be written, on whichever way.
            AnyEnd::Send(_) if progress.is_finished && !progress.is_under_way => false,
            AnyEnd::Send(_) => time > LEAVE_WITHIN && progress.arrived > block_bytes,
            // A receiving end hears of no wish: its streams are broken and their blocks asked for again.
            AnyEnd::Receive(_) => true,
        });
        if is_dead || is_late || is_surplus {
            leaving.dead |= is_dead;
            slot.state.leave.store(true, Ordering::SeqCst);
            let why = if is_dead { "nothing arrives there" } else { "it takes long" };
            tracing::debug!("stream {stream} is broken on its old way: {why}");
            session.break_stream(stream);
        }
    }
}

/// Keeps the stream of one place.
fn keep_one(
    shared: &Shared,
    end: &AnyEnd,
    opened: &Opened,
    place: u16,
    state: &State,
    next: &AtomicU32,
) {
    let session = end.session();
    let wanted = || place < session.wanted_streams.load(Ordering::SeqCst);
    let mut backoff = Backoff::default();
    while !session.is_over() && wanted() && !state.replaced.load(Ordering::SeqCst) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let mark = session.options.mark.filter(|_| matches!(end, AnyEnd::Send(_)));
        state.choice.store(shared.plan.contact.dial.choice(), Ordering::SeqCst);
        let joined = shared.plan.contact.join(opened, number, mark);
        let result = joined.and_then(|(channel, nonces, label)| {
            session.name_label(label);
            tracing::debug!("stream {number} connected to {}", channel.transport().peer());
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
            state.crowded.store(error.kind() == io::ErrorKind::QuotaExceeded, Ordering::SeqCst);
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
