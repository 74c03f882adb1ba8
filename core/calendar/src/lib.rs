//! The bandwidth calendar: advance reservations of a guaranteed rate over a path between two instants, never more of
//! them at once than a resource has capacity for.
//!
//! [`Calendar::reserve`] admits a reservation or returns what would fit instead; [`Calendar::free`] and
//! [`Calendar::steps`] report free and reserved rates over time. Building circuits and choosing paths are the caller's,
//! and so is the clock. An active reservation is a guarantee in the sense of `penstock_allocation`.
//!
//! Instants are seconds of Unix time; intervals are half-open. Queries about one resource take O(log n) of n
//! reservations on it (`profile`).

#![forbid(unsafe_code)]

mod profile;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use penstock_units::BitRate;
use profile::Profile;

/// Largest rate of a reservation, 1 Pb/s, so that the sum of all reservations stays far from overflow.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000_000);
/// Last instant, in the year 36,812. In milliseconds it still fits 64 bits.
pub const END_OF_TIME: u64 = 1 << 40;
/// Most reservations held at once.
pub const RESERVATIONS_MAX: usize = 1 << 20;

/// A guaranteed rate over a path for an interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Name, unique among reservations.
    pub name: String,
    /// Names of the resources of the path, each once.
    pub path: Vec<String>,
    /// Guaranteed rate, above zero.
    pub rate: BitRate,
    /// Half-open interval in Unix seconds.
    pub seconds: Range<u64>,
}

/// A reservation that was not made; the calendar is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Too little free capacity, with what would fit.
    #[error("{0}")]
    Shortage(Shortage),
    /// A reservation of the same name exists.
    #[error("reservation '{}' exists already: choose another name", .0.escape_debug())]
    Twice(String),
    /// A resource that the calendar does not know, or that occurs twice in the path.
    #[error("the path names '{}', which {why}", resource.escape_debug())]
    Path {
        /// Name of the resource.
        resource: String,
        /// Reason, as a clause of the message.
        why: &'static str,
    },
    /// A rate, interval or path out of range.
    #[error("{0}")]
    Terms(&'static str),
}

/// The shortage that a reservation met, and what would fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// First resource of the path with too little capacity.
    pub resource: String,
    /// First Unix second at which it has too little.
    pub second: u64,
    /// Largest rate that fits on the whole path over the requested interval.
    pub largest: BitRate,
    /// First start at which the requested rate fits for the requested length; none where a resource never has that
    /// much.
    pub earliest: Option<u64>,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { resource, second, largest, earliest } = self;
        write!(f, "{} has too little left at second {second}: ", resource.escape_debug())?;
        match earliest {
            Some(earliest) => write!(f, "{largest} would fit, or the rate from {earliest} on"),
            None => write!(f, "{largest} would fit; the rate is free at no time"),
        }
    }
}

/// Resources with their reservable rates, and the reservations on them.
#[derive(Debug, Clone, Default)]
pub struct Calendar {
    resources: Vec<ResourceProfile>,
    names: HashMap<String, usize>,
    reservations: BTreeMap<String, CalendarEntry>,
}

#[derive(Debug, Clone)]
struct ResourceProfile {
    reservable: i64,
    used: Profile,
}

#[derive(Debug, Clone)]
struct CalendarEntry {
    reservation: Reservation,
    path: Vec<usize>,
}

impl Calendar {
    /// Adds a resource or changes its reservable rate. A lower rate cancels no reservation; [`Self::overbooked`] lists
    /// the resources with too little.
    ///
    /// # Errors
    /// If the rate exceeds [`RATE_MAX`].
    pub fn set_reservable(&mut self, resource: &str, share: BitRate) -> Result<(), ReserveError> {
        if share > RATE_MAX {
            return Err(ReserveError::Terms("a reservable share is up to 1 Pb/s"));
        }
        let reservable = share.0 as i64;
        match self.names.get(resource) {
            Some(id) => self.resources[*id].reservable = reservable,
            None => {
                self.names.insert(resource.to_owned(), self.resources.len());
                self.resources.push(ResourceProfile { reservable, used: Profile::default() });
            }
        }
        Ok(())
    }

    /// Admits a reservation if it fits at every instant.
    ///
    /// # Errors
    /// If it does not fit, with what would, or if its name, path, rate or interval is invalid.
    pub fn reserve(&mut self, reservation: Reservation) -> Result<(), ReserveError> {
        let path = self.check(&reservation)?;
        let Reservation { rate, seconds, .. } = &reservation;
        if let Some(full) = self.full(&path, &reservation) {
            return Err(ReserveError::Shortage(full));
        }
        for id in &path {
            let used = &mut self.resources[*id].used;
            used.add(seconds.start, rate.0 as i64);
            used.add(seconds.end, -(rate.0 as i64));
        }
        self.reservations.insert(reservation.name.clone(), CalendarEntry { reservation, path });
        Ok(())
    }

    fn check(&self, reservation: &Reservation) -> Result<Vec<usize>, ReserveError> {
        let Reservation { name, path, rate, seconds } = reservation;
        if self.reservations.contains_key(name) {
            return Err(ReserveError::Twice(name.clone()));
        }
        if self.reservations.len() >= RESERVATIONS_MAX {
            return Err(ReserveError::Terms("there are too many reservations: cancel some"));
        }
        if rate.0 == 0 || *rate > RATE_MAX {
            return Err(ReserveError::Terms("a rate is above 0 and up to 1 Pb/s"));
        }
        if seconds.is_empty() || seconds.end > END_OF_TIME {
            return Err(ReserveError::Terms(
                "a reservation ends after it begins, and before the end of time",
            ));
        }
        if path.is_empty() {
            return Err(ReserveError::Terms("a path has at least one resource"));
        }
        let mut ids = Vec::with_capacity(path.len());
        let mut seen = HashSet::new();
        for resource in path {
            let wrong = |why| ReserveError::Path { resource: resource.clone(), why };
            let id =
                *self.names.get(resource).ok_or_else(|| wrong("the calendar does not know"))?;
            if !seen.insert(id) {
                return Err(wrong("is there already"));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    fn full(&self, path: &[usize], reservation: &Reservation) -> Option<Shortage> {
        let Reservation { path: names, rate, seconds, .. } = reservation;
        let rate = rate.0 as i64;
        let blocked = |id: &usize| {
            let resource = &self.resources[*id];
            let second = resource.used.first_above(seconds.start, resource.reservable - rate)?;
            (second < seconds.end).then_some(second)
        };
        let (place, second) =
            path.iter().enumerate().find_map(|(place, id)| Some((place, blocked(id)?)))?;
        let left = path.iter().map(|id| {
            let resource = &self.resources[*id];
            resource.reservable - resource.used.most(seconds.clone())
        });
        let largest = left.min().unwrap_or(0).max(0);
        Some(Shortage {
            resource: names[place].clone(),
            second,
            largest: BitRate(largest as u64),
            earliest: self.earliest(path, rate, seconds.clone()),
        })
    }

    /// Returns the first start from which the rate fits: repeatedly skips to the instant at which the blocking resource
    /// has enough free capacity.
    fn earliest(&self, path: &[usize], rate: i64, Range { start, end }: Range<u64>) -> Option<u64> {
        let long = end - start;
        let mut from = start;
        'again: loop {
            if from + long > END_OF_TIME {
                return None;
            }
            for id in path {
                let ResourceProfile { reservable, used } = &self.resources[*id];
                let most = reservable - rate;
                if let Some(blocked) = used.first_above(from, most)
                    && blocked < from + long
                {
                    from = used.first_at_most(blocked, most)?;
                    continue 'again;
                }
            }
            return Some(from);
        }
    }

    /// Releases a reservation from an instant on, or entirely if that is before its start. Returns the reservation as
    /// it was; one that had begun stays listed until that instant.
    pub fn cancel(&mut self, name: &str, from: u64) -> Option<Reservation> {
        let booking = self.reservations.get_mut(name)?;
        let before = booking.reservation.clone();
        let Range { start, end } = before.seconds;
        let cut = from.clamp(start, end);
        let (rate, path) = (before.rate.0 as i64, booking.path.clone());
        booking.reservation.seconds.end = cut;
        for id in path {
            let used = &mut self.resources[id].used;
            used.add(cut, -rate);
            used.add(end, rate);
        }
        if cut == start {
            self.reservations.remove(name);
        }
        Some(before)
    }

    /// Removes reservations that ended at or before an instant.
    pub fn remove_ended(&mut self, until: u64) {
        let over = |booking: &CalendarEntry| booking.reservation.seconds.end <= until;
        let names: Vec<String> = self
            .reservations
            .iter()
            .filter(|(_, booking)| over(booking))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.cancel(&name, 0);
        }
    }

    /// Returns the reservation of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Reservation> {
        self.reservations.get(name).map(|booking| &booking.reservation)
    }

    /// Returns the reservations that overlap an interval, ordered by name.
    pub fn list(&self, seconds: Range<u64>) -> impl Iterator<Item = &Reservation> {
        let all = self.reservations.values().map(|booking| &booking.reservation);
        all.filter(move |one| one.seconds.start < seconds.end && one.seconds.end > seconds.start)
    }

    /// Returns the rate of a resource that is free throughout an interval; none for an unknown resource.
    #[must_use]
    pub fn free(&self, resource: &str, seconds: Range<u64>) -> Option<BitRate> {
        let ResourceProfile { reservable, used } = &self.resources[*self.names.get(resource)?];
        Some(BitRate((reservable - used.most(seconds)).max(0) as u64))
    }

    /// Returns the reserved rate of a resource as steps: each rate holds from its second until the next step.
    #[must_use]
    pub fn steps(&self, resource: &str) -> Option<Vec<(u64, BitRate)>> {
        let steps = self.resources[*self.names.get(resource)?].used.steps();
        Some(steps.into_iter().map(|(second, used)| (second, BitRate(used as u64))).collect())
    }

    /// Returns resources with more reserved than reservable, each with the first such second from `from` on.
    #[must_use]
    pub fn overbooked(&self, from: u64) -> Vec<(&str, u64)> {
        let over = self.names.iter().filter_map(|(name, id)| {
            let ResourceProfile { reservable, used } = &self.resources[*id];
            Some((name.as_str(), used.first_above(from, *reservable)?))
        });
        let mut over: Vec<_> = over.collect();
        over.sort_unstable();
        over
    }
}
