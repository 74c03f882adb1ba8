//! Checks documented commands against the parser, including those that tests cannot run on one machine.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser};

use crate::CommandLine;

#[path = "../tests/documentation/extract.rs"]
#[allow(dead_code, reason = "the test that runs the commands uses the rest")]
mod extract;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Pages with their texts.
fn pages() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned(), "experiments/README.md".to_owned()];
    for entry in fs::read_dir(repository().join("docs")).expect("docs") {
        let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names
        .into_iter()
        .map(|name| {
            let text = fs::read_to_string(repository().join(&name)).expect(&name);
            (name, text)
        })
        .collect()
}

/// Programs that take `penstock` as an argument: a user, a group, a unit.
const OTHER_PROGRAMS: [&str; 3] = ["install", "journalctl", "systemctl"];

/// Completes a placeholder fingerprint so that the parser accepts it.
fn filled_in(word: &str) -> String {
    match word {
        "SHA256:..." | "SHA256:HEX" => format!("SHA256:{}", "0".repeat(64)),
        _ => word.to_owned(),
    }
}

/// Argument lists of `penstock` in a shell line.
fn invocations(command: &str) -> Vec<Vec<String>> {
    let command = command.replace("\\\n", " ");
    let words = shlex::split(&command).unwrap_or_else(|| panic!("no words: {command}"));
    let mut found: Vec<Vec<String>> = Vec::new();
    let (mut open, mut is_other) = (false, false);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            ">" | "<" | ">>" => {
                words.next();
            }
            "|" | "&" | "&&" | "||" | ";" => (open, is_other) = (false, false),
            program if !open && OTHER_PROGRAMS.contains(&program) => is_other = true,
            _ if is_other => {}
            // The command of `lab exec` is part of its arguments.
            "penstock" if !open => {
                open = true;
                found.push(vec![word]);
            }
            _ if open => {
                let end = word.ends_with(';');
                let word = filled_in(word.trim_end_matches(';'));
                found.last_mut().expect("it is open").push(word);
                open = !end;
            }
            _ => {}
        }
    }
    found
}

/// Unwrapped after-help texts of a command and its subcommands.
fn examples(command: &Command, all: &mut Vec<(String, String)>) {
    if let Some(help) = command.get_after_help() {
        all.push((format!("{} --help", command.get_name()), help.to_string()));
    }
    command.get_subcommands().filter(|one| !one.is_hide_set()).for_each(|one| examples(one, all));
}

#[test]
fn documented_commands_are_understood() {
    let mut all = Vec::new();
    for (name, text) in pages() {
        all.push((
            name.clone(),
            extract::markdown(&text).unwrap_or_else(|error| panic!("{name}: {error}")),
        ));
    }
    let mut helps = Vec::new();
    examples(&CommandLine::command(), &mut helps);
    for (name, text) in helps {
        all.push((
            name.clone(),
            extract::help(&text).unwrap_or_else(|error| panic!("{name}: {error}")),
        ));
    }
    let (mut faults, mut count) = (Vec::new(), 0);
    for (name, parts) in all {
        for part in parts {
            let extract::Part::Command { line, text } = part else { continue };
            for arguments in invocations(&text) {
                count += 1;
                if let Err(error) = CommandLine::try_parse_from(&arguments) {
                    faults.push(format!("{name}:{line}: {}: {error}", arguments.join(" ")));
                }
            }
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Messages of the program that look like commands.
const MESSAGES: [&str; 1] = ["penstock did not start there"];

/// The subcommand named by `words`, and the number of words that name it.
fn descend<'c>(command: &'c Command, words: &[&str]) -> (&'c Command, usize) {
    match words.first().and_then(|word| command.find_subcommand(word)) {
        Some(found) => {
            let (last, used) = descend(found, &words[1..]);
            (last, used + 1)
        }
        None => (command, 0),
    }
}

#[test]
fn inline_commands_have_known_flags() {
    let mut cli = CommandLine::command();
    cli.build();
    let mut faults = Vec::new();
    for (name, text) in pages() {
        let spans = extract::inline(&text).into_iter();
        for (line, code) in spans.filter(|(_, code)| !MESSAGES.contains(&code.as_str())) {
            let words: Vec<&str> = code.split_whitespace().skip(1).collect();
            let (command, used) = descend(&cli, &words);
            if used == 0
                && words
                    .first()
                    .is_some_and(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            {
                faults.push(format!("{name}:{line}: `{code}`: no such verb"));
            }
            let flags = words[used..].iter().take_while(|word| **word != "--");
            for flag in flags.filter_map(|word| word.strip_prefix("--")) {
                let flag = flag.split(['=', ']', ',', '|']).next().unwrap_or_default();
                let is_known = command.get_arguments().any(|known| {
                    known.get_long() == Some(flag)
                        || known.get_all_aliases().is_some_and(|aliases| aliases.contains(&flag))
                });
                if !is_known {
                    faults.push(format!("{name}:{line}: `{code}`: no flag --{flag}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
