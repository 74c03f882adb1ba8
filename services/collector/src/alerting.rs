//! The thread that evaluates alerts each second, and the task that calls webhooks.

use std::collections::HashMap;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_http::{Url, client};
use serde_json::json;
use tokio::sync::mpsc::{Receiver, Sender};

use crate::alert::{Alert, AlertChange, AlertFigure, AlertScope};
use crate::api::link_share;
use crate::directory::exporter_key;
use crate::event::{EventKind, TelemetryEvent};
use crate::query::{By, Query};
use crate::query_executor::{QueryResult, StoredRows, TimeBuckets, execute};
use crate::second::Second;
use crate::shard::ShardState;
use crate::shared::{Shared, unix_now};

/// Seconds over which figures are averaged.
const MEAN_SECONDS: usize = 10;

/// Time between two evaluations.
const EVALUATION_INTERVAL: Duration = Duration::from_secs(1);

/// Most queued calls of webhooks; further ones count as failed.
pub(crate) const CALLS_MAX: usize = 100;

/// Pauses before the retries of a failed call.
const RETRY_PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(25)];

/// Fewest datagrams from which a loss is computed.
const DATAGRAMS_MIN: u64 = 20;

/// A pending call of a webhook.
#[derive(Debug)]
pub(crate) struct Call {
    url: Url,
    body: Vec<u8>,
}

/// Evaluates alerts until the service ends.
pub(crate) fn run(shared: &Shared, calls: &Sender<Call>) {
    while !shared.stopping.load(Ordering::Relaxed) {
        evaluate(shared, calls);
        // In short sleeps, so that the end of the service does not wait.
        for _ in 0..10 {
            if !shared.stopping.load(Ordering::Relaxed) {
                std::thread::sleep(EVALUATION_INTERVAL / 10);
            }
        }
    }
}

fn evaluate(shared: &Shared, calls: &Sender<Call>) {
    let seconds: Vec<_> = shared.live().seconds().rev().take(MEAN_SECONDS).cloned().collect();
    let (now, wall_s) = (shared.now(), unix_now());
    let rules: Vec<_> = shared.alert_states().iter().map(|alert| alert.rule.clone()).collect();
    let mut figures = AlertFigures { shared, seconds: &seconds, answers: HashMap::new() };
    for (at, rule) in rules.iter().enumerate() {
        let value = figures.value(rule.watched, rule.of, rule.key.as_deref());
        let mut states = shared.alert_states();
        let alert = &mut states[at];
        if let Some(change) = alert.step(now, wall_s, value) {
            report_change(shared, alert, change, wall_s, calls);
        }
    }
}

/// Builds the event of a change.
fn event_of(alert: &Alert, change: AlertChange, wall_s: f64) -> TelemetryEvent {
    let rule = &alert.rule;
    let shown = |value: f64| match rule.unit() {
        "bit/s" => penstock_units::BitRate(value as u64).to_string(),
        "s" => format!("{value:.0} s"),
        _ => format!("{:.1} %", value * 100.0),
    };
    let value = shown(alert.value.unwrap_or_default());
    let (kind, text) = match change {
        AlertChange::Fires => {
            let side = if rule.above { "above" } else { "below" };
            (EventKind::AlertFiring, format!("{value}, {side} {}", shown(rule.threshold)))
        }
        AlertChange::Ends => (EventKind::AlertResolved, format!("back at {value}")),
    };
    let link = rule.key.clone().filter(|_| rule.of == AlertScope::Link);
    TelemetryEvent {
        link,
        ..TelemetryEvent::new(wall_s, kind, rule.severity, &rule.name).text(text)
    }
}

fn report_change(
    shared: &Shared,
    alert: &Alert,
    change: AlertChange,
    wall_s: f64,
    calls: &Sender<Call>,
) {
    let rule = &alert.rule;
    let (value, unit) = (alert.value.unwrap_or_default(), rule.unit());
    shared.events_log().push(event_of(alert, change, wall_s));
    let state = match change {
        AlertChange::Fires => "firing",
        AlertChange::Ends => "resolved",
    };
    match change {
        AlertChange::Fires => {
            tracing::warn!(
                alert = rule.name,
                value,
                unit,
                threshold = rule.threshold,
                "alert fires"
            );
        }
        AlertChange::Ends => tracing::info!(alert = rule.name, value, unit, "alert ends"),
    }
    let Some(url) = rule.webhook.clone() else { return };
    let body = json!({
        "alert": rule.name,
        "state": state,
        "severity": rule.severity.as_str(),
        "value": value,
        "unit": unit,
        "threshold": rule.threshold,
        "key": rule.key,
        "at_s": wall_s,
    });
    if calls.try_send(Call { url, body: body.to_string().into_bytes() }).is_err() {
        shared.webhooks_failed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Figures of the last seconds; each query runs once.
struct AlertFigures<'a> {
    shared: &'a Shared,
    seconds: &'a [std::sync::Arc<Second>],
    answers: HashMap<By, QueryResult>,
}

impl AlertFigures<'_> {
    fn value(&mut self, watched: AlertFigure, of: AlertScope, key: Option<&str>) -> Option<f64> {
        match (watched, of) {
            (AlertFigure::Loss, _) => self.exporters(key, |exporter| {
                let sent = exporter.sequence.received + exporter.sequence.lost;
                (sent >= DATAGRAMS_MIN).then(|| exporter.loss())
            }),
            (AlertFigure::Silence, _) => {
                let now = self.shared.now();
                self.exporters(key, |exporter| {
                    let known = exporter.is_established() || key.is_some();
                    known.then(|| now.saturating_sub(exporter.last_seen).as_secs_f64())
                })
                // An exporter that never sent a datagram is silent since the start.
                .or_else(|| key.map(|_| now.as_secs_f64()))
            }
            (AlertFigure::Unlabelled, _) => {
                let (labelled, all) =
                    self.sums(By::Owner, |key| !matches!(key, "unlabelled" | "untrusted"))?;
                (all > 0.0).then(|| 1.0 - labelled / all)
            }
            (AlertFigure::Share, AlertScope::Link) => link_share(self.shared, key?),
            (AlertFigure::Rate, AlertScope::Link) => None,
            (AlertFigure::Share, AlertScope::By(by)) => {
                let (own, all) = self.sums(by, |other| Some(other) == key)?;
                (all > 0.0).then(|| own / all)
            }
            (AlertFigure::Rate, AlertScope::By(by)) => {
                let seconds: f64 = self.seconds.iter().map(|second| second.length_s).sum();
                let (own, _) = self.sums(by, |other| by == By::Total || Some(other) == key)?;
                Some(own * 8.0 / seconds)
            }
        }
    }

    /// Largest value of `of` among the selected exporters.
    fn exporters(
        &self,
        key: Option<&str>,
        of: impl Fn(&penstock_flows::exporter::Exporter) -> Option<f64>,
    ) -> Option<f64> {
        let directory = self.shared.directory();
        let meant = |exporter: &&penstock_flows::exporter::Exporter| {
            let Some(key) = key else { return true };
            let name = directory.get(exporter.id).and_then(|entry| entry.name.clone());
            name.as_deref() == Some(key) || exporter_key(&exporter.key) == key
        };
        let of_shard = |state: MutexGuard<'_, ShardState>| {
            state.intake.exporters().iter().filter(meant).filter_map(&of).reduce(f64::max)
        };
        self.shared.shard_states().filter_map(of_shard).reduce(f64::max)
    }

    /// Bytes of the selected keys, and of all.
    fn sums(&mut self, by: By, meant: impl Fn(&str) -> bool) -> Option<(f64, f64)> {
        // Unmeasured time gives no figure.
        if self.seconds.iter().all(|second| second.length_s <= 0.0) {
            return None;
        }
        let start_s = self.seconds.iter().map(|second| second.at_s).min()?;
        let end_s = self.seconds.iter().map(|second| second.at_s).max()? + 1;
        let span = TimeBuckets { start_s, step_s: end_s - start_s, buckets: 1 };
        let (shared, seconds) = (self.shared, self.seconds);
        let answer = self.answers.entry(by).or_insert_with(|| {
            let query = Query { view: shared.config.combine, ..Query::of(by) };
            execute(shared, &query, span, &StoredRows::default(), seconds.iter().map(|s| &**s), &[])
        });
        let sum = |meant: &dyn Fn(&str) -> bool| {
            answer
                .series
                .iter()
                .filter(|(key, _)| meant(key))
                .map(|(_, cells)| cells[0].bytes)
                .sum()
        };
        Some((sum(&meant), sum(&|_| true)))
    }
}

/// Makes calls one after the other until the channel closes.
pub(crate) async fn call_webhooks(shared: &Shared, mut calls: Receiver<Call>) {
    while let Some(call) = calls.recv().await {
        let mut tries = RETRY_PAUSES.iter();
        while let Err(error) = client::post(&call.url, call.body.clone()).await {
            match tries.next() {
                Some(pause) if !shared.stopping.load(Ordering::Relaxed) => {
                    tokio::time::sleep(*pause).await;
                }
                _ => {
                    shared.webhooks_failed.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!("webhook {}: {error}", call.url);
                    break;
                }
            }
        }
    }
}
