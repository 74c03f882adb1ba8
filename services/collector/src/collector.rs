//! The collector role: its threads, and its interface to the HTTP server.

use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use penstock_flows::aggregate::{AggregateLimits, Aggregator};
use penstock_flows::intake::Intake;
use penstock_flows::prefixes::{PrefixError, Prefixes};
use penstock_flows::scitag::Trust;
use penstock_flows::shard::ShardLimits;
use penstock_http::{MetricWriter, RoleReloadError, ServiceRole};
use penstock_scitags::Registry;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::clickhouse::ClickHouseStore;
use crate::config::{Config, load_as_table, prefixes, site_prefixes};
use crate::error::CollectorError;
use crate::event::TelemetryEvent;
use crate::receive::{self, ListeningAddress, OpenSockets};
use crate::shared::{Shared, Stores};
use crate::store::Store;
use crate::{alerting, api, archive, changes, host_names, metrics, second_timer};

/// Time limit of storing the last minute at the end of the service.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// A running collector, which ends with [`ServiceRole::stop`] or when it is dropped.
#[derive(Debug)]
pub struct CollectorRole {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    storing: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    runtime: Handle,
}

impl CollectorRole {
    /// Opens the sockets and starts the threads. A task of `runtime` stores minutes and hours in
    /// the directory `state`.
    ///
    /// # Errors
    /// When a required socket, directory or thread cannot be created, or a file cannot be used.
    pub fn start(
        config: Config,
        registry: Registry,
        state: &Path,
        runtime: &Handle,
    ) -> Result<Self, CollectorError> {
        let OpenSockets { inputs, threads, missing } = receive::open(&config)?;
        let mut intakes = intakes(&config, &registry, threads.len())?;
        let systems =
            config.prefixes.as_deref().map(load_as_table).transpose()?.unwrap_or_default();
        let origins = Arc::new(systems.origins);
        for intake in &mut intakes {
            intake.aggregator.set_origins(Arc::clone(&origins));
        }
        let store = config.store.then(|| Store::new(state, config.store_bytes_max));
        let database = config.clickhouse.clone();
        let database = database.map(|config| ClickHouseStore::new(config, registry.clone(), state));
        let spool = database.as_ref().map(ClickHouseStore::open_spool).transpose()?;
        let (archive, recorder, writer) = match config.parquet.clone() {
            None => (None, None, None),
            Some(config) => {
                let (archive, recorder, writer) = archive::open(config)?;
                (Some(archive), Some(recorder), Some(writer))
            }
        };
        let stores = Stores { store, clickhouse: database, archive };
        let shared = Shared::new(config, registry, intakes, (inputs, missing), stores);
        let shared = Arc::new(shared);
        let hosts = shared.config.hosts.as_deref().map(host_names::read).transpose()?;
        shared.change_directory(|directory| {
            directory.set_systems(systems.names);
            directory.set_hosts(hosts.unwrap_or_default());
        });
        let mut stored = Vec::new();
        let mut storing = Vec::new();
        if shared.store.is_some() {
            let (give, minutes) = mpsc::unbounded_channel();
            stored.push(give);
            let events = restore_events(&shared, runtime);
            let shared = Arc::clone(&shared);
            storing.push(runtime.spawn(async move {
                if let Some(store) = &shared.store {
                    store.run(minutes, events).await;
                }
            }));
        }
        if let Some(spool) = spool {
            let (give, minutes) = mpsc::unbounded_channel();
            stored.push(give);
            let shared = Arc::clone(&shared);
            storing.push(runtime.spawn(async move {
                if let Some(database) = &shared.clickhouse {
                    database.run(spool, minutes).await;
                }
            }));
        }
        let this = Self {
            shared: Arc::clone(&shared),
            threads: Mutex::default(),
            storing: Mutex::new(storing),
            runtime: runtime.clone(),
        };
        let threads = if shared.inputs.is_empty() { Vec::new() } else { threads };
        for (number, sockets) in threads.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let recorder = recorder.as_ref().map(archive::Recorder::another);
            this.spawn(&format!("receive-{number}"), move || {
                receive::run(&shared.shards[number], sockets, &shared, recorder);
            })?;
        }
        // The writer ends when no recorder is left.
        drop(recorder);
        if let Some(writer) = writer {
            let shared = Arc::clone(&shared);
            let name = move |id| {
                let directory = shared.directory();
                directory.get(id).map_or_else(String::new, |entry| entry.key.to_string())
            };
            this.spawn("archive", move || writer.run(&name))?;
        }
        if !shared.alert_states().is_empty() {
            let (calls, waiting) = mpsc::channel(alerting::CALLS_MAX);
            let caller = Arc::clone(&shared);
            runtime.spawn(async move { alerting::call_webhooks(&caller, waiting).await });
            let watcher = Arc::clone(&shared);
            this.spawn("alerts", move || alerting::run(&watcher, &calls))?;
        }
        let watched = Arc::clone(&shared);
        this.spawn("events", move || changes::run(&watched))?;
        this.spawn("second", move || second_timer::run(&shared, &stored))?;
        Ok(this)
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    fn spawn(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<(), CollectorError> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(CollectorError::Thread)?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Listening addresses of this collector.
    #[must_use]
    pub fn inputs(&self) -> &[Arc<ListeningAddress>] {
        &self.shared.inputs
    }
}

/// Loads the events of earlier runs, restores the alerts from them, and returns the channel of new
/// events to the store.
fn restore_events(shared: &Shared, runtime: &Handle) -> mpsc::UnboundedReceiver<TelemetryEvent> {
    let (give, events) = mpsc::unbounded_channel();
    let stored = tokio::task::block_in_place(|| {
        runtime.block_on(async {
            let store = shared.store.as_ref()?;
            let read = tokio::time::timeout(STORE_TIMEOUT, store.events()).await;
            match read.map_err(|_| "no answer in time".to_owned()) {
                Ok(Ok(events)) => Some(events),
                Ok(Err(error)) => {
                    tracing::warn!("events of earlier runs cannot be read: {error}");
                    None
                }
                Err(error) => {
                    tracing::warn!("events of earlier runs cannot be read: {error}");
                    None
                }
            }
        })
    });
    let stored = stored.unwrap_or_default();
    for alert in shared.alert_states().iter_mut() {
        alert.restore(stored.iter());
    }
    shared.events_log().restore(stored, Some(give));
    events
}

/// An intake for each thread. The seed differs from start to start, so that no sender can provoke
/// hash collisions.
fn intakes(
    config: &Config,
    registry: &Registry,
    threads: usize,
) -> Result<Vec<Intake>, PrefixError> {
    use std::hash::{BuildHasher, RandomState};
    let seed = RandomState::new().hash_one(0);
    let hosts = prefixes(&config.marking)?;
    let relays = prefixes(&config.relays)?;
    let sites = site_prefixes(&config.sites)?;
    let rates = config.exporters.iter().filter_map(|exporter| {
        let bits = if exporter.address.is_ipv4() { 32 } else { 128 };
        Some((exporter.address, bits, exporter.sampling_rate?.get()))
    });
    let rates = Prefixes::new(rates)?;
    let limits = Arc::new(ShardLimits::new(threads));
    let intake = |_| {
        let trust = Trust::new(registry.clone(), hosts.clone(), relays.clone(), seed);
        let (shared, tables) = (Arc::clone(&limits), AggregateLimits::default());
        let aggregator = Aggregator::sharing(shared, tables, sites.clone(), seed);
        let mut intake = Intake::new(trust, aggregator, seed);
        intake.set_sampling_rates(rates.clone());
        intake
    };
    Ok((0..threads).map(intake).collect())
}

impl ServiceRole for CollectorRole {
    fn router(&self) -> Router {
        api::router(Arc::clone(&self.shared))
    }

    fn document(&self) -> utoipa::openapi::OpenApi {
        api::document()
    }

    fn metrics(&self, writer: &mut MetricWriter<'_, '_>) -> fmt::Result {
        metrics::write(&self.shared, writer)
    }

    fn reload(&self) -> Result<(), RoleReloadError> {
        if let Some(file) = self.shared.config.hosts.as_deref() {
            let hosts = host_names::read(file)?;
            self.shared.change_directory(|directory| directory.set_hosts(hosts));
        }
        let Some(file) = self.shared.config.prefixes.as_deref() else { return Ok(()) };
        let systems = load_as_table(file)?;
        let origins = Arc::new(systems.origins);
        for mut state in self.shared.shard_states() {
            let before = state.intake.aggregator.set_origins(Arc::clone(&origins));
            // It may be large: drop it without a lock.
            drop(state);
            drop(before);
        }
        self.shared.change_directory(|directory| directory.set_systems(systems.names));
        tracing::info!("{}: {} prefixes were read again", file.display(), systems.count);
        Ok(())
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // Ends the endless answers of the live feed.
        self.shared.feed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
        self.shared.events_log().close();
        // The last minute is queued; the tasks end when it is written or has failed.
        let storing =
            std::mem::take(&mut *self.storing.lock().unwrap_or_else(PoisonError::into_inner));
        if !storing.is_empty() {
            let all = futures_util::future::join_all(storing);
            let end = async { tokio::time::timeout(STORE_TIMEOUT, all).await };
            tokio::task::block_in_place(|| {
                let _ = self.runtime.block_on(end);
            });
        }
    }
}

impl Drop for CollectorRole {
    fn drop(&mut self) {
        self.stop();
    }
}
