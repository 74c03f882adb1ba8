//! TCP rules: buffers, then settings that affect connections over long paths.

use penstock_units::{BitRate, ByteCount};

use super::{
    Case, RULE, Rule, Verdict, differs, host, no_op, not_applicable, ok, setting, setting_where,
    unknown,
};
use crate::change::{Change, Tunable};
use crate::facts::Release;
use crate::facts::sysctls::Buffers;
use crate::goal::{Goal, HostRole};

const FASTERDATA: &str = "fasterdata.es.net/host-tuning/linux/test-measurement-host-tuning";
const PERFSONAR: &str = "perfsonar/toolkit: scripts/configure_sysctl";
const OSG: &str = "osg-htc/networking: fasterdata-tuning.sh";
const MEASURED: &str = "measured: cubic, 20 Gb/s, 50 ms, MTU 9000, Linux 6.18 (docs/host.md)";
const SENSE: &str = "sdn-sense.github.io: software-based-router.md";
const JANUS: &str = "esnet/janus: janus/api/sys/sysctl.py";
const TUNED_NETWORK: &str = "redhat-performance/tuned: profiles/network-throughput";

const SEND: &str = "net.ipv4.tcp_wmem";
const RECEIVE: &str = "net.ipv4.tcp_rmem";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "tcp-wmem",
        reads: "net.ipv4.tcp_wmem",
        wants: "most: 1.6 x rate x rtt / 8 / streams, 64 MiB to 2 GiB - 1; least and default stay",
        why: "bytes that are sent and not acknowledged stay in this buffer: a third of it is the kernel's \
              bookkeeping, and what is left, each round-trip time, is the rate of a stream. Stock 4 MiB gives \
              0.62 Gb/s at 50 ms, 512 MiB 19.8 of 20",
        risk: "memory of a stream that is used in full; the default (second number) stays, for it is given to every \
               connection of a server",
        sources: &[MEASURED, FASTERDATA, PERFSONAR, OSG],
        contradicted: &[
            "TuneD network-throughput: 16 MiB is for 40G and more; measured 1.86 Gb/s at 50 ms. Fasterdata has 256 MiB \
             to 1 GiB",
            "osg-htc --target dtn: 32 MiB, and 128 MiB for measurement hosts; a mover needs the path's product as well \
             as a tester: 32 MiB is 2.5 Gb/s at 100 ms",
            "Mellanox sysctl_perf_tuning: 4 MiB, a recipe of 2006 that is still shipped; 0.6 Gb/s at 50 ms",
            "FDT's documents: 8 MiB, 16 should be enough; obsolete",
            "bpftune grows without end, past 2 GiB to a negative number (oracle/bpftune#93, #36): a window ends at \
             1.07 GB (RFC 7323), and more streams go on from there",
        ],
        weight: 10,
        judge: |case| host("tcp-wmem", buffer(case, SEND, case.goal.send_bytes())),
        ..RULE
    },
    Rule {
        name: "tcp-rmem",
        reads: "net.ipv4.tcp_rmem",
        wants: "most: 2 x rate x rtt / 8 / streams, 64 MiB to 2 GiB - 1; least and default stay",
        why: "the window that is announced to the sender comes out of this buffer; cards fill it less well than \
              software does, hence 2",
        risk: "memory of a stream that is used in full",
        sources: &[MEASURED, FASTERDATA, PERFSONAR, OSG],
        contradicted: &[
            "the same as of tcp-wmem",
            "bpftune mixes it up with rmem_max (oracle/bpftune#188), which bounds only what programs ask for themselves",
        ],
        weight: 10,
        judge: |case| host("tcp-rmem", buffer(case, RECEIVE, case.goal.receive_bytes())),
        ..RULE
    },
    Rule {
        name: "tcp-mem",
        reads: "net.ipv4.tcp_mem, memory",
        wants: "pressure (second number) above all streams' buffers, at most half of the memory",
        why: "the cap over all connections: above it the kernel shrinks windows and logs 'out of memory -- consider \
              tuning tcp_mem'",
        risk: "memory that other programs need",
        sources: &["tempesta-tech/tempesta#2570", "fasterdata.es.net/host-tuning/linux"],
        weight: 5,
        judge: |case| host("tcp-mem", tcp_mem(case)),
        ..RULE
    },
    Rule {
        name: "window-scaling",
        reads: "net.ipv4.tcp_window_scaling",
        wants: "1",
        why: "without it a window ends at 64 KiB: 5 Mb/s at 100 ms",
        sources: &["RFC 7323", JANUS, SENSE],
        weight: 10,
        judge: |case| host("window-scaling", setting(case, "net.ipv4.tcp_window_scaling", "1")),
        ..RULE
    },
    Rule {
        name: "moderate-rcvbuf",
        reads: "net.ipv4.tcp_moderate_rcvbuf",
        wants: "1",
        why: "the kernel sizes receive buffers itself; without it they stay at their default",
        sources: &[JANUS, SENSE],
        weight: 9,
        judge: |case| host("moderate-rcvbuf", setting(case, "net.ipv4.tcp_moderate_rcvbuf", "1")),
        ..RULE
    },
    Rule {
        name: "sack",
        reads: "net.ipv4.tcp_sack",
        wants: "1",
        why: "one lost packet else costs a round-trip time for each further one",
        sources: &["RFC 2018", JANUS, SENSE],
        weight: 8,
        judge: |case| host("sack", setting(case, "net.ipv4.tcp_sack", "1")),
        ..RULE
    },
    Rule {
        name: "timestamps",
        reads: "net.ipv4.tcp_timestamps",
        wants: "1 (2 is good too)",
        why: "at 100 Gb/s sequence numbers come round in 0.34 s; only timestamps tell an old segment from a new one \
              (PAWS, RFC 7323). Without them: 19.7 Gb/s, with them: 19.8",
        risk: "12 bytes a segment",
        sources: &[
            MEASURED,
            "RFC 7323, section 5",
            "osg-htc/networking: perfSONAR-sysctl-info.md",
            JANUS,
        ],
        contradicted: &[
            "Caltech at SC23, SENSE and Mellanox sysctl_perf_tuning say 0, against spikes while timestamps are made; \
             no gain was measured, and corruption becomes possible",
        ],
        weight: 5,
        judge: |case| {
            let verdict = setting_where(case, "net.ipv4.tcp_timestamps", "1", |have| {
                have == "1" || have == "2"
            });
            host("timestamps", verdict)
        },
        ..RULE
    },
    Rule {
        name: "congestion-control",
        reads: "net.ipv4.tcp_congestion_control",
        wants: "cubic or bbr as default; the choice is a path's and is made for each socket",
        why: "on clean circuits cubic has the whole rate (9.9 of 10 Gb/s, bbr 9.3 to 9.6 with thousands of \
              retransmissions); with one packet in 100,000 lost at 10 Gb/s and 50 ms cubic has 3.15, bbr 9.1 to 9.3",
        risk: "bbr of mainline kernels is version 1, which overfills shallow buffers; its name does not tell",
        sources: &[
            "measured: 10 Gb/s, 50 ms, Linux 6.18 (docs/host.md)",
            "fasterdata.es.net/host-tuning/packet-pacing",
            "osg-htc/networking: mini-capability-host-tuning.md",
        ],
        contradicted: &[
            "perfSONAR still writes htcp: obsolete",
            "osg-htc and SENSE write bbr for all, FDT cubic for all; WLCG's DC24 saw no gain from bbr. Neither holds \
             for every path",
        ],
        weight: 4,
        judge: |case| host("congestion-control", congestion(case)),
        ..RULE
    },
    Rule {
        name: "mtu-probing",
        reads: "net.ipv4.tcp_mtu_probing",
        wants: "1 or 2 where a device has an MTU above 1500",
        why: "where a switch on the way drops jumbo frames and no ICMP comes back, connections hang; with 1 TCP finds \
              out by itself",
        risk: "2 probes always, at a small cost",
        sources: &["RFC 4821", FASTERDATA, PERFSONAR],
        weight: 3,
        judge: |case| {
            let known = case.nics.iter().filter_map(|nic| nic.mtu_bytes);
            let verdict = match known.max() {
                None => unknown("no device's MTU is known"),
                Some(mtu) if mtu <= 1500 => not_applicable("no device has an MTU above 1500"),
                Some(_) => setting_where(case, "net.ipv4.tcp_mtu_probing", "1", |have| have != "0"),
            };
            host("mtu-probing", verdict)
        },
        ..RULE
    },
    Rule {
        name: "no-metrics-save",
        reads: "net.ipv4.tcp_no_metrics_save, net.ipv4.tcp_no_ssthresh_metrics_save",
        wants: "1 on test hosts; elsewhere one of the two",
        why: "a test should not inherit the last one's window; on a mover little is left to inherit, as \
              tcp_no_ssthresh_metrics_save is 1 by default",
        sources: &[FASTERDATA, SENSE, "Linux 6.18's defaults"],
        contradicted: &[
            "Caltech at SC23, SENSE, fasterdata: 1 everywhere; harmless, and mostly superseded",
        ],
        weight: 1,
        judge: |case| {
            let verdict = match case.goal.role {
                HostRole::Test => setting(case, "net.ipv4.tcp_no_metrics_save", "1"),
                HostRole::Dtn => inherited(case),
            };
            host("no-metrics-save", verdict)
        },
        ..RULE
    },
    Rule {
        name: "slow-start-after-idle",
        reads: "net.ipv4.tcp_slow_start_after_idle",
        wants: "0",
        why: "streams that wait between files keep their window; to open it again at 100 Gb/s, 100 ms and MTU 9000 \
              takes 14 round-trip times, 1.4 s",
        risk: "bursts after a pause where nothing paces",
        sources: &[TUNED_NETWORK, JANUS],
        weight: 3,
        judge: |case| {
            host("slow-start-after-idle", setting(case, "net.ipv4.tcp_slow_start_after_idle", "0"))
        },
        ..RULE
    },
    Rule {
        name: "notsent-lowat",
        reads: "net.ipv4.tcp_notsent_lowat",
        wants: "4294967295 (no limit)",
        why: "at 128 KiB the sender is woken too often: 18.2 of 19.8 Gb/s and 2195 retransmissions",
        risk: "services that need short queues set the socket option for themselves",
        sources: &[MEASURED, "redhat-performance/tuned#809, #824"],
        contradicted: &[
            "TuneD network-throughput sets 128 KiB for the whole host since 2.28: 8 % less",
            "the experiment buffers, with another line between the ends, has no loss by it: 19.1 Gb/s with, 18.4 without",
        ],
        weight: 4,
        judge: |case| {
            // An unsigned -1; some kernels print it signed.
            let good =
                |have: &str| have == "-1" || have.parse::<u64>().is_ok_and(|have| have >= 1 << 30);
            let verdict = setting_where(case, "net.ipv4.tcp_notsent_lowat", "4294967295", good);
            host("notsent-lowat", verdict)
        },
        ..RULE
    },
    Rule {
        name: "adv-win-scale",
        reads: "net.ipv4.tcp_adv_win_scale",
        wants: "to be left alone",
        why: "how much of a receive buffer is bookkeeping is measured for each connection since Linux 6.6",
        sources: &["Linux 6.6: tcp: get rid of sysctl_tcp_adv_win_scale"],
        contradicted: &["SENSE, janus, mlnx-tools and osg-htc still set it"],
        judge: |case| {
            host("adv-win-scale", since(case, "net.ipv4.tcp_adv_win_scale", Release(6, 6), &["1"]))
        },
        ..RULE
    },
    Rule {
        name: "low-latency",
        reads: "net.ipv4.tcp_low_latency",
        wants: "to be left alone",
        why: "the prequeue that it went around is gone since Linux 4.14",
        sources: &["Linux 4.14: tcp: remove prequeue support"],
        contradicted: &[
            "Mellanox sysctl_perf_tuning and Caltech at SC23 set it to prefer latency: it does nothing",
        ],
        judge: |case| {
            host("low-latency", since(case, "net.ipv4.tcp_low_latency", Release(4, 14), &["0"]))
        },
        ..RULE
    },
    Rule {
        name: "fack",
        reads: "net.ipv4.tcp_fack",
        wants: "to be left alone",
        why: "forward acknowledgement is gone since Linux 4.15; RACK does its work",
        sources: &["Linux 4.15: tcp: retire FACK loss detection"],
        contradicted: &["older DTN recipes still set it"],
        judge: |case| host("fack", since(case, "net.ipv4.tcp_fack", Release(4, 15), &["0", "1"])),
        ..RULE
    },
    Rule {
        name: "multipath-hash",
        reads: "net.ipv4.fib_multipath_hash_policy",
        wants: "1 where routes have several next hops",
        why: "the default hashes addresses alone: all streams between two hosts take one way",
        risk: "even by ports, hashing 8 streams on 4 links reaches 59 % of them: place streams on addresses instead",
        sources: &["Documentation/networking/ip-sysctl.rst", "simulated: docs/host.md"],
        only_if_named: Some("it matters only where routes have several next hops"),
        judge: |case| {
            let verdict = match case.nics.iter().filter(|nic| nic.is_hardware()).count() {
                0 | 1 => not_applicable("one device carries the traffic"),
                _ => setting_where(case, "net.ipv4.fib_multipath_hash_policy", "1", |have| {
                    have != "0"
                }),
            };
            host("multipath-hash", verdict)
        },
        ..RULE
    },
];

/// Changes only the maximum: the default applies to every connection.
fn buffer(case: &Case<'_>, key: &str, want: u64) -> Verdict {
    let Some([least, default, most]) = case.facts.sysctls.triple(key) else {
        return unknown(format!("{key} is not there"));
    };
    let have = format!("{least} {default} {most}");
    // Considers only this buffer: the other has its own rule.
    let boundless = Buffers { receive_bytes_max: u64::MAX, send_bytes_max: u64::MAX };
    let ceiling = match key {
        SEND => Buffers { send_bytes_max: most, ..boundless },
        _ => Buffers { receive_bytes_max: most, ..boundless },
    }
    .ceiling_bps(case.goal.rtt);
    let formatted = |bytes: u64| format!("{bytes} ({})", ByteCount(bytes));
    if most >= want {
        return ok(formatted(most));
    }
    if case.facts.sysctls.read_only.contains(key) {
        return Verdict::NeedsHost { have: formatted(most), want: formatted(want) };
    }
    let to = format!("{least} {default} {want}");
    let mut now = formatted(most);
    if let Some(bps) = ceiling {
        now = format!("{now}, one stream {} at most", BitRate(bps));
    }
    Verdict::Differs {
        have: now,
        want: formatted(want),
        changes: vec![Change::new(Tunable::sysctl(key), have, to)],
    }
}

fn tcp_mem(case: &Case<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.tcp_mem";
    let page = case.facts.memory.page_bytes.unwrap_or(4096).max(1);
    let goal: &Goal = &case.goal;
    let half = case.facts.memory.total_bytes.map_or(u64::MAX, |total| total / 2);
    let wanted = goal.all_bytes().min(half);
    let want = format!("{} of pressure", ByteCount(wanted));
    let Some([low, pressure, high]) = case.facts.sysctls.triple(KEY) else {
        return super::unseen(case, KEY, &want);
    };
    let have = ByteCount(pressure.saturating_mul(page)).to_string();
    if pressure.saturating_mul(page) >= wanted {
        if goal.all_bytes() > half {
            return Verdict::Differs {
                have: format!("{have}, half of the memory"),
                want: format!(
                    "memory for {} of buffers, or a smaller goal",
                    ByteCount(goal.all_bytes())
                ),
                changes: Vec::new(),
            };
        }
        return ok(have);
    }
    let pages = wanted.div_ceil(page);
    let from = format!("{low} {pressure} {high}");
    let to = format!("{} {pages} {}", low.max(pages / 4 * 3), high.max(pages / 2 * 3));
    differs(have, want, vec![Change::new(Tunable::sysctl(KEY), from, to)])
}

fn congestion(case: &Case<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.tcp_congestion_control";
    let Some(have) = case.facts.sysctls.get(KEY) else {
        return unknown(format!("{KEY} is not there"));
    };
    let offered = case.facts.sysctls.get("net.ipv4.tcp_available_congestion_control");
    match have {
        "cubic" | "bbr" => ok(have),
        _ if offered.is_some_and(|offered| !offered.split(' ').any(|one| one == "cubic")) => {
            differs(have, "cubic: modprobe tcp_cubic first", Vec::new())
        }
        _ => setting(case, KEY, "cubic"),
    }
}

/// Judges the cached metrics of earlier connections, of which the slow-start threshold limits new ones.
fn inherited(case: &Case<'_>) -> Verdict {
    const NOTHING: &str = "net.ipv4.tcp_no_metrics_save";
    const THRESHOLD: &str = "net.ipv4.tcp_no_ssthresh_metrics_save";
    match (case.facts.sysctls.get(NOTHING), case.facts.sysctls.get(THRESHOLD)) {
        (Some("0"), Some(_)) => setting(case, THRESHOLD, "1"),
        (Some(have), _) => ok(have),
        (None, _) => super::unseen(case, NOTHING, "1"),
    }
}

/// Judges a sysctl that has no effect since a release.
fn since(case: &Case<'_>, key: &str, gone: Release, usual: &[&str]) -> Verdict {
    let Some(have) = case.facts.sysctls.get(key) else {
        return not_applicable("this kernel does not have it");
    };
    match case.facts.kernel.version() {
        None => unknown("the kernel's release is not known"),
        Some(version) if version < gone => {
            if usual.contains(&have) {
                ok(have)
            } else {
                unknown(format!("{have}: not judged before Linux {}.{}", gone.0, gone.1))
            }
        }
        Some(_) => no_op(format!("does nothing since Linux {}.{}: {have}", gone.0, gone.1)),
    }
}
