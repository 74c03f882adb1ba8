//! Tokens that an agent derives from a client's own, for a while and for some uses of a path.
//!
//! gfal2 asks for them before each operation (`Content-Type: application/macaroon-request`), and sends them to the other
//! server of a third-party copy. Clients take the value as opaque, so it is no macaroon of libmacaroons but
//! `pm1.PAYLOAD.MAC`: JSON, and its HMAC-SHA-256 by a key of the agent. A derived token names the hash of the token that it
//! comes from, and is valid only as long as that one.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_mover::Caller;
use penstock_protocol::open::Refusal;
use penstock_scopes::{AccessRights, PathAccess, PathGrant, ScopePath, TokenGrant};
use serde::{Deserialize, Serialize};

use crate::excerpt;
use crate::signed::{self, GrantPayload};

/// Content type of a request.
pub const MACAROON_REQUEST: &str = "application/macaroon-request";

/// Longest body of a request in bytes.
pub const REQUEST_BYTES_MAX: usize = 4 << 10;

/// Most caveats of a request.
const CAVEATS_MAX: usize = 16;

/// Longest lifetime of a derived token; longer requests get this one.
pub const VALIDITY_MAX: Duration = Duration::from_secs(24 * 3600);

/// Lifetime without a request for one.
const VALIDITY_DEFAULT: Duration = Duration::from_secs(3600);

/// Longest derived token in bytes.
const DERIVED_BYTES_MAX: usize = 8 << 10;

/// Beginning of a derived token: kind and version.
const PREFIX: &str = "pm1.";

/// Uses of a path that an activity includes. `DELETE` with `UPLOAD` also allows to replace, as `DELETE` and `PUT` in turn
/// do.
const ACTIVITIES: [(&str, AccessRights); 7] = [
    ("LIST", AccessRights::NONE.with(PathAccess::List)),
    ("DOWNLOAD", AccessRights::NONE.with(PathAccess::Read)),
    ("UPLOAD", AccessRights::CREATE),
    ("DELETE", AccessRights::NONE.with(PathAccess::Delete)),
    ("MANAGE", AccessRights::NONE.with(PathAccess::Rename)),
    ("READ_METADATA", AccessRights::NONE),
    ("UPDATE_METADATA", AccessRights::NONE),
];

/// A request that cannot be granted as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MintRequestError {
    /// The body is no JSON object with caveats and validity.
    #[error("the body is no {{\"caveats\": [...], \"validity\": \"PT60M\"}}")]
    Malformed,
    /// More than 16 caveats.
    #[error("the request has more than {CAVEATS_MAX} caveats")]
    Count,
    /// A caveat other than `activity:` and `path:`.
    #[error("the caveat '{0}' is not supported: use activity: and path:")]
    Caveat(String),
    /// An activity that is not known.
    #[error("the activity '{0}' is not known: use LIST, DOWNLOAD, UPLOAD, DELETE and MANAGE")]
    Activity(String),
    /// A path that contradicts the URL or another caveat.
    #[error("the caveat path:{0} is not below the path of the request: write the whole path in it")]
    Path(String),
    /// A duration that is zero or not of ISO 8601.
    #[error("the validity '{0}' is no duration such as PT60M")]
    Validity(String),
}

/// Uses of a path that a client wants to hand on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MintRequest {
    /// Path and its uses.
    pub grant: PathGrant,
    /// Lifetime of the derived token, at most [`VALIDITY_MAX`].
    pub validity: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestBody {
    #[serde(default)]
    caveats: Vec<String>,
    validity: Option<String>,
}

impl MintRequest {
    /// Reads the body of a request for `path`. Without an activity it is for all uses.
    ///
    /// # Errors
    /// When a caveat is not supported: a token without it would be wider than the client wants.
    pub fn parse(body: &[u8], path: ScopePath) -> Result<Self, MintRequestError> {
        if body.len() > REQUEST_BYTES_MAX {
            return Err(MintRequestError::Malformed);
        }
        let body: RequestBody =
            serde_json::from_slice(body).map_err(|_| MintRequestError::Malformed)?;
        if body.caveats.len() > CAVEATS_MAX {
            return Err(MintRequestError::Count);
        }
        let all = AccessRights::READ.union(AccessRights::MODIFY);
        let mut grant = PathGrant { path, rights: all };
        for caveat in &body.caveats {
            match caveat.split_once(':') {
                Some(("activity", names)) => {
                    grant.rights = grant.rights.intersection(activities(names)?);
                }
                Some(("path", text)) => {
                    let fault = || MintRequestError::Path(excerpt(text));
                    let narrower = ScopePath::new(text.as_bytes()).map_err(|_| fault())?;
                    if narrower.covers(&grant.path) {
                        continue;
                    }
                    if !grant.path.covers(&narrower) {
                        return Err(fault());
                    }
                    grant.path = narrower;
                }
                _ => return Err(MintRequestError::Caveat(excerpt(caveat))),
            }
        }
        let validity = match &body.validity {
            None => VALIDITY_DEFAULT,
            Some(text) => duration(text)
                .filter(|validity| !validity.is_zero())
                .ok_or_else(|| MintRequestError::Validity(excerpt(text)))?,
        };
        Ok(Self { grant, validity: validity.min(VALIDITY_MAX) })
    }
}

fn activities(names: &str) -> Result<AccessRights, MintRequestError> {
    let mut rights = AccessRights::NONE;
    for name in names.split(',').map(str::trim) {
        let known = ACTIVITIES.iter().find(|(known, _)| *known == name);
        let (_, granted) = known.ok_or_else(|| MintRequestError::Activity(excerpt(name)))?;
        rights = rights.union(*granted);
    }
    if rights.allows(PathAccess::Create) && rights.allows(PathAccess::Delete) {
        rights = rights.with(PathAccess::Replace);
    }
    Ok(rights)
}

/// Reads a duration of ISO 8601 in days, hours, minutes and seconds, such as `P1DT2H`.
fn duration(text: &str) -> Option<Duration> {
    let rest = text.strip_prefix('P')?;
    let (days, time) = match rest.split_once('T') {
        Some((_, "")) => return None,
        Some((days, time)) => (days, time),
        None => (rest, ""),
    };
    let mut seconds = 0_u64;
    let mut add = |mut part: &str, units: &[(char, u64)]| -> Option<()> {
        for (unit, in_seconds) in units {
            if let Some((number, rest)) = part.split_once(*unit) {
                if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                    return None;
                }
                let number = number.parse::<u64>().ok()?.checked_mul(*in_seconds)?;
                seconds = seconds.checked_add(number)?;
                part = rest;
            }
        }
        part.is_empty().then_some(())
    };
    add(days, &[('W', 7 * 86400), ('D', 86400)])?;
    add(time, &[('H', 3600), ('M', 60), ('S', 1)])?;
    Some(Duration::from_secs(seconds))
}

/// Derives tokens from those of clients.
pub trait TokenMinter: Send + Sync {
    /// Returns a token for the uses of `request` that `caller` has itself.
    ///
    /// # Errors
    /// When the caller has none of them, or no token that can be handed on.
    fn mint(&self, caller: &Caller, request: &MintRequest) -> Result<String, Refusal>;
}

/// Bearer of a derived token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedToken {
    /// Name of the client that it was derived for.
    pub name: String,
    /// SHA-256 of the token with a name that it comes from; `None` where it comes from one of an issuer.
    pub parent: Option<[u8; 32]>,
    /// Rights of the bearer.
    pub grant: TokenGrant,
}

/// A derived token that is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DerivedTokenError {
    /// The code does not match, or the content is damaged.
    #[error("the derived token is not from this agent, or damaged: ask for a new one")]
    Forged,
    /// The lifetime is over.
    #[error("the derived token has expired {0} s ago: ask for a new one")]
    Expired(u64),
    /// Too many rights and groups for one token.
    #[error("the rights of the token are too many to derive another from it")]
    Long,
}

/// Content of a derived token, with short names.
#[derive(Serialize, Deserialize)]
struct MacaroonPayload {
    n: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    t: Option<String>,
    #[serde(flatten)]
    grant: GrantPayload,
}

/// Secret key of an agent for derived tokens.
pub struct MacaroonKey(hmac::Key);

impl fmt::Debug for MacaroonKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MacaroonKey")
    }
}

impl MacaroonKey {
    /// Creates a key from a secret of at least 32 bytes.
    #[must_use]
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// True for a text of the form of a derived token.
    #[must_use]
    pub fn looks_derived(token: &str) -> bool {
        token.starts_with(PREFIX)
    }

    /// Writes a token and signs it.
    ///
    /// # Errors
    /// When it would be too long.
    pub fn seal(&self, token: &DerivedToken) -> Result<String, DerivedTokenError> {
        let DerivedToken { name, parent, grant } = token;
        let payload = MacaroonPayload {
            n: name.clone(),
            t: parent.map(|hash| URL_SAFE_NO_PAD.encode(hash)),
            grant: GrantPayload::of(grant),
        };
        let text = signed::seal(&self.0, PREFIX, &payload);
        match text.len() > DERIVED_BYTES_MAX {
            true => Err(DerivedTokenError::Long),
            false => Ok(text),
        }
    }

    /// Reads a token at `now_s` seconds since 1970; its code is compared in constant time.
    ///
    /// # Errors
    /// When it is not from this key, or has expired.
    pub fn open(&self, token: &str, now_s: u64) -> Result<DerivedToken, DerivedTokenError> {
        let forged = DerivedTokenError::Forged;
        if token.len() > DERIVED_BYTES_MAX {
            return Err(forged);
        }
        let payload: MacaroonPayload = signed::open(&self.0, PREFIX, token).ok_or(forged)?;
        let grant = payload.grant.read().ok_or(forged)?;
        if now_s >= grant.expires_s {
            return Err(DerivedTokenError::Expired(now_s - grant.expires_s));
        }
        let parent = match payload.t {
            None => None,
            Some(text) => {
                let hash = URL_SAFE_NO_PAD.decode(text).map_err(|_| forged)?;
                Some(hash.try_into().map_err(|_| forged)?)
            }
        };
        Ok(DerivedToken { name: payload.n, parent, grant })
    }
}

#[cfg(test)]
mod tests {
    use penstock_scopes::TokenIssuer;
    use proptest::prelude::*;

    use super::*;

    fn parse(body: &str, path: &str) -> Result<MintRequest, MintRequestError> {
        MintRequest::parse(body.as_bytes(), ScopePath::new(path.as_bytes()).unwrap())
    }

    #[test]
    fn requests_of_gfal_are_read() {
        let read = r#"{"caveats": ["activity:LIST,DOWNLOAD"], "validity": "PT180M"}"#;
        let request = parse(read, "/store/f").unwrap();
        assert_eq!(request.grant.rights, AccessRights::READ);
        assert_eq!(request.validity, Duration::from_secs(180 * 60));
        let write =
            r#"{"caveats": ["activity:LIST,DOWNLOAD,MANAGE,UPLOAD,DELETE"], "validity": "PT130M"}"#;
        let all = AccessRights::READ.union(AccessRights::MODIFY);
        assert_eq!(parse(write, "/store/f").unwrap().grant.rights, all);
    }

    #[test]
    fn caveats_narrow_and_never_widen() {
        let body = |caveats: &str| format!("{{\"caveats\": [{caveats}], \"validity\": \"P9D\"}}");
        let request = parse(&body(r#""path:/a/b", "activity:UPLOAD""#), "/a").unwrap();
        assert_eq!(request.grant.path.to_string(), "/a/b");
        assert_eq!(request.grant.rights, AccessRights::CREATE);
        assert_eq!(request.validity, VALIDITY_MAX);
        assert_eq!(parse(&body(r#""path:/""#), "/a").unwrap().grant.path.to_string(), "/a");
        let both =
            parse(&body(r#""activity:LIST,DOWNLOAD", "activity:UPLOAD,LIST""#), "/").unwrap();
        assert!(both.grant.rights.allows(PathAccess::List));
        assert!(!both.grant.rights.allows(PathAccess::Create));
        for (caveats, words) in [
            (r#""path:/b""#, "not below"),
            (r#""path:/a/../b""#, "not below"),
            (r#""activity:ROOT""#, "'ROOT' is not known"),
            (r#""before:2027-01-01T00:00:00Z""#, "not supported"),
            (r#""ip:192.0.2.1""#, "not supported"),
        ] {
            let error = parse(&body(caveats), "/a").unwrap_err().to_string();
            assert!(error.contains(words), "{caveats}: {error}");
        }
        for body in ["", "[]", r#"{"caveats": 1}"#, r#"{"caveats": [], "ip": "x"}"#] {
            assert_eq!(parse(body, "/a"), Err(MintRequestError::Malformed), "{body}");
        }
    }

    #[test]
    fn durations_are_iso_8601() {
        for (text, seconds) in [
            ("PT180M", Some(10_800)),
            ("P1DT2H3M4S", Some(93_784)),
            ("P1W", Some(604_800)),
            ("PT60", None),
            ("PT", None),
            ("P1M", None),
            ("PT-1M", None),
            ("PT1M1H", None),
            ("PT99999999999999999999S", None),
            ("180", None),
        ] {
            assert_eq!(duration(text), seconds.map(Duration::from_secs), "{text}");
        }
        assert!(parse(r#"{"validity": "PT0S"}"#, "/").is_err());
    }

    fn derived(expires_s: u64) -> DerivedToken {
        let path = ScopePath::new(b"/a b/\xff").unwrap();
        DerivedToken {
            name: "alice".to_owned(),
            parent: Some([7; 32]),
            grant: TokenGrant {
                issuer: Some(TokenIssuer { name: "cms".into(), url: "https://x/".into() }),
                subject: Some("s".to_owned()),
                groups: vec!["/cms".to_owned()],
                paths: vec![PathGrant { path, rights: AccessRights::READ }],
                expires_s,
            },
        }
    }

    #[test]
    fn derived_token_is_read_back() {
        let key = MacaroonKey::new(&[1; 32]);
        let token = derived(100);
        let text = key.seal(&token).unwrap();
        assert_eq!(key.open(&text, 99), Ok(token));
        assert_eq!(key.open(&text, 100), Err(DerivedTokenError::Expired(0)));
        assert_eq!(MacaroonKey::new(&[2; 32]).open(&text, 99), Err(DerivedTokenError::Forged));
    }

    proptest! {
        #![proptest_config(penstock_testkit::properties())]

        #[test]
        fn changed_token_is_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let key = MacaroonKey::new(&[1; 32]);
            let text = key.seal(&derived(100)).unwrap();
            let mut bytes = text.clone().into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(changed) = String::from_utf8(bytes) && changed != text {
                prop_assert_eq!(key.open(&changed, 99), Err(DerivedTokenError::Forged));
            }
        }

        #[test]
        fn requests_never_panic(body in "\\PC*") {
            let _ = parse(&body, "/a");
            let _ = duration(&body);
        }
    }
}
