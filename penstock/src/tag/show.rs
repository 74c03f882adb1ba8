//! Shared output of the subcommands of `tag`: facts of a pair, rows of name and value, bytes.

use std::fmt::Write as _;

use penstock_scitags::{Registry, Scitag};
use serde::Serialize;
use utoipa::ToSchema;

/// A pair as JSON: names are null where the registry has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct Pair {
    /// Owner and activity, as `cms/analysis-input`.
    name: String,
    /// Number of the owner.
    owner_id: u64,
    /// Name of the owner in the registry.
    owner: Option<String>,
    /// Number of the activity.
    activity_id: u64,
    /// Name of the activity in the registry.
    activity: Option<String>,
    /// True where the registry has the pair.
    registered: bool,
    /// Owner and activity as one number; null where they are out of bounds.
    scitag: Option<u32>,
}

impl Pair {
    pub(super) fn new(tag: Scitag, registry: &Registry) -> Self {
        let owner = registry.owners().get(&tag.owner());
        Self {
            name: registry.name(tag),
            owner_id: tag.owner().into(),
            owner: owner.map(|owner| owner.name.clone()),
            activity_id: tag.activity().into(),
            activity: owner.and_then(|owner| owner.activities.get(&tag.activity()).cloned()),
            registered: registry.has(tag),
            scitag: Some(tag.number()),
        }
    }

    /// Facts of unchecked numbers, which may not be a valid pair.
    pub(super) fn of_numbers(owner_id: u64, activity_id: u64, registry: &Registry) -> Self {
        match Scitag::new(owner_id, activity_id) {
            Ok(tag) => Self::new(tag, registry),
            Err(_) => Self {
                name: format!("{owner_id}/{activity_id}"),
                owner_id,
                owner: None,
                activity_id,
                activity: None,
                registered: false,
                scitag: None,
            },
        }
    }

    pub(super) fn registered(&self) -> bool {
        self.registered
    }

    /// Heading above the rows.
    pub(super) fn heading(&self) -> String {
        let Self { name, owner_id, activity_id, .. } = self;
        let known = if self.registered { "" } else { ", not in the registry" };
        format!("{name}  (owner {owner_id}, activity {activity_id}{known})")
    }
}

/// Rows of a name and a value under a heading.
#[derive(Debug)]
pub(super) struct TextRows(String);

impl TextRows {
    pub(super) fn under(heading: &str) -> Self {
        Self(format!("{heading}\n"))
    }

    pub(super) fn row(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "  {name:<17}{value}").expect("a String takes everything");
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// `1E 03 00 03 0E 00`
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(" ")
}
