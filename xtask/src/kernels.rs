//! `cargo xtask kernels`: tests of the marker, the lab, RDMA or NVMe over Fabrics on other kernels.
//!
//! Downloads a Debian kernel with apt-get and boots it in QEMU without hardware virtualisation, so that it runs anywhere.
//! The root file system is this machine's, read-only under an in-memory overlay, so that the tests find the programs that
//! they need. The marker's tests take about 15 minutes per kernel. Not part of `make test`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

mod modules;
mod peer;

use peer::PeerMachine;

const INIT: &str = include_str!("kernels-init.sh");

/// Commands in the initramfs, all provided by busybox.
const COMMANDS: [&str; 10] =
    ["sh", "mount", "mkdir", "insmod", "cat", "ip", "uname", "chroot", "poweroff", "echo"];

/// Options of `cargo xtask kernels`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Debian suites whose kernels are tested.
    #[arg(long = "suite", default_values = ["bookworm", "bookworm-backports"])]
    suites: Vec<String>,
    /// Time limit in seconds for all tests on a kernel.
    #[arg(long, default_value_t = 2400)]
    limit_s: u32,
    /// Component whose tests run
    #[arg(long, value_enum, default_value_t = TestedComponent::Marker)]
    room: TestedComponent,
    /// Test binary to run, built before, instead of the component's.
    #[arg(long, value_name = "PATH")]
    test_binary: Option<PathBuf>,
    /// Only tests whose names contain one of these.
    filters: Vec<String>,
}

/// Component whose tests run.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum TestedComponent {
    /// Labels on packets of other programs
    Marker,
    /// Links of the lab, over netem too
    Lab,
    /// RDMA over two devices of software RoCE
    Rdma,
    /// Export and connection of disks over NVMe over Fabrics
    Nvmeof,
    /// A disk of a second machine, which is killed
    TwoHosts,
}

impl TestedComponent {
    /// Arguments of cargo to build the tests, and the target's name in its messages.
    const fn target(self) -> (&'static [&'static str], &'static str) {
        match self {
            Self::Marker => (&["--workspace", "--test", "marker"], "marker"),
            Self::Lab => (&["-p", "penstock-lab", "--lib"], "penstock_lab"),
            Self::Rdma => (&["-p", "penstock-nettest", "-p", "penstock", "--test", "rdma"], "rdma"),
            Self::Nvmeof | Self::TwoHosts => (&["-p", "penstock", "--test", "nvmeof"], "nvmeof"),
        }
    }
}

/// A kernel and the result of each test: `ok`, `FAILED` or why it was skipped.
struct Tried {
    kernel: String,
    outcomes: Vec<(String, String)>,
}

/// Fetches the kernels, runs the tests on each and prints a table.
///
/// # Errors
/// When a program is missing, a kernel does not start, or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let tests = match &options.test_binary {
        Some(path) => vec![fs::canonicalize(path).with_context(|| path.display().to_string())?],
        None => test_binaries(root, options.room)?,
    };
    let filters = match options.room {
        TestedComponent::TwoHosts => vec![peer::PEER_TEST_NAME.to_owned()],
        _ => options.filters.clone(),
    };
    let mut tried = Vec::new();
    for suite in &options.suites {
        let folder = root.join("target/kernels").join(suite);
        let version = fetch(&folder, suite)?;
        let command = command(root, &tests, &filters);
        // Of this run alone: another one may test the same kernel meanwhile.
        let run = tempfile::Builder::new().prefix("run-").tempdir_in(&folder)?;
        let image = initramfs(
            run.path(),
            &folder,
            &version,
            options.room,
            [&command, &peer::command(root)],
        )?;
        let kernel = folder.join("boot").join(format!("vmlinuz-{version}"));
        let peer = match options.room {
            TestedComponent::TwoHosts => {
                Some(PeerMachine::new(&kernel, &image, run.path(), &folder.join("peer.log")))
            }
            _ => None,
        };
        tried.push(boot(&kernel, &image, options.limit_s, peer)?);
    }
    let (table, faults) = table(&tried);
    println!("\n{table}");
    ensure!(faults == 0, "{faults} failed");
    Ok(())
}

/// Builds the tests of a component; returns the paths of the test binaries.
fn test_binaries(root: &Path, component: TestedComponent) -> Result<Vec<PathBuf>> {
    let (target, name) = component.target();
    let output = Command::new("cargo")
        .arg("test")
        .args(target)
        .args(["--quiet", "--locked", "--no-run"])
        .args(["--message-format", "json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "the tests do not build");
    let text = String::from_utf8(output.stdout)?;
    let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let found = messages
        .filter(|message: &serde_json::Value| message["target"]["name"] == name)
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    let found: Vec<PathBuf> = found.collect();
    ensure!(!found.is_empty(), "cargo does not print where the tests are");
    Ok(found)
}

fn command(root: &Path, tests: &[PathBuf], filters: &[String]) -> String {
    let mut text = format!(
        "export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/run PENSTOCK_GUEST=1; cd {}",
        root.join("penstock").display()
    );
    for test in tests {
        let filters = filters.join(" ");
        text += &format!("; {} --test-threads=1 --nocapture {filters}", test.display());
    }
    text
}

/// Unpacks the kernel of a suite into `folder`; returns its version. Waits for another run that does the same.
fn fetch(folder: &Path, suite: &str) -> Result<String> {
    let apt = folder.join("apt");
    fs::create_dir_all(apt.join("lists/partial"))?;
    let lock = fs::File::create(folder.join("lock"))?;
    lock.lock()?;
    fs::create_dir_all(apt.join("cache/archives/partial"))?;
    let sources = apt.join("sources.list");
    fs::write(
        &sources,
        format!(
            "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian {suite} main\n"
        ),
    )?;
    let settings = [
        format!("Dir::Etc::sourcelist={}", sources.display()),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::lists={}", apt.join("lists").display()),
        format!("Dir::Cache={}", apt.join("cache").display()),
        "APT::Sandbox::User=root".to_owned(),
    ];
    let ask = |program: &str, words: &[&str]| {
        let options = settings.iter().flat_map(|one| ["-o", one]);
        stdout_of(Command::new(program).args(options).args(words).current_dir(folder))
    };
    ask("apt-get", &["update", "-qq"])?;
    let depends = ask("apt-cache", &["depends", "linux-image-amd64"])?;
    let package = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let package = package.with_context(|| format!("{suite} has no linux-image-amd64"))?;
    let version = package.strip_prefix("linux-image-").unwrap_or(package).to_owned();
    if !folder.join("boot").join(format!("vmlinuz-{version}")).exists() {
        println!("kernels: fetching {package}");
        ask("apt-get", &["download", "-qq", package])?;
        let ours = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(package))
        };
        let files = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
        let file = files.into_iter().find(ours).context("apt-get left no package")?;
        stdout_of(Command::new("dpkg-deb").arg("-x").args([&file, folder]))?;
        fs::remove_file(file)?;
    }
    stdout_of(Command::new("depmod").arg("-b").arg(folder).arg(&version))?;
    Ok(version)
}

/// Builds the initramfs in `run`: busybox, modules of the kernel in `folder`, and the commands to run, the second in the
/// other machine.
fn initramfs(
    run: &Path,
    folder: &Path,
    version: &str,
    component: TestedComponent,
    commands: [&str; 2],
) -> Result<PathBuf> {
    let tree = run.join("initramfs");
    for name in ["bin", "lib", "proc", "sys", "dev"] {
        fs::create_dir_all(tree.join(name))?;
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox"))
        .context("/bin/busybox: tools/setup.sh kernels installs it")?;
    for name in COMMANDS {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(name))?;
    }
    let modules = modules::modules_of(component);
    let names = modules::copy_modules(&modules, folder, version, &tree.join("lib"))?;
    fs::write(tree.join("modules"), names.join("\n"))?;
    fs::write(tree.join("command"), commands[0])?;
    fs::write(tree.join("peer-command"), commands[1])?;
    fs::write(tree.join("init"), INIT)?;
    let image = run.join("initramfs.cpio");
    let pack = format!("chmod +x init && find . | cpio --quiet -o -H newc > {}", image.display());
    stdout_of(Command::new("sh").args(["-c", &pack]).current_dir(&tree))?;
    Ok(image)
}

/// Arguments of QEMU for a machine with this kernel; `flags` are further ones for the kernel.
fn machine_arguments(kernel: &Path, image: &Path, flags: &str) -> Vec<String> {
    let fixed = "-accel tcg -cpu max -smp 2 -m 3G -nodefaults -nographic -no-reboot -serial stdio \
                 -virtfs local,path=/,mount_tag=machine,security_model=none,readonly=on,multidevs=remap";
    let mut arguments: Vec<String> = fixed.split_whitespace().map(str::to_owned).collect();
    let append = format!("console=ttyS0 quiet panic=-1 no_timer_check {flags}");
    let (kernel, image) = (kernel.display().to_string(), image.display().to_string());
    arguments.extend(["-append".to_owned(), append, "-kernel".to_owned(), kernel]);
    arguments.extend(["-initrd".to_owned(), image]);
    arguments
}

/// Boots the virtual machine, and a peer beside it, and reads test results from its console.
fn boot(kernel: &Path, image: &Path, limit_s: u32, mut peer: Option<PeerMachine>) -> Result<Tried> {
    let mut machine = Command::new("timeout");
    machine.args([&limit_s.to_string(), "qemu-system-x86_64"]);
    machine.args(machine_arguments(kernel, image, ""));
    if let Some(peer) = &mut peer {
        machine.args(peer.link());
        peer.start()?;
    }
    let mut machine = machine
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run qemu-system-x86_64: tools/setup.sh kernels installs it")?;
    let console = BufReader::new(machine.stdout.take().context("no console")?);
    let mut tried = Tried { kernel: String::new(), outcomes: Vec::new() };
    let mut skipped = None;
    for line in console.split(b'\n') {
        let line =
            String::from_utf8_lossy(&line?).replace("\u{1b}[31m", "").replace("\u{1b}[m", "");
        println!("{}", line.trim_end());
        if let Some((_, release)) = line.split_once("kernels: Linux ") {
            tried.kernel = release.trim().to_owned();
        }
        if let Some(peer) = &mut peer {
            peer.obey(&line)?;
        }
        let why = ["skipped: ", "SKIPPED: "].iter().find_map(|word| line.split_once(word));
        if let Some((_, why)) = why {
            skipped = Some(why.trim().to_owned());
        }
        // With --nocapture a test's output is between its name and its result.
        if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.split(" ... ").next())
            && line.contains(" ... ")
        {
            tried.outcomes.push((name.to_owned(), String::new()));
        }
        let outcome = ["ok", "FAILED"].into_iter().find(|word| line.trim_end().ends_with(word));
        if let (Some(word), Some((_, last))) = (outcome, tried.outcomes.last_mut())
            && last.is_empty()
        {
            *last = match skipped.take() {
                Some(why) if word == "ok" => format!("skipped: {why}"),
                _ => word.to_owned(),
            };
        }
    }
    machine.wait()?;
    ensure!(!tried.kernel.is_empty(), "{} does not start", kernel.display());
    ensure!(!tried.outcomes.is_empty(), "Linux {}: the tests do not start", tried.kernel);
    Ok(tried)
}

/// Table with tests as rows and kernels as columns, and the number of failures.
fn table(tried: &[Tried]) -> (String, usize) {
    let mut text = String::from("| test |");
    for one in tried {
        text += &format!(" Linux {} |", one.kernel);
    }
    text += &format!("\n|---|{}\n", "---|".repeat(tried.len()));
    let mut faults = 0;
    let names: std::collections::BTreeSet<&str> =
        tried.iter().flat_map(|one| one.outcomes.iter().map(|(name, _)| name.as_str())).collect();
    for name in names {
        text += &format!("| {name} |");
        for one in tried {
            let found = one.outcomes.iter().find(|(test, _)| test == name);
            let outcome = found.map_or("", |(_, outcome)| outcome);
            let outcome = if outcome.is_empty() { "no end" } else { outcome };
            faults += usize::from(outcome == "FAILED" || outcome == "no end");
            text += &format!(" {outcome} |");
        }
        text += "\n";
    }
    (text, faults)
}

/// Runs a program and returns its standard output; its failure is an error.
fn stdout_of(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}: tools/setup.sh kernels installs it"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
