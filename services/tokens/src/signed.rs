//! Texts of the form `PREFIX.PAYLOAD.MAC`: JSON, and its HMAC-SHA-256, both in base64url.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_scopes::{AccessRights, PathGrant, ScopePath, TokenGrant, TokenIssuer};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Signs a payload. `prefix` names kind and version, and ends with a dot.
pub(crate) fn seal(key: &hmac::Key, prefix: &str, payload: &impl Serialize) -> String {
    let payload = serde_json::to_vec(payload).expect("texts and numbers make JSON");
    let signed = format!("{prefix}{}", URL_SAFE_NO_PAD.encode(payload));
    let code = hmac::sign(key, signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(code))
}

/// Reads a signed payload; `None` if the code, which is compared in constant time, or the content is wrong.
pub(crate) fn open<T: DeserializeOwned>(key: &hmac::Key, prefix: &str, text: &str) -> Option<T> {
    let (signed, code) = text.rsplit_once('.')?;
    let code = URL_SAFE_NO_PAD.decode(code).ok()?;
    hmac::verify(key, signed.as_bytes(), &code).ok()?;
    let payload = URL_SAFE_NO_PAD.decode(signed.strip_prefix(prefix)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

/// Rights of a token as a payload has them, with short names.
#[derive(Serialize, Deserialize)]
pub(crate) struct GrantPayload {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    i: Option<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    s: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    g: Vec<String>,
    p: Vec<(String, u8)>,
    e: u64,
}

impl GrantPayload {
    pub(crate) fn of(grant: &TokenGrant) -> Self {
        let path = |one: &PathGrant| (one.path.to_encoded(), one.rights.to_bits());
        Self {
            i: grant.issuer.as_ref().map(|issuer| (issuer.name.clone(), issuer.url.clone())),
            s: grant.subject.clone(),
            g: grant.groups.clone(),
            p: grant.paths.iter().map(path).collect(),
            e: grant.expires_s,
        }
    }

    /// Returns the rights; `None` if a path is malformed.
    pub(crate) fn read(self) -> Option<TokenGrant> {
        let path = |(path, bits): (String, u8)| {
            let path = ScopePath::decode(path.as_bytes()).ok()?;
            Some(PathGrant { path, rights: AccessRights::from_bits(bits) })
        };
        Some(TokenGrant {
            issuer: self.i.map(|(name, url)| TokenIssuer { name, url }),
            subject: self.s,
            groups: self.g,
            paths: self.p.into_iter().map(path).collect::<Option<_>>()?,
            expires_s: self.e,
        })
    }
}
