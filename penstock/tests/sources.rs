//! Sources and destinations: missing sources, lists, an unwritable state directory, links.

mod common;

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::{
    Agent, RunningCommand, TestEnv, assert_no_leftovers, assert_same, parts, run, seeded,
    wait_until, write_file, write_tree,
};

/// Address of an entry by its name.
type Place<'a> = &'a dyn Fn(&str) -> OsString;

/// A missing source is reported, and the others are copied.
#[test]
fn missing_source_does_not_stop_others() {
    let mut random = seeded(81);
    let env = TestEnv::new();
    let agent = env.agent();
    for place in [&env.source, &env.root] {
        write_tree(&mut random, &place.join("one"), 1, 5);
        write_file(&mut random, &place.join("two"), 5000);
    }
    let here = |name: &str| env.source.join(name).into_os_string();
    let there = |name: &str| OsString::from(agent.url(name));
    let to = |name: &str| env.path(name).into_os_string();
    let copies: [(&str, Place<'_>, OsString, &Path, &str); 4] = [
        ("local", &here, to("local"), &env.path("local"), "source/none"),
        ("push", &here, there("pushed/"), &env.root.join("pushed"), "source/none"),
        ("pull", &there, to("pulled"), &env.path("pulled"), "/none"),
        ("third party", &there, there("third/"), &env.root.join("third"), "/none"),
    ];
    for (how, from, to, target, named) in copies {
        let arguments = ["-r".into(), from("one"), from("none"), from("two"), to.clone()];
        let done = run(env.cp(&arguments));
        assert_eq!((done.code, done.lines().len()), (3, 1), "{how}: {done:?}");
        let line = done.lines()[0];
        assert!(line.contains(named) && line.contains("no such file"), "{how}: {line}");
        assert_eq!((done.number("failed"), done.number("files")), (1, 8), "{how}: {done:?}");
        let root = if how == "local" || how == "push" { &env.source } else { &env.root };
        assert_same(&root.join("one"), &target.join("one"));
        assert_eq!(fs::read(root.join("two")).unwrap(), fs::read(target.join("two")).unwrap());
        // With all sources missing nothing is copied, and one line says why.
        let done = run(env.cp(&[from("none"), from("nor-this"), to]));
        assert_eq!((done.code, done.lines().len()), (1, 1), "{how}: {done:?}");
        assert!(done.error.contains(named), "{how}: {done:?}");
    }
}

/// Two parts of a list copy to one destination concurrently; two copies of the same list do not.
#[test]
fn list_parts_copy_concurrently() {
    let mut random = seeded(82);
    let env = TestEnv::new();
    let agent = env.agent();
    for number in 0..4 {
        write_file(&mut random, &env.source.join(format!("f{number}")), 1 << 20);
    }
    let copy = |list: &str, names: &str, more: &[&str]| {
        let list = env.path(list);
        fs::write(&list, names).unwrap();
        let mut command = env.cp(&["--files-from"]);
        command.arg(&list).args(more).arg(&env.source).arg(agent.url(""));
        command
    };
    let slow = ["--rate", "2M", "--block", "64KiB"];
    let mut first = RunningCommand::start(&mut copy("a", "f0\nf1\n", &slow));
    wait_until("it runs", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    run(copy("b", "f2\nf3\n", &[])).good();
    assert!(!first.is_over(), "the first was to take 8 s");
    let done = run(copy("a", "f0\nf1\n", &["--give-up-after", "1s"]));
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.error.contains("already running"), "{done:?}");
    first.wait().good();
    assert_same(&env.source, &env.root);
    assert_no_leftovers(&env.root, &env.state);
}

/// Without a directory for journals a copy succeeds and cannot be resumed.
#[test]
fn unwritable_state_disables_resumption_only() {
    let mut random = seeded(83);
    let env = TestEnv::new();
    let data = env.source.join("data");
    write_tree(&mut random, &data, 2, 10);
    // A file in place of a directory makes the state directory unusable.
    fs::create_dir(&env.state).unwrap();
    let file = env.state.join("transfers");
    fs::write(&file, "").unwrap();
    let copy = |state: &Path, to: &Path| {
        let mut command = common::penstock(state);
        command.args(["cp", "--json", "-r"]).arg(&data).arg(to);
        command
    };
    for (name, state) in [("no-state", &file.join("state")), ("no-journals", &env.state)] {
        let to = env.path(name);
        let done = run(copy(state, &to)).good();
        assert_eq!(done.lines().len(), 1, "{done:?}");
        for words in ["warning: ", "transfers: ", "cannot be resumed", "PENSTOCK_STATE"] {
            assert!(done.error.contains(words), "{words}: {done:?}");
        }
        assert_same(&data, &to.join("data"));
    }
    // Two concurrent copies use different partial files.
    let to = env.path("both");
    let both = [(); 2].map(|()| RunningCommand::start(&mut copy(&env.state, &to)));
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
    let env = TestEnv::new();
    let agent = env.agent();
    for place in [&env.source, &env.root] {
        fs::create_dir_all(place.join("d/sub")).unwrap();
        for name in ["f", "d/x", "d/sub/y"] {
            fs::write(place.join(name), "new").unwrap();
        }
    }
    let pushed = env.root.join("to");
    let to = env.path("to");
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
                _ => env.source.join(name).into_os_string(),
            };
            let to = match how {
                "push" => agent.url(&format!("to/{dst}")).into(),
                _ => target.join(dst).into_os_string(),
            };
            run(env.cp(more).args([from, to]))
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
        for leads_to in ["../../out", "../old", "none", env.dir.path().to_str().unwrap()] {
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

/// Files of 6 MiB with these names.
fn dataset(env: &TestEnv, names: &[&str]) -> PathBuf {
    let mut random = seeded(82);
    let data = env.source.join("data");
    fs::create_dir_all(&data).unwrap();
    names.iter().for_each(|name| write_file(&mut random, &data.join(name), 6 << 20));
    data
}

/// Starts a copy of `data` at a low rate and waits until its first bytes have arrived.
fn start_slow_copy(env: &TestEnv, agent: &Agent, data: &Path) -> RunningCommand {
    let mut command = env.cp(&["-r", "--rate", "24M", "--memory", "512KiB", "--block", "64KiB"]);
    let client = RunningCommand::start(command.arg(data).arg(agent.url("")));
    wait_until("first bytes", Duration::from_secs(20), || {
        let transfers = agent.transfers(&env.state);
        transfers.iter().any(|one| one["moved_bytes"].as_u64() > Some(0)).then_some(())
    });
    client
}

#[test]
fn rewritten_source_with_restored_mtime_restarts() {
    let env = TestEnv::new();
    let data = dataset(&env, &["rewritten"]);
    let path = data.join("rewritten");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let agent = env.agent();
    let client = start_slow_copy(&env, &agent, &data);
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all(&vec![7; 6 << 20]).unwrap();
    file.set_modified(modified).unwrap();
    drop(file);
    client.wait().good();
    assert_same(&data, &env.root.join("data"));
    assert_no_leftovers(&env.root, &env.state);
}

#[test]
fn source_replaced_after_the_scan_restarts() {
    let env = TestEnv::new();
    let data = dataset(&env, &["first", "second", "third"]);
    let agent = env.agent();
    let client = start_slow_copy(&env, &agent, &data);
    for name in ["first", "second", "third"] {
        let (path, new) = (data.join(name), env.source.join("new"));
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&new, vec![7; 6 << 20]).unwrap();
        fs::set_permissions(&new, fs::metadata(&path).unwrap().permissions()).unwrap();
        fs::File::open(&new).unwrap().set_modified(modified).unwrap();
        fs::rename(&new, &path).unwrap();
    }
    client.wait().good();
    // A file that was open keeps the content that it had; no file has some of both.
    for name in ["first", "second", "third"] {
        let arrived = fs::read(env.root.join("data").join(name)).unwrap();
        let new = arrived.iter().filter(|byte| **byte == 7).count();
        assert!(new == arrived.len() || new < arrived.len() / 16, "{name}: {new} bytes are new");
    }
    assert_no_leftovers(&env.root, &env.state);
}

/// Without -r the files of a directory would all arrive under one name.
#[test]
fn contents_of_directory_need_recursion() {
    let env = TestEnv::new();
    let agent = env.agent();
    for place in [&env.source, &env.root] {
        write_tree(&mut seeded(83), &place.join("four"), 1, 4);
    }
    let contents = env.source.join("four/.").into_os_string();
    let (kept, here) = (env.path("kept"), env.path("new"));
    fs::write(&kept, "an earlier file").unwrap();
    let copies: [(OsString, OsString, &Path); 4] = [
        (contents.clone(), here.clone().into(), &here),
        (contents.clone(), kept.clone().into(), &kept),
        (contents, agent.url("new").into(), &env.root.join("new")),
        (agent.url("").into(), here.clone().into(), &here),
    ];
    for (from, to, target) in copies {
        let done = run(env.cp(&[from, to]));
        assert_eq!(done.code, 1, "{done:?}");
        assert!(done.error.contains("add -r"), "{done:?}");
        assert!(target == kept || !target.exists(), "{done:?}");
    }
    assert_eq!(fs::read_to_string(&kept).unwrap(), "an earlier file");
}

/// A list may name a directory and what is in it, in any order, as that of find does.
#[test]
fn list_may_repeat_contents_of_directory() {
    let env = TestEnv::new();
    let agent = env.agent();
    for place in [&env.source, &env.root] {
        write_tree(&mut seeded(84), &place.join("d"), 2, 6);
    }
    let list = env.path("list");
    for lines in ["d\nd/deep/er\n", "d/deep/er\nd\n", "./d\n./d/deep\n"] {
        fs::write(&list, lines).unwrap();
        let there = OsString::from(agent.url(""));
        let copies = [
            (env.source.clone().into_os_string(), env.path("local").into_os_string()),
            (env.source.clone().into_os_string(), agent.url("pushed/").into()),
            (there, env.path("pulled").into_os_string()),
        ];
        for (from, to) in copies {
            let mut command = env.cp(&["-r", "--files-from"]);
            let done = run(command.arg(&list).args([from, to])).good();
            assert_eq!(done.number("failed"), 0, "{lines:?}: {done:?}");
        }
        for (from, copy) in [
            (&env.source, env.path("local")),
            (&env.source, env.root.join("pushed")),
            (&env.root, env.path("pulled")),
        ] {
            assert_same(&from.join("d"), &copy.join("d"));
            fs::remove_dir_all(copy).unwrap();
        }
    }
}

/// Temporary files of other copies stay where they are, but for one that is named.
#[test]
fn temporary_files_are_left_out() {
    let mut random = seeded(83);
    let env = TestEnv::new();
    let agent = env.agent();
    let temporary = ".penstock-0123456789abcdef.part";
    for place in [&env.source, &env.root] {
        fs::create_dir_all(place.join("one/.penstock-01-23.part")).unwrap();
        for name in ["one/a", "one/.penstock-mine.part"] {
            write_file(&mut random, &place.join(name), 5000);
        }
        write_file(&mut random, &place.join("one").join(temporary), 5000);
        write_file(&mut random, &place.join("one/.penstock-01-23.part/b"), 5000);
    }
    let here = env.source.join("one").into_os_string();
    let there = OsString::from(agent.url("one"));
    let copies: [(&OsString, OsString, PathBuf, u64); 4] = [
        (&here, env.path("local").into(), env.path("local"), 2),
        (&here, agent.url("pushed/").into(), env.root.join("pushed"), 2),
        // The agent's log names them.
        (&there, env.path("pulled").into(), env.path("pulled"), 0),
        (&there, agent.url("third/").into(), env.root.join("third"), 2),
    ];
    for (from, to, target, warnings) in copies {
        let done = run(env.cp(&["-r".into(), from.clone(), to])).good();
        assert_eq!((done.number("files"), done.number("warnings")), (2, warnings), "{done:?}");
        let names = fs::read_dir(target.join("one")).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".penstock-mine.part", "a"], "{done:?}");
    }
    let named = env.source.join("one").join(temporary);
    let done = run(env.cp(&[named, env.path("named")])).good();
    assert_eq!(done.number("files"), 1, "{done:?}");
}

/// Files of procfs have no size; an empty copy of one would pass for a good one.
#[test]
fn content_without_size_is_reported() {
    let env = TestEnv::new();
    let target = env.path("version");
    let done = run(env.cp(&["/proc/version".into(), target.clone().into_os_string()]));
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.error.contains("copy it with cat"), "{done:?}");
    assert!(!target.exists());
}
