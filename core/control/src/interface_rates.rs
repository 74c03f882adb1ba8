//! Rates of the interfaces of a host, from the counters in consecutive reports.

use serde::{Deserialize, Serialize};

use crate::orders::InterfaceCounters;
use crate::scheduler::InterfaceView;

/// Interface counters of a report, with its time in Unix milliseconds.
pub type ReportedCounters = (i64, Vec<InterfaceCounters>);

/// An interface of a host with its rates since the previous report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceRates {
    /// Interface name in the topology.
    pub name: String,
    /// IP addresses without ports.
    pub addresses: Vec<String>,
    /// Send rate in bits per second.
    pub sent_bps: u64,
    /// Receive rate in bits per second.
    pub received_bps: u64,
}

impl InterfaceRates {
    /// Returns the rates between the counters of a report at `now_ms` and those before; zero for a counter that is
    /// new or was reset.
    #[must_use]
    pub fn between(
        before: Option<&ReportedCounters>,
        now: &InterfaceCounters,
        now_ms: i64,
    ) -> Self {
        let mut rates =
            Self { name: now.name.clone(), addresses: now.addresses.clone(), ..Self::default() };
        let Some((before_ms, list)) = before else { return rates };
        let (Some(before), Ok(elapsed_ms @ 1..)) =
            (list.iter().find(|one| one.name == now.name), u64::try_from(now_ms - before_ms))
        else {
            return rates;
        };
        let rate = |now: u64, before: u64| {
            let bits = u128::from(now.saturating_sub(before)) * 8000 / u128::from(elapsed_ms);
            u64::try_from(bits).unwrap_or(0)
        };
        rates.sent_bps = rate(now.sent_bytes, before.sent_bytes);
        rates.received_bps = rate(now.received_bytes, before.received_bytes);
        rates
    }

    /// Returns the interface as a round sees it.
    #[must_use]
    pub fn view(self) -> InterfaceView {
        InterfaceView { name: self.name, addresses: self.addresses, sent_bps: self.sent_bps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(sent_bytes: u64) -> InterfaceCounters {
        InterfaceCounters { name: "eth0".to_owned(), sent_bytes, ..InterfaceCounters::default() }
    }

    #[test]
    fn interface_rate_needs_two_reports() {
        let before = (1_000, vec![counters(1_000)]);
        let sent_bps = |before: Option<&ReportedCounters>, bytes, now_ms| {
            InterfaceRates::between(before, &counters(bytes), now_ms).sent_bps
        };
        assert_eq!(sent_bps(None, 2_000, 2_000), 0);
        assert_eq!(sent_bps(Some(&before), 2_000, 2_000), 8_000);
        assert_eq!(sent_bps(Some(&before), 500, 2_000), 0, "reset");
        assert_eq!(sent_bps(Some(&before), 2_000, 1_000), 0, "no time");
    }
}
