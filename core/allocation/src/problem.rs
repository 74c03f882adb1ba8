//! The input of an allocation: capacities, classes of work, demands. Numbers are validated here, references between
//! names by [`crate::Allocator`].

use std::fmt;
use std::ops::Range;

use penstock_units::BitRate;

/// Largest capacity, demand or guarantee: 1 Pb/s.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000_000);
/// Largest weight of a class or demand.
pub const WEIGHT_MAX: u32 = 1 << 20;
/// Most paths of one demand.
pub const PATHS_MAX: usize = 64;
/// Most demands, most resources and most classes in a problem.
pub const DEMANDS_MAX: usize = 1 << 20;

/// Capacities, and the demands and classes that share them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problem {
    /// Shared capacities: links, interfaces, storage, site limits.
    pub resources: Vec<Resource>,
    /// Classes of work that demands refer to.
    pub classes: Vec<Class>,
    /// Transfers and circuits that request rates.
    pub demands: Vec<Demand>,
    /// Parameters of the procedure.
    pub policy: Policy,
}

/// Parameters of the allocation procedure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Share of each resource reserved for a tier against the higher tiers while it has demands, in thousandths; at
    /// most 500.
    pub tier_floor_permille: u16,
    /// Most iterations that redistribute a demand's weight over its paths; at least 1. With up to 6 the weight only
    /// follows the rates of the paths.
    pub passes: u16,
    /// Most demands of a part with several paths that a change solves whole, with the result of the whole problem;
    /// of larger ones it solves only what is near the change.
    pub whole_part_demands: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { tier_floor_permille: 20, passes: 8, whole_part_demands: 256 }
    }
}

/// A shared capacity: a link in one direction, an interface, storage, a site limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Name, unique among resources.
    pub name: String,
    /// Rate that may be allotted; zero while the resource is down.
    pub capacity: BitRate,
}

impl Resource {
    /// Creates a resource with a capacity.
    pub fn new(name: impl Into<String>, capacity: BitRate) -> Self {
        Self { name: name.into(), capacity }
    }
}

/// A class of work, whose demands share weight, floor, mark and cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Name, unique among classes.
    pub name: String,
    /// Relative to other classes of its tier; divided among its demands by their own weights.
    pub weight: u32,
    /// Lower bound of the class's rate while its demands request that much.
    pub floor: BitRate,
    /// Soft high-water mark: upper bound while other classes can use the rest.
    pub mark: Option<BitRate>,
    /// Hard upper bound; none for no cap.
    pub cap: Option<BitRate>,
    /// Tiers fill in ascending order, 0 first.
    pub tier: u8,
}

impl Class {
    /// Creates a class of tier 0 with weight 1 and no limit.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), weight: 1, floor: BitRate(0), mark: None, cap: None, tier: 0 }
    }
}

/// A request for a rate, by a transfer or a circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// Name, unique among demands.
    pub name: String,
    /// Name of its class; none for an implicit class in tier 0 with the demand's weight.
    pub class: Option<String>,
    /// Relative to other demands of its class.
    pub weight: u32,
    /// Largest useful rate; none for unlimited.
    pub demand: Option<BitRate>,
    /// Rate allotted before all shares; the demand's share of the rest is added to it.
    pub guarantee: BitRate,
    /// Upper bound; none for no cap.
    pub cap: Option<BitRate>,
    /// Resource names of each path. A demand without a path gets no rate.
    pub paths: Vec<Vec<String>>,
}

impl Demand {
    /// Creates an unlimited demand on one path, with weight 1.
    pub fn new<R: Into<String>>(
        name: impl Into<String>,
        path: impl IntoIterator<Item = R>,
    ) -> Self {
        Self {
            name: name.into(),
            class: None,
            weight: 1,
            demand: None,
            guarantee: BitRate(0),
            cap: None,
            paths: vec![path.into_iter().map(Into::into).collect()],
        }
    }
}

/// An error in a problem or a change of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// A name used twice.
    #[error("there is another {what} '{}': give it a name of its own", name.escape_debug())]
    Twice {
        /// `resource`, `class` or `demand`.
        what: &'static str,
        /// The name used twice.
        name: String,
    },
    /// A reference to a name that does not exist.
    #[error("{user} names the {what} '{}', which does not exist", name.escape_debug())]
    Unknown {
        /// Object with the reference, in the message's words.
        user: String,
        /// `resource`, `class` or `demand`.
        what: &'static str,
        /// The name that does not exist.
        name: String,
    },
    /// A number out of range.
    #[error("{user}: {what} must be {allowed}")]
    Range {
        /// Object with the number, in the message's words.
        user: String,
        /// Name of the number.
        what: &'static str,
        /// Allowed range, in the message's words.
        allowed: String,
    },
    /// A path with a resource twice.
    #[error("demand '{}' has the resource '{}' twice on one path", demand.escape_debug(), resource.escape_debug())]
    Crossed {
        /// Name of the demand.
        demand: String,
        /// Name of the resource.
        resource: String,
    },
    /// An unlimited demand with a path that no resource limits; has the demand's name.
    #[error("demand '{}' has a path without a resource: give it a demand or a cap", .0.escape_debug())]
    Unbounded(String),
}

impl Problem {
    /// Checks the policy and the counts.
    pub(crate) fn check(&self) -> Result<(), ProblemError> {
        let Policy { tier_floor_permille, passes, whole_part_demands: _ } = self.policy;
        check(&"the policy", "tier_floor_permille", u64::from(tier_floor_permille), 0..501)?;
        check(&"the policy", "passes", u64::from(passes), 1..1_001)?;
        let counts = [
            ("resources", self.resources.len()),
            ("classes", self.classes.len()),
            ("demands", self.demands.len()),
        ];
        for (what, count) in counts {
            check(&"the problem", what, count as u64, 0..DEMANDS_MAX as u64 + 1)?;
        }
        Ok(())
    }
}

impl Resource {
    pub(crate) fn check(&self) -> Result<(), ProblemError> {
        check_rate(&Named("resource", &self.name), "capacity", self.capacity)
    }
}

impl Class {
    pub(crate) fn check(&self) -> Result<(), ProblemError> {
        let user = Named("class", &self.name);
        check(&user, "weight", u64::from(self.weight), 1..u64::from(WEIGHT_MAX) + 1)?;
        let rates = [("floor", Some(self.floor)), ("mark", self.mark), ("cap", self.cap)];
        let mut least = ("", BitRate(0));
        for (what, rate) in rates {
            let Some(rate) = rate else { continue };
            check_rate(&user, what, rate)?;
            if rate < least.1 {
                let allowed = format!("at least its {}, {}", least.0, least.1);
                return Err(ProblemError::Range { user: user.to_string(), what, allowed });
            }
            least = (what, rate);
        }
        Ok(())
    }
}

impl Demand {
    pub(crate) fn check(&self) -> Result<(), ProblemError> {
        let user = Named("demand", &self.name);
        check(&user, "weight", u64::from(self.weight), 1..u64::from(WEIGHT_MAX) + 1)?;
        check(&user, "its number of paths", self.paths.len() as u64, 0..PATHS_MAX as u64 + 1)?;
        check_rate(&user, "guarantee", self.guarantee)?;
        check_rate(&user, "demand", self.demand.unwrap_or_default())?;
        check_rate(&user, "cap", self.cap.unwrap_or_default())?;
        let is_limited = self.demand.is_some() || self.cap.is_some();
        if !is_limited && self.paths.iter().any(Vec::is_empty) {
            return Err(ProblemError::Unbounded(self.name.clone()));
        }
        Ok(())
    }
}

/// Name of an object with its kind; formatted only when there is an error.
struct Named<'a>(&'static str, &'a str);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} '{}'", self.0, self.1.escape_debug())
    }
}

fn check(
    user: &dyn fmt::Display,
    what: &'static str,
    number: u64,
    allowed: Range<u64>,
) -> Result<(), ProblemError> {
    if allowed.contains(&number) {
        return Ok(());
    }
    let allowed = format!("{} to {}", allowed.start, allowed.end - 1);
    Err(ProblemError::Range { user: user.to_string(), what, allowed })
}

fn check_rate(
    user: &dyn fmt::Display,
    what: &'static str,
    rate: BitRate,
) -> Result<(), ProblemError> {
    if rate <= RATE_MAX {
        return Ok(());
    }
    Err(ProblemError::Range { user: user.to_string(), what, allowed: format!("up to {RATE_MAX}") })
}
