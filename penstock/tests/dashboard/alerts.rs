//! Alerts and the age of the data in the browser: firing alerts are acknowledged, marked in plots and linked to them; a
//! hung collector is announced.

use std::process::Command;

use crate::browser::Browser;
use crate::feed::{COUNTER_INTERVAL_SHORT, Feed};
use crate::{Node, TOPOLOGY};

const ALERTS: &str = "
[[collector.alert]]
name = \"cms is busy\"
kind = \"rate\"
by = \"owner\"
key = \"cms\"
above = \"100G\"
for = \"2s\"
severity = \"critical\"
[[collector.alert]]
name = \"long condition\"
kind = \"rate\"
by = \"owner\"
key = \"atlas\"
above = \"1G\"
for = \"1h\"
[[collector.alert]]
name = \"far away\"
kind = \"rate\"
above = \"900T\"
";

#[test]
fn alerts_are_acknowledged_and_marked() {
    let node = Node::start(&format!("topology = {TOPOLOGY:?}\n{ALERTS}"));
    let _feed = Feed::start(node.sflow, "dtn9", COUNTER_INTERVAL_SHORT);
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("alerts"));
    browser.sees("1 firing, 1 pending");
    // Firing before pending, each with its severity; alerts within their thresholds stand apart.
    browser.until("(() => { const rows = [...document.querySelectorAll('[aria-labelledby=active] tbody tr')].map((one) => one.innerText); \
        return rows.length === 2 && /firing[^]*critical[^]*cms is busy/.test(rows[0]) && /pending[^]*warning[^]*long condition/.test(rows[1]); })()");
    browser.until(
        "document.querySelector('[aria-labelledby=rules] tbody tr').innerText.includes('far away')",
    );
    browser.until("[...document.querySelectorAll('[aria-labelledby=events] tbody tr')].some((one) => /Alert firing/.test(one.innerText))");
    // Without a token the page asks for it.
    browser.click("acknowledge cms is busy");
    browser.until("document.activeElement?.name === 'token'");
    browser.write(&node.token());
    browser.press("Enter");
    browser.until("document.querySelector('dialog') === null");
    browser.click("acknowledge cms is busy");
    browser.until("document.activeElement?.name === 'comment'");
    browser.write("ticket <b>7</b>");
    browser.press("Enter");
    browser.until("document.querySelector('dialog') === null");
    browser.sees("acknowledged: ticket <b>7</b>");
    browser.sees("Alert acknowledged");
    browser.picture("alerts-acknowledged");
    // The alert leads to its plot, which marks when it began to fire.
    browser.ask("[...document.querySelectorAll('[aria-labelledby=active] a')].find((one) => one.innerText === 'cms is busy').click()");
    browser.until("location.hash.startsWith('#/overview') && location.hash.includes('owner=cms') && location.hash.includes('view=lines')");
    browser.until("document.querySelector('.plot canvas') !== null");
    let shown = "(async () => { const plot = document.querySelector('.plot'); plot.focus(); \
        for (let step = 0; step < 240; step += 1) { plot.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft', bubbles: true })); \
        await new Promise((done) => setTimeout(done, 4)); if (document.querySelector('.told .event')) return document.querySelector('.told').innerText; } return null; })()";
    let shown = browser.until(shown);
    assert!(shown.as_str().unwrap().contains("Alert firing cms is busy"), "{shown}");
    browser.picture("events-in-plot");
    browser.assert_clean(&["/api/v1/events/network"]);
}

#[test]
fn hung_collector_is_announced() {
    let node = Node::start("");
    let _feed = Feed::start(node.sflow, "dtn9", COUNTER_INTERVAL_SHORT);
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("overview"));
    browser.sees("live, each second");
    browser.until("document.querySelector('.age.good') !== null");
    let signal = |name: &str| {
        let id = node.agent.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    };
    signal("-STOP");
    browser.sees("The collector does not answer.");
    browser.until("document.querySelector('.age.bad') !== null");
    browser.picture("hung");
    signal("-CONT");
    browser.until("document.querySelector('[role=alert]') === null");
    browser.until("document.querySelector('.age.good') !== null");
    browser.assert_clean(&["/api/v1/events/network", "ERR_", "Failed to load"]);
}
