//! `penstock plan` by its command line: LHC models, overflowing links, pictures, mistakes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn plan(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_penstock"))
        .arg("plan")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../experiments/plans"))
        .output()
        .expect("the binary starts")
}

#[track_caller]
fn printed(arguments: &[&str]) -> String {
    let output = plan(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

const NETWORK: [&str; 3] = ["hl-lhc.toml", "--topology", "hl-lhc-network.toml"];

#[test]
fn the_table_has_the_published_models() {
    let text = printed(&["hl-lhc.toml"]);
    let totals: Vec<&str> = text.lines().filter(|line| line.starts_with("total ")).collect();
    let words = totals.iter().map(|line| line.split_whitespace().skip(1).take(2));
    let first: Vec<String> = words.map(|words| words.collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(first, ["1.20 Tb/s", "4.80 Tb/s", "9.60 Tb/s"], "{text}");
    assert!(text.contains("350 PB within 81d00h"), "{text}");
    assert!(!text.contains("overflows"), "{text}");
}

#[test]
fn links_overflow_in_published_year() {
    let text = printed(&[&NETWORK[..], &["--model", "minimal"]].concat());
    let row = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("it is there");
    assert!(row("ana-1 ").ends_with("in 2033"), "{text}");
    assert!(row("paris-ral ").contains("689 Gb/s 172 %"), "{text}");
    let object: Value =
        serde_json::from_str(&printed(&[&NETWORK[..], &["--json", "--year", "2031"]].concat()))
            .expect("JSON");
    let minimal = &object["models"][1];
    assert_eq!(minimal["name"], "minimal");
    assert_eq!(minimal["years"][0]["rate_bits_per_second"], 9_408_000_000_000_u64);
    assert_eq!(minimal["links"].as_array().map(Vec::len), Some(17));
    assert_eq!(minimal["links"][9]["name"], "fnal-triumf");
    assert_eq!(minimal["links"][9]["overflows"], 2031);
}

#[test]
fn svg_shows_years_or_links() {
    let bars = printed(&["hl-lhc.toml", "--svg"]);
    assert!(bars.starts_with("<svg") && bars.contains("flexible, 2034"), "{bars}");
    let links =
        printed(&[&NETWORK[..], &["--svg", "--year", "2034", "--model", "flexible"]].concat());
    assert!(links.starts_with("<svg") && links.contains("class=\"link over\""), "{links}");
}

#[test]
fn mistakes_print_one_line_with_remedy() {
    for (arguments, words) in [
        (&["none.toml"][..], "cannot read none.toml"),
        (&["hl-lhc-network.toml"], "hl-lhc-network.toml:1:1: a plan needs a key: year (and "),
        (
            &["hl-lhc.toml", "--model", "maximal"],
            "there is no model 'maximal': there are mean, minimal, flexible",
        ),
        (&["hl-lhc.toml", "--year", "2028"], "the plan is for the years 2029 to 2034"),
        (&["hl-lhc.toml", "--json", "--svg"], "cannot be used with"),
        (
            &["hl-lhc.toml", "--topology", "../topologies/sc14.toml"],
            "../topologies/sc14.toml: site 'cern' of the plan is behind 'cern', and the topology has no such host, switch or site",
        ),
    ] {
        let output = plan(arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{arguments:?}: {error}");
    }
}
