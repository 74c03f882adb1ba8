//! Requester side of a flow (InfiniBand Architecture 1.4, chapter 9): posts messages, tracks completions, runs the
//! retry timer. At the sender for writes and sends, at the receiver for reads.

use crate::flow::FlowSpec;
use crate::parameters::Parameters;

/// State of the requester of a flow.
#[derive(Debug)]
pub(super) struct Requester {
    messages: u64,
    depth: u64,
    moderation: u64,
    outstanding: u64,
    /// True if messages are posted when those of another flow arrive.
    pub(super) is_released: bool,
    /// True once all messages completed or the flow failed.
    pub(super) has_ended: bool,
    posted: u64,
    pub(super) completed: u64,
    /// Expiry of the retry timer; [`u64::MAX`] if it is not armed.
    pub(super) timer_ps: u64,
    /// Time of the last progress, from which the time-out counts.
    pub(super) progress_ps: u64,
    pub(super) retries: u32,
    pub(super) timeouts: u64,
    pub(super) finished_ps: Option<u64>,
    pub(super) failed_ps: Option<u64>,
    pub(super) ideal_ps: u64,
}

impl Requester {
    pub(super) fn new(flow: &FlowSpec, parameters: &Parameters) -> Self {
        let outstanding = parameters.outstanding_messages;
        Self {
            messages: flow.messages,
            depth: flow.depth,
            moderation: flow.moderation.clamp(1, flow.depth.max(1)),
            outstanding: if outstanding == 0 { u64::MAX } else { u64::from(outstanding) },
            is_released: flow.released_by.is_some(),
            has_ended: false,
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

    /// Returns the number of messages that may have been started, as posted and limited by `outstanding_messages`.
    pub(super) fn allowed(&self) -> u64 {
        self.posted.min(self.completed.saturating_add(self.outstanding))
    }

    /// Posts the messages that own completions or arrivals of the releasing flow allow; `arrived` counts the latter.
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

    /// Ends the flow, completed or failed.
    pub(super) const fn end(&mut self, now_ps: u64, has_failed: bool) {
        self.has_ended = true;
        if has_failed {
            self.failed_ps = Some(now_ps);
        } else {
            self.finished_ps = Some(now_ps);
        }
    }

    /// Records progress, which resets the retry counter.
    pub(super) const fn record_progress(&mut self, now_ps: u64) {
        self.progress_ps = now_ps;
        self.retries = 0;
    }
}
