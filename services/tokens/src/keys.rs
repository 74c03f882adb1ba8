//! Keys of a JWKS document (RFC 7517).
//!
//! Only keys that can verify RS256 and ES256 count. Others, such as those for encryption, are skipped, as an issuer may
//! publish them beside.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use crate::excerpt;
use crate::rejection::TokenRejection;

/// Longest JWKS document in bytes.
pub const JWKS_BYTES_MAX: usize = 128 << 10;

/// Most keys of a document.
pub const KEYS_MAX: usize = 64;

/// Sizes of RSA moduli in bytes: 2048 to 8192 bits.
const RSA_MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// Longest exponent of an RSA key in bytes.
const RSA_EXPONENT_BYTES_MAX: usize = 8;

/// Bytes of a coordinate on P-256.
const P256_COORDINATE_BYTES: usize = 32;

/// Longest key identifier in bytes.
pub const KEY_ID_BYTES_MAX: usize = 256;

/// Algorithm of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureAlgorithm {
    /// RSA PKCS #1 v1.5 with SHA-256.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
}

impl SignatureAlgorithm {
    /// The algorithm of this name; `None` for all that are not accepted, such as `none` and `HS256`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Rs256, Self::Es256].into_iter().find(|algorithm| algorithm.name() == name)
    }

    /// Name in JWS (RFC 7518 section 3.1).
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
        }
    }

    pub(crate) fn decoder(self) -> Algorithm {
        match self {
            Self::Rs256 => Algorithm::RS256,
            Self::Es256 => Algorithm::ES256,
        }
    }
}

/// A JWKS document that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// Longer than [`JWKS_BYTES_MAX`].
    #[error("the key set is longer than {JWKS_BYTES_MAX} bytes")]
    Long,
    /// The document is no JSON object with a list of keys.
    #[error("the key set is no JSON object with a list 'keys'")]
    Malformed,
    /// More than [`KEYS_MAX`] keys.
    #[error("the key set has more than {KEYS_MAX} keys")]
    Count,
    /// No key for RS256 or ES256.
    #[error("the key set has no key for RS256 or ES256")]
    Empty,
}

/// A public key of an issuer.
pub struct VerificationKey {
    id: Option<String>,
    algorithm: SignatureAlgorithm,
    key: DecodingKey,
}

impl fmt::Debug for VerificationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VerificationKey")
            .field("id", &self.id)
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl VerificationKey {
    pub(crate) fn decoder(&self) -> &DecodingKey {
        &self.key
    }
}

/// Public keys of an issuer.
#[derive(Debug)]
pub struct KeySet(Vec<VerificationKey>);

#[derive(Deserialize)]
struct JwksDocument {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct JsonWebKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    n: Option<String>,
    e: Option<String>,
    crv: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a document of at most [`JWKS_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// When it is malformed, too long, or has no usable key.
    pub fn parse(document: &[u8]) -> Result<Self, KeySetError> {
        if document.len() > JWKS_BYTES_MAX {
            return Err(KeySetError::Long);
        }
        let document: JwksDocument =
            serde_json::from_slice(document).map_err(|_| KeySetError::Malformed)?;
        if document.keys.len() > KEYS_MAX {
            return Err(KeySetError::Count);
        }
        let keys: Vec<_> = document.keys.into_iter().filter_map(usable_key).collect();
        match keys.is_empty() {
            true => Err(KeySetError::Empty),
            false => Ok(Self(keys)),
        }
    }

    /// Number of usable keys.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The key that a token's header names.
    ///
    /// # Errors
    /// When there is none, it is for another algorithm, or the header names none of several.
    pub fn find(
        &self,
        id: Option<&str>,
        algorithm: SignatureAlgorithm,
    ) -> Result<&VerificationKey, TokenRejection> {
        let named: Vec<&VerificationKey> = match (id, self.0.as_slice()) {
            (None, [only]) => vec![only],
            (None, _) => return Err(TokenRejection::NoKeyId),
            (Some(id), all) => all.iter().filter(|key| key.id.as_deref() == Some(id)).collect(),
        };
        if named.is_empty() {
            return Err(TokenRejection::UnknownKey(excerpt(id.unwrap_or_default())));
        }
        let fitting = named.into_iter().find(|key| key.algorithm == algorithm);
        fitting.ok_or(TokenRejection::KeyType(algorithm.name()))
    }
}

/// Returns a key that can verify tokens; `None` for any other.
fn usable_key(value: Value) -> Option<VerificationKey> {
    let key: JsonWebKey = serde_json::from_value(value).ok()?;
    if key.usage.is_some_and(|usage| usage != "sig")
        || key.kid.as_ref().is_some_and(|id| id.len() > KEY_ID_BYTES_MAX)
    {
        return None;
    }
    let bytes = |text: &Option<String>| URL_SAFE_NO_PAD.decode(text.as_ref()?).ok();
    let (algorithm, decoder) = match key.kty.as_str() {
        "RSA" => {
            let (modulus, exponent) = (bytes(&key.n)?, bytes(&key.e)?);
            let leading = modulus.iter().take_while(|byte| **byte == 0).count();
            if !RSA_MODULUS_BYTES.contains(&(modulus.len() - leading))
                || exponent.len() > RSA_EXPONENT_BYTES_MAX
            {
                return None;
            }
            let decoder = DecodingKey::from_rsa_raw_components(&modulus[leading..], &exponent);
            (SignatureAlgorithm::Rs256, decoder)
        }
        "EC" if key.crv.as_deref() == Some("P-256") => {
            let (x, y) = (key.x?, key.y?);
            let is_coordinate = |text: &str| {
                URL_SAFE_NO_PAD.decode(text).is_ok_and(|x| x.len() == P256_COORDINATE_BYTES)
            };
            if !is_coordinate(&x) || !is_coordinate(&y) {
                return None;
            }
            (SignatureAlgorithm::Es256, DecodingKey::from_ec_components(&x, &y).ok()?)
        }
        _ => return None,
    };
    match key.alg {
        Some(name) if name != algorithm.name() => None,
        _ => Some(VerificationKey { id: key.kid, algorithm, key: decoder }),
    }
}
