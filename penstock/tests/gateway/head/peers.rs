//! A second head node in front of the same agents, and clients that treat redirects in their own way.

use std::fs;

use penstock_testkit::is_installed;

use super::{HeadSite, NOTICED_WITHIN, start_head, url_of};
use crate::clients::move_file_with_cadaver;
use crate::common::{seeded, wait_until};
use crate::root::uproot::assert_uproot_reads;
use crate::root::{AUTHZ, root_authority};
use crate::site::Site;

fn moved_files(site: &Site) -> u64 {
    site.transfers().iter().map(|one| one["files"].as_u64().unwrap_or(0)).sum()
}

#[test]
fn two_head_nodes_share_agents() {
    const FILE_COUNT: usize = 12;
    if !is_installed("curl") {
        return;
    }
    let mut site = HeadSite::new("");
    let url = |agent: &Site| agent.url("https").replace("127.0.0.1", "localhost");
    let urls: Vec<_> =
        site.agents.iter().map(|agent| url(agent).trim_end_matches('/').to_owned()).collect();
    let second = start_head(&site.data, &site.certificate, &urls, "");
    let (source, content) = site.upload(1751, 300_007);
    std::thread::scope(|scope| {
        for number in 0..FILE_COUNT {
            let (site, source, content) = (&site, &source, &content);
            let mut heads = [&site.head, &second];
            heads.rotate_left(number % 2);
            scope.spawn(move || {
                let [to, from] = heads.map(|head| url_of(head, &format!("f{number}")));
                let put = site.curl(&["-T", source, "-H", "Expect: 100-continue", &to]);
                assert!(put.status.success(), "{put:?}");
                let got = site.curl(&[&from]);
                assert!(got.stdout == *content, "{:?}", String::from_utf8_lossy(&got.stderr));
            });
        }
    });
    site.assert_moved_behind(2 * FILE_COUNT as u64);
    assert_eq!(moved_files(&second), 0);
    site.head.agent.kill();
    let got = site.curl(&[&url_of(&second, "f0")]);
    assert!(got.stdout == content, "{:?}", String::from_utf8_lossy(&got.stderr));
    site.assert_logs_without_tokens();
}

/// cadaver shows a redirect as an error, so that the head node serves it.
#[test]
fn cadaver_works_at_head_node() {
    if !is_installed("cadaver") {
        return;
    }
    let site = HeadSite::new("");
    let content = seeded(1752).bytes(300_000);
    fs::write(site.head.env.path("upload.bin"), &content).unwrap();
    let text = move_file_with_cadaver(&site.head);
    assert!(fs::read(site.head.env.path("copy.bin")).unwrap() == content, "{text}");
    assert_eq!(site.head.names(), ["probe"], "{text}");
}

#[test]
fn uproot_follows_head_node() {
    let site = HeadSite::new("");
    let url = format!("root://{}//store/data/t.root?{AUTHZ}", root_authority(&site.head));
    if !assert_uproot_reads(&site.head, &site.data.join("t.root"), &url) {
        return;
    }
    let has_sent = |site: &Site| {
        site.transfers().iter().any(|one| one["moved_bytes"].as_u64().is_some_and(|sent| sent > 0))
    };
    wait_until("an agent has sent data", NOTICED_WITHIN, || {
        site.agents.iter().any(has_sent).then_some(())
    });
    assert!(!has_sent(&site.head));
}
