//! The HL-LHC plan: published figures of both models are reproduced, and links overflow in the expected years.

use std::fs;
use std::path::Path;

use penstock_plan::{DemandPlan, LinkLoads, LoadsError, TrafficModel, chart, forecast};
use penstock_topology::{Topology, draw};
use penstock_units::BitRate;
use proptest::prelude::*;

fn text(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/plans");
    fs::read_to_string(folder.join(name)).expect("the file is readable")
}

fn plan() -> DemandPlan {
    DemandPlan::read(&text("hl-lhc.toml")).unwrap_or_else(|faults| panic!("{faults}"))
}

fn network() -> Topology {
    Topology::read(&text("hl-lhc-network.toml")).unwrap_or_else(|faults| panic!("{faults}"))
}

fn model<'a>(plan: &'a DemandPlan, name: &str) -> &'a TrafficModel {
    plan.models.iter().find(|model| model.name == name).expect("the model exists")
}

const GBPS_BITS: u64 = 1_000_000_000;

#[test]
fn published_rates_are_reproduced() {
    let plan = plan();
    let raw = &plan.experiments[0].flows[0];
    assert_eq!(raw.rate, BitRate(400 * GBPS_BITS), "350 PB within 7 million seconds");
    let of = |model: &TrafficModel, year| forecast::total(&plan, model, year);
    let [mean, minimal, flexible] = ["mean", "minimal", "flexible"].map(|name| model(&plan, name));
    assert_eq!(of(mean, 2029), BitRate(1_200 * GBPS_BITS));
    assert_eq!(of(minimal, 2029), BitRate(4_800 * GBPS_BITS));
    assert_eq!(of(flexible, 2029), BitRate(9_600 * GBPS_BITS));
    let experiments = plan.experiments.iter();
    let each: Vec<_> = experiments
        .map(|one| forecast::of_experiment(&plan, one, mean, 2029).0 / GBPS_BITS)
        .collect();
    assert_eq!(each, [500, 500, 100, 100], "a terabit for ATLAS and CMS together");
    // Growth of 40 % a year.
    assert_eq!(of(minimal, 2030), BitRate(6_720 * GBPS_BITS));
    assert_eq!(of(minimal, 2031), BitRate(9_408 * GBPS_BITS));
}

#[test]
fn sent_rate_equals_received_rate() {
    let plan = plan();
    for model in &plan.models {
        for year in plan.years.clone() {
            let of = |site| forecast::of_site(&plan, site, model, year);
            let [_, out] = of(0);
            let into: u64 = (1..plan.sites.len()).map(|site| of(site)[0].0).sum();
            let total = forecast::total(&plan, model, year).0;
            assert_eq!((out.0, into), (total, total), "{model:?} {year}");
        }
    }
}

#[test]
fn loads_follow_shortest_paths() {
    let (plan, network) = (plan(), network());
    let loads =
        LinkLoads::of(&plan, &network, model(&plan, "minimal")).expect("plan and topology match");
    let of = |name: &str| &loads.links[network.link(name).expect("the link exists").0];
    // BNL and TRIUMF have a ninth of ATLAS each, Fermilab a sixth of CMS.
    let ocean = 4 * (2 * 500 * GBPS_BITS / 9 + 500 * GBPS_BITS / 6);
    let ana: u64 = (1..=6).map(|number| of(&format!("ana-{number}")).rates[0][0].0).sum();
    assert!(ana.abs_diff(ocean) < 100, "{ana} {ocean}");
    assert!(of("ana-1").rates[0][1] == BitRate(0), "nothing comes back");
    // RAL has a part of each: 4 * (500/9 + 500/6 + 2 * 100/6) = 689 Gb/s through 400.
    assert_eq!(of("paris-ral").overflows, Some(2029));
    assert_eq!(of("paris-ral").most(0).0 / GBPS_BITS, 688);
    // TRIUMF: 222 Gb/s through 400, times 1.4 a year: 311, 435.
    assert_eq!(of("fnal-triumf").overflows, Some(2031));
    // 778 Gb/s through 2.4 Tb/s, times 1.4 a year: 1.09, 1.52, 2.13, 2.99 Tb/s.
    assert_eq!(of("ana-1").overflows, Some(2033));
}

#[test]
fn mismatched_topology_is_refused() {
    let plan = plan();
    let minimal = model(&plan, "minimal");
    let none = Topology::read("name = \"none\"").expect("the topology is valid");
    let error = LinkLoads::of(&plan, &none, minimal).unwrap_err();
    assert!(matches!(&error, LoadsError::NoNode { site, .. } if site == "cern"), "{error}");
    let cut = text("hl-lhc-network.toml")
        .lines()
        .filter(|line| !line.contains("ana-"))
        .fold(String::new(), |all, line| all + line + "\n");
    let cut = Topology::read(&cut).expect("the topology is valid");
    let error = LinkLoads::of(&plan, &cut, minimal).unwrap_err();
    assert_eq!(error.to_string(), "the topology has no path from 'cern' to 'bnl'");
}

#[test]
fn drawings_have_all_links_and_years() {
    let (plan, network) = (plan(), network());
    let loads =
        LinkLoads::of(&plan, &network, model(&plan, "flexible")).expect("plan and topology match");
    let rates: Vec<BitRate> = loads.links.iter().map(|link| link.most(0)).collect();
    let drawn = draw::svg_loaded(&network, &rates);
    assert_eq!(drawn.matches(": carries ").count(), network.links.len());
    assert!(drawn.contains("class=\"link over\"") && drawn.contains("% used"));
    assert!(!draw::svg(&network).contains("used"));
    let years: Vec<u16> = plan.years.clone().collect();
    let bars = chart::svg(&plan, &years);
    assert!(bars.contains("flexible, 2029: 9.60 Tb/s"), "{bars}");
    assert_eq!(bars.matches("<rect").count(), 1 + 6 * 3 + 3);
    let one = chart::svg(&plan, &years[2..3]);
    assert_eq!(one.matches("<rect").count(), 1 + 3 + 3);
    assert!(one.contains("flexible, 2031") && !one.contains("2030"), "{one}");
}

#[test]
fn faults_have_line_and_message() {
    let bad = r#"
name = "x"
year = 2030
until = 2029
growth = "much"
model = [{ name = "m", factor = [{ name = "f", times = -1 }] }, { name = "m" }]
site = [{ name = "here" }, { name = "there" }]

[[experiment]]
name = "e"
[[experiment.flow]]
name = "f"
from = "hree"
to = ["there", "there"]
shares = [1]
rate = "0"
[[experiment.flow]]
name = "g"
from = "here"
to = []
data = "1PB"
[[experiment.flow]]
name = "f"
from = "here"
to = ["there"]
rate = "1G"
colour = "red"
"#;
    let faults: Vec<_> = DemandPlan::read(bad)
        .unwrap_err()
        .0
        .into_iter()
        .map(|fault| format!("{}: {}", fault.line, fault.text))
        .collect();
    assert_eq!(
        faults,
        [
            "4: until is the year 2030 or one of the 100 after it",
            "5: growth: 'much' is no growth: write it like 40%",
            "6: a factor is 0.001 to 1000 times",
            "6: there is another model 'm'",
            "13: there is no site 'hree'; did you mean 'here'?",
            "14: 'there' is listed already",
            "15: shares has a number for each of the 2 sites",
            "16: a rate is above 0 and up to 1.00 Pb/s",
            "17: a flow has a rate, or data and the time within which it moves",
            "23: there is another flow 'f'",
            "27: a flow has no key 'colour': its keys are name, rate, data, within, from, to, shares, growth",
        ]
    );
    for text in ["", "name = \"x\"\nyear = 2029", "x = ["] {
        assert!(DemandPlan::read(text).is_err(), "{text}");
    }
}

proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn no_text_panics(text in "(\\[\\[(site|model|experiment|experiment.flow)\\]\\]\n|(name|from|rate|data|within|growth|year|until) = (\"[a-z0-9%G]*\"|[-0-9.e]{1,9})\n|(to|shares|factor) = \\[(\"a\"|[0-9]|\\{\\})?\\]\n|.)*") {
        let _ = DemandPlan::read(&text);
    }
}
