//! Who comes in, and what they may touch.
//!
//! A client is known by a bearer token or by its certificate, on every address including loopback; the
//! path it asks for is mapped to the export with the longest matching name, and that export says who
//! may read or write it. What leads out of an export is refused later, by the kernel
//! ([`penstock_sys::fs::Dir`]).
//!
//! Not for: what tokens there are ([`crate::tokens`]).
//!
//! Fails with a refusal that tells the client what was refused, why, and what it or the agent's
//! operator can do. It names no export that the client may not use.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;

use penstock_mover::agent::{Caller, Gatekeeper, ResolvedPath};
use penstock_mover::identity::Fingerprint;
use penstock_operations::orders::OrderId;
use penstock_protocol::open::{Mark, Refusal, RefusalKind};
use penstock_sys::fs::Dir;

use crate::config::{Export, Who};
use crate::destinations::Destinations;
use crate::fireflies::{self, TagRule};
use crate::tokens::{CONTROLLER, Tokens, check_token, hash};

/// Tokens and exports of an agent, which may be replaced while it runs.
#[derive(Debug)]
pub struct Gate {
    now: Mutex<Arc<Rules>>,
    tickets: Mutex<HashMap<OrderId, Ticket>>,
}

/// What lets somebody in to write below one directory.
#[derive(Debug)]
struct Ticket {
    sha256: [u8; 32],
    /// The directory.
    below: Vec<Vec<u8>>,
}

/// Who comes in and where to, at one time.
#[derive(Debug)]
pub struct Rules {
    /// The tokens.
    pub tokens: Tokens,
    /// The exports.
    pub exports: Vec<Export>,
    /// Whose data the bearers of tokens move.
    pub token_tags: HashMap<String, TagRule>,
    /// Where files go to in copies between agents.
    pub destinations: Destinations,
}

impl Gate {
    /// Lets clients in by these rules.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { now: Mutex::new(Arc::new(rules)), tickets: Mutex::default() }
    }

    /// The rules as they are now.
    #[must_use]
    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.now.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets whoever shows `ticket` write below `below`, where the controller may, until it is dismissed.
    ///
    /// # Errors
    /// When the ticket is no secret, or the controller may not write there.
    pub fn admit(&self, order: OrderId, ticket: &str, below: &str) -> Result<(), Refusal> {
        check_token(ticket).map_err(|error| {
            Refusal::new(RefusalKind::Request, format!("the controller's ticket: {error}"))
        })?;
        self.place(&controller(None), below.as_bytes(), true)?;
        let below = components(below.as_bytes()).into_iter().map(<[u8]>::to_vec).collect();
        self.tickets().insert(order, Ticket { sha256: hash(ticket), below });
        Ok(())
    }

    /// Lets the ticket of this order in no more; who is in goes on.
    pub fn dismiss(&self, order: OrderId) {
        self.tickets().remove(&order);
    }

    fn tickets(&self) -> MutexGuard<'_, HashMap<OrderId, Ticket>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bearer of a ticket.
    fn bearer(&self, token: &str) -> Option<Caller> {
        let shown = hash(token);
        let is_it = |ticket: &Ticket| verify_slices_are_equal(&ticket.sha256, &shown).is_ok();
        let found =
            self.tickets().iter().find(|(_, ticket)| is_it(ticket)).map(|(order, _)| *order);
        found.map(|order| controller(Some(order)))
    }

    /// Whether a ticket lets its bearer do this; how many components its directory has.
    fn check_ticket(&self, order: OrderId, path: &[u8], write: bool) -> Result<usize, Refusal> {
        let shown = path.escape_ascii();
        let refused = |text: String| Err(Refusal::new(RefusalKind::Permission, text));
        let tickets = self.tickets();
        let Some(ticket) = tickets.get(&order) else {
            return refused(format!("{shown}: order {order} does not stand any more"));
        };
        let mut rest = components(path).into_iter();
        let is_below = ticket.below.iter().all(|part| rest.next() == Some(part));
        if !write || !is_below {
            let below = ticket.below.join(&b'/');
            let below = below.escape_ascii();
            return refused(format!(
                "{shown}: order {order} lets in to write below /{below} alone"
            ));
        }
        Ok(ticket.below.len())
    }

    /// Replaces the rules. What was granted before goes on, unless the client's token or certificate is gone.
    pub fn replace(&self, rules: Rules) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}

impl Rules {
    /// The export that `components` lies in.
    fn find(&self, components: &[&[u8]]) -> Option<&Export> {
        let matches = |export: &&Export| {
            let mut rest = components.iter();
            export.name.components().all(|part| rest.next() == Some(&part))
        };
        self.exports.iter().filter(matches).max_by_key(|export| export.name.components().count())
    }

    fn nothing_there(&self, caller: &Caller, path: &str) -> Refusal {
        let names: Vec<&str> = self
            .exports
            .iter()
            .filter(|export| lets_in(export, caller))
            .map(|export| export.name.as_str())
            .collect();
        let text = if caller.name == CONTROLLER {
            let others = match names.is_empty() {
                true => "none is".to_owned(),
                false => format!("{} is", names.join(", ")),
            };
            format!(
                "{path} is in no export for the controller ({others}): add [[export]] with name = \"{path}\", path and mode, and who = [\"controller\"], to the agent's configuration"
            )
        } else if names.is_empty() {
            format!(
                "{path}: nothing is exported to '{}': ask the agent's operator to add it to an export's who",
                caller.name
            )
        } else {
            format!("{path} is in no export: use a path below {}", names.join(" or "))
        };
        Refusal::new(RefusalKind::NotFound, text)
    }
}

/// The controller, or the bearer of a ticket of its.
#[must_use]
pub fn controller(order: Option<OrderId>) -> Caller {
    Caller { name: CONTROLLER.to_owned(), pass: order, token: None }
}

/// Whether the caller may use the export for anything.
fn lets_in(export: &Export, caller: &Caller) -> bool {
    export.who.iter().any(|who| match who {
        // A caller has been authenticated: the gate knows it. The controller is let in by its name alone.
        Who::Anyone => caller.name != CONTROLLER,
        Who::Token(name) => *name == caller.name,
        Who::Certificate(certificate) => Who::certificate_name(certificate) == caller.name,
    })
}

impl Gatekeeper for Gate {
    fn authenticate(
        &self,
        token: &str,
        certificate: Option<&Fingerprint>,
        peer: &str,
    ) -> Result<Caller, Refusal> {
        let bearer = || Some(token).filter(|token| !token.is_empty()).and_then(|t| self.bearer(t));
        let rules = self.rules();
        match bearer() {
            // A ticket that is a client's token is that client's.
            Some(caller) if rules.tokens.name_of(token).is_none() => Ok(caller),
            _ => rules.authenticate(token, certificate, peer),
        }
    }

    fn still_admits(&self, caller: &Caller) -> bool {
        if let Some(order) = caller.pass {
            return self.tickets().contains_key(&order);
        }
        if caller.name == CONTROLLER {
            return true;
        }
        let rules = self.rules();
        match &caller.token {
            Some(sha256) => rules.tokens.may_hold(sha256),
            None => rules.names_certificate(&caller.name),
        }
    }

    fn place(&self, caller: &Caller, path: &[u8], write: bool) -> Result<ResolvedPath, Refusal> {
        if let Some(order) = caller.pass {
            let below = self.check_ticket(order, path, write)?;
            let place = self.rules().place(caller, path, write)?;
            return confined(place, components(path).len(), below);
        }
        self.rules().place(caller, path, write)
    }

    fn mark(
        &self,
        caller: &Caller,
        path: &[u8],
        asked: Option<Mark>,
    ) -> Result<Option<Mark>, Refusal> {
        let rules = self.rules();
        let token = rules.token_tags.get(&caller.name).copied();
        let export = rules.find(&components(path)).and_then(|export| export.scitag);
        Ok(fireflies::decide(token, export, asked))
    }

    fn may_send_to(&self, to: SocketAddr, from_here: bool) -> Result<(), Refusal> {
        self.rules().destinations.check(to, from_here)
    }
}

/// The same place, found from the directory of the first `below` of its `all` components, which links that lie
/// there then do not leave.
fn confined(place: ResolvedPath, all: usize, below: usize) -> Result<ResolvedPath, Refusal> {
    let ResolvedPath { root, path, shown } = place;
    let mut rest = components(&path);
    let later = rest.split_off(below.saturating_sub(all - rest.len()).min(rest.len()));
    let directory = rest.join(&b'/');
    if directory.is_empty() {
        return Ok(ResolvedPath { root, path, shown });
    }
    let directory = OsStr::from_bytes(&directory);
    let opened = root.create_dir_all(directory, 0o777).and_then(|()| root.open_dir(directory));
    let root = opened.map_err(|error| {
        let text = format!("{shown}: {}", penstock_sys::fs::describe(&error));
        Refusal::new(RefusalKind::Permission, text)
    })?;
    Ok(ResolvedPath { root, path: later.join(&b'/'), shown })
}

/// The parts of a path that mean something.
fn components(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect()
}

impl Rules {
    /// Whether an export lets in the certificate of this name.
    fn names_certificate(&self, name: &str) -> bool {
        let is_it = |who: &Who| matches!(who, Who::Certificate(certificate) if Who::certificate_name(certificate) == name);
        self.exports.iter().any(|export| export.who.iter().any(is_it))
    }

    fn authenticate(
        &self,
        token: &str,
        certificate: Option<&Fingerprint>,
        peer: &str,
    ) -> Result<Caller, Refusal> {
        let refused = |text: String| {
            tracing::warn!(peer, "refused: {text}");
            Err(Refusal::new(RefusalKind::Identity, text))
        };
        if !token.is_empty() {
            return match self.tokens.name_of(token) {
                Some(name) => Ok(Caller { name, pass: None, token: Some(hash(token)) }),
                None => refused(
                    "the token is not one of this agent's: log in again with the line that the agent's operator gives (penstock login HOST --token ... --fingerprint ...)".into(),
                ),
            };
        }
        let Some(certificate) = certificate else {
            return refused(
                "the client shows neither token nor certificate: log in first (penstock login HOST --token ... --fingerprint ...)".into(),
            );
        };
        let who = Who::Certificate(*certificate);
        if self.exports.iter().any(|export| export.who.contains(&who)) {
            let name = Who::certificate_name(certificate);
            return Ok(Caller { name, pass: None, token: None });
        }
        refused(format!(
            "the client's certificate is in no export: ask the agent's operator to add \"cert:{certificate}\" to an export's who"
        ))
    }

    fn place(&self, caller: &Caller, path: &[u8], write: bool) -> Result<ResolvedPath, Refusal> {
        let shown = path.escape_ascii().to_string();
        let components = components(path);
        if components.contains(&&b".."[..]) || path.contains(&0) {
            let text =
                format!("{shown}: a path with '..' or a NUL byte is not taken: write it out");
            return Err(Refusal::new(RefusalKind::Permission, text));
        }
        let export = match self.find(&components) {
            Some(export) if lets_in(export, caller) => export,
            _ => return Err(self.nothing_there(caller, &shown)),
        };
        if !export.mode.allows(write) {
            let verb = if write { "written" } else { "read" };
            let text = format!(
                "{shown}: export {} is {}-only and cannot be {verb}: ask the agent's operator to set its mode to read-write",
                export.name,
                export.mode.as_str()
            );
            return Err(Refusal::new(RefusalKind::Permission, text));
        }
        // Opened each time, so that a file system mounted there meanwhile is the one that is used.
        let root = Dir::open(&export.path).map_err(|error| {
            let path = export.path.display();
            let error = penstock_sys::fs::describe(&error);
            tracing::error!(export = export.name.as_str(), "{path} cannot be opened: {error}");
            let text = format!(
                "{shown}: the directory of export {} cannot be opened ({error}): ask the agent's operator to look at it",
                export.name
            );
            Refusal::new(RefusalKind::Agent, text)
        })?;
        let below = export.name.components().count();
        Ok(ResolvedPath {
            root,
            path: components[below..].join(&b'/'),
            shown: format!("/{}", components.join(&b'/').escape_ascii()),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::config::Mode;
    use crate::tokens::TokenSource;

    const OWNER_TOKEN: &str = "the-token-of-the-owner";
    const ALICE: &str = "alice-has-a-long-token";
    const CERTIFICATE: Fingerprint = Fingerprint([7; 32]);

    fn gate(directory: &Path) -> Gate {
        let list = directory.join("tokens");
        std::fs::write(&list, format!("alice {ALICE}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&list, mode).unwrap();
        let tokens = Tokens::open(OWNER_TOKEN, &[TokenSource::List { file: list }]).unwrap();
        let export = |name: &str, mode, who: &[&str]| {
            let path: PathBuf = directory.join(name.trim_start_matches('/').replace('/', "-"));
            std::fs::create_dir_all(&path).unwrap();
            let who = who.iter().map(|who| who.parse().unwrap()).collect();
            Export { name: name.parse().unwrap(), path, mode, who, scitag: None }
        };
        let certificate = Who::certificate_name(&CERTIFICATE);
        let exports = vec![
            export("/store", Mode::ReadWrite, &["*"]),
            export("/store/cms", Mode::Read, &["alice", "owner"]),
            export("/drop", Mode::Write, &[&certificate]),
            export("/in", Mode::ReadWrite, &["controller"]),
            export("/out", Mode::Read, &["controller"]),
        ];
        Gate::new(Rules {
            tokens,
            exports,
            token_tags: HashMap::new(),
            destinations: Destinations::default(),
        })
    }

    fn caller(name: &str) -> Caller {
        Caller { name: name.to_owned(), pass: None, token: None }
    }

    #[test]
    fn nobody_comes_in_without_token_or_certificate() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(directory.path());
        let other = Fingerprint([8; 32]);
        for (token, certificate, name) in [
            (OWNER_TOKEN, None, Some("owner".to_owned())),
            (ALICE, None, Some("alice".to_owned())),
            (ALICE, Some(&other), Some("alice".to_owned())),
            ("", Some(&CERTIFICATE), Some(Who::certificate_name(&CERTIFICATE))),
            ("", None, None),
            ("", Some(&other), None),
            ("wrong-token-wrong-token", None, None),
            // A wrong token is an error even where the certificate alone would do.
            ("wrong-token-wrong-token", Some(&CERTIFICATE), None),
        ] {
            let answer = gate.authenticate(token, certificate, "127.0.0.1:5");
            match name {
                Some(name) => assert_eq!(answer.unwrap().name, name),
                None => {
                    let refusal = answer.unwrap_err();
                    assert_eq!(refusal.kind, RefusalKind::Identity);
                    assert!(!refusal.text.contains("wrong-token"), "{}", refusal.text);
                }
            }
        }
    }

    #[test]
    fn the_longest_export_takes_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(directory.path());
        for (path, rest, shown) in [
            (&b"/store"[..], &b""[..], "/store"),
            (b"store//a/./b/", b"a/b", "/store/a/b"),
            (b"/store/cms/x\n\xff", b"x\n\xff", "/store/cms/x\\n\\xff"),
            (b"/store/cmsx", b"cmsx", "/store/cmsx"),
        ] {
            let place = gate.place(&caller("alice"), path, false).unwrap();
            assert_eq!((place.path.as_slice(), place.shown.as_str()), (rest, shown));
        }
    }

    #[test]
    fn refusals_say_what_why_and_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(directory.path());
        for (name, path, write, kind, words) in [
            (
                "alice",
                "/store/cms/x",
                true,
                RefusalKind::Permission,
                "is read-only and cannot be written",
            ),
            ("bob", "/store/cms/x", false, RefusalKind::NotFound, "use a path below /store"),
            (
                "alice",
                "/drop/x",
                true,
                RefusalKind::NotFound,
                "use a path below /store or /store/cms",
            ),
            ("alice", "/", false, RefusalKind::NotFound, "use a path below /store or /store/cms"),
            ("alice", "/elsewhere", false, RefusalKind::NotFound, "is in no export"),
            ("alice", "/store/../etc", false, RefusalKind::Permission, "'..'"),
            ("alice", "/store/a\0b", false, RefusalKind::Permission, "NUL"),
        ] {
            let refusal = gate.place(&caller(name), path.as_bytes(), write).unwrap_err();
            assert_eq!(refusal.kind, kind, "{path}: {}", refusal.text);
            assert!(refusal.text.contains(words), "{path}: {}", refusal.text);
            assert!(name != "bob" || !refusal.text.contains("cms or"), "{}", refusal.text);
        }
        let sender = caller(&Who::certificate_name(&CERTIFICATE));
        gate.place(&sender, b"/drop/x", true).unwrap();
        assert!(gate.place(&sender, b"/drop/x", false).unwrap_err().text.contains("write-only"));
    }

    #[test]
    fn a_ticket_lets_in_to_write_below_one_directory_as_long_as_it_stands() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(directory.path());
        let ticket = "a-ticket-of-some-length";
        for (ticket, below, words) in [
            ("short", "/in/a", "shorter than 16"),
            (ticket, "/store/cms", "in no export"),
            (ticket, "/in/../store", "'..'"),
            (ticket, "/out", "read-only"),
        ] {
            let refusal = gate.admit(7, ticket, below).unwrap_err();
            assert!(refusal.text.contains(words), "{below}: {}", refusal.text);
        }
        assert!(gate.authenticate(ticket, None, "127.0.0.1:5").is_err());
        gate.admit(7, ticket, "/in/a").unwrap();
        let bearer = gate.authenticate(ticket, None, "127.0.0.1:5").unwrap();
        assert_eq!((bearer.name.as_str(), bearer.pass), ("controller", Some(7)));
        gate.place(&bearer, b"/in/a", true).unwrap();
        gate.place(&bearer, b"/in//a/b/c", true).unwrap();
        for (path, write) in [
            (&b"/in/a"[..], false),
            (b"/in", true),
            (b"/in/ab", true),
            (b"/in/a/../b", true),
            (b"/store/x", true),
            (b"/", true),
        ] {
            assert!(gate.place(&bearer, path, write).is_err(), "{}", path.escape_ascii());
        }
        std::os::unix::fs::symlink("../b", directory.path().join("in/a/link")).unwrap();
        let place = gate.place(&bearer, b"/in/a/link/x", true).unwrap();
        assert_eq!(place.path, b"link/x");
        assert!(place.root.open_dir("link").is_err());
        // Who may come in with any token does not thereby let in the controller.
        assert!(gate.place(&controller(None), b"/store/x", true).is_err());
        assert!(gate.place(&controller(None), b"/out/x", false).is_ok());
        assert!(gate.still_admits(&bearer) && gate.still_admits(&controller(None)));
        gate.dismiss(7);
        assert!(!gate.still_admits(&bearer));
        assert!(gate.authenticate(ticket, None, "127.0.0.1:5").is_err());
        assert!(gate.place(&bearer, b"/in/a", true).is_err());
    }

    #[test]
    fn an_export_that_went_away_is_the_agents_failure() {
        let directory = tempfile::tempdir().unwrap();
        let gate = gate(directory.path());
        std::fs::remove_dir(directory.path().join("store")).unwrap();
        let refusal = gate.place(&caller("alice"), b"/store/x", true).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Agent);
        assert!(refusal.text.contains("no such file or directory"), "{}", refusal.text);
    }
}
