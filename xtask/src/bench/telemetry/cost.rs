//! Processor time of a sample by thread, with one and with two receiving threads, in turns.
//!
//! The sender runs on the same machine, and the kernel puts a datagram into the receiver's socket in the time of the
//! sender: its share of the processors is reported, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::super::contest::median;
use super::{
    BUFFER_BYTES, PROMISED_SAMPLES_PER_S, RunningContestant, SflowLoad, TelemetryBench,
    cpu_seconds, drops, threads_name,
};

/// Asked rates as multiples of the promised one: without loss, and as fast as one sender can.
const RATE_FACTORS: [f64; 2] = [1.0, 8.0];

/// Costs of a run.
#[derive(Debug)]
pub(super) struct RunCost {
    asked_samples_per_s: f64,
    /// Receiving threads; `None` for the earlier commit.
    threads: Option<usize>,
    samples_per_cpu_s: f64,
    /// Processor time for a sample in receiving threads, and in all others.
    receiving_ns: f64,
    other_ns: f64,
    taken_samples_per_s: f64,
    /// Processors that the sender used.
    sender_share: f64,
    /// Part of the datagrams that the kernel dropped.
    dropped: f64,
}

/// Processor time of the receiving threads, and of all threads.
fn by_thread(running: &RunningContestant) -> (f64, f64) {
    let id = running.child.id();
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let receiving = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        // `take-` in earlier commits.
        if !name.starts_with("receive-") && !name.starts_with("take-") {
            return None;
        }
        let time = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        time.split_whitespace().next()?.parse::<f64>().ok()
    });
    (receiving.sum::<f64>() / 1e9, cpu_seconds(id))
}

impl TelemetryBench {
    /// Measures every rate with every count of threads, in turns.
    pub(super) fn costs(
        &self,
        load: &mut SflowLoad,
        time: Duration,
        rounds: usize,
    ) -> Result<Vec<RunCost>> {
        let mut costs = Vec::new();
        for round in 1..=rounds {
            eprintln!("processor time by thread, round {round}");
            for factor in RATE_FACTORS {
                let before = self.before.as_ref().map(|_| None);
                for threads in before.into_iter().chain([Some(1), Some(2)]) {
                    costs.push(self.cost(load, factor * PROMISED_SAMPLES_PER_S, time, threads)?);
                }
            }
        }
        Ok(costs)
    }

    fn cost(
        &self,
        load: &mut SflowLoad,
        rate: f64,
        time: Duration,
        threads: Option<usize>,
    ) -> Result<RunCost> {
        let running = self.start_ours(BUFFER_BYTES, threads)?;
        // Tables reach their size before the measurement.
        load.send(running.port, rate, time / 6)?;
        running.settle();
        let (receiving, all) = by_thread(&running);
        let lost = drops(running.port).unwrap_or(0);
        let (begun, sender) = (Instant::now(), cpu_seconds(std::process::id()));
        let (datagrams, samples) = load.send(running.port, rate, time)?;
        let sent_time = begun.elapsed().as_secs_f64();
        let sender_share = (cpu_seconds(std::process::id()) - sender) / sent_time;
        running.settle();
        let (receiving_after, all_after) = by_thread(&running);
        let lost = drops(running.port).unwrap_or(0) - lost;
        let taken = samples as f64 * (1.0 - lost as f64 / datagrams as f64);
        ensure!(receiving_after > receiving, "no thread receives");
        let (receiving, all) = (receiving_after - receiving, all_after - all);
        Ok(RunCost {
            asked_samples_per_s: rate,
            threads,
            samples_per_cpu_s: taken / all,
            receiving_ns: 1e9 * receiving / taken,
            other_ns: 1e9 * (all - receiving) / taken,
            taken_samples_per_s: taken / sent_time,
            sender_share,
            dropped: lost as f64 / datagrams as f64,
        })
    }
}

/// Writes the table: medians over the rounds.
pub(super) fn write(text: &mut String, costs: &[RunCost], rounds: usize) {
    let mut rows: BTreeMap<(u64, Option<usize>), Vec<&RunCost>> = BTreeMap::new();
    for cost in costs {
        rows.entry((cost.asked_samples_per_s as u64, cost.threads)).or_default().push(cost);
    }
    let _ = write!(
        text,
        "\n## Processor time of a sample, by thread\n\nIn turns, {rounds} rounds, medians (least to most). The sender shares the processors with the collector, and its time includes the kernel's delivery into the socket.\n\n| asked, samples/s | receiving threads | samples per CPU second | receiving threads, ns per sample | other threads, ns per sample | taken, samples/s | sender, processors | dropped by the kernel |\n|---|---|---|---|---|---|---|---|\n"
    );
    for ((asked, threads), row) in rows {
        let middle =
            |of: fn(&RunCost) -> f64| median(row.iter().map(|cost| of(cost))).unwrap_or_default();
        let efficiency = row.iter().map(|cost| cost.samples_per_cpu_s);
        let (least, most) =
            (efficiency.clone().fold(f64::MAX, f64::min), efficiency.fold(0.0, f64::max));
        let _ = writeln!(
            text,
            "| {asked} | {} | {:.0} ({least:.0} to {most:.0}) | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} % |",
            threads_name(threads),
            middle(|cost| cost.samples_per_cpu_s),
            middle(|cost| cost.receiving_ns),
            middle(|cost| cost.other_ns),
            middle(|cost| cost.taken_samples_per_s),
            middle(|cost| cost.sender_share),
            100.0 * middle(|cost| cost.dropped),
        );
    }
}
