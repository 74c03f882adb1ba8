//! Valid files are read completely; each fault is reported with position and remedy.

use std::time::Duration;

use penstock_units::{BitRate, ByteCount};

use super::*;
use crate::DelaySource;

const GOOD: &str = r#"
name = "sc14"
title = "One server on 100G"
source = "SC14"

[[site]]
name = "victoria"
latitude = 48.463
longitude = -123.312

[[site]]
name = "new-orleans"
latitude = 29.951
longitude = -90.064

[[host]]
name = "r920"
site = "victoria"
interface = [
    { name = "eth0", rate = "40G", mtu = 9000, numa_node = 0 },
    { name = "eth1", rate = "40G", mtu = 9000, numa_node = 1 },
]

[[host]]
name = "floor"
site = "new-orleans"

[[switch]]
name = "mlxe"
site = "victoria"
buffer = "64MiB"

[[link]]
ends = ["r920:eth0", "mlxe"]

[[link]]
name = "second"
ends = ["r920:eth1", "mlxe"]
delay = "5us"

[[link]]
ends = ["mlxe", "floor"]
rate = "100G"
jitter = "2ms"
loss = "0.01%"
loss_burst = 3
queue = "32MiB"
mark = "4MiB"
vlan = 2026
risk_groups = ["duct-7"]
operator = "CANARIE"
"#;

fn faults(text: &str) -> Vec<String> {
    match Topology::read(text) {
        Ok(_) => Vec::new(),
        Err(faults) => faults.0.iter().map(ToString::to_string).collect(),
    }
}

/// Faults of the sample with one line replaced.
fn with(line: &str, other: &str) -> Vec<String> {
    assert!(GOOD.contains(line), "{line}");
    faults(&GOOD.replacen(line, other, 1))
}

#[test]
fn sample_is_read_completely() {
    let read = Topology::read(GOOD).expect("the topology is valid");
    assert_eq!((read.sites.len(), read.nodes.len(), read.links.len()), (2, 3, 3));
    let names: Vec<_> = read.links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["r920--mlxe", "second", "mlxe--floor.2026"]);
    assert_eq!(read.links[0].rate, BitRate(40_000_000_000));
    assert_eq!(read.links[0].delay_source, DelaySource::None);
    assert_eq!(read.links[1].delay, Duration::from_micros(5));
    let far = &read.links[2];
    assert!((far.loss - 1e-4).abs() < 1e-12);
    assert_eq!((far.jitter, far.loss_burst), (Duration::from_millis(2), 3.0));
    assert_eq!((far.queue, far.mark), (Some(ByteCount(32 << 20)), Some(ByteCount(4 << 20))));
    let plain = &read.links[0];
    assert_eq!((plain.jitter, plain.loss_burst, plain.mark), (Duration::ZERO, 1.0, None));
    assert_eq!((far.vlan, far.delay_source), (Some(2026), DelaySource::GreatCircle));
    // 3,430 km in fibre.
    assert!((16.0..17.5).contains(&(far.delay.as_secs_f64() * 1e3)), "{:?}", far.delay);
    assert_eq!(read.show_end(read.links[1].ends[0]), "r920:eth1");
}

#[test]
fn faults_have_position_and_remedy() {
    let cases = [
        ("name = \"mlxe\"", "name = \"r920\"", "29:8: there is another host or switch 'r920'"),
        (
            "site = \"victoria\"\ninter",
            "site = \"victria\"\ninter",
            "there is no site 'victria'; did you mean 'victoria'?",
        ),
        (
            "\"r920:eth0\"",
            "\"r902:eth0\"",
            "there is no host or switch 'r902'; did you mean 'r920'?",
        ),
        (
            "\"r920:eth0\"",
            "\"r920:eth7\"",
            "host 'r920' has no interface 'eth7'; did you mean 'eth0'?",
        ),
        (
            "\"r920:eth0\"",
            "\"r920\"",
            "host 'r920' has several interfaces: write r920:eth0 or r920:eth1",
        ),
        ("\"r920:eth0\"", "\"mlxe\"", "a link joins two different nodes"),
        (
            "[\"r920:eth1\", \"mlxe\"]",
            "[\"r920:eth0\", \"mlxe\"]",
            "is an end of link 'r920--mlxe' already",
        ),
        ("[\"r920:eth0\", \"mlxe\"]", "[\"r920:eth0\"]", "a link has two ends"),
        ("\"mlxe\"]\n\n", "\"mlxe:1\"]\n\n", "'mlxe' is a switch: its ports have no names"),
        ("delay = \"5us\"", "delay = \"5us\"\nlength = \"1km\"", "delay and length say the same"),
        ("delay = \"5us\"", "delay = \"11s\"", "a delay is up to 10"),
        ("delay = \"5us\"", "length = \"5\"", "a length is 0 to 100000km: write it like 120km"),
        ("delay = \"5us\"", "length = \"-5km\"", "a length is 0 to 100000km"),
        ("delay = \"5us\"", "rate = \"50G\"", "faster than its interface r920:eth1 (40.0 Gb/s)"),
        ("rate = \"100G\"", "rate = \"0\"", "a rate is above 0"),
        ("rate = \"100G\"\n", "", "how fast is the link?"),
        ("\"0.01%\"", "\"100%\"", "a loss is at least 0 and less than 1"),
        ("\"0.01%\"", "\"much\"", "write it like \"0.01%\" or 0.0001"),
        (
            "jitter = \"2ms\"",
            "jitter = \"18ms\"",
            "44:10: a jitter is at most the delay, which is 17.1 ms",
        ),
        ("delay = \"5us\"", "delay = \"5us\"\njitter = \"6us\"", "a jitter is at most the delay"),
        (
            "jitter = \"2ms\"",
            "jitter = \"-2ms\"",
            "a jitter is a time with its unit: write it like 5ms",
        ),
        ("loss_burst = 3", "loss_burst = 0.5", "46:14: a loss_burst is the mean number of packets"),
        ("loss_burst = 3", "loss_burst = nan", "a loss_burst is the mean number of packets"),
        ("loss = \"0.01%\"\n", "", "a loss_burst needs a loss"),
        (
            "loss = \"0.01%\"",
            "loss = 0.76",
            "at most 75.0 %, since at least one packet arrives between",
        ),
        ("mark = \"4MiB\"", "mark = \"33MiB\"", "48:8: a mark is at most the queue (32.0 MiB)"),
        ("mark = \"4MiB\"", "mark = 0", "a mark is at least 1 byte"),
        ("vlan = 2026", "vlan = 4095", "49:8: a VLAN is a number from 1 to 4094"),
        ("vlan = 2026", "vlam = 2026", "49:1: a link has no key 'vlam'; did you mean 'vlan'?"),
        (
            "latitude = 48.463",
            "latitude = 98.463",
            "a latitude is in degrees north, from -90 to 90",
        ),
        ("latitude = 48.463\n", "", "latitude and longitude stand together"),
        ("mtu = 9000, numa_node = 0", "mtu = 576", "an MTU is 1280"),
        ("\"eth1\", rate", "\"eth0\", rate", "the host has another interface 'eth0'"),
        ("\"eth1\", rate", "\"a-name-too-long-for-linux\", rate", "cannot name an interface"),
        ("name = \"floor\"", "name = \"../floor\"", "'../floor' cannot name a host"),
        ("name = \"second\"", "name = \"r920--mlxe\"", "there is another link 'r920--mlxe'"),
        ("name = \"sc14\"", "name = \"\"", "'' cannot name a topology"),
    ];
    for (line, other, expected) in cases {
        let found = with(line, other);
        assert!(found.iter().any(|fault| fault.contains(expected)), "{other}: {found:?}");
    }
}

/// Faults of a topology with these tables.
fn faults_of(rest: &str) -> Vec<String> {
    faults(&format!("name = \"n\"\n{rest}"))
}

#[test]
fn hosts_file_names_are_unique() {
    let hosts = |names: &[&str]| {
        let hosts = names.iter().map(|name| format!("{{ name = \"{name}\" }}\n"));
        faults_of(&format!("host = [\n{}]\n", hosts.collect::<Vec<_>>().join(",")))
    };
    assert_eq!(
        hosts(&["b", "B"]),
        ["4:11: in /etc/hosts 'B' is host 'b' already: choose another name"]
    );
    assert_eq!(hosts(&["b", "b"]).len(), 1);
    for name in ["localhost", "LocalHost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"]
    {
        let found = hosts(&[name]);
        let expected = format!("3:10: in /etc/hosts '{name}' is a name of every machine already");
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{found:?}");
    }
    for name in ["1", "10.0.0.1", "0x10", "0X1f.7", "007", "1."] {
        let found = hosts(&[name]);
        let expected = format!("3:10: '{name}' reads as an address");
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{found:?}");
    }
    assert_eq!(hosts(&["1a", "x1", "0xg", "10.0.0.x", "dtn.1"]), [""; 0]);
}

#[test]
fn interface_hosts_file_names_are_unique() {
    let e0 = "interface = [{ name = \"e0\" }]";
    let first = faults_of(&format!("host = [{{ name = \"b\", {e0} }},\n{{ name = \"B-E0\" }}]"));
    assert_eq!(
        first,
        ["3:10: in /etc/hosts 'B-E0' is interface e0 of host 'b' already: choose another name"]
    );
    let second = faults_of(&format!("host = [{{ name = \"b-e0\" }},\n{{ name = \"b\", {e0} }}]"));
    assert_eq!(second, ["3:37: in /etc/hosts 'b-e0' is host 'b-e0' already: choose another name"]);
    let both = faults_of(
        "host = [{ name = \"a\", interface = [{ name = \"b-c\" }] }, { name = \"a-b\", interface = [{ name = \"c\" }] }]",
    );
    assert!(
        both.len() == 1 && both[0].contains("'a-b-c' is interface b-c of host 'a'"),
        "{both:?}"
    );
    // A clashing host is reported once.
    for name in ["b", "B"] {
        let alike =
            faults_of(&format!("host = [{{ name = \"b\", {e0} }}, {{ name = \"{name}\", {e0} }}]"));
        assert_eq!(alike.len(), 1, "{alike:?}");
    }
    let loopback = faults_of("host = [{ name = \"ip6\", interface = [{ name = \"localhost\" }] }]");
    assert!(loopback.len() == 1 && loopback[0].contains("every machine"), "{loopback:?}");
    // Links add interfaces to hosts without any, and a VLAN adds a subinterface.
    let made = faults_of(
        "host = [{ name = \"a\" }, { name = \"a-eth0\" }]\nswitch = [{ name = \"s\" }]\nlink = [\n{ ends = [\"a\", \"s\"], rate = \"1G\" }]",
    );
    assert_eq!(
        made,
        ["5:11: in /etc/hosts 'a-eth0' is host 'a-eth0' already: choose another name"]
    );
    let tagged = faults_of(&format!(
        "host = [{{ name = \"a\", {e0} }}, {{ name = \"a-e0.7\" }}]\nswitch = [{{ name = \"s\" }}]\nlink = [\n{{ ends = [\"a\", \"s\"], vlan = 7, rate = \"1G\" }}]",
    ));
    assert!(
        tagged.len() == 1 && tagged[0].starts_with("5:11: in /etc/hosts 'a-e0.7'"),
        "{tagged:?}"
    );
}

#[test]
fn interface_names_are_valid_for_linux() {
    let named = |name: &str| {
        faults_of(&format!("host = [{{ name = \"a\", interface = [{{ name = '{name}' }}] }}]"))
    };
    for good in ["e0", "enp1s0f0np0", "bond0.2026", "mlx5_0", "et-0-0-1", "0123456789abcde"] {
        assert_eq!(named(good), [""; 0], "{good}");
    }
    for bad in [
        "",
        ".",
        "..",
        "lo",
        "all",
        "default",
        "e%d",
        "e/0",
        "e:0",
        "e 0",
        "e#0",
        "e\"0",
        "é0",
        "-e0",
        ".e0",
        "0123456789abcdef",
    ] {
        let found = named(bad);
        assert!(
            found.len() == 1 && found[0].contains("cannot name an interface"),
            "{bad}: {found:?}"
        );
    }
}

#[test]
fn nameless_host_is_one_fault() {
    let one = "interface = [{ name = \"e0\" }]";
    let found = faults_of(&format!("host = [{{ {one} }}, {{ name = \"b\", {one} }}]"));
    assert!(found.len() == 1 && found[0].contains("a host needs a key: name"), "{found:?}");
}

/// Each fault is reported with its message and without consequential faults.
#[test]
fn fault_has_no_consequential_faults() {
    let vlan = "49:8: a VLAN is a number from 1 to 4094";
    let mtu = "an MTU is 1280 (IPv6 needs it) to 65535 bytes";
    let north = "8:12: a latitude is in degrees north, from -90 to 90";
    let loss = "45:8: a loss is at least 0 and less than 100%: write it like \"0.01%\" or 0.0001";
    let bytes = "is a number of bytes: write it like 4MiB, 500M or 65536";
    let rate = "a rate is above 0 and up to 1 Pb/s: write it like 10G, 400M or 2.5Gb/s";
    let unit = "with its unit: write it like 5ms";
    let wide = "queue = \"32MiB\"";
    let cases = [
        ("vlan = 2026", "vlan = 70000", vlan),
        ("vlan = 2026", "vlan = -1", vlan),
        ("vlan = 2026", "vlan = \"5\"", vlan),
        ("mtu = 9000, numa_node = 0", "mtu = -1", mtu),
        ("mtu = 9000, numa_node = 0", "mtu = 1e9", mtu),
        ("numa_node = 0", "numa_node = -1", "a NUMA node is a number from 0"),
        ("latitude = 48.463", "latitude = \"45N\"", north),
        ("latitude = 48.463", "latitude = inf", north),
        ("longitude = -123.312", "longitude = 181", "in degrees east, from -180 to 180"),
        ("loss = \"0.01%\"", "loss = true", loss),
        ("loss = \"0.01%\"", "loss = -0.1", loss),
        ("loss = \"0.01%\"", "loss = \"nan%\"", loss),
        ("loss_burst = 3", "loss_burst = \"x\"", "a loss_burst is the mean number of packets"),
        (wide, "queue = -1", bytes),
        (wide, "queue = 1.5", bytes),
        (wide, "queue = \"much\"", bytes),
        (wide, "queue = 0", "a queue holds at least one packet of the link's MTU, 1500 bytes here"),
        ("mark = \"4MiB\"", "mark = -1", "a mark is at least 1 byte"),
        ("buffer = \"64MiB\"", "buffer = -1", bytes),
        ("rate = \"100G\"", "rate = -5", rate),
        ("rate = \"100G\"", "rate = \"fast\"", rate),
        ("eth0\", rate = \"40G\"", "eth0\", rate = 0", rate),
        ("delay = \"5us\"", "delay = \"5\"", unit),
        ("delay = \"5us\"", "delay = 5", unit),
        ("delay = \"5us\"", "delay = 0.005", unit),
        ("delay = \"5us\"", "delay = \" 5 \"", unit),
        ("delay = \"5us\"", "delay = \"x\"\njitter = \"1us\"", unit),
        ("delay = \"5us\"", "length = \"x\"\njitter = \"1us\"", "write it like 120km or 300m"),
        ("jitter = \"2ms\"", "jitter = \"0.002\"", unit),
        ("jitter = \"2ms\"", "jitter = 0.002", unit),
    ];
    for (line, other, expected) in cases {
        let found = with(line, other);
        assert!(found.len() == 1 && found[0].contains(expected), "{other}: {found:?}");
    }
}

#[test]
fn queue_below_mtu_is_refused() {
    let queue = |mtu: u32, queue: u32| {
        faults_of(&format!(
            "host = [{{ name = \"a\", interface = [{{ name = \"e0\", mtu = {mtu} }}] }}]\nswitch = [{{ name = \"s\" }}]\nlink = [{{ ends = [\"a\", \"s\"], rate = \"1G\", queue = {queue} }}]"
        ))
    };
    assert_eq!(queue(9000, 9000), [""; 0]);
    let found = queue(9000, 8999);
    assert!(found.len() == 1 && found[0].contains("9000 bytes here"), "{found:?}");
    // One fault where the MTU itself is invalid.
    assert_eq!(queue(100_000, 9000).len(), 1);
}

#[test]
fn unknown_ends_have_a_remedy() {
    let ends = |ends: &str| {
        faults_of(&format!(
            "host = [{{ name = \"a\" }}]\nswitch = [{{ name = \"s\" }}]\nlink = [{{ ends = [{ends}], rate = \"1G\" }}]"
        ))
    };
    let found = ends("\"\", \":\"");
    assert_eq!(found.len(), 2);
    assert!(
        found.iter().all(|fault| fault.ends_with("there is no host or switch ''")),
        "{found:?}"
    );
    let found = ends("\"a:eth0\", \"s\"");
    assert!(
        found.len() == 1
            && found[0].ends_with("host 'a' has no interfaces: write \"a\", or give it one"),
        "{found:?}"
    );
}

#[test]
fn synonyms_are_suggested() {
    let cases = [
        (
            "rate = \"100G\"\n",
            "bandwidth = \"100G\"\nrate = \"1G\"\n",
            "'bandwidth'; did you mean 'rate'?",
        ),
        ("delay = \"5us\"", "latency = \"5us\"", "'latency'; did you mean 'delay'?"),
        ("loss_burst = 3", "packet_loss = 3", "'packet_loss'; did you mean 'loss'?"),
        ("[[switch]]", "[[nodes]]\n[[switch]]", "'nodes'; did you mean 'host'?"),
    ];
    for (line, other, expected) in cases {
        let found = with(line, other);
        assert!(found.iter().any(|fault| fault.contains(expected)), "{other}: {found:?}");
    }
    // Synonyms are suggested only for keys of that table.
    assert!(with("numa_node = 0", "latency = 0")[0].contains("its keys are"));
}

#[test]
fn invisible_characters_are_refused() {
    for bad in [
        "\\u202E", "\\u2028", "\\u2029", "\\u2066", "\\u200B", "\\u200E", "\\uFEFF", "\\u061C",
        "\\n",
    ] {
        let found = with("operator = \"CANARIE\"", &format!("operator = \"CAN{bad}ARIE\""));
        assert!(
            found.len() == 1 && found[0].contains("operator: write one line"),
            "{bad}: {found:?}"
        );
        let found = with("title = \"One", &format!("title = \"{bad}One"));
        assert!(found.len() == 1 && found[0].contains("title: write one line"), "{bad}: {found:?}");
    }
    assert_eq!(with("CANARIE", "Réseau québécois — 東京"), [""; 0]);
}

#[test]
fn all_faults_are_sorted_by_position() {
    let text = GOOD
        .replace("vlan = 2026", "vlan = 0")
        .replace("latitude = 29.951", "latitude = 100")
        .replace("delay = \"5us\"", "delay = \"1h\"");
    let found = faults(&text);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found[0].contains("latitude") && found[1].contains("delay") && found[2].contains("VLAN")
    );
}

#[test]
fn invalid_toml_is_one_fault() {
    let found = faults("name = \"x\"\n[[link]\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("2:"), "{found:?}");
    assert_eq!(faults("").len(), 1);
    let large = " ".repeat(FILE_BYTES_MAX + 1);
    assert!(faults(&large)[0].contains("larger than"));
}

proptest::proptest! {
    #![proptest_config(penstock_testkit::properties())]

    #[test]
    fn no_text_panics(cut in 0..GOOD.len(), other in "\\PC{0,8}") {
        let cut = (0..=cut).rev().find(|cut| GOOD.is_char_boundary(*cut)).unwrap_or(0);
        let text = format!("{}{other}{}", &GOOD[..cut], &GOOD[cut..]);
        let _ = Topology::read(&text);
    }
}
