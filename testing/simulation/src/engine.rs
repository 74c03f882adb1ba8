//! The services of a simulated agent: its part of the data plane.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_agent::orders::{
    EngineTransfer, FailureAction, FileListing, OrderPathError, TransferEngine, TransferRequest,
};
use penstock_control::agent::Outbox;
use penstock_control::orders::{
    AddressPair, FaultKind, ListedFile, OrderFault, OrderId, PathForecast, Send,
};
use penstock_daemon::state::StateError;
use penstock_mover::CopyError;
use penstock_mover::TransferSnapshot;
use penstock_protocol::control::{Settings, Settled};
use penstock_protocol::open::Refusal;

use crate::data_plane::DataPlane;

/// The data plane, shared by the engines of all hosts.
pub(crate) type SharedPlane = Arc<Mutex<DataPlane>>;

pub(crate) fn lock(plane: &SharedPlane) -> MutexGuard<'_, DataPlane> {
    plane.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Engine of one host.
#[derive(Debug)]
pub(crate) struct SimulatedEngine {
    pub(crate) host: String,
    pub(crate) plane: SharedPlane,
}

#[derive(Debug)]
struct SimulatedTransfer {
    id: u64,
    plane: SharedPlane,
}

/// A listing that is complete from the start.
#[derive(Debug)]
struct SimulatedListing(Mutex<Outbox<ListedFile>>);

impl TransferEngine for SimulatedEngine {
    fn send(&self, request: TransferRequest<'_>) -> Result<Arc<dyn EngineTransfer>, FailureAction> {
        let path = |path: &&[u8]| String::from_utf8_lossy(path).into_owned();
        let paths = request.paths.iter().map(path).collect();
        let id = lock(&self.plane).send(&self.host, request.order, paths, request.rate_bps)?;
        Ok(Arc::new(SimulatedTransfer { id, plane: Arc::clone(&self.plane) }))
    }

    fn forecast(&self, _order: &Send, _bytes: u64) -> Option<PathForecast> {
        None
    }

    fn list(&self, path: &str) -> Result<Box<dyn FileListing>, OrderFault> {
        let plane = lock(&self.plane);
        let site = &plane.hosts[&self.host].site;
        let directory = format!("{}/", path.trim_end_matches('/'));
        let mut entries = Outbox::default();
        for ((at, path), content) in &plane.files {
            if let (true, Some(path)) = (at == site, path.strip_prefix(&directory)) {
                entries.push(ListedFile { path: path.to_owned(), bytes: content.bytes });
            }
        }
        if entries.pending_count() == 0 {
            let text = format!("{path}: no such directory");
            return Err(OrderFault { kind: FaultKind::Permanent, text });
        }
        Ok(Box::new(SimulatedListing(Mutex::new(entries))))
    }

    fn grant_ticket(&self, order: OrderId, ticket: &str, below: &str) -> Result<(), Refusal> {
        let mut plane = lock(&self.plane);
        let host = plane.hosts.get_mut(&self.host).expect("a host of the scenario");
        host.tickets.retain(|_, (granted, _)| *granted != order);
        host.tickets.insert(ticket.to_owned(), (order, below.to_owned()));
        Ok(())
    }

    fn revoke_ticket(&self, order: OrderId) {
        lock(&self.plane).revoke_ticket(&self.host, order);
    }

    fn end_sessions(&self, order: OrderId, _reason: &str) {
        lock(&self.plane).end_sessions(&self.host, order);
    }

    fn read_tickets(&self) -> Result<Option<String>, StateError> {
        Ok(lock(&self.plane).hosts[&self.host].stored_tickets.clone())
    }

    fn write_tickets(&self, text: &[u8]) -> Result<(), StateError> {
        let mut plane = lock(&self.plane);
        let host = plane.hosts.get_mut(&self.host).expect("a host of the scenario");
        host.stored_tickets = Some(String::from_utf8_lossy(text).into_owned());
        Ok(())
    }

    fn random(&self) -> u64 {
        lock(&self.plane).random.next_bits()
    }
}

impl EngineTransfer for SimulatedTransfer {
    fn id(&self) -> u64 {
        self.id
    }

    fn outcome(&self) -> Option<Result<(), CopyError>> {
        lock(&self.plane).outcome(self.id)
    }

    fn snapshot(&self) -> TransferSnapshot {
        lock(&self.plane).snapshot(self.id)
    }

    fn take_settled(&self) -> Vec<Settled> {
        lock(&self.plane).take_settled(self.id)
    }

    fn change(&self, settings: Settings) {
        if let Some(transfer) = lock(&self.plane).transfers.get_mut(&self.id) {
            transfer.rate_bps = settings.rate_bps.or(transfer.rate_bps);
        }
    }

    fn use_path(&self, _path: &[AddressPair]) -> Result<(), OrderPathError> {
        Ok(())
    }

    fn cancel(&self, reason: &str) {
        if let Some(transfer) = lock(&self.plane).transfers.get_mut(&self.id) {
            transfer.cancelled.get_or_insert_with(|| reason.to_owned());
        }
    }
}

impl Drop for SimulatedTransfer {
    fn drop(&mut self) {
        if let Some(transfer) = lock(&self.plane).transfers.get_mut(&self.id) {
            transfer.is_released = true;
        }
    }
}

impl SimulatedListing {
    fn lock(&self) -> MutexGuard<'_, Outbox<ListedFile>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileListing for SimulatedListing {
    fn ended(&self) -> Option<Option<OrderFault>> {
        Some(None)
    }

    fn pending(&self, fits: &mut dyn FnMut(&ListedFile) -> bool) -> (u64, Vec<ListedFile>) {
        self.lock().pending(fits)
    }

    fn pending_count(&self) -> usize {
        self.lock().pending_count()
    }

    fn acknowledge(&self, before: u64) {
        self.lock().acknowledge(before);
    }
}
