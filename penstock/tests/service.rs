//! Service installation and stripped binary, by the files in `deploy/` and `tools/` and the documented steps of
//! `docs/operations.md`.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Agent, PENSTOCK, TestEnv, is_root, penstock, run, seeded, write_file};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn output(command: &mut Command) -> (bool, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].concat();
    (status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Commands of the first block below a heading.
fn steps(document: &str, heading: &str) -> Vec<String> {
    let text = read(document);
    let (_, text) = text.split_once(&format!("\n## {heading}\n")).expect(heading);
    let (_, text) = text.split_once("```sh\n").expect("a block of commands");
    text.split_once("```").unwrap().0.lines().map(str::to_owned).collect()
}

/// Values of a key in a unit.
fn values(unit: &str, key: &str) -> Vec<String> {
    let text = read(unit);
    let found = text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    found.map(str::to_owned).collect()
}

/// Runs each documented step below another root, with that root's group ids and systemctl without a manager.
#[test]
fn install_steps_make_a_working_service() {
    if !is_root() {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            "only root gives files to another user",
        );
    }
    let env = TestEnv::new();
    let root = env.path("system");
    for directory in ["usr/bin", "etc/systemd/system", "usr/lib/systemd/system", "srv", "run"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let steps = steps("docs/operations.md", "Install");
    assert!(steps.last().unwrap().starts_with("systemctl enable --now penstock"), "{steps:?}");
    for step in &steps {
        let mut words: Vec<String> = step
            .split_whitespace()
            .map(|word| match word {
                "target/release/penstock" => PENSTOCK.to_owned(),
                "systemd-sysusers" => format!("systemd-sysusers --root={}", root.display()),
                "systemctl" => format!("systemctl --root={}", root.display()),
                "--now" => String::new(),
                path if path.starts_with('/') => format!("{}{path}", root.display()),
                other => other.to_owned(),
            })
            .collect();
        for (file, flag) in [("passwd", "-o"), ("group", "-g")] {
            if let Some(at) = words.iter().position(|word| word == flag) {
                let list = fs::read_to_string(root.join("etc").join(file)).unwrap();
                let line = list.lines().find(|line| line.starts_with("penstock:")).unwrap();
                words[at + 1] = line.split(':').nth(2).unwrap().to_owned();
            }
        }
        let mut shell = Command::new("sh");
        shell.args(["-ec", &words.join(" ")]).current_dir(repository());
        let (succeeded, text) = output(&mut shell);
        assert!(succeeded, "{step}: {text}");
    }
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/penstock.service");
    assert!(wanted.is_symlink(), "the unit is not enabled");
    let configuration = root.join("etc/penstock/penstock.toml");
    assert_eq!(fs::metadata(&configuration).unwrap().mode() & 0o777, 0o640);
    let store = root.join("srv/store");
    assert_ne!(fs::metadata(&store).unwrap().uid(), 0, "the service's user may not write there");
    // The unit's ReadWritePaths contain the configured exports.
    let text = fs::read_to_string(&configuration).unwrap();
    let exported = text
        .lines()
        .filter_map(|line| line.strip_prefix("path = "))
        .map(|path| path.trim_matches('"'));
    let writable = values("deploy/systemd/penstock.service", "ReadWritePaths");
    for path in exported {
        assert!(
            writable.iter().any(|one| one.trim_start_matches('-') == path),
            "{path}: {writable:?}"
        );
    }
    // The agent starts with that configuration and receives a file.
    let below = text.replace("\"/srv/", &format!("\"{}/srv/", root.display()));
    fs::write(&configuration, below).unwrap();
    let mut serve = penstock(&env.state);
    serve.args(["serve", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--config"]);
    let agent = Agent::spawn({
        serve.arg(&configuration);
        serve
    });
    let file = env.source.join("file");
    write_file(&mut seeded(51), &file, 9000);
    run(env.cp(&[file.to_str().unwrap(), &agent.url("store/")])).good();
    assert_eq!(fs::read(&file).unwrap(), fs::read(store.join("file")).unwrap());
}

#[test]
fn units_share_no_state_directory() {
    let units = ["deploy/systemd/penstock.service", "deploy/systemd/penstock-tag.service"];
    let of = |key: &str| units.map(|unit| values(unit, key));
    let [agent, marker] = of("StateDirectory");
    assert_eq!(
        (agent.as_slice(), marker.as_slice()),
        (&["penstock".to_owned()][..], &["penstock-tag".to_owned()][..])
    );
    for (unit, state) in units.iter().zip(["penstock", "penstock-tag"]) {
        let environment = values(unit, "Environment");
        assert!(
            environment.contains(&format!("PENSTOCK_STATE=/var/lib/{state}")),
            "{environment:?}"
        );
    }
    // Both name the path to which the document installs the binary.
    let installed = steps("docs/operations.md", "Install");
    let path = installed[0].split_whitespace().last().unwrap().to_owned();
    for start in of("ExecStart").concat() {
        assert!(start.starts_with(&format!("{path} ")), "{start}");
    }
}

/// False where systemd is not installed; the test is then reported as skipped.
fn has_systemd() -> bool {
    let (available, _) = output(Command::new("systemd-analyze").arg("--version"));
    if !available {
        penstock_testkit::skip(
            penstock_testkit::Requirement::Program,
            "systemd-analyze is not installed",
        );
    }
    available
}

/// Asserts that systemd finds no fault in a unit and its drop-ins, which are beside it.
#[track_caller]
fn assert_accepted(unit: &Path) {
    let name = unit.file_name().unwrap().to_str().unwrap();
    let (succeeded, text) =
        output(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit));
    let about: Vec<&str> = text.lines().filter(|line| line.contains(name)).collect();
    assert!(succeeded && about.is_empty(), "{text}");
}

/// A unit whose binary is one that is installed here.
fn runnable(name: &str) -> String {
    read(&format!("deploy/systemd/{name}")).replace("/usr/bin/penstock ", "/bin/true ")
}

#[test]
fn systemd_accepts_the_units() {
    if !has_systemd() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let names = ["penstock", "penstock-collector", "penstock-controller", "penstock-sample"];
    for name in names.iter().chain(&["penstock-tag"]).map(|name| format!("{name}.service")) {
        let path = dir.path().join(&name);
        fs::write(&path, runnable(&name)).unwrap();
        assert_accepted(&path);
    }
}

/// Each alone and both together, with their examples of files and devices.
#[test]
fn systemd_accepts_the_drop_ins() {
    if !has_systemd() {
        return;
    }
    for names in [&["rdma"][..], &["disks"], &["rdma", "disks"]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("penstock.service");
        fs::write(&path, runnable("penstock.service")).unwrap();
        let drop_ins = dir.path().join("penstock.service.d");
        fs::create_dir(&drop_ins).unwrap();
        for name in names.iter().map(|name| format!("{name}.conf")) {
            let text = read(&format!("deploy/systemd/penstock.service.d/{name}"));
            let text = text.replace("\n#ReadWritePaths", "\nReadWritePaths");
            let text = text.replace("\n#DeviceAllow", "\nDeviceAllow");
            fs::write(drop_ins.join(name), text).unwrap();
        }
        assert_accepted(&path);
    }
}

/// The stripped binary runs and names its symbol file, by which tools find function names.
#[test]
fn stripped_binary_keeps_its_symbols_beside() {
    let dir = tempfile::tempdir().unwrap();
    let binary = dir.path().join("penstock");
    fs::copy(PENSTOCK, &binary).unwrap();
    let before = fs::metadata(&binary).unwrap();
    let strip = || {
        let (succeeded, text) =
            output(Command::new(repository().join("tools/strip.sh")).arg(&binary));
        assert!(succeeded, "{text}");
    };
    strip();
    let symbols = dir.path().join("penstock.debug");
    let (after, kept) = (fs::metadata(&binary).unwrap(), fs::metadata(&symbols).unwrap());
    assert!(after.len() < before.len() && kept.len() > 1 << 20, "{after:?} {kept:?}");
    assert_eq!(after.mode() & 0o777, before.mode() & 0o777);
    let (succeeded, text) = output(Command::new(&binary).arg("--version"));
    assert!(succeeded && text.starts_with("penstock "), "{text}");
    let sections = output(Command::new("readelf").args(["-SW"]).arg(&binary)).1;
    assert!(sections.contains(".gnu_debuglink"), "{sections}");
    assert!(!sections.contains(".symtab") && !sections.contains(".debug_info"), "{sections}");
    // The address of main, from the symbols alone, is named by way of the stripped binary.
    let names = output(Command::new("nm").arg(&symbols)).1;
    let main = names.lines().find(|line| line.ends_with(" T main")).expect("main").to_owned();
    let address = main.split_whitespace().next().unwrap();
    let (_, found) = output(Command::new("addr2line").args(["-f", "-e"]).arg(&binary).arg(address));
    assert!(found.starts_with("main"), "{found}");
    // A second run changes nothing.
    strip();
    assert_eq!(fs::metadata(&symbols).unwrap().len(), kept.len());
    // A binary that was linked anew is stripped anew.
    fs::remove_file(&binary).unwrap();
    fs::copy(PENSTOCK, &binary).unwrap();
    strip();
    assert_eq!(fs::metadata(&binary).unwrap().len(), after.len());
}
