//! An issuer of tokens: keys, signed tokens, and an https server with its discovery document.

// Each test binary takes what it needs.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

/// Audience that tests configure.
pub(crate) const AUDIENCE: &str = "https://dtn.example.org:8443";

/// A signing key of an issuer.
pub(crate) enum TestKey {
    Ec { id: &'static str, pair: EcdsaKeyPair },
    Rsa { id: &'static str, pair: RsaKeyPair },
}

impl TestKey {
    pub(crate) fn es256(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self::Ec { id, pair }
    }

    pub(crate) fn rs256(id: &'static str) -> Self {
        Self::Rsa { id, pair: RsaKeyPair::generate(KeySize::Rsa2048).unwrap() }
    }

    pub(crate) fn id(&self) -> &'static str {
        match self {
            Self::Ec { id, .. } | Self::Rsa { id, .. } => id,
        }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match self {
            Self::Ec { .. } => "ES256",
            Self::Rsa { .. } => "RS256",
        }
    }

    /// The public key as in a JWKS document.
    pub(crate) fn jwk(&self) -> Value {
        let (id, text) = (self.id(), |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes));
        match self {
            Self::Ec { pair, .. } => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": id,
                    "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Self::Rsa { pair, .. } => {
                let public = pair.public_key();
                let modulus = public.modulus();
                let exponent = public.exponent();
                json!({"kty": "RSA", "use": "sig", "kid": id,
                    "n": text(modulus.big_endian_without_leading_zero()),
                    "e": text(exponent.big_endian_without_leading_zero())})
            }
        }
    }

    /// A token with any header and claims.
    pub(crate) fn sign(&self, header: &Value, claims: &Value) -> String {
        self.sign_text(&header.to_string(), &claims.to_string())
    }

    /// A token with any texts as header and claims.
    pub(crate) fn sign_text(&self, header: &str, claims: &str) -> String {
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let signed = format!("{}.{}", part(header), part(claims));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Ec { pair, .. } => {
                pair.sign(&random, signed.as_bytes()).unwrap().as_ref().to_vec()
            }
            Self::Rsa { pair, .. } => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, signed.as_bytes(), &mut signature).unwrap();
                signature
            }
        };
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// A token with the usual header.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let header = json!({"typ": "JWT", "alg": self.algorithm(), "kid": self.id()});
        self.sign(&header, claims)
    }
}

/// Present time in seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Claims of the WLCG profile that are valid for ten minutes.
pub(crate) fn wlcg(issuer: &str, scope: &str) -> Value {
    json!({"wlcg.ver": "1.0", "iss": issuer, "sub": "user-1", "aud": AUDIENCE, "scope": scope,
        "exp": now_s() + 600, "iat": now_s(), "nbf": now_s(), "jti": "1"})
}

/// Replaces claims, and removes those that are null.
pub(crate) fn with(mut claims: Value, changes: &Value) -> Value {
    let all = claims.as_object_mut().unwrap();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => all.remove(name),
            value => all.insert(name.clone(), value.clone()),
        };
    }
    claims
}

#[derive(Default)]
struct Served {
    keys: Vec<u8>,
    issuer: Option<String>,
    is_down: bool,
    discoveries: usize,
    key_sets: usize,
}

/// An https server that publishes keys.
pub(crate) struct TestIssuer {
    directory: tempfile::TempDir,
    served: Arc<Mutex<Served>>,
    url: String,
}

impl TestIssuer {
    pub(crate) fn new(keys: &[&TestKey]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, "authority of an issuer");
        fs::write(directory.path().join("ca.pem"), params.self_signed(&key).unwrap().pem())
            .unwrap();
        let authority = rcgen::Issuer::new(params, key);
        let key = rcgen::KeyPair::generate().unwrap();
        let host = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let host = host.signed_by(&key, &authority).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![host.der().clone()],
                rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}/iam", listener.local_addr().unwrap().port());
        let served = Arc::new(Mutex::new(Served::default()));
        let issuer = Self { directory, served: Arc::clone(&served), url: url.clone() };
        issuer.publish(keys);
        let config = Arc::new(config);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
                let tls = rustls::ServerConnection::new(Arc::clone(&config)).unwrap();
                let mut stream = BufReader::new(rustls::StreamOwned::new(tls, stream));
                let _ = answer(&mut stream, &served, &url);
            }
        });
        issuer
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// PEM file of the authority of its certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    pub(crate) fn publish(&self, keys: &[&TestKey]) {
        self.publish_text(&key_set(keys));
    }

    pub(crate) fn publish_text(&self, text: &str) {
        self.served.lock().unwrap().keys = text.as_bytes().to_vec();
    }

    /// Publishes another issuer in the discovery document.
    pub(crate) fn claim_to_be(&self, issuer: &str) {
        self.served.lock().unwrap().issuer = Some(issuer.to_owned());
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.served.lock().unwrap().is_down = is_down;
    }

    /// Requests so far: of the discovery document and of the keys.
    pub(crate) fn fetches(&self) -> (usize, usize) {
        let served = self.served.lock().unwrap();
        (served.discoveries, served.key_sets)
    }
}

pub(crate) fn key_set(keys: &[&TestKey]) -> String {
    let keys: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
    json!({"keys": keys}).to_string()
}

type TlsStream = BufReader<rustls::StreamOwned<rustls::ServerConnection, std::net::TcpStream>>;

fn answer(stream: &mut TlsStream, served: &Mutex<Served>, url: &str) -> std::io::Result<()> {
    loop {
        let mut request = String::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            request += &line;
        }
        let (status, body) = {
            let mut served = served.lock().unwrap();
            match request.split(' ').nth(1) {
                _ if served.is_down => return Ok(()),
                Some("/iam/.well-known/openid-configuration") => {
                    served.discoveries += 1;
                    let issuer = served.issuer.clone().unwrap_or_else(|| url.to_owned());
                    let keys = format!("{url}/jwks");
                    (200, json!({"issuer": issuer, "jwks_uri": keys}).to_string().into_bytes())
                }
                Some("/iam/jwks") => {
                    served.key_sets += 1;
                    (200, served.keys.clone())
                }
                _ => (404, Vec::new()),
            }
        };
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.get_mut().write_all(&[head.as_bytes(), &body].concat())?;
        stream.get_mut().flush()?;
    }
}
