//! The programs and maps of one pin directory: loading, rules, removal.
//!
//! Rules are replaced atomically: the new set is written under the other generation, one write activates it, then the old
//! set is deleted. A new process takes over the rules that an earlier one left in the maps.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::maps::{Array, Map, MapData, MapError, MapInfo};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};
use penstock_hooks::{KernelError, classifier};

use crate::error::{MarkerError, RuleRefusal};
use crate::maps::{
    self, ActionBytes, FORMAT, NAMES, ProgramKey, ProgramSettings, RuleKey, RuleShape, RuleValue,
    SettingsValue, ShapesValue, action_bytes, generation_of, match_of, program_key, rule_of,
    shapes_of, shapes_value,
};
use crate::rule::LabelAction;
use crate::sockets::SocketTags;
use crate::table::{self, AddressRules, RuleEntry};

static OBJECT: &[u8] = include_bytes_aligned!("../bpf/marker.bpfel.o");

/// Programs at tc hooks.
pub(crate) const CLASSIFIERS: [&str; 4] =
    ["mark_frame", "mark_packet", "make_room_frame", "make_room_packet"];

/// statfs(2)
const BPF_FS_MAGIC: i64 = 0xCAFE_4A11;

/// Delay before old rules are deleted: a program on another CPU may still read them, for microseconds.
const RULE_SWITCH_GRACE: Duration = Duration::from_millis(20);

/// Deepest cgroup that a rule may name, below the root.
pub(crate) const CGROUP_DEPTH_MAX: usize = 15;

/// Most cgroups and most programs with a rule.
pub(crate) const CGROUPS_MAX: usize = 4096;
pub(crate) const PROGRAMS_MAX: usize = 1024;

type BpfHash<K, V> = aya::maps::HashMap<MapData, K, V>;

/// The marker of one pin directory.
pub struct Marker {
    pub(crate) ebpf: Ebpf,
    pub(crate) pin: PathBuf,
    settings: Array<MapData, SettingsValue>,
    shapes_map: Array<MapData, ShapesValue>,
    rules_map: BpfHash<RuleKey, RuleValue>,
    cgroups_map: BpfHash<u64, ActionBytes>,
    programs_map: BpfHash<ProgramKey, ActionBytes>,
    sockets: SocketTags,
    now: ProgramSettings,
    shapes: Vec<RuleShape>,
    rules: AddressRules,
    /// Number of address rules with destination options, and true if a rule by cgroup or program has them.
    rules_with_options: usize,
    owners_with_options: bool,
}

impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules = self.rules.len();
        f.debug_struct("Marker")
            .field("pin", &self.pin)
            .field("rules", &rules)
            .finish_non_exhaustive()
    }
}

impl Marker {
    /// Loads the programs with the maps pinned in `pin`, if any. Attaches nothing.
    ///
    /// # Errors
    /// Without privilege, where `pin` is not on bpffs, and when the kernel refuses.
    pub fn open(pin: &Path) -> Result<Self, MarkerError> {
        prepare(pin)?;
        let directory = pin.join(FORMAT);
        make_directory(&directory)?;
        let paths: Vec<(&str, PathBuf)> =
            NAMES.iter().map(|name| (*name, directory.join(name))).collect();
        let mut loader = EbpfLoader::new();
        for (name, path) in &paths {
            loader.map_pin_path(name, path);
        }
        let mut ebpf = loader.load(OBJECT).map_err(|error| load_error("maps", error))?;
        for name in CLASSIFIERS {
            let program = classifier(&mut ebpf, name)?;
            program.load().map_err(|error| KernelError::program(name, error))?;
        }
        check_layout(&directory)?;
        let mut take = |name: &'static str| ebpf.take_map(name).ok_or(KernelError::Missing(name));
        let settings = typed(take("settings")?)?;
        let shapes_map = typed(take("shapes")?)?;
        let rules_map = typed(take("rules")?)?;
        let cgroups_map = typed(take("cgroups")?)?;
        let programs_map = typed(take("programs")?)?;
        let sockets = SocketTags::of(typed(take("sockets")?)?);
        let mut marker = Self {
            ebpf,
            pin: pin.to_owned(),
            settings,
            shapes_map,
            rules_map,
            cgroups_map,
            programs_map,
            sockets,
            now: ProgramSettings::default(),
            shapes: Vec::new(),
            rules: AddressRules::new(),
            rules_with_options: 0,
            owners_with_options: false,
        };
        marker.take_over()?;
        // An earlier process may have ended after a change and before its activation.
        marker.write_changed(2)?;
        // If the kernel refuses this program, the error is reported when a rule needs it.
        let _ = marker.load_sockets();
        Ok(marker)
    }

    /// Reads the active rules from the maps.
    fn take_over(&mut self) -> Result<(), MarkerError> {
        let failed = |error| MarkerError::kernel("read the rules in force", error);
        self.now = ProgramSettings::of(&self.settings.get(&0, 0).map_err(failed)?);
        let generation = self.now.generation();
        self.shapes = shapes_of(&self.shapes_map.get(&generation.into(), 0).map_err(failed)?);
        for item in self.rules_map.iter() {
            let (key, value) = item.map_err(failed)?;
            if generation_of(&key) != generation {
                continue;
            }
            if let (Some(rule), Some((action, origin, until_s))) =
                (match_of(&key, &self.shapes), rule_of(&value))
            {
                self.rules.insert(rule, RuleEntry { action, origin, until_s });
            }
        }
        self.rules_with_options = self.rules.values().filter(|entry| has_options(entry)).count();
        let has = |value: &ActionBytes| {
            maps::action_of(value).is_some_and(|action| action.method().has_destination())
        };
        self.owners_with_options =
            self.cgroups_map.iter().filter_map(Result::ok).any(|(_, value)| has(&value))
                || self.programs_map.iter().filter_map(Result::ok).any(|(_, value)| has(&value));
        Ok(())
    }

    /// Active address rules; after [`Self::open`] those that an earlier process left.
    #[must_use]
    pub fn rules(&self) -> &AddressRules {
        &self.rules
    }

    /// Kernel ids of the programs that this process has loaded.
    pub(crate) fn own_programs(&self) -> Vec<u32> {
        let programs = CLASSIFIERS.iter().filter_map(|name| self.ebpf.program(name));
        programs.filter_map(|program| Some(program.info().ok()?.id())).collect()
    }

    /// Directory of the pinned maps and links.
    #[must_use]
    pub fn pin(&self) -> &Path {
        &self.pin
    }

    /// Map of socket tags.
    pub fn sockets(&mut self) -> &mut SocketTags {
        &mut self.sockets
    }

    /// Adds or replaces one address rule.
    ///
    /// # Errors
    /// When the rules exceed the kernel's tables.
    pub fn put(&mut self, rule: crate::AddressMatch, entry: RuleEntry) -> Result<(), MarkerError> {
        if let Some(index) = self.shape_of(&rule) {
            if self.rules.len() >= table::RULES_MAX && !self.rules.contains_key(&rule) {
                return Err(RuleRefusal::RulesFull(self.rules.len()).into());
            }
            self.insert(rule, entry, index)?;
            return self.write_changed(2);
        }
        let mut rules = self.rules.clone();
        rules.insert(rule, entry);
        self.set_rules(rules)
    }

    /// Removes one address rule; true if it existed.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn take(&mut self, rule: &crate::AddressMatch) -> Result<bool, MarkerError> {
        let known = self.remove(rule)?;
        if known {
            self.write_changed(2)?;
        }
        Ok(known)
    }

    /// Writes a rule of a known shape; it takes effect after [`Self::write_changed`].
    fn insert(
        &mut self,
        rule: crate::AddressMatch,
        entry: RuleEntry,
        shape: usize,
    ) -> Result<(), MarkerError> {
        let key = maps::rule_key(&rule, shape as u8, self.now.generation());
        let value = maps::rule_value(entry.action, entry.origin, entry.until_s);
        let written = self.rules_map.insert(key, value, 0);
        written.map_err(|error| MarkerError::kernel("write a rule", error))?;
        self.rules_with_options += usize::from(has_options(&entry));
        let old = self.rules.insert(rule, entry);
        self.rules_with_options -= usize::from(old.is_some_and(|old| has_options(&old)));
        Ok(())
    }

    /// Deletes a rule; takes effect after [`Self::write_changed`].
    fn remove(&mut self, rule: &crate::AddressMatch) -> Result<bool, MarkerError> {
        let Some(old) = self.rules.remove(rule) else { return Ok(false) };
        self.rules_with_options -= usize::from(has_options(&old));
        if let Some(index) = self.shape_of(rule) {
            let key = maps::rule_key(rule, index as u8, self.now.generation());
            gone(self.rules_map.remove(&key))?;
        }
        Ok(true)
    }

    fn shape_of(&self, rule: &crate::AddressMatch) -> Option<usize> {
        self.shapes.iter().position(|shape| *shape == RuleShape::of(rule))
    }

    /// Replaces all address rules.
    ///
    /// # Errors
    /// When they exceed the kernel's tables; the former rules then stay active.
    pub fn set_rules(&mut self, rules: AddressRules) -> Result<(), MarkerError> {
        let shapes = table::shapes(&rules)?;
        let failed = |error| MarkerError::kernel("write the rules", error);
        if shapes == self.shapes {
            for (rule, entry) in &rules {
                if let Some(index) = self.shape_of(rule)
                    && self.rules.get(rule) != Some(entry)
                {
                    self.insert(*rule, *entry, index)?;
                }
            }
            let old: Vec<_> =
                self.rules.keys().filter(|rule| !rules.contains_key(rule)).copied().collect();
            for rule in old {
                self.remove(&rule)?;
            }
            return self.write_changed(2);
        }
        let generation = 1 - self.now.generation();
        for (key, value) in table::entries(&rules, &shapes, generation) {
            self.rules_map.insert(key, value, 0).map_err(failed)?;
        }
        self.shapes_map.set(generation.into(), shapes_value(&shapes), 0).map_err(failed)?;
        self.rules_with_options = rules.values().filter(|entry| has_options(entry)).count();
        self.rules = rules;
        self.shapes = shapes;
        self.write_changed(1)?;
        std::thread::sleep(RULE_SWITCH_GRACE);
        let old: Vec<RuleKey> = self
            .rules_map
            .keys()
            .filter_map(Result::ok)
            .filter(|key| generation_of(key) != generation)
            .collect();
        for key in old {
            gone(self.rules_map.remove(&key))?;
        }
        Ok(())
    }

    /// Replaces the rules by cgroup and by program. Cgroups are directories below the mount point of cgroup2, programs
    /// names of at most 15 bytes, as in `/proc/PID/comm`.
    ///
    /// # Errors
    /// For a missing cgroup, or an invalid program name.
    pub fn set_owners(
        &mut self,
        cgroups: &BTreeMap<PathBuf, LabelAction>,
        programs: &BTreeMap<String, LabelAction>,
    ) -> Result<(), MarkerError> {
        if cgroups.len() > CGROUPS_MAX || programs.len() > PROGRAMS_MAX {
            return Err(RuleRefusal::OwnersFull.into());
        }
        let mut ids = HashMap::new();
        let mut levels = 0;
        for (path, action) in cgroups {
            let (id, level) = cgroup(path)?;
            levels |= 1 << level;
            ids.insert(id, action_bytes(*action));
        }
        let mut names = HashMap::new();
        for (name, action) in programs {
            let key = program_key(name).ok_or_else(|| RuleRefusal::ProgramName(name.clone()))?;
            names.insert(key, action_bytes(*action));
        }
        replace(&mut self.cgroups_map, &ids)?;
        replace(&mut self.programs_map, &names)?;
        self.now.cgroup_levels = levels;
        self.now.programs = !programs.is_empty();
        let mut actions = cgroups.values().chain(programs.values());
        self.owners_with_options = actions.any(|action| action.method().has_destination());
        self.write_settings()
    }

    /// Activates a change of address rules: advances the epoch `by` 2 in the same generation, by 1 to switch.
    fn write_changed(&mut self, by: u32) -> Result<(), MarkerError> {
        self.now.epoch = self.now.epoch.wrapping_add(by);
        self.write_settings()
    }

    fn write_settings(&mut self) -> Result<(), MarkerError> {
        // The ingress programs are needed only for destination options.
        self.now.destination = self.owners_with_options || self.rules_with_options > 0;
        let written = self.settings.set(0, self.now.value(), 0);
        written.map_err(|error| MarkerError::kernel("write the settings", error))
    }
}

fn has_options(entry: &RuleEntry) -> bool {
    entry.action.method().has_destination()
}

fn replace<K: aya::Pod + Eq + std::hash::Hash>(
    map: &mut BpfHash<K, ActionBytes>,
    wanted: &HashMap<K, ActionBytes>,
) -> Result<(), MarkerError> {
    let failed = |error| MarkerError::kernel("write the rules", error);
    for (key, value) in wanted {
        map.insert(key, value, 0).map_err(failed)?;
    }
    let old: Vec<K> =
        map.keys().filter_map(Result::ok).filter(|key| !wanted.contains_key(key)).collect();
    for key in old {
        gone(map.remove(&key))?;
    }
    Ok(())
}

/// Ignores errors for missing keys.
fn gone(removed: Result<(), MapError>) -> Result<(), MarkerError> {
    match removed {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(())
        }
        Err(error) => Err(MarkerError::kernel("remove a rule", error)),
    }
}

/// Id of a cgroup and its depth below the root.
fn cgroup(path: &Path) -> Result<(u64, usize), MarkerError> {
    let root = cgroup_root()?;
    let inside = path.strip_prefix("/").unwrap_or(path);
    let level = inside.components().count();
    if level > CGROUP_DEPTH_MAX {
        return Err(RuleRefusal::CgroupDepth(path.to_owned()).into());
    }
    let directory = root.join(inside);
    let facts = fs::metadata(&directory).map_err(|error| RuleRefusal::Cgroup {
        path: path.to_owned(),
        directory: directory.clone(),
        root: root.to_owned(),
        error,
    })?;
    // kernfs: the id of a cgroup is the inode number of its directory.
    Ok((facts.ino(), level))
}

/// Mount point of cgroup2.
pub(crate) fn cgroup_root() -> Result<PathBuf, MarkerError> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let path = words.nth(1)?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(path))
    });
    found.ok_or(MarkerError::Feature {
        what: "cgroup2 file system mounted",
        remedy: "mount it (mount -t cgroup2 none /sys/fs/cgroup), or use rules by address",
    })
}

pub(crate) fn typed<T: TryFrom<Map, Error = MapError>>(map: Map) -> Result<T, MarkerError> {
    T::try_from(map).map_err(|error| MarkerError::kernel("use the pinned maps", error))
}

/// Refuses maps of another layout, which the loader would use unchecked.
fn check_layout(directory: &Path) -> Result<(), MarkerError> {
    for (name, key, value) in maps::MAP_SIZES {
        let path = directory.join(name);
        let info = MapInfo::from_pin(&path)
            .map_err(|error| MarkerError::kernel(format!("open {}", path.display()), error))?;
        if (info.key_size() as usize, info.value_size() as usize) != (key, value) {
            let text = "is of another version: penstock tag stop --pin DIR removes it".to_owned();
            return Err(MarkerError::Pin { path, text });
        }
    }
    Ok(())
}

/// Checks that `pin` is on bpffs, and creates it.
pub(crate) fn prepare(pin: &Path) -> Result<(), MarkerError> {
    let on = |path: &Path| {
        let fs = rustix::fs::statfs(path).ok()?;
        Some(i64::from(fs.f_type as u32) == BPF_FS_MAGIC)
    };
    let existing = pin.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if on(existing) != Some(true) {
        let text = format!(
            "is not on a bpf file system: mount -t bpf bpf /sys/fs/bpf, or give another directory of one with --pin DIR ({} is not)",
            existing.display()
        );
        return Err(MarkerError::Pin { path: pin.to_owned(), text });
    }
    make_directory(pin)
}

fn make_directory(path: &Path) -> Result<(), MarkerError> {
    let dotted = path.file_name().is_some_and(|name| name.to_string_lossy().contains('.'));
    let failed = |error: std::io::Error| {
        let reason = penstock_sys::fs::describe(&error);
        let more = if dotted { ": names with dots are not possible there" } else { "" };
        MarkerError::Pin { path: path.to_owned(), text: format!("cannot make it: {reason}{more}") }
    };
    match fs::create_dir_all(path) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && !dotted => {
            Err(KernelError::Privilege.into())
        }
        made => made.map_err(failed),
    }
}

fn load_error(what: &str, error: aya::EbpfError) -> MarkerError {
    MarkerError::kernel(format!("load the {what} of the marker"), error)
}

/// Detaches and removes everything that a marker pinned in `pin`; other files stay. Returns the removed names.
///
/// # Errors
/// When there is nothing, or it cannot be removed.
pub fn remove(pin: &Path) -> Result<Vec<String>, MarkerError> {
    if !pin.join(FORMAT).is_dir() {
        return Err(MarkerError::Absent(pin.to_owned()));
    }
    let removed = crate::attach::detach_all(pin)?;
    let failed = |path: &Path, error: std::io::Error| MarkerError::Pin {
        path: path.to_owned(),
        text: penstock_sys::fs::describe(&error),
    };
    let directory = pin.join(FORMAT);
    for name in NAMES {
        let path = directory.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(&path, error));
            }
            _ => {}
        }
    }
    fs::remove_dir(&directory).map_err(|error| failed(&directory, error))?;
    // Fails if the directory holds files of other programs.
    let _ = fs::remove_dir(pin);
    Ok(removed)
}
