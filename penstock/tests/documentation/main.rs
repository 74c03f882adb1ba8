//! Documentation that runs: every command of README.md, docs/ and the examples of `--help` runs as it is written, in
//! a sandbox for each page (`sandbox.sh`), in the page's order.
//!
//! `extract.rs` finds commands and sample files. `pages/NAME.toml` (`setup.rs`) names the setup of a page and the
//! commands that cannot run in a sandbox. The binary's unit tests parse every command, including those.

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "the unit tests of the binary use the rest")]
mod extract;
mod json;
mod sandbox;
mod setup;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use extract::Part;
use sandbox::{Background, Sandbox};
use setup::{Rule, quoted};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Parts of a page: a path of the repository, or `help VERB`.
fn parts_of(page: &str) -> Vec<Part> {
    let parts = match page.strip_prefix("help ") {
        Some(verb) => help_parts(&[verb]),
        None => extract::markdown(&fs::read_to_string(repository().join(page)).expect(page)),
    };
    parts.unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// Examples of a verb and of its subcommands, on a terminal of 80 columns.
fn help_parts(words: &[&str]) -> Result<Vec<Part>, String> {
    let mut command = Command::new(common::PENSTOCK);
    let output = command.args(words).arg("--help").env("COLUMNS", "80").output();
    let output = output.expect("the binary starts");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("help is UTF-8");
    let mut parts = extract::help(&text)?;
    for subcommand in extract::subcommands(&text) {
        parts.extend(help_parts(&[words, &[&subcommand]].concat())?);
    }
    Ok(parts)
}

/// Runs all commands of a page and reports all failures together.
#[track_caller]
fn run_page(name: &str) {
    let page = setup::read(name);
    let parts = parts_of(name);
    let mut failures = page.stale(&parts);
    if page.root && !common::is_root() {
        return penstock_testkit::skip(
            penstock_testkit::Requirement::Root,
            &format!("{name}: needs root"),
        );
    }
    let mut sandbox = match Sandbox::start() {
        Ok(sandbox) => sandbox,
        Err(error) if !common::is_root() => {
            return penstock_testkit::skip(
                penstock_testkit::Requirement::Kernel,
                &format!("{name}: no namespaces for this user: {error}"),
            );
        }
        Err(error) => panic!("no sandbox: {error}"),
    };
    if !page.setup.is_empty() {
        let done =
            sandbox.run(&page.setup).unwrap_or_else(|error| panic!("{name}: setup: {error}"));
        assert_eq!(done.code, 0, "{name}: setup: {}", done.output);
    }
    let mut running = Vec::new();
    let mut last = String::new();
    for part in &parts {
        let (line, what, result) = match part {
            Part::Command { line, text } => {
                let rule = page.rule(text);
                if let Some(reason) = rule.not_run.as_deref() {
                    println!("{name}:{line}: not run: {text}: {reason}");
                    continue;
                }
                let result = run_command(&mut sandbox, text, &rule, &mut running);
                (line, text, result.map(|output| last = output))
            }
            Part::Output { line, text } => {
                let same = last.trim_end() == text.trim_end();
                let result = same.then_some(()).ok_or_else(|| format!("it printed: {last}"));
                (line, text, result)
            }
            Part::File { line, path, text } => (line, path, write_file(&mut sandbox, path, text)),
            Part::Toml { line, text } => {
                let parsed = toml::from_str::<toml::Table>(text);
                (line, text, parsed.map(drop).map_err(|error| error.to_string()))
            }
        };
        if let Err(error) = result {
            failures.push(format!(
                "{name}:{line}: {what}\n    {}",
                error.trim_end().replace('\n', "\n    ")
            ));
        }
    }
    while let Some((background, rule)) = running.pop() {
        if let Err(error) = stop(&mut sandbox, background, &rule) {
            failures.push(format!("{name}: {}: {error}", rule.is));
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// Writes a sample file; a file of the repository must equal the page.
fn write_file(sandbox: &mut Sandbox, path: &str, text: &str) -> Result<(), String> {
    toml::from_str::<toml::Table>(text).map_err(|error| error.to_string())?;
    match fs::read_to_string(repository().join(path)) {
        Ok(kept) if kept == text => return Ok(()),
        Ok(_) => return Err(format!("the file {path} of the repository is another")),
        Err(_) => {}
    }
    let (path, text) = (quoted(path), quoted(text));
    let done =
        sandbox.run(&format!("mkdir -p \"$(dirname {path})\" && printf %s {text} > {path}"))?;
    if done.code == 0 { Ok(()) } else { Err(done.output) }
}

/// Runs one command by its rule; returns its output, or the failure.
fn run_command(
    sandbox: &mut Sandbox,
    text: &str,
    rule: &Rule,
    running: &mut Vec<(Background, Rule)>,
) -> Result<String, String> {
    if let Some(before) = &rule.before {
        let done = sandbox.run(before)?;
        if done.code != 0 {
            return Err(format!("before: {}", done.output));
        }
    }
    let mut text = text.to_owned();
    for (written, run) in &rule.replace {
        if !text.contains(written) {
            return Err(format!("`{written}`, which is to be replaced, is not in it"));
        }
        text = text.replace(written, run);
    }
    if let Some(host) = &rule.on {
        text = format!("on {host} bash -c {}", quoted(&text));
    }
    let output = match (&rule.goes_on_after, &rule.interrupt_after) {
        // The page runs this command in the background (`&`).
        (Some(ready), _) if text.ends_with('&') => {
            sandbox.run(&text)?;
            sandbox.printed(ready)?;
            String::new()
        }
        (Some(ready), _) => {
            running.push((sandbox.spawn(&text, ready)?, rule.clone()));
            String::new()
        }
        (None, Some(ready)) => {
            let background = sandbox.spawn(&text, ready)?;
            stop(sandbox, background, rule)?
        }
        (None, None) => {
            let done = sandbox.run(&text)?;
            if done.code != rule.code {
                return Err(format!("exit code {}, not {}: {}", done.code, rule.code, done.output));
            }
            done.output
        }
    };
    if let Some(wanted) = rule.prints.iter().find(|wanted| !output.contains(wanted.as_str())) {
        return Err(format!("`{wanted}` is not in what it printed: {output}"));
    }
    if let Some(after) = &rule.after {
        let done = sandbox.run(after)?;
        if done.code != 0 {
            return Err(format!("after: exit code {}: {}\n{output}", done.code, done.output));
        }
    }
    Ok(output)
}

fn stop(sandbox: &mut Sandbox, background: Background, rule: &Rule) -> Result<String, String> {
    let done = sandbox.interrupt(background)?;
    if done.code == rule.code {
        return Ok(done.output);
    }
    Err(format!("exit code {} after Ctrl-C, not {}: {}", done.code, rule.code, done.output))
}

/// A test for each page.
macro_rules! pages {
    ($($test:ident $page:literal)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(#[test] fn $test() { run_page($page); })*
    };
}

pages! {
    readme_runs "README.md"
    controller_page_runs "docs/controller.md"
    controller_reference_runs "docs/controller-reference.md"
    disk_page_runs "docs/disk.md"
    fabric_page_runs "docs/fabric.md"
    host_page_runs "docs/host.md"
    lab_page_runs "docs/lab.md"
    operations_page_runs "docs/operations.md"
    plan_page_runs "docs/plan.md"
    scitags_page_runs "docs/scitags.md"
    telemetry_page_runs "docs/telemetry.md"
    topology_page_runs "docs/topology.md"
    experiments_page_runs "experiments/README.md"
    cancel_help_runs "help cancel"
    controller_help_runs "help controller"
    cp_help_runs "help cp"
    disk_help_runs "help disk"
    drain_help_runs "help drain"
    experiment_help_runs "help experiment"
    fabric_help_runs "help fabric"
    generate_help_runs "help generate"
    host_help_runs "help host"
    lab_help_runs "help lab"
    list_help_runs "help list"
    login_help_runs "help login"
    nettest_help_runs "help nettest"
    plan_help_runs "help plan"
    rehearse_help_runs "help rehearse"
    reserve_help_runs "help reserve"
    sample_help_runs "help sample"
    serve_help_runs "help serve"
    set_help_runs "help set"
    show_help_runs "help show"
    submit_help_runs "help submit"
    tag_help_runs "help tag"
    token_help_runs "help token"
    topology_help_runs "help topology"
    transfers_help_runs "help transfers"
    tune_help_runs "help tune"
}

/// Markdown pages that are documentation for users.
fn markdown_pages() -> BTreeSet<String> {
    let mut pages = BTreeSet::from(["README.md".to_owned(), "experiments/README.md".to_owned()]);
    for folder in ["docs", "docs/decisions"] {
        for entry in fs::read_dir(repository().join(folder)).expect(folder) {
            let name = entry.expect(folder).file_name().into_string().expect("UTF-8");
            if name.ends_with(".md") {
                pages.insert(format!("{folder}/{name}"));
            }
        }
    }
    pages
}

#[test]
fn every_page_with_commands_runs() {
    let runs = |page: &String| PAGES.contains(&page.as_str());
    let shows = |page: &String| {
        let parts = parts_of(page);
        parts.iter().any(|part| matches!(part, Part::Command { .. } | Part::File { .. }))
    };
    let mut missing: Vec<String> =
        markdown_pages().into_iter().filter(|page| !runs(page)).filter(shows).collect();
    let verbs = fs::read_dir(repository().join("docs/help")).expect("docs/help");
    let verbs = verbs.map(|entry| entry.expect("an entry").path());
    let verbs = verbs.filter_map(|path| Some(format!("help {}", path.file_stem()?.to_str()?)));
    missing.extend(verbs.filter(|page| page != "help penstock" && !runs(page)));
    assert!(missing.is_empty(), "no test in `pages!` runs {missing:?}");
}

#[test]
fn setups_belong_to_pages() {
    for entry in fs::read_dir(setup::folder()).expect("pages") {
        let path = entry.expect("an entry").path();
        assert!(
            PAGES.iter().any(|page| setup::path(page) == path),
            "{} belongs to no page",
            path.display()
        );
    }
}
