//! Names of owners and activities, by the public Scitags registry.
//!
//! For: reading the registry's JSON, a built-in copy of it, and finding a pair by what people write:
//! `cms/analysis-input`, `CMS/Analysis Input`, `3/14`, `206`. Activities are numbered by each owner for
//! itself. Not for: fetching; the bytes come from the caller.
//!
//! Names are compared without case, and whatever is neither letter nor digit (blanks, `-`, `_`, `/`,
//! brackets) is one dash.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::label::FlowLabel;
use crate::tag::{ACTIVITY_MAX, OWNER_MAX, Scitag, TagError};
use crate::time::UtcTime;

mod names;

use names::{closest, fold};

/// Longest registry; the public one has 8 KiB.
pub const REGISTRY_BYTES_MAX: usize = 4 << 20;

/// Longest name.
pub const NAME_BYTES_MAX: usize = 128;

/// Most lines about entries that were left out.
const LEFT_OUT_MAX: usize = 20;

/// Where the registry is published.
pub const PUBLISHED_AT: &str = "https://www.scitags.org/api.json";

/// See `data/README.md` for where it is from.
const BUILTIN: &[u8] = include_bytes!("../data/registry.json");

/// Owners and their activities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    modified: Option<UtcTime>,
    owners: BTreeMap<u16, Owner>,
    /// What [`Registry::name`] writes for each owner.
    words: BTreeMap<u16, String>,
}

/// An owner and its activities, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// As the registry writes it: `cms`.
    pub name: String,
    /// As the registry writes them: `Analysis Input`.
    pub activities: BTreeMap<u8, String>,
    /// What [`Registry::name`] writes for each activity.
    words: BTreeMap<u8, String>,
}

/// A registry that was read, and what of it cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// The registry.
    pub registry: Registry,
    /// A line for each entry that was left out, because its number or name is out of bounds.
    pub left_out: Vec<String>,
}

/// Why bytes are no registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Too long.
    #[error(
        "it has {0} bytes and a registry has at most {REGISTRY_BYTES_MAX}: is it the right file?"
    )]
    TooLong(usize),
    /// Not the JSON of a registry.
    #[error("it is not the JSON of a scitags registry: {0}")]
    Json(String),
    /// A later format.
    #[error("it has version {0} of the format and only version 1 is known: update penstock")]
    Version(u64),
    /// Nothing in it.
    #[error("it has no experiment that can be used: is it the right file?")]
    Empty,
    /// An owner's number twice.
    #[error("experiment id {id} stands for '{first}' and for '{second}': one of them is wrong")]
    OwnerTwice {
        /// The number.
        id: u16,
        /// The one before.
        first: String,
        /// The other.
        second: String,
    },
    /// An activity's number twice.
    #[error(
        "activity id {id} of {owner} stands for '{first}' and for '{second}': one of them is wrong"
    )]
    ActivityTwice {
        /// Whose.
        owner: String,
        /// The number.
        id: u8,
        /// The one before.
        first: String,
        /// The other.
        second: String,
    },
}

/// Why a text names no pair.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// No owner is called so.
    #[error("unknown owner '{name}'{hint}")]
    Owner {
        /// What was written.
        name: String,
        /// What may have been meant.
        hint: String,
    },
    /// The owner has no such activity.
    #[error("unknown activity '{name}' of {owner}{hint}")]
    Activity {
        /// What was written.
        name: String,
        /// Of whom.
        owner: String,
        /// What may have been meant.
        hint: String,
    },
    /// A name that fits several.
    #[error("'{name}' fits the numbers {numbers}: give the number")]
    Several {
        /// What was written.
        name: String,
        /// All that it fits.
        numbers: String,
    },
    /// No activity is given.
    #[error("'{text}' has no activity: write OWNER/ACTIVITY such as {example}")]
    Half {
        /// What was written.
        text: String,
        /// Something that works.
        example: String,
    },
    /// A flow label in place of a scitag.
    #[error(
        "{label} is not a scitag but the flow label of {name}, whose scitag is {number}: give {number}"
    )]
    Label {
        /// What was written.
        label: u64,
        /// What it means.
        name: String,
        /// What was wanted.
        number: u32,
    },
    /// Numbers out of range.
    #[error(transparent)]
    Tag(#[from] TagError),
}

// Unknown fields are ignored: the format may grow.
#[derive(Deserialize)]
struct Document {
    version: Option<u64>,
    modified: Option<String>,
    experiments: Vec<OwnerEntry>,
}

#[derive(Deserialize)]
struct OwnerEntry {
    #[serde(rename = "expName")]
    name: String,
    // The published schema spells it expID in one place.
    #[serde(rename = "expId", alias = "expID")]
    id: u64,
    #[serde(default)]
    activities: Vec<ActivityEntry>,
}

#[derive(Deserialize)]
struct ActivityEntry {
    #[serde(rename = "activityName")]
    name: String,
    #[serde(rename = "activityId")]
    id: u64,
}

impl Registry {
    /// The copy that is compiled in.
    #[must_use]
    pub fn builtin() -> &'static Self {
        static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
            Registry::read(BUILTIN).expect("the built-in registry is tested").registry
        });
        &REGISTRY
    }

    /// Reads a registry as it is published.
    ///
    /// # Errors
    /// When it is too long, not of the format, has nothing that can be used or a number twice. Entries
    /// whose number or name is out of bounds are left out and told.
    pub fn read(json: &[u8]) -> Result<Reading, RegistryError> {
        if json.len() > REGISTRY_BYTES_MAX {
            return Err(RegistryError::TooLong(json.len()));
        }
        let document: Document =
            serde_json::from_slice(json).map_err(|error| RegistryError::Json(error.to_string()))?;
        if let Some(version) = document.version.filter(|version| *version != 1) {
            return Err(RegistryError::Version(version));
        }
        let mut left_out = LeftOut::default();
        let mut owners = BTreeMap::new();
        for entry in document.experiments {
            let OwnerEntry { name, id, activities } = entry;
            let number = u16::try_from(id).ok().filter(|id| (1..=OWNER_MAX).contains(id));
            let (Some(number), Some(name)) = (number, tidy_name(&name)) else {
                left_out.push(format!(
                    "experiment {id} '{}': ids are 1 to {OWNER_MAX}, names have letters and at most {NAME_BYTES_MAX} bytes",
                    excerpt(&name)
                ));
                continue;
            };
            let activities = read_activities(&name, activities, &mut left_out)?;
            let words = words(activities.iter().map(|(id, name)| (*id, name.as_str())));
            let owner = Owner { name: name.clone(), activities, words };
            if let Some(first) = owners.insert(number, owner) {
                let first = first.name;
                return Err(RegistryError::OwnerTwice { id: number, first, second: name });
            }
        }
        if owners.is_empty() {
            return Err(RegistryError::Empty);
        }
        let modified = document.modified.and_then(|text| text.parse().ok());
        let words = words(owners.iter().map(|(id, owner)| (*id, owner.name.as_str())));
        Ok(Reading { registry: Self { modified, owners, words }, left_out: left_out.lines() })
    }

    /// When it was last changed, if it says so.
    #[must_use]
    pub fn modified(&self) -> Option<UtcTime> {
        self.modified
    }

    /// All owners, by number.
    #[must_use]
    pub fn owners(&self) -> &BTreeMap<u16, Owner> {
        &self.owners
    }

    /// All pairs, in order.
    pub fn tags(&self) -> impl Iterator<Item = Scitag> {
        self.owners.iter().flat_map(|(id, owner)| {
            let pair = |activity: &u8| Scitag::new((*id).into(), (*activity).into()).ok();
            owner.activities.keys().filter_map(pair)
        })
    }

    /// Whether it has this pair.
    #[must_use]
    pub fn has(&self, tag: Scitag) -> bool {
        let owner = self.owners.get(&tag.owner());
        owner.is_some_and(|owner| owner.activities.contains_key(&tag.activity()))
    }

    /// The pair as [`Self::find`] reads it again: `cms/analysis-input`. A number stands where there is
    /// no name, or where the name would not tell.
    #[must_use]
    pub fn name(&self, tag: Scitag) -> String {
        let owner = self.owners.get(&tag.owner());
        let activity = owner.and_then(|owner| owner.words.get(&tag.activity()));
        let number = tag.activity().to_string();
        match self.words.get(&tag.owner()) {
            Some(owner) => format!("{owner}/{}", activity.unwrap_or(&number)),
            None => tag.to_string(),
        }
    }

    /// The pair that `text` names: `OWNER/ACTIVITY`, each by name or number, or a scitag number. A
    /// number need not be in the registry.
    ///
    /// # Errors
    /// When a name is not in the registry, with what may have been meant, or a number is out of range.
    pub fn find(&self, text: &str) -> Result<Scitag, LookupError> {
        let text = text.trim();
        if let Some((owner, activity)) = text.split_once('/') {
            let owner = self.owner(owner.trim())?;
            return Ok(Scitag::new(owner, self.activity(owner, activity.trim())?)?);
        }
        if let Some(number) = number(text) {
            return Scitag::from_number(number).map_err(|error| self.not_a_number(number, error));
        }
        let owner = self.owner(text)?;
        let first = u16::try_from(owner).ok().and_then(|id| self.owners.get(&id));
        let first = first.and_then(|owner| owner.activities.keys().next()).copied().unwrap_or(1);
        let example = Scitag::new(owner, first.into()).map(|tag| self.name(tag))?;
        Err(LookupError::Half { text: excerpt(text), example })
    }

    /// A mistake that was made in production: the label where the scitag was wanted.
    fn not_a_number(&self, value: u64, error: TagError) -> LookupError {
        let label = u32::try_from(value).ok().and_then(FlowLabel::from_value);
        match label.and_then(FlowLabel::scitag).filter(|tag| self.has(*tag)) {
            Some(tag) => {
                LookupError::Label { label: value, name: self.name(tag), number: tag.number() }
            }
            None => error.into(),
        }
    }

    fn owner(&self, text: &str) -> Result<u64, LookupError> {
        if let Some(number) = number(text) {
            return Ok(number);
        }
        let names = || self.owners.iter().map(|(id, owner)| (u64::from(*id), owner.name.as_str()));
        match one_of(text, names())? {
            Some(id) => Ok(id),
            None => {
                let hint = hint(text, names().map(|(_, name)| name));
                Err(LookupError::Owner { name: excerpt(text), hint })
            }
        }
    }

    fn activity(&self, owner: u64, text: &str) -> Result<u64, LookupError> {
        if let Some(number) = number(text) {
            return Ok(number);
        }
        let unknown =
            |owner: String, hint| LookupError::Activity { name: excerpt(text), owner, hint };
        let Some(entry) = u16::try_from(owner).ok().and_then(|id| self.owners.get(&id)) else {
            let hint = ": that owner is not in the registry, so give the activity as a number";
            return Err(unknown(owner.to_string(), hint.to_owned()));
        };
        let names = || entry.activities.iter().map(|(id, name)| (u64::from(*id), name.as_str()));
        let found = one_of(text, names())?;
        found.ok_or_else(|| unknown(fold(&entry.name), hint(text, names().map(|(_, name)| name))))
    }
}

fn read_activities(
    owner: &str,
    entries: Vec<ActivityEntry>,
    left_out: &mut LeftOut,
) -> Result<BTreeMap<u8, String>, RegistryError> {
    let mut activities = BTreeMap::new();
    for ActivityEntry { name, id } in entries {
        let number = u8::try_from(id).ok().filter(|id| (1..=ACTIVITY_MAX).contains(id));
        let (Some(number), Some(name)) = (number, tidy_name(&name)) else {
            left_out.push(format!(
                "activity {id} '{}' of {owner}: ids are 1 to {ACTIVITY_MAX}, names have letters and at most {NAME_BYTES_MAX} bytes",
                excerpt(&name)
            ));
            continue;
        };
        if let Some(first) = activities.insert(number, name.clone()) {
            let owner = owner.to_owned();
            return Err(RegistryError::ActivityTwice { owner, id: number, first, second: name });
        }
    }
    Ok(activities)
}

/// A name that can be printed and found; none where there is nothing to find it by.
fn tidy_name(name: &str) -> Option<String> {
    let name = name.trim();
    let good = !name.chars().any(char::is_control) && name.len() <= NAME_BYTES_MAX;
    let folded = fold(name);
    (good && folded.contains(char::is_alphabetic)).then(|| name.to_owned())
}

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // What does not fit is out of every range, like this.
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// The number whose name is `text`.
fn one_of<'a>(
    text: &str,
    names: impl Iterator<Item = (u64, &'a str)>,
) -> Result<Option<u64>, LookupError> {
    let wanted = fold(text);
    let found: Vec<u64> =
        names.filter(|(_, name)| fold(name) == wanted).map(|(id, _)| id).collect();
    match found.as_slice() {
        [] => Ok(None),
        [id] => Ok(Some(*id)),
        several => {
            let numbers = several.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            Err(LookupError::Several { name: excerpt(text), numbers })
        }
    }
}

/// For each number its folded name, or the number itself where others have the same name.
fn words<'a, Id: Copy + Ord + ToString>(
    names: impl Iterator<Item = (Id, &'a str)>,
) -> BTreeMap<Id, String> {
    let words: BTreeMap<Id, String> = names.map(|(id, name)| (id, fold(name))).collect();
    let mut uses = BTreeMap::new();
    for word in words.values() {
        *uses.entry(word.clone()).or_insert(0) += 1;
    }
    let alone = |word: &String| uses[word] == 1;
    let chosen = |(id, word): (Id, String)| (id, if alone(&word) { word } else { id.to_string() });
    words.into_iter().map(chosen).collect()
}

/// Lines about entries that cannot be used: the first few, and how many more there are.
#[derive(Default)]
struct LeftOut {
    first: Vec<String>,
    more: usize,
}

impl LeftOut {
    fn push(&mut self, line: String) {
        if self.first.len() < LEFT_OUT_MAX {
            self.first.push(line);
        } else {
            self.more += 1;
        }
    }

    fn lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.first.push(format!("{} more entries", self.more));
        }
        self.first
    }
}

fn hint<'a>(text: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    match closest(&fold(&excerpt(text)), names.map(fold)) {
        Some(name) => format!(": did you mean '{name}'?"),
        None => ": the registry has no such name".to_owned(),
    }
}

/// Enough of a text to know it again, without what would steer a terminal.
fn excerpt(text: &str) -> String {
    text.chars().take(NAME_BYTES_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests;
