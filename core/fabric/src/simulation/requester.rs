//! The end of a flow that asks: it posts messages, sees them complete, and loses patience. Who sends has it of writes and
//! sends, who receives of reads.

use crate::flow::Flow;
use crate::parameters::Parameters;

/// State of the requester of a flow.
#[derive(Debug)]
pub(super) struct Requester {
    messages: u64,
    depth: u64,
    moderation: u64,
    outstanding: u64,
    /// Its messages are posted as those of another flow arrive.
    pub(super) is_released: bool,
    /// All is done, or it failed.
    pub(super) is_over: bool,
    posted: u64,
    pub(super) completed: u64,
    /// When it looks whether it waited too long; never: [`u64::MAX`].
    pub(super) timer_ps: u64,
    /// When it heard anything new last.
    pub(super) progress_ps: u64,
    pub(super) retries: u32,
    pub(super) timeouts: u64,
    pub(super) finished_ps: Option<u64>,
    pub(super) failed_ps: Option<u64>,
    pub(super) ideal_ps: u64,
}

impl Requester {
    pub(super) fn new(flow: &Flow, parameters: &Parameters) -> Self {
        let outstanding = parameters.outstanding_messages;
        Self {
            messages: flow.messages,
            depth: flow.depth,
            moderation: flow.moderation.clamp(1, flow.depth.max(1)),
            outstanding: if outstanding == 0 { u64::MAX } else { u64::from(outstanding) },
            is_released: flow.released_by.is_some(),
            is_over: false,
            posted: 0,
            completed: 0,
            timer_ps: u64::MAX,
            progress_ps: 0,
            retries: 0,
            timeouts: 0,
            finished_ps: None,
            failed_ps: None,
            ideal_ps: 0,
        }
    }

    /// Messages that may be under way now, as posting and the host allow.
    pub(super) fn allowed(&self) -> u64 {
        self.posted.min(self.completed.saturating_add(self.outstanding))
    }

    /// Posts what completions or arrivals of others allow. `arrived` counts messages of the flow that releases.
    pub(super) fn post(&mut self, arrived: u64) {
        let more = if self.is_released {
            arrived
        } else {
            self.completed / self.moderation * self.moderation
        };
        self.posted = self.messages.min(self.depth.saturating_add(more)).max(self.posted);
    }

    pub(super) const fn is_done(&self) -> bool {
        self.completed == self.messages
    }

    /// All is done, or it gives up.
    pub(super) const fn end(&mut self, now_ps: u64, has_failed: bool) {
        self.is_over = true;
        if has_failed {
            self.failed_ps = Some(now_ps);
        } else {
            self.finished_ps = Some(now_ps);
        }
    }

    /// It heard anything new.
    pub(super) const fn record_progress(&mut self, now_ps: u64) {
        self.progress_ps = now_ps;
        self.retries = 0;
    }
}
