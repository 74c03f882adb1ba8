//! Authentication and authorisation of the mover's clients.
//!
//! A bearer token or a certificate identifies a client, on every address including loopback. The requested
//! path belongs to the export with the longest matching name, whose principals and mode decide. The kernel
//! confines paths to an export later ([`penstock_sys::fs::Dir`]).
//!
//! A token with claims also limits its bearer to the uses of paths that it names (`claims`).
//!
//! Not for: reading tokens ([`crate::tokens`], `penstock-tokens`).
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
use penstock_control::quota::ClientQuota;
use penstock_daemon::api::{Bearers, ClaimsAccess, IssuedAccess};
use penstock_http::issued_tokens::{IssuedToken, IssuedTokens};
use penstock_identity::Fingerprint;
use penstock_mover::{Caller, CleartextNetworks, ExportSpace, Gatekeeper, ResolvedPath, random};
use penstock_protocol::manifest::display_path;
use penstock_protocol::open::{Mark, Refusal, RefusalKind};
use penstock_scopes::{ApiScope, DiskScope, IssuedScope, PathAccess, PathGrant, TokenGrant};
use penstock_sys::fs::Dir;
use penstock_tokens::jwt::looks_like_jwt;
use penstock_tokens::{IssuerRegistry, MacaroonKey};

use crate::config::{Export, Principal};
use crate::destinations::DestinationRules;
use crate::fireflies::{self, TagRule};
use crate::http::api::ApiClientFacts;
use crate::tokens::{CONTROLLER, OWNER, TokenHash, Tokens, check_token, hash, hex};

mod claims;

/// Decides on clients by rules that may be replaced while the agent runs.
#[derive(Debug)]
pub struct Authorizer {
    rules_in_force: Mutex<Arc<AccessRules>>,
    tickets: Mutex<HashMap<OrderId, TicketGrant>>,
    /// Tokens that this node issued; none are accepted without them.
    issued: Option<IssuedTokens>,
    /// Clients for whom this agent opens sessions at itself, by the hash of the secret.
    self_logins: Arc<Mutex<HashMap<TokenHash, Caller>>>,
    /// Key of derived tokens; none are accepted without it.
    macaroons: Option<MacaroonKey>,
}

/// Write access below one directory, for the bearer of a secret.
#[derive(Debug)]
struct TicketGrant {
    sha256: [u8; 32],
    /// Components of the directory.
    below: Vec<Vec<u8>>,
}

/// Secret with which this agent opens sessions at itself in the name of a client. Dropped, it is invalid.
#[derive(Debug)]
pub struct SelfLogin {
    secret: String,
    valid: Arc<Mutex<HashMap<TokenHash, Caller>>>,
}

impl SelfLogin {
    /// The secret, as a token.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }
}

impl Drop for SelfLogin {
    fn drop(&mut self) {
        let mut valid = self.valid.lock().unwrap_or_else(PoisonError::into_inner);
        valid.remove(&hash(&self.secret));
    }
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
    /// Networks in which RDMA may carry copies with encryption.
    pub cleartext: CleartextNetworks,
    /// Issuers whose tokens authenticate clients.
    pub issuers: IssuerRegistry,
    /// Quotas of the clients that submit transfers.
    pub quotas: Vec<ClientQuota>,
}

impl Authorizer {
    /// Creates an authorizer with these rules and no tickets.
    #[must_use]
    pub fn new(rules: AccessRules) -> Self {
        let rules_in_force = Mutex::new(Arc::new(rules));
        Self {
            rules_in_force,
            tickets: Mutex::default(),
            issued: None,
            self_logins: Arc::default(),
            macaroons: None,
        }
    }

    /// Derives tokens for clients by this key, and accepts them.
    #[must_use]
    pub fn with_macaroons(self, key: MacaroonKey) -> Self {
        Self { macaroons: Some(key), ..self }
    }

    /// Accepts the tokens that this node issued.
    #[must_use]
    pub fn with_issued(self, issued: IssuedTokens) -> Self {
        Self { issued: Some(issued), ..self }
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
        self.place(&controller(None), below.as_bytes(), PathAccess::Replace)?;
        let below = components(below.as_bytes()).into_iter().map(<[u8]>::to_vec).collect();
        self.tickets().insert(order, TicketGrant { sha256: hash(ticket), below });
        Ok(())
    }

    /// Lets this agent open sessions at itself in the name of a client, with the client's rights.
    #[must_use]
    pub fn self_login(&self, caller: Caller) -> SelfLogin {
        let secret = hex(&random::<32>());
        let valid = Arc::clone(&self.self_logins);
        valid.lock().unwrap_or_else(PoisonError::into_inner).insert(hash(&secret), caller);
        SelfLogin { secret, valid }
    }

    /// The client in whose name this agent comes with this secret.
    fn self_caller(&self, token: &str) -> Option<Caller> {
        self.self_logins.lock().unwrap_or_else(PoisonError::into_inner).get(&hash(token)).cloned()
    }

    fn issued_token(&self, token: &str) -> Option<IssuedToken> {
        self.issued.as_ref()?.find(token)
    }

    /// Name and scopes of the bearer of the agent's own token or of an issued one; `None` for any other token.
    #[must_use]
    pub fn api_client(&self, token: &str) -> Option<ApiClientFacts> {
        if self.is_owner(token) {
            return Some(ApiClientFacts { name: OWNER.to_owned(), scopes: Vec::new() });
        }
        let IssuedToken { name, scopes, .. } = self.issued_token(token)?;
        Some(ApiClientFacts { name, scopes })
    }

    /// Disks whose address, and hosts whose secrets, the bearer of an issued token may learn.
    #[must_use]
    pub fn disks_of(&self, token: &str) -> Vec<DiskScope> {
        let scopes = self.issued_token(token).map(|issued| issued.scopes).unwrap_or_default();
        let of_disks = scopes.iter().filter_map(|scope| match scope.parse() {
            Ok(IssuedScope::Api(ApiScope::Disk(scope))) => Some(scope),
            _ => None,
        });
        of_disks.collect()
    }

    /// True for an issued token with the scope `disk.export`.
    #[must_use]
    pub fn may_export_disks(&self, token: &str) -> bool {
        let scopes = self.issued_token(token).map(|issued| issued.scopes).unwrap_or_default();
        let wanted = Ok(IssuedScope::Api(ApiScope::DiskExport));
        scopes.iter().any(|scope| scope.parse::<IssuedScope>() == wanted)
    }

    /// The client with a token of this hash; `None` for one whose rights this agent does not know by the hash alone.
    #[must_use]
    pub fn caller_of_hash(&self, sha256: &TokenHash) -> Option<Caller> {
        if let Some(issued) = self.issued.as_ref().and_then(|issued| issued.find_hash(sha256)) {
            return issued_caller(&issued).ok();
        }
        let name = self.rules().tokens.name_of_hash(sha256)?;
        Some(Caller { name, pass: None, token: Some(*sha256), grant: None })
    }

    /// Most submitted transfers that run at once for the token of this client, if its token limits them.
    #[must_use]
    pub fn transfers_max(&self, caller: &Caller) -> Option<usize> {
        self.issued.as_ref()?.find_hash(caller.token.as_ref()?)?.transfers_max
    }

    /// The bearer of the agent's own token, as a client of the mover.
    #[must_use]
    pub fn owner(&self) -> Caller {
        let token = Some(self.rules().tokens.owner_hash());
        Caller { name: OWNER.to_owned(), pass: None, token, grant: None }
    }

    /// Revokes the ticket of an order; sessions that it opened continue.
    pub fn revoke_ticket(&self, order: OrderId) {
        self.tickets().remove(&order);
    }

    /// True if the token or certificate of a client is one of this agent's, or a head node vouches for the client.
    fn holds(&self, rules: &AccessRules, caller: &Caller) -> bool {
        match &caller.token {
            Some(sha256) => {
                let issued = self.issued.as_ref().and_then(|issued| issued.find_hash(sha256));
                issued.is_some() || rules.tokens.may_hold(sha256)
            }
            None if Principal::is_certificate_name(&caller.name) => {
                rules.names_certificate(&caller.name)
            }
            // Head nodes redirect clients whose tokens this agent need not know.
            None => true,
        }
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
    fn check_ticket(
        &self,
        order: OrderId,
        path: &[u8],
        access: PathAccess,
    ) -> Result<usize, Refusal> {
        let shown = display_path(path);
        let refused = |text: String| Err(Refusal::new(RefusalKind::Permission, text));
        let tickets = self.tickets();
        let Some(ticket) = tickets.get(&order) else {
            return refused(format!("{shown}: order {order} is no longer active"));
        };
        let mut rest = components(path).into_iter();
        let is_below = ticket.below.iter().all(|part| rest.next() == Some(part));
        if !access.writes() || !is_below {
            let below = ticket.below.join(&b'/');
            let below = display_path(&below);
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

    fn has_claims(&self, token: &str) -> bool {
        looks_like_jwt(token)
    }

    fn claims_access(&self, token: &str) -> ClaimsAccess {
        self.rules().claims_access(token)
    }

    fn issued_access(&self, token: &str) -> Option<IssuedAccess> {
        let scopes = self.issued_token(token)?.scopes;
        let has = |wanted: ApiScope| {
            let wanted = IssuedScope::Api(wanted);
            scopes.iter().any(|scope| scope.parse::<IssuedScope>().as_ref() == Ok(&wanted))
        };
        Some(match (has(ApiScope::Operate), has(ApiScope::Read)) {
            (true, _) => IssuedAccess::Operate,
            (false, true) => IssuedAccess::Read,
            (false, false) => IssuedAccess::None,
        })
    }

    fn moves_files(&self, token: &str) -> bool {
        let is_derived = self.macaroons.is_some() && MacaroonKey::looks_derived(token);
        let is_issued = self.issued_token(token).is_some();
        is_issued || is_derived || self.has_claims(token) || self.name_of(token).is_some()
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

/// The bearer of an issued token, with the rights of its scopes for storage.
fn issued_caller(issued: &IssuedToken) -> Result<Caller, Refusal> {
    let paths = issued.scopes.iter().filter_map(|scope| match scope.parse() {
        Ok(IssuedScope::Storage(grant)) => Some(grant),
        _ => None,
    });
    let paths: Vec<PathGrant> = paths.collect();
    if paths.is_empty() {
        let text = format!(
            "the token {} has no scope for storage: its operator issues one with penstock token create --scope storage.read:/PATH",
            issued.shown()
        );
        return Err(Refusal::new(RefusalKind::Permission, text));
    }
    let grant = TokenGrant {
        issuer: None,
        subject: None,
        groups: Vec::new(),
        paths,
        expires_s: issued.expires_unix_seconds,
    };
    let (name, token) = (issued.name.clone(), issued.hash());
    Ok(Caller { name, pass: None, token, grant: Some(Arc::new(grant)) })
}

/// The controller, or the bearer of its ticket for `order`.
#[must_use]
pub fn controller(order: Option<OrderId>) -> Caller {
    Caller {
        name: CONTROLLER.to_owned(),
        pass: order.map(OrderId::number),
        token: None,
        grant: None,
    }
}

/// True if the caller is a principal of the export.
fn admits(export: &Export, caller: &Caller) -> bool {
    export.principals.iter().any(|principal| match principal {
        // Callers are authenticated already. `*` does not include the controller.
        Principal::Anyone => caller.name != CONTROLLER && claims::issuer(caller).is_none(),
        Principal::Token(name) => *name == caller.name,
        Principal::Certificate(certificate) => {
            Principal::certificate_name(certificate) == caller.name
        }
        Principal::Issuer(_) | Principal::Group { .. } | Principal::Subject { .. } => {
            claims::is_principal(principal, caller)
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
        let bearer = || {
            let token = Some(token).filter(|token| !token.is_empty())?;
            self.bearer(token).or_else(|| self.self_caller(token))
        };
        let rules = self.rules();
        match bearer() {
            // A client's own token takes precedence over an equal ticket.
            _ if rules.tokens.name_of(token).is_some() => {
                rules.authenticate(token, certificate, peer)
            }
            Some(caller) => Ok(caller),
            None if self.issued_token(token).is_some() => {
                let caller = self.issued_token(token).map(|issued| issued_caller(&issued));
                caller.unwrap_or_else(|| rules.authenticate(token, certificate, peer))
            }
            None => match self.authenticate_claims(&rules, token) {
                Some(Err(refusal)) => {
                    tracing::warn!(peer, "refused: {}", refusal.text);
                    Err(refusal)
                }
                Some(Ok(caller)) => Ok(caller),
                None => rules.authenticate(token, certificate, peer),
            },
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
        if let Some(grant) = &caller.grant {
            if !rules.still_grants(grant) {
                return false;
            }
            if grant.issuer.is_some() {
                return true;
            }
        }
        self.holds(&rules, caller)
    }

    fn has_withdrawn(&self, caller: &Caller) -> bool {
        if caller.pass.is_some() || caller.name == CONTROLLER {
            return !self.still_admits(caller);
        }
        let rules = self.rules();
        match caller.grant.as_ref().and_then(|grant| grant.issuer.as_ref()) {
            Some(issuer) => rules.issuers.config(issuer).is_none(),
            None => !self.holds(&rules, caller),
        }
    }

    fn place(
        &self,
        caller: &Caller,
        path: &[u8],
        access: PathAccess,
    ) -> Result<ResolvedPath, Refusal> {
        let ticket = match caller.pass {
            Some(order) => Some(self.check_ticket(OrderId::from(order), path, access)?),
            None => None,
        };
        let place = self.rules().place(caller, path, access)?;
        match ticket {
            Some(below) => confined(place, components(path).len(), below),
            None => Ok(place),
        }
    }

    fn exports(&self, caller: &Caller) -> Vec<String> {
        let rules = self.rules();
        let admitted = rules.exports.iter().filter(|export| admits(export, caller));
        let admitted = admitted.filter(|export| claims::touches(caller, export));
        admitted.map(|export| export.name.as_str().to_owned()).collect()
    }

    fn export_space(&self) -> Vec<ExportSpace> {
        let rules = self.rules();
        let space = |export: &Export| {
            let space = Dir::open(&export.path).and_then(|root| penstock_sys::fs::space(&root));
            ExportSpace {
                name: export.name.as_str().to_owned(),
                reads: space.is_ok() && export.mode.allows(false),
                writes: space.is_ok() && export.mode.allows(true),
                available_bytes: space.map_or(0, |space| space.available_bytes),
            }
        };
        rules.exports.iter().map(space).collect()
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

    fn cleartext_networks(&self) -> CleartextNetworks {
        self.rules().cleartext.clone()
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
                Some(name) => {
                    Ok(Caller { name, pass: None, token: Some(hash(token)), grant: None })
                }
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
            return Ok(Caller { name, pass: None, token: None, grant: None });
        }
        refused(format!(
            "the client's certificate is in no export: ask the agent's operator to add \"cert:{certificate}\" to an export's who"
        ))
    }

    fn place(
        &self,
        caller: &Caller,
        path: &[u8],
        access: PathAccess,
    ) -> Result<ResolvedPath, Refusal> {
        let shown = display_path(path);
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
        let covered = match &caller.grant {
            Some(grant) => Some(self.check_grant(grant, path, access)?),
            None => None,
        };
        if !export.mode.allows(access.writes()) {
            let verb = if access.writes() { "written" } else { "read" };
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
        let place = ResolvedPath {
            root,
            path: components[below..].join(&b'/'),
            shown: format!("/{}", display_path(&components.join(&b'/'))),
        };
        match covered {
            Some(covered) => claims::confine(place, components.len(), covered),
            None => Ok(place),
        }
    }
}

#[cfg(test)]
mod tests;
