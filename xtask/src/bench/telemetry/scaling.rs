//! Rate of the collector by its count of receiving threads, with as many senders, each with agents of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::super::contest::RunSample;
use super::{AGENT_COUNT, BUFFER_BYTES, SflowLoad, TelemetryBench, drops};

/// Samples per second that each sender offers: more than a receiving thread takes.
const OFFERED_PER_SENDER: f64 = 4_000_000.0;

/// Senders whose agents have different addresses in one /24.
pub(in crate::bench) const SENDERS_MAX: usize = 256 / AGENT_COUNT;

/// A collector that is started anew for each count of threads.
pub(in crate::bench) struct CollectorScaling {
    bench: TelemetryBench,
    loads: Vec<SflowLoad>,
    time: Duration,
}

impl CollectorScaling {
    /// Prepares the datagrams of up to `senders` senders.
    pub(in crate::bench) fn new(penstock: &Path, senders: usize, time: Duration) -> Result<Self> {
        ensure!(senders <= SENDERS_MAX, "at most {SENDERS_MAX} senders");
        let first = |sender: usize| u8::try_from(sender * AGENT_COUNT).map_err(anyhow::Error::from);
        let loads = (0..senders).map(|sender| SflowLoad::new(first(sender)?));
        Ok(Self {
            bench: TelemetryBench {
                penstock: penstock.to_owned(),
                before: None,
                goflow2: None,
                dir: tempfile::tempdir()?,
            },
            loads: loads.collect::<Result<_>>()?,
            time,
        })
    }

    /// Samples taken by `threads` receiving threads from as many senders, and the collector's processor time.
    pub(in crate::bench) fn run(&mut self, threads: usize) -> Result<RunSample> {
        let running = self.bench.start_ours(BUFFER_BYTES, Some(threads))?;
        let (port, time) = (running.port, self.time);
        running.settle();
        let lost = drops(port).unwrap_or(0);
        let (begun, before) = (Instant::now(), running.cpu_seconds());
        let sent = std::thread::scope(|scope| {
            let senders = self.loads.iter_mut().take(threads);
            let senders: Vec<_> = senders
                .map(|load| scope.spawn(move || load.send(port, OFFERED_PER_SENDER, time)))
                .collect();
            let join = |sender: std::thread::ScopedJoinHandle<'_, Result<(u64, u64)>>| {
                sender.join().map_err(|_| anyhow!("a sender failed"))?
            };
            senders.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        running.settle();
        let lost = drops(port).unwrap_or(0) - lost;
        let datagrams: u64 = sent.iter().map(|(datagrams, _)| datagrams).sum();
        let samples: u64 = sent.iter().map(|(_, samples)| samples).sum();
        ensure!(datagrams > 0, "nothing was sent");
        Ok(RunSample {
            seconds,
            bytes: samples as f64 * (1.0 - lost as f64 / datagrams as f64),
            cpu_seconds: Some(running.cpu_seconds() - before),
            ..RunSample::default()
        })
    }
}
