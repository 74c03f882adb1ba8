//! A hostile controller: it is confined to its exports, limits and `third_party`.

use std::fs;
use std::time::Duration;

use axum::http::StatusCode;
use penstock_control::orders::{
    FILES_MAX, FaultKind, File, OrderFault, OrderPhase, OrderSettings, OrderTask,
};

use crate::common::{run, wait_until};
use crate::controller::Controller;
use crate::node::Node;

const TICKET: &str = "a-ticket-nobody-guesses";

#[track_caller]
fn lasting(fault: Option<OrderFault>, words: &str) {
    let fault = fault.unwrap_or_else(|| panic!("no fault: {words}"));
    assert_eq!(fault.kind, FaultKind::Permanent, "{fault:?}");
    assert!(fault.text.contains(words) && !fault.text.contains('\n'), "{words}: {}", fault.text);
}

#[test]
fn orders_stay_within_controller_exports() {
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    fs::write(a.path("file"), "text").unwrap();
    fs::write(a.dir.path().join("other/secret"), "secret").unwrap();
    std::os::unix::fs::symlink(a.dir.path().join("other"), a.path("out")).unwrap();
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    let mut order = 10;
    let mut send = |change: &dyn Fn(&mut penstock_control::orders::Send)| {
        order += 1;
        let mut send = b.files_to("/data/in", TICKET, &["file"]);
        change(&mut send);
        controller.order("a", order, OrderTask::Send(Box::new(send)), OrderSettings::default());
        (controller.await_end("a", order), controller.outcomes("a", order))
    };
    lasting(send(&|send| send.from = "/other".into()).0.fault, "in no export");
    lasting(send(&|send| send.from = "/data/../other".into()).0.fault, "'..'");
    lasting(send(&|send| send.from = "/etc".into()).0.fault, "in no export");
    lasting(send(&|send| send.to = "/data/elsewhere".into()).0.fault, "below /data/in only");
    lasting(send(&|send| send.to = "/data/in/../x".into()).0.fault, "'..'");
    lasting(send(&|send| send.to = "/other".into()).0.fault, "below /data/in only");
    lasting(send(&|send| send.fingerprint = "xyz".into()).0.fault, "64 hexadecimal digits");
    lasting(send(&|send| send.addresses.clear()).0.fault, "no address");
    // Links of the source do not lead out of the export.
    for path in ["out/secret", "../other/secret", "/etc/passwd", "out/../out/secret"] {
        let (ended, outcomes) = send(&|send| send.files[0].path = path.into());
        assert_eq!(ended.fault, None, "{path}");
        assert_eq!(outcomes[&0].fault.as_ref().map(|fault| fault.kind), Some(FaultKind::Permanent));
    }
    let many = |send: &mut penstock_control::orders::Send| {
        send.files = vec![File { path: "file".into(), digest: None }; FILES_MAX + 1];
    };
    lasting(send(&many).0.fault, "more than 10000");
    assert!(!b.path("in").join("secret").exists() && !b.path("elsewhere").exists());

    for (order, ticket, below, words) in [
        (21, "short", "/data/in", "shorter than 16"),
        (22, "with a space in the midst of it", "/data/in", "a space"),
        (23, TICKET, "/other", "in no export"),
        (24, TICKET, "/data/../other", "'..'"),
        (25, TICKET, "/", "in no export"),
    ] {
        controller.order("b", order, Node::receive(below, ticket), OrderSettings::default());
        lasting(controller.await_end("b", order).fault, words);
    }
    // A ticket grants neither reads nor the API.
    let copy = b.dir.path().join("copy");
    let mut login = crate::common::penstock(&copy);
    login.args(["login", &b.agent.listen, "--token", TICKET, "--fingerprint"]);
    run(login.arg(&b.agent.fingerprint)).good();
    let mut pull = crate::common::penstock(&copy);
    let done = run(pull.args(["cp", &b.agent.url("data/in/file"), "/tmp/never"]));
    assert_eq!(done.code, 5, "{done:?}");
    let mut transfers = crate::common::penstock(&copy);
    let done = run(transfers.args(["transfers", "--http", &b.agent.http]));
    assert_ne!(done.code, 0, "{done:?}");
}

#[test]
fn malformed_answers_are_ignored_orders_queue() {
    let controller = Controller::start();
    let (a, b) = (Node::start(&controller, "a"), Node::start(&controller, "b"));
    fs::write(a.path("file"), "text").unwrap();
    controller.order("b", 1, Node::receive("/data/in", TICKET), OrderSettings::default());
    for nonsense in [
        (StatusCode::OK, b"{}".to_vec()),
        (StatusCode::OK, b"[1, 2".to_vec()),
        (StatusCode::OK, vec![b'['; 4 << 20]),
        (StatusCode::OK, br#"{"lease_seconds": -1, "orders": [], "acknowledged": []}"#.to_vec()),
        (StatusCode::FOUND, Vec::new()),
        (StatusCode::INTERNAL_SERVER_ERROR, vec![0xff; 1000]),
    ] {
        let before = controller.host("a", |host| {
            host.nonsense = Some(nonsense);
            host.reports
        });
        controller
            .await_host("it asks again", "a", |host| (host.reports > before + 1).then_some(()));
    }
    controller.host("a", |host| host.nonsense = None);
    // More small orders than run at once.
    for order in 100..500 {
        let mut send = b.files_to(&format!("/data/in/{order}"), TICKET, &["file"]);
        send.encrypt = false;
        controller.order("a", order, OrderTask::Send(Box::new(send)), OrderSettings::default());
    }
    wait_until("all of them", Duration::from_secs(180), || {
        controller.host("a", |host| {
            let done: Vec<_> = host.ended.keys().copied().filter(|order| *order >= 100).collect();
            // Ended and acknowledged orders free their slots once withdrawn.
            done.iter().for_each(|order| drop(host.orders.remove(order)));
            (done.len() == 400).then_some(())
        })
    });
    controller.check();
    controller.host("a", |host| {
        assert!(
            host.ended
                .values()
                .all(|ended| ended.fault.is_none() && ended.phase == OrderPhase::Ended)
        );
    });
    assert_eq!(fs::read_dir(b.path("in")).unwrap().count(), 400);
}
