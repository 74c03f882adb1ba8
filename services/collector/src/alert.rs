//! Alerts: rules that map figures to firing and inactive. Pure: values and times in, changes out.
//!
//! A rule fires when its value has been beyond the threshold for some time, and ends when it has
//! been back beyond `clear` for the same time, so that a value that swings around the threshold
//! does not fire at each swing.

use std::time::Duration;

use penstock_http::Url;
use penstock_units::BitRate;
use penstock_units::ParseQuantityError;
use serde::{Deserialize, Deserializer};

use crate::event::{EventKind, Severity, TelemetryEvent};
use crate::query::{By, QueryWordError};

/// Most rules in the configuration.
pub(crate) const RULES_MAX: usize = 100;

/// Default time for which a value must be beyond the threshold.
const PENDING_TIME_DEFAULT: Duration = Duration::from_secs(60);

/// Default of `clear`, relative to the threshold.
const CLEAR_SHARE: f64 = 0.9;

/// Figure that a rule compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AlertFigure {
    /// A rate in bits per second.
    Rate,
    /// A share of all traffic, or of a link's capacity, 0 to 1.
    Share,
    /// Share of an exporter's datagrams that is lost; without a key, of the worst exporter.
    Loss,
    /// Share of all traffic that is unlabelled or untrusted.
    Unlabelled,
    /// Seconds since an exporter's last datagram; without a key, of the most silent exporter.
    Silence,
}

/// Traffic to which a rate or share refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlertScope {
    /// One series of a query.
    By(By),
    /// A link of the topology, in its busier direction.
    Link,
}

/// A rule as in the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertTable {
    name: String,
    kind: AlertFigure,
    by: Option<String>,
    key: Option<String>,
    above: Option<ThresholdValue>,
    below: Option<ThresholdValue>,
    clear: Option<ThresholdValue>,
    r#for: Option<String>,
    #[serde(default)]
    severity: Severity,
    webhook: Option<Url>,
}

/// A number, or text with a unit: 0.2, "300G", "10%", "90s".
#[derive(Debug, Clone, Copy)]
struct ThresholdValue(f64);

impl<'de> Deserialize<'de> for ThresholdValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum ThresholdInput {
            Number(f64),
            Text(String),
        }
        let text = match ThresholdInput::deserialize(deserializer)? {
            ThresholdInput::Number(number) => return Ok(Self(number)),
            ThresholdInput::Text(text) => text,
        };
        let percent = text.strip_suffix('%').and_then(|text| text.trim().parse::<f64>().ok());
        let rate = || text.parse::<BitRate>().ok().map(|rate| rate.0 as f64);
        let time = || penstock_units::parse_duration(&text).ok().map(|time| time.as_secs_f64());
        percent.map(|percent| percent / 100.0).or_else(rate).or_else(time).map(Self).ok_or_else(
            || {
                serde::de::Error::custom(format!(
                    "'{text}' is no threshold: write 0.2, 20%, 300G or 90s"
                ))
            },
        )
    }
}

/// A rule of the configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertRule {
    /// Name of the alert.
    pub name: String,
    /// Figure that it compares.
    pub watched: AlertFigure,
    /// Traffic to which the figure refers.
    pub of: AlertScope,
    /// Key of the series, the link or the exporter.
    pub key: Option<String>,
    /// Value beyond which it fires.
    pub threshold: f64,
    /// True if it fires above the threshold, false if below.
    pub above: bool,
    /// Value beyond which it ends.
    pub clear: f64,
    /// Time for which the value must be beyond either.
    pub after: Duration,
    /// Urgency of its events.
    pub severity: Severity,
    /// Webhook that receives its changes.
    pub webhook: Option<Url>,
}

impl<'de> Deserialize<'de> for AlertRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(AlertTable::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A rule that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("alert '{alert}': {fault}")]
struct AlertRuleError {
    alert: String,
    fault: AlertRuleFault,
}

#[derive(Debug, thiserror::Error)]
enum AlertRuleFault {
    #[error("an alert of this kind has no below: give above")]
    NoBelow,
    #[error("give above or below, one of them")]
    Threshold,
    #[error(transparent)]
    By(#[from] QueryWordError),
    #[error("by and key are missing: write by = \"owner\" and key = \"cms\"")]
    NoScope,
    #[error("this kind takes a key (an exporter) and no by")]
    ForeignScope,
    #[error("clear is on the wrong side of the threshold: set it below above, or above below")]
    Clear,
    #[error("a share is at most 1 (100%)")]
    Share,
    #[error("for: {0}")]
    For(ParseQuantityError),
}

impl AlertRule {
    fn new(table: AlertTable) -> Result<Self, AlertRuleError> {
        let AlertTable { name, kind, by, key, above, below, clear, r#for, severity, webhook } =
            table;
        let wrong = |fault| AlertRuleError { alert: name.clone(), fault };
        let (threshold, above) = match (above, below, kind) {
            (Some(above), None, _) => (above.0, true),
            (None, Some(below), AlertFigure::Rate | AlertFigure::Share) => (below.0, false),
            (None, Some(_), _) => return Err(wrong(AlertRuleFault::NoBelow)),
            (None, None, AlertFigure::Silence) => (60.0, true),
            _ => return Err(wrong(AlertRuleFault::Threshold)),
        };
        let is_share = !matches!(kind, AlertFigure::Rate | AlertFigure::Silence);
        if is_share && !(0.0..=1.0).contains(&threshold) {
            return Err(wrong(AlertRuleFault::Share));
        }
        let of = match by.as_deref() {
            None => AlertScope::By(By::Total),
            Some("link") => AlertScope::Link,
            Some(by) => {
                AlertScope::By(by.parse().map_err(|error: QueryWordError| wrong(error.into()))?)
            }
        };
        let total = of == AlertScope::By(By::Total);
        match (kind, total, &key) {
            (AlertFigure::Rate, true, None) => {}
            (AlertFigure::Rate | AlertFigure::Share, false, Some(_)) => {}
            (AlertFigure::Rate | AlertFigure::Share, ..) => {
                return Err(wrong(AlertRuleFault::NoScope));
            }
            (_, true, _) => {}
            _ => return Err(wrong(AlertRuleFault::ForeignScope)),
        }
        let usual = if above { threshold * CLEAR_SHARE } else { threshold / CLEAR_SHARE };
        let clear = clear.map_or(usual, |clear| clear.0);
        if (above && clear > threshold) || (!above && clear < threshold) {
            return Err(wrong(AlertRuleFault::Clear));
        }
        let after = match (r#for.as_deref(), kind) {
            // Silence is itself a time.
            (None, AlertFigure::Silence) => Duration::ZERO,
            (None, _) => PENDING_TIME_DEFAULT,
            (Some(text), _) => penstock_units::parse_duration(text)
                .map_err(|error| wrong(AlertRuleFault::For(error)))?,
        };
        Ok(Self { watched: kind, of, key, threshold, above, clear, after, severity, webhook, name })
    }

    /// Unit of its value: bit/s, s or share.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self.watched {
            AlertFigure::Rate => "bit/s",
            AlertFigure::Silence => "s",
            _ => "share",
        }
    }
}

/// An operator's note that a firing alert is being worked on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Acknowledgement {
    /// Time of the note, in seconds since 1970.
    pub at_s: f64,
    /// Text by the operator; may be empty.
    pub comment: String,
}

/// State of an alert, as the API and the dashboard name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlertState {
    /// The condition has held for the rule's time and has not cleared since.
    Firing,
    /// The condition holds, but not for the rule's time yet.
    Pending,
    /// The condition does not hold.
    Inactive,
    /// There is no figure to compare.
    NoData,
}

impl AlertState {
    /// Name of the state in JSON.
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Pending => "pending",
            Self::Inactive => "inactive",
            Self::NoData => "no_data",
        }
    }
}

/// State of one rule.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Alert {
    /// Rule of the configuration.
    pub rule: AlertRule,
    /// True while it fires.
    pub firing: bool,
    /// Start of the current state, in seconds since 1970; `None` before the first value.
    pub since_s: Option<f64>,
    /// Last value; `None` if unknown.
    pub value: Option<f64>,
    /// Count of times it began to fire.
    pub times: u64,
    /// Acknowledgement by an operator; it ends with the alert.
    pub acknowledged: Option<Acknowledgement>,
    /// Start of the condition for a change, by the monotonic clock and in seconds since 1970.
    turning: Option<(Duration, f64)>,
}

/// Change of an alert's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlertChange {
    /// It begins to fire.
    Fires,
    /// It stops firing.
    Ends,
}

impl Alert {
    /// Starts without a value.
    #[must_use]
    pub(crate) fn new(rule: AlertRule) -> Self {
        let (firing, since_s, value, times) = (false, None, None, 0);
        Self { rule, firing, since_s, value, times, acknowledged: None, turning: None }
    }

    /// State by value and condition.
    #[must_use]
    pub(crate) fn state(&self) -> AlertState {
        match (self.firing, self.turning, self.value) {
            (true, ..) => AlertState::Firing,
            (false, Some(_), _) => AlertState::Pending,
            (false, None, Some(_)) => AlertState::Inactive,
            (false, None, None) => AlertState::NoData,
        }
    }

    /// Start of the condition that has not fired yet, in seconds since 1970.
    #[must_use]
    pub(crate) fn pending_since_s(&self) -> Option<f64> {
        self.turning.filter(|_| !self.firing).map(|(_, wall_s)| wall_s)
    }

    /// Restores the state from the events of an earlier run: a firing alert continues, with its
    /// acknowledgement.
    pub(crate) fn restore<'e>(&mut self, events: impl Iterator<Item = &'e TelemetryEvent>) {
        for event in events.filter(|event| event.subject == self.rule.name) {
            match event.kind {
                EventKind::AlertFiring => {
                    (self.firing, self.since_s) = (true, Some(event.at_s));
                    self.times += 1;
                }
                EventKind::AlertResolved => {
                    (self.firing, self.since_s) = (false, Some(event.at_s));
                    self.acknowledged = None;
                }
                EventKind::AlertAcknowledged => {
                    let (at_s, comment) = (event.at_s, event.text.clone());
                    self.acknowledged = Some(Acknowledgement { at_s, comment });
                }
                EventKind::AlertUnacknowledged => self.acknowledged = None,
                _ => {}
            }
        }
        if !self.firing {
            self.acknowledged = None;
        }
    }

    /// Processes a value; an unknown one (`None`) changes no state.
    pub(crate) fn step(
        &mut self,
        now: Duration,
        wall_s: f64,
        value: Option<f64>,
    ) -> Option<AlertChange> {
        self.value = value;
        let Some(value) = value else {
            self.turning = None;
            return None;
        };
        self.since_s.get_or_insert(wall_s);
        let AlertRule { threshold, clear, above, after, .. } = self.rule;
        let turns = match (self.firing, above) {
            (false, true) => value > threshold,
            (false, false) => value < threshold,
            (true, true) => value <= clear,
            (true, false) => value >= clear,
        };
        if !turns {
            self.turning = None;
            return None;
        }
        let (since, _) = *self.turning.get_or_insert((now, wall_s));
        if now.saturating_sub(since) < after {
            return None;
        }
        (self.firing, self.turning, self.since_s) = (!self.firing, None, Some(wall_s));
        self.times += u64::from(self.firing);
        self.acknowledged = None;
        Some(if self.firing { AlertChange::Fires } else { AlertChange::Ends })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rule(text: &str) -> Result<AlertRule, String> {
        toml::from_str(&format!("name = \"a\"\n{text}")).map_err(|error| error.message().to_owned())
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn invalid_alert_rules_are_rejected() {
        let read =
            rule("kind = \"rate\"\nby = \"owner\"\nkey = \"cms\"\nabove = \"300G\"\nfor = \"10s\"")
                .unwrap();
        assert_eq!((read.threshold, read.clear, read.after), (3e11, 2.7e11, at(10)));
        assert_eq!((read.of, read.unit()), (AlertScope::By(By::Owner), "bit/s"));
        let read = rule("kind = \"unlabelled\"\nabove = \"10%\"\nclear = 0.05").unwrap();
        assert_eq!((read.threshold, read.clear), (0.1, 0.05));
        assert_eq!(rule("kind = \"silence\"\nabove = \"90s\"").unwrap().threshold, 90.0);
        assert_eq!(rule("kind = \"silence\"").unwrap().threshold, 60.0);
        let read = rule("kind = \"share\"\nby = \"link\"\nkey = \"a-b\"\nbelow = 0.1").unwrap();
        assert!(!read.above && read.of == AlertScope::Link);
        for (text, words) in [
            ("kind = \"rate\"", "give above or below"),
            ("kind = \"rate\"\nabove = 1\nbelow = 2", "give above or below"),
            ("kind = \"share\"\nabove = 0.5", "by and key are missing"),
            ("kind = \"rate\"\nby = \"owner\"\nabove = 5", "by and key are missing"),
            ("kind = \"rate\"\nby = \"colour\"\nabove = 5", "write one of owner"),
            ("kind = \"loss\"\nbelow = 0.1", "no below"),
            ("kind = \"loss\"\nby = \"owner\"\nabove = 0.1", "takes a key"),
            ("kind = \"rate\"\nabove = 5\nclear = 6", "wrong side"),
            ("kind = \"rate\"\nabove = \"much\"", "is no threshold"),
            ("kind = \"noise\"\nabove = 1", "unknown variant"),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn alert_fires_and_clears_with_hysteresis() {
        let rule = rule("kind = \"rate\"\nabove = 100\nclear = 50\nfor = \"10s\"").unwrap();
        let mut alert = Alert::new(rule);
        let mut changes = Vec::new();
        for (second, value) in [
            (0, Some(200.0)),
            (9, Some(200.0)),
            // A moment below restarts the time, and so does an unknown value.
            (10, Some(99.0)),
            (11, Some(200.0)),
            (20, None),
            (21, Some(200.0)),
            (31, Some(101.0)),
            // Between both nothing changes.
            (40, Some(60.0)),
            (60, Some(60.0)),
            (70, Some(50.0)),
            (80, Some(0.0)),
        ] {
            if let Some(change) = alert.step(at(second), second as f64, value) {
                changes.push((second, change));
            }
        }
        assert_eq!(changes, [(31, AlertChange::Fires), (80, AlertChange::Ends)]);
        assert_eq!((alert.times, alert.since_s, alert.firing), (1, Some(80.0), false));
    }

    #[test]
    fn pending_precedes_firing() {
        let rule =
            rule("kind = \"rate\"\nabove = 100\nfor = \"10s\"\nseverity = \"critical\"").unwrap();
        assert_eq!(rule.severity, Severity::Critical);
        let mut alert = Alert::new(rule);
        let mut states = Vec::new();
        for (second, value) in [(0, None), (1, Some(50.0)), (2, Some(200.0)), (12, Some(200.0))] {
            alert.step(at(second), 1_000.0 + second as f64, value);
            states.push((alert.state(), alert.pending_since_s()));
        }
        let pending = (AlertState::Pending, Some(1_002.0));
        assert_eq!(
            states,
            [
                (AlertState::NoData, None),
                (AlertState::Inactive, None),
                pending,
                (AlertState::Firing, None)
            ]
        );
    }

    #[test]
    fn restart_keeps_firing_and_acknowledgement() {
        let rule = rule("kind = \"rate\"\nabove = 100\nfor = \"1s\"").unwrap();
        let event = |at_s, kind, name: &str| {
            TelemetryEvent::new(at_s, kind, Severity::Warning, name).text("on it")
        };
        let firing = event(10.0, EventKind::AlertFiring, "a");
        let acknowledged = event(12.0, EventKind::AlertAcknowledged, "a");
        let resolved = event(14.0, EventKind::AlertResolved, "a");
        let other = event(15.0, EventKind::AlertResolved, "b");
        let mut alert = Alert::new(rule.clone());
        alert.restore([&firing, &acknowledged, &other].into_iter());
        assert_eq!(
            (alert.state(), alert.since_s, alert.times),
            (AlertState::Firing, Some(10.0), 1)
        );
        assert_eq!(alert.acknowledged.as_ref().unwrap().comment, "on it");
        assert_eq!(alert.step(at(1), 20.0, Some(200.0)), None, "it fires on, and not again");
        alert.step(at(2), 21.0, Some(0.0));
        assert_eq!(alert.step(at(3), 22.0, Some(0.0)), Some(AlertChange::Ends));
        assert_eq!(alert.acknowledged, None);
        let mut alert = Alert::new(rule);
        alert.restore([&firing, &acknowledged, &resolved].into_iter());
        assert_eq!((alert.firing, alert.acknowledged), (false, None));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn alert_never_changes_within_its_time(values in prop::collection::vec(0.0..200.0_f64, 0..300), below: bool) {
            let side = if below { "below = 100\nclear = 130" } else { "above = 100\nclear = 70" };
            let mut alert = Alert::new(rule(&format!("kind = \"rate\"\n{side}\nfor = \"5s\"")).unwrap());
            let mut last: Option<(u64, AlertChange)> = None;
            for (second, value) in values.into_iter().enumerate() {
                let second = second as u64;
                if let Some(change) = alert.step(at(second), 0.0, Some(value)) {
                    prop_assert!(second >= 5);
                    if let Some((before, was)) = last {
                        prop_assert!(second - before > 5 && was != change);
                    }
                    last = Some((second, change));
                }
            }
        }
    }
}
