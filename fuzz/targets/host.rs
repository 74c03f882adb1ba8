//! A host's journal with any tail, and a facts file of any content: parsed facts are judged and planned.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use penstock_host::facts::Facts;
use penstock_host::goal::Goal;
use penstock_host::plan::{Selection, plan};
use penstock_host::report::report;
use penstock_host::rules::{Case, judge};
use penstock_host::{journal, persist};

fuzz_target!(|bytes: &[u8]| {
    let found = journal::contents(bytes);
    assert!(found.cut_bytes <= bytes.len() as u64);
    let _ = persist::read(bytes);
    let Ok(facts) = Facts::from_json(bytes) else { return };
    assert_eq!(Facts::from_json(facts.to_json().as_bytes()).ok().as_ref(), Some(&facts));
    let goal = Goal::new(Goal::rate_of(&facts), Duration::from_millis(65));
    let findings = judge(&Case::new(&facts, goal, &[]));
    let _ = report(&facts, &goal, &findings);
    for step in plan(&findings, &Selection::default()).steps {
        assert!(!step.changes.is_empty());
    }
});
