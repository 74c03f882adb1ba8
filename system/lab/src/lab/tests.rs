//! Small labs on this machine's kernel; need root.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use penstock_testkit::raw::uninterrupted;
use penstock_topology::Topology;
use penstock_units::{BitRate, ByteCount};

use super::*;
use crate::line::{EmulatedPacket, Line, PacketOutcome};

const TEXT: &str = r#"
    name = "t"
    [[host]]
    name = "a"
    interface = [{ name = "eth0", rate = "10G", mtu = 9000 }]
    [[host]]
    name = "b"
    interface = [{ name = "eth0", rate = "10G", mtu = 9000 }]
    [[switch]]
    name = "s"
    [[link]]
    name = "near"
    ends = ["a:eth0", "s"]
    [[link]]
    name = "far"
    ends = ["s", "b:eth0"]
    delay = "10ms"
"#;

/// Runs `test` with a lab on each supported backend; nfqueue and tap are always supported.
fn each(mut test: impl FnMut(Lab)) {
    if !penstock_sys::machine::is_superuser() {
        penstock_testkit::skip(penstock_testkit::Requirement::Root, "needs root");
        return;
    }
    for backend in [Backend::Nfqueue, Backend::Tap, Backend::Netem] {
        match backend.probe() {
            Ok(()) => {
                println!("links by {backend}");
                let plan = LabPlan::new(Topology::read(TEXT).unwrap()).unwrap();
                test(Lab::new(plan, backend, 1).unwrap());
            }
            Err(why) => {
                assert_eq!(backend, Backend::Netem, "{why}");
                penstock_testkit::skip(
                    penstock_testkit::Requirement::Kernel,
                    &format!("{backend}: {why}"),
                );
            }
        }
    }
}

fn bound(lab: &Lab, node: &str) -> UdpSocket {
    let node = lab.plan().topology.node(node).unwrap();
    let address = lab.plan().addresses(node).unwrap().v6;
    let socket = lab.namespace(node).inside(|| UdpSocket::bind((address, 0)).unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

#[test]
fn packets_take_the_links_delay() {
    each(packets_take_the_links_delay_on);
}

fn packets_take_the_links_delay_on(lab: Lab) {
    let (a, b) = (bound(&lab, "a"), bound(&lab, "b"));
    for _ in 0..5 {
        let since = Instant::now();
        a.send_to(b"there", b.local_addr().unwrap()).unwrap();
        let (_, from) = uninterrupted(|| b.recv_from(&mut [0; 9])).unwrap();
        b.send_to(b"back", from).unwrap();
        uninterrupted(|| a.recv(&mut [0; 9])).unwrap();
        assert!(since.elapsed() >= Duration::from_millis(20));
    }
    let far = lab.status(lab.plan().topology.link("far").unwrap()).unwrap();
    // netem's device counters include packets that the kernel itself sends.
    assert!(far.iter().all(|one| (5..10).contains(&one.counters.packets)), "{far:?}");
}

#[test]
fn links_match_their_settings() {
    each(links_match_their_settings_on);
}

fn links_match_their_settings_on(mut lab: Lab) {
    // The kernel's shaper only, then delayed verdicts.
    for (name, rate, delay) in
        [("near", 100_000_000, 0), ("far", 50_000_000, 10), ("far", 10_000_000, 65)]
    {
        let link = lab.plan().topology.link(name).unwrap();
        let (rate, delay) = (Some(BitRate(rate)), Duration::from_millis(delay));
        lab.set(link, [Impairment { rate, delay, ..Impairment::default() }; 2]).unwrap();
        let found = lab.calibrate(link).unwrap();
        let share = found.rate.unwrap().0 as f64 / rate.unwrap().0 as f64;
        // Wide bounds: on a busy machine the sender may not fill the link, and the receiver may get packets late and in
        // bursts. `bench lab` measures the accuracy.
        assert!((0.3..1.5).contains(&share), "{name}: {found:?}");
        assert!(found.rtt.unwrap() >= delay * 2, "{found:?}");
        let lost = lab.status(link).unwrap()[0].counters;
        assert!(name == "near" || lost.overflowed + lost.lost > 0, "{lost:?}");
    }
}

#[test]
fn queue_overflow_is_counted() {
    each(|mut lab| {
        let link = lab.plan().topology.link("near").unwrap();
        let (rate, queue) = (Some(BitRate(1_000_000)), Some(ByteCount(20_000)));
        lab.set(link, [Impairment { rate, queue, ..Impairment::default() }; 2]).unwrap();
        let (a, b) = (bound(&lab, "a"), bound(&lab, "b"));
        for _ in 0..500 {
            // The kernel's shaper may return an error to the sender.
            let _ = a.send_to(&[0; 1000], b.local_addr().unwrap());
        }
        let since = Instant::now();
        loop {
            let counted = lab.status(link).unwrap()[0].counters;
            if counted.overflowed + counted.lost > 300 {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(30), "{counted:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn seed_determines_losses_cut_drops_all() {
    each(seed_determines_losses_cut_drops_all_on);
}

fn seed_determines_losses_cut_drops_all_on(mut lab: Lab) {
    let link = lab.plan().topology.link("far").unwrap();
    let lossy = Impairment { loss: 0.2, ..Impairment::default() };
    lab.set(link, [lossy, Impairment::default()]).unwrap();
    let (a, b) = (bound(&lab, "a"), bound(&lab, "b"));
    let count = 200_u8;
    for number in 0..count {
        a.send_to(&[number], b.local_addr().unwrap()).unwrap();
    }
    let mut line = Line::new(lossy, 1, "far>");
    let packet = EmulatedPacket { wire_bytes: 100, markable: false };
    if lab.backend() == Backend::Netem {
        // netem uses another random number generator.
        let mut arrived = 0;
        b.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        while uninterrupted(|| b.recv(&mut [0; 9])).is_ok() {
            arrived += 1;
        }
        let lost = lab.status(link).unwrap()[0].counters.lost;
        assert!((15..70).contains(&lost) && arrived + lost == u64::from(count), "{arrived} {lost}");
        return;
    }
    let arrive: Vec<u8> =
        (0..count).filter(|_| line.offer(Duration::ZERO, packet) != PacketOutcome::Lost).collect();
    assert!((120..190).contains(&arrive.len()));
    for number in &arrive {
        let mut text = [0; 9];
        assert_eq!((uninterrupted(|| b.recv(&mut text)).unwrap(), text[0]), (1, *number));
    }
    let counters = lab.status(link).unwrap()[0].counters;
    assert_eq!(counters.lost, u64::from(count) - arrive.len() as u64);
    lab.set(link, [Impairment { cut: true, ..lossy }; 2]).unwrap();
    a.send_to(b"lost", b.local_addr().unwrap()).unwrap();
    while lab.status(link).unwrap()[0].counters.cut == 0 {
        std::thread::yield_now();
    }
    lab.set(link, [Impairment::default(); 2]).unwrap();
    a.send_to(b"again", b.local_addr().unwrap()).unwrap();
    assert_eq!(uninterrupted(|| b.recv(&mut [0; 9])).unwrap(), 5);
}

#[test]
fn nothing_is_left_of_a_lab() {
    each(nothing_is_left_of_a_lab_on);
}

fn nothing_is_left_of_a_lab_on(lab: Lab) {
    let inodes: Vec<u64> =
        (0..3).map(|node| lab.namespace(NodeId(node)).inode().unwrap()).collect();
    let alive = || {
        let found = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let inode = |entry: std::fs::DirEntry| {
            use std::os::unix::fs::MetadataExt;
            Some(std::fs::metadata(entry.path()).ok()?.ino())
        };
        found.filter_map(inode).filter(|inode| inodes.contains(inode)).count()
    };
    assert_eq!(alive(), 3);
    drop(lab);
    assert_eq!(alive(), 0);
}
