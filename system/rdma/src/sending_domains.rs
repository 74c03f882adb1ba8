//! Protection domains of the devices from which a session sends.
//!
//! Blocks of a session are sent on any of its streams. With one domain for each device they are registered once, not
//! once for each stream. No peer has access to memory of these domains.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use penstock_sys::machine::{is_above_locked_memory_limit, raise_locked_memory};
use penstock_sys::verbs::ProtectionDomain;

use crate::adapter::RdmaAdapter;
use crate::connection::{ConnectionSettings, PreparedConnection, RdmaFailure};

/// Domains by the name of their device. They are freed after the buffers that are registered in them.
#[derive(Debug, Default)]
pub struct SendingDomains(Mutex<BTreeMap<String, ProtectionDomain>>);

impl SendingDomains {
    /// Prepares a connection of an initiator that sends from buffers of `memory_bytes` in all.
    ///
    /// # Errors
    /// As [`PreparedConnection::new`], and [`RdmaFailure::LockedMemory`] where the buffers exceed the limit.
    pub fn prepare(
        &self,
        adapter: &RdmaAdapter,
        settings: &ConnectionSettings,
        memory_bytes: u64,
    ) -> Result<PreparedConnection, RdmaFailure> {
        if let Some(limit) = raise_locked_memory().ok().flatten()
            && limit < memory_bytes
            && !is_above_locked_memory_limit()
        {
            return Err(RdmaFailure::LockedMemory { bytes: memory_bytes, limit });
        }
        let prepared = self
            .domain(adapter)
            .and_then(|domain| PreparedConnection::in_domain(adapter, domain, settings));
        if prepared.is_err() {
            // A device that was removed and added again has the same name; its former domains are of no use.
            self.lock().remove(adapter.context().name());
        }
        prepared
    }

    fn domain(&self, adapter: &RdmaAdapter) -> Result<ProtectionDomain, RdmaFailure> {
        let device = adapter.context().name();
        let mut domains = self.lock();
        if let Some(known) = domains.get(device) {
            return Ok(known.clone());
        }
        let domain = adapter.domain()?;
        domains.insert(device.to_owned(), domain.clone());
        Ok(domain)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, ProtectionDomain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
