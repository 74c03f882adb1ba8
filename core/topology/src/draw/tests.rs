//! Drawings have every element and valid syntax.

use super::layout::Layout;
use super::*;
use crate::Topology;

fn sample() -> Topology {
    let text = r##"
name = "sample"
title = "<Two> & \"three\" #1"
site = [
    { name = "a", title = "A <site>", latitude = 46.2, longitude = 6.1 },
    { name = "b", latitude = 41.9, longitude = -87.9 },
]
host = [{ name = "h1", site = "a" }, { name = "h2", site = "b" }, { name = "h3" }]
switch = [{ name = "s1", site = "a" }, { name = "s2", site = "b" }]
link = [
    { ends = ["h1", "s1"], rate = "100G" },
    { ends = ["s1", "s2"], rate = "400G", vlan = 7 },
    { ends = ["s1", "s2"], rate = "100G", delay = "45ms", jitter = "1.5ms", loss = 0.001, loss_burst = 2.5 },
    { ends = ["s2", "h2"], rate = "100G", delay = "1234567ns" },
    { ends = ["s2", "h3"], rate = "10G" },
]
"##;
    Topology::read(text).expect("the topology is valid")
}

#[test]
fn svg_has_every_element_escaped() {
    let drawn = svg(&sample());
    assert_eq!(drawn.matches("class=\"host\"").count(), 3);
    assert_eq!(drawn.matches("class=\"switch\"").count(), 2);
    assert_eq!(drawn.matches("class=\"link\"").count(), 5);
    assert_eq!(drawn.matches("class=\"site\"").count(), 2);
    assert!(drawn.contains("<title>&lt;Two&gt; &amp; &quot;three&quot; #1</title>"));
    assert!(drawn.contains("400 Gb/s, ≥ 34.6 ms, VLAN 7"), "{drawn}");
    assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
    assert_eq!(drawn, svg(&sample()), "the same twice");
}

#[test]
fn mermaid_and_containerlab_have_every_link() {
    let drawn = mermaid(&sample());
    assert_eq!(drawn.matches("---|").count(), 5);
    assert_eq!(drawn.matches("subgraph").count(), 2);
    let written = containerlab(&sample());
    assert_eq!(written.matches("- endpoints:").count(), 5);
    assert_eq!(written.matches("kind: bridge").count(), 2);
    assert!(written.contains("endpoints: [\"s1:port2\", \"s2:port3\"]"), "{written}");
}

#[test]
fn mermaid_titles_are_escaped() {
    let text = "name = \"t\"\nsite = [{ name = \"x\", title = '`<b>\"A&B\"#' }]";
    let drawn = mermaid(&Topology::read(text).expect("the topology is valid"));
    assert!(drawn.contains("[\"#96;#lt;b#gt;#quot;A#amp;B#quot;#35;\"]"), "{drawn}");
}

/// The containerlab file of a topology and the endpoints in it.
fn of_containerlab(text: &str) -> (String, Vec<String>) {
    let written = containerlab(&Topology::read(text).expect("the topology is valid"));
    let links = written.lines().filter_map(|line| line.trim().strip_prefix("- endpoints: "));
    let ends = links.flat_map(|ends| ends[1..ends.len() - 1].split(", ")).map(str::to_owned);
    let ends = ends.collect();
    (written, ends)
}

#[test]
fn containerlab_quotes_yaml_keywords() {
    let (written, _) = of_containerlab(
        r#"
name = "007"
host = [{ name = "null" }, { name = "on" }]
switch = [{ name = "true" }, { name = "0x10" }, { name = "1_0" }]
"#,
    );
    for line in [
        "name: \"007\"",
        "    \"null\":",
        "    \"on\":",
        "    \"true\":",
        "    \"0x10\":",
        "    \"1_0\":",
    ] {
        assert!(written.lines().any(|written| written == line), "{line}: {written}");
    }
    assert!(written.ends_with("  links: []\n"), "{written}");
    let (empty, _) = of_containerlab("name = \"empty\"");
    assert_eq!(empty, "name: \"empty\"\ntopology:\n  nodes: {}\n  links: []\n");
}

#[test]
fn containerlab_devices_are_valid_and_unique() {
    let (written, ends) = of_containerlab(
        r#"
name = "n"
host = [
    { name = "a", interface = [{ name = "eth0" }, { name = "enp129s0f0np0" }] },
    { name = "b", interface = [{ name = "e0" }] },
    { name = "c" },
]
switch = [
    { name = "a-switch-of-a-long-name-1" },
    { name = "a-switch-of-a-long-name-2" },
    { name = "port2" },
]
link = [
    { ends = ["a:eth0", "port2"], rate = "1G" },
    { ends = ["a:enp129s0f0np0", "port2"], rate = "1G", vlan = 2026 },
    { ends = ["a:enp129s0f0np0", "a-switch-of-a-long-name-1"], rate = "1G", vlan = 2027 },
    { ends = ["b", "port2"], rate = "1G", vlan = 7 },
    { ends = ["c", "a-switch-of-a-long-name-2"], rate = "1G" },
    { ends = ["a-switch-of-a-long-name-2", "a-switch-of-a-long-name-1"], rate = "1G" },
]
"#,
    );
    let none = "      kind: linux\n      image: \"debian:12\"\n      network-mode: none\n";
    assert_eq!(written.matches("network-mode").count(), 1, "eth0 is containerlab's own: {written}");
    assert!(written.contains(&format!("    \"a\":\n{none}")), "{written}");
    assert_eq!(
        ends,
        [
            "\"a:eth0\"",
            "\"port2:port1\"",
            "\"a:enp129s0f0.2026\"",
            "\"port2:port2-2\"",
            "\"a:enp129s0f0.2027\"",
            "\"a-switch-of-a-l:port3\"",
            "\"b:e0\"",
            "\"port2:port4\"",
            "\"c:eth1\"",
            "\"a-switch-of-a-2:port5\"",
            "\"a-switch-of-a-2:port6\"",
            "\"a-switch-of-a-l:port7\"",
        ]
    );
}

#[test]
fn links_are_described_in_three_digits() {
    let words: Vec<_> = sample().links.iter().map(describe).collect();
    assert_eq!(words[0], "100 Gb/s");
    assert_eq!(words[2], "100 Gb/s, 45.0 ms ± 1.50 ms, 0.1 % lost in bursts of 2.5");
    assert_eq!(words[3], "100 Gb/s, 1.23 ms");
}

#[test]
fn percentages_have_six_digits() {
    let cases =
        [(7.0 / 100.0, "7"), (1e-9, "0.0000001"), (0.1 + 0.2, "30"), (1.0 / 3.0, "33.3333")];
    for (share, expected) in cases {
        assert_eq!(percent(share), format!("{expected} %"), "{share}");
    }
}

#[test]
fn empty_network_is_drawn() {
    let empty = Topology::read("name = \"empty\"").expect("the topology is valid");
    assert!(svg(&empty).contains("</svg>"));
    assert_eq!(mermaid(&empty), "graph LR\n");
}

#[test]
fn parallel_links_share_a_curve() {
    let text = r#"
name = "bundle"
site = [{ name = "x" }, { name = "y" }]
switch = [{ name = "a", site = "x" }, { name = "b", site = "y" }]
link = [
    { ends = ["a", "b"], rate = "400G", delay = "5ms", vlan = 2 },
    { ends = ["b", "a"], rate = "400G", delay = "5ms", vlan = 1 },
    { ends = ["a", "b"], rate = "100G", delay = "5ms" },
    { ends = ["a", "b"], rate = "100G", delay = "6ms" },
]
"#;
    let drawn = svg(&Topology::read(text).expect("the topology is valid"));
    assert_eq!(drawn.matches("class=\"link\"").count(), 2);
    assert!(drawn.contains(">2 × 400 Gb/s + 100 Gb/s, 5.00 ms, VLAN 1, 2<"), "{drawn}");
    assert_eq!(drawn.matches("Gb/s, 5.00 ms").count(), 4, "each has its title");
}

/// Two spines, `leaves` leaves and `hosts` hosts, one per leaf.
fn spine_leaf(leaves: usize, hosts: usize, site: &str) -> Topology {
    let mut text = "name = \"fabric\"\nsite = [{ name = \"here\" }]\nlink = [\n".to_owned();
    for leaf in 0..leaves {
        for spine in 0..2 {
            text += &format!("{{ ends = [\"spine{spine}\", \"leaf{leaf}\"], rate = \"100G\" }},\n");
        }
        if leaf < hosts {
            text += &format!("{{ ends = [\"host{leaf}\", \"leaf{leaf}\"], rate = \"25G\" }},\n");
        }
    }
    text += "]\n";
    let names = |kind: &str, count| (0..count).map(|n| format!("{kind}{n}")).collect::<Vec<_>>();
    for name in [names("leaf", leaves), names("spine", 2)].concat() {
        text += &format!("[[switch]]\nname = \"{name}\"\n{site}");
    }
    for name in names("host", hosts) {
        text += &format!("[[host]]\nname = \"{name}\"\n{site}");
    }
    Topology::read(&text).expect("the topology is valid")
}

#[test]
fn spines_are_above_leaves_above_hosts() {
    for (hosts, site) in [(8, "site = \"here\"\n"), (7, "site = \"here\"\n"), (1, ""), (0, "")] {
        let fabric = spine_leaf(8, hosts, site);
        let nodes = Layout::of(&fabric).nodes;
        let height = |name: &str| nodes[fabric.node(name).expect("the node exists").0].y;
        assert!(height("spine0") == height("spine1") && height("spine0") < height("leaf0"));
        for leaf in 1..8 {
            assert_eq!(height("leaf0").to_bits(), height(&format!("leaf{leaf}")).to_bits());
        }
        for host in 0..hosts {
            assert!(height("leaf0") < height(&format!("host{host}")));
        }
    }
}

proptest::proptest! {
    /// Frames do not overlap and contain their nodes, for any positions.
    #[test]
    fn site_frames_do_not_overlap(sites in proptest::collection::vec((-80..80i32, -180..180i32, 0..5usize), 1..24)) {
        let mut text = "name = \"map\"\n".to_owned();
        for (number, (latitude, longitude, switches)) in sites.iter().enumerate() {
            text += &format!("[[site]]\nname = \"site{number}\"\nlatitude = {latitude}\nlongitude = {longitude}\n");
            for switch in 0..*switches {
                text += &format!("[[switch]]\nname = \"s{number}-{switch}\"\nsite = \"site{number}\"\n");
            }
        }
        let network = Topology::read(&text).expect("the topology is valid");
        let layout = Layout::of(&network);
        for (number, (site, area)) in layout.sites.iter().enumerate() {
            for (_, other) in &layout.sites[number + 1..] {
                proptest::prop_assert!(area.shared(*other) == 0.0, "{area:?} {other:?}");
            }
            for (node, at) in network.nodes.iter().zip(&layout.nodes) {
                if node.site.is_some_and(|of| of.0 == *site) {
                    proptest::prop_assert!(area.holds(*at));
                }
            }
        }
    }
}
