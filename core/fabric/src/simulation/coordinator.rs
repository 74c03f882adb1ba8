//! Coordination of the regions: windows, failures, deadlock scans and the end of the run.
//!
//! Conservative parallel simulation with lookahead (Chandy and Misra 1979; windows as in Nicol, The cost of
//! conservative synchronization in parallel discrete event simulation, 1993). A packet reaches another region no
//! earlier than its serialization time plus the propagation delay of its link; the shortest such time is the
//! lookahead. In each window every region handles its events up to the earliest pending event plus the lookahead,
//! then the regions exchange packets. A change that concerns all regions ends the window early and is applied after
//! all other events of its time. Results do not depend on the assignment of regions to threads.

use super::deadlock::Deadlocks;
use super::failure::FailureStep;
use super::model::RunModel;
use super::region::{Region, exchange};
use super::{Counts, PauseRecord, RunDigest, RunProgress};

/// State of a run that belongs to no region.
#[derive(Debug)]
pub(super) struct RunControl {
    pub(super) now_ps: u64,
    pub(super) changes: Vec<(u64, FailureStep)>,
    pub(super) next_change: usize,
    pub(super) links_down: Vec<bool>,
    pub(super) switches_down: Vec<bool>,
    pub(super) deadlocks: Deadlocks,
    /// Counters of events that concern all regions.
    pub(super) counts: Counts,
    pub(super) digest: RunDigest,
    /// Lookahead: length of a window.
    pub(super) lookahead_ps: u64,
    /// Time that a run continues after its last flow has ended, at least the lookahead of any link, so that the set of
    /// handled events does not depend on the regions.
    pub(super) drain_ps: u64,
    pub(super) pause_records: Vec<PauseRecord>,
}

/// Next step of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextStep {
    /// Every region handles its events up to the end of the window.
    Window,
    /// A change was applied to all regions; determine the next step again.
    Repeat,
    /// The run has ended.
    End(RunProgress),
}

/// Exclusive access to all regions between windows.
pub(super) struct Coordinator<'a, 'r> {
    pub(super) model: &'a RunModel,
    pub(super) control: &'a mut RunControl,
    pub(super) regions: &'a mut [&'r mut Region],
}

impl Coordinator<'_, '_> {
    /// Determines the next step of a run that ends at `until_ps`.
    pub(super) fn next_step(&mut self, until_ps: u64) -> NextStep {
        let mail_ps = exchange(self.regions);
        let paused_ps =
            self.regions.iter_mut().filter_map(|region| region.scan_from_ps.take()).min();
        if let Some(from_ps) = paused_ps {
            self.control.deadlocks.schedule_scan(from_ps);
            for region in self.regions.iter_mut() {
                region.has_scan_scheduled = true;
            }
        }
        let has_ended = self.regions.iter().all(|region| region.active == 0);
        let ended_ps = self.regions.iter().map(|region| region.ended_ps).max().unwrap_or(0);
        let drained_ps = ended_ps.saturating_add(self.control.drain_ps);
        let last_ps = if has_ended { until_ps.min(drained_ps) } else { until_ps };
        let event_ps = self.regions.iter().map(|region| region.next_ps()).fold(mail_ps, u64::min);
        let change_ps = self.control.next_change_ps();
        let scan_ps = self.control.deadlocks.scan_ps.unwrap_or(u64::MAX);
        let global_ps = change_ps.min(scan_ps);
        let next_ps = event_ps.min(global_ps);
        if next_ps > last_ps || next_ps == u64::MAX {
            self.synchronise();
            if has_ended {
                self.control.now_ps = ended_ps;
                return NextStep::End(RunProgress::Done);
            }
            if next_ps != u64::MAX {
                self.control.now_ps = until_ps;
            }
            return NextStep::End(RunProgress::Stopped);
        }
        if global_ps < event_ps {
            self.synchronise();
            self.control.now_ps = global_ps;
            for region in self.regions.iter_mut() {
                region.now_ps = global_ps;
            }
            if change_ps <= scan_ps {
                self.apply_change();
            } else {
                self.detect_deadlocks();
            }
            return NextStep::Repeat;
        }
        let ahead_ps = event_ps.saturating_add(self.control.lookahead_ps - 1);
        let end_ps = ahead_ps.min(global_ps).min(last_ps);
        for region in self.regions.iter_mut() {
            region.end_ps = end_ps;
        }
        NextStep::Window
    }

    /// Delivers all mail between the regions and merges their times and pause records.
    pub(super) fn synchronise(&mut self) {
        exchange(self.regions);
        let mut records = Vec::new();
        let mut now_ps = self.control.now_ps;
        for region in self.regions.iter_mut() {
            region.receive_mail();
            now_ps = now_ps.max(region.now_ps);
            if let Some(more) = &mut region.pause_records {
                records.append(more);
            }
        }
        self.control.now_ps = now_ps;
        // In order of time; simultaneous records in the order of the ports that sent the PFC frames.
        let peer = |port: u32| self.model.network.ports[port as usize].peer;
        records.sort_by_key(|record| (record.time_ps, peer(record.port)));
        self.control.pause_records.append(&mut records);
    }
}

impl RunControl {
    fn next_change_ps(&self) -> u64 {
        self.changes.get(self.next_change).map_or(u64::MAX, |(at_ps, _)| *at_ps)
    }
}
