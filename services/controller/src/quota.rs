//! Quotas: what a client may have in requests that have not ended.
//!
//! A submission beyond the quota of its client is refused (429), files of FTS3 jobs wait. A directory counts with the estimate
//! of its client, and with its listed files once they are known.

use penstock_units::ByteCount;
use serde::Deserialize;

/// Quota of the clients whose name matches; of several the first one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientQuota {
    /// Name of a token, or the beginning of names before a `*`.
    pub client: String,
    /// Most requests; none for no limit.
    pub requests: Option<u64>,
    /// Most bytes of the requests that have not arrived; none for no limit.
    pub bytes: Option<u64>,
}

/// Number and bytes of the requests of a client that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClientUsage {
    pub(crate) requests: u64,
    /// Bytes that have not arrived.
    pub(crate) bytes: u64,
}

/// Limit that a submission would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuotaExcess {
    #[error(
        "{0} requests of this client have not ended, as many as its quota allows: wait for one to end, or cancel one"
    )]
    Requests(u64),
    #[error(
        "{} of this client's requests would not have arrived, and its quota is {}: wait until some have, or submit less",
        ByteCount(*wanted),
        ByteCount(*limit)
    )]
    Bytes { wanted: u64, limit: u64 },
}

impl ClientQuota {
    /// True if it is the quota of this client.
    #[must_use]
    pub fn applies_to(&self, client: &str) -> bool {
        match self.client.strip_suffix('*') {
            Some(beginning) => client.starts_with(beginning),
            None => client == self.client,
        }
    }

    /// Returns the limit that a client with this usage exceeds.
    pub(crate) fn excess(&self, usage: ClientUsage) -> Option<QuotaExcess> {
        if let Some(limit) = self.requests.filter(|limit| usage.requests > *limit) {
            return Some(QuotaExcess::Requests(limit));
        }
        let limit = self.bytes.filter(|limit| usage.bytes > *limit)?;
        Some(QuotaExcess::Bytes { wanted: usage.bytes, limit })
    }
}

/// An element of `[[controller.quota]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaTable {
    client: String,
    requests: Option<u64>,
    bytes: Option<ByteCount>,
}

/// An element of `[[controller.quota]]` that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuotaTableError {
    #[error(
        "quota: client is the name of a token or issuer:NAME:SUBJECT; a * may stand at the end alone"
    )]
    Client,
    #[error("quota of {0}: give requests or bytes")]
    Unlimited(String),
    #[error("quota of {0}: an earlier one applies to the same clients")]
    Hidden(String),
}

impl QuotaTable {
    /// Returns the quota, which comes after the `earlier` ones.
    pub(crate) fn lower(self, earlier: &[ClientQuota]) -> Result<ClientQuota, QuotaTableError> {
        let Self { client, requests, bytes } = self;
        let beginning = client.strip_suffix('*').unwrap_or(&client);
        if client.is_empty() || beginning.contains('*') {
            return Err(QuotaTableError::Client);
        }
        if requests.is_none() && bytes.is_none() {
            return Err(QuotaTableError::Unlimited(client));
        }
        let hides = |quota: &ClientQuota| {
            quota.client == client || { quota.client.ends_with('*') && quota.applies_to(beginning) }
        };
        if earlier.iter().any(hides) {
            return Err(QuotaTableError::Hidden(client));
        }
        Ok(ClientQuota { client, requests, bytes: bytes.map(|bytes| bytes.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(client: &str, requests: Option<u64>, bytes: Option<u64>) -> ClientQuota {
        ClientQuota { client: client.to_owned(), requests, bytes }
    }

    #[test]
    fn names_match_wholly_or_by_beginning() {
        let applies = |pattern, client| quota(pattern, None, None).applies_to(client);
        assert!(applies("ann", "ann") && !applies("ann", "anna") && !applies("ann", "an"));
        assert!(
            applies("issuer:cms:*", "issuer:cms:ann") && !applies("issuer:cms:*", "issuer:cms")
        );
        assert!(applies("*", "ann") && applies("*", ""));
    }

    #[test]
    fn usage_up_to_limit_is_allowed() {
        let both = quota("*", Some(2), Some(100));
        let excess = |requests, bytes| both.excess(ClientUsage { requests, bytes });
        assert_eq!(excess(2, 100), None);
        assert_eq!(excess(3, 0), Some(QuotaExcess::Requests(2)));
        assert_eq!(excess(1, 101), Some(QuotaExcess::Bytes { wanted: 101, limit: 100 }));
        let none = quota("*", Some(0), None);
        assert!(none.excess(ClientUsage { requests: 1, bytes: 0 }).is_some());
    }

    #[test]
    fn tables_without_effect_are_refused() {
        let earlier = [quota("notebook-*", Some(1), None), quota("ann", Some(1), None)];
        let lower = |client: &str, requests| {
            QuotaTable { client: client.to_owned(), requests, bytes: None }.lower(&earlier)
        };
        for (client, requests) in [
            ("", Some(1)),
            ("a*b", Some(1)),
            ("**", Some(1)),
            ("bob", None),
            ("ann", Some(2)),
            ("notebook-7", Some(2)),
            ("notebook-7*", Some(2)),
        ] {
            assert!(lower(client, requests).is_err(), "{client}");
        }
        assert_eq!(lower("notebook*", Some(3)).unwrap(), quota("notebook*", Some(3), None));
        assert_eq!(lower("*", Some(0)).unwrap(), quota("*", Some(0), None));
    }
}
