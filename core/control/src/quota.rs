//! Quotas: what a client may have in requests of a controller, or in transfers of an agent, that have not ended.
//!
//! A submission beyond the quota of its client is refused. A directory counts with the estimate of its client where there is
//! one, and with its files once they are known.

use penstock_units::ByteCount;

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
pub struct ClientUsage {
    /// Requests that have not ended.
    pub requests: u64,
    /// Bytes that have not arrived.
    pub bytes: u64,
}

/// Limit that a submission would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaExcess {
    /// More requests than this quota.
    #[error(
        "{0} requests of this client have not ended, as many as its quota allows: wait for one to end, or cancel one"
    )]
    Requests(u64),
    /// More bytes than the quota, with those of the submission.
    #[error(
        "{} that this client submitted would not have arrived, and its quota is {}: wait until some have, or submit less",
        ByteCount(*wanted),
        ByteCount(*limit)
    )]
    Bytes {
        /// Bytes with those of the submission.
        wanted: u64,
        /// Most bytes by the quota.
        limit: u64,
    },
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

    /// Checks the quota, which comes after the `earlier` ones.
    ///
    /// # Errors
    /// When its client is no name, it limits nothing, or an earlier one counts for all of its clients.
    pub fn checked(self, earlier: &[Self]) -> Result<Self, QuotaTableError> {
        let beginning = self.client.strip_suffix('*').unwrap_or(&self.client);
        if self.client.is_empty() || beginning.contains('*') {
            return Err(QuotaTableError::Client);
        }
        if self.requests.is_none() && self.bytes.is_none() {
            return Err(QuotaTableError::Unlimited(self.client));
        }
        let hides = |quota: &Self| {
            quota.client == self.client
                || quota.client.ends_with('*') && quota.applies_to(beginning)
        };
        if earlier.iter().any(hides) {
            return Err(QuotaTableError::Hidden(self.client));
        }
        Ok(self)
    }

    /// Returns the first of the quotas that applies to this client.
    #[must_use]
    pub fn find<'a>(quotas: &'a [Self], client: &str) -> Option<&'a Self> {
        quotas.iter().find(|quota| quota.applies_to(client))
    }

    /// Returns the limit that a client with this usage exceeds.
    #[must_use]
    pub fn excess(&self, usage: ClientUsage) -> Option<QuotaExcess> {
        if let Some(limit) = self.requests.filter(|limit| usage.requests > *limit) {
            return Some(QuotaExcess::Requests(limit));
        }
        let limit = self.bytes.filter(|limit| usage.bytes > *limit)?;
        Some(QuotaExcess::Bytes { wanted: usage.bytes, limit })
    }
}

/// A quota that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuotaTableError {
    /// Something else than a name, or a `*` before its end.
    #[error(
        "quota: client is the name of a token or issuer:NAME:SUBJECT; a * may stand at the end alone"
    )]
    Client,
    /// A quota without a limit of requests or bytes.
    #[error("quota of {0}: give requests or bytes")]
    Unlimited(String),
    /// A quota whose clients all have an earlier one.
    #[error("quota of {0}: an earlier one applies to the same clients")]
    Hidden(String),
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
        let checked = |client: &str, requests| quota(client, requests, None).checked(&earlier);
        for (client, requests) in [
            ("", Some(1)),
            ("a*b", Some(1)),
            ("**", Some(1)),
            ("bob", None),
            ("ann", Some(2)),
            ("notebook-7", Some(2)),
            ("notebook-7*", Some(2)),
        ] {
            assert!(checked(client, requests).is_err(), "{client}");
        }
        assert_eq!(checked("notebook*", Some(3)).unwrap(), quota("notebook*", Some(3), None));
        assert_eq!(checked("*", Some(0)).unwrap(), quota("*", Some(0), None));
    }
}
