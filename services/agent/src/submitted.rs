//! Copies that clients submit to this agent over HTTP, without a controller.
//!
//! For: accepting them ([`SubmittedTransfers::submit`]), carrying them out with the mover, one attempt after the other
//! until the copy has ended ([`scheduler`]), and events of all transfers of the mover. The client may end meanwhile, and the agent restart: a
//! record in the state directory ([`record`]) lasts until the last of a thousand later ones has ended.
//!
//! The rights are those of the client that submitted, at its submission and at each attempt; a transfer whose token was
//! withdrawn ends. Addresses of other agents are checked by the rules of third-party copies (`third_party.to`).
//!
//! Not for: carrying out native transfers, whose client is connected (the mover), or orders of a controller
//! ([`crate::orders`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use penstock_control::quota::{ClientQuota, ClientUsage};
use penstock_daemon::state::{StateDir, StateError};
use penstock_http::tokens::hex;
use penstock_mover::{
    Agent, AgentLimits, Caller, Gatekeeper, ListedTransfer, TcpDial, TransferDirection,
};
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_scopes::PathAccess;
use tokio::sync::watch;

pub use body::{RemoteCredentials, TransferBody};
pub use error::SubmitError;
pub use events::SubmittedEvent;
pub use record::FailedFile;
pub use state::TransferStatus;

use attempt::CopyServices;
use body::{CopyPeer, CopyPlan};
use events::TransferEventLog;
use record::{RecordStore, TransferRecord};
use state::TransferEvent;
use table::{SubmittedTransfer, TransferTable};

use crate::authorizer::Authorizer;
use crate::http::api::{TransferFacts, unix_seconds};

mod attempt;
mod body;
mod error;
mod events;
mod record;
mod scheduler;
mod state;
mod table;

/// Transfers of one client that have not ended.
const ACTIVE_PER_CALLER_MAX: usize = 1000;

/// Transfers of all clients that have not ended.
const ACTIVE_MAX: usize = 10_000;

/// Transfers that clients submitted to this agent.
#[derive(Debug)]
pub struct SubmittedTransfers {
    services: CopyServices,
    limits: Arc<Mutex<AgentLimits>>,
    store: RecordStore,
    table: Mutex<TransferTable>,
    changed: Condvar,
    /// Number of the last event; closed at shutdown.
    followers: watch::Sender<u64>,
}

/// A submission with its result.
#[derive(Debug, Clone, PartialEq)]
pub enum SubmissionResult {
    /// A new transfer.
    New(Box<TransferFacts>),
    /// The transfer that the same body and key made before.
    Same(Box<TransferFacts>),
}

/// A submitted transfer that cannot be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CancelError {
    /// It has ended.
    #[error("transfer {0} has ended: {1}")]
    Ended(u64, TransferStatus),
    /// Not a submitted one.
    #[error("no transfer {0} was submitted here")]
    Unknown(u64),
}

impl SubmittedTransfers {
    /// Reads the records of earlier processes; their transfers go on once [`Self::run`] runs.
    ///
    /// # Errors
    /// When the state directory cannot be used.
    pub fn open(
        mover: Agent,
        authorizer: Arc<Authorizer>,
        state: &StateDir,
        limits: Arc<Mutex<AgentLimits>>,
    ) -> Result<Self, StateError> {
        let (store, records) = RecordStore::open(state)?;
        if let Some(last) = records.last() {
            mover.number_above(last.id);
        }
        let mut table = TransferTable {
            transfers: BTreeMap::new(),
            keys: HashMap::new(),
            events: TransferEventLog::new(),
            native: BTreeMap::new(),
            is_stopping: false,
            stopped: None,
        };
        for record in records {
            if let Some(key) = &record.body.key {
                table.keys.insert((record.caller.clone(), key.clone()), record.id);
            }
            let known = record.caller(&authorizer);
            let nobody =
                || Caller { name: record.caller.clone(), pass: None, token: None, grant: None };
            let caller = known.clone().unwrap_or_else(nobody);
            let plan = record.body.plan(true).ok();
            let mut one = SubmittedTransfer::new(record, caller, plan);
            if known.is_none() {
                one.withdrawn = Some(
                    "after a restart of the agent the token that submitted it is no longer valid, or was one with claims: submit it again under another key",
                );
            }
            table.transfers.insert(one.record.id, one);
        }
        let (followers, _) = watch::channel(table.events.last());
        Ok(Self {
            services: CopyServices { mover, authorizer },
            limits,
            store,
            table: Mutex::new(table),
            changed: Condvar::new(),
            followers,
        })
    }

    fn lock(&self) -> MutexGuard<'_, TransferTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a copy for `caller`. Blocks for name resolution and storage.
    ///
    /// # Errors
    /// When the body has a fault, the client may not do this, or has too many transfers.
    pub fn submit(
        &self,
        caller: Caller,
        body: TransferBody,
        from_here: bool,
    ) -> Result<SubmissionResult, SubmitError> {
        let allows_cleartext = !self.services.authorizer.cleartext_networks().is_empty();
        let plan = body.plan(allows_cleartext)?;
        let text = serde_json::to_vec(&body).expect("plain data");
        let body_sha256 = hex(digest(&SHA256, &text).as_ref());
        let key = body.key.clone().map(|key| (caller.name.clone(), key));
        if let Some(same) = self.same(key.as_ref(), &body_sha256)? {
            return Ok(same);
        }
        let size_bytes = self.check_rights(&caller, &plan, from_here)?;
        let mut table = self.lock();
        // Another request with the key may have come meanwhile.
        if let Some(same) = Self::find_same(&table, key.as_ref(), &body_sha256)? {
            return Ok(same);
        }
        if table.is_stopping {
            return Err(SubmitError::Stopping);
        }
        let active = table.active_of(&caller.name);
        let of_all = table.transfers.values().filter(|one| !one.record.state.is_ended()).count();
        if active >= ACTIVE_PER_CALLER_MAX || of_all >= ACTIVE_MAX {
            return Err(SubmitError::TooMany(active));
        }
        if let Some(quota) =
            ClientQuota::find(&self.services.authorizer.rules().quotas, &caller.name)
        {
            let bytes = table.missing_bytes_of(&caller.name).saturating_add(size_bytes);
            let usage = ClientUsage { requests: active as u64 + 1, bytes };
            if let Some(excess) = quota.excess(usage) {
                return Err(SubmitError::OverQuota(excess));
            }
        }
        let id = self.services.mover.reserve_id();
        let record = TransferRecord {
            id,
            caller: caller.name.clone(),
            token_sha256: TransferRecord::token_of(&caller),
            // A derived token has the hash of its parent, and fewer rights.
            is_resumable: caller.token.is_some_and(|sha256| {
                self.services.authorizer.caller_of_hash(&sha256).as_ref() == Some(&caller)
            }),
            from_here,
            body,
            body_sha256,
            submitted_unix_seconds: unix_seconds(SystemTime::now()),
            size_bytes,
            state: TransferStatus::Waiting,
            attempts: 0,
            ended_unix_seconds: None,
            error: None,
            failures: Vec::new(),
            last: None,
        };
        self.store.write(&record)?;
        let (source, destination) = (&record.body.source, &record.body.destination);
        tracing::info!("transfer {id}: {source} to {destination} submitted by {}", caller.name);
        let one = SubmittedTransfer::new(record, caller, Some(plan));
        let facts = one.facts();
        table.transfers.insert(id, one);
        table.keys.extend(key.map(|key| (key, id)));
        table.events.push(true, facts.clone());
        self.notify(&table);
        Ok(SubmissionResult::New(Box::new(facts)))
    }

    fn same(
        &self,
        key: Option<&(String, String)>,
        body_sha256: &str,
    ) -> Result<Option<SubmissionResult>, SubmitError> {
        Self::find_same(&self.lock(), key, body_sha256)
    }

    fn find_same(
        table: &TransferTable,
        key: Option<&(String, String)>,
        body_sha256: &str,
    ) -> Result<Option<SubmissionResult>, SubmitError> {
        let id = key.and_then(|key| table.keys.get(key));
        match id.and_then(|id| table.transfers.get(id)) {
            None => Ok(None),
            Some(one) if one.record.body_sha256 == body_sha256 => {
                Ok(Some(SubmissionResult::Same(Box::new(one.facts()))))
            }
            Some(one) => Err(SubmitError::KeyInUse(one.record.id)),
        }
    }

    /// Checks the path at this agent and the address of the other one, as each attempt does again. Returns the size of a
    /// file that this agent sends; 0 of others, which are not known yet.
    fn check_rights(
        &self,
        caller: &Caller,
        plan: &CopyPlan,
        from_here: bool,
    ) -> Result<u64, SubmitError> {
        let mut size_bytes = 0;
        let refused = SubmitError::Refused;
        let authorizer = &self.services.authorizer;
        let place = |path: &[u8], access| authorizer.place(caller, path, access).map_err(refused);
        if plan.direction == TransferDirection::Send
            && let Some(source) = plan.pull.sources.first()
        {
            let found = place(&source.0, PathAccess::Read)?;
            if !found.path.is_empty() {
                let stat = found.root.stat(OsStr::from_bytes(&found.path)).map_err(|error| {
                    let text = format!("{}: {}", found.shown, penstock_sys::fs::describe(&error));
                    refused(Refusal::new(RefusalKind::NotFound, text))
                })?;
                size_bytes = if stat.kind == penstock_sys::fs::Kind::File { stat.size } else { 0 };
            }
        }
        if plan.direction == TransferDirection::Receive || plan.peer == CopyPeer::Own {
            place(&plan.push.target.0, PathAccess::Replace)?;
        }
        // A name that does not resolve now may later.
        if let CopyPeer::Other { host, port, .. } = &plan.peer
            && let Ok(dial) = TcpDial::new(host, *port, &[], &[], None)
        {
            dial.only_to(|to| self.services.may_reach(to, from_here)).map_err(refused)?;
        }
        Ok(size_bytes)
    }

    fn notify(&self, table: &TransferTable) {
        self.followers.send_replace(table.events.last());
        self.changed.notify_all();
    }

    /// These transfers of the mover and all submitted ones, by number; of a submitted one, its record.
    #[must_use]
    pub fn list_with(&self, listed: Vec<ListedTransfer>) -> Vec<TransferFacts> {
        let listed = listed.into_iter().map(|one| (one.id, one.into()));
        let mut all: BTreeMap<u64, TransferFacts> = listed.collect();
        all.extend(self.lock().transfers.iter().map(|(id, one)| (*id, one.facts())));
        all.into_values().collect()
    }

    /// Submitted transfers and those of the mover, except those of gateways: the ones that have events.
    #[must_use]
    pub fn list_followed(&self) -> Vec<TransferFacts> {
        self.list_with(self.services.mover.native_transfers())
    }

    /// The submitted transfer with this number.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<TransferFacts> {
        self.lock().transfers.get(&id).map(SubmittedTransfer::facts)
    }

    /// Cancels a transfer. What is durable stays, and a later copy of the same source and destination resumes from it.
    ///
    /// # Errors
    /// When it has ended, or none has this number.
    pub fn cancel(&self, id: u64, reason: &str) -> Result<TransferFacts, CancelError> {
        let mut table = self.lock();
        let one = table.transfers.get_mut(&id).ok_or(CancelError::Unknown(id))?;
        if one.record.state.is_ended() {
            return Err(CancelError::Ended(id, one.record.state));
        }
        one.cancelled.get_or_insert_with(|| reason.to_owned());
        one.stop_attempt(reason);
        if !one.is_active() {
            self.end(&mut table, id, TransferEvent::Cancelled, Some(reason.to_owned()));
        }
        self.changed.notify_all();
        table.transfers.get(&id).map(SubmittedTransfer::facts).ok_or(CancelError::Unknown(id))
    }

    /// Receiver that changes with each event, and is closed at shutdown.
    ///
    /// The mover's own transfers are looked at while there is one: what happened before becomes events now.
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<u64> {
        let receiver = self.followers.subscribe();
        let mut table = self.lock();
        table.observe_native(self.services.mover.native_transfers());
        self.notify(&table);
        receiver
    }

    /// Events after `number`; `None` where some of them are not kept any more.
    #[must_use]
    pub fn events_after(&self, number: u64) -> Option<Vec<SubmittedEvent>> {
        self.lock().events.after(number)
    }

    /// True once no more events follow.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }
}
