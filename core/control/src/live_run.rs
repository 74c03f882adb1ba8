//! A live run at the controller, as the reports of its two hosts change it.
//!
//! [`LiveRun::apply_report`] says what of a report is new, [`ReportedEnds`] which runs end with a group of reports, and
//! [`list_orders`] which orders their hosts receive in answer. The caller stores the runs.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::batch::BatchKind;
use crate::lost_hosts::{HostContact, MISSED_REPORTS_MAX, SuspectRun};
use crate::orders::{
    Acknowledged, ActiveOrder, Instructions, OrderFault, OrderId, OrderPhase, OrderReport,
    OrderSettings, Report, RunSide,
};
use crate::outcomes::RunEnd;
use crate::run::{RunEvent, RunState};

/// Longest text of a node that a controller keeps.
const TEXT_CHARS_MAX: usize = 400;

/// A run that has not ended. Arrays have the source first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveRun {
    /// Id of the run.
    pub id: i64,
    /// Kind of its batches.
    pub kind: BatchKind,
    /// State of the run; not [`RunState::Ended`].
    pub state: RunState,
    /// Names of its hosts; the second is empty for a listing.
    pub hosts: [String; 2],
    /// Set once the receiver has the ticket.
    pub receiver_notified: bool,
    /// Consecutive reports of its hosts without its withdrawn orders.
    pub missed_reports: [i64; 2],
    /// Number of the source's start of the order.
    pub agent_run: Option<u64>,
    /// Number of known outcomes.
    pub outcomes: u64,
    /// Number of known listed files.
    pub entries: u64,
    /// Phase of the source's order in the last group of reports.
    pub phase: OrderPhase,
    /// Settings of the source's order; without a rate until a round has planned the run.
    pub settings: OrderSettings,
    /// Reason of its withdrawal.
    pub end_reason: Option<String>,
}

/// Part of a source's report that the controller does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewProgress {
    /// Index of the first new outcome in the report.
    pub first_outcome: usize,
    /// Index of the first new entry in the report.
    pub first_entry: usize,
    /// True if an earlier start of a listing may have reported the same entries.
    pub may_repeat_entries: bool,
    /// True if the order has ended.
    pub has_ended: bool,
}

/// Effect of a report on a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportEffect {
    /// The order is active at the receiver.
    Received,
    /// The receiver has ended the order: it cannot admit the sender.
    Refused(OrderFault),
    /// The source reports its progress.
    Progress(NewProgress),
}

impl LiveRun {
    /// Returns a run that has just begun.
    #[must_use]
    pub fn new(id: i64, kind: BatchKind, hosts: [String; 2]) -> Self {
        Self {
            id,
            kind,
            state: RunState::Active,
            hosts,
            receiver_notified: false,
            missed_reports: [0; 2],
            agent_run: None,
            outcomes: 0,
            entries: 0,
            phase: OrderPhase::Waiting,
            settings: OrderSettings::default(),
            end_reason: None,
        }
    }

    /// True if the order of this side is at this host.
    #[must_use]
    pub fn is_at(&self, host: &str, side: RunSide) -> bool {
        self.hosts[side as usize] == host
    }

    /// Applies a report of one of its hosts.
    pub fn apply_report(&mut self, host: &str, report: &OrderReport) -> ReportEffect {
        let has_ended = report.phase == OrderPhase::Ended;
        if report.order.side() == RunSide::Destination {
            return match report.fault.as_ref().filter(|_| has_ended) {
                Some(fault) => {
                    let text = truncated(&format!("{host}: {}", fault.text));
                    ReportEffect::Refused(OrderFault { kind: fault.kind, text })
                }
                None => ReportEffect::Received,
            };
        }
        if self.agent_run != Some(report.run) {
            (self.agent_run, self.outcomes, self.entries) = (Some(report.run), 0, 0);
        }
        let progress = NewProgress {
            first_outcome: self.outcomes.saturating_sub(report.outcomes_from) as usize,
            first_entry: self.entries.saturating_sub(report.entries_from) as usize,
            may_repeat_entries: report.entries_from == 0 && self.entries == 0,
            has_ended,
        };
        let (outcomes, entries) = reported_counts(report);
        self.outcomes = self.outcomes.max(outcomes);
        if self.kind == BatchKind::List {
            self.entries = self.entries.max(entries);
        }
        ReportEffect::Progress(progress)
    }

    /// Counts a report of a host without its withdrawn orders. Returns true if the run is withdrawn and at the host.
    fn count_missed_report(&mut self, host: &str, running: &HashSet<OrderId>) -> bool {
        if self.state != RunState::Revoking {
            return false;
        }
        let mut is_counted = false;
        for side in RunSide::ALL.into_iter().filter(|side| self.hosts[*side as usize] == host) {
            let is_running = running.contains(&OrderId::of(self.id, side));
            let missed = &mut self.missed_reports[side as usize];
            *missed = if is_running { 0 } else { (*missed + 1).min(MISSED_REPORTS_MAX) };
            is_counted = true;
        }
        is_counted
    }

    /// True if both hosts have stopped its withdrawn orders.
    fn has_stopped(&self) -> bool {
        self.missed_reports.iter().all(|missed| *missed >= MISSED_REPORTS_MAX)
    }

    /// Withdraws its orders. A listing has no destination to wait for.
    pub fn withdraw(&mut self, why: String) {
        let Some(state) = self.state.transition(RunEvent::Withdrawn) else { return };
        let destination = if self.kind == BatchKind::List { MISSED_REPORTS_MAX } else { 0 };
        (self.state, self.missed_reports, self.end_reason) = (state, [0, destination], Some(why));
    }

    /// Returns the end that its source reports.
    fn reported_end(&self, fault: Option<OrderFault>) -> RunEnd {
        match self.state {
            RunState::Revoking => self.withdrawn_end(),
            RunState::Active | RunState::Ended => RunEnd::Reported(fault),
        }
    }

    /// Returns the end of a withdrawn run.
    #[must_use]
    pub fn withdrawn_end(&self) -> RunEnd {
        RunEnd::Withdrawn(self.end_reason.clone().unwrap_or_default())
    }

    /// Returns the run for the decision on lost hosts.
    #[must_use]
    pub fn suspect(&self, contacts: [HostContact; 2]) -> SuspectRun {
        SuspectRun {
            state: self.state,
            is_listing: self.kind == BatchKind::List,
            hosts: self.hosts.clone(),
            contacts,
            missed_reports: self.missed_reports,
        }
    }
}

/// Returns the numbers after the last outcome and the last entry of a report.
fn reported_counts(report: &OrderReport) -> (u64, u64) {
    (
        report.outcomes_from.saturating_add(report.outcomes.len() as u64),
        report.entries_from.saturating_add(report.entries.len() as u64),
    )
}

/// Returns the acknowledgement of a report. An order that is not live at the host is over: the node may drop it.
#[must_use]
pub fn acknowledge(report: &OrderReport, is_live: bool) -> Acknowledged {
    let (outcomes, entries) = reported_counts(report);
    let end = report.phase == OrderPhase::Ended || !is_live;
    Acknowledged { order: report.order, run: report.run, outcomes, entries, end }
}

/// Truncates a text of a node.
#[must_use]
pub fn truncated(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Change of a run after a group of reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedChange {
    /// Its orders are withdrawn, for this reason.
    Withdraw(String),
    /// It ends.
    End(RunEnd),
    /// Its missed reports changed.
    MissedReports,
}

/// Ends of runs in a group of reports.
#[derive(Debug, Default)]
pub struct ReportedEnds {
    refused: Vec<(i64, OrderFault)>,
    ended: Vec<(i64, Option<OrderFault>)>,
    withdrawn: BTreeSet<i64>,
}

impl ReportedEnds {
    /// Adds the receiver's refusal of a run.
    pub fn add_refusal(&mut self, run: i64, fault: OrderFault) {
        self.refused.push((run, fault));
    }

    /// Adds the end that a source reports.
    pub fn add_end(&mut self, run: i64, fault: Option<OrderFault>) {
        self.ended.push((run, fault));
    }

    /// Counts a host's reports without its withdrawn orders.
    pub fn count_missed_reports<'a>(
        &mut self,
        host: &str,
        report: &Report,
        runs: impl Iterator<Item = &'a mut LiveRun>,
    ) {
        let running: HashSet<OrderId> = report
            .orders
            .iter()
            .filter(|order| order.phase != OrderPhase::Ended)
            .map(|order| order.order)
            .collect();
        let counted =
            runs.filter_map(|run| run.count_missed_report(host, &running).then_some(run.id));
        self.withdrawn.extend(counted);
    }

    /// Returns the changes of runs, in the order in which they are made; `find` returns a live run by id.
    pub fn decide<'a>(
        self,
        find: impl Fn(i64) -> Option<&'a LiveRun>,
    ) -> Vec<(i64, ReportedChange)> {
        let mut changes = Vec::new();
        let mut over: HashSet<i64> = HashSet::new();
        for (id, fault) in self.refused {
            let run = find(id).filter(|run| run.state == RunState::Active && !over.contains(&id));
            match run.map(|run| run.phase == OrderPhase::Running) {
                None => {}
                // A transferring run was admitted before: stop it first.
                Some(true) => changes.push((id, ReportedChange::Withdraw(fault.text))),
                Some(false) => {
                    over.insert(id);
                    changes.push((id, ReportedChange::End(RunEnd::Reported(Some(fault)))));
                }
            }
        }
        for (id, fault) in self.ended {
            let Some(run) = find(id).filter(|_| over.insert(id)) else { continue };
            changes.push((id, ReportedChange::End(run.reported_end(fault))));
        }
        for id in self.withdrawn {
            let Some(run) = find(id).filter(|_| !over.contains(&id)) else { continue };
            let change = match run.has_stopped() {
                true => ReportedChange::End(run.withdrawn_end()),
                false => ReportedChange::MissedReports,
            };
            changes.push((id, change));
        }
        changes
    }
}

/// Adds the active orders to the answers of their hosts. Returns the runs whose receivers get their tickets with these
/// answers.
#[must_use]
pub fn list_orders<'a>(
    hosts: &[&str],
    runs: impl Iterator<Item = &'a LiveRun>,
    answers: &mut [Instructions],
) -> Vec<i64> {
    let at: HashMap<&str, usize> = hosts.iter().enumerate().map(|(at, host)| (*host, at)).collect();
    let mut notified = Vec::new();
    for run in runs.filter(|run| run.state == RunState::Active) {
        let [from, to] = run.hosts.each_ref().map(|host| at.get(host.as_str()));
        // Its receiver has the ticket, and a round has given it a rate.
        let is_ready = run.receiver_notified && run.settings.rate_bps.is_some();
        let sender_may = is_ready || run.kind == BatchKind::List;
        if let Some(at) = from.filter(|_| sender_may) {
            let order = OrderId::of(run.id, RunSide::Source);
            answers[*at].orders.push(ActiveOrder { order, settings: run.settings.clone() });
        }
        if let Some(at) = to.filter(|_| run.kind == BatchKind::Copy) {
            let order = OrderId::of(run.id, RunSide::Destination);
            answers[*at].orders.push(ActiveOrder { order, settings: OrderSettings::default() });
            if !run.receiver_notified {
                notified.push(run.id);
            }
        }
    }
    notified
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::{FaultKind, ReportedOutcome};

    fn run() -> LiveRun {
        LiveRun::new(7, BatchKind::Copy, ["a".to_owned(), "b".to_owned()])
    }

    fn report(side: RunSide, phase: OrderPhase) -> OrderReport {
        OrderReport { order: OrderId::of(7, side), run: 1, phase, ..OrderReport::default() }
    }

    fn outcome(file: u32) -> ReportedOutcome {
        ReportedOutcome { file, bytes: 1, was_there: false, digest: None, fault: None }
    }

    fn fault(text: &str) -> OrderFault {
        OrderFault { kind: FaultKind::Transient, text: text.to_owned() }
    }

    fn decide(ends: ReportedEnds, run: &LiveRun) -> Vec<ReportedChange> {
        let changes = ends.decide(|id| (id == run.id).then_some(run));
        changes.into_iter().map(|(_, change)| change).collect()
    }

    #[test]
    fn repeated_outcomes_are_skipped() {
        let mut run = run();
        let mut report = report(RunSide::Source, OrderPhase::Running);
        report.outcomes = vec![outcome(0), outcome(1)];
        let first = |effect| match effect {
            ReportEffect::Progress(progress) => progress.first_outcome,
            other => panic!("{other:?}"),
        };
        assert_eq!(first(run.apply_report("a", &report)), 0);
        report.outcomes.push(outcome(2));
        assert_eq!(first(run.apply_report("a", &report)), 2);
        assert_eq!(acknowledge(&report, true).outcomes, 3);
        report.run = 2;
        assert_eq!(first(run.apply_report("a", &report)), 0, "the node began again");
    }

    #[test]
    fn order_of_unknown_run_is_over() {
        let report = report(RunSide::Source, OrderPhase::Running);
        assert!(acknowledge(&report, false).end && !acknowledge(&report, true).end);
    }

    #[test]
    fn refusal_ends_waiting_run() {
        let mut run = run();
        let refused = OrderReport {
            fault: Some(fault("no such export")),
            ..report(RunSide::Destination, OrderPhase::Ended)
        };
        let ReportEffect::Refused(reason) = run.apply_report("b", &refused) else { panic!() };
        assert_eq!(reason.text, "b: no such export");
        let ends = || {
            let mut ends = ReportedEnds::default();
            ends.add_refusal(7, reason.clone());
            ends.add_end(7, None);
            ends
        };
        let end = ReportedChange::End(RunEnd::Reported(Some(reason.clone())));
        assert_eq!(decide(ends(), &run), [end]);
        run.phase = OrderPhase::Running;
        let changes = decide(ends(), &run);
        assert_eq!(changes[0], ReportedChange::Withdraw(reason.text.clone()));
        assert_eq!(changes[1], ReportedChange::End(RunEnd::Reported(None)));
    }

    #[test]
    fn stopped_run_ends_as_withdrawn() {
        let mut run = run();
        run.withdraw("drained".to_owned());
        let idle = Report::default();
        let mut miss = |host| {
            let mut ends = ReportedEnds::default();
            ends.count_missed_reports(host, &idle, std::iter::once(&mut run));
            decide(ends, &run)
        };
        for host in ["a", "b", "a"] {
            assert_eq!(miss(host), [ReportedChange::MissedReports]);
        }
        let end = RunEnd::Withdrawn("drained".to_owned());
        assert_eq!(miss("b"), [ReportedChange::End(end.clone())]);
        assert_eq!(miss("c"), []);
        let mut ends = ReportedEnds::default();
        ends.add_end(7, Some(fault("it was stopped")));
        assert_eq!(decide(ends, &run), [ReportedChange::End(end)], "its reason is the withdrawal");
    }

    #[test]
    fn running_order_is_not_missed() {
        let mut run = run();
        run.withdraw("drained".to_owned());
        let orders = vec![report(RunSide::Source, OrderPhase::Running)];
        let report = Report { orders, ..Report::default() };
        ReportedEnds::default().count_missed_reports("a", &report, std::iter::once(&mut run));
        assert_eq!(run.missed_reports, [0, 0]);
    }

    #[test]
    fn sender_waits_for_ticket_and_rate() {
        let mut run = run();
        let listed = |run: &LiveRun| {
            let mut answers = vec![Instructions::default(); 2];
            let notified = list_orders(&["a", "b"], std::iter::once(run), &mut answers);
            let counts = [answers[0].orders.len(), answers[1].orders.len()];
            (counts, notified)
        };
        run.settings.rate_bps = Some(1);
        assert_eq!(listed(&run), ([0, 1], vec![7]));
        run.receiver_notified = true;
        assert_eq!(listed(&run), ([1, 1], vec![]));
        run.settings.rate_bps = None;
        assert_eq!(listed(&run), ([0, 1], vec![]));
        run.withdraw("drained".to_owned());
        assert_eq!(listed(&run), ([0, 0], vec![]));
        let listing = LiveRun::new(7, BatchKind::List, ["a".to_owned(), String::new()]);
        assert_eq!(listed(&listing), ([1, 0], vec![]), "a listing has no receiver");
    }
}
