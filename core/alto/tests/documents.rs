//! Compares documents with the examples of RFC 7285, field by field, and checks the maps of a topology.

use std::collections::BTreeMap;

use penstock_alto::{
    AltoError, CostMap, DEFAULT_PID, InfoResourceDirectory, Maps, NetworkMap, directory, media,
};
use penstock_topology::Topology;
use serde_json::{Value, json};

/// Shapes of the examples in sections 11.2.1.7, 11.2.3.7 and 9.2.3.
#[test]
fn rfc_examples_round_trip() {
    let vtag = json!({ "resource-id": "my-default-network-map", "tag": "da65eca2eb7a10ce8b059740b0b2e3f8eb1d4785" });
    let network = json!({
        "meta": { "vtag": vtag },
        "network-map": {
            "PID1": { "ipv4": ["192.0.2.0/24", "198.51.100.0/25"] },
            "PID2": { "ipv4": ["198.51.100.128/25"] },
            "PID3": { "ipv4": ["0.0.0.0/0"], "ipv6": ["::/0"] },
        },
    });
    let read: NetworkMap = serde_json::from_value(network.clone()).expect("a network map");
    assert_eq!(read.network_map["PID3"].ipv6, ["::/0"]);
    assert_eq!(serde_json::to_value(&read).expect("JSON"), network);

    let costs = json!({
        "meta": {
            "dependent-vtags": [vtag],
            "cost-type": { "cost-mode": "numerical", "cost-metric": "routingcost" },
        },
        "cost-map": {
            "PID1": { "PID1": 1.0, "PID2": 5.0, "PID3": 10.0 },
            "PID2": { "PID1": 5.0, "PID2": 1.0, "PID3": 15.0 },
            "PID3": { "PID1": 20.0, "PID2": 15.0 },
        },
    });
    let read: CostMap = serde_json::from_value(costs.clone()).expect("a cost map");
    assert_eq!(read.meta.dependent_vtags[0].resource_id, "my-default-network-map");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), costs);

    let resources = json!({
        "meta": {
            "cost-types": {
                "num-routing": { "cost-mode": "numerical", "cost-metric": "routingcost", "description": "My default" },
            },
            "default-alto-network-map": "my-default-network-map",
        },
        "resources": {
            "my-default-network-map": {
                "uri": "http://alto.example.com/networkmap",
                "media-type": "application/alto-networkmap+json",
            },
            "numerical-routing-cost-map": {
                "uri": "http://alto.example.com/costmap/num/routing",
                "media-type": "application/alto-costmap+json",
                "capabilities": { "cost-type-names": ["num-routing"] },
                "uses": ["my-default-network-map"],
            },
            "filtered-network-map": {
                "uri": "http://alto.example.com/networkmap/filtered",
                "media-type": "application/alto-networkmap+json",
                "accepts": "application/alto-networkmapfilter+json",
                "uses": ["my-default-network-map"],
            },
        },
    });
    let read: InfoResourceDirectory =
        serde_json::from_value(resources.clone()).expect("a directory");
    assert_eq!(serde_json::to_value(&read).expect("JSON"), resources);
}

const NETWORK: &str = r#"
    name = "n"
    site = [{ name = "cern" }, { name = "chicago" }, { name = "far" }, { name = "empty" }]
    host = [{ name = "dtn", site = "chicago", interface = [{ name = "e0", rate = "10G" }] }]
    switch = [{ name = "s1", site = "cern" }, { name = "s2", site = "chicago" }, { name = "s3", site = "far" }]
    link = [
        { name = "ocean", ends = ["s1", "s2"], rate = "400G", delay = "45.0001ms" },
        { name = "short", ends = ["s1", "s2"], rate = "100G", delay = "40ms" },
        { name = "local", ends = ["dtn", "s2"] },
    ]
"#;

fn prefixes(of: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    of.iter().map(|(site, texts)| ((*site).to_owned(), owned(texts))).collect()
}

fn sample() -> BTreeMap<String, Vec<String>> {
    prefixes(&[
        ("cern", &["192.0.2.77/24", "2001:DB8:0:0::/32", "192.0.2.0/24"]),
        ("chicago", &["198.51.100.0/25"]),
        ("far", &[]),
    ])
}

fn json_of(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("JSON")
}

#[test]
fn maps_of_a_network() {
    let topology = Topology::read(NETWORK).expect("the topology is valid");
    let maps = Maps::of(&topology, &sample(), |_| true).expect("the prefixes are valid");
    let tag = &maps.network.meta.vtag.tag;
    assert!(tag.len() == 64 && tag.bytes().all(|byte| byte.is_ascii_hexdigit()), "{tag}");
    let vtag = json!({ "resource-id": "network-map", "tag": tag });
    assert_eq!(
        json_of(&maps.network),
        json!({
            "meta": { "vtag": vtag },
            "network-map": {
                "cern": { "ipv4": ["192.0.2.0/24"], "ipv6": ["2001:db8::/32"] },
                "chicago": { "ipv4": ["198.51.100.0/25"] },
                "default": { "ipv4": ["0.0.0.0/0"], "ipv6": ["::/0"] },
                "far": {},
            },
        })
    );
    assert_eq!(
        json_of(&maps.costs),
        json!({
            "meta": {
                "dependent-vtags": [vtag],
                "cost-type": { "cost-mode": "numerical", "cost-metric": "routingcost" },
            },
            "cost-map": {
                "cern": { "cern": 0.0, "chicago": 40_001.0 },
                "chicago": { "cern": 40_001.0, "chicago": 0.0 },
                "far": { "far": 0.0 },
            },
        })
    );
    // A failed link changes the costs, not the tag.
    let short = topology.link("short").expect("the link exists");
    let around =
        Maps::of(&topology, &sample(), |link| link != short).expect("the prefixes are valid");
    assert_eq!(around.costs.cost_map["cern"]["chicago"], 45_002.0, "rounded up, and a link");
    assert_eq!(around.network, maps.network);
}

#[test]
fn tag_follows_map_content() {
    let topology = Topology::read(NETWORK).expect("the topology is valid");
    let tag = |of| Maps::of(&topology, &of, |_| true).expect("good").network.meta.vtag.tag;
    let first = tag(sample());
    // The same prefixes in another order and notation.
    let mut same = sample();
    same.insert("cern".to_owned(), vec!["2001:db8::1/32".to_owned(), "192.0.2.0/24".to_owned()]);
    assert_eq!(tag(same), first);
    for other in [
        prefixes(&[("cern", &["192.0.2.0/24"])]),
        prefixes(&[("cern", &[]), ("chicago", &["192.0.2.0/24"])]),
        prefixes(&[("chicago", &["192.0.2.0/25"])]),
        BTreeMap::new(),
    ] {
        assert_ne!(tag(other), first);
    }
}

#[test]
fn prefixes_belong_to_one_pid() {
    let topology = Topology::read(NETWORK).expect("the topology is valid");
    let all = prefixes(&[("cern", &["0.0.0.0/0"])]);
    let map = Maps::of(&topology, &all, |_| true).expect("good").network.network_map;
    assert_eq!(map[DEFAULT_PID].ipv6, ["::/0"]);
    assert!(map[DEFAULT_PID].ipv4.is_empty(), "cern has them");
    let error_of =
        |of: &[(&str, &[&str])]| Maps::of(&topology, &prefixes(of), |_| true).unwrap_err();
    let twice = error_of(&[("cern", &["10.0.0.0/8"]), ("far", &["10.1.2.3/8"])]);
    let words = "10.0.0.0/8 belongs to the sites 'cern' and 'far': a prefix belongs to one";
    assert_eq!(twice.to_string(), words);
    for bad in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "x/8", "10.0.0.0/-1"] {
        assert!(matches!(error_of(&[("cern", &[bad])]), AltoError::Prefix { .. }), "{bad}");
    }
    assert_eq!(error_of(&[("mars", &[])]), AltoError::Site("mars".to_owned()));
    assert_eq!(error_of(&[("empty", &[])]), AltoError::Site("empty".to_owned()));
    for name in ["default", "a b", "", "\u{e9}"] {
        assert_eq!(error_of(&[(name, &[])]), AltoError::Name(name.to_owned()));
    }
}

#[test]
fn directory_lists_both_maps() {
    assert_eq!(
        json_of(&directory("https://dtn.example.org:8621/alto/")),
        json!({
            "meta": {
                "cost-types": {
                    "num-routing": {
                        "cost-mode": "numerical",
                        "cost-metric": "routingcost",
                        "description": "one-way delay in microseconds, and one for each link",
                    },
                },
                "default-alto-network-map": "network-map",
            },
            "resources": {
                "network-map": {
                    "uri": "https://dtn.example.org:8621/alto/networkmap",
                    "media-type": media::NETWORK_MAP,
                },
                "routing-cost-map": {
                    "uri": "https://dtn.example.org:8621/alto/costmap",
                    "media-type": media::COST_MAP,
                    "capabilities": { "cost-type-names": ["num-routing"] },
                    "uses": ["network-map"],
                },
            },
        })
    );
    assert_eq!(media::DIRECTORY, "application/alto-directory+json");
}
