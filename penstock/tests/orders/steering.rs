//! Orders whose settings change while they run: rate, streams, path; and what holds while the controller is away.

use std::fs;
use std::time::{Duration, Instant};

use penstock_operations::orders::{
    AddressPair, FaultKind, OrderReport, Phase, Send, Settings, Task,
};

use crate::common::proxy::Proxy;
use crate::common::{Random, parts, until, write_file};
use crate::controller::Controller;
use crate::node::Node;

const TICKET: &str = "a-ticket-nobody-guesses";
const LONG: Duration = Duration::from_secs(120);

/// Two nodes and one file of so many MiB, ordered from a to b at a rate.
fn one_file(controller: &Controller, mib: usize, rate_bps: u64) -> (Node, Node, Send) {
    let mut random = Random::seeded(7_100);
    let (a, b) = (Node::start(controller, "a"), Node::start(controller, "b"));
    write_file(&mut random, &a.path("file"), mib << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), Settings::default());
    controller.order("a", 2, Task::Send(Box::new(send.clone())), at(rate_bps));
    (a, b, send)
}

fn at(rate_bps: u64) -> Settings {
    Settings { rate_bps: Some(rate_bps), ..Settings::default() }
}

/// What order 2 says, once it is so.
fn when(controller: &Controller, what: &str, is: impl Fn(&OrderReport) -> bool) -> OrderReport {
    controller.await_host(what, "a", |host| host.last.get(&2).filter(|last| is(last)).cloned())
}

/// Bytes that arrived at a node, by its own counters.
fn received(node: &Node) -> u64 {
    let transfers = node.agent.transfers(&node.state);
    transfers.iter().map(|one| one["moved_bytes"].as_u64().unwrap()).sum()
}

#[test]
fn rate_and_streams_change_while_it_runs() {
    let controller = Controller::start();
    let (a, b, _) = one_file(&controller, 60, 8_000_000);
    when(&controller, "the first rate", |last| {
        last.rate_bps == Some(8_000_000) && last.streams > 0
    });
    until("the first bytes", LONG, || (received(&b) > 1 << 20).then_some(()));
    // 1 MB/s, by the destination's count, whatever the machine does: never faster.
    let (before, begun) = (received(&b), Instant::now());
    until("more of it", LONG, || (received(&b) >= before + (3 << 20)).then_some(()));
    let seconds = begun.elapsed().as_secs_f64();
    let rate = (received(&b) - before) as f64 * 8.0 / seconds;
    assert!(rate < 8_000_000.0 * 1.5 + 8.0 * 4e6 / seconds, "{rate} bit/s");

    let settings = Settings { rate_bps: Some(0), streams: Some(5), ..Settings::default() };
    controller.set("a", 2, settings);
    when(&controller, "five streams and no rate", |last| {
        last.streams == 5 && last.bits_per_second == 0
    });
    assert!(!b.path("in/file").exists());
    controller.set("a", 2, Settings { streams: Some(1), ..at(16_000_000) });
    when(&controller, "one stream", |last| last.streams == 1 && last.bits_per_second > 1_000_000);
    // At once, though it was stopped altogether.
    controller.set("a", 2, Settings::default());
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
}

#[test]
fn without_its_controller_a_transfer_falls_to_the_safe_rate_and_goes_on() {
    let mut random = Random::seeded(7_101);
    let controller = Controller::start();
    let a = Node::start_at(&controller, "a", "127.0.0.1:0", "safe_rate = \"20M\"");
    let b = Node::start(&controller, "b");
    write_file(&mut random, &a.path("file"), 40 << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), Settings::default());
    controller.order("a", 2, Task::Send(Box::new(send)), at(60_000_000));
    when(&controller, "it runs", |last| last.phase == Phase::Running && last.moved_bytes > 0);
    controller.set_away(true);
    let mine = || a.agent.transfers(&a.state).into_iter().find(|one| one["direction"] == "send");
    until("the safe rate", LONG, || mine().filter(|one| one["rate_bps"] == 20_000_000));
    until("its end", LONG, || mine().filter(|one| one["state"] == "done"));
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    // What became of it is told when the controller is back.
    controller.set_away(false);
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert!(!controller.outcomes("a", 2)[&0].was_there);
}

#[test]
fn an_order_that_is_withdrawn_ends_and_another_takes_up_what_it_left() {
    let controller = Controller::start();
    let (a, b, mut send) = one_file(&controller, 40, 1_000_000_000);
    controller.withdraw("a", 2);
    send.batch = Some("batch 9".into());
    controller.order("a", 3, Task::Send(Box::new(send.clone())), at(40_000_000));
    controller.await_host("bytes", "a", |host| {
        host.last.get(&3).filter(|last| last.moved_bytes > 8 << 20).map(|_| ())
    });
    controller.withdraw("a", 3);
    let fault = controller.await_end("a", 3).fault.unwrap();
    assert_eq!(fault.kind, FaultKind::Cancelled, "{fault:?}");
    if !b.path("in/file").exists() {
        assert_eq!(parts(&b.data).len(), 1);
    }
    controller.order("a", 4, Task::Send(Box::new(send)), Settings::default());
    let ended = controller.await_end("a", 4);
    assert_eq!(ended.fault, None);
    assert!(ended.moved_bytes < 36 << 20, "{} bytes were sent again", ended.moved_bytes);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    assert_eq!(parts(&b.data).len(), 0);
}

/// Two ways to b beside its own address: proxies at other addresses of loopback, on the same port.
fn ways(b: &Node) -> [Proxy; 2] {
    let port = b.agent.listen.rsplit(':').next().unwrap();
    ["127.0.0.2", "127.0.0.3"].map(|ip| Proxy::clean(&format!("{ip}:{port}"), &b.agent.listen))
}

/// Two nodes, a file of 48 MiB at a, both ways to b; b awaits it, and what a is to send names no way yet.
fn two_ways(controller: &Controller, seed: u64) -> (Node, Node, [Proxy; 2], Send) {
    let mut random = Random::seeded(seed);
    let (a, b) = (Node::start(controller, "a"), Node::start(controller, "b"));
    let ways = ways(&b);
    write_file(&mut random, &a.path("file"), 48 << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), Settings::default());
    (a, b, ways, send)
}

fn over(ip: &str, rate_bps: u64) -> Settings {
    let path = vec![AddressPair { from: "127.0.0.1".into(), to: ip.into() }];
    Settings { path, streams: Some(4), ..at(rate_bps) }
}

#[test]
fn streams_move_to_another_path_and_hardly_anything_is_sent_twice() {
    let controller = Controller::start();
    let (a, b, [one, other], mut send) = two_ways(&controller, 7_102);
    send.addresses.extend([one.address.to_string(), other.address.to_string()]);
    controller.order("a", 2, Task::Send(Box::new(send)), over("127.0.0.2", 80_000_000));
    until("bytes on the first", LONG, || (one.passed() > 4 << 20).then_some(()));
    // The control connection may have been elsewhere before the path was chosen; data never is.
    assert!(other.passed() < 1 << 20);
    controller.set("a", 2, over("127.0.0.3", 80_000_000));
    until("bytes on the other", LONG, || (other.passed() > 4 << 20).then_some(()));
    controller.set("a", 2, over("127.0.0.3", 400_000_000));
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert!(other.passed() > 16 << 20, "data goes on over the first path");
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    let moved = one.passed() + other.passed();
    // A block of each stream at most, on a machine that is too slow for its rate.
    assert!(moved < (48 << 20) + (5 << 20), "{moved} bytes for a file of {}", 48 << 20);
}

#[test]
fn slow_streams_leave_a_path_within_seconds() {
    let controller = Controller::start();
    let (a, b, [one, other], mut send) = two_ways(&controller, 7_104);
    send.addresses = vec![one.address.to_string(), other.address.to_string()];
    controller.order("a", 2, Task::Send(Box::new(send)), over("127.0.0.2", 80_000_000));
    // Each has carried a block.
    until("bytes on the first", LONG, || (one.passed() > 16 << 20).then_some(()));
    controller.set("a", 2, over("127.0.0.2", 400_000));
    when(&controller, "the low rate", |last| {
        last.rate_bps == Some(400_000) && last.bits_per_second < 4_000_000
    });
    // What a stream carries would take it 84 seconds, and no stream waits for all others.
    let begun = Instant::now();
    controller.set("a", 2, over("127.0.0.3", 400_000));
    until("data on the other", LONG, || (other.passed() > 200 << 10).then_some(()));
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(45), "{took:?}");
    controller.set("a", 2, over("127.0.0.3", 400_000_000));
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
}

#[test]
fn a_path_that_died_is_left_at_once_and_no_byte_is_lost() {
    let controller = Controller::start();
    let (a, b, [one, other], mut send) = two_ways(&controller, 7_103);
    send.addresses = vec![one.address.to_string(), other.address.to_string()];
    controller.order("a", 2, Task::Send(Box::new(send)), over("127.0.0.2", 40_000_000));
    until("bytes on the first", LONG, || (one.passed() > 4 << 20).then_some(()));
    one.freeze();
    controller.set("a", 2, over("127.0.0.3", 400_000_000));
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    assert!(other.passed() > 30 << 20);
}
