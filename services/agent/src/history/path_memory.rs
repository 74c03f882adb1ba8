//! Latest transfers to each host, in memory, from which reports forecast the rates of orders.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use penstock_control::orders::PathForecast;
use penstock_forecast::PastTransfer;
use penstock_forecast::online::{ForecastRequest, WINDOW_TRANSFERS, forecast};

use super::row::HistoryRow;

/// Most hosts that are kept.
const HOSTS_MAX: usize = 2048;

/// Latest transfers that this host sent, oldest first, by receiving host.
#[derive(Debug, Default)]
pub struct PathMemory(Mutex<HashMap<String, VecDeque<PastTransfer>>>);

impl PathMemory {
    /// Adds a transfer that this host sent, if a forecast may use it.
    pub(super) fn add(&self, row: &HistoryRow) {
        let Some(past) = (row.direction == "send").then(|| row.past_transfer()).flatten() else {
            return;
        };
        let mut hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.len() >= HOSTS_MAX && !hosts.contains_key(&past.destination) {
            return;
        }
        let latest = hosts.entry(past.destination.clone()).or_default();
        if latest.len() >= WINDOW_TRANSFERS {
            latest.pop_front();
        }
        latest.push_back(past);
    }

    /// Forecasts the rate of `bytes` bytes to the host with these names and addresses; none where too few transfers to
    /// it are known, or none of about this size.
    pub fn forecast(&self, names: &[String], bytes: u64) -> Option<PathForecast> {
        let hosts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = names.iter().filter_map(|name| hosts.get(name)).flatten();
        let mut sent: Vec<PastTransfer> = sent.cloned().collect();
        drop(hosts);
        sent.sort_by(|a, b| a.started_s.total_cmp(&b.started_s));
        let source = sent.last()?.source.clone();
        let request = ForecastRequest { source: vec![source], destination: names.to_vec(), bytes };
        let found = forecast(&sent, &request).ok()?;
        let rates = found.bits_per_second;
        // Rates are positive and finite; one beyond 64 bits saturates.
        let bps = |rate: f64| rate.round() as u64;
        Some(PathForecast {
            p10_bps: bps(rates.p10),
            p50_bps: bps(rates.p50),
            p90_bps: bps(rates.p90),
            transfers: u32::try_from(found.transfers).unwrap_or(u32::MAX),
        })
    }
}
