//! The rules in force and where each came from: the file, the pipe, HTTP.
//!
//! Those of pipe and HTTP live in the kernel's maps with their end, so that a restart keeps them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use penstock_marker::processes::note_sockets;
use penstock_marker::table::{Entry, Origin, Rules};
use penstock_marker::{Action, AddressMatch, Marker, MarkerError};
use penstock_scitags::Registry;
use penstock_sys::net::Link;
use rustix::time::{ClockId, clock_gettime};

use super::file::RuleFile;

/// Most flows of pipe and HTTP together.
const FLOWS_MAX: usize = 50_000;

/// Fills the marker's maps.
#[derive(Debug)]
pub struct Engine {
    marker: Marker,
    links: Vec<Link>,
    registry: Registry,
    lifetime: Duration,
    cgroups: BTreeMap<PathBuf, Action>,
    programs: BTreeMap<String, Action>,
    names: BTreeMap<AddressMatch, String>,
    bad_lines: u64,
}

impl Engine {
    pub(super) fn new(
        marker: Marker,
        links: Vec<Link>,
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

    /// The name that the file gives a rule.
    pub(super) fn name(&self, rule: &AddressMatch) -> Option<&str> {
        self.names.get(rule).map(String::as_str)
    }

    /// Address rules in force.
    pub(super) fn rules(&self) -> &Rules {
        self.marker.rules()
    }

    /// How many rules are in force.
    pub(super) fn count(&self) -> usize {
        self.marker.rules().len() + self.cgroups.len() + self.programs.len()
    }

    /// Puts a file in force in place of the one before.
    pub(super) fn set_file(&mut self, file: RuleFile) -> Result<(), MarkerError> {
        for action in file.actions() {
            self.check(action)?;
        }
        let now = now_s();
        let mut rules: Rules = file
            .addresses
            .iter()
            .map(|(rule, (_, action))| {
                (*rule, Entry { action: *action, origin: Origin::File, until_s: 0 })
            })
            .collect();
        let lasting = |entry: &Entry| {
            entry.origin != Origin::File && (entry.until_s == 0 || entry.until_s > now)
        };
        rules.extend(
            self.marker.rules().iter().filter(|(_, entry)| lasting(entry)).map(|(r, e)| (*r, *e)),
        );
        let destination = file.actions().any(|action| action.method().has_destination());
        if !file.programs.is_empty() || (!file.cgroups.is_empty() && destination) {
            self.marker.attach_sockets()?;
        }
        // Owners first: they may fail by what is not there, and then nothing has changed.
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

    /// Counts a line of the pipe that was not obeyed.
    pub(super) fn bad_line(&mut self) {
        self.bad_lines += 1;
    }

    pub(super) fn bad_lines(&self) -> u64 {
        self.bad_lines
    }

    /// Whether the devices can have it.
    fn check(&self, action: Action) -> Result<(), MarkerError> {
        if !action.method().has_destination() {
            return Ok(());
        }
        for link in &self.links {
            let now = Link::indexed(link.index).unwrap_or_else(|_| link.clone());
            if now.gso_max_size > 65_536 {
                return Err(MarkerError::BigTcp {
                    interface: now.name,
                    gso_max_size: now.gso_max_size,
                });
            }
        }
        Ok(())
    }

    /// Puts a rule of pipe or HTTP in force; `lifetime` of `None` is the configured one.
    pub(super) fn put(
        &mut self,
        rule: AddressMatch,
        action: Action,
        origin: Origin,
        lifetime: Option<Duration>,
    ) -> Result<(), MarkerError> {
        self.check(action)?;
        let rules = self.marker.rules();
        let flows = || rules.values().filter(|entry| entry.origin != Origin::File).count();
        // Counted only where there may be too many.
        if rules.len() >= FLOWS_MAX && !rules.contains_key(&rule) && flows() >= FLOWS_MAX {
            let text = format!("{FLOWS_MAX} flows are tagged: no more are possible until some end");
            return Err(MarkerError::Rules(text));
        }
        let lifetime = lifetime.unwrap_or(self.lifetime);
        let until_s = now_s().saturating_add(u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
        self.marker.put(rule, Entry { action, origin, until_s })
    }

    /// Takes a rule of pipe or HTTP out of force; tells whether it was there.
    pub(super) fn take(&mut self, rule: &AddressMatch) -> Result<bool, MarkerError> {
        let of_file = |entry: &Entry| entry.origin == Origin::File;
        if self.marker.rules().get(rule).is_some_and(of_file) {
            return Err(MarkerError::Rules(
                "this rule is of the file: change it there and send SIGHUP".to_owned(),
            ));
        }
        self.marker.take(rule)
    }

    /// Takes out of force what has lived its time.
    pub(super) fn expire(&mut self) {
        let now = now_s();
        let over: Vec<AddressMatch> = self
            .marker
            .rules()
            .iter()
            .filter(|(_, entry)| entry.until_s != 0 && entry.until_s <= now)
            .map(|(rule, _)| *rule)
            .collect();
        for rule in &over {
            if let Err(error) = self.marker.take(rule) {
                tracing::warn!("{rule}: {error}");
            }
        }
        if !over.is_empty() {
            tracing::info!("{} flows never ended and lived their time", over.len());
        }
    }
}

/// Seconds since boot, sleep included: the same for every process.
fn now_s() -> u32 {
    u32::try_from(clock_gettime(ClockId::Boottime).tv_sec).unwrap_or(u32::MAX)
}
