//! Topologies that tests of several crates share.

/// Two sites, `cern` with the hosts `c1` and `c2`, `caltech` with `t1` and `t2`, and two paths between them: `direct`
/// (40 Gb/s, 70 ms), and `round-1` with `round-2` (10 Gb/s, 100 ms).
pub const TWO_SITES: &str = r#"
name = "two-sites"

[[site]]
name = "cern"
[[site]]
name = "caltech"

[[host]]
name = "c1"
site = "cern"
interface = [{ name = "eth0", rate = "100G" }]
[[host]]
name = "c2"
site = "cern"
interface = [{ name = "eth0", rate = "100G" }]
[[host]]
name = "t1"
site = "caltech"
interface = [{ name = "eth0", rate = "100G" }]
[[host]]
name = "t2"
site = "caltech"
interface = [{ name = "eth0", rate = "100G" }]

[[switch]]
name = "geneva"
site = "cern"
[[switch]]
name = "pasadena"
site = "caltech"
[[switch]]
name = "detour"

[[link]]
ends = ["c1:eth0", "geneva"]
rate = "100G"
[[link]]
ends = ["c2:eth0", "geneva"]
rate = "100G"
[[link]]
ends = ["t1:eth0", "pasadena"]
rate = "100G"
[[link]]
ends = ["t2:eth0", "pasadena"]
rate = "100G"
[[link]]
name = "direct"
ends = ["geneva", "pasadena"]
rate = "40G"
delay = "70ms"
[[link]]
name = "round-1"
ends = ["geneva", "detour"]
rate = "10G"
delay = "50ms"
[[link]]
name = "round-2"
ends = ["detour", "pasadena"]
rate = "10G"
delay = "50ms"
"#;
