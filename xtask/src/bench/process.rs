//! Starts, measures and ends other programs: servers, and clients with a time limit.
//!
//! CPU time and memory are those of the whole process tree in `/proc`, so that a server that forks for each connection
//! is counted completely. Dropping a [`Server`] kills its process group.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

const START_LIMIT: Duration = Duration::from_secs(10);
/// Interval of checks for the end of a client.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Interval of memory samples while a client runs; reading `/proc` more often would cost measurable CPU time.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Returns a flag that SIGINT and SIGTERM set; every wait checks it, so that servers and files are cleaned up.
pub(super) fn interrupt_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(&flag))
            .context("cannot watch for signals")?;
    }
    Ok(flag)
}

/// Fails if the user interrupted the run.
pub(super) fn check_interrupt(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// A running server; dropping it kills the server and everything it started.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
}

impl Server {
    /// Starts `command` and waits until something listens on `port`.
    pub(super) fn start(mut command: Command, port: u16, log: &Path) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let child = spawn(&mut command, log)?;
        let mut server = Self { child };
        let started = Instant::now();
        while !listens(port) {
            if let Some(status) = server.child.try_wait()? {
                bail!("{program} ended at start ({status}): {}", last_line(log));
            }
            if started.elapsed() > START_LIMIT {
                bail!(
                    "{program} did not listen on port {port} within {} s: {}",
                    START_LIMIT.as_secs(),
                    last_line(log)
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end_tree(&mut self.child);
    }
}

/// Resources used by one run of a client.
#[derive(Debug, Clone, Default)]
pub(super) struct Cost {
    /// Wall time of the client.
    pub(super) wall: Duration,
    /// User and system time of client and server, child processes included.
    pub(super) cpu_seconds: f64,
    pub(super) client_peak_bytes: u64,
    pub(super) server_peak_bytes: u64,
    pub(super) stdout: String,
}

/// Runs a client to its end or `limit`; `server` is the process whose cost belongs to this run.
pub(super) fn run_client(
    mut command: Command,
    server: Option<&Server>,
    limit: Duration,
    log: &Path,
    stop: &AtomicBool,
) -> Result<Cost> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out_path = output_file(log);
    let tick = rustix::param::clock_ticks_per_second() as f64;

    let server_ticks_before = server.map_or(0, |server| tree_usage(server.pid()).ticks);
    if let Some(server) = server {
        // Resets the peak memory for this run; only root may, others see the peak of all runs.
        let _ = std::fs::write(format!("/proc/{}/clear_refs", server.pid()), "5");
    }
    let own_before = reaped_ticks();
    let started = Instant::now();
    let mut child = spawn(&mut command, log)?;
    let mut cost = Cost::default();
    let mut sampled: Option<Instant> = None;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if sampled.is_none_or(|at| at.elapsed() > SAMPLE_EVERY) {
            cost.client_peak_bytes = cost.client_peak_bytes.max(tree_usage(child.id()).peak_bytes);
            let server_peak = server.map_or(0, |server| tree_usage(server.pid()).peak_bytes);
            cost.server_peak_bytes = cost.server_peak_bytes.max(server_peak);
            sampled = Some(Instant::now());
        }
        if started.elapsed() > limit || stop.load(Ordering::Relaxed) {
            end_tree(&mut child);
            check_interrupt(stop)?;
            bail!("{program} was stopped after {} s", limit.as_secs());
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    cost.wall = started.elapsed();
    // A server's worker may still be closing its files after the client has ended.
    std::thread::sleep(Duration::from_millis(50));
    let server_ticks = server
        .map_or(0, |server| tree_usage(server.pid()).ticks)
        .saturating_sub(server_ticks_before);
    cost.cpu_seconds = (reaped_ticks().saturating_sub(own_before) + server_ticks) as f64 / tick;
    cost.stdout = std::fs::read_to_string(&out_path).unwrap_or_default();
    if !status.success() {
        bail!("{program} failed ({status}): {}", last_line(log));
    }
    Ok(cost)
}

/// Returns a free TCP port.
pub(super) fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// File for the output of a program whose errors are in `log`. Server and client of a name differ in the extension of
/// the log alone, which therefore stays.
fn output_file(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".out");
    name.into()
}

/// Starts a program in its own process group, standard error in `log`, output beside it.
fn spawn(command: &mut Command, log: &Path) -> Result<Child> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = File::create(output_file(log))?;
    let err = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    command.spawn().with_context(|| format!("cannot start {program}"))
}

fn end_tree(child: &mut Child) {
    let others = descendants(child.id());
    if let Some(group) = Pid::from_raw(child.id().cast_signed()) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    // Children that left the process group or changed their user.
    for pid in others {
        if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    let _ = child.wait();
}

fn last_line(log: &Path) -> String {
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let text = read(output_file(log)) + &read(log.to_path_buf());
    let line =
        text.lines().rev().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no message");
    line.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// True if a TCP socket listens on `port`, checked without connecting: some servers accept only one client.
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|table| {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        text.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            let state = fields.nth(1).unwrap_or_default();
            state == "0A" && local.ends_with(&format!(":{port:04X}"))
        })
    })
}

#[derive(Default)]
struct Usage {
    ticks: u64,
    peak_bytes: u64,
}

/// Sum over a process and its living descendants; those already waited for are in their parent's figures.
fn tree_usage(pid: u32) -> Usage {
    let mut sum = Usage::default();
    for pid in descendants(pid).into_iter().chain([pid]) {
        sum.ticks += stat_ticks(&format!("/proc/{pid}/stat"), &[11, 12, 13, 14]);
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        let kib: u64 = line.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
        sum.peak_bytes += kib * 1024;
    }
    sum
}

fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![pid];
    while let Some(pid) = open.pop() {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children: Vec<u32> =
                text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
            found.extend(&children);
            open.extend(children);
        }
    }
    found
}

/// Processor time of the children this process has waited for.
pub(super) fn reaped_ticks() -> u64 {
    stat_ticks("/proc/self/stat", &[13, 14])
}

/// Fields of `/proc/PID/stat`, counted from the one after the program's name (which may hold blanks).
fn stat_ticks(path: &str, fields: &[usize]) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let all: Vec<&str> = after_name.split_whitespace().collect();
    fields.iter().filter_map(|at| all.get(*at)?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_cost_includes_child_processes() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; echo done"]);
        let stop = AtomicBool::new(false);
        let cost =
            run_client(command, None, Duration::from_secs(60), &dir.path().join("log"), &stop)
                .unwrap();
        assert_eq!(cost.stdout, "done\n");
        assert!(cost.cpu_seconds > 0.0 && cost.client_peak_bytes > 0, "{cost:?}");
    }

    #[test]
    fn failed_or_hung_client_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let log = dir.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such thing >&2; exit 3"]);
        let error = run_client(command, None, Duration::from_secs(60), &log, &stop)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no such thing"), "{error}");
        let mut command = Command::new("sleep");
        command.arg("60");
        let error = run_client(command, None, Duration::from_millis(50), &log, &stop)
            .unwrap_err()
            .to_string();
        assert!(error.contains("stopped"), "{error}");
    }
}
