//! The agents behind a head node as it knows them, and the choice among them: pure.
//!
//! An agent that refuses connections is out at once, one that is silent or answers with an error after the second time in
//! a row. It is in again after its second answer in a row, so that one that comes and goes gets no clients.

use serde::{Deserialize, Serialize};

/// Failures in a row after which an agent gets no clients.
const FAILURES_MAX: u32 = 2;

/// Answers in a row after which it gets clients again.
const ANSWERS_MIN: u32 = 2;

/// Room of an agent, as it reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AgentRoom {
    /// Number of transfers that run at the agent.
    pub(crate) transfers: u64,
    /// Limit of concurrent transfers.
    pub(crate) limit: u64,
    /// Port of `root://`, if it is served.
    #[serde(default)]
    pub(crate) root_port: Option<u16>,
    pub(crate) exports: Vec<ExportRoom>,
}

/// Room of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExportRoom {
    /// Name, such as `/store/cms`.
    pub(crate) name: String,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Free bytes of its file system.
    pub(crate) available_bytes: u64,
}

/// A failure of an agent to report its room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollFailure {
    /// It accepts no connections.
    Refused,
    /// No answer in time, or none of success.
    Unclear,
}

/// Change of an agent that operators want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AvailabilityChange {
    Lost,
    Returned,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Availability {
    /// Not asked yet.
    Unknown,
    Available {
        failures: u32,
    },
    Lost {
        answers: u32,
    },
}

/// Data that a client wants to move.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoomRequest<'a> {
    /// Decoded path.
    pub(crate) path: &'a [u8],
    /// True for data that goes to the agent.
    pub(crate) writes: bool,
    /// Bytes to write, if known.
    pub(crate) bytes: u64,
    /// True for a client of `root://`.
    pub(crate) by_root: bool,
}

/// Reason for which no agent is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// No agent with this export answers.
    Unavailable,
    /// All slots for transfers are taken.
    Transfers,
    /// No file system has the space.
    Space,
}

/// An agent behind the head node.
#[derive(Debug)]
struct Candidate {
    availability: Availability,
    room: AgentRoom,
    /// Clients sent there since its last report, which does not count them yet.
    redirected: u64,
    redirected_bytes: u64,
    /// Turn in which it was chosen last.
    turn: u64,
}

/// All agents behind a head node, by their number.
#[derive(Debug)]
pub(crate) struct Candidates {
    all: Vec<Candidate>,
    turn: u64,
}

impl Availability {
    fn after_answer(self) -> Self {
        match self {
            Self::Unknown | Self::Available { .. } => Self::Available { failures: 0 },
            Self::Lost { answers } if answers + 1 >= ANSWERS_MIN => Self::Available { failures: 0 },
            Self::Lost { answers } => Self::Lost { answers: answers + 1 },
        }
    }

    fn after_failure(self, failure: PollFailure) -> Self {
        match self {
            Self::Available { failures }
                if failure == PollFailure::Unclear && failures + 1 < FAILURES_MAX =>
            {
                Self::Available { failures: failures + 1 }
            }
            Self::Unknown | Self::Available { .. } | Self::Lost { .. } => Self::Lost { answers: 0 },
        }
    }

    fn is_available(self) -> bool {
        matches!(self, Self::Available { .. })
    }
}

impl AgentRoom {
    /// The export with the longest name that contains `path`.
    fn export_of(&self, path: &[u8]) -> Option<&ExportRoom> {
        let contains = |export: &&ExportRoom| {
            let name = export.name.as_bytes();
            let rest = path.strip_prefix(name);
            name == b"/" || rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        self.exports.iter().filter(contains).max_by_key(|export| export.name.len())
    }
}

impl Candidates {
    /// Creates agents that have not been asked yet.
    pub(crate) fn new(count: usize) -> Self {
        let unknown = || Candidate {
            availability: Availability::Unknown,
            room: AgentRoom { transfers: 0, limit: 0, root_port: None, exports: Vec::new() },
            redirected: 0,
            redirected_bytes: 0,
            turn: 0,
        };
        Self { all: (0..count).map(|_| unknown()).collect(), turn: 0 }
    }

    /// Number of agents that answer.
    pub(crate) fn available(&self) -> usize {
        self.all.iter().filter(|one| one.availability.is_available()).count()
    }

    /// Number of agents.
    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Port of `root://` of an agent, by its last report.
    pub(crate) fn root_port(&self, number: usize) -> Option<u16> {
        self.all[number].room.root_port
    }

    /// Takes the report of the agent `number`, or its failure to report.
    pub(crate) fn report(
        &mut self,
        number: usize,
        report: Result<AgentRoom, PollFailure>,
    ) -> Option<AvailabilityChange> {
        let one = &mut self.all[number];
        let before = one.availability;
        one.availability = match report {
            Ok(room) => {
                one.room = room;
                (one.redirected, one.redirected_bytes) = (0, 0);
                before.after_answer()
            }
            Err(failure) => before.after_failure(failure),
        };
        match (before, before.is_available(), one.availability.is_available()) {
            (_, true, false) => Some(AvailabilityChange::Lost),
            (Availability::Unknown, _, false) => Some(AvailabilityChange::Lost),
            (_, false, true) => Some(AvailabilityChange::Returned),
            _ => None,
        }
    }

    /// Chooses the agent with the smallest part of its transfers in use; among equals the one that was chosen least
    /// recently.
    ///
    /// # Errors
    /// When none has room.
    pub(crate) fn choose(&mut self, request: RoomRequest<'_>) -> Result<usize, NoRoom> {
        let mut best: Option<(usize, u64)> = None;
        let mut reason = NoRoom::Unavailable;
        for (number, one) in self.all.iter().enumerate() {
            let export = one.room.export_of(request.path);
            let Some(export) = export.filter(|_| one.availability.is_available()) else { continue };
            let serves = if request.writes { export.writes } else { export.reads };
            if !serves || request.by_root && one.room.root_port.is_none() {
                continue;
            }
            let free = export.available_bytes.saturating_sub(one.redirected_bytes);
            if request.writes && (free == 0 || free < request.bytes) {
                if reason == NoRoom::Unavailable {
                    reason = NoRoom::Space;
                }
                continue;
            }
            let used = one.room.transfers.saturating_add(one.redirected);
            if used >= one.room.limit {
                reason = NoRoom::Transfers;
                continue;
            }
            let is_better = best.is_none_or(|(other, other_used)| {
                let other = &self.all[other];
                let share = u128::from(used) * u128::from(other.room.limit);
                let other_share = u128::from(other_used) * u128::from(one.room.limit);
                (share, one.turn) < (other_share, other.turn)
            });
            if is_better {
                best = Some((number, used));
            }
        }
        let (number, _) = best.ok_or(reason)?;
        self.turn += 1;
        let one = &mut self.all[number];
        one.turn = self.turn;
        one.redirected += 1;
        if request.writes {
            one.redirected_bytes = one.redirected_bytes.saturating_add(request.bytes);
        }
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn room(transfers: u64, limit: u64, available_bytes: u64) -> AgentRoom {
        let export = |name: &str, writes| ExportRoom {
            name: name.into(),
            reads: true,
            writes,
            available_bytes,
        };
        AgentRoom {
            transfers,
            limit,
            root_port: None,
            exports: vec![export("/store", true), export("/store/ro", false)],
        }
    }

    fn read(path: &[u8]) -> RoomRequest<'_> {
        RoomRequest { path, writes: false, bytes: 0, by_root: false }
    }

    #[test]
    fn least_loaded_agent_is_chosen() {
        let mut all = Candidates::new(3);
        assert_eq!(all.choose(read(b"/store/f")), Err(NoRoom::Unavailable));
        all.report(0, Ok(room(3, 4, 1000)));
        all.report(1, Ok(room(10, 100, 10)));
        all.report(2, Ok(room(1, 4, 100)));
        assert_eq!(all.choose(read(b"/store/f")), Ok(1));
        let write = |path, bytes| RoomRequest { path, writes: true, bytes, by_root: false };
        assert_eq!(all.choose(write(b"/store/f", 50)), Ok(2));
        // What was sent there takes its space until the next report.
        assert_eq!(all.choose(write(b"/store/f", 51)), Ok(0));
        assert_eq!(all.choose(write(b"/store/f", 2000)), Err(NoRoom::Space));
        assert_eq!(all.choose(write(b"/store/ro/f", 1)), Err(NoRoom::Unavailable));
        for other in [&b"/storex/f"[..], b"/", b"/other"] {
            assert_eq!(all.choose(read(other)), Err(NoRoom::Unavailable));
        }
    }

    #[test]
    fn root_goes_to_agents_with_it() {
        let mut all = Candidates::new(2);
        all.report(0, Ok(room(0, 2, 1)));
        let by_root = RoomRequest { by_root: true, ..read(b"/store/f") };
        assert_eq!(all.choose(by_root), Err(NoRoom::Unavailable));
        all.report(1, Ok(AgentRoom { root_port: Some(1094), ..room(1, 2, 1) }));
        assert_eq!(all.choose(by_root), Ok(1));
        assert_eq!(all.root_port(1), Some(1094));
        assert_eq!(all.choose(by_root), Err(NoRoom::Transfers));
    }

    #[test]
    fn equal_agents_take_turns() {
        let mut all = Candidates::new(2);
        all.report(0, Ok(room(0, 2, 1)));
        all.report(1, Ok(room(0, 2, 1)));
        let chosen: Vec<_> = (0..5).map(|_| all.choose(read(b"/store"))).collect();
        assert_eq!(chosen, [Ok(0), Ok(1), Ok(0), Ok(1), Err(NoRoom::Transfers)]);
    }

    #[test]
    fn silent_agents_leave_and_return() {
        let mut all = Candidates::new(1);
        assert_eq!(all.report(0, Ok(room(0, 2, 1))), Some(AvailabilityChange::Returned));
        assert_eq!(all.report(0, Err(PollFailure::Unclear)), None);
        assert_eq!((all.available(), all.report(0, Ok(room(0, 2, 1)))), (1, None));
        assert_eq!(all.report(0, Err(PollFailure::Unclear)), None);
        assert_eq!(all.report(0, Err(PollFailure::Unclear)), Some(AvailabilityChange::Lost));
        assert_eq!(all.report(0, Ok(room(0, 2, 1))), None);
        // One that comes and goes stays out.
        assert_eq!(all.report(0, Err(PollFailure::Refused)), None);
        assert_eq!((all.report(0, Ok(room(0, 2, 1))), all.available()), (None, 0));
        assert_eq!(all.report(0, Ok(room(0, 2, 1))), Some(AvailabilityChange::Returned));
        assert_eq!(all.report(0, Err(PollFailure::Refused)), Some(AvailabilityChange::Lost));
    }

    proptest! {
        /// Requests between two reports never take more slots or bytes than were reported.
        #[test]
        fn room_is_never_exceeded(
            rooms in proptest::collection::vec((0_u64..6, 0_u64..6, 0_u64..100), 1..5),
            sizes in proptest::collection::vec(0_u64..60, 0..40),
        ) {
            let mut all = Candidates::new(rooms.len());
            for (number, (transfers, limit, bytes)) in rooms.iter().enumerate() {
                all.report(number, Ok(room(*transfers, *limit, *bytes)));
            }
            let mut taken = vec![(0, 0); rooms.len()];
            for bytes in sizes {
                let request =
                    RoomRequest { path: b"/store/f", writes: true, bytes, by_root: false };
                match all.choose(request) {
                    Ok(number) => taken[number] = (taken[number].0 + 1, taken[number].1 + bytes),
                    Err(_) => {
                        let fits = rooms.iter().zip(&taken).any(|(room, taken)| {
                            room.0 + taken.0 < room.1 && room.2 > taken.1 && room.2 - taken.1 >= bytes
                        });
                        prop_assert!(!fits);
                    }
                }
            }
            for ((transfers, limit, bytes), taken) in rooms.into_iter().zip(taken) {
                prop_assert!(taken.0 == 0 || transfers + taken.0 <= limit);
                prop_assert!(taken.1 <= bytes);
            }
        }
    }
}
