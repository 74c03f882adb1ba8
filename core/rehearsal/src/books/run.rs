//! What runs: batches in one order, and what has become of their files.

use std::collections::BTreeMap;

use penstock_operations::orders::{Acknowledged, OrderReport, Phase, Settings};
use penstock_operations::retry;
use penstock_operations::round::RunView;

use crate::desk::File;

/// Files of a request that wait or run together.
#[derive(Debug, Clone)]
pub(super) struct Batch {
    pub(super) request: i64,
    pub(super) queue: i64,
    pub(super) files: Vec<File>,
    /// How often its files were tried.
    pub(super) attempt: u32,
}

impl Batch {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

/// Batches in one order.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) view: RunView,
    batches: Vec<Batch>,
    /// Place of the first file of each batch, and whether each file is in place.
    places: Vec<usize>,
    done: Vec<bool>,
    agent_run: Option<u64>,
    outcomes: u64,
    /// The receiving node knows of it.
    pub(super) told: bool,
    /// It is taken back.
    pub(super) ending: bool,
    /// Reports of each end without it.
    pub(super) gone: [u8; 2],
}

impl Run {
    pub(super) fn new(view: RunView, batches: Vec<Batch>) -> Self {
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
            told: false,
            ending: false,
            gone: [0, 0],
        }
    }

    pub(super) fn files(&self) -> Vec<File> {
        self.batches.iter().flat_map(|batch| &batch.files).copied().collect()
    }

    pub(super) fn settings(&self) -> Settings {
        let setting = &self.view.setting;
        Settings {
            rate_bps: setting.rate_bps,
            streams: setting.streams,
            path: setting.path.clone(),
        }
    }

    /// Takes what the sending node tells; gives files in place that are news, by request.
    pub(super) fn take(&mut self, report: &OrderReport) -> BTreeMap<i64, u64> {
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
        view.moving = report.phase == Phase::Running;
        view.measured_bps = report.bits_per_second;
        view.applied_bps = report.rate_bps;
        view.bound_by.clone_from(&report.bound_by);
        settled
    }

    /// What is left of each batch, and how many of its files failed for good; an attempt counts where the node `told` of
    /// its end.
    pub(super) fn into_rest(self, told: bool) -> Vec<(Batch, u64)> {
        let mut rest = Vec::new();
        for (first, batch) in self.places.iter().zip(self.batches) {
            let open = batch.files.iter().zip(&self.done[*first..]).filter(|(_, done)| !**done);
            let files: Vec<File> = open.map(|(file, _)| *file).collect();
            if files.is_empty() {
                continue;
            }
            let attempt = batch.attempt + u32::from(told);
            let failed = if attempt >= retry::ATTEMPTS { files.len() as u64 } else { 0 };
            let files = if failed > 0 { Vec::new() } else { files };
            rest.push((Batch { files, attempt, ..batch }, failed));
        }
        rest
    }
}

/// What a node need not tell again.
pub(super) fn acknowledged(order: &OrderReport, outcomes: u64, end: bool) -> Acknowledged {
    Acknowledged { order: order.order, run: order.run, outcomes, entries: 0, end }
}
