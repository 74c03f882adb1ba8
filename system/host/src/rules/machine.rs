//! Machine rules: kernel, IOMMU, clock source, memory, limits of programs, other tuning programs.

use penstock_units::ByteCount;

use super::{
    Case, RULE, Rule, Verdict, differs, host, not_applicable, ok, setting, setting_where, unknown,
};
use crate::change::{Change, Tunable};
use crate::facts::Release;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "kernel",
        reads: "uname -r",
        wants: "Linux 6.8 or newer, and one that was tested on this hardware",
        why: "6.8 against 5.15: 38 % more over a WAN and 30 % in a LAN, with zero copy and pacing up to 35 % more; at \
              SC23 AlmaLinux 8's 4.18 lost packets from 400 Gb/s on and 6.5.10 did not",
        risk: "a new kernel is another thing to test",
        sources: &[
            "INDIS 2024: Recent Linux Improvements that Impact TCP Throughput (Tierney et al.)",
            "Caltech at SC23",
        ],
        weight: 5,
        judge: |case| {
            let release = case.facts.kernel.release.clone().unwrap_or_default();
            let verdict = match case.facts.kernel.version() {
                None => unknown("its release is not known"),
                Some(version) if version >= Release(6, 8) => ok(release),
                Some(_) => Verdict::NeedsReboot { have: release, want: "6.8 or newer".to_owned() },
            };
            host("kernel", verdict)
        },
        ..RULE
    },
    Rule {
        name: "tuned",
        reads: "/etc/tuned/active_profile, whether tuned runs",
        wants: "no profile that undoes what is set here: throughput-performance, or none",
        why: "network-throughput caps buffers at 16 MiB (1.86 Gb/s at 50 ms) and sets tcp_notsent_lowat. Which of two \
              values counts depends on reapply_sysctl, 1 by default: /etc/sysctl.d then wins, for the keys that it has",
        risk: "another profile also changes governor, disks and more",
        sources: &["redhat-performance/tuned: profiles, tuned-main.conf, #809, #824"],
        contradicted: &[
            "osg-htc recommends network-throughput: its buffers come back by reapply_sysctl, notsent_lowat stays",
            "TuneD's dynamic mode takes an idle card to 100 Mb/s (plugin_net.py)",
        ],
        weight: 5,
        judge: |case| host("tuned", tuned(case)),
        ..RULE
    },
    Rule {
        name: "iommu",
        reads: "/proc/cmdline, /sys/class/iommu",
        wants: "iommu=pt where an IOMMU is on",
        why: "pass-through spares a translation for each page that a card reads or writes",
        risk: "devices may reach all memory, as without an IOMMU",
        sources: &["fasterdata.es.net/host-tuning/linux/100g-tuning"],
        contradicted: &[
            "fasterdata's 100G page: enable it; its older DTN page: only for virtual machines. iommu=pt is right for both",
        ],
        weight: 3,
        judge: |case| host("iommu", iommu(case)),
        ..RULE
    },
    Rule {
        name: "clock",
        reads: "the clock source in use",
        wants: "tsc on x86 hardware, the hypervisor's own in a virtual machine",
        why: "pacing and timestamps read it for every packet; hpet and acpi_pm take a microsecond each time",
        sources: &["Documentation/timers/timekeeping.rst"],
        weight: 3,
        judge: |case| {
            let verdict = match case.facts.machine.clock_source.as_deref() {
                None => unknown("it is not known"),
                Some(slow @ ("hpet" | "acpi_pm" | "jiffies" | "refined-jiffies")) => {
                    differs(slow, "tsc: see why the kernel gave it up (dmesg)", Vec::new())
                }
                Some(have) => ok(have),
            };
            host("clock", verdict)
        },
        ..RULE
    },
    Rule {
        name: "memory-limit",
        reads: "memory.max of this process's control groups",
        wants: "room for all streams' buffers",
        why: "TCP's buffers count for the group whose socket it is: at the limit windows shrink",
        sources: &["Documentation/admin-guide/cgroup-v2.rst"],
        weight: 4,
        judge: |case| {
            let wanted = case.goal.all_bytes();
            let verdict = match (case.facts.memory.limit_bytes, case.facts.memory.total_bytes) {
                (None, None) => unknown("memory is not known"),
                (None, Some(_)) => ok("no limit"),
                (Some(limit), _) if limit >= wanted => ok(ByteCount(limit).to_string()),
                (Some(limit), _) => Verdict::NeedsHost {
                    have: ByteCount(limit).to_string(),
                    want: format!("{} (memory.max, or the pod's limit)", ByteCount(wanted)),
                },
            };
            host("memory-limit", verdict)
        },
        ..RULE
    },
    Rule {
        name: "huge-pages",
        reads: "transparent_hugepage/enabled",
        wants: "madvise or always",
        why: "pools of buffers in large pages spare page-table walks for each copy",
        sources: &["Documentation/admin-guide/mm/transhuge.rst"],
        judge: |case| {
            let verdict = match case.facts.machine.transparent_huge_pages.as_deref() {
                None => unknown("whether there are any is not known"),
                Some("never") => differs("never", "madvise, for programs that ask", Vec::new()),
                Some(have) => ok(have),
            };
            host("huge-pages", verdict)
        },
        ..RULE
    },
    Rule {
        name: "io-uring",
        reads: "kernel.io_uring_disabled",
        wants: "0",
        why: "the mover keeps many requests at a disk with it; without it threads do, at more cost",
        risk: "some sites forbid it for its attack surface; EL9 does so by default",
        sources: &["Documentation/admin-guide/sysctl/kernel.rst"],
        weight: 2,
        only_if_named: Some("some sites forbid it on purpose"),
        judge: |case| {
            let verdict = match case.facts.kernel.has("IO_URING") {
                Some(false) => {
                    not_applicable("the kernel is built without it; threads do the work")
                }
                _ => setting(case, "kernel.io_uring_disabled", "0"),
            };
            host("io-uring", verdict)
        },
        ..RULE
    },
    Rule {
        name: "bpf",
        reads: "net.core.bpf_jit_enable, the kernel's types (BTF)",
        wants: "the compiler on, and types: penstock tag needs eBPF",
        why: "labels of other programs' packets are written by an eBPF program at every packet",
        sources: &["Documentation/admin-guide/sysctl/net.rst"],
        judge: |case| {
            let verdict = match case.facts.kernel.has("BPF_SYSCALL") {
                Some(false) => not_applicable(
                    "the kernel is built without eBPF: other programs' packets get no labels",
                ),
                _ => setting_where(case, "net.core.bpf_jit_enable", "1", |have| have != "0"),
            };
            host("bpf", verdict)
        },
        ..RULE
    },
    Rule {
        name: "dirty-pages",
        reads: "vm.dirty_bytes, vm.dirty_background_bytes, vm.dirty_ratio, vm.dirty_background_ratio, memory",
        wants: "writing back begins at what 1 s of the goal's rate brings, 64 MiB to 1/20 of the memory, and writers wait \
                at 4 times that; twice as much is good too, 0 is not",
        why: "writing back at the first page makes every writer wait, and shares of a large memory are tens of gigabytes: everything then stalls for seconds while they are written. \
              Files written with direct I/O, the mover's default, do not go there",
        risk: "programs that rely on much being cached write sooner",
        sources: &["Documentation/admin-guide/sysctl/vm.rst", "fasterdata.es.net/DTN/tuning"],
        contradicted: &[
            "TuneD throughput-performance: 40 % and 10 %, 400 GB of a machine with 1 TB",
        ],
        weight: 2,
        judge: |case| host("dirty-pages", dirty(case)),
        ..RULE
    },
    Rule {
        name: "swappiness",
        reads: "vm.swappiness",
        wants: "10 or less",
        why: "a mover's pages must not go for a file that is read once",
        sources: &["redhat-performance/tuned: profiles/throughput-performance"],
        judge: |case| {
            let good = |have: &str| have.parse::<u32>().is_ok_and(|have| have <= 10);
            host("swappiness", setting_where(case, "vm.swappiness", "10", good))
        },
        ..RULE
    },
    Rule {
        name: "zone-reclaim",
        reads: "vm.zone_reclaim_mode",
        wants: "0",
        why: "with 1 a full node throws its cache away before it asks the other node",
        sources: &["Documentation/admin-guide/sysctl/vm.rst"],
        contradicted: &[
            "TuneD hpc-compute sets 1: right for programs that stay on a node, not for a page cache",
        ],
        weight: 2,
        judge: |case| host("zone-reclaim", setting(case, "vm.zone_reclaim_mode", "0")),
        ..RULE
    },
];

fn tuned(case: &Case<'_>) -> Verdict {
    let managers = &case.facts.managers;
    if managers.bpftune == Some(true) {
        return Verdict::Conflict {
            have: "bpftune runs".to_owned(),
            want: "one tuner".to_owned(),
            with: "bpftune changes tcp_rmem and tcp_wmem as it sees fit: systemctl disable --now bpftune".to_owned(),
        };
    }
    match managers.tuned_profile.as_deref() {
        None if managers.irqbalance.is_none() => unknown("what runs is not known"),
        None => ok("does not run"),
        Some(
            profile @ ("network-throughput"
            | "network-latency"
            | "hpc-compute"
            | "latency-performance"),
        ) => Verdict::Conflict {
            have: profile.to_owned(),
            want: "throughput-performance".to_owned(),
            with: "tuned-adm profile throughput-performance, and --persist here".to_owned(),
        },
        Some(profile) => ok(profile),
    }
}

fn iommu(case: &Case<'_>) -> Verdict {
    let Some(line) = case.facts.kernel.command_line.as_deref() else {
        return unknown("the kernel's command line is not known");
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let off = |word: &&str| matches!(*word, "iommu=off" | "intel_iommu=off" | "amd_iommu=off");
    if words.iter().any(|word| *word == "iommu=pt" || *word == "iommu.passthrough=1") {
        return ok("iommu=pt");
    }
    if words.iter().any(off) {
        return ok("off");
    }
    match case.facts.machine.iommu {
        None => unknown("whether an IOMMU is in use is not known"),
        Some(false) => not_applicable("no IOMMU is in use"),
        Some(true) => Verdict::NeedsReboot {
            have: "on, translating".to_owned(),
            want: "iommu=pt on the kernel's command line".to_owned(),
        },
    }
}

/// Threshold of dirty pages: in bytes or as a share of the memory, whichever is not zero.
struct Threshold {
    bytes: &'static str,
    ratio: &'static str,
    want_bytes: u64,
}

impl Threshold {
    fn have_bytes(&self, case: &Case<'_>, total: u64) -> Option<u64> {
        let sysctls = &case.facts.sysctls;
        let number = |key: &str| sysctls.number(key).and_then(|number| u64::try_from(number).ok());
        match number(self.bytes)? {
            0 => Some((total / 100).saturating_mul(number(self.ratio)?)),
            bytes => Some(bytes),
        }
    }

    /// Writing the bytes zeroes the share. Undo writes the share, which zeroes the bytes, so that the share is listed too. If
    /// both are zero, the share is set, because the kernel refuses zero bytes on undo.
    fn changes(&self, case: &Case<'_>, total: u64) -> Vec<Change> {
        let get = |key: &str| case.facts.sysctls.get(key).unwrap_or("0");
        let (bytes, share) = (get(self.bytes), get(self.ratio));
        if bytes == "0" && share == "0" {
            let percent = (self.want_bytes / (total / 100).max(1)).clamp(1, 100);
            return vec![Change::new(Tunable::sysctl(self.ratio), share, percent.to_string())];
        }
        let want = self.want_bytes.to_string();
        let mut changes = vec![Change::new(Tunable::sysctl(self.bytes), bytes, want)];
        if bytes == "0" {
            changes.push(Change::new(Tunable::sysctl(self.ratio), share, "0"));
        }
        changes
    }
}

fn dirty(case: &Case<'_>) -> Verdict {
    const START_BYTES_MIN: u64 = 64 << 20;
    let Some(total) = case.facts.memory.total_bytes else { return unknown("memory is not known") };
    let start = (case.goal.rate_bps / 8).min(total / 20).max(START_BYTES_MIN);
    let start = start.next_multiple_of(1 << 20);
    let thresholds = [
        Threshold {
            bytes: "vm.dirty_background_bytes",
            ratio: "vm.dirty_background_ratio",
            want_bytes: start,
        },
        Threshold { bytes: "vm.dirty_bytes", ratio: "vm.dirty_ratio", want_bytes: start * 4 },
    ];
    let mut have = Vec::new();
    let mut changes = Vec::new();
    for threshold in &thresholds {
        let Some(bytes) = threshold.have_bytes(case, total) else {
            return super::unseen(case, threshold.bytes, "1 s of the goal's rate");
        };
        have.push(ByteCount(bytes).to_string());
        if bytes == 0 || bytes > threshold.want_bytes * 2 {
            changes.extend(threshold.changes(case, total));
        }
    }
    let have = have.join(" and ");
    if changes.is_empty() {
        return ok(have);
    }
    let want = format!("{} and {}", ByteCount(start), ByteCount(start * 4));
    if case.facts.sysctls.read_only.contains("vm.dirty_bytes") {
        return Verdict::NeedsHost { have, want };
    }
    differs(have, want, changes)
}
