//! What the threads of the collector and its API share.
//!
//! Locks are taken in the order of the fields and held for moments.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use penstock_flows::intake::Intake;
use penstock_scitags::Registry;
use tokio::sync::broadcast;

use crate::alert::Alert;
use crate::archive::Archive;
use crate::arrivals::Arrivals;
use crate::clickhouse::ClickHouse;
use crate::config::Config;
use crate::directory::Directory;
use crate::event::EventLog;
use crate::live::{Live, Sites};
use crate::query::Query;
use crate::receive::Input;
use crate::second::Second;
use crate::store::Store;
use crate::timeline::Timeline;

/// Questions of the live feed whose answers are kept for a second.
const TOLD_MAX: usize = 256;

/// Seconds that a client of the live feed may be behind.
const BEHIND_MAX: usize = 16;

/// Events of a second by what is asked: each is computed once, however many follow.
#[derive(Debug, Default)]
pub(crate) struct Told {
    number: u64,
    events: HashMap<(Vec<Query>, usize), Arc<str>>,
}

impl Told {
    /// What second `number` says to a question; `tell` computes it.
    pub(crate) fn event(
        &mut self,
        number: u64,
        question: &(Vec<Query>, usize),
        tell: impl FnOnce() -> Option<String>,
    ) -> Option<Arc<str>> {
        if self.number < number {
            (self.number, self.events) = (number, HashMap::new());
        }
        if self.number > number {
            // Of a second that someone has missed.
            return tell().map(Into::into);
        }
        if let Some(event) = self.events.get(question) {
            return Some(Arc::clone(event));
        }
        let event: Arc<str> = tell()?.into();
        if self.events.len() < TOLD_MAX {
            self.events.insert(question.clone(), Arc::clone(&event));
        }
        Some(event)
    }
}

/// Where figures and samples are kept beyond memory.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) store: Option<Store>,
    pub(crate) clickhouse: Option<ClickHouse>,
    pub(crate) archive: Option<Archive>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The way of a sample.
    pub(crate) intake: Mutex<Intake>,
    /// What came in which second.
    arrivals: Mutex<Arrivals>,
    /// Seconds of the wall clock.
    timeline: RwLock<Timeline>,
    /// The oldest second that is open; it changes while the intake is locked.
    pub(crate) open_from: AtomicU64,
    /// Datagrams of seconds that were closed already; they count in the oldest that is open.
    pub(crate) late_datagrams: AtomicU64,
    /// Names of exporters. Whoever reads them has a copy of their own: a question that takes seconds holds up nobody.
    directory: RwLock<Arc<Directory>>,
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
    /// The database that collectors share; `None` where there is none.
    pub(crate) clickhouse: Option<ClickHouse>,
    /// Raw samples in files; `None` where nobody asked for them.
    pub(crate) archive: Option<Archive>,
    /// Alerts, in the order of their rules.
    pub(crate) alerts: Mutex<Vec<Alert>>,
    /// What happened to alerts, exporters and interfaces.
    events_log: Mutex<EventLog>,
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
    /// What the newest second says to each question of the live feed.
    pub(crate) told: Mutex<Told>,
    /// Events of the live feed that were computed.
    pub(crate) events: AtomicU64,
    /// The service ends.
    pub(crate) stopping: AtomicBool,
}

impl Shared {
    pub(crate) fn new(
        config: Config,
        registry: Registry,
        intake: Intake,
        (inputs, missing): (Vec<Arc<Input>>, Vec<String>),
        stores: Stores,
    ) -> Self {
        let Stores { store, clickhouse, archive } = stores;
        let names = config.exporters.iter().filter_map(|exporter| {
            Some((exporter.address.to_canonical().to_string(), exporter.name.clone()?))
        });
        let (begun, started_s) = (Instant::now(), unix_now());
        Self {
            intake: Mutex::new(intake),
            arrivals: Mutex::default(),
            timeline: RwLock::new(Timeline::new(Duration::ZERO, started_s)),
            open_from: AtomicU64::new(1),
            late_datagrams: AtomicU64::new(0),
            directory: RwLock::new(Arc::new(Directory::new(names))),
            live: RwLock::new(Live::default()),
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
            told: Mutex::default(),
            events: AtomicU64::new(0),
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

    pub(crate) fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time line as it is now.
    pub(crate) fn timeline(&self) -> Timeline {
        self.timeline.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Compares the time line with the wall clock; by how much that was set, if it was.
    pub(crate) fn adjust_timeline(&self) -> Option<f64> {
        let mut line = self.timeline.write().unwrap_or_else(PoisonError::into_inner);
        line.adjust(self.now(), unix_now())
    }

    /// Until when all that the kernel received was taken, from every socket.
    pub(crate) fn drained(&self) -> Duration {
        let drained = self.inputs.iter().map(|input| input.drained());
        drained.min().unwrap_or(Duration::MAX)
    }

    /// The names of now.
    pub(crate) fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the names for those who read them from now on.
    pub(crate) fn change_directory(&self, change: impl FnOnce(&mut Directory)) {
        let mut directory = self.directory.write().unwrap_or_else(PoisonError::into_inner);
        change(Arc::make_mut(&mut directory));
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

    pub(crate) fn events_log(&self) -> MutexGuard<'_, EventLog> {
        self.events_log.lock().unwrap_or_else(PoisonError::into_inner)
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
