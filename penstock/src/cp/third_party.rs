//! Third-party copy: the source's agent sends to the destination's agent, and this process monitors it.

use std::net::IpAddr;

use penstock_mover::{ThirdPartyConfig, ThirdPartyTransfer};
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Opened, Options, Pull, Push};
use penstock_protocol::third_party::ThirdParty;
use penstock_protocol::wire::Bytes;

use super::location::Location;
use super::plan::{
    RunningCopy, StartError, failed, one_host, reach, remote_path, transfer_key, usage,
};
use super::tuning::third_party_streams;
use super::{CpArgs, Tune};

/// Starts a copy between two remote locations.
///
/// # Errors
/// When the arguments do not suit a third-party copy, or there are no credentials for one of the agents.
pub(super) fn start(
    args: &CpArgs,
    mut options: Options,
    from: &[Location],
    to: &Location,
    into_directory: bool,
) -> Result<RunningCopy, StartError> {
    let first = one_host(from)?;
    if args.via_ssh {
        return Err(usage(
            "--via-ssh carries data through this machine, and between two hosts it goes directly: \
             leave it out, or run the command on one of them",
        ));
    }
    if args.files_from.is_some() {
        return Err(usage(
            "--files-from does not name files between two remote places: name them on the command \
             line, or run the command on one of the two hosts",
        ));
    }
    if first.has_host_of(to) {
        refuse_into_itself(from, to)?;
    }
    let source = reach(args, first, false)?;
    let destination = reach(args, to, false)?;
    // Two names may mean one agent.
    if source.fingerprint == destination.fingerprint {
        refuse_into_itself(from, to)?;
    }
    options.settings.streams = third_party_streams(args, options.settings.streams);
    let push = Push {
        target: Bytes(remote_path(to)),
        into_directory,
        transfer_key: transfer_key(args, None),
        options: options.clone(),
    };
    let pull = Pull {
        sources: from.iter().map(|place| Bytes(remote_path(place))).collect(),
        recursive: args.recursive,
        listed: false,
        options,
    };
    let texts = |addresses: &[IpAddr]| addresses.iter().map(ToString::to_string).collect();
    let (host, port) = destination.address;
    let template = ThirdParty {
        pull,
        host,
        port,
        to: texts(&args.to),
        from: texts(&args.from),
        congestion: args.congestion.clone(),
        fingerprint: destination.fingerprint.0,
        session: Opened::default(),
        give_up_after: u32::try_from(args.give_up_after.as_secs()).unwrap_or(u32::MAX),
        keep_placed: args.json || args.checksum_file.is_some(),
        digest_skipped: args.checksum_file.is_some(),
    };
    let request = move |session: Opened| ThirdParty { session, ..template.clone() };
    let plan = ThirdPartyConfig {
        source: source.contact,
        destination: destination.contact,
        push,
        request: Box::new(request),
        is_observed: args.tune == Tune::Observe,
    };
    let transfer = ThirdPartyTransfer::start(plan)
        .map_err(|error| failed(penstock_sys::fs::describe(&error)))?;
    Ok(RunningCopy::ThirdParty { transfer, remotes: [source.remote, destination.remote] })
}

/// Refuses a copy of a directory into itself, which would not end, and of a file onto itself, which would lose it.
fn refuse_into_itself(from: &[Location], to: &Location) -> Result<(), StartError> {
    let target = remote_path(to);
    match from.iter().find(|place| is_inside(&target, &remote_path(place))) {
        None => Ok(()),
        Some(source) => Err(usage(format!(
            "{} lies inside {}: a directory cannot be copied into itself",
            display_path(&target),
            display_path(&remote_path(source)),
        ))),
    }
}

/// True if `path` equals `above` or lies below it, ignoring repeated slashes and `.`.
fn is_inside(path: &[u8], above: &[u8]) -> bool {
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        let names =
            path.split(|byte| *byte == b'/').filter(|name| ![&b""[..], b"."].contains(name));
        names.map(<[u8]>::to_vec).collect()
    };
    path.starts_with(b"/") == above.starts_with(b"/") && names(path).starts_with(&names(above))
}

#[cfg(test)]
mod tests {
    use super::is_inside;

    #[test]
    fn paths_are_compared_by_their_names() {
        for (path, above) in [
            ("/data", "/data"),
            ("//data/./x/", "/data/"),
            ("/data/x", "/./data//"),
            ("/data", "/"),
            ("x", "."),
        ] {
            assert!(is_inside(path.as_bytes(), above.as_bytes()), "{path} {above}");
        }
        for (path, above) in [("/data2", "/data"), ("/", "/data"), ("/x", "."), ("x", "/")] {
            assert!(!is_inside(path.as_bytes(), above.as_bytes()), "{path} {above}");
        }
    }
}
