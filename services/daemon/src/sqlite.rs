//! Faults of SQLite that an operator can mend, with the remedies that the stores of all roles name, and the file of a damaged
//! database.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Fault of a database in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqliteFault {
    /// The file or its directory is missing, or this user may not write there.
    NotWritable,
    /// Another process has held the file for longer than a statement waits.
    Locked,
    /// The disk, a quota or the limit of the file is full.
    Full,
    /// The file system reported an error.
    Storage,
    /// The content is no database, or contradicts itself.
    Damaged,
}

impl SqliteFault {
    /// Fault of a result code of SQLite in decimal digits (sqlite.org/rescode.html); `None` for a code without a remedy.
    /// Extended codes have the primary one in their lower eight bits.
    #[must_use]
    pub fn of_code(code: &str) -> Option<Self> {
        Some(match code.parse::<i32>().ok()? & 0xFF {
            // PERM, READONLY, CANTOPEN
            3 | 8 | 14 => Self::NotWritable,
            // BUSY, LOCKED
            5 | 6 => Self::Locked,
            // IOERR
            10 => Self::Storage,
            // CORRUPT, NOTADB
            11 | 26 => Self::Damaged,
            // FULL
            13 => Self::Full,
            _ => return None,
        })
    }

    /// Remedy for the operator of the database.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotWritable => {
                "its directory must exist, and this user must be able to write there and to the files that begin with its name"
            }
            Self::Locked => "another process holds it for long: see who with fuser",
            Self::Full => "free space on its disk, or raise its limit",
            Self::Storage => "the file system reported an error: see the kernel's log (dmesg)",
            Self::Damaged => "restore it from a copy, or move it away to begin a new one",
        }
    }
}

/// Renames a damaged database, so that an operator can repair it: `NAME` becomes `NAME.damaged`, and its log of changes,
/// which the repair needs, `NAME.damaged-wal`. Replaces an earlier one. Returns the new path.
///
/// # Errors
/// When the file cannot be renamed.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let with = |suffix: &str| -> PathBuf {
        let mut name = OsString::from(path);
        name.push(suffix);
        name.into()
    };
    let aside = with(".damaged");
    std::fs::rename(path, &aside)?;
    if std::fs::rename(with("-wal"), with(".damaged-wal")).is_err() {
        // A log of another file would be taken for that of this one.
        let _ = std::fs::remove_file(with(".damaged-wal"));
    }
    let _ = std::fs::remove_file(with("-shm"));
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::{SqliteFault, set_aside};

    #[test]
    fn log_stays_with_damaged_file() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let names = || {
            let entries = std::fs::read_dir(directory.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        for name in ["a.db", "a.db-wal", "a.db-shm"] {
            std::fs::write(at(name), name).unwrap();
        }
        assert_eq!(set_aside(&at("a.db")).unwrap(), at("a.db.damaged"));
        assert_eq!(names(), ["a.db.damaged", "a.db.damaged-wal"]);
        assert_eq!(std::fs::read(at("a.db.damaged-wal")).unwrap(), b"a.db-wal");
        std::fs::write(at("a.db"), "second").unwrap();
        set_aside(&at("a.db")).unwrap();
        assert_eq!(names(), ["a.db.damaged"]);
        assert!(set_aside(&at("a.db")).is_err());
    }

    #[test]
    fn extended_codes_have_their_fault() {
        for (code, fault) in [
            ("14", Some(SqliteFault::NotWritable)),
            ("1032", Some(SqliteFault::NotWritable)),
            ("261", Some(SqliteFault::Locked)),
            ("266", Some(SqliteFault::Storage)),
            ("267", Some(SqliteFault::Damaged)),
            ("26", Some(SqliteFault::Damaged)),
            ("13", Some(SqliteFault::Full)),
            ("19", None),
            ("42P01", None),
            ("", None),
        ] {
            assert_eq!(SqliteFault::of_code(code), fault, "{code}");
        }
    }
}
