//! Frame of all pages: empty states, keys, themes, help, links.

use crate::Node;
use crate::browser::Browser;

const PAGES: [(&str, &str); 9] = [
    ("overview", "No telemetry yet."),
    ("map", "The collector has no topology."),
    ("transfers", "No transfer is running."),
    ("labels", "No packet was sampled yet."),
    ("hosts", "No exporters yet."),
    ("alerts", "There are no rules."),
    ("experiments", "published results, reproduced with Penstock"),
    ("requests", "This host is not a controller."),
    ("classes", "This host is not a controller."),
];

#[test]
fn empty_pages_show_the_next_step() {
    let node = Node::start("");
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("overview"));
    for (at, (page, text)) in PAGES.into_iter().enumerate() {
        browser.press(&(at + 1).to_string());
        browser.until(&format!("location.hash.startsWith('#/{page}')"));
        browser.sees(text);
        // Landmarks, a title, one current page; every plot, field and button has an accessible name.
        let named = "[document.querySelectorAll('main, header, nav').length, \
            document.querySelectorAll('nav a[aria-current=page]').length, \
            [...document.querySelectorAll('button, input, [role=figure], dialog')].filter((one) => \
                !(one.textContent || one.getAttribute('aria-label') || one.closest('label')?.textContent)).length, \
            document.title.endsWith('· Penstock')].join()";
        let facts = browser.ask(named);
        let facts = facts.as_str().unwrap();
        assert!(facts.ends_with(",1,0,true"), "{page}: {facts}");
        browser.picture(&format!("empty-{page}"));
    }
    browser.open(&node.page("nowhere"));
    browser.sees("There is no such page.");
    // Answers of a node without the controller role.
    browser.assert_clean(&["/api/v1/requests", "/api/v1/classes", "/api/v1/events/network"]);
}

#[test]
fn url_keeps_theme_and_time_range() {
    let node = Node::start("");
    let mut browser = Browser::start(1400, 900);
    browser.wish("light");
    browser.open(&node.page("overview"));
    browser.sees("Overview");
    let ground = "getComputedStyle(document.querySelector('.bar')).backgroundColor";
    let light = browser.ask(ground);
    // The system's colour scheme applies unless the URL names one.
    browser.wish("dark");
    browser.until(&format!("{ground} !== {light}"));
    browser.press("t");
    browser.until("location.hash.includes('theme=light')");
    browser.until(&format!("{ground} === {light}"));
    browser.press("t");
    browser.until("location.hash.includes('theme=dark')");

    browser.press("?");
    browser.until("document.querySelector('dialog[open]') !== null");
    browser.sees("Keys and figures");
    browser.picture("help-dark");
    // An open dialog receives the keys.
    browser.press("3");
    browser.press("Escape");
    browser.until(
        "document.querySelector('dialog') === null && location.hash.startsWith('#/overview')",
    );

    browser.press("b");
    browser.until("location.hash.includes('by=activity')");
    browser.press("v");
    browser.until("location.hash.includes('view=lines')");
    browser.press("p");
    browser.until("/paused=\\d{10}/.test(location.hash)");
    browser.sees("Paused at");
    browser.press("p");
    browser.until("!location.hash.includes('paused')");
    browser.click("24 h");
    browser.until("location.hash.includes('range=24h')");
    browser.press("+");
    browser.until("/from=\\d{10}&to=\\d{10}/.test(location.hash)");
    let half = "(() => { const p = new URLSearchParams(location.hash.split('?')[1]); return p.get('to') - p.get('from'); })()";
    assert_eq!(browser.ask(half), 43_200);
    browser.press("[");
    browser.until(
        "new URLSearchParams(location.hash.split('?')[1]).get('to') < Date.now() / 1000 - 30000",
    );
    // Links to other pages keep time and theme, not the view.
    browser.press("4");
    browser.until("location.hash.startsWith('#/labels')");
    let address = browser.ask("location.hash");
    let address = address.as_str().unwrap();
    for (part, kept) in
        [("range=24h", true), ("from=", true), ("theme=dark", true), ("view=", false)]
    {
        assert_eq!(address.contains(part), kept, "{part} {address}");
    }
    browser.press("0");
    browser.until("!location.hash.includes('from=')");
    // A link reproduces the view.
    let shown = "#/overview?by=vlan&view=table&range=1h&theme=light";
    browser.open("about:blank");
    browser.open(&format!("http://{}/{shown}", node.agent.http));
    browser.until("document.querySelector('button[aria-pressed=true][title*=\"hour\"]') !== null");
    browser.until(&format!("{ground} === {light}"));
    browser.assert_clean(&["/api/v1/events/network"]);
}

#[test]
fn absolute_times_have_a_zone() {
    let node = Node::start("");
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("overview?tz=Asia/Tokyo"));
    browser.sees("Asia/Tokyo");
    browser.press("a");
    browser.until("document.activeElement?.name === 'from'");
    let fill = |name: &str, text: &str| {
        format!(
            "(() => {{ const one = document.querySelector('input[name={name}]'); one.value = '{text}'; \
             one.dispatchEvent(new Event('input', {{ bubbles: true }})); return true; }})()"
        )
    };
    browser.ask(&fill("from", "2026-02-30 10:00"));
    browser.press("Enter");
    browser.sees("From is no time");
    browser.ask(&fill("from", "2026-01-05 09:00"));
    browser.ask(&fill("to", "2026-01-05 10:30:15"));
    browser.press("Enter");
    browser.until("document.querySelector('dialog') === null");
    // Nine hours before UTC.
    browser.until("location.hash.includes('from=1767571200&to=1767576615')");
    browser.sees("2026-01-05 09:00:00 to 10:30:15");
    browser.open(&node.page("overview?from=1767571200&to=1767576615&tz=America/New_York"));
    browser.sees("2026-01-04 19:00:00 to 20:30:15");
    // The hour before and after clocks change, and a relative time.
    let at = "(async () => { const { setZone, moment, parseMoment } = await import('/ui/lib/units.js'); \
        const { momentOf } = await import('/ui/parts/time.js'); setZone('Europe/Zurich'); \
        return [parseMoment('2026-03-29 01:30'), parseMoment('2026-03-29 03:30'), moment(1774745999), momentOf('now-6h', 100000), momentOf('soon'), parseMoment('2026-13-01')].join(); })()";
    assert_eq!(browser.ask(at), "1774744200,1774747800,2026-03-29 01:59:59,78400,,");
    browser.assert_clean(&["/api/v1/events/network"]);
}
