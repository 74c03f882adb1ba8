//! The role: its threads, and what it brings to the HTTP server.

use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use penstock_flows::aggregate::{Aggregator, Limits};
use penstock_flows::intake::Intake;
use penstock_flows::prefixes::Prefixes;
use penstock_flows::scitag::Trust;
use penstock_http::Role;
use penstock_scitags::Registry;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::config::{Config, prefixes};
use crate::receive::{self, Input};
use crate::shared::Shared;
use crate::store::Store;
use crate::{api, metrics, tick, watch};

/// The last minute may take so long to be written.
const STORE_TIME: Duration = Duration::from_secs(10);

/// A collector that runs; it ends with [`Role::stop`] or when it is dropped.
#[derive(Debug)]
pub struct Collector {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    storing: Mutex<Option<(Handle, tokio::task::JoinHandle<()>)>>,
}

impl Collector {
    /// Opens the sockets and starts. Minutes and hours are kept in the directory `state` by a task of `runtime`.
    ///
    /// # Errors
    /// With one line, when a socket cannot be had that must be, or no thread.
    pub fn start(
        config: Config,
        registry: Registry,
        state: &Path,
        runtime: &Handle,
    ) -> Result<Self, String> {
        let (sockets, missing) = receive::open(&config)?;
        let inputs: Vec<_> = sockets.iter().map(|(_, input)| Arc::clone(input)).collect();
        let intake = intake(&config, &registry)?;
        let store = config.store.then(|| Store::new(state, config.store_bytes_max));
        let shared = Arc::new(Shared::new(config, registry, intake, inputs, missing, store));
        let (stored, minutes) = mpsc::unbounded_channel();
        let storing = shared.store.is_some().then(|| {
            let shared = Arc::clone(&shared);
            let task = runtime.spawn(async move {
                if let Some(store) = &shared.store {
                    store.run(minutes).await;
                }
            });
            (runtime.clone(), task)
        });
        let this = Self {
            shared: Arc::clone(&shared),
            threads: Mutex::default(),
            storing: Mutex::new(storing),
        };
        for (receiver, input) in sockets {
            let shared = Arc::clone(&shared);
            let name = format!("take-{}", input.format.as_str());
            this.spawn(&name, move || receive::run(receiver, &input, &shared))?;
        }
        if !shared.alert_states().is_empty() {
            let (calls, waiting) = mpsc::channel(watch::CALLS_MAX);
            let caller = Arc::clone(&shared);
            runtime.spawn(async move { watch::call(&caller, waiting).await });
            let watcher = Arc::clone(&shared);
            this.spawn("alerts", move || watch::run(&watcher, &calls))?;
        }
        let stored = shared.store.is_some().then_some(stored);
        this.spawn("second", move || tick::run(&shared, stored.as_ref()))?;
        Ok(this)
    }

    fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        let thread = thread.map_err(|error| format!("cannot start a thread: {error}"))?;
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        Ok(())
    }

    /// Its sockets.
    #[must_use]
    pub fn inputs(&self) -> &[Arc<Input>] {
        &self.shared.inputs
    }
}

/// Hashing differs from start to start, so that nobody can choose what collides.
fn intake(config: &Config, registry: &Registry) -> Result<Intake, String> {
    use std::hash::{BuildHasher, RandomState};
    let seed = RandomState::new().hash_one(0);
    let hosts = prefixes(&config.marking)?;
    let relays = prefixes(&config.relays)?;
    let sites = config.sites.iter().enumerate().flat_map(|(number, site)| {
        site.networks.iter().map(move |network| (network.0, network.1, number as u16))
    });
    let sites = Prefixes::new(sites).map_err(|error| error.to_string())?;
    let rates = config.exporters.iter().filter_map(|exporter| {
        let bits = if exporter.address.is_ipv4() { 32 } else { 128 };
        Some((exporter.address, bits, exporter.sampling_rate?))
    });
    let rates = Prefixes::new(rates).map_err(|error| error.to_string())?;
    let trust = Trust::new(registry.clone(), hosts, relays, seed);
    let mut intake = Intake::new(trust, Aggregator::new(Limits::default(), sites, seed), seed);
    intake.set_sampling_rates(rates);
    Ok(intake)
}

impl Role for Collector {
    fn router(&self) -> Router {
        api::router(Arc::clone(&self.shared))
    }

    fn document(&self) -> utoipa::openapi::OpenApi {
        api::document()
    }

    fn metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        metrics::encode(&self.shared, encoder)
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // Answers to those who follow end with it.
        self.shared.feed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let _ = thread.join();
        }
        // The last minute is on its way; the task ends when it is written, or cannot be.
        let storing = self.storing.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((runtime, task)) = storing {
            let end = async { tokio::time::timeout(STORE_TIME, task).await };
            tokio::task::block_in_place(|| {
                let _ = runtime.block_on(end);
            });
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.stop();
    }
}
