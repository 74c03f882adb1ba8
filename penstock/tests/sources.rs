//! What is named as source and destination: what is not there, lists, state that cannot be kept.

mod common;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use common::{
    House, Random, Run, assert_no_leftovers, assert_same, parts, run, until, write_file, write_tree,
};

/// Where something is, by its name.
type Place<'a> = &'a dyn Fn(&str) -> OsString;

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
    let copies: [(&str, Place<'_>, OsString, &Path, &str); 4] = [
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

/// Links at the destination, in all directions: followed to a directory below the target, replaced by a
/// file, never written through, and left where they are in the way.
#[test]
fn links_at_the_destination() {
    let house = House::new();
    let agent = house.agent();
    for place in [&house.source, &house.root] {
        fs::create_dir_all(place.join("d/sub")).unwrap();
        for name in ["f", "d/x", "d/sub/y"] {
            fs::write(place.join(name), "new").unwrap();
        }
    }
    let pushed = house.root.join("to");
    let to = house.path("to");
    for (how, target) in [("local", &to), ("push", &pushed), ("pull", &to)] {
        let read = |name: &str| fs::read_to_string(target.join(name)).unwrap();
        let is_link = |name: &str| target.join(name).is_symlink();
        let afresh = |lead: &[(&str, &str)]| {
            let _ = fs::remove_dir_all(target);
            fs::create_dir_all(target.join("d/real")).unwrap();
            fs::write(target.join("old"), "old").unwrap();
            for (name, leads_to) in lead {
                symlink(leads_to, target.join(name)).unwrap();
            }
        };
        let copy = |more: &[&str], name: &str, dst: &str| {
            let from = match how {
                "pull" => agent.url(name).into(),
                _ => house.source.join(name).into_os_string(),
            };
            let to = match how {
                "push" => agent.url(&format!("to/{dst}")).into(),
                _ => target.join(dst).into_os_string(),
            };
            run(house.cp(more).args([from, to]))
        };
        // Named on the command line, a link to a directory is that directory.
        afresh(&[("dst", "d/real"), ("file", "old"), ("nowhere", "none")]);
        copy(&[], "f", "dst").good();
        copy(&["-r"], "d", "dst").good();
        assert_eq!((read("d/real/f"), read("d/real/d/sub/y")), ("new".into(), "new".into()));
        // No directory can be there; a file takes the link's place.
        for dst in ["file", "nowhere"] {
            let done = copy(&["-r"], "d", dst);
            assert_eq!((done.code, done.lines().len()), (1, 1), "{how}: {done:?}");
            assert!(done.error.contains("a link that leads to no directory"), "{how}: {done:?}");
            for more in [&[][..], &["--inplace"]] {
                copy(more, "f", dst).good();
                assert_eq!((read(dst), read("old")), ("new".into(), "old".into()), "{how}");
                assert!(!is_link(dst) && !target.join("none").exists(), "{how}");
                fs::remove_file(target.join(dst)).unwrap();
                symlink(if dst == "file" { "old" } else { "none" }, target.join(dst)).unwrap();
            }
        }
        // Below the target, a link to a directory there is followed, and keeps its mode.
        for leads_to in ["real", "../d/real"] {
            afresh(&[("d/sub", leads_to), ("d/x", "../old")]);
            copy(&["-r"], "d", "").good();
            assert!(is_link("d/sub") && read("d/real/y") == "new", "{how}");
            assert!(!is_link("d/x") && read("d/x") == "new" && read("old") == "old", "{how}");
        }
        // One that leads out, to a file or nowhere, is in the way.
        fs::create_dir_all(target.with_file_name("out")).unwrap();
        for leads_to in ["../../out", "../old", "none", house.dir.path().to_str().unwrap()] {
            afresh(&[("d/sub", leads_to)]);
            let done = copy(&["-r"], "d", "");
            assert_eq!(done.code, 3, "{how} {leads_to}: {done:?}");
            let words = "d/sub: a link to no directory below the target of that name is in the way";
            assert!(done.error.contains(words), "{how} {leads_to}: {done:?}");
            assert!(is_link("d/sub") && read("d/x") == "new", "{how}");
        }
        assert_eq!(fs::read_dir(target.with_file_name("out")).unwrap().count(), 0);
    }
}
