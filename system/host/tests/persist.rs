//! Persisted settings: files that apply a plan at boot and are removed or restored with it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use penstock_host::apply::{ApplyOptions, TunableStore, apply};
use penstock_host::change::{Change, Tunable};
use penstock_host::journal::{PersistRequest, TuningJournal};
use penstock_host::persist::{PersistError, PersistReport, persist};
use penstock_host::plan::{Step, TuningPlan};
use penstock_host::restore::{Restored, restore};

const SYSCTLS: &str = "etc/sysctl.d/99-zz-penstock.conf";
const WMEM: &str = "net.ipv4.tcp_wmem";
const SWAP: &str = "vm.swappiness";

/// Simulated sysctls; writing one of a pair zeroes the other (mm/page-writeback.c).
struct Kernel(BTreeMap<String, String>);

impl Kernel {
    fn new() -> Self {
        let at_start = [
            (WMEM, "4096 16384 4194304"),
            (SWAP, "60"),
            ("vm.dirty_bytes", "0"),
            ("vm.dirty_ratio", "20"),
            ("vm.dirty_background_bytes", "0"),
            ("vm.dirty_background_ratio", "10"),
        ];
        Self(at_start.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    fn set(&mut self, key: &str, value: &str) {
        if let Some(other) = key.strip_suffix("bytes").map(|pair| format!("{pair}ratio")) {
            self.0.insert(other, "0".into());
        } else if let Some(other) = key.strip_suffix("ratio").map(|pair| format!("{pair}bytes")) {
            self.0.insert(other, "0".into());
        }
        self.0.insert(key.to_owned(), value.to_owned());
    }

    /// State after boot: defaults, then the persisted files.
    fn started(root: &Path) -> Self {
        let mut kernel = Self::new();
        for line in fs::read_to_string(root.join(SYSCTLS)).unwrap_or_default().lines() {
            if let Some((key, value)) = line.split_once(" = ") {
                kernel.set(key, value);
            }
        }
        kernel
    }
}

impl TunableStore for Kernel {
    fn read(&mut self, tunable: &Tunable) -> io::Result<String> {
        self.0.get(&tunable.to_string()).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, tunable: &Tunable, value: &str) -> io::Result<()> {
        self.set(&tunable.to_string(), value);
        Ok(())
    }
}

/// A machine with a journal and a directory for the files.
struct Site {
    _state: tempfile::TempDir,
    journal: TuningJournal,
    root: tempfile::TempDir,
    kernel: Kernel,
    boot: u32,
}

impl Site {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let journal = TuningJournal::open(state.path(), None).unwrap();
        let root = tempfile::tempdir().unwrap();
        Self { _state: state, journal, root, kernel: Kernel::new(), boot: 1 }
    }

    fn apply(&mut self, rule: &'static str, changes: &[(&str, &str)]) {
        let changes = changes
            .iter()
            .map(|(key, to)| Change::new(Tunable::sysctl(key), self.kernel.0[*key].clone(), *to))
            .collect();
        let steps = vec![Step { rule, changes, interrupts: false }];
        let boot_id = self.boot.to_string();
        let how =
            ApplyOptions { id: format!("{boot_id}{rule}"), boot_id, ..ApplyOptions::default() };
        let plan = TuningPlan { steps, left: Vec::new() };
        let done = apply(&plan, &how, &self.journal, &mut self.kernel, &mut |_| {}).unwrap();
        assert_eq!(done[0].error, None);
    }

    fn keep(&self, rules: &[&str]) -> Result<PersistReport, PersistError> {
        let rules = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let keep = PersistRequest { below: self.root.path().to_owned(), rules };
        persist(&self.journal, &self.boot.to_string(), &keep, Path::new("/usr/bin/penstock"))
    }

    fn restart(&mut self) {
        self.kernel = Kernel::started(self.root.path());
        self.boot += 1;
    }

    fn restore(&mut self) -> Restored {
        restore(&self.journal, &self.boot.to_string(), None, &mut self.kernel).unwrap()
    }

    fn file(&self, path: &str) -> PathBuf {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

#[test]
fn persisted_settings_apply_at_boot() {
    let mut site = Site::new();
    site.apply(
        "dirty-pages",
        &[
            ("vm.dirty_background_bytes", "1073741824"),
            ("vm.dirty_background_ratio", "0"),
            ("vm.dirty_bytes", "4294967296"),
            ("vm.dirty_ratio", "0"),
        ],
    );
    site.apply("swappiness", &[(SWAP, "0")]);
    let applied = site.kernel.0.clone();
    site.keep(&["dirty-pages", "swappiness"]).unwrap();
    site.restart();
    assert_eq!(site.kernel.0, applied);
    assert!(site.restore().is_whole());
    assert_eq!(site.kernel.0, Kernel::new().0);
}

#[test]
fn only_rule_changes_are_persisted() {
    let mut site = Site::new();
    site.apply("swappiness", &[(SWAP, "10")]);
    site.apply("tcp-wmem", &[(WMEM, "1 2 3")]);
    assert_eq!(site.keep(&["tcp-wmem"]).unwrap().settings, [WMEM]);
    // A second time, with the settings persisted already.
    assert_eq!(site.keep(&["swappiness"]).unwrap().settings, [SWAP, WMEM]);
    assert!(site.keep(&["tcp-rmem"]).unwrap().overruled_by.is_empty());
    let site = Site::new();
    assert_eq!(site.keep(&["tcp-rmem"]).unwrap(), PersistReport::default());
}

#[test]
fn restore_after_reboot_undoes_all_plans() {
    let mut site = Site::new();
    site.apply("tcp-wmem", &[(WMEM, "10 10 10")]);
    site.apply("swappiness", &[(SWAP, "10")]);
    site.apply("tcp-wmem", &[(WMEM, "400 400 400")]);
    site.keep(&["tcp-wmem"]).unwrap();
    site.restart();
    assert_eq!(site.kernel.0[WMEM], "400 400 400");
    // Changed by another program since the restart.
    site.kernel.set(SWAP, "77");
    let restored = site.restore();
    assert_eq!(
        (restored.put_back.as_slice(), restored.ended_with_boot),
        ([WMEM.into()].as_slice(), 1)
    );
    assert_eq!(site.kernel.0[WMEM], "4096 16384 4194304");
    assert_eq!(site.kernel.0[SWAP], "77");
    assert_eq!(fs::read_dir(site.root.path()).unwrap().count(), 0, "directories go, too");
}

#[test]
fn plan_after_reboot_extends_persisted() {
    let mut site = Site::new();
    site.apply("tcp-wmem", &[(WMEM, "10 10 10")]);
    site.keep(&["tcp-wmem"]).unwrap();
    site.restart();
    site.apply("swappiness", &[(SWAP, "10")]);
    assert_eq!(site.keep(&["swappiness"]).unwrap().settings, [WMEM, SWAP]);
    site.restart();
    assert_eq!((site.kernel.0[WMEM].as_str(), site.kernel.0[SWAP].as_str()), ("10 10 10", "10"));
    site.restore();
    assert_eq!(site.kernel.0, Kernel::new().0);
    assert!(!site.root.path().join(SYSCTLS).exists());
}

#[test]
fn unpersisted_plan_stays_unpersisted() {
    let mut site = Site::new();
    site.apply("tcp-wmem", &[(WMEM, "5 5 5")]);
    site.keep(&["tcp-wmem"]).unwrap();
    // Another value, which is not persisted and ends with the restart.
    site.apply("tcp-wmem", &[(WMEM, "7 7 7")]);
    site.restart();
    assert_eq!(site.kernel.0[WMEM], "5 5 5");
    site.apply("swappiness", &[(SWAP, "10")]);
    assert_eq!(site.keep(&["swappiness"]).unwrap().settings, [WMEM, SWAP]);
    site.restart();
    assert_eq!(site.kernel.0[WMEM], "5 5 5");
    site.restore();
    assert_eq!(site.kernel.0, Kernel::new().0);
}

#[test]
fn edited_file_is_saved_and_restored() {
    let mut site = Site::new();
    let file = site.file(SYSCTLS);
    fs::write(&file, "vm.swappiness = 33\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    site.apply("tcp-wmem", &[(WMEM, "1 2 3")]);
    site.keep(&["tcp-wmem"]).unwrap();
    let theirs = fs::read_to_string(&file).unwrap() + "kernel.pid_max = 99999\n";
    fs::write(&file, &theirs).unwrap();
    let restored = site.restore();
    assert_eq!(fs::read_to_string(&file).unwrap(), "vm.swappiness = 33\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(restored.files_saved.len(), 1);
    assert_eq!(fs::read_to_string(&restored.files_saved[0]).unwrap(), theirs);
}

#[test]
fn failed_restore_is_not_persisted() {
    let mut site = Site::new();
    site.apply("tcp-wmem", &[(WMEM, "1 2 3")]);
    let file = site.file(SYSCTLS);
    fs::write(&file, [0xFF, 0xFE]).unwrap();
    assert!(site.keep(&["tcp-wmem"]).unwrap_err().to_string().contains("no text file"));
    fs::remove_file(&file).unwrap();
    symlink("/dev/null", &file).unwrap();
    assert!(site.keep(&["tcp-wmem"]).unwrap_err().to_string().contains("no text file"));
    assert!(site.restore().is_whole());
    assert_eq!(fs::read_link(&file).unwrap(), Path::new("/dev/null"));
}

#[test]
fn overriding_files_are_named() {
    let mut site = Site::new();
    site.apply("tcp-wmem", &[(WMEM, "1 2 3")]);
    let other = "# a comment\n-net/ipv4/tcp_wmem = 4096  16384 9\n";
    fs::write(site.file("etc/sysctl.d/10-early.conf"), other).unwrap();
    fs::write(site.file("usr/lib/sysctl.d/zzz.conf"), other).unwrap();
    fs::write(site.file("etc/sysctl.conf"), "net.ipv4.tcp_wmem=1\t2 3\nvm.swappiness=1").unwrap();
    let lasting = site.keep(&["tcp-wmem"]).unwrap();
    let [line] = lasting.overruled_by.as_slice() else { panic!("{lasting:?}") };
    assert!(
        line.ends_with("usr/lib/sysctl.d/zzz.conf:2: net.ipv4.tcp_wmem = 4096 16384 9"),
        "{line}"
    );
}

#[test]
fn unit_quotes_program_path() {
    let mut site = Site::new();
    let tunable = Tunable::Device { device: "eth0".into(), setting: "mtu".into() };
    site.kernel.0.insert(tunable.to_string(), "1500".into());
    let changes = vec![Change::new(tunable, "1500", "9000")];
    let plan =
        TuningPlan { steps: vec![Step { rule: "mtu", changes, interrupts: true }], left: vec![] };
    let how = ApplyOptions { id: "1".into(), boot_id: "1".into(), ..ApplyOptions::default() };
    apply(&plan, &how, &site.journal, &mut site.kernel, &mut |_| {}).unwrap();
    let keep = PersistRequest { below: site.root.path().to_owned(), rules: vec!["mtu".into()] };
    let files =
        persist(&site.journal, "1", &keep, Path::new("/opt/bin dir/100%x \"y\"")).unwrap().files;
    assert_eq!(files.len(), 3);
    let unit = fs::read_to_string(&files[1]).unwrap();
    let line = "ExecStart=\"/opt/bin dir/100%%x \\\"y\\\"\" host at-boot /etc/penstock/host.json\n";
    assert!(unit.contains(line), "{unit}");
    let restored = site.restore();
    assert_eq!((restored.files.len(), fs::read_dir(site.root.path()).unwrap().count()), (3, 0));
}
