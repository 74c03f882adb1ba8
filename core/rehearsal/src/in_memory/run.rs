//! Active runs: batches in one order, and the outcomes of their files.

use std::collections::BTreeMap;

use penstock_control::backoff;
use penstock_control::orders::{Acknowledged, OrderPhase, OrderReport, OrderSettings};
use penstock_control::scheduler::RunView;

use crate::controller_api::OrderFile;

/// Files of a request that are queued and sent together.
#[derive(Debug, Clone)]
pub(super) struct FileBatch {
    pub(super) request: i64,
    pub(super) queue: i64,
    pub(super) files: Vec<OrderFile>,
    pub(super) attempt: u32,
}

impl FileBatch {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Batches in one order.
#[derive(Debug)]
pub(super) struct ActiveRun {
    pub(super) view: RunView,
    batches: Vec<FileBatch>,
    /// Index of each batch's first file, and for each file whether it arrived.
    places: Vec<usize>,
    done: Vec<bool>,
    agent_run: Option<u64>,
    outcomes: u64,
    /// Set when the receiving node has the order.
    pub(super) receiver_notified: bool,
    /// Set when the order is withdrawn.
    pub(super) withdrawn: bool,
    /// Consecutive reports of each end without the order.
    pub(super) missed_reports: [i64; 2],
}

impl ActiveRun {
    pub(super) fn new(view: RunView, batches: Vec<FileBatch>) -> Self {
        let mut places = Vec::with_capacity(batches.len());
        let mut files = 0;
        for batch in &batches {
            places.push(files);
            files += batch.files.len();
        }
        Self {
            view,
            batches,
            places,
            done: vec![false; files],
            agent_run: None,
            outcomes: 0,
            receiver_notified: false,
            withdrawn: false,
            missed_reports: [0, 0],
        }
    }

    pub(super) fn files(&self) -> Vec<OrderFile> {
        self.batches.iter().flat_map(|batch| &batch.files).copied().collect()
    }

    pub(super) fn settings(&self) -> OrderSettings {
        let plan = &self.view.plan;
        OrderSettings { rate_bps: plan.rate_bps, streams: plan.streams, path: plan.path.clone() }
    }

    /// Applies a sender's report. Returns the number of newly arrived files by request.
    pub(super) fn apply_report(&mut self, report: &OrderReport) -> BTreeMap<i64, u64> {
        if self.agent_run != Some(report.run) {
            (self.agent_run, self.outcomes) = (Some(report.run), 0);
        }
        let known = self.outcomes.saturating_sub(report.outcomes_from) as usize;
        let mut settled = BTreeMap::new();
        for outcome in report.outcomes.iter().skip(known) {
            let place = outcome.file as usize;
            if outcome.fault.is_some() || self.done.get(place).copied() != Some(false) {
                continue;
            }
            self.done[place] = true;
            let batch = self.places.partition_point(|first| *first <= place) - 1;
            *settled.entry(self.batches[batch].request).or_default() += 1;
        }
        self.outcomes = self.outcomes.max(report.outcomes_from + report.outcomes.len() as u64);
        let view = &mut self.view;
        view.moving = report.phase == OrderPhase::Running;
        view.measured_bps = report.bits_per_second;
        view.applied_bps = report.rate_bps;
        view.bound_by.clone_from(&report.bound_by);
        settled
    }

    /// Returns the unfinished part of each batch with its number of permanently failed files. The attempt counts if the
    /// node reported the end.
    pub(super) fn into_unfinished(self, is_reported: bool) -> Vec<(FileBatch, u64)> {
        let mut rest = Vec::new();
        for (first, batch) in self.places.iter().zip(self.batches) {
            let open = batch.files.iter().zip(&self.done[*first..]).filter(|(_, done)| !**done);
            let files: Vec<OrderFile> = open.map(|(file, _)| *file).collect();
            if files.is_empty() {
                continue;
            }
            let attempt = batch.attempt + u32::from(is_reported);
            let failed = if attempt >= backoff::ATTEMPTS_DEFAULT { files.len() as u64 } else { 0 };
            let files = if failed > 0 { Vec::new() } else { files };
            rest.push((FileBatch { files, attempt, ..batch }, failed));
        }
        rest
    }
}

/// Returns the acknowledgement of a reported order.
pub(super) fn acknowledged(order: &OrderReport, outcomes: u64, end: bool) -> Acknowledged {
    Acknowledged { order: order.order, run: order.run, outcomes, entries: 0, end }
}
