//! Pictures have every part, and nothing that breaks their syntax.

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
    { ends = ["s1", "s2"], rate = "100G", delay = "45ms", loss = 0.001 },
    { ends = ["s2", "h2"], rate = "100G", delay = "1234567ns" },
    { ends = ["s2", "h3"], rate = "10G" },
]
"##;
    Topology::read(text).expect("it is good")
}

#[test]
fn svg_has_every_part_once_and_nothing_unescaped() {
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
fn mermaid_and_containerlab_have_every_part() {
    let drawn = mermaid(&sample());
    assert_eq!(drawn.matches("---|").count(), 5);
    assert_eq!(drawn.matches("subgraph").count(), 2);
    let written = containerlab(&sample());
    assert_eq!(written.matches("- endpoints:").count(), 5);
    assert_eq!(written.matches("kind: bridge").count(), 2);
    assert!(written.contains("endpoints: [\"s1:eth2\", \"s2:eth1\"]"), "{written}");
}

#[test]
fn links_are_described_in_three_digits() {
    let words: Vec<_> = sample().links.iter().map(describe).collect();
    assert_eq!(words[0], "100 Gb/s");
    assert_eq!(words[2], "100 Gb/s, 45.0 ms, 0.1 % lost");
    assert_eq!(words[3], "100 Gb/s, 1.23 ms");
}

#[test]
fn an_empty_network_can_be_drawn() {
    let empty = Topology::read("name = \"empty\"").expect("it is good");
    assert!(svg(&empty).contains("</svg>"));
    assert_eq!(mermaid(&empty), "graph LR\n");
}
