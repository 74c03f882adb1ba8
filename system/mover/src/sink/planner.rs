//! Planner thread of a receiving end: inspects the destinations of announced entries and decides what is
//! needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_protocol::manifest::{Entry, EntryKind};
use penstock_protocol::receiver::{DestinationCheck, Receiver};

use super::work::{SinkWork, WriteTask};
use super::writer;
use crate::base::lock::lock;

/// Entries inspected between two answers to the sender.
const CHECKS_AT_ONCE: usize = 256;

/// Interval at which an idle planner looks whether the session is over.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Inspects the destinations of announced entries until the session is over.
pub(crate) fn run(work: &Arc<SinkWork>) {
    while !work.session.is_over() {
        if plan_some(work) {
            continue;
        }
        work.machine.wait_to_plan(|machine| {
            let is_idle = !machine.has_checks() && !machine.has_discards();
            is_idle.then_some(IDLE_CHECK_INTERVAL)
        });
    }
}

/// Inspects the destinations of some entries and discards failed files; false if there was nothing
/// to do.
pub(crate) fn plan_some(work: &Arc<SinkWork>) -> bool {
    let mut machine = work.machine.lock();
    let discards: Vec<_> = std::iter::from_fn(|| machine.poll_discard()).collect();
    let checks: Vec<_> = std::iter::from_fn(|| machine.poll_check()).take(CHECKS_AT_ONCE).collect();
    drop(machine);
    if discards.is_empty() && checks.is_empty() {
        return false;
    }
    for (file, _) in discards {
        let sink = lock(&work.sinks).remove(&file);
        if let Some(sink) = sink {
            work.destination.discard(&sink);
            work.destination.journal.end_file(sink.journal_number.load(Ordering::SeqCst));
        }
        work.with_machine(Receiver::discarded);
    }
    let verdicts: Vec<_> =
        checks.iter().map(|(file, entry)| (*file, check(work, *file, entry))).collect();
    let mut machine = work.machine.lock();
    let unverified: Vec<_> = verdicts
        .into_iter()
        .flat_map(|(file, verdict)| {
            let extents = machine.decide(file, verdict);
            extents.into_iter().map(move |extent| (file, extent))
        })
        .collect();
    drop(machine);
    for (file, extent) in unverified {
        if let Some(sink) = work.sink(file) {
            work.tasks.push(sink.parent.device, WriteTask::Verify(sink, extent));
        }
    }
    work.session.wake_control();
    true
}

fn check(work: &Arc<SinkWork>, file: u64, entry: &Arc<Entry>) -> DestinationCheck {
    if entry.kind != EntryKind::Directory && !work.session.options.inplace {
        work.destination.into_folder_of(&entry.path);
    }
    let (verdict, sink) = work.destination.check(file, entry);
    if let Some(sink) = sink {
        if sink.parent.device != work.destination.base().device {
            writer::spawn_missing(work, sink.parent.device);
        }
        lock(&work.sinks).insert(file, Arc::new(sink));
    }
    verdict
}
