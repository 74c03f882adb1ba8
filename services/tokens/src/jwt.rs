//! Verification of a signed token (RFC 7519) by the rules of the WLCG profile 1.x and SciTokens 2.0.
//!
//! First [`UnverifiedToken::parse`] says which issuer and key to look for, then [`verify`] checks signature and claims.
//! Stricter than scitokens-cpp: a token without `wlcg.ver` and `ver` is not accepted, nor is a scope for storage without
//! a path.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Validation;
use jsonwebtoken::errors::ErrorKind;
use penstock_scopes::{PathGrant, ScopeSyntax, scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Number, Value};

use crate::excerpt;
use crate::keys::{KEY_ID_BYTES_MAX, SignatureAlgorithm, VerificationKey};
use crate::rejection::TokenRejection;

/// Longest token in bytes.
pub const JWT_BYTES_MAX: usize = 8 << 10;

/// Tolerated difference of clocks in seconds.
pub const CLOCK_SKEW_S: u64 = 60;

/// Latest time of a claim in seconds since 1970: the largest integer that every JSON parser represents exactly.
const TIME_MAX_S: f64 = 9_007_199_254_740_991.0;

/// Most groups of a token.
const GROUPS_MAX: usize = 128;

/// Longest subject and group in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Audience of the WLCG profile that includes every service.
const WLCG_ANY_AUDIENCE: &str = "https://wlcg.cern.ch/jwt/v1/any";

/// Audience of SciTokens that includes every service.
const SCITOKENS_ANY_AUDIENCE: &str = "ANY";

/// Versions of SciTokens in the claim `ver`, with the spelling of its first draft.
const SCITOKENS_VERSIONS: [&str; 2] = ["scitoken:2.0", "scitokens:2.0"];

/// Issuer and key that a token names. Nothing of it is proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnverifiedToken {
    /// URL of the issuer, the claim `iss`.
    pub issuer: String,
    /// Identifier of the key, the header `kid`.
    pub key_id: Option<String>,
    /// Algorithm of the signature, the header `alg`.
    pub algorithm: SignatureAlgorithm,
}

/// Claims of a token whose signature is its issuer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedClaims {
    /// Bearer as its issuer names it, the claim `sub`.
    pub subject: Option<String>,
    /// Groups of the bearer (`wlcg.groups`).
    pub groups: Vec<String>,
    /// Rights by path, as the issuer names paths.
    pub paths: Vec<PathGrant>,
    /// The claim `exp`, in seconds since 1970.
    pub expires_s: u64,
}

#[derive(Deserialize)]
struct JoseHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct IssuerClaim {
    iss: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum AudienceClaim {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
struct ClaimSet {
    iss: String,
    sub: Option<String>,
    aud: Option<AudienceClaim>,
    exp: Option<Number>,
    nbf: Option<Number>,
    iat: Option<Number>,
    #[serde(rename = "wlcg.ver")]
    wlcg_version: Option<String>,
    ver: Option<String>,
    scope: Option<String>,
    #[serde(rename = "wlcg.groups")]
    groups: Option<Vec<String>>,
}

/// True for a text of the form of a signed token: three parts, of which the first is a JSON object.
#[must_use]
pub fn looks_like_jwt(token: &str) -> bool {
    // The encoding of `{"`.
    token.starts_with("eyJ") && token.bytes().filter(|byte| *byte == b'.').count() == 2
}

impl UnverifiedToken {
    /// Reads header and issuer of a token.
    ///
    /// # Errors
    /// When it is malformed, too long, or signed by an algorithm that is not accepted.
    pub fn parse(token: &str) -> Result<Self, TokenRejection> {
        if token.len() > JWT_BYTES_MAX {
            return Err(TokenRejection::Long);
        }
        let mut parts = token.split('.');
        let (Some(header), Some(claims), Some(_), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenRejection::Malformed("form"));
        };
        let header: JoseHeader = decode(header).ok_or(TokenRejection::Malformed("header"))?;
        let algorithm = SignatureAlgorithm::from_name(&header.alg)
            .ok_or_else(|| TokenRejection::Algorithm(excerpt(&header.alg)))?;
        if header.crit.is_some() {
            return Err(TokenRejection::Critical);
        }
        if header.kid.as_ref().is_some_and(|id| id.len() > KEY_ID_BYTES_MAX) {
            return Err(TokenRejection::Malformed("header"));
        }
        let read: Option<IssuerClaim> = decode(claims);
        let claims = read.ok_or_else(|| faulty_claim(claims))?;
        Ok(Self { issuer: claims.iss, key_id: header.kid, algorithm })
    }
}

fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

/// Returns the rejection of claims that are no [`ClaimSet`]: names the first of another type.
fn faulty_claim(part: &str) -> TokenRejection {
    let Some(claims) = decode::<Map<String, Value>>(part) else {
        return TokenRejection::Malformed("claims");
    };
    type ClaimCheck = fn(&Value) -> bool;
    let is_text_list: ClaimCheck =
        |value| value.as_array().is_some_and(|values| values.iter().all(Value::is_string));
    let is_text_or_list: ClaimCheck = |value| {
        let values = value.as_array();
        value.is_string() || values.is_some_and(|values| values.iter().all(Value::is_string))
    };
    let types: [(&'static str, ClaimCheck); 10] = [
        ("iss", Value::is_string),
        ("sub", Value::is_string),
        ("aud", is_text_or_list),
        ("exp", Value::is_number),
        ("nbf", Value::is_number),
        ("iat", Value::is_number),
        ("wlcg.ver", Value::is_string),
        ("ver", Value::is_string),
        ("scope", Value::is_string),
        ("wlcg.groups", is_text_list),
    ];
    if claims.get("iss").is_none_or(Value::is_null) {
        return TokenRejection::Missing("iss");
    }
    let is_faulty = |name: &str, is_type: ClaimCheck| {
        claims.get(name).is_some_and(|value| !value.is_null() && !is_type(value))
    };
    match types.into_iter().find(|(name, is_type)| is_faulty(name, *is_type)) {
        Some((name, _)) => TokenRejection::Invalid(name),
        None => TokenRejection::Malformed("claims"),
    }
}

/// Checks signature and claims of a token at `now_s` seconds since 1970.
///
/// # Errors
/// With the first part or claim that is not right.
pub fn verify(
    token: &str,
    key: &VerificationKey,
    issuer: &str,
    audiences: &[String],
    now_s: u64,
) -> Result<VerifiedClaims, TokenRejection> {
    let unverified = UnverifiedToken::parse(token)?;
    let mut validation = Validation::new(unverified.algorithm.decoder());
    // Claims are checked below, with errors that name them.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let decoded = jsonwebtoken::decode::<ClaimSet>(token, key.decoder(), &validation);
    let claims = decoded.map_err(|error| match error.kind() {
        ErrorKind::InvalidAlgorithm => TokenRejection::KeyType(unverified.algorithm.name()),
        ErrorKind::Json(_) | ErrorKind::Utf8(_) => {
            faulty_claim(token.split('.').nth(1).unwrap_or_default())
        }
        _ => TokenRejection::Signature,
    })?;
    check(claims.claims, issuer, audiences, now_s)
}

fn check(
    claims: ClaimSet,
    issuer: &str,
    audiences: &[String],
    now_s: u64,
) -> Result<VerifiedClaims, TokenRejection> {
    if claims.iss != issuer {
        return Err(TokenRejection::Issuer(excerpt(&claims.iss)));
    }
    let syntax = profile(&claims)?;
    let expires_s = time("exp", claims.exp.as_ref())?.ok_or(TokenRejection::Missing("exp"))?;
    if now_s >= expires_s.saturating_add(CLOCK_SKEW_S) {
        return Err(TokenRejection::Expired(now_s - expires_s));
    }
    for (claim, value) in [("nbf", &claims.nbf), ("iat", &claims.iat)] {
        let begins_s = time(claim, value.as_ref())?.unwrap_or(0);
        if begins_s > now_s.saturating_add(CLOCK_SKEW_S) {
            return Err(TokenRejection::Early { claim, ahead_s: begins_s - now_s });
        }
    }
    check_audience(claims.aud, syntax, audiences)?;
    let subject = claims.sub;
    if subject.as_deref().is_some_and(|subject| !is_name(subject)) {
        return Err(TokenRejection::Invalid("sub"));
    }
    let groups = claims.groups.unwrap_or_default();
    if groups.len() > GROUPS_MAX || !groups.iter().all(|group| is_name(group)) {
        return Err(TokenRejection::Invalid("wlcg.groups"));
    }
    let paths = scope::parse(claims.scope.as_deref().unwrap_or_default(), syntax)?;
    Ok(VerifiedClaims { subject, groups, paths, expires_s })
}

/// Profile of a token by its version.
fn profile(claims: &ClaimSet) -> Result<ScopeSyntax, TokenRejection> {
    let is_version_1 = |version: &str| {
        let minor = version.strip_prefix("1.");
        minor.is_some_and(|minor| !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit()))
    };
    match (claims.wlcg_version.as_deref(), claims.ver.as_deref()) {
        (Some(version), _) if is_version_1(version) => Ok(ScopeSyntax::Wlcg),
        (Some(version), _) => {
            Err(TokenRejection::Profile(format!("'wlcg.ver' is '{}'", excerpt(version))))
        }
        (None, Some(version)) if SCITOKENS_VERSIONS.contains(&version) => {
            Ok(ScopeSyntax::SciTokens)
        }
        (None, Some(version)) => {
            Err(TokenRejection::Profile(format!("'ver' is '{}'", excerpt(version))))
        }
        (None, None) => Err(TokenRejection::Profile("'wlcg.ver' and 'ver' are missing".to_owned())),
    }
}

/// Reads a NumericDate (RFC 7519 section 2), rounded down.
fn time(claim: &'static str, value: Option<&Number>) -> Result<Option<u64>, TokenRejection> {
    let Some(value) = value else { return Ok(None) };
    let seconds = value.as_f64().filter(|seconds| (0.0..=TIME_MAX_S).contains(seconds));
    let seconds = seconds.ok_or(TokenRejection::Invalid(claim))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
    Ok(Some(seconds as u64))
}

fn check_audience(
    claim: Option<AudienceClaim>,
    syntax: ScopeSyntax,
    audiences: &[String],
) -> Result<(), TokenRejection> {
    let claimed = match claim {
        None => return Err(TokenRejection::Missing("aud")),
        Some(AudienceClaim::One(one)) => vec![one],
        Some(AudienceClaim::Many(many)) => many,
    };
    let any = match syntax {
        ScopeSyntax::Wlcg => WLCG_ANY_AUDIENCE,
        ScopeSyntax::SciTokens => SCITOKENS_ANY_AUDIENCE,
    };
    match claimed.iter().any(|one| one == any || audiences.contains(one)) {
        true => Ok(()),
        false => Err(TokenRejection::Audience(excerpt(&claimed.join(" ")))),
    }
}

/// True for a name that logs and lists can show.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control)
}
