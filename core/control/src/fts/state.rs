//! States of FTS3 jobs and of their files.

use crate::numbers::stored_numbers;

/// State of a file of an FTS3 job; the value is its number in the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FtsFileState {
    /// Waits for its first or next attempt.
    Submitted = 0,
    /// Part of a request of the controller that has not begun.
    Ready = 1,
    /// A copy is under way.
    Active = 2,
    /// Copied and verified.
    Finished = 3,
    /// Ended with an error.
    Failed = 4,
    /// Ended by a client.
    Canceled = 5,
    /// Alternative or later hop that was not needed so far.
    NotUsed = 6,
}

stored_numbers!(FtsFileState);

/// Event of a file of an FTS3 job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FtsFileEvent {
    /// A request of the controller contains it.
    Queued,
    /// An attempt began.
    Started,
    /// The attempt succeeded.
    Succeeded,
    /// The last attempt failed, or none may begin any more.
    Failed,
    /// The attempt failed, was interrupted or could not begin, and another follows.
    Deferred,
    /// A client cancelled the file or its job.
    Cancelled,
    /// An alternative or a later hop is needed.
    Promoted,
}

impl FtsFileState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Submitted,
        Self::Ready,
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
            (Self::Submitted, Event::Queued) => Some(Self::Ready),
            (Self::Submitted | Self::Ready, Event::Started) => Some(Self::Active),
            (Self::Submitted | Self::Ready | Self::Active, Event::Cancelled) => {
                Some(Self::Canceled)
            }
            (Self::Submitted | Self::Ready | Self::Active, Event::Failed) => Some(Self::Failed),
            (Self::Ready | Self::Active, Event::Succeeded) => Some(Self::Finished),
            (Self::Submitted | Self::Ready | Self::Active, Event::Deferred)
            | (Self::NotUsed, Event::Promoted) => Some(Self::Submitted),
            _ => None,
        }
    }

    /// Returns true if the file waits or is copied.
    #[must_use]
    pub const fn is_live(self) -> bool {
        matches!(self, Self::Submitted | Self::Ready | Self::Active)
    }

    /// Returns the name in the interface of FTS3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "SUBMITTED",
            Self::Ready => "READY",
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
    /// Some files are part of requests of the controller, and none has begun.
    Ready = 1,
    /// Some files have begun.
    Active = 2,
    /// Every file is finished.
    Finished = 3,
    /// No file is finished.
    Failed = 4,
    /// Some files are finished, the others failed.
    FinishedDirty = 5,
    /// Files were cancelled by a client.
    Canceled = 6,
}

stored_numbers!(FtsJobState);

impl FtsJobState {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Submitted,
        Self::Ready,
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
        let (waiting, ready) = (count(File::Submitted), count(File::Ready));
        if waiting + ready + count(File::Active) > 0 {
            let has_begun = files.len() > waiting + ready + count(File::NotUsed);
            return match (has_begun, ready) {
                (true, _) => Self::Active,
                (false, 0) => Self::Submitted,
                (false, _) => Self::Ready,
            };
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
        !matches!(self, Self::Submitted | Self::Ready | Self::Active)
    }

    /// Returns the name in the interface of FTS3.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Submitted => "SUBMITTED",
            Self::Ready => "READY",
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
        use FtsFileState::{Active, Canceled, Failed, Finished, NotUsed, Ready, Submitted};
        let events = [
            Event::Queued,
            Event::Started,
            Event::Succeeded,
            Event::Failed,
            Event::Deferred,
            Event::Cancelled,
            Event::Promoted,
        ];
        let (end, wait) = (Some::<FtsFileState>, Some(Submitted));
        for (state, after) in [
            (Submitted, [Some(Ready), Some(Active), None, end(Failed), wait, end(Canceled), None]),
            (Ready, [None, Some(Active), end(Finished), end(Failed), wait, end(Canceled), None]),
            (Active, [None, None, end(Finished), end(Failed), wait, end(Canceled), None]),
            (Finished, [None; 7]),
            (Failed, [None; 7]),
            (Canceled, [None; 7]),
            (NotUsed, [None, None, None, None, None, None, Some(Submitted)]),
        ] {
            assert_eq!(events.map(|event| state.transition(event)), after, "{state:?}");
        }
    }

    #[test]
    fn job_state_follows_files() {
        use FtsFileState::{Active, Canceled, Failed, Finished, NotUsed, Ready, Submitted};
        use FtsJobKind::{Independent, MultiHop, MultiReplica};
        for (kind, files, state) in [
            (Independent, vec![Submitted, Submitted], FtsJobState::Submitted),
            (Independent, vec![Submitted, Ready], FtsJobState::Ready),
            (Independent, vec![Ready, Active], FtsJobState::Active),
            (Independent, vec![Ready, Finished], FtsJobState::Active),
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
