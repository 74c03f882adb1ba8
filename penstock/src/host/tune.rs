//! `penstock host tune` and `restore`: the plan, its application, the guard that reverts what nobody confirms, what is
//! kept over restarts, and the way back.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow};
use penstock_agent::state::{State, default_directory};
use penstock_host::apply::{How, Machine, Outcome, apply};
use penstock_host::change::{Change, Knob};
use penstock_host::journal::{Journal, Record, Session};
use penstock_host::persist::{self, SETTINGS_BYTES_MAX};
use penstock_host::plan::{Plan, Selection, plan};
use penstock_host::restore::{Restored, restore as put_back};
use penstock_host::rules::judge;
use penstock_units::{display_duration, parse_duration};
use serde_json::json;

use super::{Wanted, check, goal_object, print, table};
use crate::exit::{Code, Failure, OrExit, say};
use crate::input;

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// Make the changes
    #[arg(long, conflicts_with = "facts")]
    apply: bool,
    /// Keep them over restarts: sysctl.d, and a unit for the rest; with --revert-after once confirmed
    #[arg(long, requires = "apply")]
    persist: bool,
    /// Put everything back after this time unless confirmed, for those who tune over the wire
    #[arg(long, value_name = "TIME", requires = "apply", value_parser = parse_duration)]
    revert_after: Option<Duration>,
    /// Keep what was applied with --revert-after
    #[arg(long, conflicts_with_all = ["apply", "facts", "only", "also", "skip"])]
    confirm: bool,
    /// These rules alone
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = name)]
    only: Vec<String>,
    /// These rules too, although a plan leaves them out
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = name)]
    also: Vec<String>,
    /// Not these rules
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = name)]
    skip: Vec<String>,
    /// Write what persists below another directory
    #[arg(long, hide = true, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct GuardArgs {
    #[arg(long)]
    id: String,
    #[arg(long, value_parser = parse_duration)]
    after: Duration,
}

fn name(text: &str) -> Result<String, String> {
    super::rule(text).map(|rule| rule.name.to_owned())
}

pub(super) fn run(args: &TuneArgs, json: bool) -> Result<Code, Failure> {
    if args.confirm {
        return confirm(json);
    }
    let facts = args.wanted.facts()?;
    let case = args.wanted.case(&facts)?;
    let selection =
        Selection { only: args.only.clone(), also: args.also.clone(), skip: args.skip.clone() };
    let plan = plan(&judge(&case), &selection);
    let mut object = json!({ "goal": goal_object(&case.goal), "plan": plan });
    if !json {
        let mut text = format!("{}\n{}\n\n", check::describe(&facts), super::goal_line(&case.goal));
        text += &plan_text(&plan, !args.apply);
        print(&text)?;
    }
    if !args.apply || plan.steps.is_empty() {
        if json {
            print(&format!("{object}\n"))?;
        }
        return Ok(Code::Done);
    }
    let session = carry_out(args, &plan, json)?;
    let code = session.code(plan.steps.len());
    if json {
        object["id"] = json!(session.id);
        object["outcomes"] = json!(session.outcomes);
        object["files"] = json!(session.files);
        object["revert_after_seconds"] = json!(args.revert_after.map(|after| after.as_secs_f64()));
        print(&format!("{object}\n"))?;
    } else {
        print(&session.text(args))?;
    }
    Ok(code)
}

struct Applied {
    id: String,
    outcomes: Vec<Outcome>,
    files: Vec<PathBuf>,
}

impl Applied {
    fn failed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.error.is_some()).count()
    }

    fn code(&self, steps: usize) -> Code {
        match self.failed() {
            0 => Code::Done,
            failed if failed == steps => Code::Failed,
            _ => Code::Partial,
        }
    }

    fn text(&self, args: &TuneArgs) -> String {
        let changed: usize = self.outcomes.iter().map(|outcome| outcome.changed).sum();
        if changed == 0 {
            return "\nnothing was changed\n".to_owned();
        }
        let mut text = format!("\n{changed} settings changed and read back");
        if self.failed() > 0 {
            let _ = write!(text, ", {} rules left as they were", self.failed());
        }
        text += "; penstock host restore puts them back\n";
        for file in &self.files {
            let _ = writeln!(text, "kept over restarts in {}", file.display());
        }
        if let Some(after) = args.revert_after {
            let _ = writeln!(
                text,
                "all of it goes back in {} unless: penstock host tune --confirm",
                display_duration(after)
            );
        } else if !args.persist {
            text += "a restart of the machine undoes them (--persist keeps them)\n";
        }
        text
    }
}

fn carry_out(args: &TuneArgs, plan: &Plan, json: bool) -> Result<Applied, Failure> {
    let journal = open()?;
    let before = journal.read().context("nothing was changed").or_exit(Code::Failed)?;
    let boot = boot_id()?;
    let waits = |session: &&Session| session.is_waiting() && session.boot_id == boot;
    if let Some(waiting) = before.sessions.iter().find(waits) {
        let rules: Vec<&str> = waiting.steps.iter().map(|(rule, _)| rule.as_str()).collect();
        let why = anyhow!(
            "changes wait to be confirmed ({}): penstock host tune --confirm, or penstock host restore",
            rules.join(", ")
        );
        return Err(Failure::new(Code::Failed, why));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{}-{}", now.as_nanos(), std::process::id());
    // Before the first change: whatever cuts the connection is put back.
    if let Some(after) = args.revert_after {
        start_guard(&id, after).context("what would put the changes back; nothing was changed")?;
    }
    let mut told = |outcome: &Outcome| {
        if !json {
            // A reader that is gone is no reason to stop between two rules.
            let _ = print(&outcome_line(outcome));
        }
    };
    let how = How {
        id: id.clone(),
        boot_id: boot,
        revert_after: args.revert_after,
        keep_below: args.persist.then(|| args.root.clone()),
    };
    let outcomes =
        apply(plan, &how, &journal, &mut Machine, &mut told).map_err(anyhow::Error::from)?;
    let mut files = Vec::new();
    if args.persist && args.revert_after.is_none() {
        files = keep(&journal, &args.root)?;
    }
    Ok(Applied { id, outcomes, files })
}

fn outcome_line(outcome: &Outcome) -> String {
    match &outcome.error {
        None => format!("done    {}\n", outcome.rule),
        Some(error) => format!("failed  {}: {error}\n", outcome.rule),
    }
}

fn keep(journal: &Journal, root: &Path) -> Result<Vec<PathBuf>, Failure> {
    let program = std::env::current_exe().context("where this program is")?;
    let contents = journal.read().map_err(anyhow::Error::from)?;
    Ok(persist::persist(journal, &contents, root, &program).map_err(anyhow::Error::from)?)
}

/// The journal of this network namespace, in the state directory.
fn open() -> Result<Journal, Failure> {
    let state = default_directory().or_exit(Code::Usage)?;
    State::open(&state).or_exit(Code::Failed)?;
    let namespace = namespace();
    Ok(Journal::open(&state.join("host"), namespace.as_deref()).map_err(anyhow::Error::from)?)
}

/// The number of this network namespace; none for the first.
fn namespace() -> Option<String> {
    if Path::new("/proc/sys/net/core/netdev_max_backlog").exists() {
        return None;
    }
    let target = std::fs::read_link("/proc/self/ns/net").ok()?;
    let target = target.to_string_lossy();
    Some(target.chars().filter(char::is_ascii_digit).collect())
}

fn boot_id() -> Result<String, Failure> {
    Ok(penstock_sys::machine::boot_id().context("this boot has no number")?)
}

/// A process of its own session, which outlives this one and the connection it came by. It runs when this returns.
fn start_guard(id: &str, after: Duration) -> anyhow::Result<()> {
    use std::io::{BufRead, BufReader};
    let program = std::env::current_exe()?;
    let mut guard = Command::new(program);
    guard.args(["host", "guard", "--id", id, "--after", &format!("{}ns", after.as_nanos())]);
    guard.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut guard: Child = guard.spawn()?;
    let mut line = String::new();
    if let Some(output) = guard.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim() == READY { Ok(()) } else { Err(anyhow!("it ended at once")) }
}

/// What a guard says when nothing but its end or its time ends it.
const READY: &str = "ready";

pub(super) fn guard(args: &GuardArgs) -> Result<Code, Failure> {
    penstock_sys::machine::leave_session()?;
    let begun = Instant::now();
    print(&format!("{READY}\n"))?;
    while let Some(left) = args.after.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
    // A state directory that was taken away since is not made again.
    if !default_directory().or_exit(Code::Usage)?.join("host").exists() {
        return Ok(Code::Done);
    }
    let journal = open()?;
    let contents = journal.read().map_err(anyhow::Error::from)?;
    if contents.sessions.iter().any(|session| session.id == args.id && session.is_waiting()) {
        put_back(&journal, &boot_id()?, Some(&args.id), &mut Machine)
            .map_err(anyhow::Error::from)?;
    }
    Ok(Code::Done)
}

fn confirm(json: bool) -> Result<Code, Failure> {
    let journal = open()?;
    let contents = journal.read().map_err(anyhow::Error::from)?;
    let boot = boot_id()?;
    let waits = |session: &&Session| session.is_waiting() && session.boot_id == boot;
    let waiting: Vec<_> = contents.sessions.iter().filter(waits).collect();
    if waiting.is_empty() {
        return Err(anyhow!(
            "nothing waits to be confirmed: it was put back, or applied without --revert-after"
        )
        .into());
    }
    let settings: usize =
        waiting.iter().flat_map(|session| &session.steps).map(|(_, changes)| changes.len()).sum();
    journal.add(&Record::Confirmed).map_err(anyhow::Error::from)?;
    let root = waiting.iter().find_map(|session| session.keep_below.as_deref());
    let files = root.map_or(Ok(Vec::new()), |root| keep(&journal, root))?;
    if json {
        return print(&format!("{}\n", json!({ "confirmed": settings, "files": files })));
    }
    let mut text = format!("{settings} settings stay\n");
    for file in &files {
        let _ = writeln!(text, "kept over restarts in {}", file.display());
    }
    print(&text)
}

pub(super) fn restore(json: bool) -> Result<Code, Failure> {
    let journal = open()?;
    let restored =
        put_back(&journal, &boot_id()?, None, &mut Machine).map_err(anyhow::Error::from)?;
    if json {
        print(&format!("{}\n", json!(restored)))?;
    } else {
        let mut text = restored_text(&restored);
        if restored.plans == 0 {
            for other in journal.others() {
                let _ = writeln!(
                    text,
                    "{} is of another network namespace: restore it there",
                    other.display()
                );
            }
        }
        print(&text)?;
    }
    Ok(if restored.failed.is_empty() { Code::Done } else { Code::Partial })
}

fn restored_text(restored: &Restored) -> String {
    let mut text = String::new();
    if restored.journal_cut_bytes > 0 {
        let _ = writeln!(
            text,
            "the journal ends in {} bytes that cannot be read: what they announced was not done",
            restored.journal_cut_bytes
        );
    }
    if restored.plans == 0 {
        return text + "there is nothing to put back\n";
    }
    for name in &restored.put_back {
        let _ = writeln!(text, "put back  {name}");
    }
    for (name, now) in &restored.changed_by_others {
        let _ = writeln!(text, "put back  {name}, which somebody had set to {now} since");
    }
    for name in &restored.gone {
        let _ = writeln!(text, "gone      {name}: its device is not there any more");
    }
    for name in &restored.files {
        let _ = writeln!(text, "put back  {name}");
    }
    for (name, error) in &restored.failed {
        let _ = writeln!(text, "failed    {name}: {error}");
    }
    if restored.ended_with_boot > 0 {
        text += "what was changed before the machine restarted ended with that\n";
    }
    let put = restored.put_back.len() + restored.changed_by_others.len();
    let _ = writeln!(text, "{put} settings put back, {} were so already", restored.unchanged);
    text
}

pub(super) fn at_boot(file: &Path) -> Result<Code, Failure> {
    let name = || file.display().to_string();
    let bytes = input::read(file, SETTINGS_BYTES_MAX).with_context(name).or_exit(Code::Usage)?;
    let kept = persist::read(&bytes).with_context(name).or_exit(Code::Usage)?;
    let outcomes = persist::apply_kept(&kept, &mut Machine);
    let mut failed = 0;
    for outcome in outcomes.iter().filter(|outcome| outcome.error.is_some()) {
        failed += 1;
        say(outcome_line(outcome).trim_end());
    }
    Ok(match failed {
        0 => Code::Done,
        all if all == outcomes.len() => Code::Failed,
        _ => Code::Partial,
    })
}

fn plan_text(plan: &Plan, hint: bool) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let blip = if step.interrupts { "  (the link may go down for a moment)" } else { "" };
        let _ = writeln!(text, "{}{blip}", step.rule);
        for (changes, many) in folded(&step.changes) {
            let more = if many > 1 { format!("  (and {} more)", many - 1) } else { String::new() };
            let _ = writeln!(text, "  {}{more}", changes.knob);
            let _ = writeln!(text, "  - {}\n  + {}", changes.from, changes.to);
        }
    }
    if plan.steps.is_empty() {
        text += "nothing to change\n";
    }
    if !plan.left.is_empty() {
        text += "\nleft to you\n";
        let rows: Vec<Vec<String>> = plan
            .left
            .iter()
            .map(|left| {
                let change = format!("{} -> {}", left.have, left.want);
                vec![format!("  {}", left.rule), left.object.clone(), change, left.why.clone()]
            })
            .collect();
        text += &table(&rows);
    }
    if plan.steps.iter().any(|step| step.interrupts) {
        text += "\nover the wire: --revert-after 5m puts it back unless you confirm\n";
    }
    if hint && !plan.steps.is_empty() {
        text += "\nnothing was changed: --apply does\n";
    }
    text
}

/// Changes of the same file of many processors or interrupts are shown once.
fn folded(changes: &[Change]) -> Vec<(&Change, usize)> {
    let mut shown: Vec<(&Change, usize)> = Vec::new();
    let kind = |change: &Change| match &change.knob {
        Knob::File { path } => {
            let shape: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
            Some((shape, change.from.clone(), change.to.clone()))
        }
        _ => None,
    };
    for change in changes {
        match shown.last_mut() {
            Some((last, count)) if kind(change).is_some() && kind(last) == kind(change) => {
                *count += 1;
            }
            _ => shown.push((change, 1)),
        }
    }
    shown
}
