//! Coordination of the regions: the end of each window, failures, cyclic waits of pauses, and the end of the run.
//!
//! Conservative simulation with lookahead (Chandy and Misra 1979; windows as in Nicol, The cost of conservative synchronization
//! in parallel discrete event simulation, 1993): a packet reaches another region only after its
//! transmission and the propagation of its link, so every region may handle the events within the shortest such time after
//! the earliest event. Then the regions exchange packets. A window ends early where a change concerns all regions; that
//! change is applied after all other events of its time. No result depends on the assignment of regions to threads.

use super::change::Step;
use super::deadlock::Deadlocks;
use super::model::Model;
use super::region::{Region, exchange};
use super::{Counts, Digest, PauseRecord, Progress};

/// The state of a run beside that of its regions.
#[derive(Debug)]
pub(super) struct Control {
    pub(super) now_ps: u64,
    pub(super) changes: Vec<(u64, Step)>,
    pub(super) next_change: usize,
    pub(super) links_down: Vec<bool>,
    pub(super) switches_down: Vec<bool>,
    pub(super) deadlocks: Deadlocks,
    /// Of what concerns all regions.
    pub(super) counts: Counts,
    pub(super) digest: Digest,
    /// How long regions may go on without hearing of each other.
    pub(super) lookahead_ps: u64,
    /// How long a run goes on after its last flow is over, so that it ends at the same time whatever regions it has: at
    /// least any lookahead.
    pub(super) drain_ps: u64,
    pub(super) pause_records: Vec<PauseRecord>,
}

/// Next step of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Every region goes on to the end of its window.
    Window,
    /// Something happened to all at once; ask again.
    Again,
    /// The run is at its end.
    End(Progress),
}

/// All regions at a time at which none goes on.
pub(super) struct Coordinator<'a, 'r> {
    pub(super) model: &'a Model,
    pub(super) control: &'a mut Control,
    pub(super) regions: &'a mut [&'r mut Region],
}

impl Coordinator<'_, '_> {
    /// Determines the next step of a run that ends at `until_ps`.
    pub(super) fn next(&mut self, until_ps: u64) -> Next {
        let mail_ps = exchange(self.regions);
        let paused_ps =
            self.regions.iter_mut().filter_map(|region| region.look_from_ps.take()).min();
        if let Some(from_ps) = paused_ps {
            self.control.deadlocks.watch(from_ps);
            for region in self.regions.iter_mut() {
                region.is_watched = true;
            }
        }
        let is_over = self.regions.iter().all(|region| region.active == 0);
        let over_ps = self.regions.iter().map(|region| region.over_ps).max().unwrap_or(0);
        let drained_ps = over_ps.saturating_add(self.control.drain_ps);
        let last_ps = if is_over { until_ps.min(drained_ps) } else { until_ps };
        let event_ps = self.regions.iter().map(|region| region.next_ps()).fold(mail_ps, u64::min);
        let change_ps = self.control.next_change_ps();
        let look_ps = self.control.deadlocks.look_ps.unwrap_or(u64::MAX);
        let whole_ps = change_ps.min(look_ps);
        let next_ps = event_ps.min(whole_ps);
        if next_ps > last_ps || next_ps == u64::MAX {
            self.rest();
            if is_over {
                self.control.now_ps = over_ps;
                return Next::End(Progress::Done);
            }
            if next_ps != u64::MAX {
                self.control.now_ps = until_ps;
            }
            return Next::End(Progress::Stopped);
        }
        if whole_ps < event_ps {
            self.rest();
            self.control.now_ps = whole_ps;
            for region in self.regions.iter_mut() {
                region.now_ps = whole_ps;
            }
            if change_ps <= look_ps {
                self.take_step();
            } else {
                self.look_for_deadlocks();
            }
            return Next::Again;
        }
        let ahead_ps = event_ps.saturating_add(self.control.lookahead_ps - 1);
        let end_ps = ahead_ps.min(whole_ps).min(last_ps);
        for region in self.regions.iter_mut() {
            region.end_ps = end_ps;
        }
        Next::Window
    }

    /// All mail is where it is for, and all that is kept in order of time is in one place.
    pub(super) fn rest(&mut self) {
        exchange(self.regions);
        let mut records = Vec::new();
        let mut now_ps = self.control.now_ps;
        for region in self.regions.iter_mut() {
            region.take_in();
            now_ps = now_ps.max(region.now_ps);
            if let Some(more) = &mut region.pause_records {
                records.append(more);
            }
        }
        self.control.now_ps = now_ps;
        // As they happened: a port hears one at a time, and those of one time are in the order of who says them.
        let peer = |port: u32| self.model.network.ports[port as usize].peer;
        records.sort_by_key(|record| (record.time_ps, peer(record.port)));
        self.control.pause_records.append(&mut records);
    }
}

impl Control {
    fn next_change_ps(&self) -> u64 {
        self.changes.get(self.next_change).map_or(u64::MAX, |(at_ps, _)| *at_ps)
    }
}
