//! Man pages: the content of `--help`, then notes and examples line by line, exit status, environment, files.
//!
//! `clap_mangen` writes the sections of the flags; it would join the lines of examples, so this module formats the text
//! after the flags.

use std::fs;
use std::io;
use std::path::Path;

use clap::Command;
use clap::builder::Resettable;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Exit codes of every verb.
const EXIT_STATUS: [(&str, &str); 6] = [
    ("0", "Done."),
    ("1", "Failed: nothing or not enough was done, or it was interrupted."),
    ("2", "Usage: the command or the configuration makes no sense."),
    ("3", "Done in part: what failed is named on standard error."),
    ("4", "An integrity check failed."),
    ("5", "Refused: token, certificate or permission."),
];

/// A variable or file that `verbs` use; all verbs if empty.
struct Used {
    name: &'static str,
    verbs: &'static [&'static str],
    text: &'static str,
}

const CONTROLLER_CLIENTS: &[&str] =
    &["submit", "list", "show", "set", "cancel", "drain", "reserve"];

const ENVIRONMENT: [Used; 10] = [
    Used {
        name: "PENSTOCK_STATE",
        verbs: &[],
        text: "The state directory: keys, tokens, logins and journals of unfinished transfers. Unless set it is \
               /var/lib/penstock for root, else $XDG_STATE_HOME/penstock, else ~/.local/state/penstock.",
    },
    Used {
        name: "PENSTOCK_LOG",
        verbs: &[],
        text: "The level of log lines on standard error: error, warn, info, debug or trace.",
    },
    Used {
        name: "PENSTOCK_SSH",
        verbs: &["cp"],
        text: "The ssh command and its options, as --ssh.",
    },
    Used {
        name: "PENSTOCK_HTTP",
        verbs: &["transfers"],
        text: "The address of the agent's HTTP API, as --http.",
    },
    Used {
        name: "PENSTOCK_CONTROLLER",
        verbs: CONTROLLER_CLIENTS,
        text: "The address of the controller's HTTP API, as --controller.",
    },
    Used {
        name: "PENSTOCK_CONFIG",
        verbs: &["serve"],
        text: "The configuration file, as --config.",
    },
    Used {
        name: "PENSTOCK_LISTEN, PENSTOCK_HTTP, PENSTOCK_ROOT, PENSTOCK_ROLES, PENSTOCK_METRICS, PENSTOCK_TOKENS",
        verbs: &["serve"],
        text: "As the flags of these names; they come after the configuration file and before the flags.",
    },
    Used {
        name: "PENSTOCK_RATE, PENSTOCK_TRANSFERS, PENSTOCK_STREAMS, PENSTOCK_MEMORY, PENSTOCK_KEEP_UNFINISHED, PENSTOCK_CPU",
        verbs: &["serve"],
        text: "Likewise.",
    },
    Used {
        name: "NOTIFY_SOCKET, WATCHDOG_USEC, JOURNAL_STREAM",
        verbs: &["serve"],
        text: "Set by systemd: readiness and watchdog are reported, and no token is printed into the journal.",
    },
    Used {
        name: "PENSTOCK_LAB, PENSTOCK_LAB_HOST",
        verbs: &["lab"],
        text: "Set by penstock lab enter for the command that it runs: the lab and the host.",
    },
];

const FILES: [Used; 9] = [
    Used {
        name: "/etc/penstock/penstock.toml",
        verbs: &["serve"],
        text: "The configuration, unless --config names another.",
    },
    Used {
        name: "/etc/penstock/tags.toml",
        verbs: &["tag"],
        text: "Rules of the packet marker, where its service unit is used.",
    },
    Used {
        name: "STATE/agent.crt, STATE/agent.key, STATE/token",
        verbs: &["serve"],
        text: "The agent's certificate, its private key and its own token.",
    },
    Used {
        name: "STATE/hosts.toml",
        verbs: &[],
        text: "Logins: tokens and fingerprints of agents and controllers, by penstock login. Mode 0600.",
    },
    Used {
        name: "STATE/transfers/NAME.journal",
        verbs: &["cp", "serve"],
        text: "What is durable of an unfinished transfer at its receiving end.",
    },
    Used {
        name: "STATE/copies/PROCESS.sock",
        verbs: &["cp", "transfers"],
        text: "The socket by which penstock transfers reaches a copy that runs.",
    },
    Used {
        name: "STATE/scitags.json",
        verbs: &["tag", "serve"],
        text: "The registry of scitags, where one was fetched.",
    },
    Used {
        name: ".penstock-*.part",
        verbs: &["cp", "serve"],
        text: "An unfinished file, beside the name that it will get.",
    },
    Used { name: "STATE", verbs: &[], text: "The state directory; see PENSTOCK_STATE." },
];

/// Writes the pages of a command and its visible subcommands into a directory.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write_pages(command: Command, directory: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_page(&command, None, directory)
}

fn write_page(command: &Command, verb: Option<&str>, directory: &Path) -> io::Result<()> {
    let page = Man::new(command.clone());
    fs::write(directory.join(page.get_filename()), render(command, verb)?)?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_page(inner, Some(verb.unwrap_or(inner.get_name())), directory)?;
    }
    Ok(())
}

/// Renders the page of a command of a verb.
fn render(command: &Command, verb: Option<&str>) -> io::Result<String> {
    let mut page = Vec::new();
    let source = concat!("penstock ", env!("CARGO_PKG_VERSION"));
    Man::new(command.clone().after_help(Resettable::Reset)).source(source).render(&mut page)?;
    let mut more = Roff::new();
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    put_notes_and_examples(&mut more, &text);
    more.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_STATUS {
        put_item(&mut more, code, meaning);
    }
    for (heading, list) in [("ENVIRONMENT", &ENVIRONMENT[..]), ("FILES", &FILES[..])] {
        more.control("SH", [heading]);
        let is_used = |used: &&Used| {
            used.verbs.is_empty() || verb.is_none_or(|verb| used.verbs.contains(&verb))
        };
        for used in list.iter().filter(is_used) {
            put_item(&mut more, used.name, used.text);
        }
    }
    if verb.is_some() {
        more.control("SH", ["SEE ALSO"]);
        more.text([bold("penstock"), roman("(1)")]);
    }
    let mut page = String::from_utf8_lossy(&page).into_owned();
    // The page already defines the apostrophe.
    more.render().lines().skip_while(|line| !line.starts_with(".SH")).for_each(|line| {
        page += line;
        page.push('\n');
    });
    Ok(page)
}

fn put_item(page: &mut Roff, name: &str, text: &str) {
    page.control("TP", []);
    page.text([bold(name)]);
    page.text([roman(text)]);
}

/// Writes the text after the flags: paragraphs as notes, and indented lines below `Examples:` verbatim.
fn put_notes_and_examples(page: &mut Roff, text: &str) {
    let (mut notes, mut examples) = (Vec::new(), Vec::new());
    for block in text.split("\n\n") {
        let heading = block.lines().next().unwrap_or_default().trim();
        match heading {
            "Examples:" | "Example:" => examples.extend(block.lines().skip(1)),
            _ if ["Exit codes:", "Environment:"].iter().any(|own| heading.starts_with(own)) => {}
            "" => {}
            _ => notes.push(block),
        }
    }
    if !notes.is_empty() {
        page.control("SH", ["NOTES"]);
    }
    for (number, block) in notes.into_iter().enumerate() {
        if number > 0 {
            page.control("PP", []);
        }
        put_lines(page, block.lines());
    }
    if !examples.is_empty() {
        page.control("SH", ["EXAMPLES"]);
        put_literally(page, &examples);
    }
}

/// Writes a paragraph; indented lines keep their line breaks.
fn put_lines<'a>(page: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    let mut literal: Vec<&str> = Vec::new();
    for line in lines {
        if line.starts_with("  ") {
            literal.push(line);
            continue;
        }
        put_literally(page, &std::mem::take(&mut literal));
        page.text([roman(line)]);
    }
    put_literally(page, &literal);
}

fn put_literally(page: &mut Roff, lines: &[&str]) {
    if lines.is_empty() {
        return;
    }
    page.control("nf", []);
    for line in lines {
        page.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// A line of a page as rendered.
    fn shown(line: &str) -> String {
        let line = line.strip_prefix("\\&").unwrap_or(line);
        line.replace("\\*(Aq", "'").replace("\\-", "-").replace("\\\\", "\\")
    }

    #[test]
    fn pages_keep_every_example_line() {
        let directory = tempfile::tempdir().unwrap();
        write_pages(crate::CommandLine::command(), directory.path()).unwrap();
        let mut command = crate::CommandLine::command();
        command.build();
        let mut examples_seen = 0;
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            let path = directory.path().join(format!("penstock-{}.1", verb.get_name()));
            let Ok(page) = fs::read_to_string(&path) else {
                assert_eq!(verb.get_name(), "help");
                continue;
            };
            for heading in ["EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES"] {
                let heading = format!(".SH \"{heading}\"");
                let bare = heading.replace('"', "");
                assert!(page.contains(&heading) || page.contains(&bare), "{path:?}: {heading}");
            }
            let help = verb.get_after_help().unwrap().to_string();
            let lines: Vec<String> = page.lines().map(shown).collect();
            for example in help.lines().filter(|line| line.starts_with("  penstock ")) {
                let example = &example[2..];
                assert!(lines.iter().any(|line| line == example), "{path:?}: {example}");
                examples_seen += 1;
            }
        }
        assert!(examples_seen > 60, "{examples_seen}");
    }
}
