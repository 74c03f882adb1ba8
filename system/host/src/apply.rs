//! Carries a plan out: each rule whole or not at all, each value read back.
//!
//! The journal has what was before anything is touched. A rule of which a value is refused, or is not what was
//! written when read back, is undone and the next one goes on.
//!
//! Fails where the journal cannot be written: then nothing more is changed.

use std::collections::BTreeMap;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;

use crate::change::{Change, Knob};
use crate::journal::{Journal, JournalError, Keep, Record};
use crate::plan::{Plan, Step};

/// Where settings are: the machine, and in tests what stands for one that fails.
pub trait Settings {
    /// What it is now.
    ///
    /// # Errors
    /// When it is not there.
    fn read(&mut self, knob: &Knob) -> io::Result<String>;

    /// Sets it.
    ///
    /// # Errors
    /// When it is refused.
    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()>;
}

/// The settings of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Machine;

impl Settings for Machine {
    fn read(&mut self, knob: &Knob) -> io::Result<String> {
        knob.read()
    }

    fn write(&mut self, knob: &Knob, value: &str) -> io::Result<()> {
        knob.write(value)
    }
}

/// What became of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Outcome {
    /// Name of the rule.
    pub rule: String,
    /// Settings that were changed and read back.
    pub changed: usize,
    /// Reason why no setting was changed; left out where all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

/// How a plan is applied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct How {
    /// Another for each time.
    pub id: String,
    /// This boot.
    pub boot_id: String,
    /// After which time it is put back unless confirmed; whoever calls sees to that.
    pub revert_after: Option<std::time::Duration>,
    /// What is to be kept over restarts; whoever calls sees to that.
    pub keep: Option<Keep>,
}

/// Applies a plan; `told` hears of every rule as it is done.
///
/// # Errors
/// When the journal cannot be written.
pub fn apply(
    plan: &Plan,
    how: &How,
    journal: &Journal,
    settings: &mut dyn Settings,
    told: &mut dyn FnMut(&Outcome),
) -> Result<Vec<Outcome>, JournalError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    journal.add(&Record::Begin {
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
            Err(error) => Outcome { rule: step.rule.to_owned(), changed: 0, error: Some(error) },
            Ok(changes) => {
                let record = Record::Step { rule: step.rule.to_owned(), changes: changes.clone() };
                journal.add(&record)?;
                let made = make(&changes, settings);
                if made.as_ref().is_err_and(|refusal| refusal.undone) {
                    journal.add(&Record::Undone { rule: step.rule.to_owned() })?;
                }
                let changed = if made.is_err() { 0 } else { changes.len() };
                let error = made.err().map(|refusal| refusal.why);
                Outcome { rule: step.rule.to_owned(), changed, error }
            }
        };
        told(&outcome);
        outcomes.push(outcome);
    }
    journal.add(&Record::End)?;
    Ok(outcomes)
}

/// What there is to change. The settings are what the plan found, or what it wants since an earlier rule has seen to it;
/// else the plan was made for another state, and undoing would go to a wrong one.
fn check(step: &Step, settings: &mut dyn Settings) -> Result<Vec<Change>, String> {
    let mut changes = Vec::new();
    for change in &step.changes {
        let now = settings.read(&change.knob).map_err(|e| format!("{}: {e}", change.knob))?;
        if now == change.from {
            changes.push(change.clone());
        } else if now != change.to {
            return Err(format!(
                "{} is {now} and was {} when the plan was made: make it again",
                change.knob, change.from
            ));
        }
    }
    Ok(changes)
}

struct Refusal {
    why: String,
    /// Whether everything is as it was.
    undone: bool,
}

fn make(changes: &[Change], settings: &mut dyn Settings) -> Result<(), Refusal> {
    let made = changes.iter().try_for_each(|change| {
        set(settings, &change.knob, &change.to).map_err(|why| format!("{}: {why}", change.knob))
    });
    // All of them again: a later one may have moved an earlier one.
    let made = made.and_then(|()| {
        changes.iter().try_for_each(|change| {
            let now = settings.read(&change.knob).map_err(|e| e.to_string())?;
            if now == change.to {
                Ok(())
            } else {
                Err(format!("{} did not stay: {now}", change.knob))
            }
        })
    });
    let Err(why) = made else { return Ok(()) };
    let back = put_back(changes, settings);
    match back.iter().find(|(_, back)| matches!(back, Back::Failed(_))) {
        Some((knob, Back::Failed(error))) => {
            let why =
                format!("{why}; {knob} could not be put back: {error}: penstock host restore");
            Err(Refusal { why, undone: false })
        }
        _ => Err(Refusal { why, undone: true }),
    }
}

/// Writes unless it is so already, and reads back.
pub(crate) fn set(settings: &mut dyn Settings, knob: &Knob, value: &str) -> Result<(), String> {
    let read = |settings: &mut dyn Settings| settings.read(knob).map_err(|e| e.to_string());
    if read(settings)? == value {
        return Ok(());
    }
    settings.write(knob, value).map_err(|e| refused(knob, &e))?;
    let now = read(settings)?;
    if now == value { Ok(()) } else { Err(format!("the kernel made it {now}, not {value}")) }
}

fn refused(knob: &Knob, error: &io::Error) -> String {
    match (error.kind(), knob) {
        (io::ErrorKind::PermissionDenied, _) => {
            format!("{error}: needs root")
        }
        (io::ErrorKind::NotFound, Knob::Qdisc { .. }) => {
            format!("{error}: the kernel does not have this discipline (modprobe sch_fq)")
        }
        _ => error.to_string(),
    }
}

/// What became of a setting that is put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Back {
    /// It was so already.
    Was,
    /// It is as it was.
    Put,
    /// It is as it was, and had been changed by somebody else to this.
    PutOver(String),
    /// Its device is not there any more.
    Gone,
    /// It could not be put back.
    Failed(String),
}

/// How often settings are gone over: one moves another, as the size for IPv6 does that for IPv4.
const ROUNDS: usize = 4;

/// Puts settings back that were changed in this order. A setting that was changed twice goes to what it was first.
pub(crate) fn put_back(changes: &[Change], settings: &mut dyn Settings) -> Vec<(Knob, Back)> {
    let mut first: Vec<&Change> = Vec::new();
    let mut last: BTreeMap<&Knob, &str> = BTreeMap::new();
    for change in changes {
        if !last.contains_key(&change.knob) {
            first.push(change);
        }
        last.insert(&change.knob, &change.to);
    }
    // The latest first. Disciplines at the end: what the kernel puts there goes by a setting that has to be back.
    first.reverse();
    first.sort_by_key(|change| matches!(change.knob, Knob::Qdisc { .. }));
    let mut backs: Vec<(Knob, Back)> = Vec::new();
    for change in &first {
        let back = match settings.read(&change.knob) {
            Ok(now) if now == change.from => Back::Was,
            Ok(now) if last.get(&change.knob) == Some(&now.as_str()) => Back::Put,
            Ok(now) => Back::PutOver(now),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Back::Gone,
            Err(error) => Back::Failed(error.to_string()),
        };
        backs.push((change.knob.clone(), back));
    }
    for round in 0..ROUNDS {
        let mut settled = true;
        let order: Vec<usize> = if round % 2 == 0 {
            (0..first.len()).collect()
        } else {
            (0..first.len()).rev().collect()
        };
        for index in order {
            let change = first[index];
            let back = &mut backs[index].1;
            if *back == Back::Gone {
                continue;
            }
            if settings.read(&change.knob).is_ok_and(|now| now == change.from) {
                if matches!(back, Back::Failed(_)) {
                    *back = Back::Put;
                }
                continue;
            }
            settled = false;
            match set(settings, &change.knob, &change.from) {
                Err(error) => *back = Back::Failed(error),
                Ok(()) if matches!(back, Back::Was | Back::Failed(_)) => *back = Back::Put,
                Ok(()) => {}
            }
        }
        if settled {
            break;
        }
    }
    backs
}
