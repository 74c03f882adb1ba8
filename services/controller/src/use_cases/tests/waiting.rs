//! Reasons why nothing of a request moves.

use penstock_control::class::WeeklyWindow;

use super::*;
use crate::repository::{batches, requests, runs};
use crate::use_cases::waiting::Situation;

impl TwoSites {
    /// Returns the reason as the API shows it; empty for none.
    fn reason(&self, id: i64) -> String {
        let pool = &self.controller.database.pool;
        let class = self.class.clone();
        let config = Config::new(Topology::read(TWO_SITES).unwrap(), vec![class]);
        let alive_ms = config.silence_limits().down_ms;
        let situation = self.read(Situation::read(pool, &config, self.now_ms, alive_ms));
        let request = self.read(requests::find(pool, id)).expect("it is stored");
        let runs = self.read(runs::list(pool, Some(id), 10));
        let retry_ms = self.read(batches::next_attempt(pool, id));
        situation.reason(&request, &runs, retry_ms).unwrap_or_default()
    }

    /// Reports that an order runs or waits at its source.
    fn report_phase(&self, order: OrderId, phase: OrderPhase, waiting: Option<&str>) {
        let waiting = waiting.map(str::to_owned);
        let report = OrderReport { order, run: 1, phase, waiting, ..OrderReport::default() };
        self.report("c1", vec![report]);
    }
}

#[test]
fn silent_hosts_are_named() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let never = "no host of cern is up; c1 never reported, c2 never reported";
    assert_eq!(sites.reason(id), never);
    sites.report("c1", Vec::new());
    let never = "no host of caltech is up; t1 never reported, t2 never reported";
    assert_eq!(sites.reason(id), never);
    sites.report("t1", Vec::new());
    assert_eq!(sites.reason(id), "it waits for its turn in class default");
    sites.advance(60_000);
    let silent = "no host of cern is up; c1 silent for 1m00s, c2 never reported";
    assert_eq!(sites.reason(id), silent);
}

#[test]
fn paused_request_says_so() {
    let sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.controller.pause(id, true).unwrap();
    assert_eq!(sites.reason(id), "it is paused");
}

#[test]
fn drained_site_is_named() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.run_round();
    sites.controller.drain("t1", Some(DrainKind::Now)).unwrap();
    for host in ["c1", "t1"] {
        sites.report(host, Vec::new());
        sites.report(host, Vec::new());
    }
    assert_eq!(sites.reason(id), "every host of caltech that is up is drained");
}

#[test]
fn running_order_has_no_reason() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    sites.report_phase(order, OrderPhase::Waiting, Some("t1 is busy"));
    assert_eq!(sites.reason(id), format!("order {order}: t1 is busy"));
    sites.report_phase(order, OrderPhase::Running, None);
    assert_eq!(sites.reason(id), "");
    sites.end(order, &[None]);
    assert_eq!(sites.reason(id), "", "it has ended");
}

#[test]
fn silent_host_of_order_is_named() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    sites.advance(20_000);
    sites.report_phase(order, OrderPhase::Running, None);
    let silent = format!("order {order}: t1 silent for 20s; it may still be running");
    assert_eq!(sites.reason(id), silent);
}

#[test]
fn withdrawn_order_waits_for_hosts() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    sites.controller.pause(id, true).unwrap();
    assert_eq!(sites.reason(id), format!("order {order} stops: a request in it was paused"));
    sites.advance(20_000);
    sites.report("c1", Vec::new());
    let waits = "waits for its hosts to stop (t1 silent for 20s): a request in it was paused";
    assert_eq!(sites.reason(id), format!("order {order} {waits}"));
}

#[test]
fn cancellation_waits_for_hosts() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.start();
    sites.controller.cancel(id).unwrap();
    assert_eq!(sites.reason(id), "it is cancelled once its hosts have stopped");
    sites.advance(20_000);
    sites.report("c1", Vec::new());
    let reason = sites.reason(id);
    assert!(reason.contains("stopped; t1 silent for 20s; after 10m00s of silence"), "{reason}");
}

#[test]
fn failed_attempt_names_next_retry() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let order = sites.start();
    sites.end(order, &[Some(FaultKind::Transient)]);
    let reason = sites.reason(id);
    assert!(reason.starts_with("it is tried again in "), "{reason}");
    assert!(reason.ends_with("s: refused"), "{reason}");
}

#[test]
fn closed_class_names_its_opening() {
    // START_MS is a Monday at 00:00 UTC; the class is open on Tuesdays.
    let window: WeeklyWindow = "tue 00:00-24:00".parse().unwrap();
    let class = WorkClass { windows: vec![window], ..WorkClass::new("default") };
    let sites = TwoSites::with_class(class);
    let id = sites.submit(&["a"]);
    let reason = sites.reason(id);
    assert!(reason.starts_with("class default may not run for another "), "{reason}");
}

#[test]
fn full_hosts_are_named() {
    let mut sites = TwoSites::new();
    sites.submit(&["a"]);
    sites.start();
    let SubmitReply::New(id) = sites.try_submit("other", "/other", &["a"]) else {
        panic!("its destination is free")
    };
    assert_eq!(sites.reason(id), "it waits for its turn in class default");
    let capacity = Capacity { transfers: 1, streams: 16, ..Capacity::default() };
    let report = Report { start: "c1".to_owned(), capacity, ..Report::default() };
    sites.controller.report("c1", report).unwrap();
    let full = "hosts of cern have no room for another transfer: c1 runs 1 of 1";
    assert_eq!(sites.reason(id), full);
}
