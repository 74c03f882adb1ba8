//! Programs that copy files, ours among them: commands of their servers and clients.
//!
//! Each uses the options that its documentation recommends for speed. All receive into the same folder, which is emptied
//! before every run, with the page cache dropped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::contest::{Contestant, RunSample};
use super::process::{Cost, Server, free_port, run_client};
use super::report::{BASELINE_ENCRYPTED, BASELINE_INTEGRITY, OURS_ENCRYPTED, OURS_INTEGRITY};
use super::work::{BenchDataset, Work};

/// Time limit of a client.
const RUN_LIMIT: Duration = Duration::from_secs(180);
/// Time for the whole data set above which a peer is measured on a part of it.
const WHOLE_LIMIT_SECONDS: f64 = 12.0;

/// Commands of one program.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    programs: &'static [&'static str],
    serve: fn(&RecipeFolders, u16) -> Result<Command>,
    copy: fn(&RecipeFolders, u16, &BenchDataset) -> Command,
    /// True if it is always measured on the whole data set.
    whole: bool,
    note: &'static str,
}

/// Folders that recipes use, and our own binary.
#[derive(Debug, Clone)]
pub(super) struct RecipeFolders {
    pub(super) destination: PathBuf,
    pub(super) configuration: PathBuf,
    pub(super) penstock: PathBuf,
}

const PENSTOCK: Recipe = Recipe {
    name: OURS_INTEGRITY,
    programs: &[],
    serve: serve_penstock,
    copy: |place, port, data| copy_penstock(place, port, data, "integrity"),
    whole: true,
    note: "ends with the data on the device",
};

const PENSTOCK_TLS: Recipe = Recipe {
    name: OURS_ENCRYPTED,
    copy: |place, port, data| copy_penstock(place, port, data, "full"),
    ..PENSTOCK
};

const RSYNC: Recipe = Recipe {
    name: "rsync daemon",
    programs: &["rsync"],
    serve: serve_rsync,
    copy: |_, port, data| {
        let mut command = command("rsync", &["-r", "--whole-file"]);
        command.arg(&data.path).arg(format!("rsync://127.0.0.1:{port}/dst/"));
        command
    },
    whole: true,
    note: "",
};

const XRDCP: Recipe = Recipe {
    name: "xrdcp",
    programs: &["xrootd", "xrdcp"],
    serve: serve_xrootd,
    copy: |_, port, data| {
        let recursive: &[&str] = if data.is_folder { &["-r", "--parallel", "4"] } else { &[] };
        let mut command = command("xrdcp", &["-f", "-N"]);
        command.args(recursive).arg(&data.path).arg(format!("root://127.0.0.1:{port}//in/"));
        command
    },
    whole: false,
    note: "",
};

const GRIDFTP: Recipe = Recipe {
    name: "globus-url-copy",
    programs: &["globus-gridftp-server", "globus-url-copy"],
    serve: serve_gridftp,
    copy: |place, port, data| copy_gridftp(place, port, data, &[]),
    whole: false,
    note: "",
};

const GRIDFTP_PARALLEL: Recipe = Recipe {
    name: "globus-url-copy, 4 streams",
    copy: |place, port, data| copy_gridftp(place, port, data, &["-p", "4", "-fast"]),
    ..GRIDFTP
};

const GRIDFTP_FOLDER: Recipe = Recipe {
    name: "globus-url-copy, pipelined",
    copy: |place, port, data| {
        copy_gridftp(place, port, data, &["-r", "-cd", "-cc", "4", "-pp", "-fast"])
    },
    ..GRIDFTP
};

const RCLONE: Recipe = Recipe {
    name: "rclone",
    programs: &["rclone"],
    serve: |place, port| {
        let mut command = rclone(&["serve", "http", "--addr", &format!("127.0.0.1:{port}")]);
        command.arg(place.destination.with_file_name("src"));
        Ok(command)
    },
    copy: |place, port, data| {
        let url = format!("http://127.0.0.1:{port}");
        let mut command =
            rclone(&["copy", "--transfers", "16", "--checkers", "16", "--http-url", &url]);
        command.arg(format!(":http:{}", data.name())).arg(place.destination.join(data.name()));
        command
    },
    whole: false,
    note: "pulls from `rclone serve http`, its fastest way here",
};

/// Recipes of `penstock cp`, by protection.
pub(super) fn our_recipes(encrypted: bool, integrity: bool) -> Vec<Recipe> {
    [integrity.then_some(PENSTOCK), encrypted.then_some(PENSTOCK_TLS)]
        .into_iter()
        .flatten()
        .collect()
}

/// Recipes of the peers.
pub(super) fn peer_recipes(folder: bool) -> Vec<Recipe> {
    let gridftp = if folder { vec![GRIDFTP_FOLDER] } else { vec![GRIDFTP, GRIDFTP_PARALLEL] };
    [RSYNC, XRDCP].into_iter().chain(gridftp).chain([RCLONE]).collect()
}

impl Recipe {
    /// Returns the same recipe, named as that of an earlier binary.
    pub(super) fn of_baseline(self) -> Self {
        let name = match self.name {
            OURS_ENCRYPTED => BASELINE_ENCRYPTED,
            _ => BASELINE_INTEGRITY,
        };
        Self { name, ..self }
    }
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn rclone(arguments: &[&str]) -> Command {
    let mut command = command("rclone", arguments);
    command.env("RCLONE_CONFIG", "/dev/null");
    command
}

pub(super) fn serve_penstock(place: &RecipeFolders, port: u16) -> Result<Command> {
    let mut command = Command::new(&place.penstock);
    command.arg("serve").arg("--root").arg(&place.destination);
    command.args([
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--http",
        &format!("127.0.0.1:{}", free_port()?),
    ]);
    command.env("PENSTOCK_STATE", penstock_state(place, port));
    Ok(command)
}

/// State folder of an agent: two agents cannot share one.
fn penstock_state(place: &RecipeFolders, port: u16) -> PathBuf {
    place.configuration.join(format!("penstock-{port}"))
}

pub(super) fn copy_penstock(
    place: &RecipeFolders,
    port: u16,
    data: &BenchDataset,
    protect: &str,
) -> Command {
    let mut command = Command::new(&place.penstock);
    command.arg("cp").arg(&data.path).arg(format!("penstock://127.0.0.1:{port}/"));
    command
        .args(["--json", "--protect", protect])
        .env("PENSTOCK_STATE", penstock_state(place, port));
    if data.is_folder {
        command.arg("-r");
    }
    command
}

fn serve_rsync(place: &RecipeFolders, port: u16) -> Result<Command> {
    let path = place.configuration.join("rsyncd.conf");
    let (conf, dst) = (place.configuration.display(), place.destination.display());
    let text = format!(
        "port = {port}\naddress = 127.0.0.1\nuse chroot = no\npid file = {conf}/rsyncd.pid\n\
         lock file = {conf}/rsyncd.lock\n[dst]\npath = {dst}\nread only = no\nuid = root\ngid = root\n"
    );
    let _ = std::fs::remove_file(place.configuration.join("rsyncd.pid"));
    std::fs::write(&path, text).context("cannot write rsyncd.conf")?;
    let mut command = command("rsync", &["--daemon", "--no-detach"]);
    command.arg(format!("--config={}", path.display()));
    Ok(command)
}

fn serve_xrootd(place: &RecipeFolders, port: u16) -> Result<Command> {
    let path = place.configuration.join("xrootd.cfg");
    let (conf, dst) = (place.configuration.display(), place.destination.display());
    let text = format!(
        "all.export /\noss.localroot {dst}\nall.adminpath {conf}/xrootd\nall.pidpath {conf}/xrootd\n"
    );
    std::fs::write(&path, text).context("cannot write xrootd.cfg")?;
    let mut command = Command::new("xrootd");
    // xrootd refuses to serve as root.
    command.args(["-R", "nobody", "-n", "bench", "-p", &port.to_string()]);
    command.arg("-c").arg(path).arg("-l").arg(place.configuration.join("xrootd.log"));
    Ok(command)
}

fn serve_gridftp(_: &RecipeFolders, port: u16) -> Result<Command> {
    let mut command =
        command("globus-gridftp-server", &["-aa", "-allow-root", "-anonymous-user", "root"]);
    command.args(["-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1"]);
    command.args(["-p", &port.to_string(), "-no-detach", "-d", "ERROR"]);
    Ok(command)
}

fn copy_gridftp(
    place: &RecipeFolders,
    port: u16,
    data: &BenchDataset,
    options: &[&str],
) -> Command {
    let slash = if data.is_folder { "/" } else { "" };
    let mut command = command("globus-url-copy", options);
    command.arg(format!("file://{}{slash}", data.path.display()));
    command.arg(format!(
        "ftp://127.0.0.1:{port}{}/in/{}{slash}",
        place.destination.display(),
        data.name()
    ));
    command
}

/// A program with its server, which copies one data set repeatedly.
pub(super) struct Mover {
    recipe: Recipe,
    place: RecipeFolders,
    work: Rc<Work>,
    data: BenchDataset,
    /// Part of the data, for programs that are too slow for all of it.
    part: Option<BenchDataset>,
    use_part: bool,
    server: Option<(Server, u16)>,
    stop: Arc<AtomicBool>,
}

impl Mover {
    pub(super) fn new(
        recipe: Recipe,
        place: RecipeFolders,
        work: Rc<Work>,
        data: (BenchDataset, Option<BenchDataset>),
        stop: Arc<AtomicBool>,
    ) -> Self {
        let part = data.1.filter(|_| !recipe.whole);
        Self { recipe, place, work, data: data.0, part, use_part: false, server: None, stop }
    }

    fn measure(&mut self, data: &BenchDataset) -> Result<RunSample> {
        let log = self.work.log(self.recipe.name);
        if self.server.is_none() {
            self.require_programs()?;
            let port = free_port()?;
            let command = (self.recipe.serve)(&self.place, port)?;
            self.server =
                Some((Server::start(command, port, &log.with_extension("server"))?, port));
        }
        match data.is_warm {
            true => self.work.reset_kept_cache()?,
            false => self.work.reset(data.is_folder)?,
        }
        let Some((server, port)) = &self.server else { bail!("no server") };
        let command = (self.recipe.copy)(&self.place, *port, data);
        let cost: Cost = run_client(command, Some(server), RUN_LIMIT, &log, &self.stop)?;
        let sync = self.work.time_to_durable()?;
        self.work.check_delivered(data)?;
        let seconds = cost.wall.as_secs_f64();
        Ok(RunSample {
            seconds,
            durable_seconds: Some(seconds + sync.as_secs_f64()),
            bytes: data.bytes as f64,
            files: data.files,
            cpu_seconds: Some(cost.cpu_seconds),
            client_peak_bytes: cost.client_peak_bytes,
            server_peak_bytes: cost.server_peak_bytes,
        })
    }

    fn require_programs(&self) -> Result<()> {
        for program in self.recipe.programs {
            if find_program(program).is_none() {
                bail!("{program} is not installed: --install gets it");
            }
        }
        if !self.recipe.programs.is_empty() || self.place.penstock.is_file() {
            return Ok(());
        }
        bail!(
            "binary not found at {}: build it or name it with --penstock",
            self.place.penstock.display()
        )
    }
}

impl Contestant for Mover {
    fn name(&self) -> String {
        self.recipe.name.to_owned()
    }

    fn how(&self) -> String {
        let command = (self.recipe.copy)(&self.place, 0, &self.data);
        let program =
            Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
        let options: Vec<String> =
            command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let root = self.work.root.display().to_string();
        format!("{program} {}", options.join(" ").replace(&root, "").replace("127.0.0.1:0", "HOST"))
    }

    fn run(&mut self, warm_up: bool) -> Result<RunSample> {
        let whole = self.data.clone();
        let Some(part) = self.part.clone() else {
            return self.measure(&whole);
        };
        if warm_up {
            let sample = self.measure(&part)?;
            self.use_part =
                sample.seconds * (whole.files as f64 / part.files as f64) > WHOLE_LIMIT_SECONDS;
            return Ok(sample);
        }
        self.measure(if self.use_part { &part } else { &whole })
    }

    fn note(&self) -> Option<String> {
        let mut notes: Vec<String> = Vec::new();
        if let (true, Some(part)) = (self.use_part, &self.part) {
            notes.push(format!("slow, so {} of {} files per run", part.files, self.data.files));
        }
        if !self.recipe.note.is_empty() {
            notes.push(self.recipe.note.to_owned());
        }
        (!notes.is_empty()).then(|| notes.join("; "))
    }
}

/// The first executable of that name on the path or where Debian puts daemons.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    path.split(':').map(|folder| Path::new(folder).join(name)).find(|file| file.is_file())
}
