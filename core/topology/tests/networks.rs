//! Networks of published papers: each file is valid, names its source, and can be drawn and scaled; published
//! figures are reproduced.

use std::fs;
use std::path::Path;
use std::time::Duration;

use penstock_topology::paths::{Disjoint, disjoint};
use penstock_topology::{NodeKind, Topology, draw};
use penstock_units::BitRate;

fn read(name: &str) -> Topology {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/topologies");
    let text = fs::read_to_string(folder.join(name)).expect("the file is readable");
    Topology::read(&text).unwrap_or_else(|faults| panic!("{name}: {faults}"))
}

#[test]
fn files_are_valid_with_source() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/topologies");
    let mut count = 0;
    for entry in fs::read_dir(folder).expect("the folder is readable") {
        let name = entry.expect("the entry is readable").file_name().into_string().expect("UTF-8");
        let network = read(&name);
        assert_eq!(name, format!("{}.toml", network.name));
        assert!(network.source.is_some() && network.title.is_some(), "{name}");
        let small = network.scaled("1/1000".parse().expect("the scale is valid"));
        let drawn = draw::svg(&small);
        for link in &network.links {
            assert!(drawn.contains(&format!("{}: ", link.name)), "{name}: {}", link.name);
        }
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn published_round_trips_are_reproduced() {
    let paths = |network: &Topology, from, to, count, by| {
        let [from, to] = [from, to].map(|name| network.node(name).expect("the node exists"));
        disjoint(network, from, to, count, by)
    };
    let loops = read("narex-starlight.toml");
    let found = paths(&loops, "out", "back", 8, Disjoint::Links);
    let round_trips: Vec<_> = found.iter().map(|path| path.delay(&loops) * 2).collect();
    let published = [27_000, 87_000, 96_400, 96_400, 108_000].map(Duration::from_micros);
    assert_eq!(round_trips, published);

    let nre13 = read("sc23-nre13.toml");
    let found = paths(&nre13, "booth", "campus", 8, Disjoint::Links);
    // Four links leave the booth: three by Los Angeles, the fourth by Chicago.
    assert_eq!(found.len(), 4);
    assert!(found.iter().take(3).all(|path| path.links.len() == 3), "{found:?}");
    // All 400G links to the campus are in one fibre; the second path is on links of 100G.
    let safe = paths(&nre13, "scinet", "campus", 2, Disjoint::Risks);
    let rates: Vec<_> = safe.iter().filter_map(|path| path.rate(&nre13)).collect();
    assert!(rates.contains(&BitRate(100_000_000_000)), "{rates:?}");

    let sc14 = read("sc14.toml");
    let [path] = &paths(&sc14, "r920", "umich", 1, Disjoint::Links)[..] else { panic!("one path") };
    assert_eq!(path.delay(&sc14) * 2, Duration::from_millis(65));

    let sites = read("gp4l.toml");
    assert_eq!(sites.nodes.iter().filter(|node| node.kind == NodeKind::Switch).count(), 26 + 7 + 4);
}
