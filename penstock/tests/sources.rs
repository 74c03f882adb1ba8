//! What is named as source and destination: what is not there, lists, state that cannot be kept.

mod common;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use common::{
    House, Random, Run, assert_no_leftovers, assert_same, parts, run, until, write_file, write_tree,
};

/// The one that is not there is told, and the others come.
#[test]
fn a_source_that_is_not_there_does_not_keep_the_others() {
    let mut random = Random::seeded(81);
    let house = House::new();
    let agent = house.agent();
    for place in [&house.source, &house.root] {
        write_tree(&mut random, &place.join("one"), 1, 5);
        write_file(&mut random, &place.join("two"), 5000);
    }
    let here = |name: &str| house.source.join(name).into_os_string();
    let there = |name: &str| OsString::from(agent.url(name));
    let to = |name: &str| house.path(name).into_os_string();
    let copies: [(&str, &dyn Fn(&str) -> OsString, OsString, &Path, &str); 4] = [
        ("local", &here, to("local"), &house.path("local"), "source/none"),
        ("push", &here, there("pushed/"), &house.root.join("pushed"), "source/none"),
        ("pull", &there, to("pulled"), &house.path("pulled"), "/none"),
        ("third party", &there, there("third/"), &house.root.join("third"), "/none"),
    ];
    for (how, from, to, target, named) in copies {
        let arguments = ["-r".into(), from("one"), from("none"), from("two"), to.clone()];
        let done = run(house.cp(&arguments));
        assert_eq!((done.code, done.lines().len()), (3, 1), "{how}: {done:?}");
        let line = done.lines()[0];
        assert!(line.contains(named) && line.contains("no such file"), "{how}: {line}");
        assert_eq!((done.number("failed"), done.number("files")), (1, 8), "{how}: {done:?}");
        let root = if how == "local" || how == "push" { &house.source } else { &house.root };
        assert_same(&root.join("one"), &target.join("one"));
        assert_eq!(fs::read(root.join("two")).unwrap(), fs::read(target.join("two")).unwrap());
        // Where none is there, nothing is copied, and one line says why.
        let done = run(house.cp(&[from("none"), from("nor-this"), to]));
        assert_eq!((done.code, done.lines().len()), (1, 1), "{how}: {done:?}");
        assert!(done.error.contains(named), "{how}: {done:?}");
    }
}

/// Two parts of a list go to one place at a time; the same list twice does not.
#[test]
fn parts_of_a_list_are_copied_at_a_time() {
    let mut random = Random::seeded(82);
    let house = House::new();
    let agent = house.agent();
    for number in 0..4 {
        write_file(&mut random, &house.source.join(format!("f{number}")), 1 << 20);
    }
    let copy = |list: &str, names: &str, more: &[&str]| {
        let list = house.path(list);
        fs::write(&list, names).unwrap();
        let mut command = house.cp(&["--files-from"]);
        command.arg(&list).args(more).arg(&house.source).arg(agent.url(""));
        command
    };
    let slow = ["--rate", "2M", "--block", "64KiB"];
    let mut first = Run::start(&mut copy("a", "f0\nf1\n", &slow));
    until("it runs", Duration::from_secs(20), || {
        let transfers = agent.transfers(&house.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    run(copy("b", "f2\nf3\n", &[])).good();
    assert!(!first.is_over(), "the first was to take 8 s");
    let done = run(copy("a", "f0\nf1\n", &["--give-up-after", "1s"]));
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.error.contains("already running"), "{done:?}");
    first.wait().good();
    assert_same(&house.source, &house.root);
    assert_no_leftovers(&house.root, &house.state);
}

/// Without a directory for journals a copy is a copy all the same.
#[test]
fn a_state_that_cannot_be_written_costs_resumption_alone() {
    let mut random = Random::seeded(83);
    let house = House::new();
    let data = house.source.join("data");
    write_tree(&mut random, &data, 2, 10);
    // Nobody makes a directory in a file: neither the state directory nor one in it.
    fs::create_dir(&house.state).unwrap();
    let file = house.state.join("transfers");
    fs::write(&file, "").unwrap();
    let copy = |state: &Path, to: &Path| {
        let mut command = common::penstock(state);
        command.args(["cp", "--json", "-r"]).arg(&data).arg(to);
        command
    };
    for (name, state) in [("no-state", &file.join("state")), ("no-journals", &house.state)] {
        let to = house.path(name);
        let done = run(copy(state, &to)).good();
        assert_eq!(done.lines().len(), 1, "{done:?}");
        for words in ["warning: ", "transfers: ", "cannot be resumed", "PENSTOCK_STATE"] {
            assert!(done.error.contains(words), "{words}: {done:?}");
        }
        assert_same(&data, &to.join("data"));
    }
    // Two at a time do not meet in one unfinished file.
    let to = house.path("both");
    let both = [(); 2].map(|()| Run::start(&mut copy(&house.state, &to)));
    for one in both {
        one.wait().good();
    }
    assert_same(&data, &to.join("data"));
    assert_eq!(parts(&to), Vec::<std::path::PathBuf>::new());
}
