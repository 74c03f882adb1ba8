//! `penstock host` by its command line: facts files, plans, and real changes in the test's own network namespace, restored
//! exactly: by `restore`, after a kill, and without a confirmation.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{CommandOutcome, PENSTOCK, is_root, penstock, run, seeded, wait_until};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../system/host/tests/fixtures/{name}.json"))
}

/// Standard output of a command that must succeed.
#[track_caller]
fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn host(arguments: &[&str]) -> Command {
    let mut command = penstock(Path::new("/no/state/is/needed"));
    command.arg("host").args(arguments);
    command
}

#[test]
fn check_reads_another_hosts_facts() {
    let file = fixture("vm-stock");
    let file = file.to_str().unwrap();
    let goal = ["--facts", file, "--for", "20G", "--rtt", "50ms"];
    let plain = text(host(&["check"]).args(goal));
    for words in [
        "virtual machine",
        "for 20.0 Gb/s over 50.0 ms in 1 stream, by eth0",
        "one stream      617 Mb/s at most",
        "what matters most\n  tcp-wmem",
    ] {
        assert!(plain.contains(words), "{words}:\n{plain}");
    }
    assert!(!plain.contains("timestamps"), "what is right is not listed:\n{plain}");
    assert!(text(host(&["check", "--all"]).args(goal)).contains("timestamps"));

    let object = run(host(&["check", "--json"]).args(goal)).good().json;
    assert_eq!(object["goal"]["rate_bits_per_second"], 20_000_000_000_u64);
    assert_eq!(object["report"]["top"][0], "tcp-wmem");
    let ceiling = object["report"]["stream_ceiling_bits_per_second"].as_u64().unwrap();
    assert!((600_000_000..640_000_000).contains(&ceiling), "{ceiling}");
    let finding = object["findings"].as_array().unwrap().iter().find(|f| f["rule"] == "tcp-rmem");
    assert_eq!(finding.unwrap()["verdict"], "differs");
    let score = object["report"]["score"].as_u64().unwrap();
    let under = (score + 1).to_string();
    assert_eq!(run(host(&["check", "--fail-under", &under]).args(goal)).code, 1);
    assert_eq!(run(host(&["check", "--fail-under", &score.to_string()]).args(goal)).code, 0);
}

#[test]
fn check_compares_hardware_with_rate() {
    let file = fixture("sc23-caltech-400g");
    let facts = ["--facts", file.to_str().unwrap()];
    let plain = text(host(&["check", "--for", "400G"]).args(facts));
    for words in [
        "\nhardware for 400 Gb/s of encrypted copies between drives and network\n  ok       processors",
        "  short    NVMe drives       needs 13 drives      has 2 drives\n",
        "  unknown  PCIe of drives    needs 400 Gb/s       the slot of nvme0, nvme1 is not known\n",
    ] {
        assert!(plain.contains(words), "{words}:\n{plain}");
    }
    let test = text(host(&["check", "--for", "100Tbit", "--role", "test"]).args(facts));
    let (_, hardware) = test.split_once("\nhardware for 100 Tb/s of network tests").unwrap();
    assert!(!hardware.contains("drives") && !hardware.contains("  ok "), "{hardware}");
    let object = run(host(&["check", "--for", "400G", "--json"]).args(facts)).good().json;
    let drives = &object["capacity"][4];
    assert_eq!((&drives["resource"], &drives["verdict"]), (&json!("NVMe drives"), &json!("short")));
    assert!(drives["have_over_need"].as_f64().unwrap() < 1.0, "{drives}");
    assert_eq!(object["capacity"][5]["have_over_need"], Value::Null);

    // A machine of which nothing is known.
    let mut bare = host(&["check", "--facts", "-", "--for", "400G"]);
    let mut child = bare.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"{\"version\": 1}").unwrap();
    let bare = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(bare.matches("\n  unknown").count(), 6, "{bare}");
}

#[test]
fn plan_without_apply_changes_nothing() {
    let before = own_settings();
    let plan =
        text(host(&["tune", "--for", "20G", "--rtt", "50ms", "--facts"]).arg(fixture("vm-stock")));
    for words in [
        "tcp-wmem\n  net.ipv4.tcp_wmem\n  - 4096 16384 4194304\n  + 4096 16384 200278016\n",
        "tcp-rmem\n  net.ipv4.tcp_rmem\n  - 4096 131072 33554432\n  + 4096 131072 250609664\n",
        "--also mtu",
        "nothing was changed: --apply does",
    ] {
        assert!(plan.contains(words), "{words}:\n{plan}");
    }
    let own = run(host(&["tune", "--json"])).good().json;
    assert!(own["plan"]["steps"].is_array() && own.get("outcomes").is_none());
    assert_eq!(own_settings(), before);
    assert!(!Path::new("/no/state/is/needed").exists());
}

/// Settings of this machine that rules change.
fn own_settings() -> Vec<String> {
    [
        "net/ipv4/tcp_rmem",
        "net/ipv4/tcp_wmem",
        "net/core/optmem_max",
        "vm/swappiness",
        "vm/dirty_ratio",
    ]
    .map(|key| fs::read_to_string(format!("/proc/sys/{key}")).unwrap_or_default())
    .to_vec()
}

#[test]
fn mistakes_are_one_line() {
    let broken = tempfile::NamedTempFile::new().unwrap();
    fs::write(broken.path(), "{\"version\": 1, \"nicks\": []}").unwrap();
    let broken = broken.path().to_str().unwrap();
    let file = fixture("vm-stock");
    let file = file.to_str().unwrap();
    for (arguments, code, words) in [
        (&["check", "--facts", "/no/such/file"][..], 2, "/no/such/file: cannot be read"),
        (&["check", "--facts", broken], 2, "unknown field `nicks`"),
        (&["check", "--interface", "eth77"], 2, "there is no interface eth77"),
        (&["check", "--rtt", "0ms"], 2, "every path takes some time"),
        (&["check", "--rtt", "100"], 2, "write the unit too, like 65ms"),
        (&["check", "--rtt", "2h"], 2, "no path takes more than a minute"),
        (&["check", "--for", "0"], 2, "nothing would move: write it like 100G"),
        (
            &["check", "--for", "100"],
            2,
            "100 b/s is no rate to plan for: write the unit, as in 100G",
        ),
        (&["check", "--for", "abc"], 2, "'abc' is not a rate in bits per second"),
        (&["tune", "--for", "100P"], 2, "write a rate up to 100 Tb/s"),
        (&["explain", "wmem"], 2, "did you mean tcp-wmem"),
        (&["explain", "net.ipv4.tcp_rmem"], 2, "did you mean tcp-rmem"),
        (&["explain", "TCP_WMEM"], 2, "did you mean tcp-wmem"),
        (&["explain", "low-latncy"], 2, "did you mean low-latency"),
        (&["explain", "irqbalance"], 2, "penstock host explain lists them"),
        (&["explain", ""], 2, "penstock host explain lists them"),
        (&["tune", "--only", "mtu", "--skip", "mtu"], 2, "mtu is both wanted and skipped"),
        (&["tune", "--apply", "--revert-after", "0s"], 2, "leave time to confirm"),
        (&["tune", "--only", "no-such-rule"], 2, "no rule has this name"),
        (&["tune", "--persist"], 2, "--apply"),
        (&["tune", "--apply", "--facts", file], 2, "cannot be used with"),
        (&["tune", "--confirm"], 1, "nothing waits to be confirmed"),
    ] {
        let state = tempfile::tempdir().unwrap();
        let done = run(penstock(&state.path().join("state")).arg("host").args(arguments));
        assert_eq!((done.code, done.lines().len()), (code, 1), "{arguments:?}: {done:?}");
        assert!(done.error.contains(words), "{words}: {done:?}");
    }
}

#[test]
fn own_facts_file_gives_same_findings() {
    let facts = text(&mut host(&["facts"]));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &facts).unwrap();
    let of = |arguments: &[&str]| {
        let object = run(host(arguments)).good().json;
        let rules = object["findings"].as_array().unwrap().clone();
        // Counters grow, and devices of other tests come and go.
        let still =
            |finding: &Value| finding["object"] == "host" && finding["rule"] != "netdev-budget";
        rules.into_iter().filter(still).collect::<Vec<_>>()
    };
    let path = file.path().to_str().unwrap();
    assert_eq!(
        of(&["check", "--json", "--for", "100G", "--facts", path]),
        of(&["check", "--json", "--for", "100G"])
    );
}

/// docs/host-rules.md lists every rule with its target value.
#[test]
fn the_page_lists_every_rule() {
    let rules = run(host(&["explain", "--json"])).good().json;
    let mut table = "| rule | reads | wants | weight |\n|---|---|---|---|\n".to_owned();
    for rule in rules["rules"].as_array().unwrap() {
        let cell = |name: &str| rule[name].as_str().unwrap().to_owned();
        let named = if rule["only_if_named"].is_null() { "" } else { " (named)" };
        table += &format!(
            "| `{}`{named} | {} | {} | {} |\n",
            cell("rule"),
            cell("reads"),
            cell("wants"),
            rule["weight"]
        );
        let page = text(host(&["explain", &cell("rule"), "--facts"]).arg(fixture("el9-stock")));
        assert!(
            page.contains("\nwhy ") && page.contains("\nsources ") && page.contains("\nhere\n"),
            "{page}"
        );
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/host-rules.md");
    let (begin, end) = ("<!-- rules -->\n", "<!-- end of rules -->");
    let text = fs::read_to_string(&page).unwrap();
    let (head, rest) = text.split_once(begin).expect("the page has a place for rules");
    let (kept, tail) = rest.split_once(end).expect("the place has an end");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&page, format!("{head}{begin}{table}{end}{tail}")).unwrap();
    } else {
        assert_eq!(kept, table, "UPDATE_GOLDEN=1 cargo test -p penstock --test host");
    }
}

/// A network namespace with a veth pair and a state directory; removed when dropped.
struct Namespace {
    name: String,
    directory: tempfile::TempDir,
}

const GOAL: [&str; 6] = ["--for", "20G", "--rtt", "50ms", "--interface", "ve0"];

impl Namespace {
    fn new(test: &str) -> Option<Self> {
        if !is_root() {
            penstock_testkit::skip(
                penstock_testkit::Requirement::Root,
                &format!("{test}: needs root for a network namespace"),
            );
            return None;
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ph{}x{number}", std::process::id());
        let namespace = Self { name, directory: tempfile::tempdir().unwrap() };
        text(Command::new("ip").args(["netns", "add", &namespace.name]));
        namespace.ip("link add ve0 type veth peer name ve1");
        for device in ["ve0", "ve1"] {
            namespace.ip(&format!("link set {device} up"));
        }
        // Values other than defaults, so that a reset to defaults is detected.
        namespace.ip("link set ve0 mtu 1400 txqueuelen 777 gso_max_size 61000 gro_max_size 60000");
        namespace.inside("ethtool", "-K ve0 gro off tso off");
        // The kernel sets the state a moment after the carrier.
        wait_until("the device is up", Duration::from_secs(20), || {
            namespace.ip("link show ve0").contains("state UP").then_some(())
        });
        Some(namespace)
    }

    fn ip(&self, line: &str) -> String {
        text(Command::new("ip").args(["-n", &self.name]).args(line.split(' ')))
    }

    fn inside(&self, program: &str, line: &str) -> String {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(program);
        text(command.args(line.split(' ')))
    }

    fn host(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name)).arg(PENSTOCK).arg("host");
        command.env("PENSTOCK_STATE", self.state()).env_remove("JOURNAL_STREAM").args(arguments);
        command
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn apply(&self, more: &[&str]) -> Command {
        let mut command = self.host(&["tune", "--apply", "--also", "mtu", "--json"]);
        command.args(GOAL).args(more);
        command
    }

    fn restore(&self) -> CommandOutcome {
        run(self.host(&["restore", "--json"]))
    }

    /// Kernel values of all settings that the plans of these tests may change.
    fn settings(&self) -> Vec<String> {
        // Some cannot be read, which grep reports by its exit code.
        let sysctls = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.name))
            .args(["grep", "-rs", ".", "/proc/sys/net/ipv4", "/proc/sys/net/core"])
            .output()
            .unwrap();
        let sysctls = String::from_utf8(sysctls.stdout).unwrap();
        assert!(sysctls.contains("tcp_rmem"));
        let mut all: Vec<String> = sysctls.lines().map(str::to_owned).collect();
        // Leave out counters and settings that no rule changes.
        all.retain(|line| !line.contains("/route/") && !line.contains("fastopen_key"));
        all.sort();
        all.push(self.ip("-d link show ve0"));
        all.push(self.inside("ethtool", "-k ve0"));
        all.push(self.inside("ethtool", "-l ve0"));
        let facts: Value = serde_json::from_str(&text(&mut self.host(&["facts"]))).unwrap();
        let nic =
            facts["nics"].as_array().unwrap().iter().find(|nic| nic["name"] == "ve0").unwrap();
        all.push(nic["segments"].to_string());
        all
    }

    fn journal(&self) -> PathBuf {
        let entries = fs::read_dir(self.state().join("host")).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().path());
        names
            .find(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                name.starts_with("journal-") && !name.ends_with(".lock")
            })
            .expect("a journal")
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

#[test]
fn applied_plan_is_verified_and_restored() {
    let Some(namespace) = Namespace::new("a_plan_is_applied") else { return };
    let machine = own_settings();
    let before = namespace.settings();
    let done = run(namespace.apply(&[])).good().json;
    let rules: Vec<&str> =
        done["outcomes"].as_array().unwrap().iter().map(|o| o["rule"].as_str().unwrap()).collect();
    for rule in ["tcp-rmem", "tcp-wmem", "mtu", "offloads", "big-tcp"] {
        assert!(rules.contains(&rule), "{rule}: {rules:?}");
    }
    // `ip` reads the same values.
    let link = namespace.ip("-d link show ve0");
    for words in ["mtu 9000", "gso_max_size 185000", "gro_max_size 185000", "qlen 777"] {
        assert!(link.contains(words), "{words}: {link}");
    }
    assert!(namespace.inside("ethtool", "-k ve0").contains("tcp-segmentation-offload: on"));
    assert!(namespace.inside("cat", "/proc/sys/net/ipv4/tcp_wmem").ends_with("\t200278016\n"));
    // The plan is empty now, and the limit is lifted.
    let again = run(namespace.host(&["check", "--json"]).args(GOAL)).good().json;
    assert!(again["report"]["stream_ceiling_bits_per_second"].as_u64().unwrap() >= 20_000_000_000);
    let plan = run(namespace.host(&["tune", "--json", "--also", "mtu"]).args(GOAL)).good().json;
    assert_eq!(plan["plan"]["steps"], json!([]));
    // No setting of the host's own namespace has changed.
    assert_eq!(own_settings(), machine);

    // Outside there is nothing to restore, and the output names the namespace that has changes.
    let outside = text(penstock(&namespace.state()).args(["host", "restore"]));
    assert!(outside.contains("of another network namespace: restore it there"), "{outside}");

    let restored = namespace.restore().good().json;
    assert_eq!(restored["failed"], json!([]));
    assert_eq!(restored["plans"], 1);
    assert_eq!(namespace.settings(), before);
    assert!(text(&mut namespace.host(&["restore"])).contains("nothing to put back"));
}

#[test]
fn host_only_settings_are_reported() {
    let Some(namespace) = Namespace::new("what_only_the_host_can_set") else { return };
    let object = run(namespace.host(&["check", "--json"]).args(GOAL)).good().json;
    let verdict = |rule: &str| {
        let all = object["findings"].as_array().unwrap();
        all.iter().find(|finding| finding["rule"] == rule).unwrap().clone()
    };
    assert_eq!(verdict("socket-max")["verdict"], "needs_host");
    let unseen = verdict("tcp-mem");
    assert!(unseen["why"].as_str().unwrap().contains("only the host"), "{unseen}");
    let plan = text(namespace.host(&["tune"]).args(GOAL));
    assert!(plan.contains("network namespace of its own"), "{plan}");
    assert!(plan.contains("only the host's first network namespace can set it"), "{plan}");
}

/// Kills `tune --apply` at random moments, and between two rules; `restore` brings back all old values. Every crash point
/// is in `system/host/tests/apply.rs`.
#[test]
fn killed_apply_is_restored() {
    let Some(namespace) = Namespace::new("killed_in_the_middle") else { return };
    let before = namespace.settings();
    let directory = namespace.state().join("host");
    let journal = || {
        let paths = fs::read_dir(&directory).into_iter().flatten().flatten();
        let mut texts = paths.filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_journal = name.starts_with("journal-") && !name.ends_with(".lock");
            is_journal.then(|| fs::read_to_string(entry.path()).unwrap_or_default())
        });
        texts.next().unwrap_or_default()
    };
    let mut random = seeded(4);
    let (mut attempt, mut in_the_middle) = (0, 0);
    // On a busy machine a plan may be complete before this process sees its first step.
    while attempt < 8 || in_the_middle == 0 && attempt < 80 {
        let old = journal();
        let mut child =
            namespace.apply(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let has_begun = || {
            let text = journal();
            // Every second kill comes after the first step, as these are quick.
            text != old && (attempt % 2 == 0 || text.contains("\"step\""))
        };
        while !has_begun() && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        if attempt % 2 == 0 {
            std::thread::sleep(Duration::from_micros(random.between(0, 12_000)));
        }
        let _ = child.kill();
        child.wait().unwrap();
        let text = journal();
        in_the_middle +=
            u32::from(text.contains("\"step\"") && !text.contains("\"record\":\"end\""));
        let restored = namespace.restore().good().json;
        assert_eq!(restored["failed"], json!([]), "{restored}");
        assert_eq!(namespace.settings(), before);
        attempt += 1;
    }
    println!("{in_the_middle} of {attempt} were killed between two rules");
    assert!(in_the_middle > 0);
}

/// Damaged journal lines are reported and do not affect others.
#[test]
fn damaged_journal_restores_intact_lines() {
    let Some(namespace) = Namespace::new("a_damaged_journal") else { return };
    let before = namespace.settings();
    run(namespace.apply(&[])).good();
    let path = namespace.journal();
    let whole = fs::read_to_string(&path).unwrap();
    fs::write(&path, whole.replacen("tcp_rmem", "tcp_rmen", 1)).unwrap();
    let done = run(&mut namespace.host(&["restore", "--json"]));
    assert_eq!((done.code, &done.json["journal_damaged_lines"]), (3, &json!(1)), "{done:?}");
    let differs = |(now, then): (&String, &String)| (now != then).then(|| now.clone());
    let left = namespace.settings();
    let left: Vec<String> = left.iter().zip(&before).filter_map(differs).collect();
    assert!(left.len() == 1 && left[0].contains("tcp_rmem"), "{left:?}");
    // The damaged journal is kept for inspection.
    let aside = done.json["journal_aside"].as_str().unwrap();
    assert!(!path.exists());
    fs::write(&path, whole).unwrap();
    fs::remove_file(aside).unwrap();
    namespace.restore().good();
    assert_eq!(namespace.settings(), before);
}

/// A truncated journal restores its whole entries and reports the cut.
#[test]
fn truncated_journal_restores_whole_rules() {
    let Some(namespace) = Namespace::new("a_journal_that_is_cut") else { return };
    let before = namespace.settings();
    run(namespace.apply(&[])).good();
    let path = namespace.journal();
    let whole = fs::read(&path).unwrap();
    let third = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(2).unwrap().0;
    // The first two rules are whole, the third is cut.
    fs::write(&path, &whole[..third + 20]).unwrap();
    let restored = namespace.restore().good().json;
    assert_eq!(restored["journal_cut_bytes"], 19);
    assert_eq!(
        restored["put_back"],
        json!(["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]),
        "{restored}"
    );
    // The full journal restores the rest.
    fs::write(&path, &whole).unwrap();
    namespace.restore().good();
    assert_eq!(namespace.settings(), before);
}

#[test]
fn unconfirmed_plan_is_reverted() {
    let Some(namespace) = Namespace::new("what_nobody_confirms") else { return };
    let before = namespace.settings();
    let done = run(namespace.apply(&["--revert-after", "300ms"])).good().json;
    assert_eq!(done["revert_after_seconds"], 0.3);
    wait_until("what was", Duration::from_secs(20), || {
        (namespace.settings() == before).then_some(())
    });
    let late = run(namespace.host(&["tune", "--confirm"]));
    assert!(late.code == 1 && late.error.contains("put back"), "{late:?}");
    // The guard also reverts a plan whose `tune` process was killed.
    let mut child =
        namespace.apply(&["--revert-after", "400ms"]).stdout(Stdio::null()).spawn().unwrap();
    let journal = namespace.state().join("host");
    wait_until("a rule", Duration::from_secs(20), || {
        let entries = fs::read_dir(&journal).unwrap().flatten();
        let mut texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts.any(|text| text.contains("\"step\"")).then_some(())
    });
    let _ = child.kill();
    child.wait().unwrap();
    wait_until("what was", Duration::from_secs(20), || {
        (namespace.settings() == before).then_some(())
    });
}

#[test]
fn killed_revert_guard_is_detected() {
    let Some(namespace) = Namespace::new("a_guard_that_was_killed") else { return };
    let before = namespace.settings();
    run(namespace.apply(&["--revert-after", "6s"])).good();
    end_guards(&namespace);
    wait_until("the time to be over", Duration::from_secs(30), || {
        let checked = run(namespace.host(&["check"]).args(GOAL));
        checked.error.contains("are not all put back").then_some(())
    });
    let late = run(namespace.host(&["tune", "--confirm"]));
    assert!(late.code == 1 && late.error.contains("too late to confirm"), "{late:?}");
    // Another goal, as the first leaves nothing to change.
    let more = run(namespace.host(&["tune", "--apply", "--for", "40G", "--interface", "ve0"]));
    assert!(more.code == 1 && more.error.contains("are not all put back"), "{more:?}");
    namespace.restore().good();
    assert_eq!(namespace.settings(), before);
}

#[test]
fn namespace_cannot_persist_settings() {
    let Some(namespace) = Namespace::new("what_starts_with_the_machine") else { return };
    let before = namespace.settings();
    let refused = run(namespace.host(&["tune", "--apply", "--persist"]).args(GOAL));
    assert!(refused.code == 2 && refused.error.contains("machine's own network namespace"));
    assert_eq!(namespace.settings(), before);
}

#[test]
fn confirmed_plan_is_kept() {
    let Some(namespace) = Namespace::new("what_is_confirmed") else { return };
    let before = namespace.settings();
    let root = namespace.directory.path().join("root");
    fs::create_dir(&root).unwrap();
    let keep = ["--persist", "--root", root.to_str().unwrap()];
    run(namespace.apply(&keep).args(["--revert-after", "1h"])).good();
    // An unconfirmed plan is not persisted, and refuses further plans.
    assert!(!root.join("etc").exists());
    let twice = run(namespace.apply(&["--rtt", "400ms"]));
    assert!(twice.code != 0, "{twice:?}");
    let confirmed = run(namespace.host(&["tune", "--confirm", "--json"])).good().json;
    assert!(confirmed["confirmed"].as_u64().unwrap() > 8, "{confirmed}");
    assert_ne!(namespace.settings(), before);
    let sysctls = fs::read_to_string(root.join("etc/sysctl.d/99-zz-penstock.conf")).unwrap();
    assert!(sysctls.contains("net.ipv4.tcp_wmem = 4096 16384 200278016\n"), "{sysctls}");
    let unit = fs::read_to_string(root.join("etc/systemd/system/penstock-host.service")).unwrap();
    assert!(unit.contains("host at-boot /etc/penstock/host.json"), "{unit}");
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/penstock-host.service");
    assert_eq!(
        fs::read_link(wanted).unwrap(),
        Path::new("/etc/systemd/system/penstock-host.service")
    );

    // The boot unit sets values anew: after a restart a device has its defaults.
    namespace.ip("link set ve0 mtu 1500");
    let list = root.join("etc/penstock/host.json");
    run(namespace.host(&["at-boot", list.to_str().unwrap()])).good();
    assert!(namespace.ip("link show ve0").contains("mtu 9000"));

    let restored = namespace.restore().good().json;
    assert_eq!(restored["files"].as_array().unwrap().len(), 4, "{restored}");
    assert_eq!(namespace.settings(), before);
    let left = text(Command::new("find").arg(&root).args(["-type", "f", "-o", "-type", "l"]));
    assert_eq!(left, "");
    // The guard of an hour has nothing left to do.
    end_guards(&namespace);
}

/// Kills the revert guards of this state directory.
fn end_guards(namespace: &Namespace) {
    let state = format!("PENSTOCK_STATE={}", namespace.state().display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let ours = environment.split(|byte| *byte == 0).any(|one| one == state.as_bytes());
        let number = entry.file_name().to_string_lossy().parse::<i32>().ok();
        if let Some(process) = number.filter(|_| ours).and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
    }
}

/// A rule with a write that the kernel refuses is undone; the others are applied.
#[test]
fn refused_rule_is_undone_alone() {
    let Some(namespace) = Namespace::new("a_rule_that_is_refused") else { return };
    let before = namespace.settings();
    // Without CAP_NET_ADMIN devices cannot be changed, but sysctls of the namespace can.
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{}", namespace.name));
    command.args(["setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-net_admin"]);
    command.arg(PENSTOCK).args(["host", "tune", "--apply", "--also", "mtu", "--json"]).args(GOAL);
    let done = run(command.env("PENSTOCK_STATE", namespace.state()));
    assert_eq!(done.code, 3, "{done:?}");
    let outcomes = done.json["outcomes"].as_array().unwrap();
    let of = |rule: &str| outcomes.iter().find(|outcome| outcome["rule"] == rule).unwrap();
    assert!(of("mtu")["error"].as_str().unwrap().contains("ve0 mtu"), "{done:?}");
    // The rule's other setting, which was written, is restored.
    let probing = namespace.inside("cat", "/proc/sys/net/ipv4/tcp_mtu_probing");
    assert_eq!(probing.trim(), "0");
    assert!(of("slow-start-after-idle")["error"].is_null(), "{done:?}");
    assert!(namespace.ip("link show ve0").contains("mtu 1400"));
    namespace.restore().good();
    assert_eq!(namespace.settings(), before);
}
