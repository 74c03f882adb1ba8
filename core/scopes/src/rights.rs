//! Uses of a path, and sets of them.

use std::fmt;

/// Use of a path by a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathAccess {
    /// Learn that it exists, its size and time.
    Stat,
    /// List a directory.
    List,
    /// Read a file.
    Read,
    /// Create a file or directory that does not exist.
    Create,
    /// Write, also in place of what exists.
    Replace,
    /// Delete a file or directory.
    Delete,
    /// Give a file or directory another name.
    Rename,
}

impl PathAccess {
    /// True if the use changes the file system.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Stat | Self::List | Self::Read)
    }

    /// The verb for messages, such as `list`.
    #[must_use]
    pub fn verb(self) -> &'static str {
        match self {
            Self::Stat => "look up",
            Self::List => "list",
            Self::Read => "read",
            Self::Create => "create",
            Self::Replace => "replace",
            Self::Delete => "delete",
            Self::Rename => "rename",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of uses of a path. Any of them includes [`PathAccess::Stat`].
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct AccessRights(u8);

impl AccessRights {
    /// No use at all.
    pub const NONE: Self = Self(0);

    /// Scopes `storage.read`, `storage.stage` and `read`.
    pub const READ: Self = Self::NONE.with(PathAccess::List).with(PathAccess::Read);

    /// Uses of the scope `storage.create`.
    pub const CREATE: Self = Self::NONE.with(PathAccess::Create);

    /// Scopes `storage.modify`, which includes `storage.create`, and `write`.
    pub const MODIFY: Self =
        Self::CREATE.with(PathAccess::Replace).with(PathAccess::Delete).with(PathAccess::Rename);

    /// Adds a use to the set.
    #[must_use]
    pub const fn with(self, access: PathAccess) -> Self {
        Self(self.0 | 1 << access as u8 | 1 << PathAccess::Stat as u8)
    }

    /// True if the set has this use.
    #[must_use]
    pub fn allows(self, access: PathAccess) -> bool {
        self.0 & access.bit() != 0
    }

    /// True if the set has no use.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Uses of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Uses of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        let both = self.0 & other.0;
        // To look a path up alone is no grant: a token of it would be good for nothing.
        Self(if both == PathAccess::Stat.bit() { 0 } else { both })
    }

    /// Number of the set, for storage in tokens.
    #[must_use]
    pub fn to_bits(self) -> u8 {
        self.0
    }

    /// The set with this number; unknown uses are dropped.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Self(bits & (Self::READ.0 | Self::MODIFY.0))
    }
}

impl fmt::Debug for AccessRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            PathAccess::Stat,
            PathAccess::List,
            PathAccess::Read,
            PathAccess::Create,
            PathAccess::Replace,
            PathAccess::Delete,
            PathAccess::Rename,
        ];
        f.debug_set().entries(all.iter().filter(|access| self.allows(**access))).finish()
    }
}
