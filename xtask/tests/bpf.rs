//! The committed eBPF objects match their sources. Skipped without clang.

use penstock_testkit::{Requirement, skip};
use xtask::bpf::{Comparison, PROGRAMS, clang_version};

#[test]
fn committed_objects_match_their_sources() {
    if clang_version().is_err() {
        skip(Requirement::Program, "clang (tools/setup.sh bpf installs it)");
        return;
    }
    for program in PROGRAMS {
        match program.check(&xtask::workspace_root()).unwrap() {
            Comparison::Same => {}
            Comparison::OtherClang(version) => {
                skip(Requirement::Program, &format!("clang {version} makes another object"));
            }
            Comparison::Different => {
                panic!("{program:?}: run cargo xtask bpf and commit the object")
            }
        }
    }
}
