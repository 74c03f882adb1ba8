//! `penstock submit`: submits a request to move files between sites.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use penstock_control::orders::{FILES_MAX, OrderTransport, Overwrite, TuningMode, Verify};
use penstock_controller::api::objects::{AppendBody, FileBody, RequestFacts, SubmitBody};
use penstock_controller::paths::relative;
use penstock_protocol::manifest::display_path;

use super::{ControllerArgs, code, is_over, line, now, print_json, watch};
use crate::exit::{Code, CommandFailure, OrExit, say};
use crate::input;
use crate::terminal::printable;

/// Ask a controller to move files from one site to another
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The controller chooses hosts, rates and paths, retries transient failures, and continues when machines fail; this \
command may end at once. Without --files it copies all files and links below the source directory, or the source file, into \
the destination's directory; empty directories are not made. With --key a repeated command names the same request.

The controller's own token is known on its machine; elsewhere log in to its HTTP port once (penstock login \
HOST:8621 --token ... --fingerprint ...). With --watch the exit code says how it ended: 0 done, 3 partial, 1 failed or \
cancelled.

Examples:
  penstock submit cern:/store/run7 caltech:/store/run7
  penstock submit cern:/store/run7/events.dat caltech:/store/one
  penstock submit cern:/store caltech:/store --files list.txt \\
    --class production --priority 4 --key run7
  find . -type f -printf '%P\\n' |\\
    penstock submit cern:/store/run7 caltech:/store/in --files - --watch
  penstock submit cern:/store/run7 caltech:/store/new --deadline 6h --json")]
pub(crate) struct SubmitArgs {
    /// Source, as SITE:/DIRECTORY, or one file
    #[arg(value_name = "SITE:/PATH")]
    from: SitePath,
    /// Destination, as SITE:/DIRECTORY
    #[arg(value_name = "SITE:/DIR")]
    to: SitePath,
    /// List of paths below the directory, one a line, or - for standard input
    #[arg(long, value_name = "FILE")]
    files: Option<PathBuf>,
    /// Class of work, by its name or as OWNER/ACTIVITY
    #[arg(long)]
    class: Option<String>,
    /// Idempotency key: a repeated key names the same request
    #[arg(long)]
    key: Option<String>,
    /// 1 (can wait) to 5 (urgent) [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=5))]
    priority: Option<u8>,
    /// Deadline: a time from now such as 6h, or seconds since 1970
    #[arg(long, value_name = "TIME", value_parser = deadline)]
    deadline: Option<i64>,
    /// Attempts for each file [default: 5]
    #[arg(long, value_name = "N")]
    attempts: Option<u32>,
    /// Read files back from the destination's device and compare them, too
    #[arg(long)]
    readback: bool,
    /// Fail files that exist at the destination and differ
    #[arg(long)]
    no_overwrite: bool,
    /// Protect data only against changes, without encryption
    #[arg(long)]
    no_encrypt: bool,
    /// Label of the packets: OWNER/ACTIVITY by name or number, or a scitag number [default: that of the class]
    #[arg(long, value_name = "OWNER/ACTIVITY")]
    scitag: Option<String>,
    /// Use of the tuner for the streams: auto, history (keep those that earlier transfers ended with), observe (log what
    /// would be tried) or off; the hosts' operators may allow less [default: auto]
    #[arg(long, value_name = "MODE", value_parser = tuning_mode)]
    tune: Option<TuningMode>,
    /// Transport of the data: tcp, rdma (files fail where RDMA is not possible; needs --no-encrypt) or auto (RDMA where
    /// both hosts can, else TCP) [default: that of the sending host's operator]
    #[arg(long, value_name = "NAME", value_parser = transport)]
    transport: Option<OrderTransport>,
    /// Print progress every second, until it has ended
    #[arg(long)]
    watch: bool,
    /// Print the request as one JSON object; with --watch at its end; docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

/// A directory at a site.
#[derive(Debug, Clone)]
struct SitePath {
    site: String,
    path: String,
}

impl std::str::FromStr for SitePath {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.split_once(':') {
            Some((site, path)) if !site.is_empty() && path.starts_with('/') => {
                let trimmed = path.trim_end_matches('/');
                let path = if trimmed.is_empty() { "/" } else { trimmed };
                Ok(Self { site: site.to_owned(), path: path.to_owned() })
            }
            _ => Err(anyhow!("write it like cern:/store/run7")),
        }
    }
}

/// Parses a time from now, or seconds since 1970, which is larger than any allowed span.
pub(super) fn deadline(text: &str) -> anyhow::Result<i64> {
    match text.parse::<i64>() {
        Ok(seconds) if seconds > 1_000_000_000 => Ok(seconds),
        _ => {
            let span: Duration = penstock_units::parse_duration(text)?;
            Ok(now() as i64 + i64::try_from(span.as_secs()).unwrap_or(i64::MAX / 2))
        }
    }
}

fn tuning_mode(text: &str) -> anyhow::Result<TuningMode> {
    TuningMode::named(text).ok_or_else(|| anyhow!("write auto, history, observe or off"))
}

fn transport(text: &str) -> anyhow::Result<OrderTransport> {
    OrderTransport::named(text).ok_or_else(|| anyhow!("write tcp, rdma or auto"))
}

fn read_files(file: &Path) -> Result<Vec<FileBody>, CommandFailure> {
    let shown = match file.to_str() {
        Some("-") => "standard input".to_owned(),
        _ => file.display().to_string(),
    };
    let list = input::read(file, usize::MAX - 1)
        .map_err(|error| anyhow!("{shown}: {}", penstock_sys::fs::describe(&error)))
        .or_exit(Code::Usage)?;
    let paths = listed_paths(&list).map_err(|error| error.context(shown.clone()));
    let files: Vec<_> = paths
        .or_exit(Code::Usage)?
        .into_iter()
        .map(|path| FileBody { path: path.to_owned(), size: None, digest: None })
        .collect();
    if files.is_empty() {
        let error = anyhow!("{shown}: no file is in it: write a path in each line");
        return Err(CommandFailure::new(Code::Usage, error));
    }
    Ok(files)
}

/// Paths of a list, one a line.
///
/// # Errors
/// For a path that the controller would refuse, with the number of its line.
fn listed_paths(list: &[u8]) -> anyhow::Result<Vec<&str>> {
    let mut lines_by_path = HashMap::new();
    let mut all = Vec::new();
    for (line, number) in list.split(|byte| *byte == b'\n').zip(1_usize..) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let path = std::str::from_utf8(line).map_err(|_| {
            anyhow!("line {number}: '{}' is not UTF-8: rename the file", display_path(line))
        })?;
        let path = path.strip_prefix("./").unwrap_or(path);
        if path.is_empty() {
            continue;
        }
        relative(path).with_context(|| format!("line {number}"))?;
        if let Some(first) = lines_by_path.insert(path, number) {
            return Err(anyhow!(
                "line {number}: '{}' is in line {first} already: leave one out",
                printable(path)
            ));
        }
        all.push(path);
    }
    Ok(all)
}

pub(crate) fn run(args: SubmitArgs) -> Result<Code, CommandFailure> {
    let scitag = args.scitag.as_deref().map(crate::tag::lookup).transpose();
    let scitag = scitag.context("--scitag").or_exit(Code::Usage)?;
    let scitag = scitag.map(|tag| u16::try_from(tag.number())).transpose();
    let scitag = scitag.context("--scitag").or_exit(Code::Usage)?;
    let files = args.files.as_deref().map(read_files).transpose()?;
    let directory = files.is_none();
    let files = files.unwrap_or_default();
    let open = files.len() > FILES_MAX;
    let (first, rest) = files.split_at(files.len().min(FILES_MAX));
    let body = SubmitBody {
        key: args.key,
        class: args.class,
        source: args.from.site,
        destination: args.to.site,
        from: args.from.path,
        to: args.to.path,
        files: first.to_vec(),
        directory,
        open,
        priority: args.priority,
        deadline_unix_seconds: args.deadline,
        size_estimate_bytes: None,
        verify: if args.readback { Verify::Readback } else { Verify::Transfer },
        overwrite: if args.no_overwrite { Overwrite::Never } else { Overwrite::Changed },
        encrypt: args.no_encrypt.then_some(false),
        attempts: args.attempts,
        scitag,
        tune: args.tune,
        transport: args.transport,
    };
    let controller = args.place.open()?;
    let mut request: RequestFacts = controller.ask("POST", "/api/v1/requests", Some(&body))?;
    // A repeated request exists already, perhaps in part.
    let there = usize::try_from(request.files).unwrap_or(usize::MAX).saturating_sub(first.len());
    let mut at = first.len() + there / FILES_MAX * FILES_MAX;
    if request.open {
        for part in rest.get(there / FILES_MAX * FILES_MAX..).unwrap_or_default().chunks(FILES_MAX)
        {
            let seal = at + part.len() == files.len();
            let more = AppendBody { at: at as u64, files: part.to_vec(), seal };
            let path = format!("/api/v1/requests/{}/files", request.id);
            request = controller.ask("POST", &path, Some(&more))?;
            at += part.len();
        }
    }
    let id = u64::try_from(request.id).unwrap_or_default();
    if args.watch {
        if !args.json {
            let outcome = |request: &RequestFacts| is_over(request).then(|| code(request));
            return watch(|| {
                let request = controller.watched_request(id)?;
                Ok((line(&request), outcome(&request)))
            });
        }
        while !is_over(&request) {
            std::thread::sleep(super::WATCH_EVERY);
            request = controller.watched_request(id)?;
        }
    }
    let code = if args.watch { code(&request) } else { Code::Done };
    if args.json {
        print_json(&request)?;
    } else {
        print!("{}", line(&request));
        say(format!("penstock show {id} says how it goes"));
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_lists_name_lines() {
        assert_eq!(listed_paths(b"a\r\n\n./b/c").unwrap(), ["a", "b/c"]);
        for (list, words) in [
            (&b"a\n/b"[..], "line 2: '/b' begins with /"),
            (b"a\n\nb/../c\n", "line 3: 'b/../c' has the part '..'"),
            (b"\xff\n", "line 1: '\\xff' is not UTF-8"),
            (b"a\nb\n./a\n", "line 3: 'a' is in line 1 already"),
        ] {
            let error = crate::exit::chain_line(&listed_paths(list).unwrap_err());
            assert!(error.starts_with(words), "{error}");
        }
    }
}
