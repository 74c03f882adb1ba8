//! Locations on the command line: local paths, URLs of agents, hosts by ssh.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use penstock_protocol::manifest::display_path;

/// Default TCP port of an agent.
pub(crate) const AGENT_PORT: u16 = 8620;

/// Source or destination of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// On this machine.
    Local(PathBuf),
    /// At an agent.
    Agent {
        /// Host name or address.
        host: String,
        /// TCP port.
        port: u16,
        /// Remote path, any bytes.
        path: Vec<u8>,
    },
    /// On a host that ssh reaches.
    Ssh {
        /// `[user@]host`, as ssh takes it.
        login: String,
        /// The host alone.
        host: String,
        /// Remote path, any bytes.
        path: Vec<u8>,
    },
}

impl Location {
    /// True if both are remote and spell the host alike.
    pub(crate) fn has_host_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Agent { host, port, .. }, Self::Agent { host: other, port: there, .. }) => {
                host.eq_ignore_ascii_case(other) && port == there
            }
            (Self::Ssh { login, .. }, Self::Ssh { login: other, .. }) => login == other,
            _ => false,
        }
    }
}

/// Parses a location. A colon before any slash means ssh, as for scp and rsync; `./a:b` is local.
///
/// # Errors
/// When it is a URL of another scheme, or incomplete.
pub(crate) fn parse(text: &OsStr) -> anyhow::Result<Location> {
    let bytes = text.as_bytes();
    if let Some(rest) = bytes.strip_prefix(b"penstock://") {
        return agent(rest, &text.to_string_lossy());
    }
    if let Some(colon) = bytes.windows(3).position(|three| three == b"://") {
        let scheme = String::from_utf8_lossy(&bytes[..colon]);
        bail!(
            "{scheme}:// is not a place penstock copies to: use penstock://HOST/PATH, HOST:PATH or a local path"
        );
    }
    match colon_of_host(bytes) {
        Some(colon) => ssh(&bytes[..colon], &bytes[colon + 1..]),
        None if bytes.is_empty() => bail!("an empty path names nothing"),
        None => Ok(Location::Local(PathBuf::from(OsString::from_vec(bytes.to_vec())))),
    }
}

/// Position of the colon behind `[user@]host`; an IPv6 address in brackets contains colons.
fn colon_of_host(bytes: &[u8]) -> Option<usize> {
    let colon_from = |start: usize| {
        let colon = bytes[start..].iter().position(|byte| b":/".contains(byte))? + start;
        (bytes[colon] == b':' && colon > 0).then_some(colon)
    };
    let colon = colon_from(0)?;
    let host = bytes[..colon].iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
    match bytes[host..].iter().position(|byte| *byte == b']') {
        Some(bracket) if bytes[host] == b'[' => colon_from(host + bracket),
        _ => Some(colon),
    }
}

fn ssh(login: &[u8], path: &[u8]) -> anyhow::Result<Location> {
    let login =
        std::str::from_utf8(login).map_err(|_| anyhow!("the host of an ssh place is not text"))?;
    if login.starts_with('-') {
        bail!("'{login}' is no host: it begins with a dash");
    }
    let (user, host) = match login.rsplit_once('@') {
        Some((user, host)) => (format!("{user}@"), host),
        None => (String::new(), login),
    };
    // ssh takes no port there, and so no brackets.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if bare.is_empty() {
        bail!("'{login}:' names no host: write it like user@host:path");
    }
    let (login, host) = (format!("{user}{bare}"), bare.to_owned());
    Ok(Location::Ssh { login, host, path: path.to_vec() })
}

fn agent(rest: &[u8], whole: &str) -> anyhow::Result<Location> {
    let wrong =
        |why: &str| anyhow!("{whole}: {why}: write it like penstock://dtn.site.org:8620/store/");
    let slash = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    let authority = std::str::from_utf8(authority).map_err(|_| wrong("the host is not text"))?;
    if let Some((_, host)) = authority.rsplit_once('@') {
        bail!(
            "{whole}: an agent knows you by a token, not by a user's name: write penstock://{host}{}, \
             and run penstock login {host} once",
            display_path(path)
        );
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, after)) => (host, after.strip_prefix(':')),
        None => match authority.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(wrong("an IPv6 address stands in brackets"));
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err(wrong("it names no host"));
    }
    let port = match port {
        None => AGENT_PORT,
        Some(port) => port
            .parse()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(|| wrong("the port is not a port"))?,
    };
    let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
    Ok(Location::Agent { host: host.to_owned(), port, path })
}

/// Host of a remote location.
#[must_use]
pub(crate) fn host_of(text: &OsStr) -> Option<String> {
    match parse(text).ok()? {
        Location::Local(_) => None,
        Location::Agent { host, .. } | Location::Ssh { host, .. } => Some(host),
    }
}

/// Name of a source at the destination; `None` if it stands for its contents.
pub(crate) fn arrives_as(place: &Location) -> Option<OsString> {
    match place {
        Location::Local(path) => found_at(path)
            .ok()
            .map(|(_, name)| name.into_os_string())
            .filter(|name| !name.is_empty()),
        Location::Agent { path, .. } | Location::Ssh { path, .. } => path
            .split(|byte| *byte == b'/')
            .rfind(|name| ![&b""[..], b".", b".."].contains(name))
            .map(|name| OsString::from_vec(name.to_vec())),
    }
}

/// Refuses two sources of one name, which would overwrite each other.
///
/// # Errors
/// Names the two sources, as in `texts`.
pub(crate) fn refuse_same_names(places: &[Location], texts: &[OsString]) -> anyhow::Result<()> {
    let mut names = HashMap::new();
    for (place, text) in places.iter().zip(texts) {
        let Some(name) = arrives_as(place) else { continue };
        if let Some(other) = names.insert(name.clone(), text) {
            let [one, two, name] = [other, text, &name].map(|text| display_path(text.as_bytes()));
            bail!(
                "{one} and {two} would both arrive as {name}: copy them to different directories"
            );
        }
    }
    Ok(())
}

/// Splits a local source into directory and name; `.` and `/` stand for their contents.
///
/// # Errors
/// When the directory does not exist.
pub(crate) fn found_at(path: &Path) -> std::io::Result<(PathBuf, PathBuf)> {
    use std::path::Component;
    // `Path::components` drops a final `.`, which means the contents.
    if path.as_os_str().as_bytes().ends_with(b"/.") {
        return Ok((path.to_owned(), PathBuf::new()));
    }
    match path.components().next_back() {
        Some(Component::Normal(name)) => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            Ok((above.unwrap_or(Path::new(".")).to_owned(), PathBuf::from(name)))
        }
        Some(Component::ParentDir) => {
            let real = path.canonicalize()?;
            match (real.parent(), real.file_name()) {
                (Some(above), Some(name)) => Ok((above.to_owned(), PathBuf::from(name))),
                _ => Ok((real, PathBuf::new())),
            }
        }
        _ => Ok((path.to_owned(), PathBuf::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Location {
        parse(OsStr::new(text)).expect(text)
    }

    #[test]
    fn urls_hosts_and_paths_are_distinguished() {
        let agent = |host: &str, port, path: &str| Location::Agent {
            host: host.into(),
            port,
            path: path.into(),
        };
        assert_eq!(place("penstock://dtn/store/x"), agent("dtn", 8620, "/store/x"));
        assert_eq!(place("penstock://dtn:99"), agent("dtn", 99, "/"));
        assert_eq!(place("penstock://[::1]:99/a"), agent("::1", 99, "/a"));
        let ssh = |login: &str, host: &str, path: &str| Location::Ssh {
            login: login.into(),
            host: host.into(),
            path: path.into(),
        };
        assert_eq!(place("host:"), ssh("host", "host", ""));
        assert_eq!(place("me@host:dir/x:y"), ssh("me@host", "host", "dir/x:y"));
        assert_eq!(place("me@site@host:x"), ssh("me@site@host", "host", "x"));
        assert_eq!(place("[fe80::1]:x"), ssh("fe80::1", "fe80::1", "x"));
        assert_eq!(place("u@[::1]:/x"), ssh("u@::1", "::1", "/x"));
        assert_eq!(place("host:[a]:b"), ssh("host", "host", "[a]:b"));
        assert_eq!(place(":x"), Location::Local(":x".into()));
        assert_eq!(place("./a:b"), Location::Local("./a:b".into()));
        assert_eq!(place("dir/a:b"), Location::Local("dir/a:b".into()));
    }

    #[test]
    fn bad_places_say_what_works() {
        for text in [
            "http://x/y",
            "penstock://",
            "penstock://h:0/",
            "penstock://h:x/",
            "penstock://::1/",
            "penstock://me@h/x",
            "",
            "-oProxyCommand=x:y",
            "me@:x",
            "[]:x",
        ] {
            assert!(parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn sources_arrive_as_themselves() {
        let found = |text: &str| found_at(Path::new(text)).expect(text);
        assert_eq!(found("data/"), (".".into(), "data".into()));
        assert_eq!(found("/a/b"), ("/a".into(), "b".into()));
        assert_eq!(found("."), (".".into(), "".into()));
        assert_eq!(found("a/."), ("a".into(), "".into()));
    }
}
