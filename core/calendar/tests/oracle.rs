//! Compares the calendar with a model that lists every second: admissions, refusals, suggestions and releases.

use std::collections::BTreeMap;
use std::ops::Range;

use penstock_calendar::{Calendar, END_OF_TIME, Reservation, ReserveError, Shortage};
use penstock_units::BitRate;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

const NAMES: [&str; 4] = ["ams-gva", "gva-chi", "chi-den", "den-lax"];
const START_SECONDS_MAX: usize = 60;

/// Reference model: reservations checked second by second.
#[derive(Default)]
struct Plain {
    reservable: BTreeMap<String, u64>,
    held: BTreeMap<String, Reservation>,
}

impl Plain {
    fn used(&self, resource: &str, second: u64) -> u64 {
        let holds = |one: &&Reservation| {
            one.seconds.contains(&second) && one.path.iter().any(|name| name == resource)
        };
        self.held.values().filter(holds).map(|one| one.rate.0).sum()
    }

    fn free(&self, resource: &str, seconds: Range<u64>) -> u64 {
        let reservable = self.reservable[resource];
        seconds
            .map(|second| reservable.saturating_sub(self.used(resource, second)))
            .min()
            .unwrap_or(reservable)
    }

    fn fits(&self, request: &Reservation, seconds: Range<u64>) -> bool {
        request.path.iter().all(|name| self.free(name, seconds.clone()) >= request.rate.0)
    }

    fn reserve(&mut self, request: &Reservation) -> Result<(), Shortage> {
        let seconds = request.seconds.clone();
        if self.fits(request, seconds.clone()) {
            self.held.insert(request.name.clone(), request.clone());
            return Ok(());
        }
        let lacks = |name: &&String| self.free(name, seconds.clone()) < request.rate.0;
        let resource =
            request.path.iter().find(lacks).expect("a resource has too little capacity").clone();
        let lacks = |second: &u64| self.free(&resource, *second..second + 1) < request.rate.0;
        let second = seconds.clone().find(lacks).expect("a second has too little capacity");
        let largest = request.path.iter().map(|name| self.free(name, seconds.clone())).min();
        let long = seconds.end - seconds.start;
        let earliest = (seconds.start..300).find(|start| self.fits(request, *start..start + long));
        Err(Shortage { resource, second, largest: BitRate(largest.unwrap_or(0)), earliest })
    }
}

#[derive(Debug, Clone)]
enum Act {
    Reserve(Vec<String>, u64, u64, u64),
    Cancel(Index, u64),
    Share(usize, u64),
    RemoveEnded(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let path = subsequence(NAMES.map(str::to_owned).to_vec(), 1..=3);
    let reserve = (path, 1..80_u64, 0..START_SECONDS_MAX as u64, 1..20_u64);
    prop_oneof![
        6 => reserve.prop_map(|(path, rate, start, long)| Act::Reserve(path, rate, start, long)),
        2 => (any::<Index>(), 0..70_u64).prop_map(|(which, from)| Act::Cancel(which, from)),
        1 => (0..NAMES.len(), 0..150_u64).prop_map(|(which, share)| Act::Share(which, share)),
        1 => (0..30_u64).prop_map(Act::RemoveEnded),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..penstock_testkit::properties() })]

    #[test]
    fn reservations_equal_per_second_model(acts in prop::collection::vec(act(), 1..60)) {
        let (mut calendar, mut plain) = (Calendar::default(), Plain::default());
        for name in NAMES {
            calendar.set_reservable(name, BitRate(100)).expect("the rate is valid");
            plain.reservable.insert(name.to_owned(), 100);
        }
        for (number, act) in acts.into_iter().enumerate() {
            match act {
                Act::Reserve(path, rate, start, long) => {
                    let seconds = start..start + long;
                    let request = Reservation { name: format!("{number}"), path, rate: BitRate(rate), seconds };
                    let expected = plain.reserve(&request).map_err(ReserveError::Shortage);
                    prop_assert_eq!(calendar.reserve(request), expected);
                }
                Act::Cancel(which, from) if !plain.held.is_empty() => {
                    let names: Vec<&String> = plain.held.keys().collect();
                    let name = which.get(&names).to_string();
                    let one = plain.held.get_mut(&name).expect("the reservation exists");
                    prop_assert_eq!(calendar.cancel(&name, from), Some(one.clone()));
                    one.seconds.end = from.clamp(one.seconds.start, one.seconds.end);
                    if one.seconds.is_empty() {
                        plain.held.remove(&name);
                    }
                }
                Act::Cancel(..) => prop_assert_eq!(calendar.cancel("none", 0), None),
                Act::Share(which, share) => {
                    calendar.set_reservable(NAMES[which], BitRate(share)).expect("the rate is valid");
                    plain.reservable.insert(NAMES[which].to_owned(), share);
                }
                Act::RemoveEnded(until) => {
                    calendar.remove_ended(until);
                    plain.held.retain(|_, one| one.seconds.end > until);
                }
            }
            let all: Vec<&Reservation> = calendar.list(0..END_OF_TIME).collect();
            prop_assert_eq!(all, plain.held.values().collect::<Vec<_>>());
            let mut overbooked = Vec::new();
            for name in NAMES {
                let steps = calendar.steps(name).expect("the resource exists");
                for second in 0..100 {
                    let step = steps.iter().rev().find(|(from, _)| *from <= second);
                    let used = step.map_or(0, |(_, rate)| rate.0);
                    prop_assert_eq!(used, plain.used(name, second));
                }
                let free = calendar.free(name, 10..30).expect("the resource exists");
                prop_assert_eq!(free.0, plain.free(name, 10..30));
                let over = |second: &u64| plain.used(name, *second) > plain.reservable[name];
                overbooked.extend((5..100).find(over).map(|second| (name, second)));
            }
            overbooked.sort_unstable();
            prop_assert_eq!(calendar.overbooked(5), overbooked);
        }
    }
}

#[test]
fn reservation_refusal_reports_fitting_offer() {
    let mut calendar = Calendar::default();
    for name in NAMES {
        calendar.set_reservable(name, BitRate(100_000_000_000)).expect("the rate is valid");
    }
    let ask = |name: &str, gigabits: u64, seconds: Range<u64>| Reservation {
        name: name.to_owned(),
        path: vec!["ams-gva".to_owned(), "gva-chi".to_owned()],
        rate: BitRate(gigabits * 1_000_000_000),
        seconds,
    };
    calendar.reserve(ask("a", 60, 100..200)).expect("it fits");
    calendar.reserve(ask("b", 40, 150..300)).expect("it fits just so");
    let refusal = calendar.reserve(ask("c", 50, 120..180)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "ams-gva has too little left at second 120: 0 b/s would fit, or the rate from 200 on"
    );
    let refusal = calendar.reserve(ask("c", 101, 400..401)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "ams-gva has too little left at second 400: 100 Gb/s would fit; the rate is free at no time"
    );
    // Adjacent intervals can be reserved.
    calendar.reserve(ask("d", 100, 0..100)).expect("the interval before is free");
    calendar.reserve(ask("e", 60, 200..300)).expect("it fits beside b");
    let bad = [
        calendar.reserve(ask("a", 1, 900..901)),
        calendar.reserve(ask("f", 0, 900..901)),
        calendar.reserve(ask("f", 2_000_000, 900..901)),
        calendar.reserve(ask("f", 1, 900..900)),
        calendar.reserve(ask("f", 1, 900..END_OF_TIME + 1)),
        calendar.reserve(Reservation { path: vec!["x".to_owned()], ..ask("f", 1, 900..901) }),
        calendar.reserve(Reservation { path: vec!["ams-gva".to_owned(); 2], ..ask("f", 1, 1..2) }),
        calendar.reserve(Reservation { path: Vec::new(), ..ask("f", 1, 900..901) }),
        calendar.set_reservable("x", BitRate(u64::MAX)),
    ];
    assert!(bad.iter().all(Result::is_err), "{bad:?}");
    assert_eq!(calendar.get("f"), None);
    assert_eq!(calendar.get("a").map(|one| one.seconds.clone()), Some(100..200));
}
