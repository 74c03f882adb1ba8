//! Keeps changes over restarts: settings of the kernel in a file of sysctl.d, all others in a list that a oneshot unit
//! has Penstock apply when the machine starts.
//!
//! Other files are not touched; what each file was is in the journal first.
//!
//! Fails with the file that could not be written, or is not one that could be put back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::apply::{Outcome, Settings, set};
use crate::change::Knob;
use crate::facts::sysctls;
use crate::journal::{Contents, Journal, JournalError, Keep, Kept, Record};
use crate::restore::write_whole;

/// The latest counts: distributions ship `99-sysctl.conf`.
const SYSCTLS: &str = "etc/sysctl.d/99-zz-penstock.conf";
/// Where else such settings are read from, and a file that `sysctl --system` reads after all others.
const SYSCTL_PLACES: [&str; 5] =
    ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d", "lib/sysctl.d"];
const SYSCTL_LAST: &str = "etc/sysctl.conf";
/// Settings of which the kernel makes one zero when the other is written, even where zero is written.
const ONE_OF_TWO: [[&str; 2]; 2] = [
    ["vm.dirty_bytes", "vm.dirty_ratio"],
    ["vm.dirty_background_bytes", "vm.dirty_background_ratio"],
];
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
    /// It is a link, or not text: it could not be put back as it is.
    #[error("{}: is no text file of its own: move it away first", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
    },
}

/// What is kept over restarts from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Lasting {
    /// The files that keep it.
    pub files: Vec<PathBuf>,
    /// The settings.
    pub settings: Vec<String>,
    /// Lines of other files that set them otherwise, later.
    pub overruled_by: Vec<String>,
}

/// Writes the files below `keep.below` for what its rules changed, by the journal, and what files keep already.
/// `program` is what the unit starts.
///
/// # Errors
/// As [`PersistError`] says.
pub fn persist(
    journal: &Journal,
    boot_id: &str,
    keep: &Keep,
    program: &Path,
) -> Result<Lasting, PersistError> {
    let root = &keep.below;
    let contents = journal.read()?;
    let kept = settings_to_keep(&contents, boot_id, &keep.rules);
    if kept.is_empty() {
        return Ok(Lasting::default());
    }
    let (mut sysctls, mut others) = (BTreeMap::new(), Vec::new());
    let mut lines = String::new();
    for (knob, value) in &kept {
        match knob {
            Knob::Sysctl { key } if is_made_zero(key, value, &kept) => {}
            Knob::Sysctl { key } => {
                let _ = writeln!(lines, "{key} = {value}");
                sysctls.insert(key.as_str(), *value);
            }
            knob => others.push(Setting { knob: (*knob).clone(), value: (*value).to_owned() }),
        }
    }
    let mut files: Vec<(PathBuf, Text)> = Vec::new();
    if !sysctls.is_empty() {
        let head =
            "# Written by penstock host tune --persist; penstock host restore takes it away.\n";
        files.push((root.join(SYSCTLS), Text::File(format!("{head}{lines}"))));
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
    journal.add(&Record::Files {
        files: files.iter().map(|(path, text)| was(path, text)).collect::<Result<_, _>>()?,
        directories: missing_directories(files.iter().map(|(path, _)| path.as_path())),
        settings: kept.iter().map(|(knob, _)| (*knob).clone()).collect(),
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
    Ok(Lasting {
        files: files.into_iter().map(|(path, _)| path).collect(),
        settings: kept.iter().map(|(knob, _)| knob.to_string()).collect(),
        overruled_by: overruling(root, &sysctls),
    })
}

/// In the order in which they were first made, each with the last value that was to be kept.
fn settings_to_keep<'a>(
    contents: &'a Contents,
    boot_id: &str,
    rules: &[String],
) -> Vec<(&'a Knob, &'a str)> {
    let mut kept: Vec<(&Knob, &str)> = Vec::new();
    for (number, session) in contents.sessions.iter().enumerate() {
        if session.is_waiting() {
            continue;
        }
        let later = contents.sessions[number..].iter();
        let later = later.filter(|later| later.is_of(&session.boot_id));
        let by_files: BTreeSet<&Knob> = later.flat_map(|later| &later.kept).collect();
        for (rule, changes) in &session.steps {
            let wanted = session.is_of(boot_id) && rules.contains(rule);
            for change in changes {
                if !(wanted || by_files.contains(&change.knob)) {
                    continue;
                }
                match kept.iter_mut().find(|(knob, _)| **knob == change.knob) {
                    Some((_, value)) => *value = &change.to,
                    None => kept.push((&change.knob, &change.to)),
                }
            }
        }
    }
    kept
}

fn is_made_zero(key: &str, value: &str, kept: &[(&Knob, &str)]) -> bool {
    let other = ONE_OF_TWO.iter().find_map(|[one, two]| match key {
        _ if key == *one => Some(*two),
        _ if key == *two => Some(*one),
        _ => None,
    });
    let is_other =
        |knob: &Knob| matches!(knob, Knob::Sysctl { key } if Some(key.as_str()) == other);
    value == "0" && kept.iter().any(|(knob, value)| is_other(knob) && *value != "0")
}

/// A file as it is, and as it will be.
fn was(path: &Path, text: &Text) -> Result<Kept, PersistError> {
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
    Ok(Kept { path: path.to_owned(), before, after })
}

/// Directories that these files need, the outermost first.
fn missing_directories<'a>(files: impl Iterator<Item = &'a Path>) -> Vec<PathBuf> {
    let above = files.flat_map(|file| file.ancestors().skip(1));
    let missing: BTreeSet<&Path> = above.filter(|directory| !directory.exists()).collect();
    missing.into_iter().map(Path::to_owned).collect()
}

/// Lines of files that are read after ours and set one of these settings otherwise.
fn overruling(root: &Path, sysctls: &BTreeMap<&str, &str>) -> Vec<String> {
    let ours = Path::new(SYSCTLS).file_name().unwrap_or_default();
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
            // A dash before it: no matter if it fails.
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
Description=Settings of network cards, processors and disks for data transfer
After=network.target irqbalance.service tuned.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={} host at-boot /{SETTINGS}

[Install]
WantedBy=multi-user.target
",
        quoted(program)
    )
}

/// As a word of a unit: systemd.syntax(7), quoting; a percent sign begins a specifier.
fn quoted(program: &Path) -> String {
    let program = program.display().to_string().replace('%', "%%");
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+%".contains(c);
    if program.chars().all(plain) {
        return program;
    }
    format!("\"{}\"", program.replace('\\', "\\\\").replace('"', "\\\""))
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
