//! The rules in force with their origins: file, pipe, HTTP.
//!
//! Rules of pipe and HTTP live in the kernel's maps with their expiry, so that a restart keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use penstock_marker::processes::note_sockets;
use penstock_marker::table::{AddressRules, Origin, RuleEntry};
use penstock_marker::{AddressMatch, LabelAction, Marker, MarkerError, RuleRefusal};
use penstock_scitags::Registry;
use penstock_sys::net::LinkAttributes;
use rustix::time::{ClockId, clock_gettime};

use super::file::RuleFile;

/// Flows of pipe and HTTP together.
const FLOWS_MAX: usize = 50_000;

/// Keeps the marker's maps in step with the rules.
#[derive(Debug)]
pub struct RuleEngine {
    marker: Marker,
    links: Vec<LinkAttributes>,
    registry: Registry,
    lifetime: Duration,
    cgroups: BTreeMap<PathBuf, LabelAction>,
    programs: BTreeMap<String, LabelAction>,
    names: BTreeMap<AddressMatch, String>,
    bad_lines: u64,
}

impl RuleEngine {
    pub(super) fn new(
        marker: Marker,
        links: Vec<LinkAttributes>,
        registry: Registry,
        lifetime: Duration,
    ) -> Self {
        Self {
            marker,
            links,
            registry,
            lifetime,
            cgroups: BTreeMap::new(),
            programs: BTreeMap::new(),
            names: BTreeMap::new(),
            bad_lines: 0,
        }
    }

    pub(super) fn marker(&mut self) -> &mut Marker {
        &mut self.marker
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    pub(super) fn set_registry(&mut self, registry: Registry) {
        self.registry = registry;
    }

    /// Name of a rule in the file.
    pub(super) fn name(&self, rule: &AddressMatch) -> Option<&str> {
        self.names.get(rule).map(String::as_str)
    }

    /// Address rules in force.
    pub(super) fn rules(&self) -> &AddressRules {
        self.marker.rules()
    }

    /// Number of rules in force.
    pub(super) fn count(&self) -> usize {
        self.marker.rules().len() + self.cgroups.len() + self.programs.len()
    }

    /// Replaces the rules of the file.
    pub(super) fn set_file(&mut self, file: RuleFile) -> Result<(), MarkerError> {
        for action in file.actions() {
            self.check(action)?;
        }
        let now = now_s();
        let mut rules: AddressRules = file
            .addresses
            .iter()
            .map(|(rule, (_, action))| {
                (*rule, RuleEntry { action: *action, origin: Origin::File, until_s: 0 })
            })
            .collect();
        let keeps = |entry: &RuleEntry| {
            entry.origin != Origin::File && (entry.until_s == 0 || entry.until_s > now)
        };
        rules.extend(
            self.marker.rules().iter().filter(|(_, entry)| keeps(entry)).map(|(r, e)| (*r, *e)),
        );
        let destination = file.actions().any(|action| action.method().has_destination());
        if !file.programs.is_empty() || (!file.cgroups.is_empty() && destination) {
            self.marker.attach_sockets()?;
        }
        // Owners first: a missing cgroup fails here, before anything has changed.
        self.marker.set_owners(&file.cgroups, &file.programs)?;
        self.marker.set_rules(rules)?;
        let programs: BTreeSet<String> = file.programs.keys().cloned().collect();
        let walk = note_sockets(&programs, self.marker.sockets())?;
        if walk.sockets > 0 {
            tracing::info!("{} sockets of running programs have a rule now", walk.sockets);
        }
        if walk.refused > 0 {
            tracing::warn!(
                "{} running programs do not let their sockets be tagged (CAP_SYS_PTRACE): only their new ones are",
                walk.refused
            );
        }
        self.names = file.addresses.into_iter().map(|(rule, (name, _))| (rule, name)).collect();
        self.cgroups = file.cgroups;
        self.programs = file.programs;
        Ok(())
    }

    /// Counts a rejected line of the pipe.
    pub(super) fn bad_line(&mut self) {
        self.bad_lines += 1;
    }

    pub(super) fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// Checks that the devices can carry the action's label.
    fn check(&self, action: LabelAction) -> Result<(), MarkerError> {
        if !action.method().has_destination() {
            return Ok(());
        }
        for link in &self.links {
            let now = LinkAttributes::indexed(link.index).unwrap_or_else(|_| link.clone());
            if now.gso_max_size > 65_536 {
                return Err(MarkerError::BigTcp {
                    interface: now.name,
                    gso_max_size: now.gso_max_size,
                });
            }
        }
        Ok(())
    }

    /// Adds a rule of pipe or HTTP; without `lifetime` it gets the configured one.
    pub(super) fn put(
        &mut self,
        rule: AddressMatch,
        action: LabelAction,
        origin: Origin,
        lifetime: Option<Duration>,
    ) -> Result<(), MarkerError> {
        self.check(action)?;
        let rules = self.marker.rules();
        let flows = || rules.values().filter(|entry| entry.origin != Origin::File).count();
        // Counting is costly: only near the limit.
        if rules.len() >= FLOWS_MAX && !rules.contains_key(&rule) && flows() >= FLOWS_MAX {
            return Err(RuleRefusal::FlowsFull(FLOWS_MAX).into());
        }
        let lifetime = lifetime.unwrap_or(self.lifetime);
        let until_s = now_s().saturating_add(u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
        self.marker.put(rule, RuleEntry { action, origin, until_s })
    }

    /// Removes a rule of pipe or HTTP; returns false if there is none.
    pub(super) fn take(&mut self, rule: &AddressMatch) -> Result<bool, MarkerError> {
        let of_file = |entry: &RuleEntry| entry.origin == Origin::File;
        if self.marker.rules().get(rule).is_some_and(of_file) {
            return Err(RuleRefusal::OfFile.into());
        }
        self.marker.take(rule)
    }

    /// Removes rules past their lifetime.
    pub(super) fn expire(&mut self) {
        let now = now_s();
        let expired: Vec<AddressMatch> = self
            .marker
            .rules()
            .iter()
            .filter(|(_, entry)| entry.until_s != 0 && entry.until_s <= now)
            .map(|(rule, _)| *rule)
            .collect();
        for rule in &expired {
            if let Err(error) = self.marker.take(rule) {
                tracing::warn!("{rule}: {error}");
            }
        }
        if !expired.is_empty() {
            tracing::info!("{} flows expired without an end", expired.len());
        }
    }
}

/// Seconds of CLOCK_BOOTTIME, which all processes share.
fn now_s() -> u32 {
    u32::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or(u32::MAX)
}
