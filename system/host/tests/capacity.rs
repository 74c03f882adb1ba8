//! The tables of SPECIFICATION.md about nodes are those of the capacity model.
//!
//! `UPDATE_GOLDEN=1 cargo test -p penstock-host --test capacity` rewrites them; the change is reviewed as a diff.

use std::fmt::Write as _;
use std::path::Path;

use penstock_host::capacity::{
    DataProtection, NodeEnd, NodeNeed, NodeWork, cpu_seconds_per_gb, memory_passes,
};

const RATES_GBPS: [u64; 3] = [100, 400, 1100];
/// Peak rate of a channel of DDR5-4800 with 64 bits in bytes per second.
const DDR5_4800_BYTES_PER_SECOND: f64 = 4800e6 * 8.0;

fn tables() -> String {
    let mut text = "| a node that sends or receives files | 100 Gb/s | 400 Gb/s | 1,100 Gb/s |\n|---|---|---|---|\n".to_owned();
    let of = |gbps: u64, protection| {
        NodeNeed::of_rate(gbps * 1_000_000_000, NodeWork::Files(protection))
    };
    let mut row = |name: &str, cell: &dyn Fn(u64) -> String| {
        let cells: Vec<String> = RATES_GBPS.into_iter().map(cell).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    };
    let full = DataProtection::Full;
    let count = |amount: f64| format!("{:.0}", amount.ceil());
    row("processors, `--protect integrity`", &|gbps| {
        count(of(gbps, DataProtection::Integrity).processors)
    });
    row("processors, encrypted", &|gbps| count(of(gbps, full).processors));
    row("peak memory bandwidth, GB/s", &|gbps| {
        format!("{:.0}", of(gbps, full).memory_bytes_per_second / 1e9)
    });
    row("the same in channels of DDR5-4800", &|gbps| {
        count(of(gbps, full).memory_bytes_per_second / DDR5_4800_BYTES_PER_SECOND)
    });
    row("PCIe 4.0 lanes to NICs, and as many to drives", &|gbps| count(of(gbps, full).lanes(16.0)));
    row("PCIe 5.0 lanes to NICs, and as many to drives", &|gbps| count(of(gbps, full).lanes(32.0)));
    row("NVMe drives (PCIe 4.0 x4, writing)", &|gbps| count(of(gbps, full).drives));

    text += "\n| end, protection | CPU s/GB | bytes through memory for each byte | passes |\n|---|---|---|---|\n";
    for (name, end, protection) in [
        ("sender, integrity", NodeEnd::Sender, DataProtection::Integrity),
        ("receiver, integrity", NodeEnd::Receiver, DataProtection::Integrity),
        ("sender, encrypted", NodeEnd::Sender, full),
        ("receiver, encrypted", NodeEnd::Receiver, full),
    ] {
        let (cpu, passes) = (cpu_seconds_per_gb(end, protection), memory_passes(end, protection));
        let _ = writeln!(text, "| {name} | {cpu:.2} | {} | {} |", passes.len(), passes.join(", "));
    }
    text
}

#[test]
fn specification_has_computed_tables() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../SPECIFICATION.md");
    let (begin, end) = ("<!-- capacity -->\n", "<!-- end of capacity -->");
    let text = std::fs::read_to_string(&page).unwrap();
    let (head, rest) = text.split_once(begin).expect("the page has a place for the tables");
    let (kept, tail) = rest.split_once(end).expect("the place has an end");
    let table = tables();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&page, format!("{head}{begin}{table}{end}{tail}")).unwrap();
    } else {
        assert_eq!(kept, table, "UPDATE_GOLDEN=1 cargo test -p penstock-host --test capacity");
    }
}
