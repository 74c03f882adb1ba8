//! Help and documents in step: `docs/help/<verb>.txt` is what `penstock <verb> --help` prints.
//!
//! `UPDATE_GOLDEN=1 cargo test -p penstock --test help` rewrites the files; the change is then reviewed as a diff.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the binary and returns what it prints. A fixed width keeps the files free of the terminal at hand.
fn help_of(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_penstock"))
        .args(arguments)
        .env("COLUMNS", "100")
        .env_remove("PENSTOCK_STATE")
        .env("NO_COLOR", "1")
        .output()
        .expect("the binary starts");
    assert!(
        output.status.success(),
        "penstock {arguments:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("help is UTF-8")
}

/// Verbs under the heading `Commands:` of `penstock --help`, without clap's own `help`.
fn verbs(overview: &str) -> Vec<String> {
    let list = overview.lines().skip_while(|line| line.trim() != "Commands:").skip(1);
    // A verb stands two columns in; the wrapped rest of its description further right.
    list.take_while(|line| !line.trim().is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .map(str::to_owned)
        .collect()
}

fn help_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/help")
}

#[test]
fn help_files_match_binary_output() {
    let folder = help_folder();
    let overview = help_of(&["--help"]);
    let verbs = verbs(&overview);
    assert!(!verbs.is_empty(), "no verbs under `Commands:` in:\n{overview}");

    let mut wanted = vec![("penstock.txt".to_owned(), overview)];
    wanted.extend(verbs.iter().map(|verb| (format!("{verb}.txt"), help_of(&[verb, "--help"]))));

    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(&folder).expect("docs/help can be made");
        for (name, text) in &wanted {
            std::fs::write(folder.join(name), text).expect("a help file can be written");
        }
    }
    let remedy = "run UPDATE_GOLDEN=1 cargo test -p penstock --test help and review the diff";
    for (name, text) in &wanted {
        let kept = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert_eq!(&kept, text, "docs/help/{name} is out of step; {remedy}");
    }
    let names: BTreeSet<&String> = wanted.iter().map(|(name, _)| name).collect();
    for entry in std::fs::read_dir(&folder).expect("docs/help exists") {
        let name =
            entry.expect("docs/help can be listed").file_name().to_string_lossy().into_owned();
        assert!(names.contains(&name), "docs/help/{name} belongs to no verb: delete it");
    }
}

#[test]
fn every_verb_shows_examples() {
    for verb in verbs(&help_of(&["--help"])) {
        let text = help_of(&[&verb, "--help"]);
        assert!(text.contains("Examples:"), "penstock {verb} --help has no line `Examples:`");
    }
}
