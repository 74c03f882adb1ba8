//! Status of a marker from its pinned maps, also without a running process.

use std::collections::BTreeMap;
use std::path::Path;

use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use penstock_scitags::Scitag;

use crate::attach::{AttachedMarker, attachments, names_sockets};
use crate::error::MarkerError;
use crate::maps::{
    ActionBytes, CountValue, FORMAT, LabelKey, ProgramKey, ProgramSettings, RuleKey, RuleValue,
    SettingsValue, ShapesValue, action_of, count_of, generation_of, match_of, rule_of, shapes_of,
};
use crate::marker::typed;
use crate::rule::{LabelAction, Method};
use crate::table::{AddressRules, RuleEntry};

/// Packets and bytes on the wire, Ethernet header included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets; a super-packet counts as its segments.
    pub packets: u64,
    /// Bytes, with the headers of each segment.
    pub bytes: u64,
}

/// Reasons for unlabelled packets, with descriptions, in the order of the kernel's counters.
pub const REASONS: [(&str, &str); 10] = [
    ("ipv4", "IPv4 has no flow label"),
    ("other", "neither IPv4 nor IPv6"),
    ("unmatched", "IPv6, and no rule matches"),
    ("no_room", "no room for the option within the MTU: connections older than the rule"),
    ("too_big", "no room for the option in a packet of 64 KiB"),
    ("unsupported", "no option beside other extension headers, BIG TCP, in-band VLAN tags, SCTP"),
    ("refused", "the kernel did not let the packet be changed"),
    ("malformed", "cut off or not what it says"),
    ("uncounted", "labelled, and more than 4096 labels to count"),
    ("excluded", "a rule says none"),
];

/// Labelled packets of one tag by one method.
pub type Labelled = BTreeMap<(Scitag, Method), Count>;

/// Rules and counters of a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerStatus {
    /// Programs attached to devices.
    pub attached: Vec<AttachedMarker>,
    /// True if process names of sockets are recorded.
    pub names_sockets: bool,
    /// Address rules in force.
    pub rules: AddressRules,
    /// Look-ups for a packet that matches no address rule.
    pub shapes: usize,
    /// Rules by cgroup id.
    pub cgroups: BTreeMap<u64, LabelAction>,
    /// Rules by process name.
    pub programs: BTreeMap<String, LabelAction>,
    /// Counters of labelled packets.
    pub labelled: Labelled,
    /// Counters of unlabelled packets, in the order of [`REASONS`].
    pub passed: [Count; REASONS.len()],
}

/// Reads rules and counters from the pinned maps.
///
/// # Errors
/// When no marker has pinned its maps there, or this user may not read them.
pub fn read(pin: &Path) -> Result<MarkerStatus, MarkerError> {
    let failed = |error| MarkerError::kernel("read the pinned maps", error);
    let settings: Array<_, SettingsValue> = typed(open(pin, "settings")?)?;
    let settings = ProgramSettings::of(&settings.get(&0, 0).map_err(failed)?);
    let shapes: Array<_, ShapesValue> = typed(open(pin, "shapes")?)?;
    let shapes = shapes_of(&shapes.get(&settings.generation().into(), 0).map_err(failed)?);
    let table: HashMap<_, RuleKey, RuleValue> = typed(open(pin, "rules")?)?;
    let mut rules = AddressRules::new();
    for (key, value) in table.iter().filter_map(Result::ok) {
        if generation_of(&key) != settings.generation() {
            continue;
        }
        if let (Some(rule), Some((action, origin, until_s))) =
            (match_of(&key, &shapes), rule_of(&value))
        {
            rules.insert(rule, RuleEntry { action, origin, until_s });
        }
    }
    let table: HashMap<_, u64, ActionBytes> = typed(open(pin, "cgroups")?)?;
    let cgroups = table
        .iter()
        .filter_map(Result::ok)
        .filter_map(|(id, value)| Some((id, action_of(&value)?)))
        .collect();
    let table: HashMap<_, ProgramKey, ActionBytes> = typed(open(pin, "programs")?)?;
    let programs = table
        .iter()
        .filter_map(Result::ok)
        .filter_map(|(key, value)| {
            let end = key.iter().position(|byte| *byte == 0).unwrap_or(key.len());
            Some((String::from_utf8_lossy(&key[..end]).into_owned(), action_of(&value)?))
        })
        .collect();
    let (labelled, passed) = counters(pin)?;
    Ok(MarkerStatus {
        attached: attachments(pin),
        names_sockets: names_sockets(pin),
        rules,
        shapes: shapes.len(),
        cgroups,
        programs,
        labelled,
        passed,
    })
}

/// Reads only the counters.
///
/// # Errors
/// Like [`read`].
pub fn counters(pin: &Path) -> Result<(Labelled, [Count; REASONS.len()]), MarkerError> {
    let failed = |error| MarkerError::kernel("read the counters", error);
    let slots: HashMap<_, LabelKey, u32> = typed(open(pin, "slots")?)?;
    let table: PerCpuArray<_, CountValue> = typed(open(pin, "labelled")?)?;
    let mut labelled = Labelled::new();
    for (key, slot) in slots.iter().filter_map(Result::ok).filter(|(_, slot)| *slot < table.len()) {
        let owner = u16::from_be_bytes([key[0], key[1]]);
        let tag = Scitag::new(owner.into(), key[2].into()).ok();
        if let Some(what) = tag.zip(Method::from_bits(key[3])) {
            labelled.insert(what, sum(table.get(&slot, 0).map_err(failed)?.iter()));
        }
    }
    let table: PerCpuArray<_, CountValue> = typed(open(pin, "passed")?)?;
    let mut passed = [Count::default(); REASONS.len()];
    for (index, count) in (0..table.len()).zip(&mut passed) {
        *count = sum(table.get(&index, 0).map_err(failed)?.iter());
    }
    Ok((labelled, passed))
}

fn sum<'a>(values: impl Iterator<Item = &'a CountValue>) -> Count {
    values.fold(Count::default(), |sum, value| {
        let (packets, bytes) = count_of(value);
        Count {
            packets: sum.packets.saturating_add(packets),
            bytes: sum.bytes.saturating_add(bytes),
        }
    })
}

fn open(pin: &Path, name: &str) -> Result<Map, MarkerError> {
    let path = pin.join(FORMAT).join(name);
    match path.try_exists() {
        Ok(true) => {}
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(penstock_hooks::KernelError::Privilege.into());
        }
        _ => return Err(MarkerError::Absent(pin.to_owned())),
    }
    MapData::from_pin(&path)
        .and_then(Map::from_map_data)
        .map_err(|error| MarkerError::kernel(format!("open {}", path.display()), error))
}
