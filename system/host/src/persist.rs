//! Persists changes over restarts: sysctls in a sysctl.d file, all others in a list that a oneshot unit applies at boot.
//!
//! Other files are not touched; the journal records the former content first.
//!
//! Fails with the file that cannot be written, or could not be restored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::apply::{ApplyOutcome, TunableStore, set};
use crate::change::Tunable;
use crate::facts::sysctls;
use crate::journal::{
    JournalContents, JournalRecord, PersistRequest, SavedFile, TuningJournal, TuningJournalError,
};
use crate::restore::write_whole;

/// Sorts after `99-sysctl.conf`, which distributions ship: the last file wins.
const SYSCTL_FILE: &str = "etc/sysctl.d/99-zz-penstock.conf";
/// Other directories of sysctl settings, and the file that `sysctl --system` reads last.
const SYSCTL_PLACES: [&str; 5] =
    ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"];
const SYSCTL_LAST: &str = "etc/sysctl.conf";
/// Pairs of sysctls of which the kernel zeroes one when the other is written.
const ONE_OF_TWO: [[&str; 2]; 2] = [
    ["vm.dirty_bytes", "vm.dirty_ratio"],
    ["vm.dirty_background_bytes", "vm.dirty_background_ratio"],
];
const SETTINGS_FILE: &str = "etc/penstock/host.json";
const UNIT_FILE: &str = "etc/systemd/system/penstock-host.service";
const UNIT_LINK: &str = "etc/systemd/system/multi-user.target.wants/penstock-host.service";

const SETTINGS_VERSION: u32 = 1;

/// Largest list of settings in bytes.
pub const SETTINGS_BYTES_MAX: usize = 4 << 20;

/// Settings that are applied at boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsFile {
    version: u32,
    settings: Vec<PersistedSetting>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PersistedSetting {
    #[serde(rename = "knob")]
    tunable: Tunable,
    value: String,
}

enum Text {
    File(String),
    Link(PathBuf),
}

/// A failure to persist changes.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] TuningJournalError),
    /// A file cannot be written.
    #[error("{}: cannot be written", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A link or a binary file, which could not be restored.
    #[error("{}: is no text file of its own: move it away first", path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
    },
}

/// Changes that are persisted from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PersistReport {
    /// Files that were written.
    pub files: Vec<PathBuf>,
    /// Names of the persisted tunables.
    pub settings: Vec<String>,
    /// Lines of later files that override them.
    pub overruled_by: Vec<String>,
}

/// Writes the files below `keep.below` for the changes of its rules in the journal and those already persisted. The unit
/// starts `program`.
///
/// # Errors
/// As [`PersistError`] says.
pub fn persist(
    journal: &TuningJournal,
    boot_id: &str,
    keep: &PersistRequest,
    program: &Path,
) -> Result<PersistReport, PersistError> {
    let root = &keep.below;
    let contents = journal.read()?;
    let kept = settings_to_keep(&contents, boot_id, &keep.rules);
    if kept.is_empty() {
        return Ok(PersistReport::default());
    }
    let (mut sysctls, mut others) = (BTreeMap::new(), Vec::new());
    let mut lines = String::new();
    for (tunable, value) in &kept {
        match tunable {
            Tunable::Sysctl { key } if is_made_zero(key, value, &kept) => {}
            Tunable::Sysctl { key } => {
                let _ = writeln!(lines, "{key} = {value}");
                sysctls.insert(key.as_str(), *value);
            }
            tunable => others
                .push(PersistedSetting { tunable: (*tunable).clone(), value: (*value).to_owned() }),
        }
    }
    let mut files: Vec<(PathBuf, Text)> = Vec::new();
    if !sysctls.is_empty() {
        let head =
            "# Written by penstock host tune --persist; penstock host restore takes it away.\n";
        files.push((root.join(SYSCTL_FILE), Text::File(format!("{head}{lines}"))));
    }
    if !others.is_empty() {
        let list = SettingsFile { version: SETTINGS_VERSION, settings: others };
        let text = serde_json::to_string_pretty(&list);
        let text = text.unwrap_or_else(|error| unreachable!("settings are plain data: {error}"));
        files.push((root.join(SETTINGS_FILE), Text::File(text + "\n")));
        files.push((root.join(UNIT_FILE), Text::File(unit(program))));
        // The link that `systemctl enable` creates; an existing one has the same target.
        if fs::symlink_metadata(root.join(UNIT_LINK)).is_err() {
            files.push((root.join(UNIT_LINK), Text::Link(Path::new("/").join(UNIT_FILE))));
        }
    }
    journal.add(&JournalRecord::Files {
        files: files.iter().map(|(path, text)| was(path, text)).collect::<Result<_, _>>()?,
        directories: missing_directories(files.iter().map(|(path, _)| path.as_path())),
        settings: kept.iter().map(|(tunable, _)| (*tunable).clone()).collect(),
    })?;
    for (path, text) in &files {
        let written = fs::create_dir_all(path.parent().unwrap_or(root));
        let write = || match text {
            Text::File(text) => write_whole(path, text),
            Text::Link(target) => symlink(target, path),
        };
        written
            .and_then(|()| write())
            .map_err(|source| PersistError::File { path: path.clone(), source })?;
    }
    Ok(PersistReport {
        files: files.into_iter().map(|(path, _)| path).collect(),
        settings: kept.iter().map(|(tunable, _)| tunable.to_string()).collect(),
        overruled_by: overruling(root, &sysctls),
    })
}

/// Settings to persist in the order of their first change, each with its last value.
fn settings_to_keep<'a>(
    contents: &'a JournalContents,
    boot_id: &str,
    rules: &[String],
) -> Vec<(&'a Tunable, &'a str)> {
    let mut kept: Vec<(&Tunable, &str)> = Vec::new();
    for (number, session) in contents.sessions.iter().enumerate() {
        if session.is_waiting() {
            continue;
        }
        let later = contents.sessions[number..].iter();
        let later = later.filter(|later| later.is_of(&session.boot_id));
        let by_files: BTreeSet<&Tunable> = later.flat_map(|later| &later.kept).collect();
        for (rule, changes) in &session.steps {
            let wanted = session.is_of(boot_id) && rules.contains(rule);
            for change in changes {
                if !(wanted || by_files.contains(&change.tunable)) {
                    continue;
                }
                match kept.iter_mut().find(|(tunable, _)| **tunable == change.tunable) {
                    Some((_, value)) => *value = &change.to,
                    None => kept.push((&change.tunable, &change.to)),
                }
            }
        }
    }
    kept
}

fn is_made_zero(key: &str, value: &str, kept: &[(&Tunable, &str)]) -> bool {
    let other = ONE_OF_TWO.iter().find_map(|[one, two]| match key {
        _ if key == *one => Some(*two),
        _ if key == *two => Some(*one),
        _ => None,
    });
    let is_other = |tunable: &Tunable| matches!(tunable, Tunable::Sysctl { key } if Some(key.as_str()) == other);
    value == "0" && kept.iter().any(|(tunable, value)| is_other(tunable) && *value != "0")
}

/// Reads the current content of a file and adds the new one.
fn was(path: &Path, text: &Text) -> Result<SavedFile, PersistError> {
    let foreign = || PersistError::Foreign { path: path.to_owned() };
    let before = match fs::symlink_metadata(path) {
        Ok(facts) if !facts.is_file() => return Err(foreign()),
        Ok(_) => Some(fs::read_to_string(path).map_err(|_| foreign())?),
        Err(_) => None,
    };
    let after = match text {
        Text::File(text) => Some(text.clone()),
        Text::Link(_) => None,
    };
    Ok(SavedFile { path: path.to_owned(), before, after })
}

/// Missing parent directories, outermost first.
fn missing_directories<'a>(files: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    let above = files.flat_map(|file| file.ancestors().skip(1));
    let missing: BTreeSet<&Path> = above.filter(|directory| !directory.exists()).collect();
    missing.into_iter().map(Path::to_owned).collect()
}

/// Lines of later files that override one of these settings.
fn overruling(root: &Path, sysctls: &BTreeMap<&str, &str>) -> Vec<String> {
    let ours = Path::new(SYSCTL_FILE).file_name().unwrap_or_default();
    let later = SYSCTL_PLACES.iter().flat_map(|place| {
        let entries = fs::read_dir(root.join(place)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| {
            path.extension().is_some_and(|end| end == "conf")
                && path.file_name().is_some_and(|name| name > ours)
        })
    });
    let mut files: Vec<PathBuf> = later.chain([root.join(SYSCTL_LAST)]).collect();
    files.sort();
    let mut found = Vec::new();
    for file in files {
        let text = fs::read(&file).unwrap_or_default();
        for (number, line) in String::from_utf8_lossy(&text).lines().enumerate() {
            let Some((key, value)) = line.split_once('=') else { continue };
            // A leading dash means that errors are ignored.
            let key = key.trim().trim_start_matches('-').replace('/', ".");
            let value = sysctls::normal(value);
            if sysctls.get(key.as_str()).is_some_and(|ours| *ours != value) {
                found.push(format!("{}:{}: {key} = {value}", file.display(), number + 1));
            }
        }
    }
    found
}

fn unit(program: &Path) -> String {
    format!(
        "\
# Written by penstock host tune --persist; penstock host restore takes it away.
[Unit]
Description=TunableStore of network cards, processors and disks for data transfer
After=network.target irqbalance.service tuned.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={} host at-boot /{SETTINGS_FILE}

[Install]
WantedBy=multi-user.target
",
        quoted(program)
    )
}

/// Quotes a path for a unit file (systemd.syntax(7)); a percent sign starts a specifier.
fn quoted(program: &Path) -> String {
    let program = program.display().to_string().replace('%', "%%");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+%".contains(c);
    if program.chars().all(plain) {
        return program;
    }
    format!("\"{}\"", program.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Parses a persisted list of settings.
///
/// # Errors
/// For malformed JSON.
pub fn read(text: &[u8]) -> Result<Vec<(Tunable, String)>, serde_json::Error> {
    let list: SettingsFile = serde_json::from_slice(text)?;
    if list.version != SETTINGS_VERSION {
        let what = format!("version {} of the list is not known", list.version);
        return Err(serde::de::Error::custom(what));
    }
    Ok(list.settings.into_iter().map(|kept| (kept.tunable, kept.value)).collect())
}

/// Applies persisted settings, each read back; returns one outcome for each.
pub fn apply_kept(
    kept: &[(Tunable, String)],
    settings: &mut dyn TunableStore,
) -> Vec<ApplyOutcome> {
    let outcomes = kept.iter().map(|(tunable, value)| {
        let done = set(settings, tunable, value);
        ApplyOutcome {
            rule: tunable.to_string(),
            changed: usize::from(done.is_ok()),
            error: done.err().map(|error| error.to_string()),
        }
    });
    outcomes.collect()
}
