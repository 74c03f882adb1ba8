//! `penstock host tune` and `restore`: the plan, its application, the guard that reverts unconfirmed plans, persisted
//! settings, and their removal.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use penstock_daemon::state::{StateDir, default_directory};
use penstock_host::apply::{ApplyOptions, ApplyOutcome, LiveMachine, apply};
use penstock_host::change::{Change, Tunable};
use penstock_host::journal::{AppliedPlan, JournalRecord, PersistRequest, TuningJournal};
use penstock_host::persist::{self, PersistReport, SETTINGS_BYTES_MAX};
use penstock_host::plan::{Selection, TuningPlan, plan};
use penstock_host::restore::{Restored, restore as put_back};
use penstock_host::rules::judge;
use penstock_sys::machine::unix_seconds;
use penstock_units::{display_duration, parse_duration};

use super::{GoalArgs, check, goal_object, print, table};
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::input;
use crate::json::host::{self as json, Confirmed, Tuned};

#[derive(Debug, clap::Args)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    wanted: GoalArgs,
    /// Make the changes
    #[arg(long, conflicts_with = "facts")]
    apply: bool,
    /// Persist them over restarts: sysctl.d, and a unit for the rest; with --revert-after once confirmed
    #[arg(long, requires = "apply")]
    persist: bool,
    /// Revert everything after this time unless confirmed, for changes over the network
    #[arg(long, value_name = "TIME", requires = "apply", value_parser = revert_after)]
    revert_after: Option<Duration>,
    /// Keep what was applied with --revert-after
    #[arg(long, conflicts_with_all = ["apply", "facts", "only", "also", "skip"])]
    confirm: bool,
    /// Only these rules
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = name)]
    only: Vec<String>,
    /// Include these rules, which plans leave out by default
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = name)]
    also: Vec<String>,
    /// Leave out these rules
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

fn revert_after(text: &str) -> anyhow::Result<Duration> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => bail!("leave time to confirm: write it like 5m"),
        other => Ok(other?),
    }
}

fn name(text: &str) -> anyhow::Result<String> {
    super::rule(text).map(|rule| rule.name.to_owned())
}

pub(super) fn run(args: &TuneArgs, json: bool) -> Result<Code, CommandFailure> {
    if args.confirm {
        return confirm(json);
    }
    let selection =
        Selection { only: args.only.clone(), also: args.also.clone(), skip: args.skip.clone() };
    let both = |name: &&String| selection.skip.contains(name);
    if let Some(name) = selection.only.iter().chain(&selection.also).find(both) {
        let why = anyhow!("{name} is both wanted and skipped: leave one of them out");
        return Err(CommandFailure::new(Code::Usage, why));
    }
    // The boot unit sets settings of the initial network namespace.
    if args.persist && args.root == Path::new("/") && namespace().is_some() {
        let why = anyhow!(
            "--persist is for the machine's own network namespace, not for another or a container's: \
             leave it out, or tune the host"
        );
        return Err(CommandFailure::new(Code::Usage, why));
    }
    let facts = args.wanted.facts()?;
    let case = args.wanted.case(&facts)?;
    let plan = plan(&judge(&case), &selection);
    if !json {
        let mut text = format!("{}\n{}\n\n", check::describe(&facts), super::goal_line(&case.goal));
        text += &plan_text(&plan, !args.apply);
        print(&text)?;
    }
    // Settings applied earlier may still have to be persisted.
    if !args.apply || (plan.steps.is_empty() && !args.persist) {
        if json {
            crate::json::print(&Tuned { goal: goal_object(&case.goal), plan, applied: None })?;
        }
        return Ok(Code::Done);
    }
    let session = carry_out(args, &plan, selection.rules(), json)?;
    let code = session.code(plan.steps.len());
    if json {
        let applied = Some(json::AppliedJson {
            id: session.id,
            outcomes: session.outcomes,
            files: session.lasting.files,
            kept: session.lasting.settings,
            overruled_by: session.lasting.overruled_by,
            revert_after_seconds: args.revert_after.map(|after| after.as_secs_f64()),
        });
        crate::json::print(&Tuned { goal: goal_object(&case.goal), plan, applied })?;
    } else {
        print(&session.text(args))?;
    }
    Ok(code)
}

struct TuneResult {
    id: String,
    outcomes: Vec<ApplyOutcome>,
    lasting: PersistReport,
}

impl TuneResult {
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
        let mut text = match changed {
            0 => "\nnothing was changed\n".to_owned(),
            1 => "\n1 setting changed and read back".to_owned(),
            _ => format!("\n{changed} settings changed and read back"),
        };
        if changed > 0 {
            if self.failed() > 0 {
                let _ = write!(text, ", {} rules left as they were", self.failed());
            }
            text += "; penstock host restore puts them back\n";
        }
        text += &lasting_text(&self.lasting);
        if let Some(after) = args.revert_after.filter(|_| changed > 0) {
            let _ = writeln!(
                text,
                "all of it goes back in {} unless: penstock host tune --confirm",
                display_duration(after)
            );
        } else if !args.persist && changed > 0 {
            text += "a restart of the machine undoes them (--persist keeps them)\n";
        }
        text
    }
}

fn lasting_text(lasting: &PersistReport) -> String {
    let mut text = String::new();
    if !lasting.settings.is_empty() {
        let _ = writeln!(text, "kept over restarts: {}", lasting.settings.join(", "));
    }
    for file in &lasting.files {
        let _ = writeln!(text, "  by {}", file.display());
    }
    for line in &lasting.overruled_by {
        let _ = writeln!(text, "but this is read later and wins: {line}");
    }
    text
}

fn carry_out(
    args: &TuneArgs,
    plan: &TuningPlan,
    rules: Vec<&str>,
    json: bool,
) -> Result<TuneResult, CommandFailure> {
    let journal = open()?;
    let before = journal.read().context("nothing was changed").or_exit(Code::Failed)?;
    let boot = boot_id()?;
    if let Some(late) = late(&before.sessions, &boot) {
        return Err(CommandFailure::new(Code::Failed, anyhow!(late)));
    }
    if let Some(waiting) = waiting(&before.sessions, &boot).next() {
        let why = anyhow!(
            "changes wait to be confirmed ({}): penstock host tune --confirm, or penstock host restore",
            rules_of(waiting)
        );
        return Err(CommandFailure::new(Code::Failed, why));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{}-{}", now.as_nanos(), std::process::id());
    // Start the guard before the first change, which may cut the connection.
    if let Some(after) = args.revert_after.filter(|_| !plan.steps.is_empty()) {
        start_guard(&id, after).context("what would put the changes back; nothing was changed")?;
    }
    let mut report = |outcome: &ApplyOutcome| {
        if !json {
            // A closed output must not stop between two rules.
            let _ = print(&outcome_line(outcome));
        }
    };
    let rules = rules.into_iter().map(str::to_owned).collect();
    let keep = args.persist.then(|| PersistRequest { below: args.root.clone(), rules });
    let revert_after = args.revert_after.filter(|_| !plan.steps.is_empty());
    let how =
        ApplyOptions { id: id.clone(), boot_id: boot.clone(), revert_after, keep: keep.clone() };
    let outcomes = if plan.steps.is_empty() {
        Vec::new()
    } else {
        apply(plan, &how, &journal, &mut LiveMachine, &mut report).map_err(anyhow::Error::from)?
    };
    let lasting = match keep {
        Some(keep) if revert_after.is_none() => last(&journal, &boot, &keep)?,
        _ => PersistReport::default(),
    };
    Ok(TuneResult { id, outcomes, lasting })
}

/// Plans of this boot that wait for a confirmation.
fn waiting<'a>(sessions: &'a [AppliedPlan], boot: &str) -> impl Iterator<Item = &'a AppliedPlan> {
    sessions.iter().filter(move |session| session.is_waiting() && session.is_of(boot))
}

/// Error about a plan whose time to revert has passed, if any.
fn late(sessions: &[AppliedPlan], boot: &str) -> Option<String> {
    let now = unix_seconds();
    let late = waiting(sessions, boot).find(|session| session.is_overdue(now))?;
    Some(format!(
        "changes were not confirmed and are not all put back ({}): penstock host restore",
        rules_of(late)
    ))
}

fn rules_of(session: &AppliedPlan) -> String {
    let rules: Vec<&str> = session.steps.iter().map(|(rule, _)| rule.as_str()).collect();
    rules.join(", ")
}

fn outcome_line(outcome: &ApplyOutcome) -> String {
    match &outcome.error {
        None if outcome.changed == 0 => format!("is so   {}\n", outcome.rule),
        None => format!("done    {}\n", outcome.rule),
        Some(error) => format!("failed  {}: {error}\n", outcome.rule),
    }
}

fn last(
    journal: &TuningJournal,
    boot: &str,
    keep: &PersistRequest,
) -> Result<PersistReport, CommandFailure> {
    let program = std::env::current_exe().context("where this program is")?;
    Ok(persist::persist(journal, boot, keep, &program).map_err(anyhow::Error::from)?)
}

/// The journal of this network namespace, in the state directory.
fn open() -> Result<TuningJournal, CommandFailure> {
    let state = default_directory().or_exit(Code::Usage)?;
    StateDir::open(&state).or_exit(Code::Failed)?;
    let namespace = namespace();
    Ok(TuningJournal::open(&state.join("host"), namespace.as_deref())
        .map_err(anyhow::Error::from)?)
}

/// Id of this network namespace, unique until the next boot; none for the initial one.
fn namespace() -> Option<String> {
    if Path::new("/proc/sys/net/core/netdev_max_backlog").exists() {
        return None;
    }
    if let Ok(cookie) = penstock_sys::namespace::network_cookie() {
        return Some(cookie.to_string());
    }
    // Linux before 5.14 has only the inode number, which may be reused.
    let target = std::fs::read_link("/proc/self/ns/net").ok()?;
    let target = target.to_string_lossy();
    Some(target.chars().filter(char::is_ascii_digit).collect())
}

fn boot_id() -> Result<String, CommandFailure> {
    Ok(penstock_sys::machine::boot_id().context("this boot has no number")?)
}

/// Starts the guard in its own session, so that it survives this process and its connection. It is ready on return.
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

/// Shortest wait of a guard between attempts.
const GUARD_WAIT_MIN: Duration = Duration::from_millis(500);
const GUARD_WAIT_MAX: Duration = Duration::from_secs(30);
/// Limit on attempts: `check` then reports settings that could not be restored.
const GUARD_TRIES_FOR: Duration = Duration::from_secs(600);

/// Line that a guard prints when it is ready.
const READY: &str = "ready";

pub(super) fn guard(args: &GuardArgs) -> Result<Code, CommandFailure> {
    penstock_sys::machine::leave_session()?;
    let begun = Instant::now();
    print(&format!("{READY}\n"))?;
    while let Some(left) = args.after.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        std::thread::sleep(left);
    }
    let mut wait = GUARD_WAIT_MIN;
    // Retry: another process may hold the journal lock, or a setting may not be writable now.
    let since = Instant::now();
    while !revert(&args.id).unwrap_or(false) && since.elapsed() < GUARD_TRIES_FOR {
        std::thread::sleep(wait);
        wait = (wait * 2).min(GUARD_WAIT_MAX);
    }
    Ok(Code::Done)
}

/// Reverts the unconfirmed plan `id`; returns true if nothing is left to do.
fn revert(id: &str) -> Result<bool, CommandFailure> {
    // Do not create a removed state directory again.
    if !default_directory().or_exit(Code::Usage)?.join("host").exists() {
        return Ok(true);
    }
    let journal = open()?;
    let contents = journal.read().map_err(anyhow::Error::from)?;
    let ours = contents.sessions.iter().find(|session| session.id == id);
    let only = match ours {
        Some(session) if !session.is_waiting() => return Ok(true),
        Some(_) if contents.damaged_lines == 0 => Some(id),
        None if contents.damaged_lines == 0 => return Ok(true),
        // The damaged journal no longer identifies this plan.
        _ => None,
    };
    let restored =
        put_back(&journal, &boot_id()?, only, &mut LiveMachine).map_err(anyhow::Error::from)?;
    Ok(restored.failed.is_empty())
}

/// Warning about a plan that should have been reverted, if any.
pub(super) fn overdue() -> Option<String> {
    let host = default_directory().ok()?.join("host");
    let bytes = std::fs::read(TuningJournal::path_in(&host, namespace().as_deref())).ok()?;
    let contents = penstock_host::journal::contents(&bytes);
    let boot = boot_id().ok()?;
    late(&contents.sessions, &boot)
}

fn confirm(json: bool) -> Result<Code, CommandFailure> {
    let journal = open()?;
    let contents = journal.read().map_err(anyhow::Error::from)?;
    let boot = boot_id()?;
    let waiting: Vec<_> = waiting(&contents.sessions, &boot).collect();
    if waiting.is_empty() {
        return Err(anyhow!(
            "nothing waits to be confirmed: it was put back, or applied without --revert-after"
        )
        .into());
    }
    if waiting.iter().any(|session| session.is_overdue(unix_seconds())) {
        return Err(anyhow!(
            "it is too late to confirm: penstock host restore puts back what is left"
        )
        .into());
    }
    let settings: usize =
        waiting.iter().flat_map(|session| &session.steps).map(|(_, changes)| changes.len()).sum();
    journal.add(&JournalRecord::Confirmed).map_err(anyhow::Error::from)?;
    let keep = waiting.iter().find_map(|session| session.keep.as_ref());
    let lasting = keep.map_or(Ok(PersistReport::default()), |keep| {
        last(&journal, &boot, keep).map_err(|failure| {
            let why = failure.line();
            anyhow!("they stay until the machine restarts, and are not kept over that: {why}")
        })
    })?;
    if json {
        crate::json::print(&Confirmed {
            confirmed: settings,
            files: lasting.files,
            kept: lasting.settings,
            overruled_by: lasting.overruled_by,
        })?;
        return Ok(Code::Done);
    }
    print(&format!("{settings} settings stay\n{}", lasting_text(&lasting)))
}

pub(super) fn restore(json: bool) -> Result<Code, CommandFailure> {
    let journal = open()?;
    let boot = boot_id()?;
    journal.remove_ended(&boot);
    let restored =
        put_back(&journal, &boot, None, &mut LiveMachine).map_err(anyhow::Error::from)?;
    if json {
        crate::json::print(&restored)?;
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
    Ok(if restored.is_whole() { Code::Done } else { Code::Partial })
}

fn restored_text(restored: &Restored) -> String {
    let mut text = String::new();
    if restored.journal_cut_bytes > 0 {
        let _ = writeln!(
            text,
            "the journal ends in {} bytes that were never written whole: what they announced was not done",
            restored.journal_cut_bytes
        );
    }
    if restored.journal_damaged_lines > 0 {
        let aside = restored.journal_aside.as_ref();
        let aside = aside.map(|path| format!("; it is kept as {}", path.display()));
        let _ = writeln!(
            text,
            "{} lines of the journal are damaged: what they announced may still be set{}",
            restored.journal_damaged_lines,
            aside.unwrap_or_default()
        );
    }
    if restored.plans == 0 {
        return text + "there is nothing to put back\n";
    }
    for name in &restored.put_back {
        let _ = writeln!(text, "put back  {name}");
    }
    for (name, now) in &restored.changed_by_others {
        let _ = writeln!(text, "put back  {name}, which has been set to {now} since");
    }
    for name in &restored.gone {
        let _ = writeln!(text, "gone      {name}: its device is not there any more");
    }
    for name in &restored.files {
        let _ = writeln!(text, "put back  {name}");
    }
    for name in &restored.files_saved {
        let _ = writeln!(text, "saved     {name}: the value to which it has been set since");
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

pub(super) fn at_boot(file: &Path) -> Result<Code, CommandFailure> {
    let name = || file.display().to_string();
    let bytes = input::read(file, SETTINGS_BYTES_MAX).with_context(name).or_exit(Code::Usage)?;
    let kept = persist::read(&bytes).with_context(name).or_exit(Code::Usage)?;
    let outcomes = persist::apply_kept(&kept, &mut LiveMachine);
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

fn plan_text(plan: &TuningPlan, hint: bool) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let blip = if step.interrupts { "  (the link may go down for a moment)" } else { "" };
        let _ = writeln!(text, "{}{blip}", step.rule);
        for changes in folded(&step.changes) {
            for name in names(&changes) {
                let _ = writeln!(text, "  {name}");
            }
            let _ = writeln!(text, "  - {}\n  + {}", changes[0].from, changes[0].to);
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

/// Groups equal changes of many processors, disks or interrupts.
fn folded(changes: &[Change]) -> Vec<Vec<&Change>> {
    let mut shown: Vec<Vec<&Change>> = Vec::new();
    let kind = |change: &Change| match &change.tunable {
        Tunable::File { path } => {
            let shape: String = path.chars().filter(|c| !c.is_ascii_digit()).collect();
            Some((shape, change.from.clone(), change.to.clone()))
        }
        _ => None,
    };
    for change in changes {
        match shown.last_mut() {
            Some(alike) if kind(change).is_some() && kind(alike[0]) == kind(change) => {
                alike.push(change);
            }
            _ => shown.push(vec![change]),
        }
    }
    shown
}

/// Joins names that differ in one number into one name with ranges: `cpu{0-3,8}`.
fn names(changes: &[&Change]) -> Vec<String> {
    let names: Vec<String> = changes.iter().map(|change| change.tunable.to_string()).collect();
    let cut: Vec<Vec<&str>> = names.iter().map(|name| numbers_apart(name)).collect();
    let differs = |at: &usize| cut.iter().any(|parts| parts[*at] != cut[0][*at]);
    let differing: Vec<usize> = match cut.iter().all(|parts| parts.len() == cut[0].len()) {
        true => (0..cut[0].len()).filter(differs).collect(),
        false => return names,
    };
    let [at] = differing.as_slice() else { return names };
    let numbers = cut.iter().map(|parts| parts[*at].parse::<usize>());
    let Ok(numbers) = numbers.collect::<Result<Vec<usize>, _>>() else { return names };
    let (before, after) = (cut[0][..*at].concat(), cut[0][*at + 1..].concat());
    vec![format!("{before}{{{}}}{after}", penstock_sys::machine::display_cpus(&numbers))]
}

/// Splits text into numbers and the parts between them.
fn numbers_apart(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_digit = first.is_ascii_digit();
        let end = rest.find(|c: char| c.is_ascii_digit() != is_digit).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(paths: &[&str]) -> Vec<String> {
        let changes: Vec<Change> = paths
            .iter()
            .map(|path| Change::new(Tunable::File { path: (*path).to_owned() }, "0", "1"))
            .collect();
        folded(&changes).iter().flat_map(|alike| names(alike)).collect()
    }

    #[test]
    fn every_setting_is_named() {
        assert_eq!(shown(&["/p/cpu0/g", "/p/cpu1/g", "/p/cpu4/g"]), ["/p/cpu{0-1,4}/g"]);
        assert_eq!(shown(&["/b/nvme0n1/q", "/b/nvme1n1/q"]), ["/b/nvme{0-1}n1/q"]);
        assert_eq!(shown(&["/b/nvme0n1/q", "/b/nvme1n2/q"]), ["/b/nvme0n1/q", "/b/nvme1n2/q"]);
        assert_eq!(shown(&["/b/sda/q", "/b/sdb/q"]), ["/b/sda/q", "/b/sdb/q"]);
        assert_eq!(shown(&["/b/sda/q"]), ["/b/sda/q"]);
    }
}
