//! States of requests and files, and their transitions.
//!
//! A request's state is a function of its file counts and of what the client asked ([`RequestTally::state`]); no code
//! sets it. A file reaches a final state once and keeps it.

use serde::{Deserialize, Serialize};

/// State of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// Accepted; not all files are known, and none has begun.
    Submitted,
    /// All files are known and queued.
    Staged,
    /// Some files are moving, or settled while others wait.
    Active,
    /// Every file is at the destination.
    Done,
    /// No file is at the destination, and none will be.
    Failed,
    /// Some files are at the destination, the others failed.
    Partial,
    /// Cancelled before every file was at the destination.
    Cancelled,
}

impl RequestState {
    /// All states; the index is the number in storage.
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
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Submitted | Self::Staged | Self::Active)
    }

    /// Returns the name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
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

    /// True if a request in this state may change to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        match (self, next) {
            _ if self == next => true,
            _ if self.is_final() => false,
            (_, Self::Submitted) => false,
            // A listing may find more files while some move already; a request that has begun does not go back.
            (Self::Active, Self::Staged) => false,
            _ => true,
        }
    }
}

impl std::str::FromStr for RequestState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|state| state.as_str()).collect();
            format!("'{text}' is no state of a request: write one of {}", all.join(", "))
        })
    }
}

/// State of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// Queued, for its first attempt or a retry.
    Queued,
    /// Part of an order at a node.
    Active,
    /// At the destination, verified.
    Done,
    /// Failed after its last attempt.
    Failed,
    /// Cancelled with its request.
    Cancelled,
}

impl FileState {
    /// All states; the index is the number in storage.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Active, Self::Done, Self::Failed, Self::Cancelled];

    /// True if the state never changes again.
    #[must_use]
    pub fn is_final(self) -> bool {
        self > Self::Active
    }

    /// Returns the name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// True if a file in this state may change to `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        self == next || !self.is_final()
    }
}

impl std::str::FromStr for FileState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(|state| state.as_str()).collect();
            format!("'{text}' is no state of a file: write one of {}", all.join(", "))
        })
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

    /// Returns the state of the request.
    #[must_use]
    pub fn state(&self) -> RequestState {
        if !self.open && self.settled() >= self.files {
            let all_there = self.done == self.files && !self.broken;
            return match self {
                _ if self.cancel && !(all_there && self.files > 0) => RequestState::Cancelled,
                _ if all_there => RequestState::Done,
                _ if self.done == 0 => RequestState::Failed,
                _ => RequestState::Partial,
            };
        }
        match self {
            _ if self.active > 0 || self.settled() > 0 => RequestState::Active,
            _ if self.open => RequestState::Submitted,
            _ => RequestState::Staged,
        }
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
    fn state_names_round_trip() {
        for state in RequestState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        for state in FileState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("dnoe".parse::<RequestState>().unwrap_err().contains("done"));
    }

    proptest! {
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
                let next = tally.state();
                prop_assert!(state.may_become(next), "{state:?} to {next:?}: {tally:?}");
                state = next;
                if state.is_final() {
                    break;
                }
            }
        }
    }
}
