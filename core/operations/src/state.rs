//! Where requests and files stand, and what they may become.
//!
//! A request's state follows from counts of its files and from what was asked of it ([`Tally::state`]); it is never
//! set. A file is settled once: what is in place, failed or cancelled stays so.

use serde::{Deserialize, Serialize};

/// Where a request stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestState {
    /// Accepted; its files are not all known yet and none has begun.
    Submitted,
    /// All its files are known and wait for their turn.
    Staged,
    /// Files are moved, or some are settled and others wait.
    Active,
    /// Every file is in place.
    Done,
    /// No file is in place, and none will be.
    Failed,
    /// Some files are in place, the others failed.
    Partial,
    /// It was cancelled before every file was in place.
    Cancelled,
}

impl RequestState {
    /// All, in the order of their numbers in storage.
    pub const ALL: [Self; 7] = [
        Self::Submitted,
        Self::Staged,
        Self::Active,
        Self::Done,
        Self::Failed,
        Self::Partial,
        Self::Cancelled,
    ];

    /// Whether nothing will change it any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Submitted | Self::Staged | Self::Active)
    }

    /// As the API writes it.
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

    /// Whether a request in this state may come to be in `next`.
    #[must_use]
    pub fn may_become(self, next: Self) -> bool {
        match (self, next) {
            _ if self == next => true,
            _ if self.is_final() => false,
            (_, Self::Submitted) => false,
            // More files are found while some are moved already, but what began has begun.
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

/// Where a file stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileState {
    /// It waits, for the first time or for another attempt.
    Queued,
    /// It is part of an order that runs.
    Active,
    /// It is in place.
    Done,
    /// It will not be.
    Failed,
    /// Nobody wants it any more.
    Cancelled,
}

impl FileState {
    /// All, in the order of their numbers in storage.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Active, Self::Done, Self::Failed, Self::Cancelled];

    /// Whether nothing will change it any more.
    #[must_use]
    pub fn is_final(self) -> bool {
        self > Self::Active
    }

    /// As the API writes it.
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

    /// Whether a file in this state may come to be in `next`.
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

/// What is known of a request, counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files that are known.
    pub files: u64,
    /// Those in orders that run.
    pub active: u64,
    /// Those in place.
    pub done: u64,
    /// Those that failed.
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// More files may come: it is not sealed, or its directory is being listed.
    pub open: bool,
    /// It was cancelled.
    pub cancel: bool,
    /// Its directory could not be listed.
    pub broken: bool,
}

impl Tally {
    /// Files that are settled.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.done + self.failed + self.cancelled
    }

    /// Where the request stands.
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
        let tally = Tally { files: 3, ..Tally::default() };
        for (tally, state) in [
            (Tally { open: true, files: 0, ..tally }, RequestState::Submitted),
            (Tally { open: true, ..tally }, RequestState::Submitted),
            (tally, RequestState::Staged),
            (Tally { active: 2, ..tally }, RequestState::Active),
            (Tally { done: 1, ..tally }, RequestState::Active),
            (Tally { done: 3, ..tally }, RequestState::Done),
            (Tally { done: 3, open: true, ..tally }, RequestState::Active),
            (Tally { done: 3, cancel: true, ..tally }, RequestState::Done),
            (Tally { done: 2, failed: 1, ..tally }, RequestState::Partial),
            (Tally { failed: 3, ..tally }, RequestState::Failed),
            (Tally { done: 2, cancelled: 1, cancel: true, ..tally }, RequestState::Cancelled),
            (Tally { files: 0, ..tally }, RequestState::Done),
            (Tally { files: 0, broken: true, ..tally }, RequestState::Failed),
            (Tally { files: 0, cancel: true, ..tally }, RequestState::Cancelled),
            (Tally { done: 3, broken: true, ..tally }, RequestState::Partial),
        ] {
            assert_eq!(tally.state(), state, "{tally:?}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for state in RequestState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        for state in FileState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        assert!("dnoe".parse::<RequestState>().unwrap_err().contains("done"));
    }

    proptest! {
        /// Whatever happens to the files of a request, its state only takes allowed steps and ends once.
        #[test]
        fn requests_only_take_allowed_steps(steps in prop::collection::vec((0..6_u8, 0..4_u64), 0..60)) {
            let mut tally = Tally { open: true, ..Tally::default() };
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
