//! The page at the size of a federation: short pages, nothing clipped, problems first, and no faults of accessibility by the
//! rules of axe-core, which npm installs into the target folder.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::browser::Browser;
use crate::scale::{ALERTS, HOST_COUNT, LINK_COUNT, LINKS_DOWN, LOSSY_HOSTS, Scale, ScaleFeed};
use crate::{Node, TOPOLOGY};

/// Greatest height of a page in pixels at any size of the network.
const HEIGHT_MAX: u64 = 3_600;

/// A node that receives the federation's telemetry, and the folder of its topology.
pub(crate) struct Federation {
    pub(crate) node: Node,
    _feed: ScaleFeed,
    _dir: tempfile::TempDir,
}

impl Federation {
    pub(crate) fn start() -> Self {
        let scale = Scale::new(15);
        let dir = tempfile::tempdir().unwrap();
        let topology = dir.path().join("federation.toml");
        std::fs::write(&topology, scale.topology()).unwrap();
        let more = format!("topology = {topology:?}\n{}{ALERTS}", scale.config());
        let node = Node::start_with_marking("2001:db8::/32", &more);
        let feed = ScaleFeed::start(scale, node.sflow);
        Self { node, _feed: feed, _dir: dir }
    }
}

/// Script of axe-core; none if npm cannot install it.
fn axe() -> Option<&'static str> {
    static AXE: OnceLock<Option<String>> = OnceLock::new();
    let install = || {
        let own = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/dashboard/axe");
        let place = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("axe");
        let script = place.join("node_modules/axe-core/axe.min.js");
        std::fs::create_dir_all(&place).ok()?;
        let lock = std::fs::read(own.join("package-lock.json")).ok()?;
        let same = std::fs::read(place.join("package-lock.json")).is_ok_and(|old| old == lock);
        if !same || !script.exists() {
            for file in ["package.json", "package-lock.json"] {
                std::fs::copy(own.join(file), place.join(file)).ok()?;
            }
            let npm = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
            let done = Command::new("npm").args(npm).current_dir(&place).output().ok()?;
            if !done.status.success() {
                eprintln!("npm ci: {}", String::from_utf8_lossy(&done.stderr));
                return None;
            }
        }
        std::fs::read_to_string(script).ok()
    };
    AXE.get_or_init(install).as_deref()
}

/// Violations that axe-core rates serious or critical, one a line.
fn faults(browser: &mut Browser, axe: &str) -> Vec<String> {
    browser.ask(&format!("window.axe ? 0 : (() => {{ {axe}; return 0; }})()"));
    let run = "axe.run(document, { resultTypes: ['violations'] }).then((result) => result.violations \
        .filter((one) => one.impact === 'serious' || one.impact === 'critical') \
        .map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(' | ')}`))";
    let found = browser.ask(run);
    found.as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// Elements that overflow the window or clip their content. Texts cut with an ellipsis have the full text as title.
const CLIPPED: &str = "(() => { const out = []; for (const one of document.querySelectorAll('body *')) { \
    if (one.closest('svg, .unseen, .skip, .cards thead, dialog:not([open])') || one.matches('.name, .value, input, select')) continue; \
    const box = one.getBoundingClientRect(); if (box.width === 0) continue; const style = getComputedStyle(one); \
    if (!one.closest('.matrix') && (box.right > innerWidth + 1 || box.left < -1)) out.push(`${one.tagName}.${one.className} ${box.left}..${box.right}`); \
    if (one.clientWidth > 0 && one.scrollWidth > one.clientWidth + 1 && style.overflowX !== 'visible' && !one.matches('.matrix, .matrix *')) out.push(`${one.tagName}.${one.className} ${one.scrollWidth} > ${one.clientWidth}`); \
    } return out.slice(0, 10); })()";

#[test]
fn pages_fit_and_are_accessible() {
    let federation = Federation::start();
    let node = &federation.node;
    let mut browser = Browser::start(1600, 1000);
    browser.open(&node.page("hosts"));
    browser.until(&format!("document.body.innerText.replaceAll('\\u202f', '').includes('{HOST_COUNT} in total') || document.body.innerText.includes('524 in total')"));
    browser.open(&node.page("alerts"));
    browser.sees("firing");
    let axe = axe();
    if axe.is_none() {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "npm cannot install axe-core: no rules of accessibility are checked",
        );
    }
    for (page, ready) in [
        ("overview", "document.querySelectorAll('.legend li').length > 5"),
        ("overview?by=host&view=table", "document.querySelectorAll('tbody tr').length > 10"),
        (
            "overview?by=interface&view=panels",
            "document.querySelectorAll('.panels canvas').length > 5",
        ),
        ("map", "document.querySelectorAll('.map .link').length > 20"),
        ("map?view=matrix", "document.querySelectorAll('.matrix tbody tr').length > 2"),
        (
            "map?link=cern-fnal-1",
            "document.querySelector('[aria-labelledby=link] canvas') !== null",
        ),
        ("labels", "document.querySelectorAll('.legend li').length > 5"),
        ("hosts", "document.querySelectorAll('[aria-labelledby=interfaces] tbody tr').length > 5"),
        ("alerts", "document.querySelectorAll('[aria-labelledby=events] tbody tr').length > 0"),
        ("transfers", "document.querySelector('.empty') !== null"),
        (
            "experiments?report=sc25-scitags",
            "document.querySelectorAll('.picture img').length === 4",
        ),
        ("requests", "document.querySelector('.empty') !== null"),
        ("classes", "document.querySelector('.empty') !== null"),
    ] {
        for (width, theme) in [(390, "light"), (1024, "dark"), (1600, "light")] {
            browser.size(width, 900);
            let sign = if page.contains('?') { '&' } else { '?' };
            browser.open("about:blank");
            browser.open(&node.page(&format!("{page}{sign}theme={theme}")));
            browser.until(ready);
            let at = format!("{page} at {width} in {theme}");
            browser.until("document.querySelector('main .waiting') === null");
            let clipped = browser.ask(CLIPPED);
            assert_eq!(clipped, Value::Array(Vec::new()), "{at}");
            let height = browser.ask("document.documentElement.scrollHeight").as_u64().unwrap();
            // Reports have any length, and the matrix has a row for each site.
            assert!(height < HEIGHT_MAX || page.starts_with("experiments"), "{at}: {height}");
            let name: String =
                page.chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
            browser.picture(&format!("federation-{name}-{width}-{theme}"));
            if let Some(axe) = axe {
                let faults = faults(&mut browser, axe);
                assert!(faults.is_empty(), "{at}: {faults:#?}");
            }
        }
    }
    browser.assert_clean(&["/api/v1/events/network", "/api/v1/requests", "/api/v1/classes"]);
}

/// Script: texts of the table rows in a panel.
fn rows(panel: &str) -> String {
    format!(
        "[...document.querySelectorAll('[aria-labelledby={panel}] tbody tr')].map((one) => one.innerText)"
    )
}

#[test]
fn problems_are_first_and_searched() {
    let federation = Federation::start();
    let node = &federation.node;
    let mut browser = Browser::start(1600, 1000);
    browser.open(&node.page("map?view=list"));
    browser.until(&format!(
        "(() => {{ const all = {}; return all.length === 20 && all.slice(0, {LINKS_DOWN}).every((text) => text.includes('down')); }})()",
        rows("links")
    ));
    browser.sees(&format!("{LINK_COUNT} in total"));
    assert_eq!(browser.ask(&format!("{}.length", rows("links"))), 20);
    browser.click("next page of Links");
    browser.sees(&format!("21–40 of {LINK_COUNT}"));
    browser.ask("document.querySelector('[aria-label=\"Search Links\"]').focus()");
    browser.write("rt-kek tsukuba");
    browser.until(&format!(
        "{}.length > 1 && {0}.every((text) => text.includes('rt-kek'))",
        rows("links")
    ));
    browser.until("[...document.querySelectorAll('button')].some((one) => one.innerText.startsWith('Over 80 % or down'))");
    browser.ask("[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('Over 80 % or down')).click()");
    browser.until("location.hash.includes('use=high')");
    browser.ask("(() => { const one = document.querySelector('[aria-label=\"Search Links\"]'); one.value = ''; one.dispatchEvent(new Event('input', { bubbles: true })); })()");
    browser.until(&format!(
        "{}.length > {LINKS_DOWN} && {0}.every((text) => /down|over 80/.test(text))",
        rows("links")
    ));
    // Silent and lossy exporters come first.
    browser.open(&node.page("hosts"));
    browser.until(&format!(
        "(() => {{ const all = {}; return all.length === 20 && all.slice(0, {LOSSY_HOSTS}).every((text) => /silent|losing/.test(text)); }})()",
        rows("exporters")
    ));
    browser.ask("[...document.querySelectorAll('button')].find((one) => one.innerText.startsWith('Problems')).click()");
    browser.until("location.hash.includes('state=problems')");
    browser.until(&format!(
        "(() => {{ const all = {}; return all.length >= {LOSSY_HOSTS} && all.every((text) => !/○ ok/.test(text)); }})()",
        rows("exporters")
    ));
    // Hosts are shown by name, and a click on one shows its traffic.
    browser.open(&node.page("overview?by=host"));
    browser.until("document.querySelectorAll('.legend li').length === 13");
    browser.until("[...document.querySelectorAll('.legend li .name')].slice(0, 12).every((one) => one.innerText.includes('.example.org'))");
    browser.until(
        "[...document.querySelectorAll('.legend li .name')].at(-1).innerText.startsWith('Other')",
    );
    let rates = "[...document.querySelectorAll('.legend li')].slice(0, 12).map((one) => { \
        const [, value, unit] = /([\\d.]+) ([kMGT]?)b\\/s/.exec(one.querySelectorAll('.figure')[1].innerText.replaceAll('\\u00a0', ' ')); \
        return value * { '': 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12 }[unit]; })";
    let sorted = format!(
        "(() => {{ const all = {rates}; return all.every((rate, at) => at === 0 || all[at - 1] >= rate); }})()"
    );
    browser.until(&sorted);
    browser.assert_clean(&["/api/v1/events/network"]);
}

#[test]
fn map_zooms_moves_and_opens_history() {
    let federation = Federation::start();
    let node = &federation.node;
    let mut browser = Browser::start(1600, 1000);
    browser.open(&node.page("map"));
    browser.until("document.querySelectorAll('.map .link').length > 20");
    // Texts overlap neither each other nor the circles of sites.
    let overlaps = "(() => { const all = [...document.querySelectorAll('.map text.name, .map text.figure')].map((one) => one.getBoundingClientRect()); \
        let count = 0; all.forEach((a, at) => all.slice(at + 1).forEach((b) => { if (a.left < b.right - 1 && a.right > b.left + 1 && a.top < b.bottom - 2 && a.bottom > b.top + 2) count += 1; })); return count; })()";
    assert_eq!(browser.ask(overlaps), 0);
    let sites = "document.querySelectorAll('.map .site').length";
    let before = browser.ask(sites).as_u64().unwrap();
    assert!(before < 24, "sites too close to tell apart are one: {before}");
    for _ in 0..3 {
        browser.click("zoom in");
    }
    browser.until("/view_at=[-\\d.]+,[-\\d.]+,4\\.09/.test(location.hash)");
    assert_eq!(browser.ask(overlaps), 0);
    let address = browser.ask("location.hash");
    browser.drag((500.0, 400.0), (700.0, 450.0));
    browser.until(&format!("location.hash !== {address} && location.hash.includes('view_at')"));
    assert_eq!(browser.ask("location.hash.includes('link=')"), false, "a drag is no click");
    browser.click("whole map");
    browser.until("!location.hash.includes('view_at')");
    // Parallel links are one bundle: a click on it lists them, a click on one shows its history.
    let middle = "(() => { const one = [...document.querySelectorAll('.map .link')].find((one) => /^(1\\d|2\\d|3\\d) links/.test(one.querySelector('title').textContent)); \
        const path = one.querySelector('.reach'); const at = path.getPointAtLength(path.getTotalLength() / 2); \
        one.dispatchEvent(new MouseEvent('click', { bubbles: true })); return [at.x, at.y]; })()";
    browser.ask(middle);
    browser.until("location.hash.includes('link=') && location.hash.includes(',')");
    browser.sees("Links of this bundle");
    browser.ask("document.querySelector('[aria-labelledby=links] tbody button.link').click()");
    browser.until("document.querySelector('[aria-labelledby=link] canvas') !== null");
    browser.sees("A to B");
    browser.sees("B to A");
    browser.sees("95th percentile of the fuller direction");
    // The matrix leads to the traffic of a pair.
    browser.open(&node.page("map?view=matrix"));
    browser.until("document.querySelectorAll('.matrix tbody td button').length > 100");
    browser.ask("document.querySelector('.matrix tbody td button').click()");
    browser.until("/site_pair=[a-z0-9]+%3E[a-z0-9]+/.test(location.hash)");
    browser.sees("Site pair");
    browser.until("document.querySelectorAll('.legend li').length > 0");
    browser.assert_clean(&["/api/v1/events/network"]);
}

#[test]
fn figures_are_saved_as_files() {
    let node = Node::start(&format!("topology = {TOPOLOGY:?}\n"));
    let _feed = crate::feed::Feed::start(node.sflow, "=dtn9", crate::feed::COUNTER_INTERVAL_SHORT);
    let mut browser = Browser::start(1400, 900);
    browser.open(&node.page("overview?by=vlan"));
    browser.until("document.querySelectorAll('.legend li').length >= 3");
    // Record the files that the page hands to the browser, which stores none of them.
    browser.ask("HTMLAnchorElement.prototype.click = () => {}; window.saved = []; URL.createObjectURL = ((make) => (blob) => { saved.push(blob); return make.call(URL, blob); })(URL.createObjectURL); 0");
    // A young collector has one sample: save until the file has two.
    let save = "document.querySelector('[aria-labelledby=traffic] .saves button').click(); \
        saved.pop().text().then((text) => text.trim().split('\\n').length > 2 ? text : null)";
    let csv = browser.until(save);
    let csv = csv.as_str().unwrap();
    let head = csv.lines().next().unwrap();
    assert!(
        head.starts_with("time_utc,total bit/s,total error bit/s,")
            && head.contains("VLAN 2027 bit/s"),
        "{head}"
    );
    let cells = head.split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == cells), "{csv}");
    browser.ask("saved.length = 0; document.querySelectorAll('[aria-labelledby=traffic] .saves button')[1].click()");
    browser.until("saved.length > 0 && saved[0].type === 'image/png' && saved[0].size > 5000");
    // A name that a spreadsheet would evaluate is escaped.
    browser.open(&node.page("hosts"));
    browser.until("document.body.innerText.includes('=dtn9')");
    let cell = "import('/ui/lib/export.js').then(({ csv }) => csv([['=1+1', 'a \"b\"', null, 1.5, '@x']]))";
    assert_eq!(browser.ask(cell), "'=1+1,\"a \"\"b\"\"\",,1.5,'@x\r\n");
    browser.open(&node.page("map"));
    browser.until("document.querySelectorAll('.map .link').length > 0");
    browser.ask("window.saved = []; URL.createObjectURL = ((make) => (blob) => { saved.push(blob); return make.call(URL, blob); })(URL.createObjectURL); 0");
    browser.click("PNG");
    browser.until("saved.some((one) => one.type === 'image/png' && one.size > 5000)");
    browser.assert_clean(&["/api/v1/events/network"]);
}
