//! Delivery of orders: files arrive, and the agent reports each outcome once.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use penstock_control::orders::{
    FaultKind, File, OrderPhase, OrderSettings, OrderTask, Overwrite, Verify,
};
use serde_json::Value;

use crate::common::{penstock, run, seeded, write_file};
use crate::controller::Controller;
use crate::node::Node;

const TICKET: &str = "a-ticket-nobody-guesses";

#[test]
fn ordered_files_arrive_and_report_once() {
    let mut random = seeded(7_001);
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    let mut names: Vec<String> = Vec::new();
    for number in 0..200 {
        let directory = ["run 1", "run 1/d\u{e9}p\u{f4}t", "-x", "#?*"][number % 4];
        fs::create_dir_all(a.path(directory)).unwrap();
        let name = format!("{directory}/{number}\t\u{6570}\u{636e} \"'\\.raw");
        let bytes = if number < 3 { 3 << 20 } else { random.between(0, 20_000) };
        write_file(&mut random, &a.path(&name), bytes as usize);
        names.push(name);
    }
    let listed: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut send = b.files_to("/data/in/deep", TICKET, &listed);
    send.batch = Some("b1".into());
    // The 201st path is missing, and the next is a directory.
    for path in ["nothing", "run 1"] {
        send.files.push(File { path: path.into(), digest: None });
    }
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send.clone())), OrderSettings::default());
    let ended = controller.await_end("a", 2);
    assert_eq!(ended.fault, None);
    let outcomes = controller.outcomes("a", 2);
    assert_eq!(outcomes.len(), 202);
    for (number, name) in names.iter().enumerate() {
        let outcome = &outcomes[&(number as u32)];
        assert_eq!((&outcome.fault, outcome.was_there), (&None, false), "{name}");
        let bytes = fs::read(a.path(name)).unwrap();
        assert_eq!(fs::read(b.path("in/deep").join(name)).unwrap(), bytes, "{name}");
        assert_eq!(outcome.bytes, bytes.len() as u64);
        assert!(outcome.digest.as_ref().is_some_and(|digest| digest.starts_with("crc32c:")));
    }
    for number in [200, 201] {
        let fault = outcomes[&number].fault.as_ref().unwrap();
        assert_eq!(fault.kind, FaultKind::Permanent, "{fault:?}");
    }
    assert!(ended.moved_bytes >= 9 << 20, "{ended:?}");

    // The same files under another order id: nothing is sent.
    controller.order("a", 3, OrderTask::Send(Box::new(send.clone())), OrderSettings::default());
    let again = controller.await_end("a", 3);
    let outcomes = controller.outcomes("a", 3);
    assert_eq!(outcomes.values().filter(|outcome| outcome.was_there).count(), 200);
    assert_eq!((again.moved_bytes, again.fault), (0, None));

    // Both ends are acknowledged: withdrawn, the orders are dropped.
    for order in [2, 3] {
        controller.withdraw("a", order);
    }
    controller.withdraw("b", 1);
    for host in ["a", "b"] {
        controller
            .await_host("forgotten", host, |host| host.report.orders.is_empty().then_some(()));
    }
    let transfers = a.agent.transfers(&a.state);
    assert!(transfers.iter().any(|one| one["caller"] == "controller"), "{transfers:?}");
    // Two of the files fail.
    assert!(transfers.iter().all(|one| one["state"] == "partial"), "{transfers:?}");
    // The ticket is no longer valid.
    send.to = "/data/in/later".into();
    controller.order("a", 4, OrderTask::Send(Box::new(send)), OrderSettings::default());
    let why = controller.await_host("a waiting order", "a", |host| {
        let last = host.last.get(&4).filter(|last| last.phase == OrderPhase::Waiting)?;
        last.waiting.clone().filter(|why| why.contains("refuses"))
    });
    assert!(why.contains("token is not one of this agent's"), "{why}");
    assert!(!b.path("in/later").exists());
}

#[test]
fn digest_mismatch_is_not_committed() {
    let mut random = seeded(7_002);
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    let crc = |path: &str| {
        let bytes = fs::read(a.path(path)).unwrap();
        format!("crc32c:{:08x}", penstock_protocol::digest::crc32c(&bytes))
    };
    for (name, bytes) in [("small", 100), ("large", 9 << 20), ("bad", 100), ("worse", 9 << 20)] {
        write_file(&mut random, &a.path(name), bytes);
    }
    fs::write(a.path("adler"), "Wikipedia").unwrap();
    fs::write(a.path("sha"), "abc").unwrap();
    fs::write(a.path("none"), "no digest").unwrap();
    let digests = [
        ("small", Some(crc("small")), None),
        ("large", Some(crc("large")), None),
        ("bad", Some("crc32c:00000001".into()), Some(FaultKind::Permanent)),
        ("worse", Some("crc32c:00000001".into()), Some(FaultKind::Permanent)),
        ("adler", Some("adler32:11e60398".into()), None),
        (
            "sha",
            Some("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".into()),
            None,
        ),
        ("none", None, None),
        ("bad", Some("crc32c:zz".into()), Some(FaultKind::Permanent)),
    ];
    let mut send = b.files_to("/data/in", TICKET, &[]);
    send.verify = Verify::Readback;
    send.encrypt = true;
    send.files = digests
        .iter()
        .map(|(path, digest, _)| File { path: (*path).into(), digest: digest.clone() })
        .collect();
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    // An existing file of the same size with damaged content.
    fs::create_dir(b.path("in")).unwrap();
    let mut damaged = fs::read(a.path("large")).unwrap();
    damaged[4_000_000] ^= 1;
    fs::write(b.path("in/large"), damaged).unwrap();
    let modified = fs::metadata(a.path("large")).unwrap().modified().unwrap();
    fs::File::options()
        .write(true)
        .open(b.path("in/large"))
        .unwrap()
        .set_modified(modified)
        .unwrap();
    controller.order("a", 2, OrderTask::Send(Box::new(send.clone())), OrderSettings::default());
    assert_eq!(controller.await_end("a", 2).fault, None);
    let outcomes = controller.outcomes("a", 2);
    for (number, (path, digest, kind)) in digests.iter().enumerate() {
        let outcome = &outcomes[&(number as u32)];
        assert_eq!(outcome.fault.as_ref().map(|fault| fault.kind), *kind, "{path}: {outcome:?}");
        if kind.is_none() {
            assert_eq!(fs::read(b.path("in").join(path)).unwrap(), fs::read(a.path(path)).unwrap());
            assert!(digest.is_none() || outcome.digest == *digest, "{path}: {outcome:?}");
            assert!(!outcome.was_there, "{path}");
        } else {
            assert!(!b.path("in").join(path).exists(), "{path}");
        }
    }
    // Existing files with the expected digest are not sent.
    controller.order("a", 3, OrderTask::Send(Box::new(send)), OrderSettings::default());
    let again = controller.await_end("a", 3);
    let there = controller.outcomes("a", 3);
    assert_eq!(there.values().filter(|outcome| outcome.was_there).count(), 5, "{there:?}");
    assert!(again.moved_bytes <= 18 << 20, "{again:?}");
}

#[test]
fn overwrite_never_keeps_existing_files() {
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    fs::create_dir(b.path("in")).unwrap();
    for (name, there) in [("new", None), ("other", Some("another text")), ("link", None)] {
        fs::write(a.path(name), format!("text of {name}")).unwrap();
        if let Some(there) = there {
            fs::write(b.path("in").join(name), there).unwrap();
        }
    }
    std::os::unix::fs::symlink("/etc/passwd", b.path("in/link")).unwrap();
    let mut send = b.files_to("/data/in", TICKET, &["new", "other", "link"]);
    send.overwrite = Overwrite::Never;
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    controller.order("a", 2, OrderTask::Send(Box::new(send)), OrderSettings::default());
    assert_eq!(controller.await_end("a", 2).fault, None);
    let outcomes = controller.outcomes("a", 2);
    assert_eq!(outcomes[&0].fault, None);
    for number in [1, 2] {
        let fault = outcomes[&number].fault.as_ref().unwrap();
        assert_eq!(fault.kind, FaultKind::Permanent, "{fault:?}");
        assert!(fault.text.contains("is to stay"), "{fault:?}");
    }
    assert_eq!(fs::read_to_string(b.path("in/other")).unwrap(), "another text");
    assert!(b.path("in/link").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn listing_refuses_non_utf8_names() {
    let controller = Controller::start();
    let a = Node::start(&controller, "a");
    let mut wanted = BTreeSet::new();
    for number in 0..12_345 {
        let name = format!("d{}/{number} \u{e4}", number % 10);
        if number < 10 {
            fs::create_dir_all(a.path(&format!("set/d{number}"))).unwrap();
        }
        fs::write(a.path("set").join(&name), vec![0; number % 3]).unwrap();
        wanted.insert((name, (number % 3) as u64));
    }
    controller.order(
        "a",
        1,
        OrderTask::List { path: "/data/set".into() },
        OrderSettings::default(),
    );
    assert_eq!(controller.await_end("a", 1).fault, None);
    let entries = controller.host("a", |host| host.entries[&1].clone());
    assert_eq!(entries.len(), wanted.len());
    let entries: BTreeSet<_> = entries.into_iter().map(|one| (one.path, one.bytes)).collect();
    assert!(entries == wanted);

    fs::write(a.path("set").join(std::ffi::OsStr::from_bytes(b"x\xff")), "").unwrap();
    for (order, path, words) in [
        (2, "/data/set", "x\\xff is not UTF-8"),
        (3, "/data/none", "no such file or directory"),
        (4, "/data/../other", "'..'"),
        (5, "/other", "in no export"),
    ] {
        controller.order(
            "a",
            order,
            OrderTask::List { path: path.into() },
            OrderSettings::default(),
        );
        let fault = controller.await_end("a", order).fault.unwrap();
        assert_eq!(fault.kind, FaultKind::Permanent, "{path}");
        assert!(fault.text.contains(words) && !fault.text.contains('\n'), "{path}: {}", fault.text);
    }
}

#[test]
fn the_operator_sees_the_controller() {
    let controller = Controller::start();
    let a = Node::start(&controller, "a");
    let report = controller.await_report("a");
    assert_eq!(report.addresses, [a.agent.listen.as_str()]);
    assert_eq!(report.fingerprint.len(), 64);
    assert!(report.capacity.transfers > 0 && report.capacity.streams > 0);
    let ask = |more: &[&str]| {
        let mut command = penstock(&a.state);
        command.args(["transfers", "--http", &a.agent.http]).args(more);
        command
    };
    let json = run(ask(&["--json"])).good().json;
    let link: &Value = &json["controller"];
    assert_eq!((link["state"].as_str(), link["host"].as_str()), (Some("connected"), Some("a")));
    let text = ask(&[]).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains(&format!("controller http://{}/: connected as a", controller.address)));
    controller.set_away(true);
    crate::common::wait_until("it is away", std::time::Duration::from_secs(60), || {
        let json = run(ask(&["--json"])).good().json;
        let why = json["controller"]["error"].as_str().unwrap_or_default().to_owned();
        (json["controller"]["state"] == "away" && why.contains("503")).then_some(())
    });
}
