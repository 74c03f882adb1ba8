//! Authentication and authorisation of the mover's clients.
//!
//! A bearer token or a certificate identifies a client, on every address including loopback. The requested
//! path belongs to the export with the longest matching name, whose principals and mode decide. The kernel
//! confines paths to an export later ([`penstock_sys::fs::Dir`]).
//!
//! Not for: reading tokens ([`crate::tokens`]).
//!
//! A refusal names what was refused, why, and a remedy for the client or the agent's operator. It names no
//! export that the client may not use.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aws_lc_rs::constant_time::verify_slices_are_equal;

use penstock_control::orders::OrderId;
use penstock_daemon::api::Bearers;
use penstock_identity::Fingerprint;
use penstock_mover::{Caller, Gatekeeper, ResolvedPath};
use penstock_protocol::open::{Mark, Refusal, RefusalKind};
use penstock_sys::fs::Dir;

use crate::config::{Export, Principal};
use crate::destinations::DestinationRules;
use crate::fireflies::{self, TagRule};
use crate::tokens::{CONTROLLER, Tokens, check_token, hash};

/// Decides on clients by rules that may be replaced while the agent runs.
#[derive(Debug)]
pub struct Authorizer {
    rules_in_force: Mutex<Arc<AccessRules>>,
    tickets: Mutex<HashMap<OrderId, TicketGrant>>,
}

/// Write access below one directory, for the bearer of a secret.
#[derive(Debug)]
struct TicketGrant {
    sha256: [u8; 32],
    /// Components of the directory.
    below: Vec<Vec<u8>>,
}

/// A consistent set of tokens, exports and destinations.
#[derive(Debug)]
pub struct AccessRules {
    /// Tokens that authenticate clients.
    pub tokens: Tokens,
    /// Exports, in the order of the configuration.
    pub exports: Vec<Export>,
    /// Scitags of the data that bearers of tokens move, by token name.
    pub token_tags: HashMap<String, TagRule>,
    /// Permitted destinations of third-party copies.
    pub destinations: DestinationRules,
}

impl Authorizer {
    /// Creates an authorizer with these rules and no tickets.
    #[must_use]
    pub fn new(rules: AccessRules) -> Self {
        Self { rules_in_force: Mutex::new(Arc::new(rules)), tickets: Mutex::default() }
    }

    /// Rules in force; a reload replaces them.
    #[must_use]
    pub fn rules(&self) -> Arc<AccessRules> {
        Arc::clone(&self.rules_in_force.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets the bearer of `ticket` write below `below` until the order is revoked. The controller itself must
    /// be allowed to write there.
    ///
    /// # Errors
    /// When the ticket is too short or malformed, or the controller may not write there.
    pub fn grant_ticket(&self, order: OrderId, ticket: &str, below: &str) -> Result<(), Refusal> {
        check_token(ticket).map_err(|error| {
            Refusal::new(RefusalKind::Request, format!("the controller's ticket: {error}"))
        })?;
        self.place(&controller(None), below.as_bytes(), true)?;
        let below = components(below.as_bytes()).into_iter().map(<[u8]>::to_vec).collect();
        self.tickets().insert(order, TicketGrant { sha256: hash(ticket), below });
        Ok(())
    }

    /// Revokes the ticket of an order; sessions that it opened continue.
    pub fn revoke_ticket(&self, order: OrderId) {
        self.tickets().remove(&order);
    }

    fn tickets(&self) -> MutexGuard<'_, HashMap<OrderId, TicketGrant>> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller of the order whose ticket this is.
    fn bearer(&self, token: &str) -> Option<Caller> {
        let shown = hash(token);
        let is_it = |ticket: &TicketGrant| verify_slices_are_equal(&ticket.sha256, &shown).is_ok();
        let found =
            self.tickets().iter().find(|(_, ticket)| is_it(ticket)).map(|(order, _)| *order);
        found.map(|order| controller(Some(order)))
    }

    /// Checks a ticket against a path; returns the number of components of its directory.
    fn check_ticket(&self, order: OrderId, path: &[u8], write: bool) -> Result<usize, Refusal> {
        let shown = path.escape_ascii();
        let refused = |text: String| Err(Refusal::new(RefusalKind::Permission, text));
        let tickets = self.tickets();
        let Some(ticket) = tickets.get(&order) else {
            return refused(format!("{shown}: order {order} is no longer active"));
        };
        let mut rest = components(path).into_iter();
        let is_below = ticket.below.iter().all(|part| rest.next() == Some(part));
        if !write || !is_below {
            let below = ticket.below.join(&b'/');
            let below = below.escape_ascii();
            return refused(format!("{shown}: order {order} allows writing below /{below} only"));
        }
        Ok(ticket.below.len())
    }

    /// Replaces the rules. Sessions continue unless their token or certificate is gone.
    pub fn replace(&self, rules: AccessRules) {
        *self.rules_in_force.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}

impl Bearers for Authorizer {
    fn name_of(&self, token: &str) -> Option<String> {
        self.rules().tokens.name_of(token)
    }

    fn is_owner(&self, token: &str) -> bool {
        self.rules().tokens.is_owner(token)
    }
}

impl AccessRules {
    /// The export with the longest name that contains `components`.
    fn find(&self, components: &[&[u8]]) -> Option<&Export> {
        let matches = |export: &&Export| {
            let mut rest = components.iter();
            export.name.components().all(|part| rest.next() == Some(&part))
        };
        self.exports.iter().filter(matches).max_by_key(|export| export.name.components().count())
    }

    fn no_export_refusal(&self, caller: &Caller, path: &str) -> Refusal {
        let names: Vec<&str> = self
            .exports
            .iter()
            .filter(|export| admits(export, caller))
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

/// The controller, or the bearer of its ticket for `order`.
#[must_use]
pub fn controller(order: Option<OrderId>) -> Caller {
    Caller { name: CONTROLLER.to_owned(), pass: order.map(OrderId::number), token: None }
}

/// True if the caller is a principal of the export.
fn admits(export: &Export, caller: &Caller) -> bool {
    export.principals.iter().any(|principal| match principal {
        // Callers are authenticated already. `*` does not include the controller.
        Principal::Anyone => caller.name != CONTROLLER,
        Principal::Token(name) => *name == caller.name,
        Principal::Certificate(certificate) => {
            Principal::certificate_name(certificate) == caller.name
        }
    })
}

impl Gatekeeper for Authorizer {
    fn authenticate(
        &self,
        token: &str,
        certificate: Option<&Fingerprint>,
        peer: &str,
    ) -> Result<Caller, Refusal> {
        let bearer = || Some(token).filter(|token| !token.is_empty()).and_then(|t| self.bearer(t));
        let rules = self.rules();
        match bearer() {
            // A client's own token takes precedence over an equal ticket.
            Some(caller) if rules.tokens.name_of(token).is_none() => Ok(caller),
            _ => rules.authenticate(token, certificate, peer),
        }
    }

    fn still_admits(&self, caller: &Caller) -> bool {
        if let Some(order) = caller.pass {
            return self.tickets().contains_key(&OrderId::from(order));
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
            let below = self.check_ticket(OrderId::from(order), path, write)?;
            let place = self.rules().place(caller, path, write)?;
            return confined(place, components(path).len(), below);
        }
        self.rules().place(caller, path, write)
    }

    fn exports(&self, caller: &Caller) -> Vec<String> {
        let rules = self.rules();
        let admitted = rules.exports.iter().filter(|export| admits(export, caller));
        admitted.map(|export| export.name.as_str().to_owned()).collect()
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

/// Reopens `place` at the directory of the first `below` of its `all` components, so that symbolic links
/// cannot leave that directory.
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

/// Components of a path without empty ones and `.`.
fn components(path: &[u8]) -> Vec<&[u8]> {
    path.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect()
}

impl AccessRules {
    /// True if an export names the certificate as a principal.
    fn names_certificate(&self, name: &str) -> bool {
        let is_it = |principal: &Principal| matches!(principal, Principal::Certificate(certificate) if Principal::certificate_name(certificate) == name);
        self.exports.iter().any(|export| export.principals.iter().any(is_it))
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
        let principal = Principal::Certificate(*certificate);
        if self.exports.iter().any(|export| export.principals.contains(&principal)) {
            let name = Principal::certificate_name(certificate);
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
            let text = format!(
                "{shown}: a path with '..' or a NUL byte is not accepted: write the path out"
            );
            return Err(Refusal::new(RefusalKind::Permission, text));
        }
        let export = match self.find(&components) {
            Some(export) if admits(export, caller) => export,
            _ => return Err(self.no_export_refusal(caller, &shown)),
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
        // Opened for each request: a file system may have been mounted there meanwhile.
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
    use crate::config::AccessMode;
    use crate::tokens::TokenSource;

    const OWNER_TOKEN: &str = "the-token-of-the-owner";
    const ALICE: &str = "alice-has-a-long-token";
    const CERTIFICATE: Fingerprint = Fingerprint([7; 32]);

    fn authorizer(directory: &Path) -> Authorizer {
        let list = directory.join("tokens");
        std::fs::write(&list, format!("alice {ALICE}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&list, mode).unwrap();
        let tokens = Tokens::open(OWNER_TOKEN, &[TokenSource::List { file: list }]).unwrap();
        let export = |name: &str, mode, principals: &[&str]| {
            let path: PathBuf = directory.join(name.trim_start_matches('/').replace('/', "-"));
            std::fs::create_dir_all(&path).unwrap();
            let principals =
                principals.iter().map(|principal| principal.parse().unwrap()).collect();
            Export { name: name.parse().unwrap(), path, mode, principals, scitag: None }
        };
        let certificate = Principal::certificate_name(&CERTIFICATE);
        let exports = vec![
            export("/store", AccessMode::ReadWrite, &["*"]),
            export("/store/cms", AccessMode::Read, &["alice", "owner"]),
            export("/drop", AccessMode::Write, &[&certificate]),
            export("/in", AccessMode::ReadWrite, &["controller"]),
            export("/out", AccessMode::Read, &["controller"]),
        ];
        Authorizer::new(AccessRules {
            tokens,
            exports,
            token_tags: HashMap::new(),
            destinations: DestinationRules::default(),
        })
    }

    fn caller(name: &str) -> Caller {
        Caller { name: name.to_owned(), pass: None, token: None }
    }

    #[test]
    fn unauthenticated_clients_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let authorizer = authorizer(directory.path());
        let other = Fingerprint([8; 32]);
        for (token, certificate, name) in [
            (OWNER_TOKEN, None, Some("owner".to_owned())),
            (ALICE, None, Some("alice".to_owned())),
            (ALICE, Some(&other), Some("alice".to_owned())),
            ("", Some(&CERTIFICATE), Some(Principal::certificate_name(&CERTIFICATE))),
            ("", None, None),
            ("", Some(&other), None),
            ("wrong-token-wrong-token", None, None),
            // A wrong token is an error even where the certificate alone would do.
            ("wrong-token-wrong-token", Some(&CERTIFICATE), None),
        ] {
            let answer = authorizer.authenticate(token, certificate, "127.0.0.1:5");
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
    fn longest_matching_export_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let authorizer = authorizer(directory.path());
        for (path, rest, shown) in [
            (&b"/store"[..], &b""[..], "/store"),
            (b"store//a/./b/", b"a/b", "/store/a/b"),
            (b"/store/cms/x\n\xff", b"x\n\xff", "/store/cms/x\\n\\xff"),
            (b"/store/cmsx", b"cmsx", "/store/cmsx"),
        ] {
            let place = authorizer.place(&caller("alice"), path, false).unwrap();
            assert_eq!((place.path.as_slice(), place.shown.as_str()), (rest, shown));
        }
    }

    #[test]
    fn refusals_name_reason_and_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let authorizer = authorizer(directory.path());
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
            let refusal = authorizer.place(&caller(name), path.as_bytes(), write).unwrap_err();
            assert_eq!(refusal.kind, kind, "{path}: {}", refusal.text);
            assert!(refusal.text.contains(words), "{path}: {}", refusal.text);
            assert!(name != "bob" || !refusal.text.contains("cms or"), "{}", refusal.text);
        }
        let sender = caller(&Principal::certificate_name(&CERTIFICATE));
        authorizer.place(&sender, b"/drop/x", true).unwrap();
        assert!(
            authorizer.place(&sender, b"/drop/x", false).unwrap_err().text.contains("write-only")
        );
    }

    #[test]
    fn ticket_allows_writing_one_directory() {
        let directory = tempfile::tempdir().unwrap();
        let authorizer = authorizer(directory.path());
        let ticket = "a-ticket-of-some-length";
        for (ticket, below, words) in [
            ("short", "/in/a", "shorter than 16"),
            (ticket, "/store/cms", "in no export"),
            (ticket, "/in/../store", "'..'"),
            (ticket, "/out", "read-only"),
        ] {
            let refusal = authorizer.grant_ticket(OrderId::from(7), ticket, below).unwrap_err();
            assert!(refusal.text.contains(words), "{below}: {}", refusal.text);
        }
        assert!(authorizer.authenticate(ticket, None, "127.0.0.1:5").is_err());
        authorizer.grant_ticket(OrderId::from(7), ticket, "/in/a").unwrap();
        let bearer = authorizer.authenticate(ticket, None, "127.0.0.1:5").unwrap();
        assert_eq!((bearer.name.as_str(), bearer.pass), ("controller", Some(7)));
        authorizer.place(&bearer, b"/in/a", true).unwrap();
        authorizer.place(&bearer, b"/in//a/b/c", true).unwrap();
        for (path, write) in [
            (&b"/in/a"[..], false),
            (b"/in", true),
            (b"/in/ab", true),
            (b"/in/a/../b", true),
            (b"/store/x", true),
            (b"/", true),
        ] {
            assert!(authorizer.place(&bearer, path, write).is_err(), "{}", path.escape_ascii());
        }
        std::os::unix::fs::symlink("../b", directory.path().join("in/a/link")).unwrap();
        let place = authorizer.place(&bearer, b"/in/a/link/x", true).unwrap();
        assert_eq!(place.path, b"link/x");
        assert!(place.root.open_dir("link").is_err());
        // `*` does not include the controller.
        assert!(authorizer.place(&controller(None), b"/store/x", true).is_err());
        assert!(authorizer.place(&controller(None), b"/out/x", false).is_ok());
        assert!(authorizer.still_admits(&bearer) && authorizer.still_admits(&controller(None)));
        authorizer.revoke_ticket(OrderId::from(7));
        assert!(!authorizer.still_admits(&bearer));
        assert!(authorizer.authenticate(ticket, None, "127.0.0.1:5").is_err());
        assert!(authorizer.place(&bearer, b"/in/a", true).is_err());
    }

    #[test]
    fn missing_export_is_agent_failure() {
        let directory = tempfile::tempdir().unwrap();
        let authorizer = authorizer(directory.path());
        std::fs::remove_dir(directory.path().join("store")).unwrap();
        let refusal = authorizer.place(&caller("alice"), b"/store/x", true).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Agent);
        assert!(refusal.text.contains("no such file or directory"), "{}", refusal.text);
    }
}
