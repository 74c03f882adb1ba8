//! Hostile names, which would inject markup into a page that trusts them.

use std::fs;

use crate::browser::Browser;
use crate::feed::{COUNTER_INTERVAL_SHORT, Feed};
use crate::transfers::slow;
use crate::{Node, TOPOLOGY};

const EVIL: &str = "<img src=x onerror=\"window.pwned=1\">";
/// Holds a right-to-left override, a zero-width space and a control character.
const TURNED: &str = "invoice\u{202e}fdp.\u{200b}exe\u{7}";

#[test]
fn hostile_names_are_text() {
    let long = "x".repeat(10_000);
    let network = fs::read_to_string(TOPOLOGY).unwrap();
    let network = network
        .replace("\"University of Victoria\"", &format!("'{EVIL}'"))
        .replace("\"Simon Fraser University\"", &format!("\"{long}\""));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("network.toml");
    fs::write(&file, network).unwrap();
    let node = Node::start(&format!("topology = {file:?}\n"));
    let _feed = Feed::start(
        node.sflow,
        concat!("<svg onload=\"window.pwned=1\">", "\u{202e}gpj\u{200b}"),
        COUNTER_INTERVAL_SHORT,
    );
    fs::create_dir_all(node.env.root.join(EVIL.replace('/', "_"))).unwrap();
    let evil = slow(&node, &format!("{EVIL}/file"));
    let turned = slow(&node, TURNED);

    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("transfers"));
    // The agent escapes paths; the page shows their end.
    browser.sees("window.pwned=1");
    browser.sees("exe\\u{7}");
    browser.picture("hostile-transfers");
    browser.open(&node.page("map"));
    browser.until("document.querySelectorAll('.map .site').length === 3");
    browser.until("document.querySelector('.map').textContent.includes('<img src=x')");
    browser.picture("hostile-map");
    browser.open(&node.page("hosts"));
    browser.sees("<svg onload=\"window.pwned=1\">\u{fffd}gpj\u{fffd}");
    browser.open(&node.page("overview?by=%3Cimg%20src=x%20onerror=alert(1)%3E&owner=%3Cscript%3E&range=%00&from=NaN&to=1e999&theme=%22%3E&view=__proto__"));
    browser.sees("No traffic matches these filters");
    browser.sees("<script>");
    // No name became an element, ran as script, or widened the page.
    let broken = "window.pwned !== undefined || document.querySelector('img[src=x], main script, svg[onload]') !== null";
    assert_eq!(browser.ask(broken), false);
    for page in ["map", "transfers", "hosts"] {
        browser.open(&node.page(page));
        browser.until("document.querySelector('tbody td') !== null");
        assert_eq!(
            browser.ask("document.documentElement.scrollWidth <= innerWidth"),
            true,
            "{page}"
        );
        let longest = "Math.max(...[...document.querySelectorAll('td, text, figcaption')].map((one) => one.textContent.length))";
        let longest = browser.ask(longest).as_u64().unwrap();
        assert!(longest < 400, "{page}: {longest}");
    }
    assert_eq!(browser.ask(broken), false);
    evil.kill();
    turned.kill();
    browser.assert_clean(&["/api/v1/events/network"]);
}
