//! Pictures of the documents: `cargo test -p penstock --test dashboard pictures -- --ignored` writes them.

use std::time::Duration;

use crate::browser::Browser;
use crate::feed::Feed;
use crate::{Node, TOPOLOGY};

/// Traffic that a plot shows.
const PLOT_DURATION: Duration = Duration::from_secs(150);

#[test]
#[ignore = "takes minutes and writes docs/images"]
fn pictures_of_the_documents() {
    let alert =
        "[[collector.alert]]\nname = \"someone is silent\"\nkind = \"silence\"\nabove = \"1m\"\n";
    let node = Node::start(&format!("topology = {TOPOLOGY:?}\n{alert}"));
    // The first second of a collector is a partial one.
    std::thread::sleep(Duration::from_secs(3));
    let _feed = Feed::start(node.sflow, "dtn9", Duration::from_secs(20));
    std::thread::sleep(PLOT_DURATION);
    let mut browser = Browser::start(1280, 800);
    for (name, page, text) in [
        ("overview", "overview?theme=light", "belleii"),
        ("panels", "overview?theme=dark&by=vlan&view=panels", "VLAN 2028"),
    ] {
        browser.open(&node.page(page));
        browser.sees(text);
        browser.sees("live, each second");
        browser.until("document.querySelectorAll('.waiting').length === 0");
        browser.document(name);
    }
}

/// Serves a federation of 500 hosts for an hour, to look at the page while it is changed: prints its address.
#[test]
#[ignore = "runs for an hour; for development of the page"]
fn federation_for_development() {
    let federation = crate::federation::Federation::start();
    let node = &federation.node;
    println!("http://{} token {}", node.agent.http, node.token());
    std::thread::sleep(Duration::from_secs(7200));
}
