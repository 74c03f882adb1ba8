//! States of requests, which follow from the counts of their files.
//!
//! A request's counts and what its client asked give an event ([`RequestTally::event`]), and the event its next state
//! ([`RequestState::transition`]); no other code sets a state.

use serde::{Deserialize, Serialize};

use crate::numbers::stored_numbers;

/// State of a request; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// Accepted; not all files are known, and none has begun.
    Submitted = 0,
    /// All files are known and queued.
    Staged = 1,
    /// Some files are moving, or settled while others wait.
    Active = 2,
    /// Every file is at the destination.
    Done = 3,
    /// No file is at the destination, and none will be.
    Failed = 4,
    /// Some files are at the destination, the others failed.
    Partial = 5,
    /// Cancelled before every file was at the destination.
    Cancelled = 6,
}

stored_numbers!(RequestState);

/// Event of a request, as its counts show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestEvent {
    /// Files may be added, and none has begun.
    Opened,
    /// All files are known, and none has begun.
    Sealed,
    /// Files are in orders, or settled while others wait.
    Started,
    /// Every file is at the destination.
    Completed,
    /// All files are settled, and none is at the destination.
    Failed,
    /// All files are settled, and some are at the destination.
    PartlyFailed,
    /// The request was cancelled, and all files are settled.
    Cancelled,
}

impl RequestState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Submitted,
        Self::Staged,
        Self::Active,
        Self::Done,
        Self::Failed,
        Self::Partial,
        Self::Cancelled,
    ];

    /// True if the state never changes again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Submitted | Self::Staged | Self::Active)
    }

    /// Returns the state after an event; none if the event is not possible in this state.
    ///
    /// A final state remains under its own event, and an active request stays active while all its files wait for a
    /// retry.
    #[must_use]
    pub const fn transition(self, event: RequestEvent) -> Option<Self> {
        match (self, event) {
            (Self::Submitted, RequestEvent::Opened) => Some(Self::Submitted),
            (Self::Submitted | Self::Staged, RequestEvent::Sealed) => Some(Self::Staged),
            (Self::Active, RequestEvent::Opened | RequestEvent::Sealed)
            | (Self::Submitted | Self::Staged | Self::Active, RequestEvent::Started) => {
                Some(Self::Active)
            }
            (
                Self::Submitted | Self::Staged | Self::Active | Self::Done,
                RequestEvent::Completed,
            ) => Some(Self::Done),
            (
                Self::Submitted | Self::Staged | Self::Active | Self::Failed,
                RequestEvent::Failed,
            ) => Some(Self::Failed),
            (
                Self::Submitted | Self::Staged | Self::Active | Self::Partial,
                RequestEvent::PartlyFailed,
            ) => Some(Self::Partial),
            (
                Self::Submitted | Self::Staged | Self::Active | Self::Cancelled,
                RequestEvent::Cancelled,
            ) => Some(Self::Cancelled),
            _ => None,
        }
    }

    /// Returns the name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Staged => "staged",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Partial => "partial",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A name that is no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no state of a {object}: write one of {known}")]
pub struct UnknownState {
    name: String,
    object: &'static str,
    known: String,
}

impl UnknownState {
    pub(crate) fn new(name: &str, object: &'static str, known: &[&str]) -> Self {
        Self { name: name.to_owned(), object, known: known.join(", ") }
    }
}

impl std::str::FromStr for RequestState {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| UnknownState::new(text, "request", &Self::ALL.map(Self::as_str)))
    }
}

/// Changes of a request's counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestDelta {
    /// Files that became known.
    pub files: i64,
    /// Files that entered orders, less those that left them.
    pub active: i64,
    /// Files that reached the destination.
    pub done: i64,
    /// Files that failed for good.
    pub failed: i64,
    /// Files that were cancelled.
    pub cancelled: i64,
    /// Bytes of files whose size became known.
    pub bytes: i64,
    /// Bytes that reached the destination.
    pub bytes_done: i64,
    /// Files whose size became known.
    pub sized: i64,
}

impl RequestDelta {
    /// Adds other changes of the same request.
    pub fn add(&mut self, other: Self) {
        *self = Self {
            files: self.files + other.files,
            active: self.active + other.active,
            done: self.done + other.done,
            failed: self.failed + other.failed,
            cancelled: self.cancelled + other.cancelled,
            bytes: self.bytes.saturating_add(other.bytes),
            bytes_done: self.bytes_done.saturating_add(other.bytes_done),
            sized: self.sized + other.sized,
        };
    }
}

/// Counts and flags that determine a request's state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestTally {
    /// Files known so far.
    pub files: u64,
    /// Files in orders at nodes.
    pub active: u64,
    /// Files at the destination.
    pub done: u64,
    /// Files that failed for good.
    pub failed: u64,
    /// Files cancelled with the request.
    pub cancelled: u64,
    /// Set while files may be added: the request is not sealed, or its directory is being listed.
    pub open: bool,
    /// Set when the client cancelled the request.
    pub cancel: bool,
    /// Set when its directory could not be listed.
    pub broken: bool,
}

impl RequestTally {
    /// Returns the number of files in a final state.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.done + self.failed + self.cancelled
    }

    /// Adds changes of the counts.
    pub fn add(&mut self, delta: &RequestDelta) {
        *self = Self {
            files: self.files.saturating_add_signed(delta.files),
            active: self.active.saturating_add_signed(delta.active),
            done: self.done.saturating_add_signed(delta.done),
            failed: self.failed.saturating_add_signed(delta.failed),
            cancelled: self.cancelled.saturating_add_signed(delta.cancelled),
            ..*self
        };
    }

    /// Returns the event that the counts show.
    #[must_use]
    pub fn event(&self) -> RequestEvent {
        if !self.open && self.settled() >= self.files {
            let all_there = self.done == self.files && !self.broken;
            return match self {
                _ if self.cancel && !(all_there && self.files > 0) => RequestEvent::Cancelled,
                _ if all_there => RequestEvent::Completed,
                _ if self.done == 0 => RequestEvent::Failed,
                _ => RequestEvent::PartlyFailed,
            };
        }
        match self {
            _ if self.active > 0 || self.settled() > 0 => RequestEvent::Started,
            _ if self.open => RequestEvent::Opened,
            _ => RequestEvent::Sealed,
        }
    }

    /// Returns the state of a new request with these counts.
    #[must_use]
    pub fn state(&self) -> RequestState {
        RequestState::Submitted
            .transition(self.event())
            .expect("every event is possible in the first state")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn states_follow_from_counts() {
        let tally = RequestTally { files: 3, ..RequestTally::default() };
        for (tally, state) in [
            (RequestTally { open: true, files: 0, ..tally }, RequestState::Submitted),
            (RequestTally { open: true, ..tally }, RequestState::Submitted),
            (tally, RequestState::Staged),
            (RequestTally { active: 2, ..tally }, RequestState::Active),
            (RequestTally { done: 1, ..tally }, RequestState::Active),
            (RequestTally { done: 3, ..tally }, RequestState::Done),
            (RequestTally { done: 3, open: true, ..tally }, RequestState::Active),
            (RequestTally { done: 3, cancel: true, ..tally }, RequestState::Done),
            (RequestTally { done: 2, failed: 1, ..tally }, RequestState::Partial),
            (RequestTally { failed: 3, ..tally }, RequestState::Failed),
            (
                RequestTally { done: 2, cancelled: 1, cancel: true, ..tally },
                RequestState::Cancelled,
            ),
            (RequestTally { files: 0, ..tally }, RequestState::Done),
            (RequestTally { files: 0, broken: true, ..tally }, RequestState::Failed),
            (RequestTally { files: 0, cancel: true, ..tally }, RequestState::Cancelled),
            (RequestTally { done: 3, broken: true, ..tally }, RequestState::Partial),
        ] {
            assert_eq!(tally.state(), state, "{tally:?}");
        }
    }

    #[test]
    fn request_state_names_round_trip() {
        for state in RequestState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("dnoe".parse::<RequestState>().unwrap_err().to_string().contains("done"));
    }

    #[test]
    fn request_transitions_follow_table() {
        use RequestState::{Active, Cancelled, Done, Failed, Partial, Staged, Submitted};
        let ends = |state| [Some(state), Some(Done), Some(Failed), Some(Partial), Some(Cancelled)];
        let only = |event: usize, state| {
            let mut after = [None; 7];
            after[event] = Some(state);
            after
        };
        let open = |opened, sealed| {
            let [started, rest @ ..] = ends(Active);
            let [completed, failed, partly, cancelled] = rest;
            [opened, sealed, started, completed, failed, partly, cancelled]
        };
        for (state, after) in [
            (Submitted, open(Some(Submitted), Some(Staged))),
            (Staged, open(None, Some(Staged))),
            (Active, open(Some(Active), Some(Active))),
            (Done, only(3, Done)),
            (Failed, only(4, Failed)),
            (Partial, only(5, Partial)),
            (Cancelled, only(6, Cancelled)),
        ] {
            let events = [
                RequestEvent::Opened,
                RequestEvent::Sealed,
                RequestEvent::Started,
                RequestEvent::Completed,
                RequestEvent::Failed,
                RequestEvent::PartlyFailed,
                RequestEvent::Cancelled,
            ];
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        /// Arbitrary events only cause allowed transitions.
        #[test]
        fn requests_only_take_allowed_steps(steps in prop::collection::vec((0..6_u8, 0..4_u64), 0..60)) {
            let mut tally = RequestTally { open: true, ..RequestTally::default() };
            let mut state = tally.state();
            for (what, count) in steps {
                let waiting = tally.files - tally.settled() - tally.active;
                match what {
                    0 if tally.open => tally.files += count,
                    1 => tally.active += count.min(waiting),
                    2 => {
                        let moved = count.min(tally.active);
                        tally.active -= moved;
                        tally.done += moved;
                    }
                    3 => {
                        let moved = count.min(tally.active);
                        tally.active -= moved;
                        tally.failed += moved;
                    }
                    4 => tally.open = false,
                    5 if tally.cancel => {
                        tally.open = false;
                        tally.cancelled += waiting;
                    }
                    5 => tally.cancel = true,
                    _ => {}
                }
                let next = state.transition(tally.event());
                prop_assert!(next.is_some(), "{state:?}: {tally:?}");
                state = next.unwrap_or(state);
                if state.is_final() {
                    break;
                }
            }
        }
    }
}
