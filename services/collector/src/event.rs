//! Events of the network and of its alerts: a bounded log in memory, persisted by the store.
//!
//! An event is a fact with a time: an alert that fires, an exporter that fell silent, a link that
//! went down. The dashboard marks the log's events in its plots, and alerts are restored from it
//! after a restart.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use utoipa::ToSchema;

/// Most events in memory and in the store; the oldest are dropped first.
pub(crate) const EVENTS_MAX: usize = 10_000;

/// Longest text of an event, in bytes.
const TEXT_BYTES_MAX: usize = 512;

/// Urgency of an event or alert.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information, without a need to act.
    Info,
    /// Needs attention in working hours.
    #[default]
    Warning,
    /// Needs attention at once.
    Critical,
}

impl Severity {
    /// Name in JSON and in logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TelemetryEventKind)]
pub(crate) enum EventKind {
    AlertFiring,
    AlertResolved,
    AlertAcknowledged,
    AlertUnacknowledged,
    ExporterNew,
    ExporterSilent,
    ExporterResumed,
    ExporterRestarted,
    InterfaceDown,
    InterfaceUp,
    CollectorStarted,
    CollectorGap,
}

impl EventKind {
    /// All kinds, those of alerts first.
    pub(crate) const ALL: [Self; 12] = [
        Self::AlertFiring,
        Self::AlertResolved,
        Self::AlertAcknowledged,
        Self::AlertUnacknowledged,
        Self::ExporterNew,
        Self::ExporterSilent,
        Self::ExporterResumed,
        Self::ExporterRestarted,
        Self::InterfaceDown,
        Self::InterfaceUp,
        Self::CollectorStarted,
        Self::CollectorGap,
    ];

    /// Name of the kind in JSON.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::AlertFiring => "alert_firing",
            Self::AlertResolved => "alert_resolved",
            Self::AlertAcknowledged => "alert_acknowledged",
            Self::AlertUnacknowledged => "alert_unacknowledged",
            Self::ExporterNew => "exporter_new",
            Self::ExporterSilent => "exporter_silent",
            Self::ExporterResumed => "exporter_resumed",
            Self::ExporterRestarted => "exporter_restarted",
            Self::InterfaceDown => "interface_down",
            Self::InterfaceUp => "interface_up",
            Self::CollectorStarted => "collector_started",
            Self::CollectorGap => "collector_gap",
        }
    }
}

/// An event of the network, an alert or the collector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = TelemetryEvent)]
pub(crate) struct TelemetryEvent {
    /// Sequence number: events of one collector are in this order.
    #[serde(default)]
    pub(crate) id: u64,
    /// Time in seconds since 1970.
    pub(crate) at_s: f64,
    /// Change that it reports.
    pub(crate) kind: EventKind,
    /// info, warning or critical.
    pub(crate) severity: Severity,
    /// Name of the alert, key of the exporter or interface; empty for the collector itself.
    pub(crate) subject: String,
    /// Name of the exporter or interface, if `subject` is its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Link of the topology that the event concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) link: Option<String>,
    /// One sentence for operators.
    pub(crate) text: String,
}

impl TelemetryEvent {
    /// Creates an event without text and link.
    pub(crate) fn new(at_s: f64, kind: EventKind, severity: Severity, subject: &str) -> Self {
        let (subject, text) = (subject.to_owned(), String::new());
        Self { id: 0, at_s, kind, severity, subject, name: None, link: None, text }
    }

    /// Sets the text, cut to [`TEXT_BYTES_MAX`].
    pub(crate) fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self.text.truncate(self.text.floor_char_boundary(TEXT_BYTES_MAX));
        self
    }
}

/// Bounded log of events.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    events: VecDeque<TelemetryEvent>,
    next: u64,
    store: Option<UnboundedSender<TelemetryEvent>>,
}

impl EventLog {
    /// Loads the stored events, oldest first, and sends later ones to the store.
    pub(crate) fn restore(
        &mut self,
        events: Vec<TelemetryEvent>,
        store: Option<UnboundedSender<TelemetryEvent>>,
    ) {
        self.next = events.iter().map(|event| event.id + 1).max().unwrap_or(0);
        self.events = events.into();
        self.store = store;
    }

    /// Numbers and appends an event.
    pub(crate) fn push(&mut self, mut event: TelemetryEvent) {
        event.id = self.next;
        self.next += 1;
        if let Some(store) = &self.store {
            // At the end of the service the store may be closed already.
            let _ = store.send(event.clone());
        }
        self.events.push_back(event);
        while self.events.len() > EVENTS_MAX {
            self.events.pop_front();
        }
    }

    /// Iterates over the events, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &TelemetryEvent> {
        self.events.iter()
    }

    /// Stops sending events to the store.
    pub(crate) fn close(&mut self) {
        self.store = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_s: f64) -> TelemetryEvent {
        TelemetryEvent::new(at_s, EventKind::ExporterNew, Severity::Info, "192.0.2.1").text("new")
    }

    #[test]
    fn log_is_bounded_and_numbered() {
        let mut log = EventLog::default();
        log.restore(vec![TelemetryEvent { id: 41, ..event(1.0) }], None);
        for at in 0..EVENTS_MAX {
            log.push(event(at as f64));
        }
        assert_eq!(log.iter().count(), EVENTS_MAX);
        assert_eq!(log.iter().next().unwrap().id, 42);
        let numbers: Vec<_> = log.iter().map(|event| event.id).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    }

    #[test]
    fn words_are_those_of_json() {
        for kind in [EventKind::AlertFiring, EventKind::InterfaceDown, EventKind::CollectorGap] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
        let text = event(0.0).text("é".repeat(TEXT_BYTES_MAX)).text;
        assert!(text.len() <= TEXT_BYTES_MAX && text.starts_with('é'));
    }
}
