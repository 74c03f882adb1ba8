//! State shared by the threads of the collector and its API.
//!
//! Locks are taken in the order of the fields and held for moments.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_flows::intake::Intake;
use penstock_scitags::Registry;
use tokio::sync::broadcast;

use crate::alert::Alert;
use crate::archive::Archive;
use crate::arrivals::DatagramArrivals;
use crate::clickhouse::ClickHouseStore;
use crate::config::Config;
use crate::directory::NameDirectory;
use crate::event::EventLog;
use crate::live::{LiveSeconds, Sites};
use crate::query::Query;
use crate::receive::ListeningAddress;
use crate::second::Second;
use crate::shard::{Shard, ShardState};
use crate::store::Store;
use crate::timeline::ClockTimeline;

/// Most cached queries of the live feed per second.
const CACHED_QUERIES_MAX: usize = 256;

/// Most seconds that a client of the live feed may lag.
const BEHIND_MAX: usize = 16;

/// Events of the newest second by query: each is computed once for all clients.
#[derive(Debug, Default)]
pub(crate) struct EventCache {
    number: u64,
    events: HashMap<(Vec<Query>, usize), Arc<str>>,
}

impl EventCache {
    /// Returns the event of second `number` for a query; `compute` builds it on the first request.
    pub(crate) fn event(
        &mut self,
        number: u64,
        query: &(Vec<Query>, usize),
        compute: impl FnOnce() -> Option<String>,
    ) -> Option<Arc<str>> {
        if self.number < number {
            (self.number, self.events) = (number, HashMap::new());
        }
        if self.number > number {
            // An older second, for a lagging client.
            return compute().map(Into::into);
        }
        if let Some(event) = self.events.get(query) {
            return Some(Arc::clone(event));
        }
        let event: Arc<str> = compute()?.into();
        if self.events.len() < CACHED_QUERIES_MAX {
            self.events.insert(query.clone(), Arc::clone(&event));
        }
        Some(event)
    }
}

/// Storage of figures and samples beyond memory.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) store: Option<Store>,
    pub(crate) clickhouse: Option<ClickHouseStore>,
    pub(crate) archive: Option<Archive>,
}

/// Shared state of the collector.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Decoders and sums of the current second, by thread. No thread locks two of them at a time.
    pub(crate) shards: Box<[Shard]>,
    /// Datagrams of all shards by second.
    arrivals: Mutex<DatagramArrivals>,
    /// Seconds of the wall clock.
    timeline: RwLock<ClockTimeline>,
    /// Count of changes of the time line.
    pub(crate) timeline_version: AtomicU64,
    /// Datagrams of closed seconds, which count in the oldest open one.
    pub(crate) late_datagrams: AtomicU64,
    /// Names of exporters. Readers clone the `Arc`, so that a long query blocks no writer.
    directory: RwLock<Arc<NameDirectory>>,
    /// The last ten minutes.
    pub(crate) live: RwLock<LiveSeconds>,
    /// Channel of ended seconds to the live feed.
    pub(crate) feed: Mutex<Option<broadcast::Sender<Arc<Second>>>>,
    /// Listening addresses with the counters of their sockets.
    pub(crate) inputs: Vec<Arc<ListeningAddress>>,
    /// Lines about sockets that could not be opened.
    pub(crate) missing: Vec<String>,
    /// Names of owners and activities.
    pub(crate) registry: Registry,
    /// Names of sites by number.
    pub(crate) sites: Sites,
    /// Configuration of the collector.
    pub(crate) config: Config,
    /// Minutes and hours; `None` if storage is off.
    pub(crate) store: Option<Store>,
    /// Database shared by collectors; `None` if not configured.
    pub(crate) clickhouse: Option<ClickHouseStore>,
    /// Raw samples in files; `None` if not configured.
    pub(crate) archive: Option<Archive>,
    /// Alerts, in the order of their rules.
    pub(crate) alerts: Mutex<Vec<Alert>>,
    /// Events of alerts, exporters and interfaces.
    events_log: Mutex<EventLog>,
    /// Calls that no webhook took.
    pub(crate) webhooks_failed: AtomicU64,
    /// Start of the intake's monotonic time.
    pub(crate) begun: Instant,
    /// The same start by the wall clock, in seconds since 1970.
    pub(crate) started_s: f64,
    /// Steps of the wall clock.
    pub(crate) clock_steps: AtomicU64,
    /// Clients of the live feed that were too slow.
    pub(crate) slow_clients: AtomicU64,
    /// Cached events of the newest second for the live feed.
    pub(crate) event_cache: Mutex<EventCache>,
    /// Events of the live feed that were computed.
    pub(crate) events: AtomicU64,
    /// Set when the service ends.
    pub(crate) stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        registry: Registry,
        intakes: Vec<Intake>,
        (inputs, missing): (Vec<Arc<ListeningAddress>>, Vec<String>),
        stores: Stores,
    ) -> Self {
        let Stores { store, clickhouse, archive } = stores;
        let names = config.exporters.iter().filter_map(|exporter| {
            Some((exporter.address.to_canonical().to_string(), exporter.name.clone()?))
        });
        let (begun, started_s) = (Instant::now(), unix_now());
        let line = ClockTimeline::new(Duration::ZERO, started_s);
        let shards = intakes.into_iter().enumerate();
        Self {
            shards: shards.map(|(at, intake)| Shard::new(at, intake, line.clone())).collect(),
            arrivals: Mutex::default(),
            timeline: RwLock::new(line),
            timeline_version: AtomicU64::new(0),
            late_datagrams: AtomicU64::new(0),
            directory: RwLock::new(Arc::new(NameDirectory::new(names))),
            live: RwLock::new(LiveSeconds::default()),
            feed: Mutex::new(Some(broadcast::channel(BEHIND_MAX).0)),
            inputs,
            missing,
            store,
            clickhouse,
            archive,
            alerts: Mutex::new(config.alerts.iter().cloned().map(Alert::new).collect()),
            events_log: Mutex::default(),
            webhooks_failed: AtomicU64::new(0),
            registry,
            sites: config.sites.iter().map(|site| Arc::from(site.name.as_str())).collect(),
            config,
            begun,
            started_s,
            clock_steps: AtomicU64::new(0),
            slow_clients: AtomicU64::new(0),
            event_cache: Mutex::default(),
            events: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Monotonic time of the intake.
    pub(crate) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Locks one shard after the other.
    pub(crate) fn shard_states(&self) -> impl Iterator<Item = MutexGuard<'_, ShardState>> {
        self.shards.iter().map(Shard::state)
    }

    pub(crate) fn arrivals(&self) -> MutexGuard<'_, DatagramArrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copy of the current time line.
    pub(crate) fn timeline(&self) -> ClockTimeline {
        self.timeline.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Compares the time line with the wall clock and returns the step by which that was set, if
    /// any.
    pub(crate) fn adjust_timeline(&self) -> Option<f64> {
        let mut line = self.timeline.write().unwrap_or_else(PoisonError::into_inner);
        let step_s = line.adjust(self.now(), unix_now())?;
        self.timeline_version.fetch_add(1, Ordering::Release);
        Some(step_s)
    }

    /// Time up to which every socket is drained.
    pub(crate) fn drained(&self) -> Duration {
        let drained = self.inputs.iter().map(|input| input.drained());
        drained.min().unwrap_or(Duration::MAX)
    }

    /// Snapshot of the current names.
    pub(crate) fn directory(&self) -> Arc<NameDirectory> {
        Arc::clone(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the names for later readers.
    pub(crate) fn change_directory(&self, change: impl FnOnce(&mut NameDirectory)) {
        let mut directory = self.directory.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut directory));
    }

    pub(crate) fn live(&self) -> RwLockReadGuard<'_, LiveSeconds> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live_mut(&self) -> RwLockWriteGuard<'_, LiveSeconds> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alert_states(&self) -> MutexGuard<'_, Vec<Alert>> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn events_log(&self) -> MutexGuard<'_, EventLog> {
        self.events_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to the live feed; `None` when the service ends.
    pub(crate) fn subscribe(&self) -> Option<broadcast::Receiver<Arc<Second>>> {
        let feed = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        feed.as_ref().map(broadcast::Sender::subscribe)
    }
}

/// Seconds since 1970 by the wall clock.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
