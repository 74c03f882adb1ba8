//! What the threads of the collector and its API share.
//!
//! Locks are taken in the order of the fields and held for moments.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_flows::intake::Intake;
use penstock_scitags::Registry;
use tokio::sync::broadcast;

use crate::alert::Alert;
use crate::config::Config;
use crate::directory::Directory;
use crate::live::{Live, Sites};
use crate::receive::Input;
use crate::second::Second;
use crate::store::Store;

/// Seconds that a client of the live feed may be behind.
const BEHIND_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The way of a sample.
    pub(crate) intake: Mutex<Intake>,
    /// Names of exporters.
    pub(crate) directory: RwLock<Directory>,
    /// The last ten minutes.
    pub(crate) live: RwLock<Live>,
    /// Each second as it ends.
    pub(crate) feed: Mutex<Option<broadcast::Sender<Arc<Second>>>>,
    /// Sockets.
    pub(crate) inputs: Vec<Arc<Input>>,
    /// What could not be had.
    pub(crate) missing: Vec<String>,
    /// Names of owners and activities.
    pub(crate) registry: Registry,
    /// Names of sites.
    pub(crate) sites: Sites,
    /// What the operator said.
    pub(crate) config: Config,
    /// Minutes and hours; `None` where nothing is stored.
    pub(crate) store: Option<Store>,
    /// Alerts, in the order of their rules.
    pub(crate) alerts: Mutex<Vec<Alert>>,
    /// Calls that no webhook took.
    pub(crate) webhooks_failed: AtomicU64,
    /// Begin of the monotonic time that the intake sees.
    pub(crate) begun: Instant,
    /// The same by the wall clock.
    pub(crate) started_s: f64,
    /// Steps of the wall clock.
    pub(crate) clock_steps: AtomicU64,
    /// Clients of the live feed that were too slow.
    pub(crate) slow_clients: AtomicU64,
    /// The service ends.
    pub(crate) stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        registry: Registry,
        intake: Intake,
        inputs: Vec<Arc<Input>>,
        missing: Vec<String>,
        store: Option<Store>,
    ) -> Self {
        let names = config.exporters.iter().filter_map(|exporter| {
            Some((exporter.address.to_canonical().to_string(), exporter.name.clone()?))
        });
        Self {
            intake: Mutex::new(intake),
            directory: RwLock::new(Directory::new(names)),
            live: RwLock::new(Live::default()),
            feed: Mutex::new(Some(broadcast::channel(BEHIND_MAX).0)),
            inputs,
            missing,
            store,
            alerts: Mutex::new(config.alerts.iter().cloned().map(Alert::new).collect()),
            webhooks_failed: AtomicU64::new(0),
            registry,
            sites: config.sites.iter().map(|site| Arc::from(site.name.as_str())).collect(),
            config,
            begun: Instant::now(),
            started_s: unix_now(),
            clock_steps: AtomicU64::new(0),
            slow_clients: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Time as the intake sees it.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn intake(&self) -> MutexGuard<'_, Intake> {
        self.intake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn directory(&self) -> RwLockReadGuard<'_, Directory> {
        self.directory.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn directory_mut(&self) -> RwLockWriteGuard<'_, Directory> {
        self.directory.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live_mut(&self) -> RwLockWriteGuard<'_, Live> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alert_states(&self) -> MutexGuard<'_, Vec<Alert>> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The live feed; `None` when the service ends.
    pub(crate) fn subscribe(&self) -> Option<broadcast::Receiver<Arc<Second>>> {
        let feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        feed.as_ref().map(broadcast::Sender::subscribe)
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
