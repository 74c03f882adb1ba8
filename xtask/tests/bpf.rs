//! The committed eBPF object is what its source says, where clang is there to tell.

use xtask::bpf::{Comparison, check, clang_version};

#[test]
fn the_committed_object_is_what_the_source_says() {
    if clang_version().is_err() {
        println!("skipped: no clang (tools/setup.sh bpf installs it)");
        return;
    }
    match check(&xtask::workspace_root()).unwrap() {
        Comparison::Same => {}
        Comparison::OtherClang(version) => {
            println!("skipped: clang {version} makes another object")
        }
        Comparison::Different => panic!("run cargo xtask bpf and commit the object"),
    }
}
