//! Contestants take turns (A B C, A B C, ...), so that drift of the machine affects all alike.
//!
//! A failed contestant keeps its row in the table, with the reason.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use serde::Serialize;

use super::process::check_interrupt;

/// Measurements of one run.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct RunSample {
    /// Wall time of the client command.
    pub(super) seconds: f64,
    /// Wall time with a sync of the destination's file system.
    pub(super) durable_seconds: Option<f64>,
    pub(super) bytes: f64,
    pub(super) files: u64,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) client_peak_bytes: u64,
    pub(super) server_peak_bytes: u64,
}

/// A program that can be measured repeatedly.
pub(super) trait Contestant {
    fn name(&self) -> String;
    /// The command line, for the report.
    fn how(&self) -> String;
    /// Runs once; the figures of the warm-up, which comes first, are dropped.
    fn run(&mut self, warm_up: bool) -> Result<RunSample>;
    /// Remark about the figures for the report.
    fn note(&self) -> Option<String> {
        None
    }
}

/// All runs of one contestant.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) how: String,
    pub(super) note: Option<String>,
    pub(super) failure: Option<String>,
    pub(super) samples: Vec<RunSample>,
}

impl Series {
    /// Bits per second of the median run.
    pub(super) fn bits_per_second(&self) -> Option<f64> {
        self.median(|sample| sample.bytes * 8.0 / sample.seconds)
    }

    pub(super) fn durable_bits_per_second(&self) -> Option<f64> {
        self.median(|sample| sample.bytes * 8.0 / sample.durable_seconds.unwrap_or(sample.seconds))
    }

    pub(super) fn files_per_second(&self) -> Option<f64> {
        self.median(|sample| sample.files as f64 / sample.seconds)
    }

    pub(super) fn seconds(&self) -> Option<f64> {
        self.median(|sample| sample.seconds)
    }

    pub(super) fn median(&self, value: impl Fn(&RunSample) -> f64) -> Option<f64> {
        median(self.samples.iter().map(value))
    }

    pub(super) fn extremes(&self, value: impl Fn(&RunSample) -> f64) -> Option<(f64, f64)> {
        let least = self.samples.iter().map(&value).min_by(f64::total_cmp)?;
        let most = self.samples.iter().map(&value).max_by(f64::total_cmp)?;
        Some((least, most))
    }
}

/// Median of `values`; none if there are no values.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Runs one warm-up and `runs` measured rounds; a contestant that fails twice is not run again.
pub(super) fn alternate(
    mut all: Vec<Box<dyn Contestant>>,
    runs: usize,
    stop: &AtomicBool,
) -> Result<Vec<Series>> {
    let mut series: Vec<Series> =
        all.iter().map(|one| Series { name: one.name(), ..Series::default() }).collect();
    let mut failures = vec![0; all.len()];
    for round in 0..=runs {
        let progress =
            if round == 0 { "warm-up".to_owned() } else { format!("run {round}/{runs}") };
        for ((one, kept), failures) in all.iter_mut().zip(&mut series).zip(&mut failures) {
            check_interrupt(stop)?;
            if *failures >= 2 {
                continue;
            }
            match one.run(round == 0) {
                Ok(sample) => {
                    eprintln!(
                        "  {progress} {}: {:.2} s, {:.2} Gb/s",
                        kept.name,
                        sample.seconds,
                        sample.bytes * 8e-9 / sample.seconds
                    );
                    if round > 0 {
                        kept.samples.push(sample);
                    }
                }
                Err(error) => {
                    check_interrupt(stop)?;
                    eprintln!("  {progress} {}: {error:#}", kept.name);
                    *failures += 1;
                    kept.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
    for (one, kept) in all.iter().zip(&mut series) {
        (kept.how, kept.note) = (one.how(), one.note());
    }
    Ok(series)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<Result<f64>>);

    impl Contestant for Fixed {
        fn name(&self) -> String {
            "fixed".to_owned()
        }

        fn how(&self) -> String {
            String::new()
        }

        fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
            Ok(RunSample { seconds: self.0.remove(0)?, bytes: 1.0, ..RunSample::default() })
        }
    }

    struct Absent {
        name: String,
        reason: String,
    }

    impl Contestant for Absent {
        fn name(&self) -> String {
            self.name.clone()
        }

        fn how(&self) -> String {
            String::new()
        }

        fn run(&mut self, _warm_up: bool) -> Result<RunSample> {
            anyhow::bail!("{}", self.reason)
        }
    }

    #[test]
    fn median_excludes_the_warm_up() {
        let runs = vec![Ok(100.0), Ok(3.0), Ok(1.0), Ok(2.0)];
        let series = alternate(vec![Box::new(Fixed(runs))], 3, &AtomicBool::new(false)).unwrap();
        assert_eq!(series[0].seconds(), Some(2.0));
        assert_eq!(series[0].extremes(|s| s.seconds), Some((1.0, 3.0)));
    }

    #[test]
    fn failed_contestant_keeps_its_row() {
        let absent = Absent { name: "peer".to_owned(), reason: "not installed".to_owned() };
        let series = alternate(vec![Box::new(absent)], 3, &AtomicBool::new(false)).unwrap();
        assert_eq!(series[0].failure.as_deref(), Some("not installed"));
        assert_eq!(series[0].seconds(), None);
    }
}
