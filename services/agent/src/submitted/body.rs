//! Body of a request to copy, and its meaning: [`TransferBody`] becomes a [`CopyPlan`] once.

use std::fmt;
use std::num::{NonZeroU16, NonZeroU64};

use penstock_control::orders::{Overwrite, Verify};
use penstock_http::tokens::check_token;
use penstock_identity::Fingerprint;
use penstock_mover::{
    STREAMS_MAX, TransferDirection, TransportChoice, TuningMode, default_streams, key_hasher,
};
use penstock_protocol::control::Settings;
use penstock_protocol::digest::Algorithm;
use penstock_protocol::open::{Existing, Mark, Options, PacketLabel, Protection, Pull, Push};
use penstock_protocol::wire::Bytes;
use penstock_scitags::Scitag;
use penstock_units::Dscp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SubmitError;
use crate::config::MOVER_PORT;

/// Longest idempotency key.
const KEY_BYTES_MAX: usize = 256;

/// Longest path or URL.
const LOCATION_BYTES_MAX: usize = 4096;

/// Block size: bytes that a stream finishes before it moves to another path.
const BLOCK_BYTES: u32 = 4 << 20;

/// Scheme of the address of another agent.
const SCHEME: &str = "penstock://";

/// A copy to submit to an agent. One of `source` and `destination` at least is a path of this agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = TransferSubmission)]
#[serde(deny_unknown_fields)]
pub struct TransferBody {
    /// Path as the agent's exports name it (`/data/run7`), or `penstock://HOST[:PORT]/PATH` of another agent.
    #[schema(min_length = 1, max_length = 4096)]
    pub source: String,
    /// Likewise. An existing directory, or a path that ends in `/`, takes the source under its name; else it is the new
    /// name of a single file.
    #[schema(min_length = 1, max_length = 4096)]
    pub destination: String,
    /// Set to copy a directory with everything below it; it arrives under its name.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recursive: bool,
    /// Idempotency key of the client: submissions of the same body with the same key are one transfer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub key: Option<String>,
    /// Credentials for the other agent; only with a `penstock://` address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteCredentials>,
    /// Treatment of existing files: changed (files that differ in size or time are replaced) or never (they fail).
    #[serde(default)]
    #[schema(schema_with = overwrite_schema)]
    pub overwrite: Overwrite,
    /// Verification: transfer (bytes in transit, digest of each file) or readback (also what the device returns).
    #[serde(default)]
    #[schema(schema_with = verify_schema)]
    pub verify: Verify,
    /// Set to encrypt the data in transit. True unless given; false for a copy within this agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypt: Option<bool>,
    /// Transport of the data streams: tcp, rdma (the copy fails where RDMA is not possible) or auto (RDMA where both ends can,
    /// else TCP). RDMA needs `encrypt` false. tcp unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = transport_schema)]
    pub transport: Option<TransportChoice>,
    /// DSCP of the data streams' packets, in both directions: a name such as le or af31, or 0 to 63. Both agents must allow
    /// it. That of each agent's operator unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, pattern = "^(default|le|ef|va|cs[0-7]|af[1-4][1-3]|[0-9]|[1-5][0-9]|6[0-3])$")]
    pub dscp: Option<Dscp>,
    /// Digest of each file; crc32c unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = checksum_schema)]
    pub checksum: Option<String>,
    /// Limit on the rate in bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>, minimum = 1)]
    pub rate_bps: Option<NonZeroU64>,
    /// Number of data streams; where the agent sends it tunes them unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 256)]
    pub streams: Option<NonZeroU16>,
    /// Use of the tuner where the agent sends, at most that of the agent's operator: auto, history (begin with the streams of
    /// earlier transfers and keep them), observe (list what it would change) or off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = tune_schema)]
    pub tune: Option<TuningMode>,
    /// 16-bit scitag of the packets: owner and activity as one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 65, maximum = 65_535)]
    pub scitag: Option<u16>,
}

/// Schema of a text with these values, the first of which is the default.
fn text_schema(values: &[&str], description: &str) -> utoipa::openapi::schema::Object {
    utoipa::openapi::schema::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .enum_values(Some(values.iter().copied()))
        .default(values.first().map(|value| (*value).into()))
        .description(Some(description))
        .build()
}

fn overwrite_schema() -> utoipa::openapi::schema::Object {
    text_schema(
        &["changed", "never"],
        "Treatment of existing files: changed (files that differ in size or time are replaced) or never (they fail)",
    )
}

fn verify_schema() -> utoipa::openapi::schema::Object {
    text_schema(
        &["transfer", "readback"],
        "Verification: transfer (bytes in transit, digest of each file) or readback (also what the device returns)",
    )
}

fn tune_schema() -> utoipa::openapi::schema::Object {
    text_schema(
        &TuningMode::ALL.map(TuningMode::name),
        "Use of the tuner where the agent sends, at most that of the agent's operator: auto, history (begin with the streams \
         of earlier transfers and keep them), observe (list what it would change) or off",
    )
}

fn transport_schema() -> utoipa::openapi::schema::Object {
    text_schema(
        &TransportChoice::ALL.map(TransportChoice::name),
        "Transport of the data streams: tcp, rdma (the copy fails where RDMA is not possible) or auto (RDMA where both ends can, \
         else TCP). RDMA needs `encrypt` false",
    )
}

fn checksum_schema() -> utoipa::openapi::schema::Object {
    text_schema(&["crc32c", "none", "adler32", "blake3", "sha256", "md5"], "Digest of each file")
}

/// Credentials for the other agent of a copy, as `penstock login` takes them.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteCredentials {
    /// Token of the other agent. The agent keeps it until the transfer has ended, and shows it to no client.
    #[schema(format = Password, min_length = 16)]
    pub token: String,
    /// Fingerprint of the other agent's certificate, `SHA256:` and 64 hexadecimal digits.
    #[schema(pattern = "^SHA256:[0-9A-Fa-f]{64}$")]
    pub fingerprint: String,
}

impl fmt::Debug for RemoteCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteCredentials")
            .field("fingerprint", &self.fingerprint)
            .finish_non_exhaustive()
    }
}

/// The other end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CopyPeer {
    /// This agent: both paths are its own.
    Own,
    /// Another agent.
    Other { host: String, port: u16, token: String, fingerprint: Fingerprint },
}

/// A copy that the agent can carry out.
#[derive(Debug, Clone)]
pub(super) struct CopyPlan {
    pub(super) peer: CopyPeer,
    pub(super) direction: TransferDirection,
    /// Path at this agent that is listed.
    pub(super) path: String,
    pub(super) pull: Pull,
    pub(super) push: Push,
    /// Reason to keep the streams of `push`; none to tune them where this agent sends.
    pub(super) keep_streams: Option<&'static str>,
    /// Most that the tuner may do.
    pub(super) tune: TuningMode,
    pub(super) transport: TransportChoice,
    pub(super) dscp: Option<Dscp>,
}

/// A source or destination.
#[derive(Debug, PartialEq, Eq)]
enum CopyLocation<'a> {
    Here(&'a str),
    Agent { host: &'a str, port: u16, path: &'a str },
}

impl<'a> CopyLocation<'a> {
    fn parse(pointer: &'static str, text: &'a str) -> Result<Self, SubmitError> {
        let wrong = |why: &str| {
            SubmitError::field(
                pointer,
                format!(
                    "{why}: write a path of an export like /data/run7, or penstock://HOST:PORT/PATH"
                ),
            )
        };
        if text.len() > LOCATION_BYTES_MAX || text.contains('\0') {
            return Err(wrong(&format!(
                "it is longer than {LOCATION_BYTES_MAX} bytes, or has a NUL byte"
            )));
        }
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return match text.starts_with('/') {
                true => Ok(Self::Here(text)),
                false => Err(wrong(&format!("'{}' is no path", text.escape_debug()))),
            };
        };
        let slash = rest.find('/').unwrap_or(rest.len());
        let (authority, path) = rest.split_at(slash);
        if authority.contains('@') {
            return Err(wrong("an agent knows its clients by tokens, not by names of users"));
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
        let port = port.map_or(Some(MOVER_PORT), |port| port.parse().ok().filter(|port| *port > 0));
        let port = port.ok_or_else(|| wrong("its port is none"))?;
        Ok(Self::Agent { host, port, path: if path.is_empty() { "/" } else { path } })
    }

    const fn path(&self) -> &'a str {
        match self {
            Self::Here(path) | Self::Agent { path, .. } => path,
        }
    }
}

impl TransferBody {
    /// Checks the body and returns its meaning. `allows_cleartext` is set where the operator allows RDMA for copies with
    /// encryption in some networks.
    ///
    /// # Errors
    /// The first field with a fault.
    pub(super) fn plan(&self, allows_cleartext: bool) -> Result<CopyPlan, SubmitError> {
        if let Some(key) = &self.key
            && (key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0'))
        {
            let text = format!("a key has 1 to {KEY_BYTES_MAX} bytes, none of them zero");
            return Err(SubmitError::field("/key", text));
        }
        let source = CopyLocation::parse("/source", &self.source)?;
        let destination = CopyLocation::parse("/destination", &self.destination)?;
        let (direction, peer) = match (&source, &destination) {
            (CopyLocation::Here(from), CopyLocation::Here(to)) => {
                if is_inside(to, from) {
                    let text = "it lies inside the source: a copy of a directory into itself would not end";
                    return Err(SubmitError::field("/destination", text));
                }
                (TransferDirection::Send, self.own()?)
            }
            (CopyLocation::Here(_), CopyLocation::Agent { host, port, .. }) => {
                (TransferDirection::Send, self.other(host, *port)?)
            }
            (CopyLocation::Agent { host, port, .. }, CopyLocation::Here(_)) => {
                (TransferDirection::Receive, self.other(host, *port)?)
            }
            (CopyLocation::Agent { .. }, CopyLocation::Agent { .. }) => {
                let text =
                    "neither end is of this agent: submit the copy to the agent of one of them";
                return Err(SubmitError::field("/source", text));
            }
        };
        let options = self.options(peer == CopyPeer::Own)?;
        let transport = self.transport.unwrap_or_default();
        let is_impossible = transport == TransportChoice::Rdma && !allows_cleartext;
        if is_impossible && options.protection == Protection::Full {
            let text = "RDMA does not encrypt: set encrypt to false, with which blocks keep checksum and authentication, or use tcp";
            return Err(SubmitError::field("/transport", text));
        }
        let own = match direction {
            TransferDirection::Send => source.path(),
            TransferDirection::Receive => destination.path(),
        };
        let (path, bytes) = (own.to_owned(), |path: &str| Bytes(path.as_bytes().to_vec()));
        let pull = Pull {
            sources: vec![bytes(source.path())],
            recursive: self.recursive,
            listed: false,
            options: options.clone(),
        };
        let push = Push {
            target: bytes(destination.path()),
            into_directory: self.recursive || self.destination.ends_with('/'),
            transfer_key: self.transfer_key(),
            options,
        };
        let tune = self.tune.unwrap_or_default();
        let keep_streams = match () {
            () if peer == CopyPeer::Own => Some("both ends are at this agent"),
            () if tune == TuningMode::Off => Some("the submission switches the tuner off"),
            () if self.streams.is_some() && tune != TuningMode::Observe => {
                Some("the submission names a number of streams")
            }
            () => None,
        };
        let dscp = self.dscp;
        Ok(CopyPlan { peer, direction, path, pull, push, keep_streams, tune, transport, dscp })
    }

    fn own(&self) -> Result<CopyPeer, SubmitError> {
        match self.remote {
            None => Ok(CopyPeer::Own),
            Some(_) => {
                Err(SubmitError::field("/remote", "both ends are of this agent: leave it out"))
            }
        }
    }

    fn other(&self, host: &str, port: u16) -> Result<CopyPeer, SubmitError> {
        let Some(RemoteCredentials { token, fingerprint }) = &self.remote else {
            let text = "give token and fingerprint of the other agent, as its operator's login line has them";
            return Err(SubmitError::field("/remote", text));
        };
        check_token(token)
            .map_err(|error| SubmitError::field("/remote/token", format!("the token {error}")))?;
        let fingerprint = fingerprint.parse().map_err(|_| {
            SubmitError::field("/remote/fingerprint", "write SHA256: and 64 hexadecimal digits")
        })?;
        Ok(CopyPeer::Other { host: host.to_owned(), port, token: token.clone(), fingerprint })
    }

    fn options(&self, is_own: bool) -> Result<Options, SubmitError> {
        let algorithm = match &self.checksum {
            None => Algorithm::Crc32c,
            Some(name) => {
                name.parse().map_err(|error| SubmitError::field("/checksum", format!("{error}")))?
            }
        };
        if let Some(streams) = self.streams.filter(|streams| streams.get() > STREAMS_MAX) {
            let text = format!("{streams}: use a number from 1 to {STREAMS_MAX}");
            return Err(SubmitError::field("/streams", text));
        }
        if let Some(scitag) = self.scitag {
            Scitag::from_number(scitag.into())
                .map_err(|error| SubmitError::field("/scitag", error.to_string()))?;
        }
        let encrypts = self.encrypt.unwrap_or(!is_own);
        Ok(Options {
            block_bytes: BLOCK_BYTES,
            algorithm,
            protection: if encrypts { Protection::Full } else { Protection::Integrity },
            inplace: false,
            xattrs: false,
            compare_digest: false,
            readback: self.verify == Verify::Readback,
            existing: match self.overwrite {
                Overwrite::Changed => Existing::Replace,
                Overwrite::Never => Existing::Keep,
            },
            mark: self.scitag.map(|scitag| Mark { scitag, label: PacketLabel::Flow }),
            settings: Settings {
                rate_bps: self.rate_bps.map(NonZeroU64::get),
                streams: Some(self.streams.map_or_else(|| default_streams(algorithm), u16::from)),
                ..Settings::default()
            },
        })
    }

    /// Key of the resume state: the same copy continues what another attempt left.
    fn transfer_key(&self) -> [u8; 16] {
        let mut hasher = key_hasher();
        for part in [self.source.as_bytes(), self.destination.as_bytes()] {
            hasher.update(&(part.len() as u64).to_be_bytes()).update(part);
        }
        hasher.update(&[u8::from(self.recursive)]);
        hasher.finalize().as_bytes()[..16].try_into().expect("a hash has 32 bytes")
    }
}

/// Returns true if `path` equals `above` or lies below it.
fn is_inside(path: &str, above: &str) -> bool {
    let names = |path: &'_ str| -> Vec<String> {
        path.split('/').filter(|name| !["", "."].contains(name)).map(str::to_owned).collect()
    };
    names(path).starts_with(&names(above))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FINGERPRINT: &str =
        "SHA256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

    fn body(source: &str, destination: &str) -> TransferBody {
        let has_remote = [source, destination].iter().any(|text| text.starts_with(SCHEME));
        let text = serde_json::json!({"source": source, "destination": destination});
        let mut body: TransferBody = serde_json::from_value(text).unwrap();
        body.remote = has_remote.then(|| RemoteCredentials {
            token: "a-token-of-the-other-agent".into(),
            fingerprint: FINGERPRINT.into(),
        });
        body
    }

    #[test]
    fn locations_give_direction_and_peer() {
        for (source, destination, direction, peer) in [
            ("/a", "penstock://dtn2/b", TransferDirection::Send, Some(("dtn2", 8620))),
            ("penstock://[::1]:9/b", "/a/", TransferDirection::Receive, Some(("::1", 9))),
            ("/a", "/b", TransferDirection::Send, None),
        ] {
            let plan = body(source, destination).plan(false).unwrap();
            let found = match &plan.peer {
                CopyPeer::Own => None,
                CopyPeer::Other { host, port, .. } => Some((host.as_str(), *port)),
            };
            assert_eq!((plan.direction, found), (direction, peer), "{source} {destination}");
            assert_eq!(plan.push.into_directory, destination.ends_with('/'));
            assert!(plan.path.starts_with("/a"), "{}", plan.path);
        }
    }

    #[test]
    fn faulty_fields_are_named() {
        let check = |body: &TransferBody, pointer: &str| {
            let error = body.plan(false).unwrap_err();
            assert!(error.to_string().starts_with(&format!("{pointer}: ")), "{body:?}: {error}");
        };
        check(&body("data", "/b"), "/source");
        check(&body("penstock:///b", "/b"), "/source");
        check(&body("penstock://a:0/b", "/b"), "/source");
        check(&body("penstock://u@a/b", "/b"), "/source");
        check(&body("penstock://::1/b", "/b"), "/source");
        check(&body("penstock://a/b", "penstock://c/d"), "/source");
        check(&body("/a", "/a/b"), "/destination");
        check(&body("/a", "http://b/c"), "/destination");
        let one = body("/a", "/b");
        check(&TransferBody { key: Some(String::new()), ..one.clone() }, "/key");
        check(&TransferBody { streams: NonZeroU16::new(257), ..one.clone() }, "/streams");
        check(&TransferBody { scitag: Some(1), ..one.clone() }, "/scitag");
        check(&TransferBody { checksum: Some("crc".into()), ..one.clone() }, "/checksum");
        let far = body("/a", "penstock://b/c");
        check(&TransferBody { remote: far.remote.clone(), ..one }, "/remote");
        check(&TransferBody { remote: None, ..far.clone() }, "/remote");
        let rdma = TransferBody { transport: Some(TransportChoice::Rdma), ..far.clone() };
        check(&rdma, "/transport");
        let open = TransferBody { encrypt: Some(false), ..rdma };
        assert_eq!(open.plan(false).unwrap().transport, TransportChoice::Rdma);
        let marked = TransferBody { dscp: Some(Dscp::LOWER_EFFORT), ..open };
        assert_eq!(marked.plan(false).unwrap().dscp, Some(Dscp::LOWER_EFFORT));
        let mut short = far.clone();
        short.remote.as_mut().unwrap().token = "short".into();
        check(&short, "/remote/token");
        let mut other = far;
        other.remote.as_mut().unwrap().fingerprint = "SHA256:12".into();
        check(&other, "/remote/fingerprint");
        assert!(!format!("{short:?}").contains("short"), "a log may show a token");
    }
}
