//! Disks and file systems.

use penstock_units::ByteCount;

use super::{Case, Finding, RULE, Rule, Verdict, differs, not_applicable, ok, unknown};
use crate::change::{Change, Tunable};
use crate::facts::{Disk, Mount};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "block-scheduler",
        reads: "/sys/block/*/queue/scheduler",
        wants: "none for NVMe, mq-deadline for SATA and SAS",
        why: "NVMe orders its own requests, and a scheduler is a lock; a disk that seeks gains by order",
        sources: &["Documentation/block/switching-sched.rst"],
        contradicted: &[
            "fasterdata's older DTN pages: deadline, elevator= on the command line; both are gone since blk-mq (Linux 5.0)",
        ],
        weight: 2,
        judge: |case| each_disk(case, "block-scheduler", scheduler),
        ..RULE
    },
    Rule {
        name: "read-ahead",
        reads: "/sys/block/*/queue/read_ahead_kb",
        wants: "4096 KiB or more",
        why: "a buffered reader of one file keeps the disk busy only by what is read ahead; direct I/O does not use it",
        risk: "small random reads fetch too much",
        sources: &["redhat-performance/tuned: profiles/throughput-performance"],
        weight: 2,
        judge: |case| each_disk(case, "read-ahead", read_ahead),
        ..RULE
    },
    Rule {
        name: "nr-requests",
        reads: "/sys/block/*/queue/nr_requests and its scheduler",
        wants: "256 or more for disks that seek, below a scheduler; as it is elsewhere",
        why: "a scheduler orders what waits: more of it makes longer ways of the head in one direction. Without a \
              scheduler it is the device's own depth, which is all that it takes",
        risk: "memory of the requests; a single read waits longer behind writers",
        sources: &[
            "Documentation/block/queue-sysfs.rst",
            "block/blk-mq-sched.c: twice the depth, 256 at most",
        ],
        judge: |case| each_disk(case, "nr-requests", requests),
        ..RULE
    },
    Rule {
        name: "completion-affinity",
        reads: "/sys/block/*/queue/rq_affinity",
        wants: "2 for SSDs",
        why: "a request completes on the processor that asked for it, where its data is wanted",
        sources: &["Documentation/block/queue-sysfs.rst"],
        judge: |case| each_disk(case, "completion-affinity", completion),
        ..RULE
    },
    Rule {
        name: "filesystem",
        reads: "/proc/self/mounts",
        wants: "xfs, made to the array's stripes",
        why: "large files in few extents, written in parallel; the others move data too",
        sources: &["fasterdata.es.net/DTN/tuning"],
        judge: |case| {
            case.facts
                .mounts
                .iter()
                .map(|mount| Finding {
                    rule: "filesystem",
                    object: mount.path.clone(),
                    verdict: match mount.kind.as_str() {
                        "ext3" => differs(
                            "ext3",
                            "xfs: when the file system is created again",
                            Vec::new(),
                        ),
                        kind => ok(kind),
                    },
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "stripes",
        reads: "optimal_io_size and minimum_io_size of an array, sunit, swidth and stripe of what is mounted on it",
        wants: "xfs and ext4 made to the array's rows",
        why: "a write that covers a row in part makes the array read the rest to compute its parity",
        risk: "none: it is only read. mkfs.xfs and mkfs.ext4 read it from an array that reports it",
        sources: &["fasterdata.es.net/DTN/tuning", "xfs(5): sunit and swidth", "ext4(5): stripe"],
        judge: |case| {
            let finding = |mount: &Mount| Finding {
                rule: "stripes",
                object: mount.path.clone(),
                verdict: stripes(case, mount),
            };
            case.facts.mounts.iter().map(finding).collect()
        },
        ..RULE
    },
];

fn each_disk(
    case: &Case<'_>,
    rule: &'static str,
    judge: impl Fn(&Disk) -> Verdict,
) -> Vec<Finding> {
    let finding = |disk: &Disk| Finding { rule, object: disk.name.clone(), verdict: judge(disk) };
    case.facts.disks.iter().map(finding).collect()
}

fn change(disk: &Disk, file: &str, from: &str, to: &str) -> Vec<Change> {
    let path = format!("/sys/block/{}/queue/{file}", disk.name);
    vec![Change::new(Tunable::File { path }, from, to)]
}

fn scheduler(disk: &Disk) -> Verdict {
    let Some(have) = disk.scheduler.as_deref() else { return unknown("it is not known") };
    let nvme = disk.name.starts_with("nvme");
    // The host schedules the requests of a virtual disk, member disks those of an array.
    if ["vd", "md", "dm-"].iter().any(|other| disk.name.starts_with(other)) {
        return ok(have);
    }
    let want = if nvme { "none" } else { "mq-deadline" };
    if have == want || (!nvme && have == "none" && disk.rotational != Some(true)) {
        return ok(have);
    }
    if !disk.schedulers.is_empty() && !disk.schedulers.iter().any(|one| one == want) {
        return not_applicable(format!("the kernel does not offer {want} for it"));
    }
    differs(have, want, change(disk, "scheduler", have, want))
}

fn read_ahead(disk: &Disk) -> Verdict {
    match disk.read_ahead_kib {
        None => unknown("it is not known"),
        Some(have) if have >= 4096 => ok(format!("{have} KiB")),
        Some(have) => {
            let changes = change(disk, "read_ahead_kb", &have.to_string(), "4096");
            differs(format!("{have} KiB"), "4096 KiB", changes)
        }
    }
}

fn requests(disk: &Disk) -> Verdict {
    const QUEUE_REQUESTS: u64 = 256;
    let (Some(have), Some(scheduler)) = (disk.requests, disk.scheduler.as_deref()) else {
        return unknown("it is not known");
    };
    match disk.rotational {
        None => unknown("whether it seeks is not known"),
        Some(true) if scheduler != "none" && have < QUEUE_REQUESTS => {
            let changes =
                change(disk, "nr_requests", &have.to_string(), &QUEUE_REQUESTS.to_string());
            differs(have.to_string(), QUEUE_REQUESTS.to_string(), changes)
        }
        Some(_) => ok(have.to_string()),
    }
}

/// Alignment of a file system to the stripes of its array; a single disk has none.
fn stripes(case: &Case<'_>, mount: &Mount) -> Verdict {
    const BLOCK_BYTES: u64 = 4096;
    // Unit of the option: sectors for xfs, blocks for ext4 (4 KiB by default).
    let (option, unit) = match mount.kind.as_str() {
        "xfs" => ("swidth=", 512),
        "ext4" => ("stripe=", BLOCK_BYTES),
        kind => return not_applicable(format!("{kind} is not made to stripes")),
    };
    let disk = case.facts.disks.iter().find(|disk| Some(&disk.name) == mount.disk.as_ref());
    let sizes = disk.and_then(|disk| Some((disk.minimum_io_bytes?, disk.optimal_io_bytes?)));
    let Some((chunk, row)) = sizes else { return unknown("the array below is not known") };
    if chunk <= BLOCK_BYTES || row <= chunk || row % chunk != 0 {
        return not_applicable("its disk reports no rows");
    }
    let want = format!("made to rows of {}", ByteCount(row));
    let given = mount.options.split(',').find_map(|word| word.strip_prefix(option));
    let Some(given) = given else {
        return differs(
            "no stripes",
            format!("{want}: when the file system is created again"),
            Vec::new(),
        );
    };
    let Ok(given) = given.parse::<u64>() else { return unknown(format!("{option}{given}")) };
    let have = given.saturating_mul(unit);
    if have > 0 && have % row == 0 {
        return ok(format!("rows of {}", ByteCount(have)));
    }
    let have = format!("rows of {}", ByteCount(have));
    differs(have, format!("{want}: when the file system is created again"), Vec::new())
}

fn completion(disk: &Disk) -> Verdict {
    match (disk.completion_affinity, disk.rotational) {
        (None, _) => unknown("it is not known"),
        (Some(have), Some(false)) if have < 2 => {
            differs(have.to_string(), "2", change(disk, "rq_affinity", &have.to_string(), "2"))
        }
        (Some(have), _) => ok(have.to_string()),
    }
}
