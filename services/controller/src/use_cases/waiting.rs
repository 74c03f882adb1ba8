//! Reasons why nothing of a request moves, for human readers.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use penstock_control::orders::{OrderId, OrderPhase, RunSide};
use penstock_control::run::RunState;
use penstock_units::display_duration;

use crate::config::Config;
use crate::repository::requests::StoredRequest;
use crate::repository::runs::StoredRun;
use crate::repository::{DatabaseError, ReadPool, hosts, runs};

/// Most hosts of a site that a reason names.
const HOSTS_NAMED_MAX: usize = 4;

/// Snapshot of hosts, sites and classes, from which the reasons follow.
#[derive(Debug)]
pub(crate) struct Situation<'a> {
    config: &'a Config,
    now_ms: i64,
    alive_ms: i64,
    /// All hosts that ever reported.
    hosts: HashMap<String, ReportedHost>,
    /// Drained hosts and sites.
    drained: HashSet<String>,
}

#[derive(Debug)]
struct ReportedHost {
    seen_ms: i64,
    /// Unix milliseconds at which an operator declared it gone; 0 for never.
    gone_ms: i64,
    transfers_max: i64,
    orders: i64,
}

impl<'a> Situation<'a> {
    pub(crate) async fn read(
        pool: &ReadPool,
        config: &'a Config,
        now_ms: i64,
        alive_ms: i64,
    ) -> Result<Self, DatabaseError> {
        let orders = runs::orders_by_host(pool).await?;
        let hosts = hosts::list(pool).await?.into_iter().map(|host| {
            let known = ReportedHost {
                seen_ms: host.seen,
                gone_ms: host.gone_at,
                transfers_max: i64::from(host.capacity.0.transfers),
                orders: orders.get(&host.name).copied().unwrap_or(0),
            };
            (host.name, known)
        });
        let hosts = hosts.collect();
        let drained = hosts::drained(pool).await?;
        Ok(Self { config, now_ms, alive_ms, hosts, drained })
    }

    /// True if a report of this time is recent enough to be current.
    pub(crate) fn is_recent(&self, at_ms: i64) -> bool {
        self.now_ms - at_ms <= self.alive_ms
    }

    fn is_up(&self, host: &str) -> bool {
        self.hosts.get(host).is_some_and(|host| self.is_recent(host.seen_ms))
    }

    fn ago(&self, at_ms: i64) -> String {
        span(self.now_ms - at_ms)
    }

    /// Describes a host that does not report; none if it is up.
    fn silence(&self, host: &str) -> Option<String> {
        if host.is_empty() || self.is_up(host) {
            return None;
        }
        Some(match self.hosts.get(host) {
            Some(known) if known.gone_ms > known.seen_ms => format!("{host} is gone"),
            Some(known) => format!("{host} silent for {}", self.ago(known.seen_ms)),
            None => format!("{host} never reported"),
        })
    }

    /// Returns the reason why a site starts no work; none if it may.
    fn site(&self, site: &str) -> Option<String> {
        let topology = &self.config.topology;
        let at_site = |site_id: Option<penstock_topology::SiteId>| {
            site_id.is_some_and(|id| topology.sites[id.0].name == site)
        };
        let hosts: Vec<&str> = topology
            .hosts()
            .filter(|(_, node)| at_site(node.site))
            .map(|(_, node)| node.name.as_str())
            .collect();
        if hosts.is_empty() {
            return Some(format!("the topology has no host at {site}"));
        }
        let up: Vec<&str> = hosts.iter().copied().filter(|host| self.is_up(host)).collect();
        if up.is_empty() {
            let named = hosts.iter().take(HOSTS_NAMED_MAX).filter_map(|host| self.silence(host));
            let mut text = named.collect::<Vec<_>>().join(", ");
            if hosts.len() > HOSTS_NAMED_MAX {
                text += &format!(" and {} more", hosts.len() - HOSTS_NAMED_MAX);
            }
            return Some(format!("no host of {site} is up; {text}"));
        }
        let takes_work = |host: &&&str| !self.drained.contains(**host);
        if self.drained.contains(site) || !up.iter().any(|host| takes_work(&host)) {
            return Some(format!("every host of {site} that is up is drained"));
        }
        let has_room = |host: &&str| {
            self.hosts.get(*host).is_some_and(|known| known.orders < known.transfers_max)
        };
        let working: Vec<&str> = up.iter().filter(takes_work).copied().collect();
        if working.iter().any(has_room) {
            return None;
        }
        let full = working.iter().take(HOSTS_NAMED_MAX).filter_map(|host| {
            let known = self.hosts.get(*host)?;
            Some(format!("{host} runs {} of {}", known.orders, known.transfers_max))
        });
        let full: Vec<String> = full.collect();
        Some(format!("hosts of {site} have no room for another transfer: {}", full.join(", ")))
    }

    /// Returns the reason why an order transfers nothing; none if it does.
    fn order(&self, run: &StoredRun) -> Option<String> {
        let number = OrderId::of(run.id, RunSide::Source);
        let silent: Vec<String> = [&run.from_host, &run.to_host]
            .into_iter()
            .filter_map(|host| self.silence(host))
            .collect();
        let silent = silent.join(", ");
        if run.state == RunState::Revoking {
            let why = run.end_reason.as_deref().unwrap_or("it was withdrawn");
            return Some(match silent.is_empty() {
                true => format!("order {number} stops: {why}"),
                false => format!("order {number} waits for its hosts to stop ({silent}): {why}"),
            });
        }
        if !silent.is_empty() {
            return Some(format!("order {number}: {silent}; it may still be running"));
        }
        if run.phase == OrderPhase::Running {
            return None;
        }
        let why = run.waiting.clone().unwrap_or_else(|| run.reason.clone());
        Some(format!("order {number}: {why}"))
    }

    /// Returns the reason why nothing of a request moves; none if something does, or once it has ended. `runs` are its
    /// orders; `again_ms` is the due time of its first retry.
    pub(crate) fn reason(
        &self,
        request: &StoredRequest,
        runs: &[StoredRun],
        again_ms: Option<i64>,
    ) -> Option<String> {
        if request.state.is_final() {
            return None;
        }
        let orders: Vec<Option<String>> = runs.iter().map(|run| self.order(run)).collect();
        if request.cancel {
            return Some(self.cancelling(runs));
        }
        if orders.iter().any(Option::is_none) {
            return None;
        }
        if let Some(first) = orders.into_iter().flatten().next() {
            return Some(first);
        }
        // In lists only the counts of its orders are known.
        if request.active > 0 {
            return None;
        }
        if request.paused {
            return Some("it is paused".to_owned());
        }
        if request.open && request.files > 0 && request.unsettled_files() == 0 {
            return Some("it is open: append files to it or seal it".to_owned());
        }
        let now_s = self.now_ms / 1000;
        if let Some(class) = self.config.class(&request.class).filter(|class| !class.is_open(now_s))
        {
            let wait = span((class.opens(now_s) - now_s) * 1000);
            return Some(format!("class {} may not run for another {wait}", class.name));
        }
        if let Some(again_ms) = again_ms {
            let trouble = request.trouble.as_deref().unwrap_or("an attempt failed");
            let wait = span(again_ms - self.now_ms);
            return Some(format!("it is tried again in {wait}: {trouble}"));
        }
        let place = self.site(&request.source).or_else(|| self.site(&request.destination));
        Some(place.unwrap_or_else(|| format!("it waits for its turn in class {}", request.class)))
    }

    fn cancelling(&self, runs: &[StoredRun]) -> String {
        let mut silent: Vec<String> = runs
            .iter()
            .flat_map(|run| [&run.from_host, &run.to_host])
            .filter_map(|host| self.silence(host))
            .collect();
        silent.sort();
        silent.dedup();
        if silent.is_empty() {
            return "it is cancelled once its hosts have stopped".to_owned();
        }
        format!(
            "it is cancelled once its hosts have stopped; {}; after {} of silence of both ends, or penstock drain HOST --gone, it ends without them",
            silent.join(", "),
            display_duration(self.config.gone_after)
        )
    }
}

/// Formats milliseconds in whole seconds.
fn span(ms: i64) -> String {
    display_duration(Duration::from_secs(u64::try_from(ms.max(0)).unwrap_or(0).div_ceil(1000)))
}
