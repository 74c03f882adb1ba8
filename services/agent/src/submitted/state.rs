//! States of a transfer, in the words of the API.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TransferState)]
#[serde(rename_all = "snake_case")]
pub enum TransferStatus {
    /// It has not begun, or has lost the other end; it begins or goes on by itself.
    Waiting,
    /// Data moves.
    Running,
    /// Every file is in place.
    Done,
    /// Some files are in place, others failed.
    Partial,
    /// No file is in place, or the transfer ended early.
    Failed,
    /// A client or the operator cancelled it.
    Cancelled,
}

/// Event in the life of a submitted transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TransferEvent {
    /// A session moves data.
    Begun,
    /// The attempt ended early, and another follows.
    Interrupted,
    /// The copy ended; some files may have failed, some may be in place.
    Ended { has_failures: bool, has_arrivals: bool },
    /// The copy cannot go on.
    Refused,
    /// A client or the operator cancelled it.
    Cancelled,
}

impl TransferStatus {
    /// Returns true if the transfer has ended.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        !matches!(self, Self::Waiting | Self::Running)
    }

    /// State after an event; the end is final.
    #[must_use]
    pub(super) const fn transition(self, event: TransferEvent) -> Self {
        match (self, event) {
            (Self::Done | Self::Partial | Self::Failed | Self::Cancelled, _) => self,
            (_, TransferEvent::Begun) => Self::Running,
            (_, TransferEvent::Interrupted) => Self::Waiting,
            (_, TransferEvent::Ended { has_failures: false, .. }) => Self::Done,
            (_, TransferEvent::Ended { has_arrivals: true, .. }) => Self::Partial,
            (_, TransferEvent::Ended { .. } | TransferEvent::Refused) => Self::Failed,
            (_, TransferEvent::Cancelled) => Self::Cancelled,
        }
    }

    /// Word of the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// State of a transfer in the mover's list.
    pub(crate) fn of_listed(state: &str) -> Self {
        state.parse().unwrap_or(Self::Running)
    }
}

/// A word that is no state of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no state: write waiting, running, done, partial, failed or cancelled")]
pub struct UnknownTransferStatus(String);

impl FromStr for TransferStatus {
    type Err = UnknownTransferStatus;

    fn from_str(text: &str) -> Result<Self, UnknownTransferStatus> {
        let all = [
            Self::Waiting,
            Self::Running,
            Self::Done,
            Self::Partial,
            Self::Failed,
            Self::Cancelled,
        ];
        let found = all.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| UnknownTransferStatus(text.chars().take(100).collect()))
    }
}

impl fmt::Display for TransferStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TransferStatus; 6] = [
        TransferStatus::Waiting,
        TransferStatus::Running,
        TransferStatus::Done,
        TransferStatus::Partial,
        TransferStatus::Failed,
        TransferStatus::Cancelled,
    ];

    #[test]
    fn ended_transfer_keeps_its_state() {
        let ended = |failures, arrivals| TransferEvent::Ended {
            has_failures: failures,
            has_arrivals: arrivals,
        };
        let events = [
            TransferEvent::Begun,
            TransferEvent::Interrupted,
            ended(false, true),
            ended(true, true),
            ended(true, false),
            TransferEvent::Refused,
            TransferEvent::Cancelled,
        ];
        let after = [
            TransferStatus::Running,
            TransferStatus::Waiting,
            TransferStatus::Done,
            TransferStatus::Partial,
            TransferStatus::Failed,
            TransferStatus::Failed,
            TransferStatus::Cancelled,
        ];
        for state in ALL {
            for (event, after) in events.into_iter().zip(after) {
                let expected = if state.is_ended() { state } else { after };
                assert_eq!(state.transition(event), expected, "{state} {event:?}");
            }
            assert_eq!(TransferStatus::of_listed(state.as_str()), state);
        }
    }
}
