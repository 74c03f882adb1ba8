//! Requests and classes in the browser: a real controller over real nodes that move files.

use std::fs;

use crate::browser::{Browser, PAGE_TIMEOUT};
use crate::common::site::Operations;
use crate::common::{run, seeded, wait_until, write_file};

/// Rates so low that requests run for the whole test.
const CLASSES: &str = r#"
[[controller.class]]
name = "production"
weight = 3
mark = "3M"
cap = "4M"
[[controller.class]]
name = "analysis"
weight = 1
floor = "1M"
cap = "2M"
"#;

#[test]
fn token_lets_user_change_requests() {
    let mut random = seeded(7_400);
    let operations = Operations::start(CLASSES);
    let (a, _b) = (operations.node("dtn-a"), operations.node("dtn-b"));
    fs::create_dir(a.path("set")).unwrap();
    for number in 0..8 {
        // One name with non-ASCII letters, one with markup.
        let name = if number == 0 { "<b>r\u{fc}n<i>".to_owned() } else { format!("run {number}") };
        write_file(&mut random, &a.path("set").join(name), 8 << 20);
    }
    let submit = |to: &str, class: &str| {
        operations.submit("a:/data/set", &format!("b:/data/{to}"), to, &["--class", class])
    };
    let (first, second) = (submit("one", "production"), submit("two", "analysis"));

    let mut browser = Browser::start(1500, 1000);
    let page = |page: &str| format!("http://{}/#/{page}", operations.listen);
    browser.open(&page("requests"));
    browser.until("document.querySelectorAll('[aria-labelledby=requests] tbody tr').length === 2");
    browser.sees("a:/data/set");
    browser.click(&format!("request {first}"));
    browser.until(&format!("location.hash.includes('request={first}')"));
    // Orders with rate and reason, files, and the event history.
    browser.until("document.querySelectorAll('[aria-labelledby=why] tbody tr').length > 0");
    browser.sees("production");
    browser.sees("dtn-a");
    browser.until("document.querySelectorAll('[aria-labelledby=files] tbody tr').length === 8");
    browser.sees("<b>r\u{fc}n<i>");
    browser.until("document.querySelectorAll('[aria-labelledby=history] tbody tr').length > 0");
    assert_eq!(
        browser.ask("document.querySelectorAll('[aria-labelledby=why] .actions').length"),
        0
    );
    browser.until("document.querySelector('[aria-labelledby=why]').innerText.includes('class production is at its cap')");
    browser.picture("requests");

    // With the token the request can be changed.
    browser.press("k");
    browser.until("document.activeElement?.name === 'token'");
    browser.write(fs::read_to_string(operations.state.join("token")).unwrap().trim());
    browser.press("Enter");
    browser.until("document.querySelector('dialog') === null");
    browser.click("Pause");
    browser.click(&format!("Pause request {first}"));
    let is = |request: u64, what: &str, value: serde_json::Value| {
        wait_until(what, PAGE_TIMEOUT, || (operations.facts(request)[what] == value).then_some(()));
    };
    is(first, "paused", true.into());
    browser.sees("paused");
    browser.click("Resume");
    browser.click(&format!("Resume request {first}"));
    is(first, "paused", false.into());
    browser.click("Change priority");
    browser.until("document.activeElement?.name === 'priority'");
    browser.ask("document.querySelector('input[name=priority]').select()");
    browser.write("5");
    // Updates of the request, every 2 s, keep typed text.
    browser.ask("performance.clearResourceTimings()");
    browser.until(&format!(
        "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/requests/{first}')).length > 1"
    ));
    browser.until("document.querySelector('input[name=priority]').value === '5'");
    browser.press("Enter");
    is(first, "priority", 5.into());
    browser.until("document.querySelector('dialog') === null");

    browser.press("9");
    browser.until("location.hash.startsWith('#/classes')");
    browser.until("document.querySelectorAll('[aria-labelledby=classes] tbody tr').length === 2");
    // The bar shows the rate against its marks, and so does the text.
    browser.until(
        "[...document.querySelectorAll('[aria-labelledby=classes] .marks')].every((one) => \
         /measured .*, allocated [1-9].*, .*cap [24]/.test(one.getAttribute('aria-label')))",
    );
    browser.until("document.querySelectorAll('[aria-labelledby=over-time] canvas').length > 0");
    browser.until("document.querySelectorAll('[aria-labelledby=links] tbody tr').length === 3");
    browser.until("document.querySelectorAll('[aria-labelledby=rounds] tbody tr').length > 0");
    browser.sees("no reservations");
    browser.picture("classes");

    browser.open(&page(&format!("requests?request={second}")));
    browser.click("Cancel");
    browser.click(&format!("Cancel request {second}"));
    // The request ends once its node has reported the files.
    wait_until("the wish", PAGE_TIMEOUT, || {
        let facts = operations.facts(second);
        (facts["cancelling"] == true || facts["state"] == "cancelled").then_some(())
    });
    // A drain is an event, in the history of events and in the plot of classes.
    run(operations.ask(&["drain", "dtn-c", "--reason", "new <i>disks</i>"])).good();
    browser.open(&page("alerts"));
    browser.until("[...document.querySelectorAll('[aria-labelledby=events] tbody tr')].some((one) => /Drain/.test(one.innerText) && one.innerText.includes('dtn-c is drained: new <i>disks</i>'))");
    // Pages of other roles say what is missing.
    browser.open(&page("overview"));
    browser.sees("This host is not a collector.");
    browser.open(&page("transfers"));
    browser.sees("This host is not an agent");
    browser.assert_clean(&["/api/v1/telemetry"]);
}
