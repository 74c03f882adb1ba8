//! The agent's state over lost, repeated and late messages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::order::{OrderState, WITHDRAWN_REPORT_TIME};
use super::*;
use crate::lease::RATE_LEASE_MIN;
use crate::orders::{Acknowledged, ActiveOrder, ENTRIES_MAX, OUTCOMES_MAX, ReportedOutcome};

const SAFE_RATE_BPS: u64 = 1_000;

fn id(number: u64) -> OrderId {
    OrderId::from(number)
}

/// Lists orders with a rate of ten times the safe one.
fn instructions(orders: impl IntoIterator<Item = u64>) -> Instructions {
    let active = |number| ActiveOrder {
        order: id(number),
        settings: OrderSettings { rate_bps: Some(10 * SAFE_RATE_BPS), ..OrderSettings::default() },
    };
    Instructions {
        lease_seconds: 30,
        orders: orders.into_iter().map(active).collect(),
        acknowledged: Vec::new(),
    }
}

fn acknowledging(
    orders: impl IntoIterator<Item = u64>,
    acknowledged: Vec<Acknowledged>,
) -> Instructions {
    Instructions { acknowledged, ..instructions(orders) }
}

fn outcome(file: u32) -> ReportedOutcome {
    ReportedOutcome { file, bytes: 1, was_there: false, digest: None, fault: None }
}

/// Reports without work that is live.
fn report(orders: &mut AgentOrders) -> Vec<OrderReport> {
    orders.report(&mut |_, _| WorkProgress::default())
}

/// Begins order 1 at `now`.
fn one_order(now: Instant) -> AgentOrders {
    let mut orders = AgentOrders::new(now);
    assert_eq!(orders.apply_instructions(instructions([1]), now).fetch, [id(1)]);
    orders.begin(id(1), "r", 10, 1 << 20).expect("it is listed").start();
    orders
}

fn acknowledge_all(report: &OrderReport) -> Acknowledged {
    Acknowledged {
        order: report.order,
        run: report.run,
        outcomes: report.outcomes_from + report.outcomes.len() as u64,
        entries: report.entries_from + report.entries.len() as u64,
        end: report.phase == OrderPhase::Ended,
    }
}

#[test]
fn order_begins_once() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    assert!(orders.begin(id(1), "r", 10, 1).is_none(), "not listed");
    orders.apply_instructions(instructions([1]), now);
    assert!(orders.begin(id(1), "r", 10, 1).is_some());
    assert!(orders.begin(id(1), "r", 10, 2).is_none(), "fetched twice");
    assert!(orders.apply_instructions(instructions([1]), now).fetch.is_empty());
    orders.stop();
    assert!(orders.apply_instructions(instructions([1, 2]), now).fetch.is_empty());
    assert!(orders.begin(id(2), "r", 10, 1).is_none(), "it shuts down");
}

#[test]
fn withdrawn_order_never_begins_again() {
    let now = Instant::now();
    let mut orders = one_order(now);
    let effects = orders.apply_instructions(instructions([]), now);
    assert_eq!((effects.withdrawn, orders.take_urgent()), (vec![id(1)], true));
    assert_eq!(orders.get(id(1)).unwrap().state(), OrderState::Stopping { is_running: true });
    // A repetition of the instruction, then one that arrives late.
    assert!(orders.apply_instructions(instructions([]), now).withdrawn.is_empty());
    assert!(orders.apply_instructions(instructions([1]), now).fetch.is_empty());
    orders.get_mut(id(1)).unwrap().end(Some(withdrawn_fault()));
    let ended = report(&mut orders).remove(0);
    assert_eq!(ended.fault.as_ref().unwrap().kind, FaultKind::Transient, "listed again");
    orders.apply_instructions(instructions([]), now);
    let later = now + 2 * WITHDRAWN_REPORT_TIME;
    orders.apply_instructions(instructions([]), later);
    assert!(orders.get(id(1)).is_none());
    assert!(orders.apply_instructions(instructions([1]), later).fetch.is_empty());
    let ended = report(&mut orders).remove(0);
    assert_eq!(
        (ended.phase, ended.fault.unwrap().text),
        (OrderPhase::Ended, WITHDRAWN_BEFORE.to_owned())
    );
}

#[test]
fn ticket_from_before_restart_is_reported() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    orders.note_admitted(id(1));
    orders.note_admitted(id(2));
    let named = |orders: &mut AgentOrders| -> Vec<_> {
        report(orders).iter().map(|one| (one.order, one.phase)).collect()
    };
    let both = vec![(id(1), OrderPhase::Waiting), (id(2), OrderPhase::Waiting)];
    assert_eq!(named(&mut orders), both, "the controller has not answered");
    orders.apply_instructions(instructions([1]), now);
    orders.note_withdrawn(id(2));
    assert_eq!(named(&mut orders), both[..1]);
    orders.begin(id(1), "r", 10, 1).expect("it is listed").start();
    assert_eq!(named(&mut orders), [(id(1), OrderPhase::Running)]);
}

#[test]
fn lost_report_is_repeated() {
    let now = Instant::now();
    let mut orders = one_order(now);
    let order = orders.get_mut(id(1)).unwrap();
    (0..3).for_each(|file| order.outcomes.push(outcome(file)));
    order.end(None);
    let first = report(&mut orders);
    assert_eq!(report(&mut orders), first, "no answer, no change");
    let acknowledged = acknowledge_all(&first[0]);
    assert_eq!((acknowledged.outcomes, acknowledged.end), (3, true));
    let effects = orders.apply_instructions(acknowledging([1], vec![acknowledged.clone()]), now);
    assert_eq!(effects.ends, [id(1)]);
    assert_eq!(report(&mut orders)[0].outcomes, []);
    // It stays while it is listed, and an acknowledgement that arrives again changes nothing.
    orders.apply_instructions(acknowledging([1], vec![acknowledged]), now);
    assert_eq!(orders.get(id(1)).unwrap().state(), OrderState::EndAcknowledged);
    orders.apply_instructions(instructions([]), now);
    assert!(orders.get(id(1)).is_none());
}

#[test]
fn acknowledgement_of_other_run_is_ignored() {
    let now = Instant::now();
    let mut orders = one_order(now);
    let order = orders.get_mut(id(1)).unwrap();
    order.outcomes.push(outcome(0));
    order.end(None);
    let mut acknowledged = acknowledge_all(&report(&mut orders)[0]);
    acknowledged.run += 1;
    orders.apply_instructions(acknowledging([1], vec![acknowledged]), now);
    assert_eq!(orders.get(id(1)).unwrap().state(), OrderState::Ended);
    assert_eq!(report(&mut orders)[0].outcomes.len(), 1);
}

#[test]
fn running_order_ignores_acknowledged_end() {
    let now = Instant::now();
    let mut orders = one_order(now);
    let mut acknowledged = acknowledge_all(&report(&mut orders)[0]);
    acknowledged.end = true;
    let effects = orders.apply_instructions(acknowledging([1], vec![acknowledged]), now);
    assert!(effects.ends.is_empty());
    assert_eq!(orders.get(id(1)).unwrap().state(), OrderState::Running);
}

#[test]
fn end_waits_for_last_outcome() {
    let now = Instant::now();
    let mut orders = one_order(now);
    let order = orders.get_mut(id(1)).unwrap();
    (0..=OUTCOMES_MAX as u32).for_each(|file| order.outcomes.push(outcome(file)));
    order.end(None);
    let first = report(&mut orders).remove(0);
    assert_eq!((first.phase, first.outcomes.len()), (OrderPhase::Running, OUTCOMES_MAX));
    orders.apply_instructions(acknowledging([1], vec![acknowledge_all(&first)]), now);
    let last = report(&mut orders).remove(0);
    assert_eq!((last.phase, last.outcomes_from), (OrderPhase::Ended, OUTCOMES_MAX as u64));
}

#[test]
fn end_waits_for_last_entry() {
    let now = Instant::now();
    let mut orders = one_order(now);
    orders.get_mut(id(1)).unwrap().end(None);
    let all: Vec<ListedFile> =
        (0..ENTRIES_MAX + 1).map(|n| ListedFile { path: n.to_string(), bytes: 1 }).collect();
    let mut from = 0;
    let report_from = |orders: &mut AgentOrders, from: usize| {
        let progress = |_, fits: &mut dyn FnMut(&ListedFile) -> bool| WorkProgress {
            entries_from: from as u64,
            entries: all[from..].iter().take_while(|entry| fits(entry)).cloned().collect(),
            entries_pending: all.len() - from,
            ..WorkProgress::default()
        };
        orders.report(&mut { progress }).remove(0)
    };
    let first = report_from(&mut orders, from);
    assert_eq!((first.phase, first.entries.len()), (OrderPhase::Running, ENTRIES_MAX));
    let effects = orders.apply_instructions(acknowledging([1], vec![acknowledge_all(&first)]), now);
    assert_eq!(effects.entries, [(id(1), ENTRIES_MAX as u64)]);
    from = ENTRIES_MAX;
    assert_eq!(report_from(&mut orders, from).phase, OrderPhase::Ended);
}

#[test]
fn truncated_order_is_next_first() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    orders.apply_instructions(instructions([1, 2]), now);
    let (many, rest) = (OUTCOMES_MAX / 5 * 3, OUTCOMES_MAX / 5 * 2);
    for number in [1, 2] {
        let order = orders.begin(id(number), "r", 10, number << 20).unwrap();
        (0..many as u32).for_each(|file| order.outcomes.push(outcome(file)));
    }
    let counts = |orders: &mut AgentOrders| -> Vec<usize> {
        report(orders).iter().map(|report| report.outcomes.len()).collect()
    };
    assert_eq!(counts(&mut orders), [many, rest]);
    assert_eq!(counts(&mut orders), [rest, many]);
}

#[test]
fn expired_lease_limits_rate() {
    let now = Instant::now();
    let mut orders = one_order(now);
    let rate = |orders: &AgentOrders| orders.settings(id(1), SAFE_RATE_BPS).rate_bps;
    assert!(!orders.expire_lease(now + Duration::from_secs(30)));
    assert_eq!(rate(&orders), Some(10 * SAFE_RATE_BPS));
    assert!(orders.expire_lease(now + Duration::from_secs(31)) && orders.is_lease_expired());
    assert_eq!(rate(&orders), Some(SAFE_RATE_BPS));
    // A rate below the safe one stays, and no rate becomes the safe one.
    orders.listed.get_mut(&id(1)).unwrap().rate_bps = Some(1);
    assert_eq!(rate(&orders), Some(1));
    orders.listed.get_mut(&id(1)).unwrap().rate_bps = None;
    assert_eq!(rate(&orders), Some(SAFE_RATE_BPS));
    orders.apply_instructions(instructions([1]), now + Duration::from_secs(40));
    assert_eq!(rate(&orders), Some(10 * SAFE_RATE_BPS));
}

#[test]
fn full_agent_fetches_no_order() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    let many = 0..EXECUTIONS_MAX as u64 + 10;
    let fetch = orders.apply_instructions(instructions(many.clone()), now).fetch;
    assert_eq!(fetch.len(), EXECUTIONS_MAX);
    for order in fetch {
        orders.begin(order, "r", 10, order.number() << 20).unwrap();
    }
    assert!(orders.apply_instructions(instructions(many.clone()), now).fetch.is_empty());
    let waiting = report(&mut orders).pop().unwrap().waiting;
    assert_eq!(waiting.as_deref(), Some("the node executes 256 other orders"));

    let mut orders = AgentOrders::new(now);
    orders.apply_instructions(instructions([0]), now);
    orders.begin(id(0), "r", EXECUTION_BYTES_MAX, 1).unwrap();
    assert!(orders.apply_instructions(instructions(many), now).fetch.is_empty(), "no memory");
}

#[test]
fn long_instruction_is_cut() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    orders.apply_instructions(instructions(0..LISTED_ORDERS_MAX as u64 + 1), now);
    assert_eq!(orders.counts().listed, LISTED_ORDERS_MAX);
}

#[test]
fn last_report_keeps_stopped_orders() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    orders.apply_instructions(instructions([1, 2, 3]), now);
    for number in 1..=3 {
        orders.begin(id(number), "r", 10, number << 20).unwrap().start();
    }
    orders.apply_instructions(instructions([1, 2]), now);
    orders.stop();
    let cancelled = || Some(OrderFault { kind: FaultKind::Cancelled, text: "stopped".to_owned() });
    orders.get_mut(id(1)).unwrap().end(cancelled());
    orders.get_mut(id(2)).unwrap().end(None);
    orders.get_mut(id(3)).unwrap().end(cancelled());
    let reports = orders.last_report(&mut |_, _| WorkProgress::default());
    let phases: Vec<OrderPhase> = reports.iter().map(|report| report.phase).collect();
    assert_eq!(phases, [OrderPhase::Waiting, OrderPhase::Ended, OrderPhase::Ended]);
    assert_eq!(reports[0].waiting.as_deref(), Some(SHUTDOWN_REASON));
}

#[test]
fn counts_omit_acknowledged_ends() {
    let now = Instant::now();
    let mut orders = AgentOrders::new(now);
    orders.apply_instructions(instructions(0..4), now);
    for number in 0..4 {
        orders.begin(id(number), "r", 10, number << 20).unwrap();
    }
    orders.get_mut(id(1)).unwrap().start();
    orders.get_mut(id(2)).unwrap().end(None);
    orders.get_mut(id(3)).unwrap().end(None);
    orders.get_mut(id(1)).unwrap().outcomes.push(outcome(0));
    let ended = acknowledge_all(&report(&mut orders)[3]);
    orders.apply_instructions(acknowledging(0..4, vec![ended]), now);
    let expected = OrderCounts { listed: 4, waiting: 1, running: 1, ended: 1, unacknowledged: 1 };
    assert_eq!(orders.counts(), expected);
}

/// Orders of the property test.
const ORDER_COUNT: u64 = 4;

/// Files of each order.
const FILES_PER_ORDER: u32 = 3;

/// A step of the network, the controller or the work of an order.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// The agent sends a report, which the network may lose or keep for later.
    Report,
    /// The controller receives one of the reports under way, and the report stays under way: it may arrive again.
    Deliver(usize),
    /// The agent receives one of the instructions under way, which stays under way.
    Answer(usize),
    /// The agent fetches and begins what it may.
    Begin,
    /// The transfer of an order connects, fails, settles a file or ends.
    Start(u64),
    Pause(u64),
    Settle(u64),
    End(u64),
    /// The controller withdraws an order.
    Withdraw(u64),
    /// Time passes, in seconds.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let order = 0..ORDER_COUNT;
    let step = prop_oneof![
        4 => Just(Step::Report),
        4 => (0..8_usize).prop_map(Step::Deliver),
        4 => (0..8_usize).prop_map(Step::Answer),
        3 => Just(Step::Begin),
        2 => order.clone().prop_map(Step::Start),
        1 => order.clone().prop_map(Step::Pause),
        4 => order.clone().prop_map(Step::Settle),
        2 => order.clone().prop_map(Step::End),
        1 => order.prop_map(Step::Withdraw),
        2 => (0..40_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..200)
}

/// A controller that counts outcomes as `Instructions` promise, and the messages under way.
#[derive(Debug, Default)]
struct ModelController {
    withdrawn: BTreeSet<u64>,
    /// Outcomes by order and run, in the order of their numbers.
    outcomes: BTreeMap<(OrderId, u64), Vec<u32>>,
    ended: BTreeSet<OrderId>,
    reports: Vec<Vec<OrderReport>>,
    answers: Vec<Instructions>,
}

impl ModelController {
    fn receive(&mut self, reports: &[OrderReport]) -> Result<Instructions, TestCaseError> {
        let mut acknowledged = Vec::new();
        for report in reports {
            let known = self.outcomes.entry((report.order, report.run)).or_default();
            let from = report.outcomes_from as usize;
            prop_assert!(from <= known.len(), "outcomes before {from} were never reported");
            for (number, outcome) in (from..).zip(&report.outcomes) {
                match known.get(number) {
                    Some(file) => prop_assert_eq!(*file, outcome.file, "another under its number"),
                    None => known.push(outcome.file),
                }
            }
            let outcomes = known.len() as u64;
            let end = report.phase == OrderPhase::Ended;
            if end {
                self.ended.insert(report.order);
            }
            acknowledged.push(Acknowledged {
                order: report.order,
                run: report.run,
                outcomes,
                entries: 0,
                end,
            });
        }
        let is_active =
            |number: &u64| !self.withdrawn.contains(number) && !self.ended.contains(&id(*number));
        Ok(acknowledging((0..ORDER_COUNT).filter(is_active), acknowledged))
    }
}

/// Settled files and starts of an order that the agent executes.
#[derive(Debug, Default)]
struct ModelWork {
    settled: u32,
    begun: u32,
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn invariants_survive_any_network(steps in steps()) {
        let start = Instant::now();
        let mut now = start;
        let mut last_answer = start;
        let mut lease = RATE_LEASE_MIN;
        let mut orders = AgentOrders::new(now);
        let mut controller = ModelController::default();
        controller.answers.push(instructions(0..ORDER_COUNT));
        let mut works: BTreeMap<u64, ModelWork> = BTreeMap::new();
        let mut fetched: Vec<OrderId> = Vec::new();
        let mut delisted: BTreeMap<OrderId, Instant> = BTreeMap::new();
        let mut expired: BTreeSet<OrderId> = BTreeSet::new();
        for step in steps {
            let before: BTreeMap<OrderId, OrderState> =
                orders.orders.iter().map(|(id, order)| (*id, order.state())).collect();
            match step {
                Step::Report => controller.reports.push(report(&mut orders)),
                Step::Deliver(at) => {
                    if let Some(report) = controller.reports.get(at).cloned() {
                        let answer = controller.receive(&report)?;
                        controller.answers.push(answer);
                    }
                }
                Step::Answer(at) => {
                    // The newest ones first, so that the exchange goes on; old ones arrive late.
                    let newest = controller.answers.len().checked_sub(1 + at);
                    let Some(answer) = newest.map(|at| controller.answers[at].clone()) else { continue };
                    let listed: BTreeSet<OrderId> = answer.orders.iter().map(|one| one.order).collect();
                    fetched = orders.apply_instructions(answer, now).fetch;
                    for id in before.keys().filter(|id| !listed.contains(id)) {
                        delisted.entry(*id).or_insert(now);
                    }
                    (last_answer, lease) = (now, Duration::from_secs(30));
                    prop_assert!(fetched.iter().all(|id| !delisted.contains_key(id)), "{fetched:?}");
                }
                Step::Begin => {
                    for order in std::mem::take(&mut fetched) {
                        let random = (order.number() + 1) << 20;
                        if orders.begin(order, "r", 1, random).is_some() {
                            prop_assert!(!delisted.contains_key(&order), "{order} was withdrawn");
                            works.entry(order.number()).or_default().begun += 1;
                        }
                    }
                }
                Step::Start(number) => orders.get_mut(id(number)).into_iter().for_each(AgentOrder::start),
                Step::Pause(number) => {
                    orders.get_mut(id(number)).into_iter().for_each(|one| one.pause("away".to_owned()));
                }
                Step::Settle(number) => {
                    let work = works.entry(number).or_default();
                    if let Some(order) = orders.get_mut(id(number))
                        && work.settled < FILES_PER_ORDER
                        && !order.state().is_ended()
                    {
                        order.outcomes.push(outcome(work.settled));
                        work.settled += 1;
                    }
                }
                Step::End(number) => {
                    orders.get_mut(id(number)).into_iter().for_each(|one| one.end(None));
                }
                Step::Withdraw(number) => {
                    controller.withdrawn.insert(number);
                }
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
            }
            orders.expire_lease(now);
            prop_assert_eq!(orders.is_lease_expired(), now - last_answer > lease);
            for number in 0..ORDER_COUNT {
                let rate = orders.settings(id(number), SAFE_RATE_BPS).rate_bps;
                let is_safe = rate.is_some_and(|rate| rate <= SAFE_RATE_BPS);
                prop_assert!(is_safe || !orders.is_lease_expired(), "{rate:?}");
            }
            for (id, state) in before {
                let Some(order) = orders.get(id) else {
                    let is_silent = delisted.get(&id).is_some_and(|at| now - *at > WITHDRAWN_REPORT_TIME);
                    let may_vanish = state.is_ended() && is_silent;
                    let is_known = controller.ended.contains(&id);
                    prop_assert!(may_vanish || is_known, "{id} vanished while it was {state:?}");
                    expired.extend((!is_known).then_some(id));
                    continue;
                };
                let is_kept = order.state().is_ended() || !state.is_ended();
                prop_assert!(is_kept, "{id} was {state:?} and is {:?}", order.state());
                let is_stopping = matches!(state, OrderState::Stopping { .. });
                let stops = matches!(order.state(), OrderState::Stopping { .. } | OrderState::Ended);
                prop_assert!(!is_stopping || stops, "{id} was withdrawn and is {:?}", order.state());
                if order.state() == OrderState::EndAcknowledged {
                    prop_assert!(controller.ended.contains(&id), "the controller knows no end of {id}");
                }
            }
        }
        for (number, work) in &works {
            prop_assert!(work.begun <= 1, "{number} began {} times", work.begun);
        }
        // Messages arrive again: the controller has each outcome once, and in its order.
        for _ in 0..3 {
            let answer = controller.receive(&report(&mut orders))?;
            orders.apply_instructions(answer, now);
        }
        prop_assert_eq!(orders.counts().unacknowledged, 0);
        for ((order, run), files) in &controller.outcomes {
            let settled = works.get(&order.number()).map_or(0, |work| work.settled);
            let expected: Vec<u32> = if *run == 0 { Vec::new() } else { (0..settled).collect() };
            // Of an order that was withdrawn and whose reports were lost for long the controller has the first ones.
            match expired.contains(order) {
                true => prop_assert!(expected.starts_with(files), "order {}", order),
                false => prop_assert_eq!(files, &expected, "order {}", order),
            }
        }
    }
}
