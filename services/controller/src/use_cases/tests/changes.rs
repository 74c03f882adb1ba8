//! Changes of requests, links and reservations.

use super::*;
use crate::repository::{batches, events, links, requests, reservations, runs};
use crate::use_cases::network;

impl TwoSites {
    fn change(&self, id: i64, wanted: RequestChange) -> ChangeOutcome {
        self.apply(move |cx| {
            let wanted = wanted.clone();
            Box::pin(async move { change::change(cx, id, &wanted, audit()).await })
        })
    }

    fn set_link(&self, name: &'static str, down: bool) {
        self.apply(move |cx| {
            Box::pin(async move { network::set_link(cx, name, down, "test", audit()).await })
        });
    }

    /// Returns priority and deadline of the first live run.
    fn run_terms(&self) -> (u8, Option<i64>) {
        let runs = self.read(runs::planned(&self.controller.database.pool, self.now_ms));
        let run = runs.first().expect("one is live");
        (run.priority, run.deadline.map(|(deadline, _)| deadline))
    }

    fn reserve(&self, gigabits: i64) -> i64 {
        self.try_reserve(None, gigabits).expect("it fits")
    }

    fn cancel_reservation(&self, id: i64) -> bool {
        self.apply(move |cx| Box::pin(async move { reserve::cancel(cx, id, audit()).await }))
    }
}

#[test]
fn down_link_moves_live_run() {
    let mut sites = TwoSites::new();
    sites.submit(&["a"]);
    sites.start();
    let route_of_run = |sites: &TwoSites| sites.controller.runs().unwrap()[0].route.clone();
    assert_eq!(route_of_run(&sites), ["c1--geneva", "direct", "t1--pasadena"]);
    let _ = sites.controller.take_round_request();
    sites.set_link("direct", true);
    assert!(sites.controller.take_round_request());
    sites.run_round();
    assert_eq!(route_of_run(&sites), ["c1--geneva", "round-1", "round-2", "t1--pasadena"]);
}

#[test]
fn set_link_is_stored_with_event() {
    let sites = TwoSites::new();
    let pool = &sites.controller.database.pool;
    sites.set_link("direct", true);
    assert!(sites.read(links::down(pool)).contains("direct"));
    let events = sites.read(events::of_network(pool, (0, i64::MAX), 10));
    assert_eq!(
        (events[0].kind.as_str(), events[0].text.as_str()),
        ("link", "direct is down: test")
    );
    sites.set_link("direct", false);
    assert!(sites.read(links::down(pool)).is_empty());
    assert_eq!(sites.read(links::list(pool)).len(), 1);
}

#[test]
fn priority_change_reaches_live_run() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.start();
    assert_eq!(sites.run_terms(), (3, None));
    let wanted = RequestChange { priority: Some(5), ..RequestChange::default() };
    assert_eq!(sites.change(id, wanted), ChangeOutcome::Done);
    assert_eq!(sites.run_terms(), (5, None));
    let stored = sites.read(requests::find(&sites.controller.database.pool, id)).unwrap();
    assert_eq!((stored.priority, stored.changed), (5, sites.now_ms));
}

#[test]
fn deadline_change_reaches_queued_batch() {
    let sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    let queue = |sites: &TwoSites| {
        let queues = sites.read(batches::busy_queues(&sites.controller.database.pool));
        let queue = queues[0].id;
        let first = sites
            .apply(move |cx| Box::pin(async move { batches::first_of_queue(cx, queue, 10).await }));
        (first[0].priority, first[0].deadline)
    };
    let deadline = START_MS + 3_600_000;
    let wanted = RequestChange { deadline: Some(Some(deadline)), ..RequestChange::default() };
    assert_eq!(sites.change(id, wanted), ChangeOutcome::Done);
    assert_eq!(queue(&sites), (3, Some(deadline)));
    let wanted = RequestChange { deadline: Some(None), ..RequestChange::default() };
    assert_eq!(sites.change(id, wanted), ChangeOutcome::Done);
    assert_eq!(queue(&sites), (3, None), "the deadline is removed");
}

#[test]
fn deadline_change_reaches_live_run() {
    let mut sites = TwoSites::new();
    let id = sites.submit(&["a"]);
    sites.start();
    let deadline = START_MS + 3_600_000;
    let wanted = RequestChange { priority: Some(1), deadline: Some(Some(deadline)), paused: None };
    assert_eq!(sites.change(id, wanted), ChangeOutcome::Done);
    assert_eq!(sites.run_terms(), (1, Some(deadline)));
}

#[test]
fn cancelled_reservation_ends_once() {
    let mut sites = TwoSites::new();
    let id = sites.reserve(20);
    let _ = sites.controller.take_round_request();
    let reservations = |sites: &TwoSites| {
        let pool = &sites.controller.database.pool;
        sites.read(reservations::list(pool, sites.now_ms, None)).len()
    };
    assert_eq!(reservations(&sites), 1);
    sites.advance(1);
    assert!(!sites.cancel_reservation(id + 1_000), "there is no such reservation");
    assert!(!sites.controller.take_round_request());
    assert!(sites.cancel_reservation(id) && sites.controller.take_round_request());
    assert!(!sites.cancel_reservation(id), "it has ended");
    assert_eq!(reservations(&sites), 0);
    let events = sites.read(events::of_network(&sites.controller.database.pool, (0, i64::MAX), 10));
    let given_back = events.iter().filter(|event| event.text.ends_with("is given back"));
    assert_eq!(given_back.count(), 1);
}
