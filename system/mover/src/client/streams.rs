//! Data streams of a client: as many as requested, or as its tuner finds, over the chosen paths.
//!
//! Broken streams are reconnected. After a change of paths each stream gets a successor on a new path
//! and drains: it ends when its data has arrived. If nothing of it arrives for [`STALL_TIMEOUT`], its path
//! counts as dead, the stream is broken and its data sent again. So is a slow stream that does not
//! drain within [`DRAIN_TIMEOUT`], provided it carried a block before: a stream moved repeatedly would
//! otherwise never carry any. The control connection follows the last stream.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock_protocol::open::Opened;
use penstock_protocol::sender::StreamId;

use super::transfer::TransferState;
use crate::base::lock::lock;
use crate::base::spawn::spawn;
use crate::endpoint::end::Endpoint;
use crate::net::connector::{Backoff, JoinedStream};
use crate::session::outcome::SessionOutcome;

/// Time without progress after which a draining stream with data in flight is broken.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit to drain a stream.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Time without data in flight after which a draining stream is broken; long, because its rate may be
/// low, or the other end slow to acknowledge.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval of the supervision loop.
const SUPERVISION_INTERVAL: Duration = Duration::from_millis(50);

/// Stream and its index among the requested ones, which a replaced stream shares with its successor.
struct Slot {
    place: u16,
    state: Arc<StreamState>,
    thread: JoinHandle<()>,
    /// Set after a change of paths, while the stream drains.
    draining: Option<Draining>,
}

#[derive(Default)]
struct StreamState {
    /// Number of the current stream.
    stream: AtomicU32,
    /// Set while it is connected.
    connected: AtomicBool,
    /// Generation of paths with which it connected.
    choice: AtomicU64,
    /// Set when it must not be reconnected.
    replaced: AtomicBool,
    /// Set when it must drain and end.
    drain: AtomicBool,
    /// Set when the agent has no slot for it beside the one that it replaces.
    crowded: AtomicBool,
}

impl StreamState {
    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
    }

    /// True if it connected, or connects, with an older choice of paths.
    fn is_old(&self, choice: u64) -> bool {
        self.choice.load(Ordering::SeqCst) != choice
    }
}

/// Progress of a draining stream.
struct Draining {
    /// Time of the request to drain.
    asked: Option<Instant>,
    /// Bytes arrived at the last progress.
    arrived: u64,
    /// Time of the last progress.
    moved: Instant,
    /// Set when its path is dead.
    dead: bool,
}

/// Keeps the requested number of streams connected until the session is over.
pub(super) fn keep(shared: &Arc<TransferState>, end: &Endpoint, opened: &Opened) {
    let next = Arc::new(AtomicU32::new(0));
    let mut slots: Vec<Slot> = Vec::new();
    let mut alive = Instant::now();
    let session = end.session();
    let dial = &shared.plan.contact.dial;
    let mut control_choice = None;
    while !session.is_over() {
        shared.tune(end);
        let choice = dial.choice();
        slots.retain(|slot| !slot.thread.is_finished());
        slots.iter_mut().for_each(|slot| slot.start_draining(choice));
        let wanted = session.wanted_streams.load(Ordering::SeqCst).min(opened.streams_max);
        for place in 0..wanted {
            if slots.iter().any(|slot| slot.place == place && slot.draining.is_none()) {
                continue;
            }
            let state = Arc::new(StreamState { choice: choice.into(), ..StreamState::default() });
            let (shared, end, opened) = (Arc::clone(shared), end.clone(), opened.clone());
            let next = Arc::clone(&next);
            let thread = spawn("stream", {
                let state = Arc::clone(&state);
                move || keep_slot_connected(&shared, &end, &opened, place, &state, &next)
            });
            slots.push(Slot { place, state, thread, draining: None });
        }
        replace(&mut slots, end);
        let left = slots.iter().all(|slot| slot.draining.as_ref().is_none_or(|one| one.dead));
        if control_choice != Some(choice) && left {
            control_choice = Some(choice);
            let control = lock(&shared.control);
            // It reconnects by itself over a chosen path.
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
            session.end(SessionOutcome::Failed(why));
        }
        // The end of the session unparks this thread.
        std::thread::park_timeout(SUPERVISION_INTERVAL);
    }
    for slot in slots {
        let _ = slot.thread.join();
    }
}

impl Slot {
    /// Starts to drain after a change of paths.
    fn start_draining(&mut self, choice: u64) {
        if self.draining.is_none() && self.state.is_old(choice) {
            self.state.replaced.store(true, Ordering::SeqCst);
            let now = Instant::now();
            self.draining = Some(Draining { asked: None, arrived: 0, moved: now, dead: false });
        }
    }
}

/// Drains or breaks streams that have a successor.
fn replace(slots: &mut [Slot], end: &Endpoint) {
    let session = end.session();
    let block_bytes = u64::from(session.options.block_bytes);
    let mut room: HashSet<u16> = slots
        .iter()
        .filter(|slot| slot.draining.is_none())
        .filter(|slot| slot.state.is_connected() || slot.state.crowded.load(Ordering::SeqCst))
        .map(|slot| slot.place)
        .collect();
    // Latest first: of two streams draining in one slot the older one is broken, so that no more pile
    // up.
    let mut seen = HashSet::new();
    for slot in slots.iter_mut().rev() {
        let Some(draining) = &mut slot.draining else { continue };
        let is_surplus = slot.state.is_connected() && !seen.insert(slot.place);
        let stream: StreamId = slot.state.stream.load(Ordering::SeqCst);
        if draining.asked.is_none() && (is_surplus || room.remove(&slot.place)) {
            draining.asked = Some(Instant::now());
            slot.state.drain.store(true, Ordering::SeqCst);
        }
        if !slot.state.is_connected() || session.is_broken(stream) {
            continue;
        }
        let Some(progress) = session.progress_of(stream) else { continue };
        if progress.arrived > draining.arrived {
            (draining.arrived, draining.moved) = (progress.arrived, Instant::now());
        }
        let patience = if progress.is_under_way {
            STALL_TIMEOUT
        } else {
            IDLE_TIMEOUT.max(session.part_interval() * 2)
        };
        let is_dead = draining.moved.elapsed() > patience;
        let asked_for = draining.asked.map(|asked| asked.elapsed());
        let is_late = asked_for.is_some_and(|time| match end {
            // Data that has arrived waits to be written, on any path.
            Endpoint::Send(_) if progress.is_finished && !progress.is_under_way => false,
            Endpoint::Send(_) => time > DRAIN_TIMEOUT && progress.arrived > block_bytes,
            // A receiving end cannot ask the sender to drain: its streams are broken and their blocks
            // requested again.
            Endpoint::Receive(_) => true,
        });
        if is_dead || is_late || is_surplus {
            draining.dead |= is_dead;
            slot.state.drain.store(true, Ordering::SeqCst);
            let why = if is_dead { "nothing arrives there" } else { "it takes long" };
            tracing::debug!("stream {stream} is broken on its old way: {why}");
            session.break_stream(stream);
        }
    }
}

/// Keeps the stream of one slot connected.
fn keep_slot_connected(
    shared: &TransferState,
    end: &Endpoint,
    opened: &Opened,
    place: u16,
    state: &StreamState,
    next: &AtomicU32,
) {
    let session = end.session();
    let wanted = || place < session.wanted_streams.load(Ordering::SeqCst);
    let mut backoff = Backoff::default();
    while !session.is_over() && wanted() && !state.replaced.load(Ordering::SeqCst) {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let mark = session.options.mark.filter(|_| matches!(end, Endpoint::Send(_)));
        state.choice.store(shared.plan.contact.dial.choice(), Ordering::SeqCst);
        let contact = &shared.plan.contact;
        let joined = shared.transports.join(contact, opened, number, mark, end);
        let result = joined.and_then(|JoinedStream { channel, nonces, label }| {
            session.set_label(label);
            tracing::debug!("stream {number} connected to {}", channel.transport().peer());
            state.stream.store(number, Ordering::SeqCst);
            state.connected.store(true, Ordering::SeqCst);
            let stays = || wanted() && !state.drain.load(Ordering::SeqCst);
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
        if !state.drain.load(Ordering::SeqCst) {
            backoff.pause();
        }
    }
}
