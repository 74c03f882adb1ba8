//! Credits of one queue pair: the states of its slots at both ends. Pure.
//!
//! A receiver grants slots of its memory. The sender writes each message into one granted slot, with the slot's number as
//! immediate value, and may use the slot again only after the receiver granted it again, by a message that carries the
//! number as well. So no more messages are in flight than the receiver posted receives, and it is never "not ready".
//!
//! After an error of a queue pair, messages that the sender sees as flushed may still arrive. So a slot's memory is free
//! for other queue pairs only if its message arrived, or after the queue pair is destroyed at the receiver
//! ([`ReceiverCredits::is_reusable`]). Messages without a completion are sent again elsewhere
//! ([`SenderCredits::fail`]); a message may thus arrive twice, but none is lost.
//!
//! Neither end trusts the other: a slot out of turn is a [`CreditError`], and the caller ends the connection.

use std::collections::VecDeque;

use thiserror::Error;

/// Violation of the protocol by the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CreditError {
    /// Slot that does not exist.
    #[error("the other end named slot {slot} of {slots}")]
    Range {
        /// Number that the other end sent.
        slot: u32,
        /// Number of slots.
        slots: u32,
    },
    /// Slot that the sender has already.
    #[error("the other end granted slot {0} twice")]
    GrantedTwice(u32),
    /// Slot that the sender did not have.
    #[error("the other end wrote into slot {0} without a grant")]
    NotGranted(u32),
    /// Slot that the application does not hold.
    #[error("slot {0} is released without a message in it")]
    NotHeld(u32),
    /// Completion of a request that is not outstanding.
    #[error("the device completed request {0}, which is not outstanding")]
    Completion(u64),
}

/// Request that the caller posts, in this order, to the send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PostedRequest {
    /// Number of the request, from 0 without gaps.
    pub sequence: u64,
    /// Slot that it writes into or grants.
    pub slot: u32,
    /// Its completion is requested from the device.
    pub signalled: bool,
}

/// Send queue of one end: requests without a completion, which are numbered without gaps. A completion stands for all
/// requests before it.
#[derive(Debug)]
struct SendQueue {
    entries: u32,
    signal_interval: u32,
    next: u64,
    /// Completions are requested for the requests below this.
    signalled: u64,
    /// Requests below this are completed.
    completed: u64,
}

impl SendQueue {
    fn new(entries: u32, signal_interval: u32) -> Self {
        let signal_interval = signal_interval.clamp(1, entries.max(1));
        Self { entries, signal_interval, next: 0, signalled: 0, completed: 0 }
    }

    const fn outstanding(&self) -> u64 {
        self.next - self.completed
    }

    fn has_room(&self) -> bool {
        self.outstanding() < u64::from(self.entries)
    }

    /// True while a requested completion has not come.
    const fn awaits_completion(&self) -> bool {
        self.completed < self.signalled
    }

    /// Adds a request; `is_last` requests a completion in any case.
    fn post(&mut self, slot: u32, is_last: bool) -> PostedRequest {
        let sequence = self.next;
        self.next += 1;
        let is_full = self.outstanding() == u64::from(self.entries);
        let is_due = self.next - self.signalled >= u64::from(self.signal_interval);
        let signalled = is_last || is_full || is_due;
        if signalled {
            self.signalled = self.next;
        }
        PostedRequest { sequence, slot, signalled }
    }

    /// Completes requests up to `sequence`; returns their number.
    fn complete(&mut self, sequence: u64) -> Result<u64, CreditError> {
        if !(self.completed..self.next).contains(&sequence) {
            return Err(CreditError::Completion(sequence));
        }
        let count = sequence + 1 - self.completed;
        self.completed = sequence + 1;
        Ok(count)
    }
}

/// Sender's end: granted slots and messages in flight.
#[derive(Debug)]
pub struct SenderCredits {
    queue: SendQueue,
    /// Slots of the peer by number; true if this end may write into it.
    is_granted: Vec<bool>,
    granted: VecDeque<u32>,
    /// Messages below this are completed by the marker in flight.
    marked: Option<u64>,
    has_failed: bool,
}

impl SenderCredits {
    /// Starts with all slots granted, by the receiver's offer.
    #[must_use]
    pub fn new(slots: u32, queue_entries: u32, signal_interval: u32) -> Self {
        Self {
            queue: SendQueue::new(queue_entries, signal_interval),
            is_granted: vec![true; slots as usize],
            granted: (0..slots).collect(),
            marked: None,
            has_failed: false,
        }
    }

    /// True if a message may be posted now.
    #[must_use]
    pub fn may_post(&self) -> bool {
        !self.has_failed && !self.granted.is_empty() && self.queue.has_room()
    }

    /// Takes a slot for a message. `more_follow` is false where no message is ready behind it, so that its completion is
    /// not waited for in vain.
    pub fn post(&mut self, more_follow: bool) -> Option<PostedRequest> {
        if !self.may_post() {
            return None;
        }
        let slot = self.granted.pop_front()?;
        self.is_granted[slot as usize] = false;
        Some(self.queue.post(slot, !more_follow || self.granted.is_empty()))
    }

    /// Messages in flight: posted and not completed.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.queue.outstanding()
    }

    /// Messages posted so far, which is the number of the next one.
    #[must_use]
    pub const fn posted(&self) -> u64 {
        self.queue.next
    }

    /// Messages below this number are complete.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.queue.completed
    }

    /// True while a requested completion has not come.
    #[must_use]
    pub const fn awaits_completion(&self) -> bool {
        self.queue.awaits_completion()
    }

    /// Requests the completion of all messages in flight. True if the caller must post a marker behind them for it: none
    /// is posted while another one is in flight.
    #[must_use]
    pub fn request_completion(&mut self) -> bool {
        let is_needed = self.marked.is_none() && self.queue.signalled < self.queue.next;
        if is_needed {
            self.queue.signalled = self.queue.next;
            self.marked = Some(self.queue.next);
        }
        is_needed
    }

    /// Records the completion of the marker, which stands for all messages before it. Returns their number.
    pub fn on_marker(&mut self) -> u64 {
        let Some(marked) = self.marked.take() else { return 0 };
        let count = marked.saturating_sub(self.queue.completed);
        self.queue.completed += count;
        count
    }

    /// Records a completion: the messages up to `sequence` are in the receiver's memory. Returns their number.
    ///
    /// # Errors
    /// For a request that is not outstanding.
    pub fn on_completion(&mut self, sequence: u64) -> Result<u64, CreditError> {
        self.queue.complete(sequence)
    }

    /// Records a grant of the receiver.
    ///
    /// # Errors
    /// For a slot that does not exist or is granted already.
    pub fn on_grant(&mut self, slot: u32) -> Result<(), CreditError> {
        let slots = self.is_granted.len() as u32;
        let is_granted =
            self.is_granted.get_mut(slot as usize).ok_or(CreditError::Range { slot, slots })?;
        if *is_granted {
            return Err(CreditError::GrantedTwice(slot));
        }
        *is_granted = true;
        self.granted.push_back(slot);
        Ok(())
    }

    /// Ends the use of the queue pair after an error. Returns the numbers of the messages without a completion, which the
    /// caller sends again elsewhere.
    pub fn fail(&mut self) -> std::ops::Range<u64> {
        self.has_failed = true;
        let lost = self.queue.completed..self.queue.next;
        self.queue.completed = self.queue.next;
        lost
    }
}

/// State of a slot at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SlotState {
    /// The sender may write into it at any time.
    Granted,
    /// Its message arrived, and the application uses it.
    Held,
    /// Released by the application, not granted again yet.
    Released,
    /// Never granted again through this queue pair.
    Retired,
}

/// State of the receiver's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReceiverState {
    Open,
    /// In the error state; messages that arrived before may still be taken from the completion queue.
    Failed,
    Destroyed,
}

/// Receiver's end: state of each slot and outstanding receives.
#[derive(Debug)]
pub struct ReceiverCredits {
    queue: SendQueue,
    slots: Vec<SlotState>,
    released: VecDeque<u32>,
    state: ReceiverState,
    /// Posted receives without a completion.
    receives: u32,
}

impl ReceiverCredits {
    /// Starts with all slots granted by the offer, and as many receives that the caller has posted.
    #[must_use]
    pub fn new(slots: u32, queue_entries: u32, signal_interval: u32) -> Self {
        Self {
            queue: SendQueue::new(queue_entries, signal_interval),
            slots: vec![SlotState::Granted; slots as usize],
            released: VecDeque::new(),
            state: ReceiverState::Open,
            receives: slots,
        }
    }

    /// Records that the message of a slot arrived: the application holds the slot until [`Self::release`].
    ///
    /// # Errors
    /// For a slot that does not exist or was not granted.
    pub fn on_message(&mut self, slot: u32) -> Result<(), CreditError> {
        self.receives = self.receives.saturating_sub(1);
        match self.state_of(slot)? {
            SlotState::Granted => {
                self.slots[slot as usize] = SlotState::Held;
                Ok(())
            }
            _ => Err(CreditError::NotGranted(slot)),
        }
    }

    /// Records a receive that completed as flushed.
    pub fn on_flushed_receive(&mut self) {
        self.receives = self.receives.saturating_sub(1);
    }

    /// Returns a slot of the application. It is granted again by [`Self::grant`].
    ///
    /// # Errors
    /// For a slot that the application does not hold.
    pub fn release(&mut self, slot: u32) -> Result<(), CreditError> {
        if self.state_of(slot)? != SlotState::Held {
            return Err(CreditError::NotHeld(slot));
        }
        let is_open = self.state == ReceiverState::Open;
        self.slots[slot as usize] = if is_open { SlotState::Released } else { SlotState::Retired };
        if is_open {
            self.released.push_back(slot);
        }
        Ok(())
    }

    /// Takes a released slot to grant. The caller posts a receive first, then the message with the slot's number.
    pub fn grant(&mut self) -> Option<PostedRequest> {
        if self.state != ReceiverState::Open || !self.queue.has_room() {
            return None;
        }
        let slot = self.released.pop_front()?;
        self.slots[slot as usize] = SlotState::Granted;
        self.receives += 1;
        Some(self.queue.post(slot, self.released.is_empty()))
    }

    /// Records the completion of a grant.
    ///
    /// # Errors
    /// For a request that is not outstanding.
    pub fn on_completion(&mut self, sequence: u64) -> Result<(), CreditError> {
        self.queue.complete(sequence).map(|_| ())
    }

    /// True while a requested completion of a grant has not come.
    #[must_use]
    pub const fn awaits_completion(&self) -> bool {
        self.queue.awaits_completion()
    }

    /// Ends the use of the queue pair after an error, before or after the caller moves it to the error state.
    pub fn fail(&mut self) {
        if self.state == ReceiverState::Open {
            self.state = ReceiverState::Failed;
            for slot in self.released.drain(..) {
                self.slots[slot as usize] = SlotState::Retired;
            }
        }
    }

    /// True if each posted receive has a completion: all messages that arrived are known, and the caller may destroy the
    /// queue pair.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.receives == 0
    }

    /// Records that the queue pair is destroyed: no message can arrive any more.
    pub fn on_destroyed(&mut self) {
        self.fail();
        self.state = ReceiverState::Destroyed;
        for slot in &mut self.slots {
            if *slot == SlotState::Granted {
                *slot = SlotState::Retired;
            }
        }
    }

    /// True if another queue pair may use the memory of the slot.
    #[must_use]
    pub fn is_reusable(&self, slot: u32) -> bool {
        self.slots.get(slot as usize) == Some(&SlotState::Retired)
    }

    fn state_of(&self, slot: u32) -> Result<SlotState, CreditError> {
        let slots = self.slots.len() as u32;
        self.slots.get(slot as usize).copied().ok_or(CreditError::Range { slot, slots })
    }
}

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_stop_without_grants() {
        let mut sender = SenderCredits::new(2, 8, 4);
        assert_eq!(sender.post(true).map(|one| (one.slot, one.signalled)), Some((0, false)));
        assert!(!sender.awaits_completion());
        // The last granted slot: without its completion the sender would wait for ever.
        assert_eq!(sender.post(true).map(|one| (one.slot, one.signalled)), Some((1, true)));
        assert_eq!(sender.post(true), None);
        assert!(sender.awaits_completion());
        assert_eq!(sender.on_completion(1), Ok(2));
        assert!(!sender.awaits_completion());
        assert_eq!(sender.post(true), None);
        assert_eq!(sender.on_grant(1), Ok(()));
        assert_eq!(sender.post(true).map(|one| one.slot), Some(1));
    }

    #[test]
    fn writes_stop_at_full_queue() {
        let mut sender = SenderCredits::new(8, 2, 8);
        assert_eq!(sender.post(true).map(|one| one.signalled), Some(false));
        assert_eq!(sender.post(true).map(|one| one.signalled), Some(true));
        assert!(!sender.may_post());
        assert_eq!(sender.fail(), 0..2);
        assert!(!sender.may_post());
        assert_eq!(sender.in_flight(), 0);
    }

    #[test]
    fn marker_completes_messages_before_it() {
        let mut sender = SenderCredits::new(8, 10, 4);
        assert!(!sender.request_completion(), "there is nothing to complete");
        sender.post(true);
        sender.post(true);
        assert!(sender.request_completion() && sender.awaits_completion());
        sender.post(true);
        assert!(!sender.request_completion(), "one marker at a time");
        assert_eq!((sender.on_marker(), sender.in_flight()), (2, 1));
        assert_eq!(sender.on_marker(), 0);
        assert!(sender.request_completion());
        // A later message whose completion stands for the marked one as well.
        assert_eq!(sender.post(false).map(|one| one.signalled), Some(true));
        assert_eq!(sender.on_completion(3), Ok(2));
        assert_eq!((sender.on_marker(), sender.in_flight()), (0, 0));
    }

    #[test]
    fn messages_out_of_turn_are_errors() {
        let mut sender = SenderCredits::new(2, 2, 1);
        assert_eq!(sender.on_grant(2), Err(CreditError::Range { slot: 2, slots: 2 }));
        assert_eq!(sender.on_grant(1), Err(CreditError::GrantedTwice(1)));
        assert_eq!(sender.on_completion(0), Err(CreditError::Completion(0)));
        let mut receiver = ReceiverCredits::new(2, 2, 1);
        assert_eq!(receiver.on_message(5), Err(CreditError::Range { slot: 5, slots: 2 }));
        assert_eq!(receiver.on_message(0), Ok(()));
        assert_eq!(receiver.on_message(0), Err(CreditError::NotGranted(0)));
        assert_eq!(receiver.release(1), Err(CreditError::NotHeld(1)));
    }

    #[test]
    fn granted_memory_waits_for_destruction() {
        let mut receiver = ReceiverCredits::new(3, 3, 1);
        receiver.on_message(0).unwrap();
        receiver.on_message(1).unwrap();
        receiver.release(1).unwrap();
        receiver.fail();
        // Slot 0 is held, slot 1 has arrived and is released, slot 2 may still be written.
        assert_eq!([0, 1, 2].map(|slot| receiver.is_reusable(slot)), [false, true, false]);
        assert!(!receiver.is_drained());
        receiver.on_flushed_receive();
        assert!(receiver.is_drained());
        receiver.on_destroyed();
        assert_eq!([0, 1, 2].map(|slot| receiver.is_reusable(slot)), [false, true, true]);
        receiver.release(0).unwrap();
        assert!(receiver.is_reusable(0) && receiver.grant().is_none());
    }
}
