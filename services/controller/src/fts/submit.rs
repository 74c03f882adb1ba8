//! Submission of FTS3 jobs: checks of URLs, ids, rows to store.

use aws_lc_rs::digest;
use penstock_control::fts::checksum::FtsChecksum;
use penstock_control::fts::state::FtsJobState;
use penstock_control::fts::submission::{FtsSubmission, FtsTransfer};
use penstock_http::storage_client::{AdmissionError, StorageAdmission};

use super::policy::FtsPolicy;
use super::route::{AgentRoute, RouteError};
use super::same_file::FileName;
use super::storage::{FtsCopyError, parse_url};
use super::token_key::{TokenEnd, TokenKey};
use crate::config::Config;
use crate::repository::fts::{FtsJobRow, NewFtsFile};
use crate::repository::rows::JsonColumn;

/// Namespace of the deterministic ids of FTS3.
const FTS_NAMESPACE: u128 = 0x0187_4efb_4735_4595_bc9c_591a_ef82_40c9;

/// Returns a random UUID (version 4).
fn random_uuid() -> u128 {
    let mut bytes = [0_u8; 16];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers are there");
    with_version(bytes, 4)
}

/// Returns the UUID of a name in a namespace (RFC 9562, version 5).
fn named_uuid(namespace: u128, name: &str) -> u128 {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(&namespace.to_be_bytes());
    context.update(name.as_bytes());
    let hash = context.finish();
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    with_version(bytes, 5)
}

fn with_version(mut bytes: [u8; 16], version: u8) -> u128 {
    bytes[6] = bytes[6] & 0x0f | version << 4;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    u128::from_be_bytes(bytes)
}

fn uuid_text(uuid: u128) -> String {
    let hex = format!("{uuid:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Returns the id of a client, as FTS3 derives ids from names.
pub(super) fn client_id(name: &str) -> String {
    uuid_text(named_uuid(FTS_NAMESPACE, name))
}

/// Returns the namespace of deterministic ids.
pub(super) fn base_id() -> String {
    uuid_text(FTS_NAMESPACE)
}

/// Returns scheme and server of a URL, with its port if it names one.
fn server_of(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let server = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{}", server.to_ascii_lowercase())
}

/// Returns a server without its port.
fn without_port(server: &str) -> &str {
    match server.rfind(':') {
        // The last colon of an address in brackets, and that of the scheme, begin no port.
        Some(at) if !server[at..].contains([']', '/']) => &server[..at],
        _ => server,
    }
}

/// Returns the server of a URL with a scheme of HTTP, of which `davs` and `dav` are other names.
fn http_server_of(url: &str) -> String {
    let server = server_of(url);
    let (scheme, host) = server.split_once("://").unwrap_or_default();
    let scheme = match scheme.to_ascii_lowercase().as_str() {
        "davs" => "https".to_owned(),
        "dav" => "http".to_owned(),
        other => other.to_owned(),
    };
    format!("{scheme}://{}", host.trim_end_matches(':'))
}

/// Returns the server of a URL with its port, also where that is the default of the scheme.
fn port_server_of(url: &str) -> String {
    let server = http_server_of(url);
    let port = match server.split_once("://") {
        Some(("https", _)) => 443,
        Some(("http", _)) => 80,
        _ => return server,
    };
    match without_port(&server) == server {
        true => format!("{server}:{port}"),
        false => server,
    }
}

/// Name of a storage without its port, as FTS3 shows storages.
pub(crate) fn storage_of(url: &str) -> String {
    without_port(&server_of(url)).to_owned()
}

/// Normalizes a storage `SCHEME://HOST[:PORT]` of a ban.
pub(super) fn banned_storage(storage: &str) -> String {
    http_server_of(storage)
}

/// Returns true if a URL is of a storage, which has the port of the URL, or none and means all ports.
pub(crate) fn is_of_storage(url: &str, storage: &str) -> bool {
    let server = port_server_of(url);
    server == storage || without_port(&server) == storage
}

/// Servers of both ends of a transfer.
pub(super) fn pair_of(source: &str, destination: &str) -> String {
    format!("{} {}", port_server_of(source), port_server_of(destination))
}

/// Returns true if a storage is one end of a pair of servers.
pub(super) fn is_in_pair(pair: &str, storage: &str) -> bool {
    pair.split(' ').any(|server| is_of_storage(server, storage))
}

/// A client with the classes of work that it may submit to, at least one.
#[derive(Debug, Clone)]
pub(super) struct FtsSubmitter {
    pub(super) name: String,
    pub(super) classes: Vec<String>,
}

/// Fault of a submission whose JSON is sound.
#[derive(Debug, thiserror::Error)]
pub(super) enum SubmissionError {
    #[error(transparent)]
    Url(#[from] FtsCopyError),
    #[error(transparent)]
    Storage(#[from] AdmissionError),
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The parser would cut it.
    #[error("{0} has a '#': write it as %23")]
    Fragment(String),
    /// A copy onto itself destroys a file where the storage opens the destination first.
    #[error("{0} and {1} are the same file")]
    SameFile(String, String),
}

fn file(
    transfer: FtsTransfer,
    policy: &FtsPolicy,
    config: &Config,
    class: String,
) -> Result<NewFtsFile, SubmissionError> {
    let urls = [&transfer.source, &transfer.destination];
    if let Some(url) = urls.into_iter().find(|url| url.contains('#')) {
        return Err(SubmissionError::Fragment(url.clone()));
    }
    let route = AgentRoute::find(policy, config, &transfer.source, &transfer.destination)?;
    // Agents compute few kinds of digests; storages may know others.
    let is_computed = |sum: &FtsChecksum| sum.value.is_none() || sum.digest().is_some();
    let by_request = route.is_some() && transfer.checksum.as_ref().is_none_or(is_computed);
    if !by_request {
        let (source, destination) = (parse_url(urls[0])?, parse_url(urls[1])?);
        policy.check_url(&source)?;
        policy.check_url(&destination)?;
        if FileName::of(&source) == FileName::of(&destination) {
            return Err(SubmissionError::SameFile(source.to_string(), destination.to_string()));
        }
    }
    let checksum = transfer.checksum.map(|sum| match sum.value {
        Some(value) => format!("{}:{value}", sum.algorithm),
        None => sum.algorithm,
    });
    Ok(NewFtsFile {
        id: 0,
        job: 0,
        priority: 0,
        not_before: 0,
        attempt: 0,
        moved: 0,
        state: penstock_control::fts::state::FtsFileState::Submitted,
        pair: pair_of(&transfer.source, &transfer.destination),
        source: transfer.source,
        destination: transfer.destination,
        source_token: transfer.source_token,
        destination_token: transfer.destination_token,
        checksum,
        size: transfer.filesize,
        activity: transfer.activity,
        class,
        by_request,
        metadata: transfer.metadata.to_string(),
        scitag: transfer.scitag,
    })
}

/// Lowers a submission of a client into rows.
///
/// # Errors
/// With the first URL that the configuration does not admit.
pub(super) fn rows(
    job: FtsSubmission,
    client: &FtsSubmitter,
    policy: &FtsPolicy,
    config: &Config,
    key: &TokenKey,
    now: i64,
) -> Result<(FtsJobRow, Vec<NewFtsFile>), SubmissionError> {
    let FtsSubmission { kind, params, transfers } = job;
    let class_of =
        |activity: Option<&str>| policy.class_of(activity, &client.classes).unwrap_or_default();
    let class = class_of(transfers.iter().find_map(|file| file.activity.as_deref()));
    let uuid = match &params.sid {
        Some(sid) => named_uuid(named_uuid(FTS_NAMESPACE, &class), sid),
        None => random_uuid(),
    };
    let lower = |transfer: FtsTransfer| {
        let class = class_of(transfer.activity.as_deref());
        file(transfer, policy, config, class)
    };
    let files: Result<Vec<NewFtsFile>, SubmissionError> =
        transfers.into_iter().map(lower).collect();
    let mut files = files?;
    let uuid = uuid_text(uuid);
    for (index, file) in files.iter_mut().enumerate() {
        file.state = kind.first_state(index);
        file.priority = params.priority;
        for (end, token) in [
            (TokenEnd::Source, &mut file.source_token),
            (TokenEnd::Destination, &mut file.destination_token),
        ] {
            *token = token.as_deref().map(|token| key.encrypt(&uuid, end, token));
        }
    }
    let row = FtsJobRow {
        id: 0,
        uuid,
        client: client.name.clone(),
        class,
        kind,
        state: FtsJobState::Submitted,
        priority: params.priority,
        verify: params.verify.as_str().to_owned(),
        overwrite: params.overwrite,
        retry: params.retry,
        retry_delay_s: params.retry_delay_s,
        timeout_s: params.timeout_s,
        metadata: JsonColumn(params.metadata),
        reason: None,
        submitted: now,
        expires: (params.queue_s > 0).then(|| now + params.queue_s * 1000),
        ended: None,
    };
    Ok((row, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deterministic_ids_equal_those_of_fts() {
        // python3: uuid.uuid5(uuid.NAMESPACE_DNS, "python.org")
        let dns = 0x6ba7_b810_9dad_11d1_80b4_00c0_4fd4_30c8;
        let uuid = uuid_text(named_uuid(dns, "python.org"));
        assert_eq!(uuid, "886313e1-3b8a-5372-9b90-0c9aee199e5d");
        assert_eq!(base_id(), "01874efb-4735-4595-bc9c-591aef8240c9");
        assert_ne!(random_uuid(), random_uuid());
    }

    #[test]
    fn storages_leave_out_ports() {
        for (url, storage) in [
            ("https://A.org:8443/x:y", "https://a.org"),
            ("davs://[::1]:9/f", "davs://[::1]"),
            ("http://[::1]/f", "http://[::1]"),
        ] {
            assert_eq!(storage_of(url), storage);
        }
    }

    #[test]
    fn bans_mean_port_or_all() {
        let ban = banned_storage("DAVS://A.org:8443/");
        assert!(is_of_storage("https://a.org:8443/f", &ban));
        assert!(is_of_storage("davs://A.org:8443/f", &ban));
        assert!(!is_of_storage("https://a.org:8444/f", &ban));
        let all = banned_storage("https://[::1]");
        let pair = pair_of("https://[::1]:9/f", "https://b.org/g");
        assert!(is_in_pair(&pair, &all) && !is_in_pair(&pair, "https://[::1]:8"));
        assert!(is_in_pair(&pair, &banned_storage("davs://B.org:443")));
        // As an older version stored it.
        assert!(is_in_pair("davs://[::1] davs://b.org", &banned_storage("https://b.org:443")));
        assert!(!is_of_storage("http://b.org/f", "https://b.org"));
    }
}
