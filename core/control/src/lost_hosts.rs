//! Hosts that stop reporting, and the runs there that are withdrawn or end.
//!
//! A run is one writer of its files. While both hosts of a transfer are silent its work stays with them, as they may
//! still be transferring, unless an operator declares both gone. A destination that has stopped accepts nothing of the
//! order any more, so a withdrawn run does not wait for a source that is down; a destination that is down may still be
//! writing until it is lost.

use std::time::Duration;

use crate::order_id::RunSide;
use crate::run::RunState;

/// Age of a host's last report from which on the host is lost, if the configuration does not say.
pub const LOST_AFTER_DEFAULT: Duration = Duration::from_secs(60);

/// Age of the last reports of both hosts from which on a withdrawn run counts as over, if the configuration does not say.
pub const GONE_AFTER_DEFAULT: Duration = Duration::from_secs(600);

/// Least age of a host's last report from which on the host is down; otherwise a quarter of the time until it is lost.
pub const DOWN_AFTER_MIN_MS: i64 = 3_000;

/// Consecutive reports without a withdrawn order after which its node has stopped it. The first may have crossed with
/// the instructions.
pub const MISSED_REPORTS_MAX: i64 = 2;

/// Ages of a host's last report, in milliseconds, at which its state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilenceLimits {
    /// The host no longer counts as up.
    pub down_ms: i64,
    /// The host is lost: its orders are withdrawn.
    pub lost_ms: i64,
    /// The host is gone: its withdrawn orders are over.
    pub gone_ms: i64,
    /// Time from which on the controller has taken reports, in Unix milliseconds. Earlier silence was its own.
    pub listening_since_ms: i64,
}

impl SilenceLimits {
    /// Returns the limits of a configuration, for a controller that has always taken reports.
    #[must_use]
    pub fn new(lost_after: Duration, gone_after: Duration) -> Self {
        let lost_ms = lost_after.as_millis() as i64;
        Self {
            down_ms: (lost_ms / 4).max(DOWN_AFTER_MIN_MS),
            lost_ms,
            gone_ms: gone_after.as_millis() as i64,
            listening_since_ms: i64::MIN,
        }
    }

    /// Returns the time before which a host must have reported last to be gone; none if the controller has not taken
    /// reports for long enough to know.
    #[must_use]
    pub fn gone_before_ms(self, now_ms: i64) -> Option<i64> {
        let before_ms = now_ms - self.gone_ms;
        (self.listening_since_ms <= before_ms).then_some(before_ms)
    }
}

/// Last signs of a host, in Unix milliseconds; 0 for never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HostContact {
    /// Time of its last report.
    pub reported_ms: i64,
    /// Time at which an operator declared it gone.
    pub declared_gone_ms: i64,
}

impl HostContact {
    /// True if an operator declared it gone. A later report revokes that.
    #[must_use]
    pub fn is_declared_gone(self) -> bool {
        self.declared_gone_ms > self.reported_ms
    }

    /// True if it is lost or declared gone.
    #[must_use]
    pub fn is_lost(self, now_ms: i64, limits: SilenceLimits) -> bool {
        let silent_since_ms = self.reported_ms.max(limits.listening_since_ms);
        silent_since_ms < now_ms - limits.lost_ms || self.is_declared_gone()
    }

    /// True if its last report is too old for a host that is up.
    #[must_use]
    pub fn is_down(self, now_ms: i64, limits: SilenceLimits) -> bool {
        self.reported_ms < now_ms - limits.down_ms
    }
}

/// A run with a host that is down. Arrays have the source first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuspectRun {
    /// State of the run; not [`RunState::Ended`].
    pub state: RunState,
    /// Set if it lists a directory, at its source only.
    pub is_listing: bool,
    /// Names of its hosts.
    pub hosts: [String; 2],
    /// Last signs of its hosts.
    pub contacts: [HostContact; 2],
    /// Consecutive reports of its hosts without its withdrawn orders.
    pub missed_reports: [i64; 2],
}

/// Decision on a run with a host that is down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostHostAction {
    /// Nothing yet.
    Keep,
    /// Its orders are withdrawn, for this reason.
    Withdraw(String),
    /// It ends, for this reason; none for the reason of its withdrawal.
    End(Option<String>),
}

impl SuspectRun {
    /// Decides what happens to the run.
    #[must_use]
    pub fn decide(&self, now_ms: i64, limits: SilenceLimits) -> LostHostAction {
        let lost = self.contacts.map(|host| host.is_lost(now_ms, limits));
        let stopped = self.missed_reports.map(|missed| missed >= MISSED_REPORTS_MAX);
        let side = if lost[0] { RunSide::Source } else { RunSide::Destination } as usize;
        let host = &self.hosts[side];
        let why = match self.contacts[side].is_declared_gone() {
            true => format!("{host} is gone"),
            false => format!("{host} has not reported for {} s", limits.lost_ms / 1000),
        };
        if self.is_listing {
            return if lost[0] { LostHostAction::End(Some(why)) } else { LostHostAction::Keep };
        }
        let is_withdrawn = self.state == RunState::Revoking;
        if is_withdrawn && stopped[1] && self.contacts[0].is_down(now_ms, limits) {
            return LostHostAction::End(None);
        }
        match lost {
            [false, false] => LostHostAction::Keep,
            [true, true] if self.contacts.iter().all(|host| host.is_declared_gone()) => {
                LostHostAction::End(Some(why))
            }
            [true, true] => LostHostAction::Keep,
            _ if self.state == RunState::Active => LostHostAction::Withdraw(why),
            _ if (stopped[0] || lost[0]) && (stopped[1] || lost[1]) => LostHostAction::End(None),
            _ => LostHostAction::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: i64 = 1_000_000;

    fn limits() -> SilenceLimits {
        SilenceLimits::new(LOST_AFTER_DEFAULT, GONE_AFTER_DEFAULT)
    }

    /// A run whose hosts reported this number of seconds ago.
    fn run(state: RunState, silent_s: [i64; 2], missed_reports: [i64; 2]) -> SuspectRun {
        SuspectRun {
            state,
            is_listing: false,
            hosts: ["a".to_owned(), "b".to_owned()],
            contacts: silent_s.map(|seconds| HostContact {
                reported_ms: NOW_MS - seconds * 1000,
                declared_gone_ms: 0,
            }),
            missed_reports,
        }
    }

    fn decide(run: &SuspectRun) -> LostHostAction {
        run.decide(NOW_MS, limits())
    }

    #[test]
    fn limits_derive_from_lost_after() {
        let limits = limits();
        assert_eq!((limits.down_ms, limits.lost_ms, limits.gone_ms), (15_000, 60_000, 600_000));
        let short = SilenceLimits::new(Duration::from_secs(5), GONE_AFTER_DEFAULT);
        assert_eq!(short.down_ms, DOWN_AFTER_MIN_MS);
    }

    #[test]
    fn lost_host_withdraws_active_run() {
        let why = "b has not reported for 60 s".to_owned();
        assert_eq!(decide(&run(RunState::Active, [1, 61], [0; 2])), LostHostAction::Withdraw(why));
        assert_eq!(decide(&run(RunState::Active, [1, 59], [0; 2])), LostHostAction::Keep);
    }

    #[test]
    fn outage_of_controller_is_no_silence() {
        let silent = run(RunState::Active, [1, 900], [0; 2]);
        let limits =
            |ago_s: i64| SilenceLimits { listening_since_ms: NOW_MS - ago_s * 1000, ..limits() };
        assert_eq!(silent.decide(NOW_MS, limits(60)), LostHostAction::Keep);
        assert!(matches!(silent.decide(NOW_MS, limits(61)), LostHostAction::Withdraw(_)));
        assert_eq!(limits(599).gone_before_ms(NOW_MS), None);
        assert_eq!(limits(600).gone_before_ms(NOW_MS), Some(NOW_MS - 600_000));
        let mut gone = silent;
        gone.contacts[1].declared_gone_ms = NOW_MS - 800_000;
        assert!(matches!(gone.decide(NOW_MS, limits(1)), LostHostAction::Withdraw(_)), "declared");
    }

    #[test]
    fn silent_pair_keeps_its_run() {
        for state in [RunState::Active, RunState::Revoking] {
            assert_eq!(decide(&run(state, [900, 900], [0; 2])), LostHostAction::Keep);
        }
        let mut gone = run(RunState::Active, [900, 900], [0; 2]);
        gone.contacts[1].declared_gone_ms = NOW_MS;
        assert_eq!(decide(&gone), LostHostAction::Keep, "one declaration is not enough");
        gone.contacts[0].declared_gone_ms = NOW_MS;
        assert_eq!(decide(&gone), LostHostAction::End(Some("a is gone".to_owned())));
    }

    #[test]
    fn withdrawn_run_waits_for_destination() {
        let revoking = |silent, missed| decide(&run(RunState::Revoking, silent, missed));
        assert_eq!(revoking([20, 1], [0, 1]), LostHostAction::Keep);
        assert_eq!(revoking([20, 1], [0, 2]), LostHostAction::End(None), "the source is down");
        assert_eq!(revoking([1, 20], [2, 0]), LostHostAction::Keep, "it may be writing");
        assert_eq!(revoking([1, 61], [2, 0]), LostHostAction::End(None), "the destination is lost");
        assert_eq!(revoking([1, 61], [1, 0]), LostHostAction::Keep);
    }

    #[test]
    fn report_revokes_declared_gone() {
        let mut back = run(RunState::Active, [1, 1], [0; 2]);
        back.contacts[0].declared_gone_ms = NOW_MS - 2_000;
        assert_eq!(decide(&back), LostHostAction::Keep);
        back.contacts[0].declared_gone_ms = NOW_MS;
        assert_eq!(decide(&back), LostHostAction::Withdraw("a is gone".to_owned()));
    }

    #[test]
    fn listing_ends_with_its_source() {
        let listing =
            |silent_s| SuspectRun { is_listing: true, ..run(RunState::Active, silent_s, [0; 2]) };
        let why = "a has not reported for 60 s".to_owned();
        assert_eq!(decide(&listing([61, 1_000])), LostHostAction::End(Some(why)));
        assert_eq!(decide(&listing([1, 1_000])), LostHostAction::Keep);
    }
}
