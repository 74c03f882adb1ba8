//! Changed settings of running orders: rate, streams, path; and the safe rate while the controller is away.

use std::fs;
use std::time::{Duration, Instant};

use penstock_control::orders::{
    AddressPair, FaultKind, OrderPhase, OrderReport, OrderSettings, OrderTask, OrderTransport,
    Send, TuningMode,
};
use penstock_testkit::http::TestRequest;

use crate::common::{FaultProxy, parts, seeded, wait_until, write_file};
use crate::controller::Controller;
use crate::node::Node;

const TICKET: &str = "a-ticket-nobody-guesses";
const ORDER_TIMEOUT: Duration = Duration::from_secs(120);

/// Two nodes, and an order to send a file of `mib` MiB from a to b.
fn one_file(controller: &Controller, mib: usize, rate_bps: u64) -> (Node, Node, Send) {
    let mut random = seeded(7_100);
    let (a, b) = (Node::start(controller, "a"), Node::start(controller, "b"));
    write_file(&mut random, &a.path("file"), mib << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send.clone())), at(rate_bps));
    (a, b, send)
}

fn at(rate_bps: u64) -> OrderSettings {
    OrderSettings { rate_bps: Some(rate_bps), ..OrderSettings::default() }
}

/// Waits until the report of order 2 satisfies `is`.
fn when(controller: &Controller, what: &str, is: impl Fn(&OrderReport) -> bool) -> OrderReport {
    controller.await_host(what, "a", |host| host.last.get(&2).filter(|last| is(last)).cloned())
}

/// Received bytes of a node by its own counters.
fn received(node: &Node) -> u64 {
    let transfers = node.agent.transfers(&node.state);
    transfers.iter().map(|one| one["moved_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn rate_and_streams_change_during_transfer() {
    let controller = Controller::start();
    let (a, b, _) = one_file(&controller, 60, 8_000_000);
    when(&controller, "the first rate", |last| {
        last.rate_bps == Some(8_000_000) && last.streams > 0
    });
    wait_until("the first bytes", ORDER_TIMEOUT, || (received(&b) > 1 << 20).then_some(()));
    // At most 1 MB/s by the destination's counter.
    let (before, begun) = (received(&b), Instant::now());
    wait_until("more of it", ORDER_TIMEOUT, || (received(&b) >= before + (3 << 20)).then_some(()));
    let seconds = begun.elapsed().as_secs_f64();
    let rate = (received(&b) - before) as f64 * 8.0 / seconds;
    assert!(rate < 8_000_000.0 * 1.5 + 8.0 * 4e6 / seconds, "{rate} bit/s");

    let settings =
        OrderSettings { rate_bps: Some(0), streams: Some(5), ..OrderSettings::default() };
    controller.set("a", 2, settings);
    when(&controller, "five streams and no rate", |last| {
        last.streams == 5 && last.bits_per_second == 0
    });
    assert!(!b.path("in/file").exists());
    controller.set("a", 2, OrderSettings { streams: Some(1), ..at(16_000_000) });
    when(&controller, "one stream", |last| last.streams == 1 && last.bits_per_second > 1_000_000);
    // Resumes at once from rate 0.
    controller.set("a", 2, OrderSettings::default());
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
}

#[test]
fn reports_have_rates_of_earlier_transfers() {
    let mut random = seeded(7_110);
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    let names = ["f0", "f1", "f2", "f3", "f4", "f5"];
    names.iter().for_each(|name| write_file(&mut random, &a.path(name), 4 << 20));
    write_file(&mut random, &a.path("large"), 12 << 20);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    for (number, name) in names.iter().enumerate() {
        let order = 2 + number as u64 * 2;
        let send = OrderTask::Send(Box::new(b.files_to("/data/in", TICKET, &[name])));
        controller.order("a", order, send, OrderSettings::default());
        let ended = controller.await_end("a", order);
        assert_eq!(ended.fault, None);
        assert!(number > 4 || ended.path_forecast.is_none(), "{number} before are too few");
    }
    // Slow enough to be reported while it runs.
    let send = OrderTask::Send(Box::new(b.files_to("/data/in", TICKET, &["large"])));
    controller.order("a", 20, send, at(8_000_000));
    let forecast = controller.await_host("a forecast", "a", |host| {
        host.last.get(&20).and_then(|last| last.path_forecast)
    });
    // The last one may not be in the history yet.
    assert!((5..=6).contains(&forecast.transfers), "{forecast:?}");
    assert!(forecast.p10_bps > 8_000_000, "it is the rate without the limit: {forecast:?}");
    assert!(forecast.p10_bps <= forecast.p50_bps && forecast.p50_bps <= forecast.p90_bps);
}

#[test]
fn expired_lease_lowers_to_safe_rate() {
    let mut random = seeded(7_101);
    let controller = Controller::start();
    let a = Node::start_at(&controller, "a", "127.0.0.1:0", "safe_rate = \"20M\"");
    let b = Node::start(&controller, "b");
    write_file(&mut random, &a.path("file"), 40 << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send)), at(60_000_000));
    when(&controller, "it runs", |last| last.phase == OrderPhase::Running && last.moved_bytes > 0);
    controller.set_away(true);
    let mine = || a.agent.transfers(&a.state).into_iter().find(|one| one["direction"] == "send");
    wait_until("the safe rate", ORDER_TIMEOUT, || {
        mine().filter(|one| one["rate_bps"] == 20_000_000)
    });
    wait_until("its end", ORDER_TIMEOUT, || mine().filter(|one| one["state"] == "done"));
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    // The agent reports the outcome when the controller is back.
    controller.set_away(false);
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert!(!controller.outcomes("a", 2)[&0].was_there);
}

#[test]
fn order_states_its_transport() {
    let controller = Controller::start();
    let a = Node::start_at(&controller, "a", "127.0.0.1:0", "transport = \"auto\"");
    let b = Node::start(&controller, "b");
    write_file(&mut seeded(7_111), &a.path("file"), 1 << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send)), OrderSettings::default());
    let ended = controller.await_end("a", 2);
    assert_eq!((ended.fault, ended.transport.as_str()), (None, "tcp"));
    assert!(ended.transport_reason.contains("RDMA"), "{}", ended.transport_reason);
    let sent = wait_until("it is listed", ORDER_TIMEOUT, || {
        a.agent.transfers(&a.state).into_iter().find(|one| one["state"] == "done")
    });
    // Loopback has no RDMA device.
    assert_eq!(sent["transport"], "tcp", "{sent}");
    assert!(sent["transport_reason"].as_str().is_some_and(|why| why.contains("RDMA")), "{sent}");
}

#[test]
fn order_overrides_transport_of_agent() {
    let controller = Controller::start();
    let a = Node::start_at(&controller, "a", "127.0.0.1:0", "transport = \"auto\"");
    let b = Node::start(&controller, "b");
    write_file(&mut seeded(7_112), &a.path("file"), 1 << 20);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    let end_of = |order: u64, transport| {
        let transport = Some(transport);
        let send = Send { transport, ..b.files_to("/data/in", TICKET, &["file"]) };
        controller.order("a", order, OrderTask::Send(Box::new(send)), OrderSettings::default());
        controller.await_end("a", order)
    };
    // Loopback has no RDMA device.
    let required = end_of(2, OrderTransport::Rdma).fault.expect("it fails");
    assert!(required.text.contains("RDMA"), "{}", required.text);
    let by_tcp = end_of(4, OrderTransport::Tcp);
    assert_eq!((by_tcp.fault, by_tcp.transport.as_str()), (None, "tcp"));
    assert_eq!(by_tcp.transport_reason, "");
}

#[test]
fn next_order_resumes_withdrawn_order() {
    let controller = Controller::start();
    let (a, b, mut send) = one_file(&controller, 40, 1_000_000_000);
    controller.withdraw("a", 2);
    send.batch = Some("batch 9".into());
    controller.order("a", 3, OrderTask::Send(Box::new(send.clone())), at(40_000_000));
    controller.await_host("bytes", "a", |host| {
        host.last.get(&3).filter(|last| last.moved_bytes > 8 << 20).map(|_| ())
    });
    controller.withdraw("a", 3);
    let fault = controller.await_end("a", 3).fault.unwrap();
    assert_eq!(fault.kind, FaultKind::Cancelled, "{fault:?}");
    if !b.path("in/file").exists() {
        assert_eq!(parts(&b.data).len(), 1);
    }
    controller.order("a", 4, OrderTask::Send(Box::new(send)), OrderSettings::default());
    let ended = controller.await_end("a", 4);
    assert_eq!(ended.fault, None);
    assert!(ended.moved_bytes < 36 << 20, "{} bytes were sent again", ended.moved_bytes);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    assert_eq!(parts(&b.data).len(), 0);
}

/// Two paths to b beside its own address: proxies at other loopback addresses, on the same port.
fn ways(b: &Node) -> [FaultProxy; 2] {
    let port = b.agent.listen.rsplit(':').next().unwrap();
    ["127.0.0.2", "127.0.0.3"].map(|ip| FaultProxy::clean(&format!("{ip}:{port}"), &b.agent.listen))
}

/// Two nodes, a file of 48 MiB at a, and two paths to b. The order at b exists; the task for a names no path yet.
fn two_ways(controller: &Controller, seed: u64) -> (Node, Node, [FaultProxy; 2], Send) {
    let mut random = seeded(seed);
    let (a, b) = (Node::start(controller, "a"), Node::start(controller, "b"));
    let ways = ways(&b);
    write_file(&mut random, &a.path("file"), 48 << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    (a, b, ways, send)
}

fn over(ip: &str, rate_bps: u64) -> OrderSettings {
    let path = vec![AddressPair { from: "127.0.0.1".into(), to: ip.into() }];
    OrderSettings { path, streams: Some(4), ..at(rate_bps) }
}

#[test]
fn path_change_resends_few_blocks() {
    let controller = Controller::start();
    let (a, b, [one, other], mut send) = two_ways(&controller, 7_102);
    send.addresses.extend([one.address.to_string(), other.address.to_string()]);
    controller.order("a", 2, OrderTask::Send(Box::new(send)), over("127.0.0.2", 80_000_000));
    wait_until("bytes on the first", ORDER_TIMEOUT, || (one.passed() > 4 << 20).then_some(()));
    // Control may have used the other path before the choice; data never does.
    assert!(other.passed() < 1 << 20);
    controller.set("a", 2, over("127.0.0.3", 80_000_000));
    wait_until("bytes on the other", ORDER_TIMEOUT, || (other.passed() > 4 << 20).then_some(()));
    controller.set("a", 2, over("127.0.0.3", 400_000_000));
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert!(other.passed() > 16 << 20, "data goes on over the first path");
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    let moved = one.passed() + other.passed();
    // Each stream resends at most one block.
    assert!(moved < (48 << 20) + (5 << 20), "{moved} bytes for a file of {}", 48 << 20);
}

#[test]
fn slow_streams_leave_path_within_seconds() {
    let controller = Controller::start();
    let (a, b, [one, other], mut send) = two_ways(&controller, 7_104);
    send.addresses = vec![one.address.to_string(), other.address.to_string()];
    controller.order("a", 2, OrderTask::Send(Box::new(send)), over("127.0.0.2", 80_000_000));
    // Each stream has carried a block.
    wait_until("bytes on the first", ORDER_TIMEOUT, || (one.passed() > 16 << 20).then_some(()));
    controller.set("a", 2, over("127.0.0.2", 400_000));
    when(&controller, "the low rate", |last| {
        last.rate_bps == Some(400_000) && last.bits_per_second < 4_000_000
    });
    // The blocks in flight would take 84 s at this rate; no stream waits for the others.
    let begun = Instant::now();
    controller.set("a", 2, over("127.0.0.3", 400_000));
    wait_until("data on the other", ORDER_TIMEOUT, || (other.passed() > 200 << 10).then_some(()));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}");
    controller.set("a", 2, over("127.0.0.3", 400_000_000));
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
}

#[test]
fn dead_path_is_left_without_loss() {
    let controller = Controller::start();
    let (a, b, [one, other], mut send) = two_ways(&controller, 7_103);
    send.addresses = vec![one.address.to_string(), other.address.to_string()];
    controller.order("a", 2, OrderTask::Send(Box::new(send)), over("127.0.0.2", 40_000_000));
    wait_until("bytes on the first", ORDER_TIMEOUT, || (one.passed() > 4 << 20).then_some(()));
    one.freeze();
    controller.set("a", 2, over("127.0.0.3", 400_000_000));
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    assert!(other.passed() > 30 << 20);
}

/// Order 2 sends a file through a proxy that caps each connection at 8 Mb/s. Returns the greatest number of streams that a
/// reported until `is`.
fn streams_until(
    controller: &Controller,
    (mib, seed): (usize, u64),
    settings: OrderSettings,
    is: impl Fn(&OrderReport) -> bool,
) -> (u16, Node) {
    let (a, b) = (Node::start(controller, "a"), Node::start(controller, "b"));
    let proxy = FaultProxy::paced(&b.agent.listen, 1 << 20);
    write_file(&mut seeded(seed), &a.path("file"), mib << 20);
    let mut send = b.files_to("/data/in", TICKET, &["file"]);
    send.addresses =
        vec![proxy.url("").trim_start_matches("penstock://").trim_end_matches('/').into()];
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send)), settings);
    let most = std::cell::Cell::new(0);
    when(controller, "the end of it", |last| {
        most.set(most.get().max(last.streams));
        is(last)
    });
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    (most.get(), a)
}

#[test]
fn order_gets_streams_for_its_rate() {
    let controller = Controller::start();
    let (most, a) = streams_until(&controller, (96, 7_110), at(30_000_000), |last| {
        // What the send buffers take at the beginning is faster.
        last.streams >= 4 && last.bits_per_second > 26_000_000
    });
    // Four connections carry the rate.
    assert!((4..=8).contains(&most), "{most}");
    let sending = a.agent.transfers(&a.state).into_iter().find(|one| one["direction"] == "send");
    assert_eq!(sending.unwrap()["moved_bytes"], 96 << 20);
}

#[test]
fn order_bounds_tuned_streams() {
    let controller = Controller::start();
    let settings = OrderSettings { streams: Some(3), ..OrderSettings::default() };
    let (most, _) =
        streams_until(&controller, (48, 7_111), settings, |last| last.moved_bytes > 40 << 20);
    assert_eq!(most, 3);
}

#[test]
fn order_switches_tuner_off() {
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    write_file(&mut seeded(7_112), &a.path("file"), 1 << 20);
    let send = Send { tune: Some(TuningMode::Off), ..b.files_to("/data/in", TICKET, &["file"]) };
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send)), OrderSettings::default());
    assert_eq!(controller.await_end("a", 2).fault, None);
    let sending = a.agent.transfers(&a.state).into_iter().find(|one| one["direction"] == "send");
    let path = format!("/api/v1/transfers/{}/tuning", sending.unwrap()["id"]);
    let token = fs::read_to_string(a.state.join("token")).unwrap();
    let answer = TestRequest::new(&a.agent.http, "GET", &path).token(token.trim()).send();
    assert_eq!(answer.json()["ended"], "its request switches the tuner off");
}
