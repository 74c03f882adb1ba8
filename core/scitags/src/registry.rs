//! Names of owners and activities, by the public Scitags registry.
//!
//! For: reading the registry's JSON, a built-in copy of it, and finding a pair by name or number:
//! `cms/analysis-input`, `CMS/Analysis Input`, `3/14`, `206`. Each owner numbers its own activities. Not for:
//! fetching; the bytes come from the caller.
//!
//! Names are compared without case; each run of characters other than letters and digits (blanks,
//! `-`, `_`, `/`, brackets) counts as one dash.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::label::FlowLabel;
use crate::tag::{ACTIVITY_MAX, NUMBER_MAX, NUMBER_MIN, OWNER_MAX, Scitag, TagError};
use crate::time::UtcTime;

mod names;

use names::{closest, fold};

/// Longest registry; the public one has 8 KiB.
pub const REGISTRY_BYTES_MAX: usize = 4 << 20;

/// Longest name of an owner or activity.
pub const NAME_BYTES_MAX: usize = 128;

/// Most lines about skipped entries.
const LEFT_OUT_MAX: usize = 20;

/// URL of the published registry.
pub const PUBLISHED_AT: &str = "https://www.scitags.org/api.json";

/// Copy of the published registry; `data/README.md` names its source.
const BUILTIN: &[u8] = include_bytes!("../data/registry.json");

/// Owners and their activities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registry {
    modified: Option<UtcTime>,
    owners: BTreeMap<u16, RegistryOwner>,
    /// Folded name or number of each owner, as [`Registry::name`] prints it.
    words: BTreeMap<u16, String>,
}

/// An owner and its activities, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryOwner {
    /// As the registry writes it: `cms`.
    pub name: String,
    /// As the registry writes them: `Analysis Input`.
    pub activities: BTreeMap<u8, String>,
    /// Folded name or number of each activity, as [`Registry::name`] prints it.
    words: BTreeMap<u8, String>,
}

/// A parsed registry with the entries that were skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedRegistry {
    /// Registry of the valid entries.
    pub registry: Registry,
    /// One line per entry skipped because its number or name is out of bounds.
    pub left_out: Vec<String>,
}

/// Error of reading a registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Longer than [`REGISTRY_BYTES_MAX`]; holds the length in bytes.
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
    /// No entry is valid.
    #[error("it has no experiment with valid entries: is it the right file?")]
    Empty,
    /// Two owners have one number.
    #[error("experiment id {id} stands for '{first}' and for '{second}': one of them is wrong")]
    OwnerTwice {
        /// Number of both.
        id: u16,
        /// Name of the earlier entry.
        first: String,
        /// Name of the later entry.
        second: String,
    },
    /// Two activities of an owner have one number.
    #[error(
        "activity id {id} of {owner} stands for '{first}' and for '{second}': one of them is wrong"
    )]
    ActivityTwice {
        /// Name of the owner.
        owner: String,
        /// Number of both.
        id: u8,
        /// Name of the earlier entry.
        first: String,
        /// Name of the later entry.
        second: String,
    },
}

/// Error of looking up a pair.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The registry has no such owner.
    #[error("unknown owner '{name}'{hint}")]
    Owner {
        /// Name as given, cut.
        name: String,
        /// Suggestion, as the end of the sentence.
        hint: String,
    },
    /// The owner has no such activity.
    #[error("unknown activity '{name}' of {owner}{hint}")]
    Activity {
        /// Name as given, cut.
        name: String,
        /// Name of the owner.
        owner: String,
        /// Suggestion, as the end of the sentence.
        hint: String,
    },
    /// Several entries have this name.
    #[error("'{name}' fits the numbers {numbers}: give the number")]
    Several {
        /// Name as given, cut.
        name: String,
        /// Their numbers, separated by commas.
        numbers: String,
    },
    /// No activity is given.
    #[error("'{text}' has no activity: write OWNER/ACTIVITY such as {example}")]
    Half {
        /// Text as given, cut.
        text: String,
        /// A pair of this owner that exists.
        example: String,
    },
    /// A flow label in place of a scitag.
    #[error(
        "{label} is not a scitag but the flow label of {name}, whose scitag is {number}: give {number}"
    )]
    Label {
        /// Value as given.
        label: u64,
        /// Pair that the label carries.
        name: String,
        /// Scitag number of that pair.
        number: u32,
    },
    /// A number of more than 64 bits.
    #[error(
        "{text} is out of every range: owners are 1 to {OWNER_MAX}, activities 1 to {ACTIVITY_MAX}, scitags {NUMBER_MIN} to {NUMBER_MAX}"
    )]
    Overflow {
        /// Number as given, cut.
        text: String,
    },
    /// Numbers out of range.
    #[error(transparent)]
    Tag(#[from] TagError),
}

// Unknown fields are ignored: the format may grow.
#[derive(Deserialize)]
struct RegistryDocument {
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

    /// Parses a registry in its published format.
    ///
    /// # Errors
    /// When it is too long, not of the format, has no valid entry or one number twice. Entries
    /// whose number or name is out of bounds are listed in [`ParsedRegistry::left_out`].
    pub fn read(json: &[u8]) -> Result<ParsedRegistry, RegistryError> {
        if json.len() > REGISTRY_BYTES_MAX {
            return Err(RegistryError::TooLong(json.len()));
        }
        let document: RegistryDocument =
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
            let owner = RegistryOwner { name: name.clone(), activities, words };
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
        Ok(ParsedRegistry {
            registry: Self { modified, owners, words },
            left_out: left_out.lines(),
        })
    }

    /// Time of the last change, if the document states it.
    #[must_use]
    pub fn modified(&self) -> Option<UtcTime> {
        self.modified
    }

    /// All owners, by number.
    #[must_use]
    pub fn owners(&self) -> &BTreeMap<u16, RegistryOwner> {
        &self.owners
    }

    /// All pairs, in order.
    pub fn tags(&self) -> impl Iterator<Item = Scitag> {
        self.owners.iter().flat_map(|(id, owner)| {
            let pair = |activity: &u8| Scitag::new((*id).into(), (*activity).into()).ok();
            owner.activities.keys().filter_map(pair)
        })
    }

    /// True if the registry has the pair.
    #[must_use]
    pub fn has(&self, tag: Scitag) -> bool {
        let owner = self.owners.get(&tag.owner());
        owner.is_some_and(|owner| owner.activities.contains_key(&tag.activity()))
    }

    /// Name of the pair that [`Self::find`] parses: `cms/analysis-input`. Has a number in place of
    /// a missing or ambiguous name.
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

    /// Finds the pair that `text` names: `OWNER/ACTIVITY`, each by name or number, or a scitag
    /// number. A number need not be in the registry.
    ///
    /// # Errors
    /// When a name is not in the registry (with the nearest one), or a number is out of range.
    pub fn find(&self, text: &str) -> Result<Scitag, LookupError> {
        let text = text.trim();
        if let Some(part) = text.split('/').map(str::trim).find(|part| overflows(part)) {
            return Err(LookupError::Overflow { text: excerpt(part) });
        }
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

    /// Recognises the flow label in place of the scitag, a mistake made in production.
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

/// Trims a name; `None` if it has control characters, no letter or too many bytes.
fn tidy_name(name: &str) -> Option<String> {
    let name = name.trim();
    let good = !name.chars().any(char::is_control) && name.len() <= NAME_BYTES_MAX;
    let folded = fold(name);
    (good && folded.contains(char::is_alphabetic)).then(|| name.to_owned())
}

fn number(text: &str) -> Option<u64> {
    // An overflow is out of every range, as is this value.
    is_number(text).then(|| text.parse().unwrap_or(u64::MAX))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn overflows(text: &str) -> bool {
    is_number(text) && text.parse::<u64>().is_err()
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

/// Folded name of each number, or the number itself if several share the name.
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

/// Lines about skipped entries: the first [`LEFT_OUT_MAX`] and a count of the rest.
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

/// Beginning of a text, without control characters.
fn excerpt(text: &str) -> String {
    text.chars().take(NAME_BYTES_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests;
