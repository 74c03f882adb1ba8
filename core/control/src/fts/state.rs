//! States of FTS3 jobs and of their files.

use crate::numbers::stored_numbers;

/// State of a file of an FTS3 job; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FtsFileState {
    /// Waits for its first or next attempt.
    Submitted = 0,
    /// A copy is under way.
    Active = 1,
    /// Copied and verified.
    Finished = 2,
    /// Ended with an error.
    Failed = 3,
    /// Ended by a client.
    Canceled = 4,
    /// Alternative or later hop that was not needed so far.
    NotUsed = 5,
}

stored_numbers!(FtsFileState);

/// Event of a file of an FTS3 job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FtsFileEvent {
    /// An attempt began.
    Started,
    /// The attempt succeeded.
    Succeeded,
    /// The last attempt failed, or none may begin any more.
    Failed,
    /// The attempt failed or was interrupted, and another follows.
    Deferred,
    /// A client cancelled the file or its job.
    Cancelled,
    /// An alternative or a later hop is needed.
    Promoted,
}

impl FtsFileState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Submitted,
        Self::Active,
        Self::Finished,
        Self::Failed,
        Self::Canceled,
        Self::NotUsed,
    ];

    /// Returns the state after an event; none if the event has no effect.
    #[must_use]
    pub const fn transition(self, event: FtsFileEvent) -> Option<Self> {
        use FtsFileEvent as Event;
        match (self, event) {
            (Self::Submitted, Event::Started) => Some(Self::Active),
            (Self::Submitted | Self::Active, Event::Cancelled) => Some(Self::Canceled),
            (Self::Submitted | Self::Active, Event::Failed) => Some(Self::Failed),
            (Self::Active, Event::Succeeded) => Some(Self::Finished),
            (Self::Active, Event::Deferred) | (Self::NotUsed, Event::Promoted) => {
                Some(Self::Submitted)
            }
            _ => None,
        }
    }

    /// Returns true if the file waits or is copied.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Submitted | Self::Active)
    }

    /// Returns the name in the interface of FTS3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "SUBMITTED",
            Self::Active => "ACTIVE",
            Self::Finished => "FINISHED",
            Self::Failed => "FAILED",
            Self::Canceled => "CANCELED",
            Self::NotUsed => "NOT_USED",
        }
    }
}

/// Relation between the files of an FTS3 job; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FtsJobKind {
    /// Independent files, `N`.
    Independent = 0,
    /// Independent files over shared sessions, `Y`.
    Reuse = 1,
    /// Hops of one file, each after the other, `H`.
    MultiHop = 2,
    /// Alternatives of one file, each after the failure of the other, `R`.
    MultiReplica = 3,
}

stored_numbers!(FtsJobKind);

impl FtsJobKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Independent, Self::Reuse, Self::MultiHop, Self::MultiReplica];

    /// Returns the letter in the interface of FTS3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Independent => "N",
            Self::Reuse => "Y",
            Self::MultiHop => "H",
            Self::MultiReplica => "R",
        }
    }

    /// Returns the state in which the file of this index begins.
    #[must_use]
    pub const fn first_state(self, index: usize) -> FtsFileState {
        match self {
            Self::MultiHop | Self::MultiReplica if index > 0 => FtsFileState::NotUsed,
            _ => FtsFileState::Submitted,
        }
    }

    /// Returns true if the next file of the job begins once one has ended in `state`.
    #[must_use]
    pub const fn promotes_after(self, state: FtsFileState) -> bool {
        match self {
            Self::MultiHop => matches!(state, FtsFileState::Finished),
            Self::MultiReplica => matches!(state, FtsFileState::Failed),
            Self::Independent | Self::Reuse => false,
        }
    }
}

/// State of an FTS3 job; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FtsJobState {
    /// No file has begun.
    Submitted = 0,
    /// Some files have begun.
    Active = 1,
    /// Every file is finished.
    Finished = 2,
    /// No file is finished.
    Failed = 3,
    /// Some files are finished, the others failed.
    FinishedDirty = 4,
    /// Files were cancelled by a client.
    Canceled = 5,
}

stored_numbers!(FtsJobState);

impl FtsJobState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Submitted,
        Self::Active,
        Self::Finished,
        Self::Failed,
        Self::FinishedDirty,
        Self::Canceled,
    ];

    /// Returns the state of a job with files in these states.
    #[must_use]
    pub fn of(kind: FtsJobKind, files: &[FtsFileState]) -> Self {
        use FtsFileState as File;
        let count = |state: File| files.iter().filter(|one| **one == state).count();
        let (finished, canceled) = (count(File::Finished), count(File::Canceled));
        let waiting = count(File::Submitted);
        if waiting + count(File::Active) > 0 {
            let has_begun = files.len() > waiting + count(File::NotUsed);
            return if has_begun { Self::Active } else { Self::Submitted };
        }
        if kind == FtsJobKind::MultiReplica && finished > 0 || finished == files.len() {
            Self::Finished
        } else if canceled > 0 {
            Self::Canceled
        } else if finished > 0 && kind != FtsJobKind::MultiHop {
            Self::FinishedDirty
        } else {
            Self::Failed
        }
    }

    /// Returns true if no file waits or is copied.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Submitted | Self::Active)
    }

    /// Returns the name in the interface of FTS3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "SUBMITTED",
            Self::Active => "ACTIVE",
            Self::Finished => "FINISHED",
            Self::Failed => "FAILED",
            Self::FinishedDirty => "FINISHEDDIRTY",
            Self::Canceled => "CANCELED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fts_file_transitions_follow_table() {
        use FtsFileEvent as Event;
        use FtsFileState::{Active, Canceled, Failed, Finished, NotUsed, Submitted};
        let events = [
            Event::Started,
            Event::Succeeded,
            Event::Failed,
            Event::Deferred,
            Event::Cancelled,
            Event::Promoted,
        ];
        for (state, after) in [
            (Submitted, [Some(Active), None, Some(Failed), None, Some(Canceled), None]),
            (Active, [None, Some(Finished), Some(Failed), Some(Submitted), Some(Canceled), None]),
            (Finished, [None; 6]),
            (Failed, [None; 6]),
            (Canceled, [None; 6]),
            (NotUsed, [None, None, None, None, None, Some(Submitted)]),
        ] {
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }

    #[test]
    fn job_state_follows_files() {
        use FtsFileState::{Active, Canceled, Failed, Finished, NotUsed, Submitted};
        use FtsJobKind::{Independent, MultiHop, MultiReplica};
        for (kind, files, state) in [
            (Independent, vec![Submitted, Submitted], FtsJobState::Submitted),
            (Independent, vec![Submitted, Active], FtsJobState::Active),
            (Independent, vec![Submitted, Finished], FtsJobState::Active),
            (Independent, vec![Finished, Finished], FtsJobState::Finished),
            (Independent, vec![Finished, Failed], FtsJobState::FinishedDirty),
            (Independent, vec![Failed, Failed], FtsJobState::Failed),
            (Independent, vec![Finished, Canceled], FtsJobState::Canceled),
            (MultiReplica, vec![Submitted, NotUsed], FtsJobState::Submitted),
            (MultiReplica, vec![Failed, Submitted], FtsJobState::Active),
            (MultiReplica, vec![Failed, Finished, NotUsed], FtsJobState::Finished),
            (MultiReplica, vec![Failed, Failed], FtsJobState::Failed),
            (MultiHop, vec![Finished, Failed, NotUsed], FtsJobState::Failed),
            (MultiHop, vec![Finished, Finished], FtsJobState::Finished),
        ] {
            assert_eq!(FtsJobState::of(kind, &files), state, "{kind:?} {files:?}");
        }
    }
}
