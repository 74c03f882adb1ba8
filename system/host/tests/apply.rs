//! Apply and restore with injected failures: a refused write at any position leaves a rule complete or undone, and a crash
//! at any write is restored to the exact former state. The simulated tunables depend on each other as in the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use penstock_host::apply::{ApplyOptions, TunableStore, apply};
use penstock_host::change::{Change, Tunable};
use penstock_host::journal::TuningJournal;
use penstock_host::plan::{Step, TuningPlan};
use penstock_host::restore::restore;

type State = BTreeMap<Tunable, String>;

/// Tunables that refuse the write with this number, and record the state before each write.
struct Fragile {
    state: State,
    journal: PathBuf,
    refuse: Option<usize>,
    writes: usize,
    /// The state and the length of the journal before each write.
    moments: Vec<(State, u64)>,
}

impl TunableStore for Fragile {
    fn read(&mut self, tunable: &Tunable) -> io::Result<String> {
        self.state.get(tunable).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write(&mut self, tunable: &Tunable, value: &str) -> io::Result<()> {
        let length = fs::metadata(&self.journal).map_or(0, |facts| facts.len());
        self.moments.push((self.state.clone(), length));
        self.writes += 1;
        if self.refuse == Some(self.writes) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.state.insert(tunable.clone(), value.to_owned());
        // net/core/dev.c, netif_set_gso_max_size: up to 65536 it is the size for IPv4 too.
        if *tunable == device("gso-max-bytes") && value.parse::<u32>().unwrap() <= 65_536 {
            self.state.insert(device("gso-ipv4-max-bytes"), value.to_owned());
        }
        // mm/page-writeback.c: writing one zeroes the other.
        for (one, other) in [("bytes", "ratio"), ("ratio", "bytes")] {
            if *tunable == Tunable::sysctl(&format!("vm.dirty_{one}")) {
                self.state.insert(Tunable::sysctl(&format!("vm.dirty_{other}")), "0".into());
            }
        }
        Ok(())
    }
}

fn device(setting: &str) -> Tunable {
    Tunable::Device { device: "eth0".into(), setting: setting.into() }
}

fn before() -> State {
    [
        (Tunable::sysctl("net.ipv4.tcp_rmem"), "4096 131072 6291456"),
        (Tunable::sysctl("net.ipv4.tcp_wmem"), "4096 16384 4194304"),
        (Tunable::sysctl("net.core.default_qdisc"), "fq_codel"),
        (Tunable::sysctl("vm.dirty_bytes"), "0"),
        (Tunable::sysctl("vm.dirty_ratio"), "20"),
        (device("gso-max-bytes"), "65536"),
        (device("gso-ipv4-max-bytes"), "32000"),
        (Tunable::Qdisc { device: "eth0".into() }, "default"),
    ]
    .map(|(tunable, value)| (tunable, value.to_owned()))
    .into()
}

fn plan() -> TuningPlan {
    let change =
        |tunable: Tunable, to: &str| Change::new(tunable.clone(), before()[&tunable].clone(), to);
    let step = |rule, changes| Step { rule, changes, interrupts: false };
    let sysctl = Tunable::sysctl;
    TuningPlan {
        steps: vec![
            step(
                "tcp",
                vec![
                    change(sysctl("net.ipv4.tcp_rmem"), "4096 131072 500000000"),
                    change(sysctl("net.ipv4.tcp_wmem"), "4096 16384 500000000"),
                ],
            ),
            step("default-qdisc", vec![change(sysctl("net.core.default_qdisc"), "fq")]),
            step("qdisc", vec![change(Tunable::Qdisc { device: "eth0".into() }, "mq")]),
            step(
                "big-tcp",
                vec![
                    change(device("gso-max-bytes"), "185000"),
                    change(device("gso-ipv4-max-bytes"), "150000"),
                ],
            ),
            step(
                "dirty-pages",
                vec![
                    change(sysctl("vm.dirty_bytes"), "4294967296"),
                    change(sysctl("vm.dirty_ratio"), "0"),
                ],
            ),
        ],
        left: Vec::new(),
    }
}

fn how(id: &str) -> ApplyOptions {
    ApplyOptions { id: id.into(), boot_id: "boot".into(), ..ApplyOptions::default() }
}

struct Bench {
    directory: tempfile::TempDir,
    journal: Option<TuningJournal>,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let journal = Some(TuningJournal::open(directory.path(), None).unwrap());
        Self { directory, journal }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    fn settings(&self, state: State, refuse: Option<usize>) -> Fragile {
        Fragile { state, journal: self.path(), refuse, writes: 0, moments: Vec::new() }
    }

    fn apply(&self, settings: &mut Fragile) -> Vec<penstock_host::apply::ApplyOutcome> {
        let journal = self.journal.as_ref().unwrap();
        apply(&plan(), &how("1"), journal, settings, &mut |_| {}).unwrap()
    }

    fn restore(&self, settings: &mut Fragile) -> penstock_host::restore::Restored {
        restore(self.journal.as_ref().unwrap(), "boot", None, settings).unwrap()
    }
}

#[test]
fn apply_and_restore_round_trip() {
    let bench = Bench::new();
    let mut settings = bench.settings(before(), None);
    let outcomes = bench.apply(&mut settings);
    assert!(outcomes.iter().all(|outcome| outcome.error.is_none()), "{outcomes:?}");
    for change in plan().steps.iter().flat_map(|step| &step.changes) {
        assert_eq!(settings.state[&change.tunable], change.to, "{}", change.tunable);
    }
    let restored = bench.restore(&mut settings);
    assert!(restored.failed.is_empty() && restored.plans == 1, "{restored:?}");
    assert_eq!(settings.state, before());
    assert!(!bench.path().exists(), "nothing is left to put back");
    assert_eq!(bench.restore(&mut settings).plans, 0);
}

#[test]
fn refused_write_undoes_its_rule() {
    for refuse in 1..=7 {
        let bench = Bench::new();
        let mut settings = bench.settings(before(), Some(refuse));
        let outcomes = bench.apply(&mut settings);
        assert_eq!(outcomes.iter().filter(|one| one.error.is_some()).count(), 1, "{outcomes:?}");
        for (step, outcome) in plan().steps.iter().zip(&outcomes) {
            for change in &step.changes {
                let want = if outcome.error.is_some() { &change.from } else { &change.to };
                assert_eq!(&settings.state[&change.tunable], want, "{refuse}: {}", change.tunable);
            }
        }
        bench.restore(&mut settings);
        assert_eq!(settings.state, before(), "{refuse}");
    }
}

#[test]
fn crash_at_any_write_is_restored() {
    let bench = Bench::new();
    let mut settings = bench.settings(before(), None);
    bench.apply(&mut settings);
    let whole = fs::read(bench.path()).unwrap();
    let mut moments = std::mem::take(&mut settings.moments);
    moments.push((settings.state.clone(), whole.len() as u64));
    assert!(moments.len() > 7);
    for (state, length) in moments {
        // A torn end is part of a line whose change was not made yet.
        for torn in [0, 1, 7] {
            let bench = Bench::new();
            let next = whole.len().min(length as usize + torn);
            fs::write(bench.path(), &whole[..next]).unwrap();
            let mut after = bench.settings(state.clone(), None);
            let restored = bench.restore(&mut after);
            assert_eq!(after.state, before(), "{length}+{torn}: {restored:?}");
            assert_eq!(restored.journal_cut_bytes > 0, next > length as usize, "{restored:?}");
        }
    }
}

#[test]
fn foreign_changes_are_reported() {
    let bench = Bench::new();
    let mut settings = bench.settings(before(), None);
    bench.apply(&mut settings);
    let rmem = Tunable::sysctl("net.ipv4.tcp_rmem");
    settings.state.insert(rmem.clone(), "4096 131072 1".into());
    settings.state.remove(&Tunable::Qdisc { device: "eth0".into() });
    let restored = bench.restore(&mut settings);
    assert_eq!(restored.changed_by_others, [(rmem.to_string(), "4096 131072 1".to_owned())]);
    assert_eq!(restored.gone, ["eth0 qdisc"]);
    assert_eq!(settings.state[&rmem], before()[&rmem]);
    assert!(!bench.path().exists());
}

#[test]
fn failed_restore_stays_in_journal() {
    let bench = Bench::new();
    let mut settings = bench.settings(before(), None);
    bench.apply(&mut settings);
    struct Stuck(Fragile);
    impl TunableStore for Stuck {
        fn read(&mut self, tunable: &Tunable) -> io::Result<String> {
            self.0.read(tunable)
        }
        fn write(&mut self, tunable: &Tunable, value: &str) -> io::Result<()> {
            match tunable {
                Tunable::Qdisc { .. } => Err(io::ErrorKind::ResourceBusy.into()),
                tunable => self.0.write(tunable, value),
            }
        }
    }
    let journal = bench.journal.as_ref().unwrap();
    let mut stuck = Stuck(settings);
    let restored = restore(journal, "boot", None, &mut stuck).unwrap();
    assert_eq!(restored.failed.len(), 1, "{restored:?}");
    let mut settings = stuck.0;
    let restored = bench.restore(&mut settings);
    assert!(restored.failed.is_empty() && restored.put_back == ["eth0 qdisc"], "{restored:?}");
    assert_eq!(settings.state, before());
}

#[test]
fn stale_plan_is_not_applied() {
    let bench = Bench::new();
    let mut state = before();
    state.insert(Tunable::sysctl("net.ipv4.tcp_wmem"), "1 2 3".into());
    let mut settings = bench.settings(state.clone(), None);
    let outcomes = bench.apply(&mut settings);
    let error = outcomes[0].error.as_deref().unwrap();
    assert!(error.contains("net.ipv4.tcp_wmem is 1 2 3") && outcomes[0].changed == 0, "{error}");
    bench.restore(&mut settings);
    assert_eq!(settings.state, state);
}

#[test]
fn restore_undoes_both_plans() {
    let bench = Bench::new();
    let mut settings = bench.settings(before(), None);
    bench.apply(&mut settings);
    let tunable = Tunable::sysctl("net.ipv4.tcp_rmem");
    let changes = vec![Change::new(tunable.clone(), "4096 131072 500000000", "4096 131072 7")];
    let second = TuningPlan {
        steps: vec![Step { rule: "tcp", changes, interrupts: false }],
        left: Vec::new(),
    };
    let journal = bench.journal.as_ref().unwrap();
    apply(&second, &how("2"), journal, &mut settings, &mut |_| {}).unwrap();
    // The second alone first.
    restore(journal, "boot", Some("2"), &mut settings).unwrap();
    assert_eq!(settings.state[&tunable], "4096 131072 500000000");
    bench.restore(&mut settings);
    assert_eq!(settings.state, before());
}

#[test]
fn reboot_leaves_nothing_to_restore() {
    let bench = Bench::new();
    let mut settings = bench.settings(before(), None);
    bench.apply(&mut settings);
    let mut fresh = before();
    fresh.insert(Tunable::sysctl("net.ipv4.tcp_rmem"), "set by somebody after the restart".into());
    let mut settings = bench.settings(fresh.clone(), None);
    let restored =
        restore(bench.journal.as_ref().unwrap(), "next boot", None, &mut settings).unwrap();
    assert_eq!((restored.ended_with_boot, settings.writes), (1, 0));
    assert_eq!(settings.state, fresh);
    assert!(!bench.path().exists());
}
