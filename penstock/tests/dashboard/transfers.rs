//! Transfers in the browser: readable without the token, changed only with it.

use std::fs;

use penstock_testkit::http::TestRequest;
use serde_json::{Value, json};

use crate::Node;
use crate::browser::{Browser, PAGE_TIMEOUT};
use crate::common::{FaultProxy, RunningCommand, TestEnv, seeded, wait_until, write_file};

/// Starts a copy to `name` at the node that would take minutes.
pub(crate) fn slow(node: &Node, name: &str) -> RunningCommand {
    let file = node.env.source.join("file");
    if !file.exists() {
        write_file(&mut seeded(511), &file, 64 << 20);
    }
    let options = ["--rate", "2M", "--block", "64KiB", "--memory", "512KiB"];
    let to = node.agent.url(&format!("data/{name}"));
    RunningCommand::start(node.env.cp(&options).arg(&file).arg(to))
}

/// Transfers of the agent in state `state`.
fn transfers(node: &Node, state: &str) -> Vec<Value> {
    let mut all = node.agent.transfers(&node.env.state);
    all.retain(|one| one["state"] == state);
    all
}

#[test]
fn token_lets_user_change_transfers() {
    let node = Node::start("");
    fs::create_dir(node.env.root.join("run7")).unwrap();
    let [first, second] = ["run7/one", "run7/two"].map(|name| slow(&node, name));
    wait_until("both run", crate::browser::PAGE_TIMEOUT, || {
        (transfers(&node, "running").len() == 2).then_some(())
    });

    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("transfers"));
    browser.sees("run7/one");
    browser.sees("2 transfers,");
    browser.sees("read-only: press k for the token");
    assert_eq!(browser.ask("document.querySelectorAll('.actions').length"), 0);
    browser.until(
        "Number(document.querySelector('tbody [role=meter]').getAttribute('aria-valuenow')) >= 0",
    );

    // A wrong token is reported and dropped; the right one is kept for this tab.
    browser.press("k");
    browser.until("document.activeElement?.name === 'token'");
    browser.write("a-token-of-another-agent");
    browser.press("Enter");
    browser.sees("the token is not this agent's");
    browser.until("sessionStorage.getItem('penstock.token') === null");
    browser.ask("document.querySelector('input[name=token]').value = ''; document.querySelector('input[name=token]').focus()");
    browser.write(&node.token());
    browser.press("Enter");
    browser.until("document.querySelector('dialog') === null");
    browser.sees("Token ✓");
    browser.until("document.querySelectorAll('.actions').length === 2");
    assert_eq!(browser.ask("JSON.stringify(localStorage) + document.cookie"), "{}");
    assert!(!browser.ask("location.href").as_str().unwrap().contains(&node.token()));
    browser.picture("transfers");

    let id = |name: &str| {
        let running = transfers(&node, "running");
        let one = running.iter().find(|one| one["path"].as_str().unwrap().ends_with(name));
        one.unwrap_or_else(|| panic!("{running:?}"))["id"].as_u64().unwrap()
    };
    let [one, two] = ["one", "two"].map(id);
    browser.click(&format!("change transfer {one}"));
    browser.until("document.activeElement?.name === 'rate'");
    browser.write("fast");
    browser.press("Enter");
    browser.sees("The host answered 400.");
    browser.picture("change-refused");
    browser.ask("document.querySelector('input[name=rate]').value = ''; document.querySelector('input[name=rate]').focus()");
    browser.write("3M");
    browser.press("Enter");
    browser.until("document.querySelector('dialog') === null");
    wait_until("the rate is another", crate::browser::PAGE_TIMEOUT, || {
        transfers(&node, "running")
            .iter()
            .any(|t| t["id"] == one && t["rate_bps"] == 3_000_000)
            .then_some(())
    });

    browser.click(&format!("cancel transfer {two}"));
    browser.sees("What has arrived stays");
    browser.click("Keep running");
    browser.until("document.querySelector('dialog') === null");
    browser.click(&format!("cancel transfer {two}"));
    browser.click(&format!("Cancel transfer {two}"));
    browser.sees("cancelled");
    browser.sees("1 transfer,");
    assert_eq!(second.wait().code, 1);
    assert_eq!(transfers(&node, "cancelled").len(), 1);

    // Without the token the page changes nothing.
    browser.press("k");
    browser.click("Forget it");
    browser.until("document.querySelectorAll('.actions').length === 0");
    browser.sees("Read-only");
    first.kill();
    browser.assert_clean(&["401", "400"]);
}

/// Submits a copy over connections that a proxy caps, and returns its number once its streams were changed.
fn tuned(node: &Node, other: &TestEnv, fingerprint: &str, proxy: &FaultProxy) -> u64 {
    write_file(&mut seeded(512), &node.env.root.join("file"), 160 << 20);
    let token = fs::read_to_string(other.state.join("token")).unwrap();
    let body = json!({
        "source": "/data/file", "destination": proxy.url("file"), "encrypt": false,
        "remote": {"token": token.trim(), "fingerprint": fingerprint},
    });
    let ask = |method, path: &str| {
        TestRequest::new(&node.agent.http, method, path).token(&node.token()).json(&body).send()
    };
    let submitted = ask("POST", "/api/v1/transfers");
    assert_eq!(submitted.status, 201, "{}", submitted.text());
    let id = submitted.json()["id"].as_u64().unwrap();
    let path = format!("/api/v1/transfers/{id}/tuning");
    wait_until("two steps", PAGE_TIMEOUT, || {
        let tuning = TestRequest::new(&node.agent.http, "GET", &path).token(&node.token()).send();
        (tuning.json()["decisions"].as_array()?.len() >= 3).then_some(())
    });
    id
}

#[test]
fn decisions_show_beside_rate() {
    let node = Node::start("");
    let far = TestEnv::new();
    let other = far.agent();
    let proxy = FaultProxy::paced(&other.listen, 1 << 20);
    let id = tuned(&node, &far, &other.fingerprint, &proxy);
    let mut browser = Browser::start(1400, 900);
    browser.wish("light");
    browser.open(&node.page("transfers"));
    browser.click(&format!("streams of transfer {id}"));
    browser.until(&format!("location.hash.includes('transfer={id}')"));
    browser.sees("Tries streams");
    let marks = "document.querySelectorAll('.tuning .decision').length";
    browser.until(&format!("{marks} >= 3"));
    browser.until("document.querySelector('.tuning .rate').getAttribute('d').includes('L')");
    assert!(
        browser.ask("document.querySelector('.tuning').getAttribute('aria-label')").is_string()
    );
    browser.picture("tuning-light");

    // The first decision by the keyboard, and another by the mouse.
    browser.ask("document.querySelector('.tuning').focus()");
    browser.press("ArrowRight");
    browser
        .until("document.querySelector('.tuning .event')?.textContent.includes('Tries streams')");
    browser.until("document.querySelector('tr.chosen')?.textContent.includes('Tries streams')");
    browser.wish("dark");
    browser.picture("tuning-dark");
    browser.ask("document.querySelector('.tuning').blur()");
    browser.until("document.querySelector('.tuning .told') === null");
    let place = browser.ask(
        "(() => { const box = document.querySelectorAll('.tuning .decision')[1].querySelector('circle')\
         .getBoundingClientRect(); return [box.x + box.width / 2, box.y + 40]; })()",
    );
    browser.mouse("mouseMoved", place[0].as_f64().unwrap(), place[1].as_f64().unwrap());
    browser.until("document.querySelector('.tuning .told .event') !== null");
    browser.size(390, 900);
    browser.until("document.documentElement.scrollWidth <= 390");
    browser.picture("tuning-narrow");
    browser.click(&format!("close the streams of transfer {id}"));
    browser.until("document.querySelector('.tuning') === null");
    // One that failed says why, in the list and alone.
    let body = json!({
        "source": "/data/file", "destination": format!("penstock://{}/", other.listen),
        "remote": {"token": "0".repeat(64), "fingerprint": other.fingerprint},
    });
    let request = TestRequest::new(&node.agent.http, "POST", "/api/v1/transfers");
    let refused = request.token(&node.token()).json(&body).send();
    let refused = refused.json()["id"].as_u64().unwrap();
    browser.until("document.querySelector('[aria-labelledby=ended]')?.innerText.includes('the token is not one of this agent')");
    browser.open(&node.page(&format!("transfers?transfer={refused}")));
    browser.until("document.querySelector('[aria-labelledby=tuning]')?.innerText.includes('the token is not one of this agent')");
    // One that is not tuned says why.
    browser.open(&node.page("transfers?transfer=4711"));
    browser.sees("no transfer 4711");
    browser.assert_clean(&["404"]);
}
