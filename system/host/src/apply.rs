//! Applies a plan: each rule atomically, each value read back.
//!
//! The journal records the former values before a change. A rule with a value that the kernel refuses or changes is undone,
//! and the next rule follows.
//!
//! Fails where the journal cannot be written: then nothing more is changed.

use std::collections::BTreeMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;

use crate::change::{Change, Tunable};
use crate::journal::{JournalRecord, PersistRequest, TuningJournal, TuningJournalError};
use crate::plan::{Step, TuningPlan};

/// Reads and writes tunables: on this machine, or in tests on a simulated one that fails.
pub trait TunableStore {
    /// Reads the current value.
    ///
    /// # Errors
    /// `NotFound` where the machine does not have it.
    fn read(&mut self, tunable: &Tunable) -> io::Result<String>;

    /// Writes a value to the kernel or driver.
    ///
    /// # Errors
    /// The kernel's error.
    fn write(&mut self, tunable: &Tunable, value: &str) -> io::Result<()>;
}

/// The tunables of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct LiveMachine;

impl TunableStore for LiveMachine {
    fn read(&mut self, tunable: &Tunable) -> io::Result<String> {
        tunable.read()
    }

    fn write(&mut self, tunable: &Tunable, value: &str) -> io::Result<()> {
        tunable.write(value)
    }
}

/// Result of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ApplyOutcome {
    /// Name of the rule.
    pub rule: String,
    /// Settings that were changed and read back.
    pub changed: usize,
    /// Reason why no setting was changed; left out where all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// Identity and expiry of an application of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApplyOptions {
    /// Identifier, unique per application.
    pub id: String,
    /// UUID of the current boot.
    pub boot_id: String,
    /// Time until the caller restores unless confirmed; recorded here only.
    pub revert_after: Option<std::time::Duration>,
    /// Changes that the caller persists over restarts; recorded here only.
    pub keep: Option<PersistRequest>,
}

/// Applies a plan and passes the outcome of each rule to `report`.
///
/// # Errors
/// When the journal cannot be written.
pub fn apply(
    plan: &TuningPlan,
    how: &ApplyOptions,
    journal: &TuningJournal,
    settings: &mut dyn TunableStore,
    report: &mut dyn FnMut(&ApplyOutcome),
) -> Result<Vec<ApplyOutcome>, TuningJournalError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    journal.add(&JournalRecord::Begin {
        id: how.id.clone(),
        boot_id: how.boot_id.clone(),
        at_unix_seconds: now.as_secs(),
        revert_at_unix_seconds: how
            .revert_after
            .map(|after| now.saturating_add(after).as_secs().saturating_add(1)),
        keep: how.keep.clone(),
    })?;
    let mut outcomes = Vec::new();
    for step in &plan.steps {
        let outcome = match check(step, settings) {
            Err(error) => ApplyOutcome {
                rule: step.rule.to_owned(),
                changed: 0,
                error: Some(error.to_string()),
            },
            Ok(changes) => {
                let record =
                    JournalRecord::Step { rule: step.rule.to_owned(), changes: changes.clone() };
                journal.add(&record)?;
                let made = make(&changes, settings);
                if made.as_ref().is_err_and(|refusal| refusal.undone) {
                    journal.add(&JournalRecord::Undone { rule: step.rule.to_owned() })?;
                }
                let changed = if made.is_err() { 0 } else { changes.len() };
                let error = made.err().map(|refusal| refusal.why);
                ApplyOutcome { rule: step.rule.to_owned(), changed, error }
            }
        };
        report(&outcome);
        outcomes.push(outcome);
    }
    journal.add(&JournalRecord::End)?;
    Ok(outcomes)
}

/// Returns the changes still to make. Current values must be those that the plan found, or those it wants, after an earlier
/// rule. Otherwise the plan is out of date, and undo would restore wrong values.
fn check(step: &Step, settings: &mut dyn TunableStore) -> Result<Vec<Change>, ChangeFailure> {
    let mut changes = Vec::new();
    for change in &step.changes {
        let now = settings
            .read(&change.tunable)
            .map_err(|error| ChangeFailure::Read { tunable: change.tunable.clone(), error })?;
        if now == change.from {
            changes.push(change.clone());
        } else if now != change.to {
            return Err(ChangeFailure::Outdated {
                tunable: change.tunable.clone(),
                from: change.from.clone(),
                now,
            });
        }
    }
    Ok(changes)
}

/// A change that was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeFailure {
    #[error("{tunable}: {error}")]
    Read { tunable: Tunable, error: io::Error },
    #[error("{tunable} is {now} and was {from} when the plan was made: make it again")]
    Outdated { tunable: Tunable, from: String, now: String },
    /// The kernel or driver refused the value, with a remedy.
    #[error("{}", refused(.tunable, .error))]
    Refused { tunable: Tunable, error: io::Error },
    #[error("the kernel made it {now}, not {wanted}")]
    Altered { now: String, wanted: String },
    #[error(transparent)]
    Io(#[from] io::Error),
}

struct StepFailure {
    why: String,
    /// True if the rule was undone completely.
    undone: bool,
}

fn make(changes: &[Change], settings: &mut dyn TunableStore) -> Result<(), StepFailure> {
    let made = changes.iter().try_for_each(|change| {
        set(settings, &change.tunable, &change.to)
            .map_err(|why| format!("{}: {why}", change.tunable))
    });
    // Read all again: a later change may have altered an earlier one.
    let made = made.and_then(|()| {
        changes.iter().try_for_each(|change| {
            let now = settings.read(&change.tunable).map_err(|e| e.to_string())?;
            if now == change.to {
                Ok(())
            } else {
                Err(format!("{} did not stay: {now}", change.tunable))
            }
        })
    });
    let Err(why) = made else { return Ok(()) };
    let back = put_back(changes, settings);
    match back.iter().find(|(_, back)| matches!(back, RestoreOutcome::Failed(_))) {
        Some((tunable, RestoreOutcome::Failed(error))) => {
            let why =
                format!("{why}; {tunable} could not be put back: {error}: penstock host restore");
            Err(StepFailure { why, undone: false })
        }
        _ => Err(StepFailure { why, undone: true }),
    }
}

/// Writes a value unless it is current, and reads it back.
pub(crate) fn set(
    settings: &mut dyn TunableStore,
    tunable: &Tunable,
    value: &str,
) -> Result<(), ChangeFailure> {
    if settings.read(tunable)? == value {
        return Ok(());
    }
    let refused = |error| ChangeFailure::Refused { tunable: tunable.clone(), error };
    settings.write(tunable, value).map_err(refused)?;
    let now = settings.read(tunable)?;
    if now == value {
        Ok(())
    } else {
        Err(ChangeFailure::Altered { now, wanted: value.to_owned() })
    }
}

fn refused(tunable: &Tunable, error: &io::Error) -> String {
    match (error.kind(), tunable) {
        (io::ErrorKind::PermissionDenied, _) => {
            format!("{error}: needs root")
        }
        (io::ErrorKind::NotFound, Tunable::Qdisc { .. }) => {
            format!("{error}: the kernel does not have this discipline (modprobe sch_fq)")
        }
        _ => error.to_string(),
    }
}

/// Result of restoring a tunable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It had its former value already.
    Was,
    /// Restored.
    Put,
    /// Restored, after another program had changed it to this value.
    PutOver(String),
    /// Its device does not exist any more.
    Gone,
    /// The restore failed with this error.
    Failed(String),
}

/// Passes over the tunables: writing one may alter another, as the GSO size for IPv6 alters that for IPv4.
const RESTORE_PASSES_MAX: usize = 4;

/// Restores tunables that were changed in this order; one that was changed twice gets its first value.
pub(crate) fn put_back(
    changes: &[Change],
    settings: &mut dyn TunableStore,
) -> Vec<(Tunable, RestoreOutcome)> {
    let mut first: Vec<&Change> = Vec::new();
    let mut last: BTreeMap<&Tunable, &str> = BTreeMap::new();
    for change in changes {
        if !last.contains_key(&change.tunable) {
            first.push(change);
        }
        last.insert(&change.tunable, &change.to);
    }
    // Latest first. Qdiscs last: the kernel's default depends on a sysctl that must be restored before.
    first.reverse();
    first.sort_by_key(|change| matches!(change.tunable, Tunable::Qdisc { .. }));
    let mut backs: Vec<(Tunable, RestoreOutcome)> = Vec::new();
    for change in &first {
        let back = match settings.read(&change.tunable) {
            Ok(now) if now == change.from => RestoreOutcome::Was,
            Ok(now) if last.get(&change.tunable) == Some(&now.as_str()) => RestoreOutcome::Put,
            Ok(now) => RestoreOutcome::PutOver(now),
            Err(error) if error.kind() == io::ErrorKind::NotFound => RestoreOutcome::Gone,
            Err(error) => RestoreOutcome::Failed(error.to_string()),
        };
        backs.push((change.tunable.clone(), back));
    }
    for round in 0..RESTORE_PASSES_MAX {
        let mut settled = true;
        let order: Vec<usize> = if round % 2 == 0 {
            (0..first.len()).collect()
        } else {
            (0..first.len()).rev().collect()
        };
        for index in order {
            let change = first[index];
            let back = &mut backs[index].1;
            if *back == RestoreOutcome::Gone {
                continue;
            }
            if settings.read(&change.tunable).is_ok_and(|now| now == change.from) {
                if matches!(back, RestoreOutcome::Failed(_)) {
                    *back = RestoreOutcome::Put;
                }
                continue;
            }
            settled = false;
            match set(settings, &change.tunable, &change.from) {
                Err(error) => *back = RestoreOutcome::Failed(error.to_string()),
                Ok(()) if matches!(back, RestoreOutcome::Was | RestoreOutcome::Failed(_)) => {
                    *back = RestoreOutcome::Put
                }
                Ok(()) => {}
            }
        }
        if settled {
            break;
        }
    }
    backs
}
