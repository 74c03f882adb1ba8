//! `penstock lab`.

use std::collections::BTreeMap;

use penstock_lab::contention::Contention;
use penstock_lab::control::{LinkReport, MeasuredLink, RunningLab};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A lab that came up.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Up {
    /// Hosts, switches and links.
    pub(crate) lab: RunningLab,
    /// Measurements of the links; empty with `--no-calibration` and for more than 24 links.
    pub(crate) calibration: Vec<MeasuredLink>,
}

/// A lab that ended.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Down {
    /// Name of the lab.
    pub(crate) down: String,
    /// True where its process had been killed before.
    pub(crate) died: bool,
    /// Hosts that it had; null where it had died.
    pub(crate) hosts: Option<usize>,
    /// Switches that it had; null where it had died.
    pub(crate) switches: Option<usize>,
    /// Links that it had; null where it had died.
    pub(crate) links: Option<usize>,
    /// Processes that still ran in it and were ended.
    pub(crate) processes_ended: usize,
}

/// Result of `lab calibrate`.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CalibrationJson {
    /// Links, in the order of the arguments or of the topology.
    pub(crate) links: Vec<MeasuredLink>,
}

/// State of a lab, and the names of all.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LabStatus {
    /// State of the lab.
    #[serde(flatten)]
    pub(crate) status: RunningLab,
    /// Names of the labs that are up.
    pub(crate) labs: Vec<String>,
    /// Names of labs whose process was killed: `penstock lab down --lab NAME` removes what they left.
    pub(crate) died: Vec<String>,
}

/// Labs of this user, where several are up or none.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Labs {
    /// Names of the labs that are up.
    pub(crate) labs: Vec<String>,
    /// Names of labs whose process was killed: `penstock lab down --lab NAME` removes what they left.
    pub(crate) died: Vec<String>,
}

/// Result of a scenario.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ScenarioReportJson {
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Emulation of the links: `nfqueue`, `tap` or `netem`.
    pub(crate) backend: String,
    /// Duration of the scenario.
    pub(crate) seconds: f64,
    /// True where neither late packets nor other programs on the processors make the measurements invalid.
    pub(crate) valid: bool,
    /// Links that delivered packets too late.
    pub(crate) disturbed_links: Vec<String>,
    /// Use of the processors by other programs.
    pub(crate) processors: Contention,
    /// Programs of the steps.
    pub(crate) programs: Vec<Played>,
    /// Links at the end.
    pub(crate) links: Vec<LinkReport>,
    /// Rates of the links over time.
    pub(crate) samples: Vec<LinkRateSampleJson>,
    /// Numbers of steps, from 1, whose time had not come when the last program ended.
    pub(crate) steps_left: Vec<usize>,
}

/// A program that ran in a scenario.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Played {
    /// Name of its step.
    pub(crate) name: String,
    /// Host on which it ran.
    pub(crate) host: String,
    /// Program and its arguments.
    pub(crate) command: Vec<String>,
    /// Start, from the start of the scenario.
    pub(crate) began_seconds: f64,
    /// End, from the start of the scenario; null where it ran until the scenario ended.
    pub(crate) ended_seconds: Option<f64>,
    /// Exit code; null where it ran until the scenario ended, or a signal ended it.
    pub(crate) exit: Option<i32>,
    /// Standard output: the JSON value where it is one, else the text.
    pub(crate) output: Value,
    /// Text on standard error.
    pub(crate) errors: String,
}

/// Rates of the links at a time.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LinkRateSampleJson {
    /// Time from the start of the scenario.
    pub(crate) seconds: f64,
    /// Rates on the wire since the sample before, by link: from its first end to its second, and back.
    pub(crate) bits_per_second: BTreeMap<String, [f64; 2]>,
}
