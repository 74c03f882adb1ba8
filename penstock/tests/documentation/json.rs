//! docs/json.md against the binary's output: every printed field is in the page, with its type, and every field of the
//! page that is not optional is printed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::Value;

use super::common::{PENSTOCK, is_root};
use super::repository;
use super::sandbox::Sandbox;

/// A documented field.
struct Field {
    kind: String,
    optional: bool,
}

/// Fields of an object, by their paths.
type Fields = BTreeMap<String, Field>;

/// Objects of the page by their headings, without `penstock` and `--json`.
fn reference() -> BTreeMap<String, Fields> {
    let text = fs::read_to_string(repository().join("docs/json.md")).expect("docs/json.md");
    let mut objects: BTreeMap<String, Fields> = BTreeMap::new();
    let mut heading = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title.replace("`penstock ", "").replace(" --json`", "");
        } else if let Some(row) = line.strip_prefix("| `") {
            let mut cells = row.split(" | ");
            let path = cells.next().expect("a path").trim_end_matches('`').to_owned();
            let kind = cells.next().expect("a type").to_owned();
            let (kind, optional) = match kind.strip_suffix(", optional") {
                Some(kind) => (kind.to_owned(), true),
                None => (kind, false),
            };
            let fields = objects.entry(heading.clone()).or_default();
            assert!(
                fields.insert(path.clone(), Field { kind, optional }).is_none(),
                "{path} twice"
            );
        }
    }
    objects
}

/// Splits alternative types: `list of (integer or null) or null`.
fn alternatives(kind: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_usize);
    for (at, c) in kind.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ' ' if depth == 0 && kind[at..].starts_with(" or ") => {
                parts.push(&kind[begin..at]);
                begin = at + " or ".len();
            }
            _ => {}
        }
    }
    parts.push(&kind[begin..]);
    parts
}

/// True if a value has the documented type.
fn is_of(value: &Value, kind: &str) -> bool {
    alternatives(kind).into_iter().any(|kind| {
        let (kind, values) = kind.split_once(": ").unwrap_or((kind, ""));
        if let Some(of) = kind.strip_prefix("list of ") {
            let of = of.strip_prefix('(').and_then(|of| of.strip_suffix(')')).unwrap_or(of);
            return value.as_array().is_some_and(|items| items.iter().all(|item| is_of(item, of)));
        }
        match kind {
            "any value" => true,
            "null" => value.is_null(),
            "string" => value
                .as_str()
                .is_some_and(|text| values.is_empty() || values.contains(&format!("`{text}`"))),
            "boolean" => value.is_boolean(),
            "integer" => value.is_u64() || value.is_i64(),
            "number" => value.is_number(),
            "object" => value.is_object(),
            _ => false,
        }
    })
}

/// Differences between a value and its documentation, with their paths.
fn compare(
    value: &Value,
    path: &str,
    fields: &Fields,
    seen: &mut BTreeSet<String>,
    faults: &mut BTreeSet<String>,
) {
    match value {
        Value::Object(object) => {
            let inside = if path.is_empty() { String::new() } else { format!("{path}.") };
            for (name, value) in object {
                let own = format!("{inside}{name}");
                let at = [own.clone(), format!("{inside}*")];
                let Some(at) = at.iter().find(|at| fields.contains_key(*at)) else {
                    faults.insert(format!("{own} is not in the page"));
                    continue;
                };
                seen.insert(at.clone());
                let kind = &fields[at].kind;
                if !is_of(value, kind) {
                    faults.insert(format!("{at} is {value}, not {kind}"));
                }
                if kind != "any value" {
                    compare(value, at, fields, seen, faults);
                }
            }
            for (at, field) in fields {
                let name = at.strip_prefix(&inside).filter(|name| !name.contains(['.', '[', '*']));
                if name.is_some_and(|name| !field.optional && !object.contains_key(name)) {
                    faults.insert(format!("{at} is in the page, not optional, and not printed"));
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                compare(item, &format!("{path}[]"), fields, seen, faults);
            }
        }
        _ => {}
    }
}

#[test]
fn types_of_the_page_are_read() {
    for (value, kind) in [
        ("null", "list of string or null"),
        ("[null, 1]", "list of (integer or null)"),
        ("[{}]", "list of string or list of object"),
        ("\"b\"", "string: `a`, `b`"),
        ("[[1.5]]", "list of list of number"),
    ] {
        assert!(is_of(&value.parse().expect("JSON"), kind), "{value} is {kind}");
    }
    for (value, kind) in [
        ("null", "list of (integer or null)"),
        ("[null]", "list of integer or null"),
        ("\"c\"", "string: `a`, `b`"),
        ("1.5", "integer or null"),
    ] {
        assert!(!is_of(&value.parse().expect("JSON"), kind), "{value} is not {kind}");
    }
}

#[test]
fn page_equals_its_types() {
    let output = Command::new(PENSTOCK).args(["generate", "json"]).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let page = String::from_utf8(output.stdout).expect("UTF-8");
    let path = repository().join("docs/json.md");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &page).expect("docs/json.md can be written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let differing = kept.lines().zip(page.lines()).find(|(kept, page)| kept != page);
    let remedy = "run UPDATE_GOLDEN=1 cargo test -p penstock --test documentation page_equals and review the diff";
    assert!(kept == page, "docs/json.md is out of step at {differing:?}; {remedy}");
}

/// Commands with the heading of their output; commands with heading "" prepare others.
struct Run {
    setup: &'static str,
    commands: &'static [(&'static str, &'static str)],
}

const OFFLINE: Run = Run {
    setup: "dataset data; echo 206 > number; penstock host facts > facts.json; mkdir -p tiny; \
            printf '%s\\n' 'title = \"t\"' 'source = \"s\"' 'command = [\"fabric\", \"run\", \"--star\", \"3\", \
            \"--workload\", \"incast\", \"--size\", \"1kB\", \"--json\"]' '[[column]]' 'name = \"Gb/s\"' \
            'program = \"penstock\"' 'value = \"/goodput_bits_per_second\"' '[[case]]' 'name = \"only\"' \
            > tiny/experiment.toml",
    commands: &[
        ("cp", "penstock cp -r data copied --json"),
        ("cp", "! penstock cp nowhere copied --json"),
        ("tune predict", "! penstock tune predict data penstock://127.0.0.1/ --bytes 1G --json"),
        ("cp", "penstock cp -r data copied --checksum blake3 --json"),
        ("controller init", "penstock controller init desk a=x b=y --json"),
        ("disk list", "penstock disk list --json"),
        ("disk secret", "penstock disk secret key --json"),
        ("disk check", "penstock disk check --json || true"),
        ("cp", "mkdir -p blocked/data/events.dat/x && ! penstock cp -r data blocked --json"),
        ("topology check", "penstock topology check docs/samples/two.toml --json"),
        ("topology check", "! penstock topology check docs/samples/cut.toml --json"),
        ("topology show", "penstock topology show experiments/topologies/sc25-scitags.toml --json"),
        ("topology show", "penstock topology show docs/samples/two.toml --json"),
        ("topology paths", "penstock topology paths docs/samples/two.toml a b --json"),
        ("plan", "penstock plan docs/samples/plan/plan.toml --json"),
        (
            "plan",
            "penstock plan docs/samples/plan/plan.toml --topology docs/samples/plan/network.toml --json",
        ),
        (
            "rehearse",
            "penstock rehearse docs/samples/rehearsal/penstock.toml docs/samples/rehearsal/demand.toml \
             --database sqlite --from 13h --for 10m --finish --json",
        ),
        (
            "rehearse",
            "penstock rehearse docs/samples/rehearsal/penstock.toml docs/samples/rehearsal/demand.toml \
             --from 13h --for 10m --finish --json",
        ),
        ("fabric run", "penstock fabric run --star 5 --workload incast --size 100kB --json"),
        (
            "fabric run: perftest",
            "penstock fabric run --star 2 --workload write_bw --from h0 --to h1 --iterations 10 --json",
        ),
        (
            "fabric run: perftest",
            "penstock fabric run --star 2 --workload write_lat --from h0 --to h1 --iterations 10 --json",
        ),
        (
            "fabric sweep",
            "penstock fabric sweep --star 4 --workload incast --size 10kB --grid cc=dcqcn,hpcc --json",
        ),
        ("fabric parameters", "penstock fabric parameters --json"),
        ("experiment list", "penstock experiment list experiments --json"),
        ("experiment run", "penstock experiment run tiny --json"),
        ("host check", "penstock host check --json"),
        (
            "host check",
            "penstock host check --facts system/host/tests/fixtures/sc23-caltech-400g.json --for 400G --json",
        ),
        (
            "host check",
            "penstock host check --facts system/host/tests/fixtures/el9-stock.json --for 400G --json",
        ),
        (
            "host tune",
            "penstock host tune --facts system/host/tests/fixtures/el9-stock.json --for 400G --also \
             pacing --json",
        ),
        ("host tune", "penstock host tune --for 100G --rtt 50ms --json"),
        ("host restore", "penstock host restore --json"),
        ("host explain", "penstock host explain --json"),
        ("host explain RULE", "penstock host explain tcp-wmem --json"),
        ("host facts", "penstock host facts --json"),
        ("token create", "penstock token create alice --scope read --for 12h --json"),
        ("token list, token revoke", "penstock token list --json"),
        ("token list, token revoke", "penstock token revoke alice --json"),
        ("tag encode", "penstock tag encode cms/analysis-input --json"),
        ("tag encode", "penstock tag encode 1023/1 --json"),
        ("tag decode", "penstock tag decode 206 --json"),
        ("tag decode", "penstock tag decode 0x30038 --json"),
        ("tag decode", "penstock tag decode '1E 03 00 03 0E 00' --json"),
        (
            "tag decode",
            r#"penstock tag decode '<134>1 - se1.example.org xrootd - firefly-json - {"version":1,
               "flow-lifecycle":{"state":"end","current-time":"2026-03-01T10:00:09.000001+00:00",
               "start-time":"2026-03-01T10:00:00.000001+00:00","end-time":"2026-03-01T10:00:09.000001+00:00"},
               "usage":{"received":5,"sent":12},"netlink":{"rtt":12.5},
               "context":{"experiment-id":2,"activity-id":26,"application":"http-get"},
               "flow-id":{"afi":"ipv6","src-ip":"2001:db8::1","dst-ip":"2001:db8::2","protocol":"tcp",
               "src-port":1094,"dst-port":40000}}' --json"#,
        ),
        ("tag registry, tag registry show", "penstock tag registry show --json"),
        (
            "tag registry update",
            "penstock tag registry update core/scitags/data/registry.json --json",
        ),
        (
            "serve",
            "penstock serve --config docs/samples/collector/penstock.toml --json > serve.json 2> serve.log < /dev/null & \
             wait_for grep -q fingerprint serve.json; kill $!; cat serve.json",
        ),
        ("generate man", "penstock generate man man --json"),
        ("generate completions", "penstock generate completions bash --json"),
    ],
};

const AGENT: Run = Run {
    setup: "host 11 dtn1; agent dtn1 --root /hosts/dtn1/data --http 192.0.2.11:8621; export PENSTOCK_HTTP=192.0.2.11:8621; \
            dataset data; login dtn1 192.0.2.11:8621",
    commands: &[
        (
            "login",
            "penstock login dtn1 --token-file /hosts/dtn1/state/token --fingerprint \"$(fingerprint dtn1)\" --json",
        ),
        ("cp", "penstock cp -r data penstock://dtn1/ --scitag cms/default --json"),
        ("cp", "penstock cp -r penstock://dtn1/data back --json"),
        ("tune history", "PENSTOCK_STATE=/hosts/dtn1/state penstock tune history --json"),
        ("host facts", "penstock host facts --json"),
        ("host check", "penstock host check --interface lan --json"),
        ("", "slow_copy dtn1 192.0.2.11:8621"),
        ("transfers", "penstock transfers --json"),
        ("transfers show --why", "penstock transfers show \"$(own_copy)\" --why --json"),
        (
            "transfers show, transfers set, transfers cancel",
            "penstock transfers show \"$(transfer)\" --json",
        ),
        (
            "transfers show, transfers set, transfers cancel",
            "penstock transfers set \"$(own_copy)\" --streams 2 --json",
        ),
        (
            "transfers show, transfers set, transfers cancel",
            "penstock transfers set \"$(transfer)\" --streams 3 --json",
        ),
        (
            "transfers show, transfers set, transfers cancel",
            "penstock transfers cancel \"$(transfer)\" --json",
        ),
    ],
};

const SERVICES: Run = Run {
    setup: "controller; head -c 60000000 /dev/urandom > slow.dat",
    commands: &[
        ("serve", "cat /hosts/controller/serve.json /hosts/dtn1/serve.json"),
        (
            "submit, set, cancel",
            "penstock submit cern:/store/run7 caltech:/store/run7 --deadline 6h --key k --watch --json | tail -n 1",
        ),
        (
            "submit, set, cancel",
            "waiting_request; penstock set \"$(cat /tmp/request)\" --priority 5 --json",
        ),
        ("list", "penstock list --json"),
        ("show", "penstock show \"$(cat /tmp/request)\" --files --history --json"),
        (
            "show",
            "penstock show \"$(penstock list --state done | awk 'END { print $1 }')\" --files --history --json",
        ),
        ("submit, set, cancel", "penstock cancel \"$(cat /tmp/request)\" --json"),
        ("drain", "penstock drain --json"),
        ("drain NAME", "penstock drain dtn1 --undo --json"),
        (
            "reserve FROM TO RATE, reserve --cancel",
            "penstock reserve cern caltech 10G --for 6h --json",
        ),
        ("reserve", "penstock reserve --json"),
        ("transfers", "PENSTOCK_STATE=/hosts/dtn1/state on dtn1 penstock transfers --json"),
        (
            "",
            "on dtn2 penstock nettest --listen 192.0.2.12:5201 --json > listen.json 2> events.json < /dev/null &",
        ),
        ("", "wait_for grep -q listening listen.json"),
        ("nettest HOST", "penstock nettest 192.0.2.12:5201 --time 1 --json"),
        (
            "nettest HOST --sweep",
            "penstock nettest 192.0.2.12:5201 --time 1 --sweep --sweep-max 2 --json",
        ),
        (
            "",
            "kill -STOP \"$(cat /hosts/dtn2/agent)\"; penstock drain dtn1 --undo; cp slow.dat /hosts/dtn1/store; \
             penstock submit cern:/store/slow.dat caltech:/store/ --json | sed 's/.*\"id\":\\([0-9]*\\).*/\\1/' \
             > slow; wait_for sh -c 'penstock show \"$(cat slow)\" --json | grep -q off_path'",
        ),
        ("show", "penstock show \"$(cat slow)\" --files --history --json"),
        ("", "kill -CONT \"$(cat /hosts/dtn2/agent)\""),
        ("nettest --listen", "cat listen.json"),
        ("nettest --listen: events", "wait_for grep -q finished events.json; cat events.json"),
    ],
};

const KERNEL: Run = Run {
    setup: "interface eth0",
    commands: &[
        ("lab status: several labs, or none", "penstock lab status --json"),
        ("lab up", "penstock lab up docs/samples/two.toml --scale 1/100 --json"),
        ("lab status", "penstock lab status --json"),
        ("lab set, lab cut, lab mend", "penstock lab set wan delay=9ms --json"),
        ("lab set, lab cut, lab mend", "penstock lab cut wan --json"),
        ("lab set, lab cut, lab mend", "penstock lab mend wan --json"),
        ("lab circuit", "penstock lab circuit c1 --rate 1M --from a --to b wan --json"),
        ("lab status", "penstock lab status --json"),
        ("lab calibrate", "penstock lab calibrate wan --json"),
        ("lab down", "penstock lab down --json"),
        ("lab run", "penstock lab run docs/samples/cut.toml --with seconds=1 --json"),
        (
            "host tune",
            "penstock host tune --only tcp-wmem --for 100G --rtt 50ms --apply --revert-after 60s --json",
        ),
        ("host tune --confirm", "penstock host tune --confirm --json"),
        ("host restore", "penstock host restore --json"),
        (
            "tag run",
            "timeout -s INT 1 penstock tag run --config docs/samples/tags.toml --interface eth0 --json",
        ),
        ("tag status", "penstock tag status --rules --json"),
        ("tag stop", "penstock tag stop --json"),
        (
            "sample",
            "timeout -s INT 2 penstock sample --collector 127.0.0.1 --interface eth0 --polling 1s --json",
        ),
    ],
};

/// Runs commands in a sandbox and compares their output with the page.
#[track_caller]
fn compare_all(run: &Run) {
    let reference = reference();
    let mut sandbox = match Sandbox::start() {
        Ok(sandbox) => sandbox,
        Err(error) if !is_root() => {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("no namespaces for this user: {error}"),
            );
        }
        Err(error) => panic!("no sandbox: {error}"),
    };
    let done = sandbox.run(run.setup).expect("it ends");
    assert_eq!(done.code, 0, "setup: {}", done.output);
    let mut faults = Vec::new();
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (heading, command) in run.commands {
        let done = sandbox.run(command).unwrap_or_else(|error| panic!("{command}: {error}"));
        if done.code != 0 && !command.starts_with("timeout") {
            faults.push(format!("{command}: exit code {}: {}", done.code, done.output));
        }
        if heading.is_empty() {
            continue;
        }
        let fields = reference.get(*heading).unwrap_or_else(|| panic!("no heading `{heading}`"));
        let mut count = 0;
        let mut wrong = BTreeSet::new();
        // Plain text may precede the objects.
        let objects = done.output.find('{').map_or("", |at| &done.output[at..]);
        for value in serde_json::Deserializer::from_str(objects).into_iter::<Value>() {
            let Ok(value) = value else { break };
            count += 1;
            compare(&value, "", fields, seen.entry(*heading).or_default(), &mut wrong);
        }
        if count == 0 {
            faults.push(format!("{command}: no object: {}", done.output));
        }
        faults.extend(wrong.into_iter().map(|fault| format!("{command}: {fault}")));
    }
    for (heading, seen) in seen {
        let unseen = reference[heading].keys().filter(|path| !seen.contains(*path));
        let unseen: Vec<&str> = unseen.map(String::as_str).collect();
        println!("{heading}: {} fields compared; not printed here: {unseen:?}", seen.len());
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn offline_objects_are_documented() {
    compare_all(&OFFLINE);
}

#[test]
fn objects_of_agents_are_documented() {
    compare_all(&AGENT);
}

#[test]
fn objects_of_services_are_documented() {
    compare_all(&SERVICES);
}

#[test]
fn objects_of_kernel_features_are_documented() {
    if !is_root() {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "labs and eBPF need root",
        );
    }
    compare_all(&KERNEL);
}

/// Objects of commands that need an NVMe target: `tests/disk.rs` and, in guests, `tests/nvmeof` read them.
const OF_NVME_TARGETS: [&str; 5] =
    ["disk stream", "disk export", "disk remove", "disk connect", "disk disconnect"];

#[test]
fn every_object_is_compared() {
    let compared: BTreeSet<&str> = [&OFFLINE, &AGENT, &SERVICES, &KERNEL]
        .iter()
        .flat_map(|run| run.commands)
        .map(|(heading, _)| *heading)
        .chain(OF_NVME_TARGETS)
        .collect();
    let reference = reference();
    let missing: Vec<&String> =
        reference.keys().filter(|heading| !compared.contains(heading.as_str())).collect();
    assert!(missing.is_empty(), "no command prints {missing:?}");
}
