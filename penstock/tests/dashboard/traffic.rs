//! Figures of real sFlow in the browser: live, paused, zoomed, filtered, on the map and as numbers.

use serde_json::json;

use crate::browser::Browser;
use crate::feed::{COUNTER_INTERVAL_SHORT, FLOWS, Feed};
use crate::{Node, TOPOLOGY};

/// Script: text of the page with plain spaces.
const TEXT: &str = "document.body.innerText.replaceAll('\\u00a0', ' ')";

#[test]
fn live_traffic_is_shown_by_owner() {
    let node = Node::start(&format!("topology = {TOPOLOGY:?}\n"));
    let _feed = Feed::start(node.sflow, "dtn9", COUNTER_INTERVAL_SHORT);
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("overview?view=table"));
    browser.sees("live, each second");
    for owner in ["cms", "atlas", "belleii", "unlabelled", "untrusted"] {
        browser.until(&format!("[...document.querySelectorAll('td')].some((one) => one.innerText.trim().toLowerCase() === '{owner}')"));
    }
    // Shown rates equal sent ones within their error and the feed's variation.
    let now = "(name) => { const row = [...document.querySelectorAll('tr')].find((one) => one.cells[0]?.innerText.trim().toLowerCase() === name); \
        if (!row) return null; const [, value, , unit] = /([\\d.]+)( ± [\\d.]+)? ([kMGT]?)b\\/s/.exec(row.cells[1].innerText.replaceAll('\\u00a0', ' ')) ?? []; \
        return value * { '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 }[unit]; }";
    let sent: f64 = FLOWS.iter().map(|flow| flow.bps).sum();
    let cms: f64 = FLOWS.iter().filter(|f| matches!(f.tag, Some((3, _)))).map(|f| f.bps).sum();
    for (name, bps) in [("cms", cms), ("atlas", FLOWS[1].bps)] {
        browser.until(&format!(
            "(() => {{ const seen = ({now})({}); return seen > {} && seen < {}; }})()",
            json!(name),
            bps * 0.8,
            bps * 1.2
        ));
    }
    let total = "parseFloat(/Total now ([\\d.]+)/.exec(document.body.innerText.replaceAll('\\u00a0', ' '))?.[1])";
    browser.until(&format!("Math.abs({total} - {}) < 0.25", sent / 1e12));
    browser.picture("overview-table");

    // The next second appears by itself, except while paused.
    browser.click("Stacked");
    browser.until("document.querySelector('.plot canvas') !== null");
    browser.press("p");
    browser.sees("paused");
    let legend = "document.querySelector('.legend').innerText";
    let held = browser.until(legend);
    browser.press("p");
    browser.sees("live, each second");
    browser.until(&format!("{legend} !== {held}"));

    // The plot shows values at the cursor, moved by mouse or keys.
    browser.ask("document.querySelector('.plot').focus()");
    browser.press("ArrowLeft");
    browser.press("ArrowLeft");
    browser.until("document.querySelector('.told') !== null && document.querySelector('.told').innerText.includes('±')");
    browser.picture("overview-light");
    browser.ask("document.activeElement.blur()");

    // A drag zooms and changes the URL; 0 resets.
    let over = browser.ask("(() => { const b = document.querySelector('.u-over').getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()");
    let [x, y, w, h] = [0, 1, 2, 3].map(|at| over[at].as_f64().unwrap());
    browser.drag((x + w * 0.5, y + h / 2.0), (x + w * 0.98, y + h / 2.0));
    browser.until("/from=\\d+&to=\\d+/.test(location.hash)");
    browser.sees("zoomed");
    browser.press("0");
    browser.sees("live, each second");

    // A click sets a filter in the URL, and another removes it.
    browser.press("b");
    browser.until("location.hash.includes('by=activity')");
    browser.press("b");
    browser.press("b");
    browser.until("location.hash.includes('by=vlan')");
    browser.until("[...document.querySelectorAll('.legend .name')].filter((one) => /^VLAN 202[678]$/.test(one.innerText)).length === 3");
    browser.until("(() => { const one = [...document.querySelectorAll('.legend button')].find((one) => one.innerText.includes('2027')); one?.click(); return one !== undefined; })()");
    browser.until("location.hash.includes('vlan=2027')");
    browser.sees("Filter");
    browser.until("document.querySelectorAll('.legend li').length === 1");
    browser.until("(() => { const one = document.querySelector('.filters button'); one?.click(); return one !== null; })()");
    browser.until("!location.hash.includes('vlan=2027')");
    browser.press("v");
    browser.press("v");
    browser.until("document.querySelectorAll('.panels canvas').length >= 4");
    browser.press("t");
    browser.picture("overview-panels");
    assert!(!browser.ask(TEXT).as_str().unwrap().contains("NaN"));
    browser.assert_clean(&["/api/v1/events/network"]);
}

#[test]
fn pages_render_in_themes_and_mobile() {
    let alerts = "[[collector.alert]]\nname = \"cms is busy\"\nkind = \"rate\"\nby = \"owner\"\nkey = \"cms\"\nabove = \"100G\"\nfor = \"1s\"\n\
        [[collector.alert]]\nname = \"someone is silent\"\nkind = \"silence\"\nabove = \"1h\"\n";
    let node = Node::start(&format!("topology = {TOPOLOGY:?}\n{alerts}"));
    let _feed = Feed::start(node.sflow, "dtn9", COUNTER_INTERVAL_SHORT);
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("hosts"));
    // Counters of two intervals have arrived.
    browser.until("document.querySelectorAll('td [role=meter]').length === 5");
    browser.open(&node.page("overview"));
    browser.sees("of 1.40 Tb/s");
    for (page, text) in [
        ("overview", "belleii"),
        ("map", "University of Victoria"),
        ("labels", "Untrusted"),
        ("hosts", "uvic3"),
        ("alerts", "firing"),
        ("experiments", "socket buffers"),
    ] {
        for (theme, width) in [("light", 1400), ("dark", 390)] {
            browser.size(width, 900);
            browser.open(&node.page(&format!("{page}?theme={theme}")));
            browser.sees(text);
            browser.until("document.querySelector('.waiting') === null");
            browser.picture(&format!("{page}-{theme}-{width}"));
            let wide = browser.ask("document.documentElement.scrollWidth > innerWidth");
            assert_eq!(wide, false, "{page} {width}");
            assert!(!browser.ask(TEXT).as_str().unwrap().contains("NaN"), "{page}");
        }
    }
    browser.assert_clean(&["/api/v1/events/network"]);
}

#[test]
fn lost_and_restored_connection_is_shown() {
    let mut node = Node::start("");
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("hosts"));
    browser.sees("No exporters yet.");
    node.agent.kill();
    browser.sees("No connection.");
    browser.sees("is `penstock serve` running");
    browser.picture("no-connection");
    browser.assert_clean(&[
        "/api/v1/events/network",
        "telemetry/alerts",
        "ERR_CONNECTION_REFUSED",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
    ]);
}
