//! Copies between the two sites while a part fails: result, bytes that were sent, and files that were put in place.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::{node_address, node_address_v6, output};
use super::installed_chart::{DAEMON_USER_ID, InstalledChart, MOVER_PORT};

/// Files of a copy.
pub(super) const FILES_PER_COPY: usize = 500;

/// Every so many files one is large.
const LARGE_FILE_INTERVAL: usize = 50;

/// Time of one copy with its fault.
const COPY_LIMIT: Duration = Duration::from_secs(240);

/// Interval between two looks at the destination.
const WATCH_INTERVAL: Duration = Duration::from_millis(100);

/// Share of the bytes that a fault may cause to be sent again.
const SENT_AGAIN_SHARE_MAX: f64 = 0.5;

/// Counter of the sender with payload, that of repeated blocks included.
const SENT_COUNTER: &str = "penstock_mover_sent_bytes_total";

/// Start of the sender, by which a counter that began anew is recognised.
const START_GAUGE: &str = "penstock_agent_start_time_seconds";

/// When the fault of a copy happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultMoment {
    /// At once.
    Start,
    /// After the first files are in place.
    FirstFiles,
}

impl InstalledChart<'_> {
    /// Copies files from the first to the second site with a fault, and checks that each file was put in place once.
    pub(super) fn copy(
        &self,
        name: &str,
        what: &str,
        moment: FaultMoment,
        fault: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let source = self.cluster.host_files(1).join("store").join(name);
        let target = self.cluster.host_files(2).join("store").join(name);
        let bytes = write_files(&source)?;
        let before = self.sent()?;
        let watch = PlacementWatch::start(&target);
        let begun = Instant::now();
        let number = self.submit(&format!("a:/store/{name}"), &format!("b:/store/{name}"))?;
        if moment == FaultMoment::FirstFiles {
            self.cluster.wait("the first files are in place", COPY_LIMIT, |_| {
                Ok((count_files(&target) > 0).then_some(()))
            })?;
        }
        fault()?;
        let request = self.wait_ended(&number)?;
        let seconds = begun.elapsed().as_secs_f64();
        let replaced = watch.end();
        ensure!(request["state"] == "done", "{what}: {request}");
        // Each file settled once: more would count more than there are.
        ensure!(request["files_done"] == FILES_PER_COPY, "{what}: {request}");
        output(Command::new("diff").arg("-r").args([&source, &target]))?;
        ensure!(replaced.is_empty(), "{what}: put in place twice: {replaced:?}");
        let sent = self.sent()?.since(&before, bytes);
        println!(
            "kubernetes: {FILES_PER_COPY} files ({bytes} bytes), {what}: arrived in {seconds:.1} s, none put in \
             place twice; {sent}"
        );
        let again = sent.again.unwrap_or_default();
        ensure!(again < SENT_AGAIN_SHARE_MAX, "{what}: {:.1} % were sent again", again * 100.0);
        Ok(())
    }

    /// Submits a request; returns its number.
    pub(super) fn submit(&self, from: &str, to: &str) -> Result<String> {
        let address = self.controller()?;
        let words = ["submit", from, to, "--json", "--controller", &address];
        let request: Value = serde_json::from_str(&output(&mut self.penstock(&words))?)?;
        Ok(request["id"].to_string())
    }

    /// Waits until a request has ended; returns it.
    pub(super) fn wait_ended(&self, number: &str) -> Result<Value> {
        self.cluster.wait("the request has ended", COPY_LIMIT, |_| {
            let address = self.controller()?;
            let words = ["show", number, "--json", "--controller", &address];
            let shown: Value = serde_json::from_str(&output(&mut self.penstock(&words))?)?;
            let state = shown["request"]["state"].as_str().unwrap_or_default();
            let has_ended = ["done", "partial", "failed", "cancelled"].contains(&state);
            Ok(has_ended.then(|| shown["request"].clone()))
        })
    }

    /// Counts on the sender's node the bytes of packets to the receiver's transfer port.
    pub(super) fn count_packets(&self) -> Result<()> {
        for (program, address) in filters() {
            let mut rule = self.cluster.node_command(1, program);
            // Others write the usual tables anew, with counters of zero.
            rule.args(["--wait", "-t", "raw", "-I", "OUTPUT", "-p", "tcp", "-d", &address]);
            output(rule.args(["--dport", &MOVER_PORT.to_string()]))?;
        }
        Ok(())
    }

    fn sent(&self) -> Result<SentBytes> {
        let metrics = self.metrics(&self.agent_pod(1)?)?;
        let mut packets = 0;
        for (program, _) in filters() {
            let mut list = self.cluster.node_command(1, program);
            let list =
                output(list.args(["--wait", "-t", "raw", "-L", "OUTPUT", "-v", "-x", "-n"]))?;
            let port = format!("dpt:{MOVER_PORT}");
            let line = list.lines().find(|line| line.contains(&port)).context("no packet count")?;
            packets += line.split_whitespace().nth(1).context("no bytes")?.parse::<u64>()?;
        }
        Ok(SentBytes {
            payload: metric(&metrics, SENT_COUNTER)?,
            packets,
            started: metric(&metrics, START_GAUGE)?,
        })
    }
}

/// Filters of packets with the receiver's address.
fn filters() -> [(&'static str, String); 2] {
    [("iptables", node_address(2)), ("ip6tables", node_address_v6(2))]
}

/// Counters of the sender and its node.
#[derive(Debug, Clone, Copy)]
struct SentBytes {
    payload: f64,
    packets: u64,
    started: f64,
}

impl SentBytes {
    /// Volume that was sent since `before` for files of `bytes`.
    #[allow(clippy::float_cmp, reason = "the same number is written twice")]
    fn since(self, before: &Self, bytes: u64) -> CopyVolume {
        let payload = (self.started == before.started).then_some(self.payload - before.payload);
        let files = bytes as f64;
        CopyVolume {
            again: payload.map(|payload| (payload - files) / files),
            packets: (self.packets - before.packets) as f64 / files,
        }
    }
}

/// Volume of a copy in relation to its files.
#[derive(Debug, Clone, Copy)]
struct CopyVolume {
    /// Share of payload that was sent again; `None` where the sender was replaced.
    again: Option<f64>,
    /// Bytes of packets to the receiver, acknowledgements and headers included.
    packets: f64,
}

impl std::fmt::Display for CopyVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.again {
            Some(again) => write!(f, "{:.2} % of the bytes sent again", again * 100.0)?,
            None => write!(f, "the sender was replaced")?,
        }
        write!(f, ", packets of {:.4} of the bytes", self.packets)
    }
}

/// Watch of a folder for files that take the place of an earlier one.
#[derive(Debug)]
struct PlacementWatch {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Vec<PathBuf>>,
}

impl PlacementWatch {
    fn start(folder: &Path) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (told, folder) = (ends.clone(), folder.to_owned());
        let thread = std::thread::spawn(move || {
            let mut inodes = HashMap::new();
            let mut replaced = Vec::new();
            loop {
                let is_last = told.load(Ordering::Relaxed);
                replaced.extend(changed_files(&folder, &mut inodes));
                if is_last {
                    return replaced;
                }
                std::thread::sleep(WATCH_INTERVAL);
            }
        });
        Self { ends, thread }
    }

    /// Looks once more; returns the files that were put in place twice.
    fn end(self) -> Vec<PathBuf> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Files with another inode than in `inodes`, which gets the present ones.
fn changed_files(folder: &Path, inodes: &mut HashMap<PathBuf, u64>) -> Vec<PathBuf> {
    let mut files = named_files(folder);
    files.retain(|path| {
        let Ok(inode) = fs::metadata(path).map(|metadata| metadata.ino()) else { return false };
        inodes.insert(path.clone(), inode).is_some_and(|earlier| earlier != inode)
    });
    files
}

/// Value of a metric without labels.
fn metric(metrics: &str, name: &str) -> Result<f64> {
    let lines = metrics.lines();
    let value = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).next();
    let value = value.with_context(|| format!("no metric {name}"))?;
    Ok(value.split_whitespace().next().unwrap_or_default().parse()?)
}

/// Writes a tree of small files and some large ones; returns their bytes.
fn write_files(folder: &Path) -> Result<u64> {
    let mut total = 0;
    for number in 0..FILES_PER_COPY {
        let place = folder.join(format!("{}", number % 10));
        fs::create_dir_all(&place)?;
        // Whole pages, which frames carry without padding.
        let bytes = if number % LARGE_FILE_INTERVAL == 0 { 4 << 20 } else { 40 << 10 };
        let mut text = format!("file {number} ").repeat(bytes / 7 + 1);
        text.truncate(bytes);
        fs::write(place.join(format!("f{number}")), &text)?;
        total += text.len() as u64;
    }
    let user = format!("{DAEMON_USER_ID}:{DAEMON_USER_ID}");
    output(Command::new("chown").args(["-R", &user]).arg(folder))?;
    Ok(total)
}

fn count_files(folder: &Path) -> usize {
    named_files(folder).len()
}

/// Files under their own names, not those that are being written.
fn named_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(named_files(&path));
        } else if path.file_name().is_some_and(|name| !name.to_string_lossy().starts_with('.')) {
            files.push(path);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_file_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let [kept, replaced, temporary] = ["a", "b", ".b"].map(|name| folder.path().join(name));
        fs::write(&kept, "1").unwrap();
        fs::write(&replaced, "1").unwrap();
        let mut inodes = HashMap::new();
        assert_eq!(changed_files(folder.path(), &mut inodes), Vec::<PathBuf>::new());
        fs::write(&temporary, "2").unwrap();
        assert_eq!(changed_files(folder.path(), &mut inodes), Vec::<PathBuf>::new());
        fs::rename(&temporary, &replaced).unwrap();
        assert_eq!(changed_files(folder.path(), &mut inodes), [replaced]);
        assert_eq!(changed_files(folder.path(), &mut inodes), Vec::<PathBuf>::new());
    }

    #[test]
    fn metric_is_found_by_whole_name() {
        let text = "# TYPE sent counter\nsent_bytes_total{a=\"b\"} 1\nsent_bytes_total 17\n";
        assert!((metric(text, "sent_bytes_total").unwrap() - 17.0).abs() < 0.1);
        assert!(metric(text, "sent_bytes").is_err());
    }
}
