//! Scenario files: timed steps in a lab that run programs on hosts and change links.
//!
//! ```toml
//! name = "cut"
//! topology = "../topologies/sc14.toml"     # beside this file
//! scale = "1/10"
//! sample = "500ms"
//!
//! [sysctl]                                 # of every host
//! "net.ipv4.tcp_rmem" = "4096 131072 ${buffer}"
//!
//! [[step]]
//! name = "server"
//! host = "umich"
//! run = ["iperf3", "-s"]
//! until = "listening"                      # output that starts later steps
//!
//! [[step]]
//! at = "1s"
//! name = "flow"
//! host = "r920"
//! run = ["iperf3", "-c", "umich", "-J", "-t", "10"]
//!
//! [[step]]
//! at = "5s"
//! cut = "wan"
//! ```
//!
//! `${name}` is a variable, given on the command line or by its default in `[with]`. A program with `until` runs in the
//! background until the scenario ends, which is when all other programs have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_topology::{LinkId, Scale};
use penstock_units::parse_duration;
use serde::{Deserialize, Deserializer, de};

use crate::plan::{LabPlan, PlanError};
use crate::setting::{LinkSetting, LinkSettingError};

/// Largest scenario file in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
const STEPS_MAX: usize = 1000;
/// Time-out for the `until` text of a program.
const UNTIL_TIMEOUT: Duration = Duration::from_secs(30);
const TIME_LIMIT_DEFAULT: Duration = Duration::from_secs(600);

/// A parsed scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario in the results.
    pub name: String,
    /// Heading of reports; may be empty.
    #[serde(default)]
    pub title: String,
    /// Topology file, relative to the scenario file.
    pub topology: String,
    /// Factor for rates and queues.
    #[serde(default, deserialize_with = "scale")]
    pub scale: Option<Scale>,
    /// `auto`, `nfqueue` or `netem`.
    #[serde(default = "auto")]
    pub backend: String,
    /// Seed of losses and jitter.
    #[serde(default = "one")]
    pub seed: u64,
    /// Sampling interval of link counters; `None` takes no samples.
    #[serde(default, deserialize_with = "duration")]
    pub sample: Option<Duration>,
    /// Time limit of the whole scenario.
    #[serde(default, deserialize_with = "duration")]
    pub limit: Option<Duration>,
    /// Default values of variables.
    #[serde(default)]
    pub with: BTreeMap<String, String>,
    /// Sysctls set on all hosts.
    #[serde(default)]
    pub sysctl: BTreeMap<String, String>,
    /// Steps in file order.
    #[serde(default)]
    pub step: Vec<ScenarioStep>,
}

/// One step: exactly one action, with its time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioStep {
    /// Time from the start, or from the end of the program `after`; `None` is at once.
    #[serde(default, deserialize_with = "duration")]
    pub at: Option<Duration>,
    /// Waits for the end of this program.
    pub after: Option<String>,
    /// Name of the program in results.
    pub name: Option<String>,
    /// Host on which the program runs.
    pub host: Option<String>,
    /// The program and its arguments; `penstock` is this program.
    pub run: Option<Vec<String>>,
    /// Output of a background program that starts later steps.
    pub until: Option<String>,
    /// Link whose settings change.
    pub set: Option<String>,
    /// New settings as `delay=30ms`.
    #[serde(default)]
    pub to: Vec<String>,
    /// Name of the link to cut.
    pub cut: Option<String>,
    /// Name of the link to restore.
    pub mend: Option<String>,
    /// Two hosts whose traffic is pinned to `links`.
    pub route: Option<[String; 2]>,
    /// Path of the pinned traffic.
    #[serde(default)]
    pub links: Vec<String>,
}

/// Action of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum StepAction<'a> {
    /// Runs a program.
    Run {
        /// Name in results.
        name: &'a str,
        /// Host on which it runs.
        host: &'a str,
        /// Program and arguments.
        command: &'a [String],
        /// Output after which later steps start.
        until: Option<&'a str>,
    },
    /// Changes settings of a link.
    Set(&'a str, &'a [String]),
    /// Cuts a link.
    Cut(&'a str),
    /// Restores a cut link.
    Mend(&'a str),
    /// Pins traffic of two hosts to a path.
    Route(&'a [String; 2], &'a [String]),
}

/// Fault of a step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepFault {
    /// A program without a host.
    #[error("run needs a host")]
    NoHost,
    /// An empty command.
    #[error("run needs a program")]
    NoProgram,
    /// No action.
    #[error("it does nothing: write run, set, cut, mend or route")]
    NoAction,
    /// Several actions.
    #[error("it does several things: write a step for each")]
    SeveralActions,
    /// `set` without settings.
    #[error("it sets nothing: write what to = [\"delay=30ms\"]")]
    NoSetting,
    /// An invalid setting.
    #[error(transparent)]
    Setting(#[from] LinkSettingError),
    /// A program that waits for its own end.
    #[error("{0} cannot begin after its own end")]
    OwnEnd(String),
    /// A step after the end of a program that the scenario does not have.
    #[error("after = {0:?}, but no program has that name")]
    UnknownProgram(String),
    /// A program after the end of a program that runs until all others have ended.
    #[error(
        "it waits for the end of {0}, which runs on until the play is over, and that is when all others have ended"
    )]
    AfterBackground(String),
    /// A host, link or route that the plan does not have.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// An invalid scenario file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// Invalid TOML or unknown fields.
    #[error("line {line}: {message}")]
    Form {
        /// Line in the file, from 1.
        line: usize,
        /// Message of the parser, in one line.
        message: String,
    },
    /// More steps than a scenario has.
    #[error("more than {STEPS_MAX} steps")]
    TooManySteps,
    /// A variable has no value.
    #[error("${{{0}}} has no value: give --with {0}=VALUE, or a default in [with]")]
    Variable(String),
    /// An invalid step.
    #[error("step {number}: {fault}")]
    Step {
        /// Position in the file, from 1.
        number: usize,
        /// Fault of the step.
        fault: StepFault,
    },
}

impl Scenario {
    /// Parses a scenario and substitutes variables.
    ///
    /// # Errors
    /// The first fault.
    pub fn read(text: &str, values: &BTreeMap<String, String>) -> Result<Self, ScenarioError> {
        let form = |error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(0, |before| before.matches('\n').count()) + 1;
            ScenarioError::Form { line, message: error.message().replace('\n', " ") }
        };
        // First pass for the defaults, which contain no variables; second pass with all values.
        #[derive(Deserialize)]
        struct Defaults {
            #[serde(default)]
            with: BTreeMap<String, String>,
        }
        let mut all = toml::from_str::<Defaults>(text).map_err(form)?.with;
        all.extend(values.clone());
        let scenario: Self = toml::from_str(&filled(text, &all)?).map_err(form)?;
        if scenario.step.len() > STEPS_MAX {
            return Err(ScenarioError::TooManySteps);
        }
        for (number, step) in scenario.step.iter().enumerate() {
            scenario
                .check_step(step)
                .map_err(|fault| ScenarioError::Step { number: number + 1, fault })?;
        }
        Ok(scenario)
    }

    fn check_step(&self, step: &ScenarioStep) -> Result<(), StepFault> {
        let action = step.action()?;
        if matches!(action, StepAction::Set(_, [])) {
            return Err(StepFault::NoSetting);
        }
        if let (StepAction::Run { name, .. }, Some(after)) = (&action, &step.after)
            && name == after
        {
            return Err(StepFault::OwnEnd(after.clone()));
        }
        for setting in &step.to {
            setting.parse::<LinkSetting>()?;
        }
        if let Some(after) = &step.after {
            let named = |step: &&ScenarioStep| step.name.as_ref() == Some(after);
            let other = self.step.iter().find(named);
            let other = other.ok_or_else(|| StepFault::UnknownProgram(after.clone()))?;
            if other.until.is_some() && step.run.is_some() {
                return Err(StepFault::AfterBackground(after.clone()));
            }
        }
        Ok(())
    }

    /// Checks that the hosts and links it names exist in a plan.
    ///
    /// # Errors
    /// The first missing one.
    pub fn check(&self, plan: &LabPlan) -> Result<(), ScenarioError> {
        for (number, step) in self.step.iter().enumerate() {
            check_names(plan, step)
                .map_err(|fault| ScenarioError::Step { number: number + 1, fault })?;
        }
        Ok(())
    }

    /// Time limit of the whole scenario.
    #[must_use]
    pub fn limit(&self) -> Duration {
        self.limit.unwrap_or(TIME_LIMIT_DEFAULT)
    }

    /// Time-out for the `until` text of a program.
    #[must_use]
    pub const fn until_within(&self) -> Duration {
        UNTIL_TIMEOUT
    }
}

fn check_names(plan: &LabPlan, step: &ScenarioStep) -> Result<(), StepFault> {
    match step.action()? {
        StepAction::Run { host, .. } => plan.node_named(host).map(|_| ()).map_err(PlanError::from),
        StepAction::Set(link, _) | StepAction::Cut(link) | StepAction::Mend(link) => {
            plan.link_named(link).map(|_| ()).map_err(PlanError::from)
        }
        StepAction::Route(ends, links) => check_route(plan, ends, links),
    }?;
    Ok(())
}

fn check_route(
    plan: &LabPlan,
    [from, to]: &[String; 2],
    links: &[String],
) -> Result<(), PlanError> {
    let links: Vec<LinkId> =
        links.iter().map(|link| plan.link_named(link)).collect::<Result<_, _>>()?;
    plan.pin(plan.party_named(from)?, plan.party_named(to)?, &links).map(|_| ())
}

impl ScenarioStep {
    /// Returns the one action of the step.
    ///
    /// # Errors
    /// When the step does not have exactly one.
    pub fn action(&self) -> Result<StepAction<'_>, StepFault> {
        let mut actions = Vec::new();
        if let Some(command) = &self.run {
            let host = self.host.as_deref().ok_or(StepFault::NoHost)?;
            let name = self.name.as_deref().or(command.first().map(String::as_str));
            let name = name.ok_or(StepFault::NoProgram)?;
            actions.push(StepAction::Run { name, host, command, until: self.until.as_deref() });
        }
        if let Some(link) = &self.set {
            actions.push(StepAction::Set(link, &self.to));
        }
        actions.extend(self.cut.as_deref().map(StepAction::Cut));
        actions.extend(self.mend.as_deref().map(StepAction::Mend));
        if let Some(ends) = &self.route {
            actions.push(StepAction::Route(ends, &self.links));
        }
        let action = actions.pop().ok_or(StepFault::NoAction)?;
        if actions.is_empty() { Ok(action) } else { Err(StepFault::SeveralActions) }
    }
}

/// Substitutes `${name}` outside comments.
fn filled(text: &str, values: &BTreeMap<String, String>) -> Result<String, ScenarioError> {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        let is_comment = line.trim_start().starts_with('#');
        while let Some((before, after)) = rest.split_once("${").filter(|_| !is_comment) {
            out += before;
            let Some((name, after)) = after.split_once('}') else {
                out += "${";
                rest = after;
                continue;
            };
            let value = values.get(name).ok_or_else(|| ScenarioError::Variable(name.to_owned()))?;
            // Variables stand inside TOML strings.
            out += &value.replace('\\', "\\\\").replace('"', "\\\"");
            rest = after;
        }
        out += rest;
    }
    Ok(out)
}

fn auto() -> String {
    "auto".to_owned()
}

const fn one() -> u64 {
    1
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).map(Some).map_err(de::Error::custom)
}

fn scale<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Scale>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse().map(Some).map_err(de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        name = "n"
        topology = "t.toml"
        scale = "1/10"
        [with]
        seconds = "10"
        [[step]]
        name = "server"
        host = "b"
        run = ["iperf3", "-s"]
        until = "listening"
        [[step]]
        at = "1s"
        host = "a"
        run = ["iperf3", "-c", "b", "-t", "${seconds}"]
        [[step]]
        at = "2s"
        set = "wan"
        to = ["loss=1%"]
        [[step]]
        after = "server"
        cut = "wan"
    "#;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn variables_have_values_or_defaults() {
        let command = |scenario: &Scenario| scenario.step[1].run.clone().unwrap()[4].clone();
        assert_eq!(command(&Scenario::read(TEXT, &values(&[])).unwrap()), "10");
        assert_eq!(command(&Scenario::read(TEXT, &values(&[("seconds", "3\"")])).unwrap()), "3\"");
        let missing =
            Scenario::read(&TEXT.replace("seconds =", "other ="), &values(&[])).unwrap_err();
        assert!(missing.to_string().contains("--with seconds=VALUE"), "{missing}");
    }

    #[test]
    fn step_has_exactly_one_action() {
        let scenario = Scenario::read(TEXT, &values(&[])).unwrap();
        let actions: Vec<StepAction<'_>> =
            scenario.step.iter().map(|step| step.action().unwrap()).collect();
        assert!(matches!(
            actions[0],
            StepAction::Run { name: "server", until: Some("listening"), .. }
        ));
        assert!(matches!(actions[1], StepAction::Run { name: "iperf3", host: "a", .. }));
        assert_eq!(actions[3], StepAction::Cut("wan"));
        for (from, to, why) in [
            ("cut = \"wan\"", "", "it does nothing"),
            ("cut = \"wan\"", "cut = \"wan\"\nmend = \"wan\"", "several things"),
            ("host = \"b\"", "", "needs a host"),
            ("loss=1%", "loss=x", "write a share"),
            ("after = \"server\"", "after = \"none\"", "no program has that name"),
            ("to = [\"loss=1%\"]", "to = []", "it sets nothing"),
            ("until = \"listening\"", "after = \"server\"", "its own end"),
            ("at = \"1s\"", "after = \"server\"", "runs on until the play is over"),
            ("at = \"1s\"", "at = \"soon\"", "soon"),
            ("at = \"1s\"", "att = \"1s\"", "unknown field"),
        ] {
            let error =
                Scenario::read(&TEXT.replace(from, to), &values(&[])).unwrap_err().to_string();
            assert!(error.contains(why), "{to}: {error}");
        }
        let comment = TEXT.replace("[with]", "# costs ${money}\n[with]");
        assert!(Scenario::read(&comment, &values(&[])).is_ok());
    }

    #[test]
    fn what_a_step_names_is_there() {
        let network = r#"
            name = "t"
            host = [{ name = "a" }, { name = "b" }]
            [[link]]
            name = "wan"
            ends = ["a", "b"]
            rate = "1G"
        "#;
        let plan = LabPlan::new(penstock_topology::Topology::read(network).unwrap()).unwrap();
        assert_eq!(Scenario::read(TEXT, &values(&[])).unwrap().check(&plan), Ok(()));
        for (from, to, why) in [
            (
                "host = \"b\"",
                "host = \"c\"",
                "step 1: there is no host or switch \"c\": there are a, b",
            ),
            ("set = \"wan\"", "set = \"won\"", "step 3: there is no link \"won\": there are wan"),
            (
                "cut = \"wan\"",
                "route = [\"a\", \"b\"]\nlinks = []",
                "step 4: the way ends at a, not at b",
            ),
        ] {
            let scenario = Scenario::read(&TEXT.replace(from, to), &values(&[])).unwrap();
            assert_eq!(scenario.check(&plan).unwrap_err().to_string(), why);
        }
    }
}
