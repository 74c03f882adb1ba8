//! Objects of the kernel's target in configfs, as steps that can be undone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Change of configfs; paths are relative to its `nvmet` directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum ConfigStep {
    /// Makes an object of this export.
    Create {
        /// Path of the object.
        path: PathBuf,
    },
    /// Makes an object that other exports use, too, unless it exists.
    Share {
        /// Path of the object.
        path: PathBuf,
    },
    /// Writes an attribute.
    Write {
        /// Path of the attribute.
        path: PathBuf,
        /// Value.
        value: String,
    },
    /// Links an object to another.
    Link {
        /// Path of the linked object.
        target: PathBuf,
        /// Path of the link.
        link: PathBuf,
    },
}

impl ConfigStep {
    /// True where an undo has something to remove; attributes go with their objects.
    pub(crate) const fn is_undone(&self) -> bool {
        !matches!(self, Self::Write { .. })
    }

    /// Path of the object that the step makes or changes.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Create { path } | Self::Share { path } | Self::Write { path, .. } => path,
            Self::Link { link, .. } => link,
        }
    }

    /// Makes the change below `root`.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn apply(&self, root: &Path) -> io::Result<()> {
        match self {
            Self::Create { path } => fs::create_dir(root.join(path)),
            Self::Share { path } => match fs::create_dir(root.join(path)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                other => other,
            },
            Self::Write { path, value } => fs::write(root.join(path), value),
            Self::Link { target, link } => {
                std::os::unix::fs::symlink(root.join(target), root.join(link))
            }
        }
    }

    /// Removes what the change made; nothing where it does not exist, or others use it.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn undo(&self, root: &Path) -> io::Result<()> {
        let removed = match self {
            Self::Create { path } | Self::Share { path } => fs::remove_dir(root.join(path)),
            Self::Write { .. } => Ok(()),
            Self::Link { link, .. } => fs::remove_file(root.join(link)),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error)
                if matches!(self, Self::Share { .. })
                    && matches!(
                        error.kind(),
                        io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty
                    ) =>
            {
                Ok(())
            }
            other => other,
        }
    }
}
