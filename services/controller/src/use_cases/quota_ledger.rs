//! Usage of the quotas of clients during one transaction.

use std::collections::HashMap;

use penstock_control::quota::{ClientQuota, ClientUsage, QuotaExcess};

use super::submit::Submission;
use crate::repository::writer::TxContext;
use crate::repository::{DatabaseError, requests};

/// Usage of the clients that were asked about, with what was admitted.
#[derive(Debug, Default)]
pub(super) struct QuotaLedger {
    usages: HashMap<String, ClientUsage>,
}

impl QuotaLedger {
    /// Counts a submission, or returns the limit of its client that it would exceed.
    pub(super) async fn admit(
        &mut self,
        cx: &mut TxContext,
        one: &Submission,
    ) -> Result<Option<QuotaExcess>, DatabaseError> {
        let Some(quota) = quota_of(cx, &one.client) else { return Ok(None) };
        let usage = match self.usages.get(&one.client) {
            Some(usage) => *usage,
            None => requests::usage(cx, &one.client).await?,
        };
        let usage = ClientUsage {
            requests: usage.requests + 1,
            bytes: usage.bytes.saturating_add(one.expected_bytes()),
        };
        let excess = quota.excess(usage);
        if excess.is_none() {
            self.usages.insert(one.client.clone(), usage);
        }
        Ok(excess)
    }
}

/// Returns the limit that a client would exceed with more `bytes` in a request that it has.
pub(super) async fn excess_with(
    cx: &mut TxContext,
    client: &str,
    bytes: u64,
) -> Result<Option<QuotaExcess>, DatabaseError> {
    let Some(quota) = quota_of(cx, client) else { return Ok(None) };
    let mut usage = requests::usage(cx, client).await?;
    usage.bytes = usage.bytes.saturating_add(bytes);
    Ok(quota.excess(usage))
}

fn quota_of(cx: &TxContext, client: &str) -> Option<ClientQuota> {
    ClientQuota::find(&cx.settings.config.quotas, client).cloned()
}
