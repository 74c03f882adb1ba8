//! Withdrawn orders end within seconds and never start again, under failures of network, agents and controller.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use penstock_control::orders::{FaultKind, OrderPhase, OrderSettings, OrderTask};
use socket2::{Domain, Socket, Type};

use crate::common::site::Operations;
use crate::common::{FaultProxy, run, seeded, wait_until, write_file};
use crate::controller::Controller;
use crate::node::Node;

const TICKET: &str = "a-ticket-nobody-guesses";

const ORDER_TIMEOUT: Duration = Duration::from_secs(120);

/// Limit from the withdrawal of an order to the report of its end, generous for busy machines.
const ENDED_WITHIN: Duration = Duration::from_secs(12);

/// A peer that never completes a session.
struct SilentPeer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    _held: Vec<Socket>,
}

impl SilentPeer {
    /// Accepts connections and never answers.
    fn hung() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = Vec::new();
            for stream in listener.incoming() {
                open.extend(stream);
                counter.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self { address, connections, _held: Vec::new() }
    }

    /// Closes each connection at once.
    fn closing() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                counter.fetch_add(1, Ordering::SeqCst);
                drop(stream);
            }
        });
        Self { address, connections, _held: Vec::new() }
    }

    /// Has a full accept queue, so that the kernel drops every SYN.
    fn blackhole() -> Self {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(0).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let mut held = vec![listener];
        for _ in 0..4 {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&address.into());
            held.push(client);
        }
        Self { address, connections: Arc::default(), _held: held }
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Gives a order 2: send the file to these addresses.
fn order_to(
    controller: &Controller,
    (a, b): (&Node, &Node),
    addresses: &[SocketAddr],
    rate_bps: u64,
) {
    let mut send = b.files_to("/data/in", TICKET, &["file"]);
    send.addresses = addresses.iter().map(ToString::to_string).collect();
    let settings = OrderSettings { rate_bps: Some(rate_bps), ..OrderSettings::default() };
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send)), settings);
    assert!(a.path("file").exists());
}

fn two_nodes(controller: &Controller, mib: usize) -> (Node, Node) {
    let mut random = seeded(7_500);
    let (a, b) = (Node::start(controller, "a"), Node::start(controller, "b"));
    write_file(&mut random, &a.path("file"), mib << 20);
    (a, b)
}

/// Withdraws order 2 and waits for the report of its end.
fn withdraw(controller: &Controller) {
    let begun = Instant::now();
    controller.withdraw("a", 2);
    let ended = controller.await_end("a", 2);
    let took = begun.elapsed();
    assert!(took < ENDED_WITHIN, "{took:?}");
    assert_eq!(ended.fault.map(|fault| fault.kind), Some(FaultKind::Cancelled));
}

/// Waits for `more` further reports of a.
fn reports(controller: &Controller, more: u64) {
    let before = controller.host("a", |host| host.reports);
    controller.await_host("reports", "a", |host| (host.reports >= before + more).then_some(()));
}

#[test]
fn withdrawn_order_never_connects_again() {
    let controller = Controller::start();
    let (mut a, b) = two_nodes(&controller, 1);
    for (peer, is_seen) in [
        (SilentPeer::hung(), true),
        (SilentPeer::blackhole(), false),
        (SilentPeer::closing(), true),
    ] {
        controller.host("a", |host| {
            host.ended.clear();
            host.last.clear();
        });
        // Two addresses, so that one attempt takes twice as long.
        order_to(&controller, (&a, &b), &[peer.address, peer.address], 1_000_000_000);
        controller.await_host("it waits", "a", |host| {
            let waits = host.last.get(&2)?.phase == OrderPhase::Waiting;
            (waits && (!is_seen || peer.connections() > 0)).then_some(())
        });
        withdraw(&controller);
        // An attempt that had begun may go on to the second address.
        let after = peer.connections() + 1;
        reports(&controller, 3);
        assert!(peer.connections() <= after, "{} connections", peer.connections());

        // A late instruction lists the order again: the agent refuses it, which frees the slot for another order.
        order_to(&controller, (&a, &b), &[peer.address], 1_000_000_000);
        let again = controller.await_host("it is refused", "a", |host| {
            let report = host.report.orders.iter().find(|report| report.order.number() == 2)?;
            (report.phase == OrderPhase::Ended).then(|| report.clone())
        });
        assert_eq!(again.fault.map(|fault| fault.kind), Some(FaultKind::Transient));
        reports(&controller, 2);
        assert!(peer.connections() <= after);
        controller.withdraw("a", 2);

        // An agent that restarts does not begin it either.
        a.agent.kill();
        a.restart();
        reports(&controller, 3);
        assert!(peer.connections() <= after);
        assert!(controller.host("a", |host| host.report.orders.is_empty()));
    }
    assert!(!b.path("in/file").exists());
}

#[test]
fn order_withdrawn_after_connection_loss_ends() {
    let controller = Controller::start();
    let (_a, mut b) = two_nodes(&controller, 40);
    for is_killed in [false, true] {
        let way = FaultProxy::clean("127.0.0.1:0", &b.agent.listen);
        controller.host("a", |host| {
            host.ended.clear();
            host.last.clear();
        });
        let number = if is_killed { 4 } else { 2 };
        let mut send = b.files_to("/data/in", TICKET, &["file"]);
        send.addresses = vec![way.address.to_string()];
        let settings = OrderSettings { rate_bps: Some(16_000_000), ..OrderSettings::default() };
        controller.order(
            "b",
            number - 1,
            Node::receive("/data/in", TICKET),
            OrderSettings::default(),
        );
        controller.order("a", number, OrderTask::Send(Box::new(send)), settings);
        wait_until("bytes", ORDER_TIMEOUT, || (way.passed() > 1 << 20).then_some(()));
        match is_killed {
            // The peer is killed: connections to it are refused.
            true => b.agent.kill(),
            // The proxy forwards nothing, and both connections stay open.
            false => way.freeze(),
        }
        reports(&controller, 1);
        let begun = Instant::now();
        controller.withdraw("a", number);
        controller.withdraw("b", number - 1);
        let ended = controller.await_end("a", number);
        assert!(begun.elapsed() < ENDED_WITHIN, "{:?}", begun.elapsed());
        assert_eq!(ended.fault.map(|fault| fault.kind), Some(FaultKind::Cancelled));
        let passed = way.passed();
        reports(&controller, 3);
        assert_eq!(way.passed(), passed, "nothing is sent after its end");
    }
    b.restart();
    assert!(!b.path("in/file").exists());
}

#[test]
fn order_withdrawn_during_controller_outage_ends() {
    let controller = Controller::start();
    let (a, b) = two_nodes(&controller, 1);
    let peer = SilentPeer::hung();
    order_to(&controller, (&a, &b), &[peer.address], 1_000_000_000);
    wait_until("it connects", ORDER_TIMEOUT, || (peer.connections() > 0).then_some(()));
    controller.set_away(true);
    controller.withdraw("a", 2);
    wait_until("another attempt", ORDER_TIMEOUT, || (peer.connections() > 1).then_some(()));
    controller.set_away(false);
    let ended = controller.await_end("a", 2);
    assert_eq!(ended.fault.map(|fault| fault.kind), Some(FaultKind::Cancelled));
    let after = peer.connections();
    reports(&controller, 3);
    assert_eq!(peer.connections(), after);
}

#[test]
fn cancelled_request_ends_though_peer_hangs() {
    let mut random = seeded(7_501);
    let peers = [SilentPeer::hung(), SilentPeer::blackhole()];
    for peer in peers {
        let operations = Operations::start("");
        let a = operations.node("dtn-a");
        let reached = format!("addresses = [\"{}\"]", peer.address);
        let token = crate::common::site::token("dtn-b");
        let _b = Node::under(&operations.listen, &token, "dtn-b", "127.0.0.1:0", &reached);
        std::fs::create_dir(a.path("set")).unwrap();
        write_file(&mut random, &a.path("set/file"), 1 << 20);
        let request = operations.submit("a:/data/set", "b:/data/in", "hangs", &[]);
        wait_until("its order", ORDER_TIMEOUT, || {
            (operations.facts(request)["files_active"] == 1).then_some(())
        });
        // Once its node has begun to connect.
        wait_until("it waits", ORDER_TIMEOUT, || {
            let shown = run(operations.ask(&["show", &request.to_string(), "--json"])).json;
            shown["orders"][0]["waiting"].is_string().then_some(())
        });
        let begun = Instant::now();
        run(operations.ask(&["cancel", &request.to_string()])).good();
        wait_until("its end", ENDED_WITHIN, || {
            (operations.facts(request)["state"] == "cancelled").then_some(())
        });
        println!("cancelled after {:?}", begun.elapsed());
    }
}
