//! Rules on recorded machines: a golden table for each fixture, and known faults of other tuning programs and recipes.
//!
//! `UPDATE_GOLDEN=1 cargo test -p penstock-host --test rules` rewrites the tables; the change is reviewed as a diff.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penstock_host::change::{Change, Tunable};
use penstock_host::facts::nics::Bounded;
use penstock_host::facts::{Facts, FactsError, Mount};
use penstock_host::goal::{Goal, HostRole};
use penstock_host::plan::{Selection, TuningPlan, plan};
use penstock_host::report::report;
use penstock_host::rules::{Case, Finding, Verdict, judge, named};

/// Fixture, rate in Gb/s, round-trip time in ms.
const MACHINE_SIZES: [(&str, u64, u64); 7] = [
    ("sc14-r920", 100, 65),
    ("sc23-caltech-400g", 400, 65),
    ("el9-stock", 100, 100),
    ("recipes", 100, 50),
    ("roce-wan", 400, 108),
    ("vm-stock", 20, 50),
    ("pod", 10, 100),
];

fn fixture(name: &str, ending: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.{ending}"))
}

fn facts(name: &str) -> Facts {
    Facts::from_json(&fs::read(fixture(name, "json")).unwrap()).unwrap()
}

fn goal(gbps: u64, ms: u64) -> Goal {
    Goal::new(gbps * 1_000_000_000, Duration::from_millis(ms))
}

fn findings(facts: &Facts, goal: Goal) -> Vec<Finding> {
    judge(&Case::new(facts, goal, &[]))
}

/// Findings for a changed fixture with its goal.
fn changed(name: &str, change: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let (_, gbps, ms) = MACHINE_SIZES.into_iter().find(|(machine, ..)| *machine == name).unwrap();
    let mut facts = facts(name);
    change(&mut facts);
    findings(&facts, goal(gbps, ms))
}

fn of<'a>(findings: &'a [Finding], rule: &str, object: &str) -> &'a Verdict {
    let found = findings.iter().find(|finding| finding.rule == rule && finding.object == object);
    &found.unwrap_or_else(|| panic!("{rule} says nothing of {object}")).verdict
}

fn planned(findings: &[Finding]) -> TuningPlan {
    plan(findings, &Selection::default())
}

fn table(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let what = match &finding.verdict {
            Verdict::Ok { have } => have.clone(),
            Verdict::NoOp { why } | Verdict::NotApplicable { why } | Verdict::Unknown { why } => {
                why.clone()
            }
            other => {
                let (have, want) = other.difference().unwrap();
                format!("{have} -> {want}")
            }
        };
        let word = finding.verdict.word();
        let _ = writeln!(text, "{word:14}  {:21}  {:12}  {what}", finding.rule, finding.object);
    }
    text
}

#[test]
fn what_rules_say_of_each_machine() {
    for (name, gbps, ms) in MACHINE_SIZES {
        let facts = facts(name);
        let goal = goal(gbps, ms);
        let findings = findings(&facts, goal);
        let sum = report(&facts, &goal, &findings);
        let plan = planned(&findings);
        let text = format!(
            "{gbps} Gb/s, {ms} ms, {} streams\nscore {}, first: {}\none stream {} Mb/s\nplan: {}\n\n{}",
            goal.streams,
            sum.score.unwrap(),
            sum.top.join(", "),
            sum.stream_ceiling_bits_per_second.unwrap() / 1_000_000,
            plan.steps.iter().map(|step| step.rule).collect::<Vec<_>>().join(", "),
            table(&findings)
        );
        let golden = fixture(name, "txt");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&golden, &text).unwrap();
        }
        let kept = fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(kept, text, "{name}: UPDATE_GOLDEN=1 cargo test -p penstock-host --test rules");
    }
}

/// Default buffers limit a stream to 0.62 Gb/s of 20 at 50 ms: reported first, and fixed by the plan.
#[test]
fn the_rule_of_buffers_comes_first() {
    let facts = facts("vm-stock");
    let goal = goal(20, 50);
    let before = findings(&facts, goal);
    let sum = report(&facts, &goal, &before);
    assert_eq!(&sum.top[..2], ["tcp-wmem", "tcp-rmem"]);
    let bps = sum.stream_ceiling_bits_per_second.unwrap();
    assert!((600_000_000..640_000_000).contains(&bps), "{bps}");

    let mut mended = facts;
    for change in planned(&before).steps.iter().flat_map(|step| &step.changes) {
        if let Tunable::Sysctl { key } = &change.tunable {
            mended.sysctls.values.insert(key.clone(), change.to.clone());
        }
    }
    let bps = mended.sysctls.buffers().unwrap().ceiling_bps(goal.rtt).unwrap();
    assert!(bps >= 20_000_000_000, "{bps}");
    let after = findings(&mended, goal);
    assert!(!of(&after, "tcp-wmem", "host").is_bad() && !of(&after, "tcp-rmem", "host").is_bad());
    // The default buffer of every connection does not change.
    assert_eq!(mended.sysctls.triple("net.ipv4.tcp_rmem").unwrap()[1], 131_072);
}

#[test]
fn applied_plan_leaves_empty_plan() {
    for (name, gbps, ms) in MACHINE_SIZES {
        let mut facts = facts(name);
        let goal = goal(gbps, ms);
        for change in planned(&findings(&facts, goal)).steps.iter().flat_map(|step| &step.changes) {
            if let Tunable::Sysctl { key } = &change.tunable {
                facts.sysctls.values.insert(key.clone(), change.to.clone());
            }
        }
        for step in planned(&findings(&facts, goal)).steps {
            for change in step.changes {
                let left = matches!(change.tunable, Tunable::Sysctl { .. });
                assert!(!left, "{name}: {} again: {change:?}", step.rule);
            }
        }
    }
}

/// TuneD network-throughput: 16 MiB for 40G and more is 1.86 Gb/s at 50 ms; notsent_lowat costs 8 %.
#[test]
fn tuned_network_throughput() {
    let found = changed("recipes", |_| {});
    let facts = facts("recipes");
    let bps = facts.sysctls.buffers().unwrap().ceiling_bps(Duration::from_millis(50)).unwrap();
    assert!((1_800_000_000..1_900_000_000).contains(&bps), "{bps}");
    assert!(matches!(of(&found, "tuned", "host"), Verdict::Conflict { .. }));
    assert!(matches!(of(&found, "notsent-lowat", "host"), Verdict::Differs { .. }));
    let harmless = changed("recipes", |facts| {
        facts.managers.tuned_profile = Some("throughput-performance".into());
    });
    assert!(matches!(of(&harmless, "tuned", "host"), Verdict::Ok { .. }));
    // TuneD has no key for qdiscs; the rule cites and contradicts the page that claims one.
    assert!(
        named("default-qdisc")
            .unwrap()
            .contradicted
            .iter()
            .any(|text| text.contains("no such key"))
    );
}

/// Mellanox's sysctl_perf_tuning: 4 MiB, timestamps off, low latency on.
#[test]
fn mellanox_recipe_of_2006_is_judged() {
    let found = changed("recipes", |facts| {
        let mut set =
            |key: &str, value: &str| facts.sysctls.values.insert(key.into(), value.into());
        set("net.ipv4.tcp_rmem", "4096 87380 4194304");
        set("net.ipv4.tcp_wmem", "4096 65536 4194304");
    });
    assert!(of(&found, "tcp-wmem", "host").is_bad() && of(&found, "timestamps", "host").is_bad());
    assert!(matches!(of(&found, "low-latency", "host"), Verdict::NoOp { .. }));
    assert!(matches!(of(&found, "adv-win-scale", "host"), Verdict::NoOp { .. }));
}

/// osg-htc: 32 MiB for movers, half a gigabyte for every UDP socket, large LRO unseen, 250,000 packets of backlog.
#[test]
fn osg_htc_tuning_is_judged() {
    let found = changed("recipes", |facts| {
        facts.sysctls.values.insert("net.ipv4.tcp_rmem".into(), "4096 87380 33554432".into());
    });
    assert!(of(&found, "tcp-rmem", "host").is_bad());
    let (have, want) = of(&found, "socket-default", "host").difference().unwrap();
    assert!(have.contains("536870912") && want.contains("212992"));
    assert!(of(&found, "lro", "ens1f0np0").is_bad(), "its own name is rx-lro");
    // Without drops no longer backlog is recommended, and an existing one stays.
    assert!(matches!(of(&found, "netdev-backlog", "host"), Verdict::Ok { .. }));
    let dropped = changed("el9-stock", |facts| facts.softnet.as_mut().unwrap().dropped_packets = 9);
    assert!(of(&dropped, "netdev-backlog", "host").is_bad());
}

/// bpftune overflowed beyond 2 GiB to a negative number: planned values fit an int.
#[test]
fn no_plan_overflows_a_buffer() {
    for gbps in [10, 400, 1600] {
        for ms in [1, 100, 400] {
            let facts = facts("vm-stock");
            let mut goal = goal(gbps, ms);
            goal.streams = 1;
            for change in
                planned(&findings(&facts, goal)).steps.iter().flat_map(|step| &step.changes)
            {
                let Tunable::Sysctl { key } = &change.tunable else { continue };
                if !["tcp_rmem", "tcp_wmem", "rmem_max", "wmem_max"]
                    .iter()
                    .any(|end| key.ends_with(end))
                {
                    continue;
                }
                for number in change.to.split(' ') {
                    assert!(number.parse::<i32>().is_ok_and(|number| number > 0), "{change:?}");
                }
            }
        }
    }
    let tuner = changed("vm-stock", |facts| facts.managers.bpftune = Some(true));
    assert!(matches!(of(&tuner, "tuned", "host"), Verdict::Conflict { .. }));
}

/// The recipes of ESnet and osg-htc set fq as root qdisc of a multiqueue card.
#[test]
fn fq_below_mq_respects_foreign_qdisc() {
    let found = changed("recipes", |_| {});
    assert!(matches!(of(&found, "qdisc", "ens1f0np0"), Verdict::Conflict { .. }));
    let stock = changed("el9-stock", |_| {});
    let (_, want) = of(&stock, "qdisc", "ens1f0np0").difference().unwrap();
    assert_eq!(want, "mq with fq");
    let without = changed("el9-stock", |facts| {
        facts.kernel.options.insert("NET_SCH_FQ".into(), "n".into());
    });
    assert!(matches!(of(&without, "qdisc", "ens1f0np0"), Verdict::NoOp { .. }));
    assert!(matches!(of(&without, "default-qdisc", "host"), Verdict::NoOp { .. }));
}

/// 10,000 packets below HTB were 410 ms of queue: a long queue helps only with pfifo_fast.
#[test]
fn txqueuelen_only_where_used() {
    let found = changed("sc14-r920", |facts| facts.nics[0].tx_queue_packets = Some(1000));
    assert!(of(&found, "tx-queue-length", "eth2").is_bad());
    // pfifo and bfifo read it at creation; an explicit limit stays.
    for kind in ["fq", "htb", "noqueue", "pfifo", "bfifo"] {
        let found = changed("sc14-r920", |facts| {
            facts.nics[0].tx_queue_packets = Some(1000);
            let qdisc = facts.nics[0].qdisc.as_mut().unwrap();
            qdisc.kind = kind.into();
            qdisc.below.clear();
        });
        assert!(
            matches!(of(&found, "tx-queue-length", "eth2"), Verdict::NotApplicable { .. }),
            "{kind}"
        );
    }
}

#[test]
fn moderation_timestamps_and_iommu_as_decided() {
    let found = changed("sc23-caltech-400g", |_| {});
    assert!(
        of(&found, "coalescing", "enp1s0np0").is_bad() && of(&found, "timestamps", "host").is_bad()
    );
    assert!(matches!(of(&found, "iommu", "host"), Verdict::Ok { .. }));
    let bulk = changed("sc23-caltech-400g", |facts| {
        facts.nics[0].settings.get_mut("rx-usecs").unwrap().value = 64;
    });
    assert!(matches!(of(&bulk, "coalescing", "enp1s0np0"), Verdict::Ok { .. }));
    let router = changed("recipes", |_| {});
    assert!(of(&router, "coalescing", "ens1f0np0").is_bad(), "1000 us fixed, SENSE's for routers");
    let stock = changed("el9-stock", |_| {});
    assert!(matches!(of(&stock, "iommu", "host"), Verdict::NeedsReboot { .. }));
    let off = changed("el9-stock", |facts| {
        facts.kernel.command_line = Some("ro intel_iommu=off".into());
    });
    assert!(matches!(of(&off, "iommu", "host"), Verdict::Ok { .. }));
}

#[test]
fn congestion_control_is_not_dictated() {
    for good in ["cubic", "bbr"] {
        let found = changed("vm-stock", |facts| {
            facts.sysctls.values.insert("net.ipv4.tcp_congestion_control".into(), good.into());
        });
        assert!(matches!(of(&found, "congestion-control", "host"), Verdict::Ok { .. }));
    }
    assert!(of(&changed("recipes", |_| {}), "congestion-control", "host").is_bad(), "htcp");
}

#[test]
fn io_schedulers_have_blk_mq_names() {
    let found = changed("el9-stock", |facts| facts.disks[0].scheduler = Some("bfq".into()));
    let (_, want) = of(&found, "block-scheduler", "nvme0n1").difference().unwrap();
    assert_eq!(want, "none");
    assert!(matches!(of(&found, "block-scheduler", "sda"), Verdict::Ok { .. }));
}

/// irqbalance moves interrupts to the other node, and reverts changes by other programs.
#[test]
fn interrupts_on_the_other_node() {
    let kept = changed("el9-stock", |_| {});
    assert!(matches!(of(&kept, "irq-affinity", "ens1f0np0"), Verdict::Conflict { .. }));
    let ours = changed("el9-stock", |facts| facts.managers.irqbalance = Some(false));
    let Verdict::Differs { changes, .. } = of(&ours, "irq-affinity", "ens1f0np0") else {
        panic!("irqbalance does not run");
    };
    assert_eq!(changes.len(), 16);
    for change in changes {
        let cpu: usize = change.to.parse().unwrap();
        assert!((0..16).contains(&cpu) || (32..48).contains(&cpu), "{change:?}");
    }
}

/// NetworkManager sets the MTU when a device comes up, and TuneD a profile.
#[test]
fn mtu_changes_only_on_request() {
    let stock = changed("el9-stock", |_| {});
    assert!(matches!(of(&stock, "mtu", "ens1f0np0"), Verdict::Conflict { .. }));
    let alone = changed("el9-stock", |facts| facts.managers.network_manager = Some(false));
    assert!(!planned(&alone).steps.iter().any(|step| step.rule == "mtu"));
    let asked = Selection { also: vec!["mtu".into()], ..Selection::default() };
    let steps = plan(&alone, &asked).steps;
    let step = steps.iter().find(|step| step.rule == "mtu").unwrap();
    assert!(step.interrupts && step.changes[1].to == "9000");
    assert!(
        matches!(&step.changes[0].tunable, Tunable::Sysctl { key } if key.ends_with("mtu_probing"))
    );
    // The card of the management network is not changed.
    assert!(!alone.iter().any(|finding| finding.object == "eno1"));
}

#[test]
fn slow_pcie_slots_are_reported() {
    let found = changed("sc23-caltech-400g", |_| {});
    assert!(matches!(of(&found, "pcie", "enp1s0np0"), Verdict::Ok { .. }));
    let (have, want) = of(&found, "pcie", "enp129s0np0").difference().unwrap();
    assert!(have.contains("252 Gb/s") && want.contains("32 GT/s x16"), "{have} {want}");
    // Two ports of one card share its slot.
    let two = changed("el9-stock", |facts| {
        let mut second = facts.nics[0].clone();
        second.name = "ens1f1np1".into();
        second.bus = Some("pci 0000:17:00.1".into());
        facts.nics.push(second);
    });
    let (have, want) = of(&two, "pcie", "ens1f1np1").difference().unwrap();
    assert!(have.contains("126 Gb/s") && want.contains("16 GT/s x16"), "{have} {want}");
}

#[test]
fn container_limits_need_host() {
    let found = changed("pod", |_| {});
    for (rule, object) in [("socket-max", "host"), ("governor", "host"), ("swappiness", "host")] {
        assert!(matches!(of(&found, rule, object), Verdict::NeedsHost { .. }), "{rule}");
    }
    // A hidden sysctl is unknown.
    let Verdict::Unknown { why } = of(&found, "tcp-mem", "host") else {
        panic!("the verdict is not unknown")
    };
    assert!(why.contains("only the host"), "{why}");
    for step in planned(&found).steps {
        for change in step.changes {
            assert!(!change.tunable.is_of_the_machine(), "{change:?}");
        }
    }
    // Buffers are compared with the memory limit of the container.
    let short = changed("pod", |facts| facts.memory.limit_bytes = Some(128 << 20));
    assert!(matches!(of(&short, "memory-limit", "host"), Verdict::NeedsHost { .. }));
}

#[test]
fn virtual_machine_lacks_are_not_faults() {
    let found = changed("vm-stock", |_| {});
    for rule in ["governor", "boost", "energy-preference", "smt"] {
        assert!(matches!(of(&found, rule, "host"), Verdict::NotApplicable { .. }), "{rule}");
    }
}

#[test]
fn test_role_asks_for_more() {
    let facts = facts("el9-stock");
    let test = Goal { role: HostRole::Test, ..goal(100, 100) };
    let found = findings(&facts, test);
    for rule in ["no-metrics-save", "smt", "c-states"] {
        assert!(of(&found, rule, "host").is_bad(), "{rule}");
        assert!(!of(&findings(&facts, goal(100, 100)), rule, "host").is_bad(), "{rule}");
    }
}

#[test]
fn facts_round_trip() {
    for (name, ..) in MACHINE_SIZES {
        let facts = facts(name);
        assert_eq!(Facts::from_json(facts.to_json().as_bytes()).unwrap(), facts);
    }
    let own = Facts::gather();
    assert_eq!(Facts::from_json(own.to_json().as_bytes()).unwrap(), own);
}

#[test]
fn invalid_facts_file_names_position() {
    let wrong = |text: &str| Facts::from_json(text.as_bytes()).unwrap_err().to_string();
    assert!(wrong("{\"version\": 1, \"kernl\": {}}").contains("unknown field `kernl`"));
    assert!(wrong("{\"version\": 1,\n\"nics\": 3}").contains("line 2"));
    assert!(matches!(
        Facts::from_json(b"{\"version\": 9, \"new\": 1}"),
        Err(FactsError::Version { found: 9 })
    ));
    for text in ["", "{}", "null", "7"] {
        wrong(text);
    }
    for list in ["[]", "[1]", " \n[1, null]"] {
        assert!(wrong(list).starts_with("a facts file is an object with version 1"), "{list}");
    }
}

/// Terminal escape sequences and oversized values in facts files.
#[test]
fn hostile_facts_file_is_refused() {
    let wrong = |text: &str| {
        let error = Facts::from_json(text.as_bytes()).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error}");
        error
    };
    for (place, text) in [
        ("note:", r#"{"version": 1, "note": "\u001b]0;x\u0007"}"#),
        ("nics[1].name:", r#"{"version": 1, "nics": [{"name": "a"}, {"name": "b\u001b[2J"}]}"#),
        (
            "sysctls.values.vm.swappiness:",
            r#"{"version": 1, "sysctls": {"values": {"vm.swappiness": "1\n"}}}"#,
        ),
        ("a name:", r#"{"version": 1, "sysctls": {"values": {"\u001bc": "1"}}}"#),
        ("note:", "{\"version\": 1, \"note\": \"\u{9b}2J\"}"),
    ] {
        let error = wrong(text);
        assert!(error.contains("control character") && error.contains(place), "{error}");
    }
    for online in ["1000000000", "18446744073709551615"] {
        let text = format!(
            r#"{{"version": 1, "cpu": {{"online": {online}, "governors": {{"powersave": "0-3"}}}}}}"#
        );
        assert!(wrong(&text).contains(&format!("{online} processors: 65536 at most")));
    }
}

/// CPU lists are limited to the largest number of CPUs.
#[test]
fn long_cpu_lists_are_refused() {
    for list in ["0-4294967295", "0-18446744073709551615", "99999", "x"] {
        let found = changed("el9-stock", |facts| {
            facts.cpu.governors = [("powersave".into(), list.into())].into();
            facts.cpu.nodes[0].cpus = list.into();
            facts.nics[0].local_cpus = Some(list.into());
            for irq in &mut facts.nics[0].irqs {
                irq.cpus = list.into();
                irq.effective_cpus = None;
            }
        });
        assert!(matches!(of(&found, "governor", "host"), Verdict::Unknown { .. }), "{list}");
        assert!(matches!(of(&found, "irq-affinity", "ens1f0np0"), Verdict::Unknown { .. }));
    }
}

/// CPU numbers may have gaps, and only CPUs that differ are changed.
#[test]
fn differing_cpus_change_by_number() {
    let paths = |found: &[Finding], rule: &str| -> Vec<String> {
        let Verdict::Differs { changes, .. } = of(found, rule, "host") else {
            panic!("{:?}", of(found, rule, "host"));
        };
        let cpu = |change: &Change| {
            let path = change.tunable.to_string();
            let number = path.split('/').find_map(|part| part.strip_prefix("cpu")?.parse().ok());
            let number: usize = number.unwrap();
            format!("{number} {}", change.from)
        };
        changes.iter().map(cpu).collect()
    };
    let found = changed("el9-stock", |facts| {
        facts.cpu.online = Some(4);
        facts.cpu.nodes.truncate(1);
        facts.cpu.nodes[0].cpus = "0-1,4-5".into();
        facts.cpu.governors = [("powersave".into(), "0-1,4-5".into())].into();
        facts.cpu.energy_preferences = [
            ("performance".into(), "0,4".into()),
            ("power".into(), "5".into()),
            ("balance_power".into(), "1".into()),
        ]
        .into();
    });
    assert_eq!(
        paths(&found, "governor"),
        ["0 powersave", "1 powersave", "4 powersave", "5 powersave"]
    );
    assert_eq!(paths(&found, "energy-preference"), ["1 balance_power", "5 power"]);
    let (have, _) = of(&found, "energy-preference", "host").difference().unwrap();
    assert_eq!(have, "balance_power on 1, power on 5");
}

/// Zero bytes and zero share is a threshold of zero; the threshold grows with the rate of the goal.
#[test]
fn dirty_pages_follow_rate_above_zero() {
    let with = |gbps: u64, values: [&str; 4]| {
        let mut facts = facts("el9-stock");
        facts.memory.total_bytes = Some(1 << 40);
        for (key, value) in
            ["background_bytes", "background_ratio", "bytes", "ratio"].iter().zip(values)
        {
            facts.sysctls.values.insert(format!("vm.dirty_{key}"), value.into());
        }
        let found = findings(&facts, goal(gbps, 50));
        of(&found, "dirty-pages", "host").clone()
    };
    let settings = |verdict: &Verdict| -> Vec<String> {
        let Verdict::Differs { changes, .. } = verdict else { panic!("{verdict:?}") };
        let formatted = |change: &Change| format!("{} {}", change.tunable, change.to);
        changes.iter().map(formatted).collect()
    };
    let stock = ["0", "10", "0", "20"];
    assert_eq!(with(10, stock).difference().unwrap().1, "1.17 GiB and 4.66 GiB");
    assert_eq!(with(100, stock).difference().unwrap().1, "11.6 GiB and 46.6 GiB");
    assert_eq!(with(0, stock).difference().unwrap().1, "64.0 MiB and 256 MiB");
    // A twentieth of the memory is the most.
    assert_eq!(with(1600, ["0", "90", "0", "90"]).difference().unwrap().1, "51.2 GiB and 205 GiB");
    assert!(matches!(with(10, ["2147483648", "0", "8589934592", "0"]), Verdict::Ok { .. }));
    // A good value is not changed.
    assert_eq!(
        settings(&with(10, ["0", "10", "8589934592", "0"])),
        ["vm.dirty_background_bytes 1250951168", "vm.dirty_background_ratio 0"]
    );
    // The kernel refuses zero bytes on undo: the share is set.
    assert_eq!(settings(&with(10, ["0", "0", "8589934592", "0"])), ["vm.dirty_background_ratio 1"]);
    assert_eq!(
        settings(&with(400, ["0", "0", "0", "0"])),
        ["vm.dirty_background_ratio 4", "vm.dirty_ratio 18"]
    );
    assert!(matches!(with(10, ["0", "many", "0", "20"]), Verdict::Unknown { .. }));
}

/// The larger of the reverse path filters of `all` and of the device applies.
#[test]
fn strict_filters_of_the_devices_themselves() {
    let with = |all: &str, default: &str, own: [Option<u8>; 3]| {
        let found = changed("sc14-r920", |facts| {
            let mut set = |name: &str, value: &str| {
                facts
                    .sysctls
                    .values
                    .insert(format!("net.ipv4.conf.{name}.rp_filter"), value.into());
            };
            set("all", all);
            set("default", default);
            for (nic, own) in facts.nics.iter_mut().zip(own) {
                nic.rp_filter = own;
            }
        });
        match of(&found, "rp-filter", "host").clone() {
            Verdict::Differs { changes, .. } => {
                assert_eq!(changes.len(), 1);
                assert_eq!(changes[0].to, "2");
                changes[0].tunable.to_string()
            }
            verdict => verdict.word().to_owned(),
        }
    };
    const ALL: &str = "net.ipv4.conf.all.rp_filter";
    assert_eq!(with("0", "1", [Some(1), Some(0), Some(0)]), ALL);
    assert_eq!(with("1", "2", [Some(2), Some(2), Some(0)]), ALL, "1 and 0 are 1");
    assert_eq!(with("1", "2", [Some(2); 3]), "ok");
    assert_eq!(with("2", "1", [Some(1); 3]), "ok", "1 and 2 are 2");
    assert_eq!(with("0", "1", [Some(0); 3]), "net.ipv4.conf.default.rp_filter");
    assert_eq!(with("0", "1", [None; 3]), ALL, "a device has the default's when it is made");
    assert_eq!(with("0", "0", [None; 3]), "ok");
}

/// The host decides: the driver accepts adaptive-rx and keeps 0.
#[test]
fn virtual_nic_has_no_moderation() {
    let found = changed("vm-stock", |facts| {
        let word = |word: &str| (word.to_owned(), Bounded { value: 0, max: None });
        facts.nics[0].settings.extend(["adaptive-rx", "rx-usecs"].map(word));
    });
    let name = facts("vm-stock").nics[0].name.clone();
    assert!(matches!(of(&found, "coalescing", &name), Verdict::NotApplicable { .. }));
}

/// A stream carries at most 1.07 GB per round-trip time.
#[test]
fn streams_that_cannot_carry_the_goal() {
    let facts = facts("sc23-caltech-400g");
    let with = |streams, ms| {
        let goal = Goal { streams, ..goal(400, ms) };
        report(&facts, &goal, &findings(&facts, goal))
    };
    let few = with(1, 100);
    assert_eq!(few.streams_needed, Some(5));
    assert_eq!(few.streams_ceiling_bits_per_second.unwrap() / 100_000_000, 858, "85.9 Gb/s");
    assert_eq!(with(4, 100).streams_needed, Some(5));
    assert_eq!(with(5, 100).streams_needed, None);
    assert_eq!(few.score, with(5, 100).score, "no fault of the host");
    assert_eq!(
        (with(1, 0).streams_needed, with(1, 0).streams_ceiling_bits_per_second),
        (None, None)
    );
}

/// 32 MiB allow 2.5 Gb/s at 100 ms, for any send buffer.
#[test]
fn each_buffer_has_its_own_ceiling() {
    let found = changed("el9-stock", |facts| {
        let mut set =
            |key: &str, value: &str| facts.sysctls.values.insert(key.into(), value.into());
        set("net.ipv4.tcp_rmem", "4096 131072 33554432");
        set("net.ipv4.tcp_wmem", "4096 16384 4194304");
    });
    let have = |rule| of(&found, rule, "host").difference().unwrap().0.to_owned();
    assert!(have("tcp-rmem").ends_with("one stream 2.52 Gb/s at most"), "{}", have("tcp-rmem"));
    assert!(have("tcp-wmem").ends_with("one stream 309 Mb/s at most"), "{}", have("tcp-wmem"));
}

#[test]
fn hardware_gro_follows_driver_not_rate() {
    let with = |id: Option<&str>, driver: &str| {
        let found = changed("sc23-caltech-400g", |facts| {
            facts.nics[0].device_id = id.map(str::to_owned);
            facts.nics[0].driver = Some(driver.to_owned());
        });
        of(&found, "hw-gro", "enp1s0np0").word()
    };
    assert_eq!(with(Some("15b3:1021"), "mlx5_core"), "differs");
    assert_eq!(with(Some("15b3:a2dc"), "mlx5_core"), "differs");
    assert_eq!(with(Some("15b3:1017"), "mlx5_core"), "not applicable");
    assert_eq!(with(None, "mlx5_core"), "unknown");
    assert_eq!(with(None, "bnxt_en"), "not applicable");
}

#[test]
fn transfers_of_a_slot() {
    let with = |request, payload, could| {
        let found = changed("sc23-caltech-400g", |facts| {
            let slot = facts.nics[0].pcie.as_mut().unwrap();
            slot.max_read_request_bytes = request;
            slot.max_payload_bytes = payload;
            slot.max_payload_bytes_max = could;
        });
        let verdict = of(&found, "pcie-transfers", "enp1s0np0");
        verdict.difference().map_or(verdict.word().to_owned(), |(_, want)| want.to_owned())
    };
    assert_eq!(with(None, None, None), "unknown");
    assert_eq!(with(Some(512), Some(512), Some(512)), "ok");
    assert_eq!(with(Some(4096), Some(128), Some(512)), "4096 and 512: by hand, with setpci");
    assert_eq!(with(Some(128), Some(256), Some(256)), "512 and 256: by hand, with setpci");
}

#[test]
fn queue_depth_needs_io_scheduler() {
    let with = |scheduler: &str, rotational, requests| {
        let found = changed("el9-stock", |facts| {
            let disk = facts.disks.iter_mut().find(|disk| disk.name == "sda").unwrap();
            disk.scheduler = Some(scheduler.into());
            disk.rotational = rotational;
            disk.requests = requests;
        });
        of(&found, "nr-requests", "sda").word()
    };
    assert_eq!(with("mq-deadline", Some(true), Some(64)), "differs");
    assert_eq!(with("mq-deadline", Some(true), Some(256)), "ok");
    assert_eq!(with("none", Some(true), Some(32)), "ok");
    assert_eq!(with("mq-deadline", Some(false), Some(64)), "ok");
    assert_eq!(with("mq-deadline", None, Some(64)), "unknown");
    assert_eq!(with("mq-deadline", Some(true), None), "unknown");
}

/// Eight disks with chunks of 512 KiB, one for parity: a stripe is 3.5 MiB.
#[test]
fn file_systems_made_to_rows() {
    let with = |kind: &str, options: &str, chunk, row| {
        let found = changed("el9-stock", |facts| {
            facts.disks[0].minimum_io_bytes = chunk;
            facts.disks[0].optimal_io_bytes = row;
            let disk = Some(facts.disks[0].name.clone());
            let (kind, options) = (kind.to_owned(), options.to_owned());
            facts.mounts = vec![Mount { path: "/data".into(), kind, options, disk }];
        });
        of(&found, "stripes", "/data").word()
    };
    let (chunk, row) = (Some(512 << 10), Some(3584 << 10));
    assert_eq!(with("xfs", "rw,sunit=1024,swidth=7168,noquota", chunk, row), "ok");
    assert_eq!(with("xfs", "rw,noquota", chunk, row), "differs");
    assert_eq!(with("xfs", "rw,sunit=1024,swidth=8192", chunk, row), "differs");
    assert_eq!(with("ext4", "rw,stripe=896", chunk, row), "ok");
    assert_eq!(with("ext4", "rw", chunk, row), "differs");
    assert_eq!(with("xfs", "rw,swidth=x", chunk, row), "unknown");
    assert_eq!(with("xfs", "rw", None, None), "unknown");
    for (chunk, row) in [(512, 0), (4096, 4096), (512, 33_553_920), (65_536, 0)] {
        assert_eq!(with("xfs", "rw", Some(chunk), Some(row)), "not applicable", "{chunk} {row}");
    }
    assert_eq!(with("zfs", "rw", chunk, row), "not applicable");
}

/// Connections do not inherit the slow-start threshold of earlier ones, where the kernel supports that.
#[test]
fn thresholds_are_not_inherited() {
    let with = |nothing: &str, threshold: Option<&str>| {
        let found = changed("el9-stock", |facts| {
            let values = &mut facts.sysctls.values;
            values.insert("net.ipv4.tcp_no_metrics_save".into(), nothing.into());
            values.remove("net.ipv4.tcp_no_ssthresh_metrics_save");
            if let Some(threshold) = threshold {
                let key = "net.ipv4.tcp_no_ssthresh_metrics_save";
                values.insert(key.into(), threshold.into());
            }
        });
        of(&found, "no-metrics-save", "host").word()
    };
    assert_eq!(with("0", Some("1")), "ok");
    assert_eq!(with("0", Some("0")), "differs");
    assert_eq!(with("1", Some("0")), "ok");
    assert_eq!(with("0", None), "ok");
}

proptest::proptest! {
    /// Rules judge arbitrary numbers in a facts file without a panic.
    #[test]
    fn odd_machines_are_judged(
        rate: u64, ms in 0u64..u64::MAX / 2, streams: u32, a: u64, b: i64, text in "[0-9 -]{0,24}", speed: u32, cpus in "[0-9,-]{0,12}",
    ) {
        let mut facts = facts("el9-stock");
        for (index, value) in facts.sysctls.values.values_mut().enumerate() {
            match index % 4 {
                0 => *value = a.to_string(),
                1 => *value = b.to_string(),
                2 => value.clone_from(&text),
                _ => {}
            }
        }
        facts.memory.total_bytes = Some(a);
        facts.memory.page_bytes = Some(a % 3);
        facts.cpu.governors = [("powersave".into(), cpus.clone())].into();
        facts.disks[0].minimum_io_bytes = Some(a);
        facts.disks[0].optimal_io_bytes = Some(a.wrapping_mul(3));
        facts.mounts[0].disk = Some(facts.disks[0].name.clone());
        facts.mounts[0].options = format!("swidth={a}");
        let nic = &mut facts.nics[0];
        nic.speed_mbps = Some(speed);
        nic.local_cpus = Some(cpus);
        nic.segments.tso_max_bytes = Some(speed);
        let mut goal = Goal::new(rate, Duration::from_millis(ms));
        for streams in [goal.streams, streams] {
            goal.streams = streams;
            let found = findings(&facts, goal);
            let _ = planned(&found);
            let _ = report(&facts, &goal, &found);
        }
    }
}

/// The kernel creates queues below mq by `net.core.default_qdisc`, so that setting changes first.
#[test]
fn default_qdisc_is_set_before_mq() {
    let found = changed("el9-stock", |facts| {
        facts.sysctls.values.insert("net.core.default_qdisc".into(), "fq_codel".into());
        for nic in &mut facts.nics {
            nic.tx_queues = Some(8);
        }
    });
    let changed: Vec<String> = found
        .iter()
        .filter(|finding| finding.rule == "qdisc")
        .filter_map(|finding| match &finding.verdict {
            Verdict::Differs { changes, .. } => Some(changes),
            _ => None,
        })
        .flatten()
        .map(|change| format!("{} {}", change.tunable, change.to))
        .collect();
    assert_eq!(changed[0], "net.core.default_qdisc fq", "{changed:?}");
    assert!(changed[1].ends_with(" qdisc mq"), "{changed:?}");
}
