//! Quick start of docs/controller.md: its commands, as written, lead to a finished request in a network namespace.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{PENSTOCK, wait_until};

const SERVICE_TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace with a loopback; removed when dropped.
struct Namespace(String);

impl Namespace {
    fn new(name: &str) -> Self {
        let name = format!("{name}-{}", std::process::id());
        let made = Self(name.clone());
        ip(&["netns", "add", &name]);
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        made
    }

    /// A shell in the namespace, with the built `penstock` in its PATH.
    fn shell(&self, line: &str, directory: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, "bash", "-c", line]).current_dir(directory);
        let binaries = Path::new(PENSTOCK).parent().unwrap().display().to_string();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{binaries}:{path}"));
        command.env("PENSTOCK_STATE", directory.join("user-state"));
        command
            .env_remove("PENSTOCK_ROLES")
            .env_remove("PENSTOCK_HTTP")
            .env_remove("JOURNAL_STREAM");
        command
    }

    fn run(&self, line: &str, directory: &Path) -> Output {
        self.shell(line, directory).output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) {
    let done = Command::new("ip").args(arguments).output().unwrap();
    assert!(done.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A running service; killed when dropped.
struct Service(Child);

impl Service {
    /// Starts the service and waits until the HTTP address of its configuration answers.
    fn start(namespace: &Namespace, line: &str, directory: &Path) -> Self {
        let mut command = namespace.shell(&format!("exec {line}"), directory);
        let log = fs::File::create(directory.join("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap();
        let mut service = Self(child);
        let config = line.split_whitespace().skip_while(|word| *word != "--config").nth(1).unwrap();
        let config = fs::read_to_string(directory.join(config)).unwrap();
        let http = config.lines().find_map(|line| line.strip_prefix("http = "));
        let http = http.unwrap_or("\"127.0.0.1:8621\"").trim_matches('"');
        let (host, port) = http.rsplit_once(':').unwrap();
        wait_until(line, SERVICE_TIMEOUT, || {
            assert_eq!(service.0.try_wait().unwrap(), None, "{line}: {}", log_of(directory));
            let answers = format!("exec 3<>/dev/tcp/{host}/{port}");
            namespace.run(&answers, directory).status.success().then_some(())
        });
        service
    }
}

fn log_of(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The commands of the first shell block below a heading of docs/controller.md.
fn commands(heading: &str) -> Vec<String> {
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/controller.md");
    let text = fs::read_to_string(docs).unwrap();
    let (_, section) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    block.lines().map(str::to_owned).collect()
}

#[test]
fn documented_commands_finish_a_request() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let namespace = Namespace::new("newcomer");
    let mut services = Vec::new();
    let mut answers = Vec::new();
    for line in commands("From nothing to a finished request") {
        println!("$ {line}");
        if line.starts_with("penstock serve") {
            services.push(Service::start(&namespace, &line, place));
            continue;
        }
        let done = namespace.run(&line, place);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        println!("{text}{}", String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{line}");
        answers.push((line, text));
    }
    assert_eq!(services.len(), 3);
    let said = |words: &str| {
        let found = answers.iter().find(|(line, _)| line.contains(words));
        found.unwrap_or_else(|| panic!("no command has {words}")).1.clone()
    };
    // The document shows the output of init.
    for line in said("controller init").lines().filter(|line| line.starts_with("  penstock serve"))
    {
        assert!(
            commands("From nothing to a finished request").contains(&line.trim().to_owned()),
            "{line}"
        );
    }
    assert!(said("submit a:/data b:/data/in").contains("done, 1 of 1 file"));
    assert_eq!(said("cat site/dtn-b"), "hello\n");
    // A single file is stored in the directory under its name.
    assert!(said("submit a:/data/hello.txt").contains("done, 1 of 1 file"));
    assert_eq!(
        fs::read_to_string(place.join("site/dtn-b/data/again/hello.txt")).unwrap(),
        "hello\n"
    );

    // Without an export for the controller a request fails at once and names what is missing.
    for (from, to, host) in [("a:/store", "b:/data/x", "dtn-a"), ("a:/data", "b:/store/x", "dtn-b")]
    {
        let done =
            namespace.run(&format!("penstock submit {from} {to} --watch; penstock list"), place);
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(text.contains("failed"), "{text}");
        let shown = namespace.run("penstock show $(penstock list --limit 1 --json | grep -o '\"id\":[0-9]*' | head -1 | cut -d: -f2)", place);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(
            shown.contains("who = [\"controller\"]") && shown.contains("/store"),
            "{host}: {shown}"
        );
    }

    // Each site has its own switch; one command reserves a rate between them.
    let done = namespace.run("penstock reserve a b 1G --for 1h", place);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    // A directory with a configuration is not overwritten.
    let again = namespace.run("penstock controller init site dtn-a=a dtn-b=b", place);
    assert_eq!(again.status.code(), Some(2));
    // Neither is the login for its address.
    let other = "penstock controller init other dtn-a=a dtn-b=b";
    let refused = namespace.run(other, place);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("--replace-login"), "{text}");
    assert!(!place.join("other").exists());
    assert!(namespace.run("penstock list", place).status.success());
    let replaced = namespace.run(&format!("{other} --replace-login"), place);
    assert!(replaced.status.success(), "{}", String::from_utf8_lossy(&replaced.stderr));
    assert!(!namespace.run("penstock list", place).status.success());
}

#[test]
fn agent_elsewhere_reports_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let namespace = Namespace::new("newcomer-tls");
    for address in ["192.0.2.9", "192.0.2.1"] {
        ip(&["-n", &namespace.0, "addr", "add", &format!("{address}/32"), "dev", "lo"]);
    }
    let init = "penstock controller init site dtn1=cern@192.0.2.1 dtn2=caltech@198.51.100.1 --listen 192.0.2.9:8621";
    let done = namespace.run(init, place);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.contains("copy site/dtn2/ to dtn2"), "{text}");
    let serve = |below: &str| {
        format!("penstock serve --config site{below}/penstock.toml --state site{below}/state")
    };
    let _controller = Service::start(&namespace, &serve(""), place);
    // Its HTTP API uses the default address, which the controller left free.
    let _agent = Service::start(&namespace, &serve("/dtn1"), place);
    wait_until("it reports", SERVICE_TIMEOUT, || {
        let done = namespace.run("penstock drain --controller 192.0.2.9:8621 --json", place);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let hosts: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        let hosts = hosts["hosts"].as_array().unwrap().clone();
        let state =
            |name: &str| hosts.iter().find(|one| one["name"] == name).unwrap()["state"].clone();
        (state("dtn1") == "up" && state("dtn2") == "never").then_some(())
    });
    // Other machines do not reach a loopback address.
    let done = namespace.run("penstock controller init other dtn1=cern@192.0.2.1", place);
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("--listen"));
}
