//! What comes out: a rate for each demand with what bound it, and what is used of everything.

use std::fmt;

use penstock_units::BitRate;

/// Who gets how much.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Allocation {
    /// In the order of the problem's demands.
    pub allotments: Vec<Allotment>,
    /// In the order of the problem's resources.
    pub resources: Vec<ResourceUse>,
    /// In the order of the problem's classes.
    pub classes: Vec<ClassUse>,
}

/// What a demand gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allotment {
    /// Its name.
    pub demand: String,
    /// Of all its paths together.
    pub rate: BitRate,
    /// What kept it from having more; of several paths, on the one that filled last.
    pub bound: Bound,
    /// Of each path, in the order of the demand.
    pub paths: Vec<PathShare>,
    /// What it lacks of the smaller of guarantee, demand and cap.
    pub shortfall: BitRate,
}

/// What a demand gets on one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathShare {
    /// How much.
    pub rate: BitRate,
    /// What kept it from having more on this path.
    pub bound: Bound,
}

/// What keeps a demand from having more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Bound {
    /// It has what it wants.
    Demand,
    /// Its own cap.
    Cap,
    /// This resource is full, and nobody on it has more for their weight, but where a floor gives it.
    Resource(String),
    /// This class is at its soft high-water mark, and others use the rest.
    Mark(String),
    /// This class is at its hard cap.
    ClassCap(String),
    /// There is no path.
    NoPath,
    /// This path was given up: the demand's other paths serve it better.
    OtherPaths,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Demand => f.write_str("has what it wants"),
            Self::Cap => f.write_str("its cap"),
            Self::Resource(name) => write!(f, "{name} is full"),
            Self::Mark(class) => write!(f, "class {class} is at its high-water mark"),
            Self::ClassCap(class) => write!(f, "class {class} is at its cap"),
            Self::NoPath => f.write_str("no path"),
            Self::OtherPaths => f.write_str("its other paths serve it better"),
        }
    }
}

/// What is used of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceUse {
    /// Its name.
    pub name: String,
    /// What there is.
    pub capacity: BitRate,
    /// What was allotted of it, at most the capacity.
    pub used: BitRate,
}

/// What a class has, against its floor, mark and cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassUse {
    /// Its name.
    pub name: String,
    /// All its demands together.
    pub used: BitRate,
    /// Its floor.
    pub floor: BitRate,
    /// Its mark.
    pub mark: Option<BitRate>,
    /// Its cap.
    pub cap: Option<BitRate>,
    /// What it lacks of the smaller of its floor and what its demands want.
    pub shortfall: BitRate,
}
