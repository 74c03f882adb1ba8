//! The result of an allocation: rate and bottleneck of each demand, use of resources and classes.

use std::fmt;

use penstock_units::BitRate;

/// Rates of all demands, with the use of resources and classes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// In the order of the problem's demands.
    pub allotments: Vec<Allotment>,
    /// In the order of the problem's resources.
    pub resources: Vec<ResourceUse>,
    /// In the order of the problem's classes.
    pub classes: Vec<ClassUse>,
}

/// Rate of a demand, with its bottleneck.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allotment {
    /// Name of the demand.
    pub demand: String,
    /// Sum over its paths.
    pub rate: BitRate,
    /// Bottleneck; with several paths that of the path that filled last.
    pub bound: Bound,
    /// Shares of the paths, in the order of the demand.
    pub paths: Vec<PathShare>,
    /// Amount by which the rate is below the smallest of guarantee, demand and cap.
    pub shortfall: BitRate,
}

/// Rate of a demand on one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathShare {
    /// Rate on this path.
    pub rate: BitRate,
    /// Bottleneck on this path.
    pub bound: Bound,
}

/// Bottleneck of a demand: the limit that stopped its rate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bound {
    /// The demand is satisfied.
    Demand,
    /// The demand's own cap.
    Cap,
    /// This resource is fully allotted, and no demand on it has more per weight, except by a floor. After a change of a
    /// large part this is nearly so.
    Resource(String),
    /// This class is at its soft high-water mark, and other classes use the rest.
    Mark(String),
    /// This class is at its hard cap.
    ClassCap(String),
    /// The demand has no path.
    NoPath,
    /// This path was given up in favour of the demand's other paths.
    OtherPaths,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Demand => f.write_str("has what it wants"),
            Self::Cap => f.write_str("its cap"),
            Self::Resource(name) => write!(f, "{name} is fully allotted"),
            Self::Mark(class) => write!(f, "class {class} is at its high-water mark"),
            Self::ClassCap(class) => write!(f, "class {class} is at its cap"),
            Self::NoPath => f.write_str("no path"),
            Self::OtherPaths => f.write_str("its other paths serve it better"),
        }
    }
}

/// Use of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceUse {
    /// Name of the resource.
    pub name: String,
    /// Capacity, as in the problem.
    pub capacity: BitRate,
    /// Sum of the rates that cross it, at most the capacity.
    pub used: BitRate,
}

/// Rate of a class, against its floor, mark and cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassUse {
    /// Name of the class.
    pub name: String,
    /// Sum over its demands.
    pub used: BitRate,
    /// Floor, as in the problem.
    pub floor: BitRate,
    /// Soft high-water mark, as in the problem.
    pub mark: Option<BitRate>,
    /// Hard cap, as in the problem.
    pub cap: Option<BitRate>,
    /// Amount by which the rate is below the smaller of the floor and the sum of its demands' requests.
    pub shortfall: BitRate,
}
