//! What is asked: capacities, classes of work, demands. All by name; numbers are checked here, names by
//! [`crate::Allocator`], which knows them.

use std::fmt;
use std::ops::Range;

use penstock_units::BitRate;

/// The largest capacity, demand or guarantee: a petabit per second.
pub const RATE_MAX: BitRate = BitRate(1_000_000_000_000_000);
/// The largest weight.
pub const WEIGHT_MAX: u32 = 1 << 20;
/// Paths of one demand.
pub const PATHS_MAX: usize = 64;
/// Demands at once, and resources, and classes.
pub const DEMANDS_MAX: usize = 1 << 20;

/// Who wants what, and of what there is how much.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Problem {
    /// What is shared.
    pub resources: Vec<Resource>,
    /// Classes of work.
    pub classes: Vec<Class>,
    /// Who wants something.
    pub demands: Vec<Demand>,
    /// How it is worked out.
    pub policy: Policy,
}

/// How an allocation is worked out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// What of each resource a tier keeps against the tiers above it while it has something to do, in thousandths;
    /// at most 500.
    pub tier_floor_permille: u16,
    /// How often the shares of a demand's paths are corrected at most; at least 1.
    pub passes: u16,
}

impl Default for Policy {
    fn default() -> Self {
        Self { tier_floor_permille: 20, passes: 24 }
    }
}

/// Something of which there is so much: a link in one direction, an interface, storage, a site's limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// A name of its own among resources.
    pub name: String,
    /// What may be allotted of it; zero while it is broken.
    pub capacity: BitRate,
}

impl Resource {
    /// A resource.
    pub fn new(name: impl Into<String>, capacity: BitRate) -> Self {
        Self { name: name.into(), capacity }
    }
}

/// A class of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// A name of its own among classes.
    pub name: String,
    /// Against other classes of its tier; its demands divide it by their own weights.
    pub weight: u32,
    /// What the class has at least while it wants it: its rate is the fair level, but not less than this.
    pub floor: BitRate,
    /// Soft high-water mark: what the class has at most while others could use the rest.
    pub mark: Option<BitRate>,
    /// What it never exceeds.
    pub cap: Option<BitRate>,
    /// Tier 0 fills first, then tier 1, and so on.
    pub tier: u8,
}

impl Class {
    /// A class of tier 0 with weight 1 and no limit.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), weight: 1, floor: BitRate(0), mark: None, cap: None, tier: 0 }
    }
}

/// Someone who wants something, a transfer or a circuit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand {
    /// A name of its own among demands.
    pub name: String,
    /// Its class; none for a class of its own, with its own weight and in tier 0.
    pub class: Option<String>,
    /// Against other demands of its class.
    pub weight: u32,
    /// What it could use; none for whatever there is.
    pub demand: Option<BitRate>,
    /// What it was promised: it has this first, and its share of the rest on top.
    pub guarantee: BitRate,
    /// What it may not exceed.
    pub cap: Option<BitRate>,
    /// The resources of each path. Without a path it has nothing.
    pub paths: Vec<Vec<String>>,
}

impl Demand {
    /// A demand for whatever there is on one path, with weight 1.
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

/// A problem that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// Two of one name.
    #[error("there is another {what} '{}': give it a name of its own", name.escape_debug())]
    Twice {
        /// `resource`, `class` or `demand`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A name that nothing has.
    #[error("{user} names the {what} '{}', which there is not", name.escape_debug())]
    Unknown {
        /// Who names it.
        user: String,
        /// `resource`, `class` or `demand`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A number that is not allowed.
    #[error("{user}: {what} must be {allowed}")]
    Range {
        /// Whose it is.
        user: String,
        /// Which number.
        what: &'static str,
        /// What it may be.
        allowed: String,
    },
    /// A path that has a resource twice.
    #[error("demand '{}' has the resource '{}' twice on one path", demand.escape_debug(), resource.escape_debug())]
    Crossed {
        /// The demand.
        demand: String,
        /// The resource.
        resource: String,
    },
    /// A demand for whatever there is, with a path on which there is no end to it.
    #[error("demand '{}' has a path without a resource: give it a demand or a cap", .0.escape_debug())]
    Unbounded(String),
}

impl Problem {
    /// Its own numbers alone.
    pub(crate) fn check(&self) -> Result<(), ProblemError> {
        let Policy { tier_floor_permille, passes } = self.policy;
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

/// Written only where something is wrong.
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
