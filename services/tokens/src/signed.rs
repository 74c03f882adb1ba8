//! Texts of the form `PREFIX.PAYLOAD.MAC`: JSON, and its HMAC-SHA-256, both in base64url.

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penstock_scopes::{AccessRights, PathGrant, ScopePath};
use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// Rights by path as a payload has them.
pub(crate) fn encode_paths(paths: &[PathGrant]) -> Vec<(String, u8)> {
    paths.iter().map(|grant| (grant.path.to_encoded(), grant.rights.to_bits())).collect()
}

/// Reads the paths of [`encode_paths`]; `None` if one is malformed.
pub(crate) fn decode_paths(paths: Vec<(String, u8)>) -> Option<Vec<PathGrant>> {
    let decode = |(path, bits): (String, u8)| {
        let path = ScopePath::decode(path.as_bytes()).ok()?;
        Some(PathGrant { path, rights: AccessRights::from_bits(bits) })
    };
    paths.into_iter().map(decode).collect()
}
