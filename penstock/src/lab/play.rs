//! `penstock lab run`: plays a scenario in its own lab and reports the results.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use penstock_lab::contention::{Contention, Watch};
use penstock_lab::control::{Directions, LabRequest, LinkReport, RunningLab, ask};
use penstock_lab::plan::LabPlan;
use penstock_lab::scenario::{FILE_BYTES_MAX, Scenario, ScenarioStep, StepAction};
use penstock_topology::Scale;
use serde_json::Value;

use super::up::{self, BackendArg};
use super::{LabDirectories, show};
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::json::lab::{LinkRateSampleJson, Played, ScenarioReportJson};
use crate::progress::ProgressLine;

/// Most bytes of a program's output that are kept.
const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// Environment variable with the directory for output files of programs.
const OUTPUT_VARIABLE: &str = "PENSTOCK_OUTPUT";
/// Longest wait between checks of the play.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The scenario, a TOML file
    scenario: PathBuf,
    /// Value of a variable of the scenario
    #[arg(long = "with", value_name = "NAME=VALUE")]
    values: Vec<String>,
    /// Write the report here, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl ScenarioReportJson {
    /// Reasons why the measurements are invalid; empty if they are valid.
    pub(crate) fn invalid_because(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if !self.disturbed_links.is_empty() {
            reasons.push(format!("packets were late on {}", self.disturbed_links.join(", ")));
        }
        let Contention { foreign_share, waiting_share, disturbed } = self.processors;
        if disturbed {
            reasons.push(format!(
                "other programs took {:.0} % of the processors, and tasks waited for one {:.0} % of the time",
                foreign_share * 100.0,
                waiting_share * 100.0
            ));
        }
        reasons
    }
}

pub(crate) fn run(
    args: &RunArgs,
    labs: &LabDirectories,
    name: Option<&str>,
    json: bool,
) -> Result<Code, CommandFailure> {
    let values = values(&args.values).or_exit(Code::Usage)?;
    let here = std::env::current_dir().context("cannot find the current directory")?;
    let report = play(&args.scenario, &values, labs, name, &here)?;
    let text = serde_json::to_string(&report).map_err(anyhow::Error::from)?;
    if let Some(file) = &args.report {
        std::fs::write(file, format!("{text}\n")).with_context(|| file.display().to_string())?;
    }
    show::print(&if json { format!("{text}\n") } else { show::report(&report) })?;
    let failed = report.programs.iter().any(|one| one.exit.is_some_and(|exit| exit != 0));
    Ok(if failed { Code::Partial } else { Code::Done })
}

fn values(given: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let pair = |text: &String| {
        let (name, value) =
            text.split_once('=').with_context(|| format!("--with {text}: write NAME=VALUE"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    given.iter().map(pair).collect()
}

/// Plays a scenario with these values, ends its lab, and returns the report. Programs find the folder for their files in
/// `PENSTOCK_OUTPUT`.
pub(crate) fn play(
    file: &Path,
    values: &BTreeMap<String, String>,
    labs: &LabDirectories,
    name: Option<&str>,
    output: &Path,
) -> Result<ScenarioReportJson, CommandFailure> {
    let cannot = || format!("cannot read {}", file.display());
    let bytes =
        crate::input::read(file, FILE_BYTES_MAX).with_context(cannot).or_exit(Code::Usage)?;
    let text = String::from_utf8(bytes).with_context(cannot).or_exit(Code::Usage)?;
    let scenario = Scenario::read(&text, values)
        .map_err(|error| anyhow!("{}: {error}", file.display()))
        .or_exit(Code::Usage)?;
    let beside = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let network = crate::topology::text_of(&beside.join(&scenario.topology))?;
    let own_name = format!("{}-{}", scenario.name, std::process::id());
    let directory = labs.directory(name.unwrap_or(&own_name))?;
    let backend = BackendArg::named(&scenario.backend)
        .with_context(|| format!("{}: no backend {:?}", file.display(), scenario.backend))
        .or_exit(Code::Usage)?;
    let scale = scenario.scale.unwrap_or(Scale::FULL);
    let topology = crate::topology::parse(&beside.join(&scenario.topology), &network, scale)?;
    let plan = LabPlan::new(topology).or_exit(Code::Usage)?;
    scenario
        .check(&plan)
        .map_err(|error| anyhow!("{}: {error}", file.display()))
        .or_exit(Code::Usage)?;
    let status = up::start(scale, backend, scenario.seed, &directory, &network, true)?;
    // The lab ends on every path out of here.
    let down = DownOnDrop(&directory);
    let report = Player::new(&scenario, &directory, beside, output, &status).and_then(Player::play);
    drop(down);
    let _ = std::fs::remove_dir_all(&directory);
    Ok(report?)
}

struct DownOnDrop<'a>(&'a Path);

impl Drop for DownOnDrop<'_> {
    fn drop(&mut self) {
        if let Err(error) = ask::<Value>(self.0, &LabRequest::Down) {
            say(format!("the lab does not end: {error}"));
        }
    }
}

/// Output or end of a program.
enum ProgramEvent {
    Printed(usize),
    ShutdownReport(usize, ExitStatus, Vec<u8>, Vec<u8>),
}

struct RunningProgram {
    played: Played,
    child_id: u32,
    background: bool,
}

struct Player<'a> {
    scenario: &'a Scenario,
    directory: &'a Path,
    /// Working directory of programs: that of the scenario.
    beside: &'a Path,
    /// Directory for output files of programs.
    output: &'a Path,
    status: &'a RunningLab,
    progress: ProgressLine,
    watch: Watch,
    began: Instant,
    programs: Vec<RunningProgram>,
    news: (Sender<ProgramEvent>, Receiver<ProgramEvent>),
    samples: Vec<LinkRateSampleJson>,
    last: Option<(f64, Vec<LinkReport>)>,
}

impl<'a> Player<'a> {
    fn new(
        scenario: &'a Scenario,
        directory: &'a Path,
        beside: &'a Path,
        output: &'a Path,
        status: &'a RunningLab,
    ) -> anyhow::Result<Self> {
        let mut progress = ProgressLine::begin();
        progress.update(|| format!("{}: setting hosts up", scenario.name));
        for node in status.nodes.iter().filter(|node| node.host) {
            for (key, value) in &scenario.sysctl {
                let set = format!("{key}={value}");
                let result = inside(
                    directory,
                    &node.name,
                    &["sysctl".into(), "-q".into(), "-w".into(), set],
                )?
                .output()
                .context("cannot run penstock lab exec")?;
                let why = String::from_utf8_lossy(&result.stderr);
                ensure!(result.status.success(), "{}: sysctl {key}: {}", node.name, why.trim());
            }
        }
        let namespaces: Vec<PathBuf> =
            status.nodes.iter().map(|node| node.namespace.clone()).collect();
        let watch = Watch::begin(&namespaces).context("cannot read /proc")?;
        Ok(Self {
            scenario,
            directory,
            beside,
            output,
            status,
            progress,
            watch,
            began: Instant::now(),
            programs: Vec::new(),
            news: channel(),
            samples: Vec::new(),
            last: None,
        })
    }

    fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    fn play(mut self) -> anyhow::Result<ScenarioReportJson> {
        let _: Value = ask(self.directory, &LabRequest::Forgive)?;
        let mut steps: Vec<&ScenarioStep> = self.scenario.step.iter().collect();
        steps.sort_by_key(|step| step.at.unwrap_or_default());
        let mut left: Vec<&ScenarioStep> = steps;
        let limit = self.scenario.limit();
        loop {
            let now = self.began.elapsed();
            ensure!(now < limit, "the play was not over within {} s: see limit", limit.as_secs());
            if let Some(at) = left.iter().position(|step| self.is_due(step, now)) {
                let step = left.remove(at);
                self.act(step)?;
                continue;
            }
            let runs = self
                .programs
                .iter()
                .any(|one| !one.background && one.played.ended_seconds.is_none());
            // Remaining steps that only change links have no effect without programs.
            if !runs && left.iter().all(|step| step.run.is_none()) {
                break;
            }
            let next =
                left.iter().filter(|step| step.after.is_none()).filter_map(|step| step.at).min();
            let sample = self.scenario.sample.map(|every| self.next_sample(every));
            let until = [next, sample, Some(now + POLL_INTERVAL)]
                .into_iter()
                .flatten()
                .min()
                .unwrap_or(now);
            self.show_progress();
            match self.news.1.recv_timeout(until.saturating_sub(now)) {
                Ok(news) => self.record(news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if sample.is_some_and(|sample| self.began.elapsed() >= sample) {
                self.sample()?;
            }
        }
        let steps = self.scenario.step.iter().enumerate();
        let is_left = |step: &ScenarioStep| left.iter().any(|one| std::ptr::eq(*one, step));
        let steps_left = steps.filter(|(_, step)| is_left(step)).map(|(at, _)| at + 1).collect();
        self.end(steps_left)
    }

    /// Shows the running programs.
    fn show_progress(&mut self) {
        let (seconds, scenario, programs) = (self.seconds(), self.scenario, &self.programs);
        self.progress.update(|| {
            let runs = programs.iter().filter(|one| one.played.ended_seconds.is_none());
            let names: Vec<&str> = runs.map(|one| one.played.name.as_str()).collect();
            let line = format!("{}, {seconds:.0} s: {}", scenario.name, names.join(", "));
            line.chars().take(78).collect()
        });
    }

    fn is_due(&self, step: &ScenarioStep, now: Duration) -> bool {
        let at = step.at.unwrap_or_default();
        match &step.after {
            Some(after) => {
                let ended = |one: &RunningProgram| {
                    one.played.ended_seconds.filter(|_| one.played.name == *after)
                };
                let ended = self.programs.iter().find_map(ended);
                ended.is_some_and(|ended| Duration::from_secs_f64(ended) + at <= now)
            }
            None => at <= now,
        }
    }

    fn next_sample(&self, every: Duration) -> Duration {
        self.last.as_ref().map_or(Duration::ZERO, |(at, _)| Duration::from_secs_f64(*at) + every)
    }

    fn act(&mut self, step: &ScenarioStep) -> anyhow::Result<()> {
        let action = step.action()?;
        let request = match action {
            StepAction::Run { name, host, command, until } => {
                return self.start(name, host, command, until);
            }
            StepAction::Set(link, settings) => LabRequest::Set {
                link: link.to_owned(),
                settings: settings.to_vec(),
                directions: Directions::Both,
            },
            StepAction::Cut(link) => {
                LabRequest::Cut { link: link.to_owned(), directions: Directions::Both }
            }
            StepAction::Mend(link) => LabRequest::Mend { link: link.to_owned() },
            StepAction::Route([from, to], links) => {
                LabRequest::Route { from: from.clone(), to: to.clone(), links: links.to_vec() }
            }
        };
        let _: Value = ask(self.directory, &request)?;
        Ok(())
    }

    fn start(
        &mut self,
        name: &str,
        host: &str,
        command: &[String],
        until: Option<&str>,
    ) -> anyhow::Result<()> {
        self.show_progress();
        let mut child = inside(self.directory, host, command)?
            .current_dir(self.beside)
            .env(OUTPUT_VARIABLE, self.output)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run penstock lab exec")?;
        let number = self.programs.len();
        self.programs.push(RunningProgram {
            played: Played {
                name: name.to_owned(),
                host: host.to_owned(),
                command: command.to_vec(),
                began_seconds: self.seconds(),
                ended_seconds: None,
                exit: None,
                output: Value::Null,
                errors: String::new(),
            },
            child_id: child.id(),
            background: until.is_some(),
        });
        let out = child.stdout.take().context("no output")?;
        let err = child.stderr.take().context("no errors")?;
        let news = self.news.0.clone();
        let wanted = until.map(|text| text.as_bytes().to_vec());
        thread::spawn(move || listen(number, child, [Box::new(out), Box::new(err)], wanted, &news));
        if until.is_some() {
            let waited = Instant::now();
            self.await_printed(number)?;
            // The clock of the play stops meanwhile.
            self.began += waited.elapsed();
        }
        Ok(())
    }

    fn await_printed(&mut self, number: usize) -> anyhow::Result<()> {
        let since = Instant::now();
        let within = self.scenario.until_within();
        loop {
            self.show_progress();
            let left = within.saturating_sub(since.elapsed());
            let name = self.programs[number].played.name.clone();
            let news = match self.news.1.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(news) => news,
                Err(_) if left > POLL_INTERVAL => continue,
                Err(_) => {
                    let within = within.as_secs();
                    return Err(anyhow!(
                        "{name} did not print what its until waits for in {within} s"
                    ));
                }
            };
            match news {
                ProgramEvent::Printed(of) if of == number => return Ok(()),
                ProgramEvent::ShutdownReport(of, status, ..) if of == number => {
                    if let ProgramEvent::ShutdownReport(_, _, out, err) = &news {
                        let text = String::from_utf8_lossy(if err.is_empty() { out } else { err });
                        return Err(anyhow!("{name} ended ({status}): {}", text.trim()));
                    }
                }
                other => self.record(other),
            }
        }
    }

    fn record(&mut self, news: ProgramEvent) {
        let seconds = self.seconds();
        if let ProgramEvent::ShutdownReport(number, status, out, err) = news {
            let played = &mut self.programs[number].played;
            played.ended_seconds = Some(seconds);
            played.exit = status.code();
            let text = String::from_utf8_lossy(&out);
            played.output =
                serde_json::from_str(&text).unwrap_or_else(|_| Value::String(text.into_owned()));
            played.errors = String::from_utf8_lossy(&err).trim().to_owned();
        }
    }

    fn sample(&mut self) -> anyhow::Result<()> {
        let status: RunningLab = ask(self.directory, &LabRequest::Status)?;
        let seconds = self.seconds();
        if let Some((before, links)) = &self.last {
            let took = seconds - before;
            let rate = |now: &LinkReport, then: &LinkReport, side: usize| {
                let bytes = |link: &LinkReport| link.directions[side].counters.wire_bytes;
                bytes(now).saturating_sub(bytes(then)) as f64 * 8.0 / took
            };
            let rates = status.links.iter().zip(links);
            let rates = rates
                .map(|(now, then)| (now.name.clone(), [0, 1].map(|side| rate(now, then, side))));
            self.samples.push(LinkRateSampleJson { seconds, bits_per_second: rates.collect() });
        }
        self.last = Some((seconds, status.links));
        Ok(())
    }

    fn end(mut self, steps_left: Vec<usize>) -> anyhow::Result<ScenarioReportJson> {
        if self.scenario.sample.is_some() {
            self.sample()?;
        }
        let seconds = self.seconds();
        let processors = self.watch.end().context("cannot read /proc")?;
        let status: RunningLab = ask(self.directory, &LabRequest::Status)?;
        let disturbed =
            status.links.iter().filter(|link| link.directions.iter().any(|one| one.disturbed));
        let disturbed_links: Vec<String> = disturbed.map(|link| link.name.clone()).collect();
        // End programs that still run, and collect their output.
        for program in self.programs.iter().filter(|one| one.played.ended_seconds.is_none()) {
            penstock_sys::machine::kill(program.child_id);
        }
        while self.programs.iter().any(|one| one.played.ended_seconds.is_none()) {
            match self.news.1.recv_timeout(self.scenario.until_within()) {
                Ok(news) => self.record(news),
                Err(_) => break,
            }
        }
        Ok(ScenarioReportJson {
            scenario: self.scenario.name.clone(),
            kernel: penstock_sys::machine::kernel_release(),
            backend: self.status.backend.to_string(),
            seconds,
            valid: disturbed_links.is_empty() && !processors.disturbed,
            disturbed_links,
            processors,
            programs: self.programs.into_iter().map(|one| one.played).collect(),
            links: status.links,
            samples: self.samples,
            steps_left,
        })
    }
}

/// Wraps a command so that it runs on a host.
fn inside(directory: &Path, host: &str, command: &[String]) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut inside = Command::new(&program);
    let name = directory.file_name().unwrap_or_default();
    inside.args(["lab", "--lab"]).arg(name).args(["exec", "--state", host, "--"]);
    for word in command {
        if word == "penstock" {
            inside.arg(&program)
        } else {
            inside.arg(word)
        };
    }
    Ok(inside)
}

/// Collects the output of a program until its end.
fn listen(
    number: usize,
    mut child: Child,
    outputs: [Box<dyn Read + Send>; 2],
    wanted: Option<Vec<u8>>,
    news: &Sender<ProgramEvent>,
) {
    let [out, err] = outputs.map(|output| {
        let (news, wanted) = (news.clone(), wanted.clone());
        thread::spawn(move || gather(number, output, wanted, &news))
    });
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    if let Ok(status) = child.wait() {
        let _ = news.send(ProgramEvent::ShutdownReport(number, status, out, err));
    }
}

fn gather(
    number: usize,
    output: Box<dyn Read + Send>,
    wanted: Option<Vec<u8>>,
    news: &Sender<ProgramEvent>,
) -> Vec<u8> {
    let mut reader = BufReader::new(output);
    let (mut all, mut line) = (Vec::new(), Vec::new());
    let mut wanted = wanted;
    while reader
        .by_ref()
        .take(OUTPUT_BYTES_MAX as u64)
        .read_until(b'\n', &mut line)
        .is_ok_and(|count| count > 0)
    {
        if let Some(text) = &wanted
            && line.windows(text.len().max(1)).any(|part| part == text)
        {
            let _ = news.send(ProgramEvent::Printed(number));
            wanted = None;
        }
        if all.len() + line.len() <= OUTPUT_BYTES_MAX {
            all.append(&mut line);
        }
        line.clear();
    }
    all
}
