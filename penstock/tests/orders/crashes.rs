//! Source, destination and controller are killed at seeded moments: every file arrives, and each run reports it once.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use penstock_control::orders::{FaultKind, OrderSettings, OrderTask};

use crate::common::{Random, parts, seeded, wait_until, write_file};
use crate::controller::Controller;
use crate::node::Node;

const TICKET: &str = "a-ticket-nobody-guesses";

/// Writes files and returns their names.
fn write_files(
    random: &mut Random,
    node: &Node,
    below: &str,
    small: usize,
    large: usize,
) -> Vec<String> {
    fs::create_dir_all(node.path(below)).unwrap();
    let name = |number: usize| format!("{below}/{number} file");
    for number in 0..small + large {
        let bytes = if number < large { 2 << 20 } else { random.between(1, 30_000) as usize };
        write_file(random, &node.path(&name(number)), bytes);
    }
    (0..small + large).map(name).collect()
}

#[test]
fn files_arrive_once_despite_kills() {
    let mut random = seeded(7_200);
    let controller = Controller::start();
    let names = ["a", "b", "c"];
    let mut nodes: Vec<Node> = names.map(|name| Node::start(&controller, name)).into();
    // Two sources send to one destination.
    let mut sent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let settings = OrderSettings { rate_bps: Some(24_000_000), ..OrderSettings::default() };
    for (number, source) in ["a", "b"].into_iter().enumerate() {
        let files = write_files(&mut random, &nodes[number], source, 150, 6);
        let ticket = format!("{TICKET}-{source}");
        let listed: Vec<&str> = files.iter().map(String::as_str).collect();
        let send = nodes[2].files_to("/data/in", &ticket, &listed);
        let order = number as u64 * 2 + 1;
        controller.order("c", order, Node::receive("/data/in", &ticket), OrderSettings::default());
        controller.order(source, order + 1, OrderTask::Send(Box::new(send)), settings.clone());
        sent.insert(source, files);
    }
    // Each node once, then the controller; other sequences are in `testing/simulation`.
    for round in 0..4 {
        // Wait for progress since the last kill.
        let bytes = || nodes[2].data.join("in").read_dir().map_or(0, |all| all.count());
        let pause = Duration::from_millis(random.between(100, 1_500));
        let begun = Instant::now();
        wait_until("a moment", Duration::from_secs(60), || {
            (begun.elapsed() > pause && bytes() > 0).then_some(())
        });
        match nodes.get_mut(round) {
            Some(node) => {
                println!("round {round}: {} is killed", node.name);
                node.agent.kill();
                node.restart();
            }
            None => {
                println!("round {round}: the controller is away");
                controller.set_away(true);
                std::thread::sleep(Duration::from_millis(random.between(100, 3_000)));
                controller.set_away(false);
            }
        }
    }
    for (number, source) in ["a", "b"].into_iter().enumerate() {
        let order = number as u64 * 2 + 2;
        controller.set(source, order, OrderSettings::default());
        let ended = controller.await_end(source, order);
        assert_eq!(ended.fault, None, "{source}");
        let outcomes = controller.outcomes(source, order);
        assert_eq!(outcomes.len(), sent[source].len());
        for (file, path) in sent[source].iter().enumerate() {
            let outcome = &outcomes[&(file as u32)];
            assert_eq!(outcome.fault, None, "{path}");
            let (from, to) = (nodes[number].path(path), nodes[2].path("in").join(path));
            assert_eq!(fs::read(to).unwrap(), fs::read(from).unwrap(), "{path}");
        }
        // Later runs do not send files that were reported as committed.
        let outcomes = controller.host(source, |host| host.outcomes[&order].clone());
        for (at, (run, outcome)) in outcomes.iter().enumerate() {
            let earlier = outcomes[..at]
                .iter()
                .any(|(before, one)| before != run && one.file == outcome.file);
            assert!(!earlier || outcome.was_there, "{source}: sent again: {outcome:?}");
        }
    }
    controller.check();
    wait_until("nothing unfinished", Duration::from_secs(60), || {
        parts(&nodes[2].data).is_empty().then_some(())
    });
}

#[test]
fn terminated_agent_order_resumes_after_restart() {
    let mut random = seeded(7_201);
    let controller = Controller::start();
    let (mut a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    write_file(&mut random, &a.path("file"), 40 << 20);
    let send = b.files_to("/data/in", TICKET, &["file"]);
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    let rate = OrderSettings { rate_bps: Some(40_000_000), ..OrderSettings::default() };
    controller.order("a", 2, OrderTask::Send(Box::new(send)), rate);
    controller.await_host("a fifth of it", "a", |host| {
        host.last.get(&2).filter(|last| last.moved_bytes > 8 << 20).map(|_| ())
    });
    let pid = rustix::process::Pid::from_child(&a.agent.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status =
        wait_until("its end", Duration::from_secs(60), || a.agent.child.try_wait().unwrap());
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    // The last report has the progress, and no end.
    let last = controller.host("a", |host| host.last[&2].clone());
    assert_eq!(last.waiting.as_deref(), Some("the agent shuts down"), "{last:?}");
    assert!(controller.host("a", |host| host.ended.is_empty()));
    a.restart();
    controller.set("a", 2, OrderSettings::default());
    let ended = controller.await_end("a", 2);
    assert_eq!(ended.fault, None);
    assert!(ended.moved_bytes < 34 << 20, "{} bytes again", ended.moved_bytes);
    assert_eq!(fs::read(b.path("in/file")).unwrap(), fs::read(a.path("file")).unwrap());
    assert_eq!(controller.host("a", |host| host.runs[&2].len()), 2);
}

#[test]
fn concurrent_orders_never_share_a_file() {
    let mut random = seeded(7_202);
    let controller = Controller::start();
    let nodes = ["a", "b", "c"].map(|name| Node::start(&controller, name));
    for (number, node) in nodes[..2].iter().enumerate() {
        write_file(&mut random, &node.path("file"), (12 << 20) + number);
    }
    for (number, source) in ["a", "b"].into_iter().enumerate() {
        let ticket = format!("{TICKET}-{source}");
        let send = nodes[2].files_to("/data/in", &ticket, &["file"]);
        let order = number as u64 * 2 + 1;
        controller.order("c", order, Node::receive("/data/in", &ticket), OrderSettings::default());
        let rate = OrderSettings { rate_bps: Some(1_000_000), ..OrderSettings::default() };
        controller.order(source, order + 1, OrderTask::Send(Box::new(send)), rate);
        // The second begins while the first runs.
        controller.await_host("bytes", source, |host| {
            let last = host.last.get(&(order + 1))?;
            (last.streams > 0 || host.ended.contains_key(&(order + 1))).then_some(())
        });
    }
    assert_eq!(controller.await_end("b", 4).fault, None);
    let second = controller.outcomes("b", 4)[&0].fault.clone().expect("the first holds it");
    assert_eq!(second.kind, FaultKind::Transient);
    assert!(second.text.contains("another transfer is writing it"), "{}", second.text);
    controller.set("a", 2, OrderSettings::default());
    assert_eq!(controller.await_end("a", 2).fault, None);
    assert_eq!(controller.outcomes("a", 2)[&0].fault, None);
    assert_eq!(
        fs::read(nodes[2].path("in/file")).unwrap(),
        fs::read(nodes[0].path("file")).unwrap()
    );
    // Ordered again, now that it is free.
    let send = nodes[2].files_to("/data/in", &format!("{TICKET}-b"), &["file"]);
    controller.order("b", 6, OrderTask::Send(Box::new(send)), OrderSettings::default());
    assert_eq!(controller.await_end("b", 6).fault, None);
    assert_eq!(
        fs::read(nodes[2].path("in/file")).unwrap(),
        fs::read(nodes[1].path("file")).unwrap()
    );
}
