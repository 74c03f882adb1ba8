//! Detects changes of the network as events: exporters that stop sending, restart or resume,
//! interfaces that go down or up, and gaps in the collector's own seconds.
//!
//! [`Watcher`] is pure: a snapshot and a time in, events out. [`run`] is the thread that takes the
//! snapshots.

use std::collections::HashMap;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use penstock_flows::exporter::Exporter;

use crate::api::interface_states;
use crate::directory::exporter_key;
use crate::event::{EventKind, Severity, TelemetryEvent};
use crate::shard::ShardState;
use crate::shared::{Shared, unix_now};

/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(2);

/// Longest sleep before a check for the end of the service.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// Silence after which an exporter counts as silent.
pub(crate) const SILENT_S: f64 = 60.0;

/// Time after the start in which new exporters are no events.
const SETTLING_S: f64 = 120.0;

/// Delay of a snapshot beyond which the collector itself stood still.
const GAP_S: f64 = 5.0;

/// Most events of one snapshot; a last event counts the others.
const EVENTS_PER_SNAPSHOT_MAX: usize = 50;

/// State of an exporter in a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct ExporterState {
    pub(crate) key: String,
    pub(crate) name: String,
    /// Seconds since its last datagram.
    pub(crate) silent_s: f64,
    pub(crate) restarts: u64,
}

/// State of an interface in a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct InterfaceSnapshot {
    pub(crate) key: String,
    pub(crate) name: String,
    /// Link of the topology at the interface.
    pub(crate) link: Option<String>,
    pub(crate) up: Option<bool>,
}

/// State of all exporters and interfaces at one time.
#[derive(Debug, Clone, Default)]
pub(crate) struct NetworkSnapshot {
    pub(crate) exporters: Vec<ExporterState>,
    pub(crate) interfaces: Vec<InterfaceSnapshot>,
}

#[derive(Debug)]
struct LastState {
    silent: bool,
    restarts: u64,
}

/// Detects changes of exporters and interfaces between snapshots.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    exporters: HashMap<String, LastState>,
    interfaces: HashMap<String, bool>,
    /// Seconds since the start.
    age_s: f64,
}

impl Watcher {
    /// Events between the last snapshot and this one, `passed_s` later by the monotonic clock.
    pub(crate) fn step(
        &mut self,
        wall_s: f64,
        passed_s: f64,
        snapshot: &NetworkSnapshot,
    ) -> Vec<TelemetryEvent> {
        self.age_s += passed_s;
        let mut events = Vec::new();
        if passed_s > SNAPSHOT_INTERVAL.as_secs_f64() + GAP_S {
            let text = format!(
                "the collector stood still for {passed_s:.0} s; figures of that time are incomplete"
            );
            let kind = EventKind::CollectorGap;
            events.push(TelemetryEvent::new(wall_s, kind, Severity::Critical, "").text(text));
        }
        self.exporters(wall_s, snapshot, &mut events);
        self.interfaces(wall_s, snapshot, &mut events);
        if events.len() > EVENTS_PER_SNAPSHOT_MAX {
            let more = events.len() - EVENTS_PER_SNAPSHOT_MAX;
            let last = events[EVENTS_PER_SNAPSHOT_MAX].clone();
            events.truncate(EVENTS_PER_SNAPSHOT_MAX);
            events.push(
                TelemetryEvent { name: None, link: None, ..last }
                    .text(format!("and {more} more changes")),
            );
        }
        events
    }

    fn exporters(
        &mut self,
        wall_s: f64,
        snapshot: &NetworkSnapshot,
        events: &mut Vec<TelemetryEvent>,
    ) {
        let mut gone: HashMap<String, LastState> = std::mem::take(&mut self.exporters);
        for one in &snapshot.exporters {
            let silent = one.silent_s > SILENT_S;
            let mut add = |kind, severity, text: String| {
                let event = TelemetryEvent::new(wall_s, kind, severity, &one.key).text(text);
                events.push(TelemetryEvent { name: Some(one.name.clone()), ..event });
            };
            match gone.remove(&one.key) {
                None if self.age_s > SETTLING_S && !silent => {
                    let text = format!("{} sends telemetry for the first time", one.name);
                    add(EventKind::ExporterNew, Severity::Info, text);
                }
                None => {}
                Some(before) => {
                    if silent && !before.silent {
                        let text = format!("{} sent nothing for {:.0} s", one.name, one.silent_s);
                        add(EventKind::ExporterSilent, Severity::Warning, text);
                    }
                    if !silent && before.silent {
                        let text = format!("{} sends telemetry again", one.name);
                        add(EventKind::ExporterResumed, Severity::Info, text);
                    }
                    if one.restarts > before.restarts {
                        let text = format!("{} restarted", one.name);
                        add(EventKind::ExporterRestarted, Severity::Info, text);
                    }
                }
            }
            self.exporters.insert(one.key.clone(), LastState { silent, restarts: one.restarts });
        }
    }

    fn interfaces(
        &mut self,
        wall_s: f64,
        snapshot: &NetworkSnapshot,
        events: &mut Vec<TelemetryEvent>,
    ) {
        let mut gone = std::mem::take(&mut self.interfaces);
        for one in &snapshot.interfaces {
            let before = gone.remove(&one.key);
            // An interface without a report keeps its last state.
            let Some(up) = one.up.or(before) else { continue };
            if before.is_some_and(|before| before != up) {
                let (kind, severity, word) = match up {
                    true => (EventKind::InterfaceUp, Severity::Info, "up"),
                    false => (EventKind::InterfaceDown, Severity::Critical, "down"),
                };
                let text = match &one.link {
                    Some(link) => format!("{} is {word} (link {link})", one.name),
                    None => format!("{} is {word}", one.name),
                };
                let event = TelemetryEvent::new(wall_s, kind, severity, &one.key).text(text);
                let name = Some(one.name.clone());
                events.push(TelemetryEvent { name, link: one.link.clone(), ..event });
            }
            self.interfaces.insert(one.key.clone(), up);
        }
    }
}

/// Takes snapshots until the service ends.
pub(crate) fn run(shared: &Shared) {
    let started = TelemetryEvent::new(unix_now(), EventKind::CollectorStarted, Severity::Info, "");
    shared.events_log().push(started.text("the collector started"));
    let mut watcher = Watcher::default();
    let mut last = Instant::now();
    while wait(shared, last + SNAPSHOT_INTERVAL) {
        let passed_s = last.elapsed().as_secs_f64();
        last = Instant::now();
        let events = watcher.step(unix_now(), passed_s, &snapshot(shared));
        let mut log = shared.events_log();
        events.into_iter().for_each(|event| log.push(event));
    }
}

/// Sleeps until the given time; returns false when the service ends.
fn wait(shared: &Shared, until: Instant) -> bool {
    loop {
        if shared.stopping.load(Ordering::Relaxed) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SLEEP_MAX));
    }
}

fn snapshot(shared: &Shared) -> NetworkSnapshot {
    let now = shared.now();
    let exporters = {
        let directory = shared.directory();
        let of_exporter = |one: &Exporter| {
            let key = exporter_key(&one.key);
            let entry = directory.get(one.id);
            let name = entry.and_then(|entry| entry.name.as_deref()).unwrap_or(&key).to_owned();
            let silent_s = now.saturating_sub(one.last_seen).as_secs_f64();
            let restarts = one.sequence.restarts.max(one.reboots);
            ExporterState { key, name, silent_s, restarts }
        };
        let of_shard = |state: MutexGuard<'_, ShardState>| -> Vec<_> {
            let exporters = state.intake.exporters().iter();
            exporters.filter(|one| one.is_established()).map(of_exporter).collect()
        };
        shared.shard_states().flat_map(of_shard).collect()
    };
    NetworkSnapshot { exporters, interfaces: interface_states(shared) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(silent_s: f64, restarts: u64, up: Option<bool>) -> NetworkSnapshot {
        let (key, name) = ("192.0.2.1".to_owned(), "dtn1".to_owned());
        NetworkSnapshot {
            exporters: vec![ExporterState { key, name, silent_s, restarts }],
            interfaces: vec![InterfaceSnapshot {
                key: "192.0.2.1:2".to_owned(),
                name: "dtn1 eth0".to_owned(),
                link: Some("a--b".to_owned()),
                up,
            }],
        }
    }

    #[test]
    fn changes_become_events_once() {
        let mut watcher = Watcher::default();
        let mut kinds = Vec::new();
        for (silent_s, restarts, up) in [
            (1.0, 0, Some(true)),
            (61.0, 0, None),
            (63.0, 0, Some(false)),
            (65.0, 0, Some(false)),
            (0.5, 1, Some(true)),
        ] {
            let events = watcher.step(100.0, 2.0, &snapshot(silent_s, restarts, up));
            kinds.push(events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>());
        }
        let expected: [&[&str]; 5] = [
            &[],
            &["exporter_silent"],
            &["interface_down"],
            &[],
            &["exporter_resumed", "exporter_restarted", "interface_up"],
        ];
        assert_eq!(kinds, expected);
    }

    #[test]
    fn standstill_is_one_event() {
        let mut watcher = Watcher::default();
        watcher.step(100.0, 2.0, &snapshot(0.0, 0, Some(true)));
        let events = watcher.step(114.0, 14.0, &snapshot(0.0, 0, Some(true)));
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].kind, EventKind::CollectorGap);
        assert!(events[0].text.contains("14 s"), "{events:?}");
    }

    #[test]
    fn flood_of_changes_is_bounded() {
        let mut watcher = Watcher::default();
        let many = |up| {
            let mut all = snapshot(0.0, 0, Some(up));
            let first = all.interfaces[0].clone();
            all.interfaces = (0..1_000)
                .map(|at| InterfaceSnapshot { key: format!("x:{at}"), ..first.clone() })
                .collect();
            all
        };
        watcher.step(1.0, 2.0, &many(true));
        let events = watcher.step(3.0, 2.0, &many(false));
        assert_eq!(events.len(), EVENTS_PER_SNAPSHOT_MAX + 1);
        assert_eq!(events.last().unwrap().text, "and 950 more changes");
    }
}
