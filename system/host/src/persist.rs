//! Keeps changes over restarts: settings of the kernel in a file of sysctl.d, all others in a list that a oneshot unit
//! has Penstock apply when the machine starts.
//!
//! Links to disk files are not followed, other files are not touched; what each file was is in the journal first.
//!
//! Fails with the file that could not be written.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::apply::{Outcome, Settings, set};
use crate::change::{Change, Knob};
use crate::journal::{Contents, Journal, JournalError, Kept, Record};
use crate::restore::write_whole;

const SYSCTLS: &str = "etc/sysctl.d/90-penstock.conf";
const SETTINGS: &str = "etc/penstock/host.json";
const UNIT: &str = "etc/systemd/system/penstock-host.service";
const WANTED: &str = "etc/systemd/system/multi-user.target.wants/penstock-host.service";

const SETTINGS_VERSION: u32 = 1;

/// Longest list of settings.
pub const SETTINGS_BYTES_MAX: usize = 4 << 20;

/// The list of settings that are applied when the machine starts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsFile {
    version: u32,
    settings: Vec<Setting>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    knob: Knob,
    value: String,
}

enum Text {
    File(String),
    Link(PathBuf),
}

/// A failure to keep changes.
#[derive(Debug, thiserror::Error)]
pub enum PersistError {
    /// The journal has to know first.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file cannot be written.
    #[error("{}: cannot be written", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Writes the files below `root` for everything that the journal says is changed, and gives their names. `program` is
/// what the unit starts.
///
/// # Errors
/// As [`PersistError`] says.
pub fn persist(
    journal: &Journal,
    contents: &Contents,
    root: &Path,
    program: &Path,
) -> Result<Vec<PathBuf>, PersistError> {
    let mut now: BTreeMap<&Knob, &str> = BTreeMap::new();
    for change in contents.sessions.iter().flat_map(|session| &session.steps).flat_map(|(_, c)| c) {
        now.insert(&change.knob, &change.to);
    }
    let mut files: Vec<(PathBuf, Text)> = Vec::new();
    let (mut sysctls, mut others) = (String::new(), Vec::new());
    // In the order in which they were made.
    for change in ordered(contents) {
        let Some(value) = now.remove(&change.knob) else { continue };
        match &change.knob {
            Knob::Sysctl { key } => {
                let _ = writeln!(sysctls, "{key} = {value}");
            }
            knob => others.push(Setting { knob: knob.clone(), value: value.to_owned() }),
        }
    }
    if !sysctls.is_empty() {
        let head =
            "# Written by penstock host tune --persist; penstock host restore takes it away.\n";
        files.push((root.join(SYSCTLS), Text::File(format!("{head}{sysctls}"))));
    }
    if !others.is_empty() {
        let list = SettingsFile { version: SETTINGS_VERSION, settings: others };
        let text = serde_json::to_string_pretty(&list);
        let text = text.unwrap_or_else(|error| unreachable!("settings are plain data: {error}"));
        files.push((root.join(SETTINGS), Text::File(text + "\n")));
        files.push((root.join(UNIT), Text::File(unit(program))));
        // What systemctl enable makes. One that is there already leads there too.
        if fs::symlink_metadata(root.join(WANTED)).is_err() {
            files.push((root.join(WANTED), Text::Link(Path::new("/").join(UNIT))));
        }
    }
    let kept = files.iter().map(|(path, _)| {
        let before = fs::read_to_string(path).ok();
        Kept { path: path.clone(), before }
    });
    journal.add(&Record::Files { files: kept.collect() })?;
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
    Ok(files.into_iter().map(|(path, _)| path).collect())
}

fn ordered(contents: &Contents) -> impl Iterator<Item = &Change> {
    contents.sessions.iter().flat_map(|session| &session.steps).flat_map(|(_, changes)| changes)
}

fn unit(program: &Path) -> String {
    format!(
        "\
# Written by penstock host tune --persist; penstock host restore takes it away.
[Unit]
Description=Settings of network cards, processors and disks for data transfer
After=network.target irqbalance.service tuned.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={} host at-boot /{SETTINGS}

[Install]
WantedBy=multi-user.target
",
        program.display()
    )
}

/// The settings of a list that was kept, and their values.
///
/// # Errors
/// When it is not such a list.
pub fn read(text: &[u8]) -> Result<Vec<(Knob, String)>, serde_json::Error> {
    let list: SettingsFile = serde_json::from_slice(text)?;
    if list.version != SETTINGS_VERSION {
        let what = format!("version {} of the list is not known", list.version);
        return Err(serde::de::Error::custom(what));
    }
    Ok(list.settings.into_iter().map(|kept| (kept.knob, kept.value)).collect())
}

/// Applies settings that were kept, each read back; one outcome for each.
pub fn apply_kept(kept: &[(Knob, String)], settings: &mut dyn Settings) -> Vec<Outcome> {
    let outcomes = kept.iter().map(|(knob, value)| {
        let done = set(settings, knob, value);
        Outcome { rule: knob.to_string(), changed: usize::from(done.is_ok()), error: done.err() }
    });
    outcomes.collect()
}
