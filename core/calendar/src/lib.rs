//! The bandwidth calendar: rates that are guaranteed between two instants over a path, now or later, and never more of
//! them at any instant than a resource has to give.
//!
//! For: admitting a reservation or saying what would fit instead ([`Calendar::reserve`]), cancelling, listing, and how
//! much is free when ([`Calendar::free`], [`Calendar::steps`]). Not for: making circuits, choosing paths, or knowing
//! what time it is. A reservation that is running is a guarantee in the sense of the allocation.
//!
//! Instants are seconds of Unix time; a reservation holds from its first instant until just before its last. Questions
//! about one resource take O(log n) of n reservations on it (`profile`).

#![forbid(unsafe_code)]

mod profile;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use penstock_units::BitRate;
use profile::Profile;

/// The largest rate, so that sums of all reservations stay far from overflow.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000_000);
/// The last instant that there is, in the year 36,812: seconds of it times milliseconds still fit 64 bits.
pub const END_OF_TIME: u64 = 1 << 40;
/// Reservations at once.
pub const RESERVATIONS_MAX: usize = 1 << 20;

/// A rate over a path for a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// A name of its own.
    pub name: String,
    /// Names of resources, each once.
    pub path: Vec<String>,
    /// Above zero.
    pub rate: BitRate,
    /// From the first second until just before the last.
    pub seconds: Range<u64>,
}

/// Why a reservation was not made. Nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It does not fit; what would.
    #[error("{0}")]
    Full(Full),
    /// There is one of the same name.
    #[error("there is another reservation '{}': give it a name of its own", .0.escape_debug())]
    Twice(String),
    /// A resource that the calendar does not know, or that stands twice in the path.
    #[error("the path names '{}', which {why}", resource.escape_debug())]
    Path {
        /// Its name.
        resource: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Numbers that make no reservation.
    #[error("{0}")]
    Terms(&'static str),
}

/// What stands in the way of a reservation, and what would fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Full {
    /// The first resource of the path that has too little.
    pub resource: String,
    /// The first second at which it has.
    pub second: u64,
    /// The largest rate that fits on the whole path for the time that was asked for.
    pub largest: BitRate,
    /// The first second from which the rate fits for as long as was asked for; none where a resource never gives so
    /// much.
    pub earliest: Option<u64>,
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { resource, second, largest, earliest } = self;
        write!(f, "{} has too little left at second {second}: ", resource.escape_debug())?;
        match earliest {
            Some(earliest) => write!(f, "{largest} would fit, or the rate from {earliest} on"),
            None => write!(f, "{largest} would fit; there is never so much"),
        }
    }
}

/// Resources with what may be reserved of each, and reservations.
#[derive(Debug, Clone, Default)]
pub struct Calendar {
    resources: Vec<Resource>,
    names: HashMap<String, usize>,
    reservations: BTreeMap<String, Held>,
}

#[derive(Debug, Clone)]
struct Resource {
    reservable: i64,
    used: Profile,
}

#[derive(Debug, Clone)]
struct Held {
    reservation: Reservation,
    path: Vec<usize>,
}

impl Calendar {
    /// A resource, or another share for one that is there. A smaller one takes nothing from anyone: what is too much
    /// then is told by [`Self::overbooked`].
    ///
    /// # Errors
    /// When the share is beyond [`RATE_MAX`].
    pub fn set_reservable(&mut self, resource: &str, share: BitRate) -> Result<(), Refusal> {
        if share > RATE_MAX {
            return Err(Refusal::Terms("a reservable share is up to 1 Pb/s"));
        }
        let reservable = share.0 as i64;
        match self.names.get(resource) {
            Some(id) => self.resources[*id].reservable = reservable,
            None => {
                self.names.insert(resource.to_owned(), self.resources.len());
                self.resources.push(Resource { reservable, used: Profile::default() });
            }
        }
        Ok(())
    }

    /// Reserves, if it fits at every instant.
    ///
    /// # Errors
    /// As [`Refusal`] says, with what would fit.
    pub fn reserve(&mut self, reservation: Reservation) -> Result<(), Refusal> {
        let path = self.check(&reservation)?;
        let Reservation { rate, seconds, .. } = &reservation;
        if let Some(full) = self.full(&path, &reservation) {
            return Err(Refusal::Full(full));
        }
        for id in &path {
            let used = &mut self.resources[*id].used;
            used.add(seconds.start, rate.0 as i64);
            used.add(seconds.end, -(rate.0 as i64));
        }
        self.reservations.insert(reservation.name.clone(), Held { reservation, path });
        Ok(())
    }

    fn check(&self, reservation: &Reservation) -> Result<Vec<usize>, Refusal> {
        let Reservation { name, path, rate, seconds } = reservation;
        if self.reservations.contains_key(name) {
            return Err(Refusal::Twice(name.clone()));
        }
        if self.reservations.len() >= RESERVATIONS_MAX {
            return Err(Refusal::Terms("there are too many reservations: cancel some"));
        }
        if rate.0 == 0 || *rate > RATE_MAX {
            return Err(Refusal::Terms("a rate is above 0 and up to 1 Pb/s"));
        }
        if seconds.is_empty() || seconds.end > END_OF_TIME {
            return Err(Refusal::Terms(
                "a reservation ends after it begins, and before the end of time",
            ));
        }
        if path.is_empty() {
            return Err(Refusal::Terms("a path has at least one resource"));
        }
        let mut ids = Vec::with_capacity(path.len());
        let mut seen = HashSet::new();
        for resource in path {
            let wrong = |why| Refusal::Path { resource: resource.clone(), why };
            let id =
                *self.names.get(resource).ok_or_else(|| wrong("the calendar does not know"))?;
            if !seen.insert(id) {
                return Err(wrong("is there already"));
            }
            ids.push(id);
        }
        Ok(ids)
    }

    fn full(&self, path: &[usize], reservation: &Reservation) -> Option<Full> {
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
        Some(Full {
            resource: names[place].clone(),
            second,
            largest: BitRate(largest as u64),
            earliest: self.earliest(path, rate, seconds.clone()),
        })
    }

    /// Moves on to where the resource in the way has room again, until none is.
    fn earliest(&self, path: &[usize], rate: i64, Range { start, end }: Range<u64>) -> Option<u64> {
        let long = end - start;
        let mut from = start;
        'again: loop {
            if from + long > END_OF_TIME {
                return None;
            }
            for id in path {
                let Resource { reservable, used } = &self.resources[*id];
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

    /// Gives back what a reservation has from an instant on: all of it where that is before its start. It is told as it
    /// was; one that had begun stays on the calendar until that instant.
    pub fn cancel(&mut self, name: &str, from: u64) -> Option<Reservation> {
        let held = self.reservations.get_mut(name)?;
        let before = held.reservation.clone();
        let Range { start, end } = before.seconds;
        let cut = from.clamp(start, end);
        let (rate, path) = (before.rate.0 as i64, held.path.clone());
        held.reservation.seconds.end = cut;
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

    /// Forgets what ended at or before an instant.
    pub fn forget(&mut self, until: u64) {
        let over = |held: &Held| held.reservation.seconds.end <= until;
        let names: Vec<String> = self
            .reservations
            .iter()
            .filter(|(_, held)| over(held))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.cancel(&name, 0);
        }
    }

    /// A reservation by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Reservation> {
        self.reservations.get(name).map(|held| &held.reservation)
    }

    /// Reservations that hold at some instant of a time, in the order of their names.
    pub fn list(&self, seconds: Range<u64>) -> impl Iterator<Item = &Reservation> {
        let all = self.reservations.values().map(|held| &held.reservation);
        all.filter(move |one| one.seconds.start < seconds.end && one.seconds.end > seconds.start)
    }

    /// What is free of a resource at every instant of a time; none where there is no such resource.
    #[must_use]
    pub fn free(&self, resource: &str, seconds: Range<u64>) -> Option<BitRate> {
        let Resource { reservable, used } = &self.resources[*self.names.get(resource)?];
        Some(BitRate((reservable - used.most(seconds)).max(0) as u64))
    }

    /// What is reserved of a resource: from each second on, how much, until the next one.
    #[must_use]
    pub fn steps(&self, resource: &str) -> Option<Vec<(u64, BitRate)>> {
        let steps = self.resources[*self.names.get(resource)?].used.steps();
        Some(steps.into_iter().map(|(second, used)| (second, BitRate(used as u64))).collect())
    }

    /// Resources of which more is reserved than they have to give now, with the first such second from an instant on.
    #[must_use]
    pub fn overbooked(&self, from: u64) -> Vec<(&str, u64)> {
        let over = self.names.iter().filter_map(|(name, id)| {
            let Resource { reservable, used } = &self.resources[*id];
            Some((name.as_str(), used.first_above(from, *reservable)?))
        });
        let mut over: Vec<_> = over.collect();
        over.sort_unstable();
        over
    }
}
