//! Circuits of a small network: plans, and (as root) circuits in the kernel.

use std::net::UdpSocket;
use std::time::Duration;

use penstock_testkit::raw::uninterrupted;
use penstock_topology::Topology;

use super::*;
use crate::backend::Backend;
use crate::line::Impairment;

const TEXT: &str = r#"
    name = "n"
    [[host]]
    name = "a"
    interface = [{ name = "eth0", mtu = 9000 }]
    [[host]]
    name = "b"
    interface = [{ name = "eth0", mtu = 9000 }]
    [[switch]]
    name = "s"
    [[switch]]
    name = "t"
    [[switch]]
    name = "u"
    [[link]]
    name = "at-a"
    ends = ["a:eth0", "s"]
    rate = "1G"
    [[link]]
    name = "at-b"
    ends = ["b:eth0", "t"]
    rate = "1G"
    [[link]]
    name = "wan"
    ends = ["s", "t"]
    rate = "20M"
    delay = "2ms"
    [[link]]
    name = "south"
    ends = ["t", "u"]
    rate = "20M"
    delay = "3ms"
    [[link]]
    name = "north"
    ends = ["u", "s"]
    rate = "20M"
    delay = "3ms"
"#;

fn plan() -> LabPlan {
    LabPlan::new(Topology::read(TEXT).unwrap()).unwrap()
}

fn links(plan: &LabPlan, names: &[&str]) -> Vec<LinkId> {
    names.iter().map(|name| plan.topology.link(name).unwrap()).collect()
}

fn hosts(plan: &LabPlan) -> [[NodeId; 1]; 2] {
    ["a", "b"].map(|name| [plan.topology.node(name).unwrap()])
}

fn made(names: &[&str], rate: u64) -> Result<CircuitPlan, PlanError> {
    let plan = plan();
    let [from, to] = hosts(&plan);
    CircuitPlan::new(&plan, 3, BitRate(rate), [&from, &to], &links(&plan, names))
}

#[test]
fn circuit_has_lanes_and_routes() {
    let circuit = made(&["north", "south"], 10_000_000).unwrap();
    let there = Lane { to: network(3, 1), rate: BitRate(10_000_000) };
    let back = Lane { to: network(3, 0), rate: BitRate(1_000_000) };
    // The first end of both links is the farther one on the path.
    let lanes: Vec<_> = circuit.lanes.iter().map(|(_, lanes)| *lanes).collect();
    assert_eq!(lanes, [[back, there], [back, there]]);
    let addresses: Vec<_> = circuit.addresses.iter().map(|(_, _, one)| one.to_string()).collect();
    assert_eq!(addresses, ["fd70:6e73:8006::1", "fd70:6e73:8007::1"]);
    // Both directions at a, s, u, t and b: nodes on the path have routes to both sides, ends to the other one.
    let plan = plan();
    let knows = |node: &str| {
        let node = plan.topology.node(node).unwrap();
        circuit.steps.iter().filter(|step| step.node == node).count()
    };
    assert_eq!(["a", "s", "u", "t", "b"].map(knows), [1, 2, 2, 2, 1]);
}

#[test]
fn disconnected_links_are_refused() {
    for (names, rate, why) in [
        (&["wan", "north"][..], 1, "a: none reaches t"),
        (&["north", "wan"], 1, "a: none reaches u"),
        (&["wan", "at-b"], 1, "b: none reaches b"),
        (&["north", "north"], 1, "does not continue from"),
        (&["at-a", "south"], 1, "does not continue from s"),
        (&[], 1, "one or more links"),
        (&["wan"], 0, "a rate above 0"),
    ] {
        match made(names, rate) {
            Err(error) => assert!(error.to_string().contains(why), "{names:?}: {error}"),
            Ok(circuit) => panic!("{names:?}: {circuit:?}"),
        }
    }
}

fn bound(lab: &Lab, host: NodeId, address: Ipv6Addr) -> UdpSocket {
    let socket = lab.namespace(host).inside(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket
}

/// Number of `count` datagrams that arrive.
fn arrive(from: &UdpSocket, to: &UdpSocket, count: usize) -> usize {
    let address = to.local_addr().unwrap();
    for number in 0..count {
        from.send_to(&[number as u8; 1000], address).unwrap();
    }
    let mut got = 0;
    let mut buffer = [0; 2000];
    while got < count && uninterrupted(|| to.recv(&mut buffer)).is_ok() {
        got += 1;
    }
    got
}

#[test]
fn circuit_keeps_rate_and_addresses() {
    if !penstock_sys::machine::is_superuser() {
        penstock_testkit::skip(penstock_testkit::Requirement::Root, "needs root");
        return;
    }
    let mut lab = Lab::new(plan(), Backend::Nfqueue, 1).unwrap();
    let [from, to] = hosts(lab.plan());
    let (wan, around) = (links(lab.plan(), &["wan"]), links(lab.plan(), &["north", "south"]));
    lab.make_circuit("c", BitRate(10_000_000), [&from, &to], &wan).unwrap();
    let addresses = lab.circuit_addresses("c").unwrap();
    let [a, b] = [0, 1].map(|at| bound(&lab, addresses[at].0, addresses[at].1));
    let ordinary = |host: NodeId| lab.plan().addresses(host).unwrap().v6;
    let [other, sink] = [from[0], to[0]].map(|host| bound(&lab, host, ordinary(host)));
    // A burst above the queue of traffic outside the circuit, and below that of the first link.
    let towards = sink.local_addr().unwrap();
    let flood = || (0..600).for_each(|_| drop(other.send_to(&[0; 1400], towards)));
    flood();
    assert_eq!(arrive(&a, &b, 150), 150);
    flood();
    assert_eq!(arrive(&b, &a, 20), 20, "acknowledgements have a way, too");
    let status = |lab: &Lab| lab.status(wan[0]).unwrap()[0].counters;
    let before = status(&lab);
    assert!(before.overflowed > 0, "{before:?}");
    let (rate, lanes) = lab.circuit_status("c").unwrap();
    assert_eq!((rate.0, lanes.len()), (10_000_000, 1));
    assert_eq!(lanes[0].counters.map(|one| one.packets), [150, 20]);
    assert_eq!(lanes[0].counters[0].overflowed, 0);

    // A reservation beyond the link's rate fails; existing ones stay.
    let more = lab.make_circuit("d", BitRate(10_000_000), [&from, &to], &wan).unwrap_err();
    assert!(more.to_string().contains("wan: circuits reserve"), "{more}");
    let less = [Impairment { rate: Some(BitRate(9_000_000)), ..Impairment::default() }; 2];
    assert!(lab.set(wan[0], less).unwrap_err().to_string().contains("release one first"));

    // A cut interrupts the circuit, another path restores it for the same sockets.
    let cut = lab.wanted(wan[0]).map(|one| Impairment { cut: true, ..one });
    lab.set(wan[0], cut).unwrap();
    assert!(lab.circuit_status("c").unwrap().1[0].is_cut);
    let refused = lab.make_circuit("c", BitRate(10_000_000), [&from, &to], &wan).unwrap_err();
    assert!(refused.to_string().contains("link wan is cut"), "{refused}");
    lab.make_circuit("c", BitRate(10_000_000), [&from, &to], &around).unwrap();
    assert_eq!(lab.circuit_addresses("c").unwrap(), addresses);
    assert_eq!(arrive(&a, &b, 100), 100);
    let (_, lanes) = lab.circuit_status("c").unwrap();
    assert_eq!(lanes.iter().map(|lane| lane.counters[0].packets).collect::<Vec<_>>(), [100, 100]);

    // After the release its addresses are gone, and the counters of the links stay.
    lab.release_circuit("c").unwrap();
    lab.release_circuit("c").unwrap();
    assert!(lab.circuit_status("c").is_none());
    let gone = lab.namespace(from[0]).inside(|| UdpSocket::bind((addresses[0].1, 0)));
    assert_eq!(gone.unwrap().unwrap_err().kind(), std::io::ErrorKind::AddrNotAvailable);
    assert!(status(&lab).packets >= before.packets);
    let whole = lab.wanted(around[0])[0].rate.unwrap();
    lab.make_circuit("e", BitRate(whole.0 - 1), [&from, &to], &around).unwrap();
}
