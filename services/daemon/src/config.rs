//! Reader of configurations: one TOML file, `PENSTOCK_*` variables, and the errors of both.
//!
//! Each role reads its own table of the file into types of its own ([`ConfigFile::table`]); the types of values that
//! several roles have are in [`values`]. Paths in the file are relative to its directory.
//!
//! An error is one line that names the file and line, the variable or the flag, and the remedy. Unknown keys are
//! errors that suggest the nearest known key.

use std::error::Error;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use penstock_units::ByteCount;
use serde::de::DeserializeOwned;

mod table;
pub mod values;

pub use values::ValueError;

/// Read if it exists and no other file is named.
pub const DEFAULT_FILE: &str = "/etc/penstock/penstock.toml";

const FILE_BYTES_MAX: u64 = 4 << 20;

/// Longest distance of a suggested key, as a part of its length.
const SUGGESTION_DISTANCE_DIVISOR: usize = 3;

/// An error of a value or a table, which the role that reads it defines: the fault and its remedy, in one line.
pub type ConfigFault = Box<dyn Error + Send + Sync>;

/// An error in the configuration, in one line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file that cannot be read.
    #[error("{}: {}", file.display(), penstock_sys::fs::describe(source))]
    Unreadable {
        /// Path of the file.
        file: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A file above the limit.
    #[error("{}: longer than {} for a configuration", file.display(), ByteCount(FILE_BYTES_MAX))]
    TooLong {
        /// Path of the file.
        file: PathBuf,
    },
    /// An error at a line of the file.
    #[error("{}:{line}: {source}", file.display())]
    Line {
        /// Path of the file.
        file: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Fault of the line.
        source: ConfigFault,
    },
    /// An error of the file without a line: it lacks something, or has too much of it.
    #[error("{}: {source}", file.display())]
    File {
        /// Path of the file.
        file: PathBuf,
        /// Fault of the file.
        source: ConfigFault,
    },
    /// An environment variable that is not UTF-8.
    #[error("environment variable {0}: is not UTF-8")]
    VariableEncoding(&'static str),
    /// An environment variable with an invalid value.
    #[error("environment variable {name}: {source}")]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Fault of the value.
        source: ConfigFault,
    },
    /// A host to listen on that does not resolve.
    #[error("cannot listen on {host}: {error}: give an address of this machine")]
    ListenHost {
        /// Host as configured.
        host: String,
        /// Error of the resolver.
        error: io::Error,
    },
    /// An error of the combined layers, which the role defines.
    #[error(transparent)]
    Combined(ConfigFault),
}

impl ConfigError {
    /// Creates an error of the combined layers.
    pub fn combined(error: impl Into<ConfigFault>) -> Self {
        Self::Combined(error.into())
    }
}

/// Environment variables. Empty ones count as absent: compose files and charts always name them.
#[derive(Clone, Copy)]
pub struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl std::fmt::Debug for Environment<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").finish_non_exhaustive()
    }
}

impl Environment<'static> {
    /// The environment of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self(&|name| std::env::var_os(name))
    }
}

impl<'a> Environment<'a> {
    /// Variables that `variable` returns.
    #[must_use]
    pub fn new(variable: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self(variable)
    }

    /// Value of the variable `name`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<OsString> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// Path in the variable `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.value(name).map(PathBuf::from)
    }

    /// Value of the variable `name` as `parse` reads it.
    ///
    /// # Errors
    /// When the value is not UTF-8 or `parse` fails.
    pub fn parsed<T, E: Into<ConfigFault>>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let text = value.to_str().ok_or(ConfigError::VariableEncoding(name))?;
        parse(text).map(Some).map_err(|fault| ConfigError::Variable { name, source: fault.into() })
    }
}

/// Path of the configuration file: the named one, else that of `PENSTOCK_CONFIG`, else [`DEFAULT_FILE`] if it exists.
#[must_use]
pub fn find_file(named: Option<&Path>, environment: Environment<'_>) -> Option<PathBuf> {
    let named = named.map(PathBuf::from).or_else(|| environment.path("PENSTOCK_CONFIG"));
    named.or_else(|| Some(PathBuf::from(DEFAULT_FILE)).filter(|file| file.exists()))
}

/// A configuration file with its text, for values and errors with line numbers.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than 4 MiB.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |source| ConfigError::Unreadable { file: path.to_owned(), source };
        let facts = std::fs::metadata(path).map_err(unreadable)?;
        if facts.len() > FILE_BYTES_MAX {
            return Err(ConfigError::TooLong { file: path.to_owned() });
        }
        Ok(Self::from_text(path, std::fs::read_to_string(path).map_err(unreadable)?))
    }

    /// A file at `path` that contains `text`.
    #[must_use]
    pub fn from_text(path: &Path, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), text: text.into() }
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Absolute form of a path in the file, which is relative to the file's directory.
    #[must_use]
    pub fn beside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.path.parent().unwrap_or(Path::new(".")).join(path)
    }

    /// Deserializes the whole document.
    ///
    /// # Errors
    /// When it is no TOML, or has an unknown key or a wrong value.
    pub fn document<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(&self.text).map_err(|error| self.parse_error(&error))
    }

    /// The table `name` of the document; `None` where the document has none. Other tables are not checked.
    ///
    /// # Errors
    /// When the document is no TOML, or the table has an unknown key or a wrong value.
    pub fn table<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ConfigError> {
        table::read(&self.text, name).map_err(|error| self.parse_error(&error))
    }

    /// Returns true if the document has the table `name`; false where it is no TOML.
    #[must_use]
    pub fn has_table(&self, name: &str) -> bool {
        let table: Result<toml::Table, _> = self.text.parse();
        table.is_ok_and(|table| table.contains_key(name))
    }

    /// An error at the byte `offset` of the text: the start of a [`toml::Spanned`] value.
    pub fn error_at(&self, offset: usize, fault: impl Into<ConfigFault>) -> ConfigError {
        ConfigError::Line {
            file: self.path.clone(),
            line: self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1,
            source: fault.into(),
        }
    }

    /// An error of the file as a whole.
    pub fn error(&self, fault: impl Into<ConfigFault>) -> ConfigError {
        ConfigError::File { file: self.path.clone(), source: fault.into() }
    }

    fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        let offset = error.span().map_or(0, |span| span.start);
        self.error_at(offset, with_suggestion(&error.message().replace('\n', " ")))
    }
}

/// Appends the nearest known key to serde's message about an unknown one.
fn with_suggestion(message: &str) -> String {
    let suggestion = message
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once("`, expected "))
        .and_then(|(unknown, known)| nearest(unknown, known.split('`').skip(1).step_by(2)));
    match suggestion {
        Some(key) => format!("{message}; did you mean `{key}`?"),
        None => message.to_owned(),
    }
}

fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|key| (strsim::osa_distance(unknown, key), key))
        .filter(|(distance, key)| *distance <= key.len().div_ceil(SUGGESTION_DISTANCE_DIVISOR))
        .min()
        .map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use toml::Spanned;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RoleTable {
        listen: Option<Spanned<String>>,
        #[serde(default)]
        site: Vec<SiteTable>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SiteTable {
        #[serde(rename = "name")]
        _name: String,
    }

    fn file(text: &str) -> ConfigFile {
        ConfigFile::from_text(Path::new("/etc/p.toml"), text)
    }

    #[test]
    fn table_is_read_without_others() {
        let file = file("[other]\nx = 1\n[role]\nlisten = \"a\"\n[[role.site]]\nname = \"s\"\n");
        let table: RoleTable = file.table("role").unwrap().unwrap();
        let listen = table.listen.unwrap();
        let error = file.error_at(listen.span().start, "wrong");
        assert_eq!((listen.get_ref().as_str(), table.site.len()), ("a", 1));
        assert_eq!(error.to_string(), "/etc/p.toml:4: wrong");
        assert!(file.table::<RoleTable>("none").unwrap().is_none());
        assert!(file.has_table("other") && !file.has_table("none"));
        assert_eq!(file.beside("a/b"), Path::new("/etc/a/b"));
    }

    #[test]
    fn unknown_keys_suggest_the_nearest() {
        for (text, error) in [
            (
                "[role]\nlistem = \"a\"\n",
                "/etc/p.toml:2: unknown field `listem`, expected `listen` or `site`; did you mean `listen`?",
            ),
            (
                "\n[role]\ncolour = \"a\"\n",
                "/etc/p.toml:3: unknown field `colour`, expected `listen` or `site`",
            ),
            (
                "[role]\n[[role.site]]\nname = \"a\"\nnam = \"b\"\n",
                "/etc/p.toml:4: unknown field `nam`, expected `name`; did you mean `name`?",
            ),
        ] {
            let read = file(text).table::<RoleTable>("role").unwrap_err();
            assert_eq!(read.to_string(), error);
        }
    }

    #[test]
    fn empty_variable_counts_as_absent() {
        let variable = |name: &str| match name {
            "PENSTOCK_A" => Some("".into()),
            "PENSTOCK_B" => Some("x".into()),
            _ => None,
        };
        let environment = Environment::new(&variable);
        assert_eq!(environment.parsed("PENSTOCK_A", str::parse::<u8>).unwrap(), None);
        let error = environment.parsed("PENSTOCK_B", str::parse::<u8>).unwrap_err();
        assert!(error.to_string().starts_with("environment variable PENSTOCK_B: "), "{error}");
    }
}
