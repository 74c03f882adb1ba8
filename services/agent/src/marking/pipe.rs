//! flowd-go's line protocol on a named pipe: `state protocol source port destination port owner activity`.
//!
//! `start` and `ongoing` tag a flow, `end` removes the tag; a flow without an end expires. Invalid lines are
//! counted, and logged once per kind.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv6Addr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use penstock_marker::table::Origin;
use penstock_marker::{AddressMatch, LabelAction, Method, Prefix, Protocol};
use penstock_scitags::Scitag;

use super::{RuleEngine, locked};

/// Longest line; the protocol needs less than 200 bytes.
const LINE_BYTES_MAX: u64 = 1024;

/// A pipe that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PipeError {
    /// Another kind of file is at its path.
    #[error("pipe {}: exists and is no pipe: remove it or give another path", .0.display())]
    NoPipe(PathBuf),
    /// It cannot be created or opened.
    #[error("pipe {}: {}", path.display(), penstock_sys::fs::describe(error))]
    Io {
        /// Path of the pipe.
        path: PathBuf,
        /// Error of the system.
        error: std::io::Error,
    },
}

/// Command of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowCommand {
    /// Tag the packets of the flow.
    Put(AddressMatch, LabelAction),
    /// Remove the tag of the flow.
    Take(AddressMatch),
}

/// Kinds of invalid lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowLineError {
    /// Not eight words.
    Words,
    /// The first word is no state.
    State,
    /// The second word is no protocol.
    Protocol,
    /// An address does not parse.
    Address,
    /// An address is IPv4.
    Ipv4,
    /// A port is out of range.
    Port,
    /// The numbers are no scitag.
    Tag,
    /// The owner exceeds the bits of a flow label.
    Owner,
    /// The line is too long or not UTF-8.
    Text,
}

impl FlowLineError {
    /// Message for the log.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Words => {
                "a line has eight words: state protocol source port destination port owner activity"
            }
            Self::State => "the state is start, ongoing or end",
            Self::Protocol => "the protocol is tcp, udp or sctp",
            Self::Address => "an address cannot be read",
            Self::Ipv4 => "IPv4 has no flow label",
            Self::Port => "ports are 1 to 65535",
            Self::Tag => "owners are 1 to 1023 and activities 1 to 63",
            Self::Owner => "owners above 511 do not fit on packets: fireflies only",
            Self::Text => "a line is text of at most 1024 bytes",
        }
    }
}

/// Parses one line of the protocol.
///
/// # Errors
/// The kind of the first error.
pub fn parse(line: &str) -> Result<FlowCommand, FlowLineError> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[state, protocol, source, source_port, destination, destination_port, owner, activity] =
        words.as_slice()
    else {
        return Err(FlowLineError::Words);
    };
    let state = state.to_ascii_lowercase();
    if !matches!(state.as_str(), "start" | "ongoing" | "end") {
        return Err(FlowLineError::State);
    }
    let address = |text: &str| -> Result<Prefix, FlowLineError> {
        let text = text.trim_start_matches('[').trim_end_matches(']');
        if text.parse::<std::net::Ipv4Addr>().is_ok() {
            return Err(FlowLineError::Ipv4);
        }
        let address: Ipv6Addr = text.parse().map_err(|_| FlowLineError::Address)?;
        match address.to_ipv4_mapped() {
            Some(_) => Err(FlowLineError::Ipv4),
            None => Ok(Prefix::new(address, 128)),
        }
    };
    let port = |text: &str| {
        text.parse::<u16>().ok().filter(|port| *port != 0).map(Some).ok_or(FlowLineError::Port)
    };
    let rule = AddressMatch {
        source: address(source)?,
        destination: address(destination)?,
        source_port: port(source_port)?,
        destination_port: port(destination_port)?,
        protocol: Some(protocol.parse::<Protocol>().map_err(|_| FlowLineError::Protocol)?),
    };
    if state == "end" {
        return Ok(FlowCommand::Take(rule));
    }
    let number = |text: &str| text.parse::<u64>().map_err(|_| FlowLineError::Tag);
    let tag = Scitag::new(number(owner)?, number(activity)?).map_err(|_| FlowLineError::Tag)?;
    let action = LabelAction::new(tag, Method::Label).map_err(|_| FlowLineError::Owner)?;
    Ok(FlowCommand::Put(rule, action))
}

/// Opens the pipe at `path`, and creates it with mode 0660 if needed.
///
/// # Errors
/// When another file exists at `path`, or the pipe cannot be created.
pub fn open(path: &Path) -> Result<File, PipeError> {
    let io = |error: std::io::Error| PipeError::Io { path: path.to_owned(), error };
    match std::fs::symlink_metadata(path) {
        Ok(facts) if facts.file_type().is_fifo() => {}
        Ok(_) => return Err(PipeError::NoPipe(path.to_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mode = rustix::fs::Mode::from_raw_mode(0o660);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .map_err(|error| io(error.into()))?;
            let permissions = std::fs::Permissions::from_mode(0o660);
            std::fs::set_permissions(path, permissions).map_err(io)?;
        }
        Err(error) => return Err(io(error)),
    }
    // Opened for writing too, so that it has no end of file when a writer closes it.
    OpenOptions::new().read(true).write(true).open(path).map_err(io)
}

/// Applies the lines of `pipe` until it fails.
pub(super) fn serve(pipe: File, engine: &Mutex<RuleEngine>) {
    let mut reader = BufReader::new(pipe);
    let mut error_counts: BTreeMap<FlowLineError, u64> = BTreeMap::new();
    let mut line = Vec::new();
    let mut skipping = false;
    loop {
        line.clear();
        match reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) => {
                tracing::error!("the pipe cannot be read any more: {error}");
                return;
            }
        }
        let whole = line.ends_with(b"\n");
        let skip = std::mem::replace(&mut skipping, !whole);
        if skip {
            continue;
        }
        let text = std::str::from_utf8(&line).ok().filter(|_| whole);
        if text.is_some_and(|text| text.trim().is_empty()) {
            continue;
        }
        let read = text.ok_or(FlowLineError::Text).and_then(parse);
        let done = match read {
            Ok(FlowCommand::Put(rule, action)) => {
                locked(engine).put(rule, action, Origin::Pipe, None)
            }
            Ok(FlowCommand::Take(rule)) => locked(engine).take(&rule).map(|_| ()),
            Err(error_kind) => {
                let count = error_counts.entry(error_kind).or_default();
                *count += 1;
                locked(engine).bad_line();
                if *count == 1 {
                    tracing::warn!(
                        "invalid line on the pipe: {}; further ones of this kind are only counted",
                        error_kind.as_str()
                    );
                }
                continue;
            }
        };
        if let Err(error) = done {
            tracing::warn!("a line on the pipe cannot be applied: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flowd_go_lines_parse() {
        let line = "start tcp 2001:db8::1 2345 2001:db8::2 5777 3 14\n";
        let Ok(FlowCommand::Put(rule, action)) = parse(line) else { panic!("{line}") };
        assert_eq!((rule.source_port, rule.destination_port), (Some(2345), Some(5777)));
        assert_eq!(action.tag(), Scitag::new(3, 14).unwrap());
        assert_eq!(
            parse("end TCP 2001:db8::1 2345 2001:db8::2 5777 0 0"),
            Ok(FlowCommand::Take(rule))
        );
        for (line, error_kind) in [
            ("", FlowLineError::Words),
            ("start tcp ::1 1 ::2 2 3", FlowLineError::Words),
            ("begin tcp ::1 1 ::2 2 3 4", FlowLineError::State),
            ("start icmp ::1 1 ::2 2 3 4", FlowLineError::Protocol),
            ("start tcp 192.0.2.1 1 192.0.2.2 2 3 4", FlowLineError::Ipv4),
            ("start tcp ::ffff:192.0.2.1 1 ::2 2 3 4", FlowLineError::Ipv4),
            ("start tcp se1 1 ::2 2 3 4", FlowLineError::Address),
            ("start tcp ::1 0 ::2 2 3 4", FlowLineError::Port),
            ("start tcp ::1 1 ::2 65536 3 4", FlowLineError::Port),
            ("start tcp ::1 1 ::2 2 0 4", FlowLineError::Tag),
            ("start tcp ::1 1 ::2 2 3 x", FlowLineError::Tag),
            ("start tcp ::1 1 ::2 2 512 4", FlowLineError::Owner),
        ] {
            assert_eq!(parse(line), Err(error_kind), "{line}");
        }
    }
}
