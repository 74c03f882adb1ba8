//! Active runs: batches in one order, their plan and their reported progress.

use penstock_control::batch::BatchKind;
use penstock_control::live_run::LiveRun;
use penstock_control::orders::{OrderPhase, OrderReport};
use penstock_control::run_contents::RunPart;
use penstock_control::scheduler::{PlannedStart, RunPlan, RunView};

/// Priority of all requests.
const REQUEST_PRIORITY: u8 = 3;

/// Batches in one order.
#[derive(Debug)]
pub(super) struct ActiveRun {
    pub(super) live: LiveRun,
    /// Its batches, in the order of its file list.
    pub(super) parts: Vec<RunPart>,
    view: RunView,
    started_ms: i64,
    moved_bytes: u64,
    reported_phase: OrderPhase,
}

impl ActiveRun {
    /// Returns a run that has just begun.
    pub(super) fn new(
        id: i64,
        now_ms: i64,
        class: String,
        start: &PlannedStart,
        parts: Vec<RunPart>,
    ) -> Self {
        let reason = "it has just begun".to_owned();
        let view = RunView {
            queue: start.queue,
            class,
            request: parts.first().map_or(0, |part| part.request),
            from: start.from.clone(),
            to: start.to.clone(),
            priority: REQUEST_PRIORITY,
            plan: RunPlan { run: id, reason, ..RunPlan::default() },
            plan_changed_ms: now_ms,
            ..RunView::default()
        };
        let live = LiveRun::new(id, BatchKind::Copy, [start.from.clone(), start.to.clone()]);
        Self {
            live,
            parts,
            view,
            started_ms: now_ms,
            moved_bytes: 0,
            reported_phase: OrderPhase::Waiting,
        }
    }

    /// Returns the run as a round sees it.
    pub(super) fn view(&self, now_ms: i64) -> RunView {
        let mean_bps = RunView::mean_bps_of(self.moved_bytes, now_ms - self.started_ms);
        RunView { mean_bps, ..self.view.clone() }
    }

    pub(super) fn reported_phase(&self) -> OrderPhase {
        self.reported_phase
    }

    /// Stores the plan of a round.
    pub(super) fn set_plan(&mut self, now_ms: i64, plan: &RunPlan) {
        let before = &self.view.plan;
        if before.rate_bps != plan.rate_bps || before.path != plan.path {
            self.view.plan_changed_ms = now_ms;
        }
        self.live.settings = plan.settings();
        self.view.plan = plan.clone();
    }

    /// Stores the progress that the source reports.
    pub(super) fn set_progress(&mut self, report: &OrderReport) {
        self.reported_phase = report.phase;
        self.moved_bytes = report.moved_bytes;
        let view = &mut self.view;
        view.moving = report.phase == OrderPhase::Running;
        view.measured_bps = report.bits_per_second;
        view.applied_bps = report.rate_bps;
        view.bound_by.clone_from(&report.bound_by);
    }
}
