//! States of the files of a request.
//!
//! A file reaches a final state once and keeps it.

use serde::{Deserialize, Serialize};

use crate::numbers::stored_numbers;
use crate::request::UnknownState;

/// Largest size of a file, 1 PiB: sizes come from clients and agents, and sums of them have to fit into the database.
pub const FILE_BYTES_MAX: u64 = 1 << 50;

/// Largest sum of sizes that is kept, 1 EiB: two of them fit into a number of the database.
pub const TOTAL_BYTES_MAX: i64 = 1 << 60;

/// State of a file; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestFileState {
    /// Queued, for its first attempt or a retry.
    Queued = 0,
    /// Part of an order at a node.
    Active = 1,
    /// At the destination, verified.
    Done = 2,
    /// Failed after its last attempt.
    Failed = 3,
    /// Cancelled with its request.
    Cancelled = 4,
}

stored_numbers!(RequestFileState);

/// Event of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestFileEvent {
    /// Its batch became part of a run.
    Started,
    /// It is at the destination, verified.
    Delivered,
    /// Its attempt failed and is retried, or its order was withdrawn.
    Requeued,
    /// Its last attempt failed, or its fault is permanent.
    Failed,
    /// Its request was cancelled.
    Cancelled,
}

impl RequestFileState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Queued, Self::Active, Self::Done, Self::Failed, Self::Cancelled];

    /// Lowest number of a final state.
    pub const FINAL_MIN: i64 = Self::Done as i64;

    /// True if the state never changes again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        self as i64 >= Self::FINAL_MIN
    }

    /// Returns the state after an event; none if the file is settled.
    #[must_use]
    pub const fn transition(self, event: RequestFileEvent) -> Option<Self> {
        match (self, event) {
            (Self::Done | Self::Failed | Self::Cancelled, _) => None,
            (Self::Queued | Self::Active, RequestFileEvent::Started) => Some(Self::Active),
            (Self::Queued | Self::Active, RequestFileEvent::Requeued) => Some(Self::Queued),
            (Self::Queued | Self::Active, RequestFileEvent::Delivered) => Some(Self::Done),
            (Self::Queued | Self::Active, RequestFileEvent::Failed) => Some(Self::Failed),
            (Self::Queued | Self::Active, RequestFileEvent::Cancelled) => Some(Self::Cancelled),
        }
    }

    /// Returns the name in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Active => "active",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl std::str::FromStr for RequestFileState {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| UnknownState::new(text, "file", &Self::ALL.map(Self::as_str)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_transitions_follow_table() {
        use RequestFileState::{Active, Cancelled, Done, Failed, Queued};
        // Started, Delivered, Requeued, Failed, Cancelled
        let open = [Some(Active), Some(Done), Some(Queued), Some(Failed), Some(Cancelled)];
        for (state, after) in [
            (Queued, open),
            (Active, open),
            (Done, [None; 5]),
            (Failed, [None; 5]),
            (Cancelled, [None; 5]),
        ] {
            let events = [
                RequestFileEvent::Started,
                RequestFileEvent::Delivered,
                RequestFileEvent::Requeued,
                RequestFileEvent::Failed,
                RequestFileEvent::Cancelled,
            ];
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }

    #[test]
    fn file_state_names_round_trip() {
        for state in RequestFileState::ALL {
            assert_eq!(state.as_str().parse(), Ok(state));
        }
        let error = "dnoe".parse::<RequestFileState>().unwrap_err().to_string();
        assert_eq!(
            error,
            "'dnoe' is no state of a file: write one of queued, active, done, failed, cancelled"
        );
    }
}
