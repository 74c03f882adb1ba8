//! Files with several names: copies of a file onto itself.
//!
//! XRootD opens the destination of a copy before it reads the source, and so empties a file that is both.

use axum::http::HeaderValue;
use penstock_http::Url;
use percent_encoding::percent_decode_str;

use super::copy::{StorageFile, authorization, facts};
use super::storage::FtsStorages;

/// Server and decoded path of a file, without empty segments and the query.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileName {
    is_encrypted: bool,
    host: String,
    port: u16,
    path: Vec<Vec<u8>>,
}

impl FileName {
    pub(super) fn of(url: &Url) -> Self {
        let (host, port) = url.host_and_port();
        let path = url.path().split('?').next().unwrap_or_default();
        let mut names: Vec<Vec<u8>> = Vec::new();
        for name in path.split('/').map(|name| percent_decode_str(name).collect::<Vec<u8>>()) {
            match name.as_slice() {
                b"" | b"." => {}
                b".." => drop(names.pop()),
                _ => names.push(name),
            }
        }
        let (is_encrypted, host) = (url.is_encrypted(), host.to_ascii_lowercase());
        Self { is_encrypted, host, port, path: names }
    }
}

/// Returns true if the destination of a copy is its source under another name of the server: the same path, size and time
/// of the last change at an address and port of the source. Servers with several names for different trees differ in
/// the time.
pub(super) async fn is_source(
    client: &FtsStorages,
    [source, destination]: [(&Url, Option<&HeaderValue>); 2],
    at_source: &StorageFile,
) -> bool {
    if FileName::of(source.0).path != FileName::of(destination.0).path {
        return false;
    }
    let there = facts(client, destination.0, destination.1, None, "destination", None).await;
    let Ok(there) = there else { return false };
    let are_alike = there.size == at_source.size
        && (there.etag == at_source.etag || there.etag.is_none() || at_source.etag.is_none());
    if !are_alike || !share_address(client, &at_source.answered, &there.answered).await {
        return false;
    }
    let mut times = [at_source.modified.clone(), there.modified];
    for (time, (url, token)) in times.iter_mut().zip([source, destination]) {
        if time.is_none() {
            *time = client.last_modified(url, &authorization(token)).await;
        }
    }
    times[0] == times[1]
}

/// Returns true if both URLs may lead to one server.
async fn share_address(client: &FtsStorages, a: &Url, b: &Url) -> bool {
    let (a, b) = (client.addresses(a).await, client.addresses(b).await);
    a.iter().any(|address| b.contains(address))
}

/// Returns true if a copy that was compared had one file as both ends: it has changed its source, or their ETags agree.
pub(super) fn has_replaced_source(
    before: &StorageFile,
    source: &StorageFile,
    target: &StorageFile,
) -> bool {
    let has_changed_alike = source.size != before.size && source.size == target.size;
    has_changed_alike || source.etag.is_some() && source.etag == target.etag
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fts::storage::parse_url;

    #[test]
    fn names_of_one_file_agree() {
        let name = |text| FileName::of(&parse_url(text).unwrap());
        let one = name("https://a.org/d/f");
        for same in ["davs://A.org:443//d/%2e/f?x=y", "https://a.org/%64/x/../f/"] {
            assert_eq!(name(same), one, "{same}");
        }
        for other in ["http://a.org:443/d/f", "https://a.org:8443/d/f", "https://a.org/d/F"] {
            assert_ne!(name(other), one, "{other}");
        }
    }
}
