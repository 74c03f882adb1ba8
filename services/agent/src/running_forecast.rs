//! Forecasts of the rate of a running transfer in its next seconds, by the model of sequences in the state directory.
//!
//! Without a model file there are none. [docs/forecast.md](../../../docs/forecast.md#while-a-transfer-runs) describes the
//! models and their training.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use penstock_forecast::{
    SEQUENCE_BYTES_MAX, SequenceForecast, SequenceModel, SequenceModelError, SequenceSample,
};
use penstock_mover::TunerSample;

/// File in the state directory.
pub const SEQUENCE_MODEL_FILE: &str = "sequence-model.safetensors";

/// Least length of joined samples, as intervals of a second end early or late.
const INTERVAL_US_MIN: u64 = 900_000;

/// A model file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct SequenceFileError {
    path: PathBuf,
    source: SequenceFileFault,
}

#[derive(Debug, thiserror::Error)]
enum SequenceFileFault {
    #[error("{}", penstock_sys::fs::describe(.0))]
    Io(#[from] io::Error),
    #[error(transparent)]
    Model(#[from] SequenceModelError),
}

/// Reads a model of sequences.
///
/// # Errors
/// When the file cannot be read, or is none.
pub fn read_sequence_model(path: &Path) -> Result<SequenceModel, SequenceFileError> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(SEQUENCE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
        Ok(SequenceModel::parse(&bytes)?)
    };
    read().map_err(|source| SequenceFileError { path: path.to_owned(), source })
}

/// Forecasts of one transfer.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningForecast {
    /// A forecast for each horizon of the model.
    pub horizons: Vec<SequenceForecast>,
    /// True if a simulator made some of its training data.
    pub is_synthetic: bool,
}

/// Model of the state directory, which is read again once its file is another.
#[derive(Debug)]
pub struct RateForecaster {
    path: PathBuf,
    read: Mutex<Option<ReadModel>>,
}

#[derive(Debug, Clone)]
struct ReadModel {
    /// Time of the last change of the file, and its size.
    file: (SystemTime, u64),
    model: Arc<Result<SequenceModel, SequenceFileError>>,
}

impl RateForecaster {
    /// Uses the model of this state directory, now or once there is one.
    #[must_use]
    pub fn new(state: &Path) -> Self {
        Self { path: state.join(SEQUENCE_MODEL_FILE), read: Mutex::new(None) }
    }

    /// Forecasts the rate of a transfer from its latest samples, or says why the model does not; none without a model.
    #[must_use]
    pub fn forecast<'a>(
        &self,
        samples: impl IntoIterator<Item = &'a TunerSample>,
    ) -> Option<Result<RunningForecast, String>> {
        let file = self.path.metadata().ok()?;
        let file = (file.modified().ok()?, file.len());
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let known = read.take().filter(|known| known.file == file);
        let known = known.unwrap_or_else(|| ReadModel {
            file,
            model: Arc::new(read_sequence_model(&self.path)),
        });
        *read = Some(known.clone());
        drop(read);
        Some(match &*known.model {
            Ok(model) => match model.forecast(&join_to_seconds(samples)) {
                Ok(horizons) => {
                    Ok(RunningForecast { horizons, is_synthetic: model.synthetic_traces > 0 })
                }
                Err(refusal) => Err(refusal.to_string()),
            },
            Err(error) => Err(error.to_string()),
        })
    }
}

/// Joins samples to intervals of a second, as the training does; the last ones may be left over.
fn join_to_seconds<'a>(samples: impl IntoIterator<Item = &'a TunerSample>) -> Vec<SequenceSample> {
    let mut seconds = Vec::new();
    let mut second: Vec<TunerSample> = Vec::new();
    for sample in samples {
        second.push(*sample);
        if second.iter().map(|one| one.interval_us).sum::<u64>() >= INTERVAL_US_MIN {
            seconds.push(joined(&second));
            second.clear();
        }
    }
    seconds
}

/// Samples that follow each other as one: shares are means by time, counters those of the last.
fn joined(samples: &[TunerSample]) -> SequenceSample {
    let last = samples[samples.len() - 1];
    let interval_us: u64 = samples.iter().map(|sample| sample.interval_us).sum();
    let interval_us = interval_us.max(1) as f64;
    let bytes: u64 = samples.iter().map(|sample| sample.bytes).sum();
    let sent: u64 = samples.iter().map(TunerSample::sent_segments).sum();
    let again: u64 = samples.iter().map(|sample| sample.tcp.retransmitted_segments).sum();
    let share = |of: fn(&TunerSample) -> f64| {
        let weighted = samples.iter().map(|sample| of(sample) * sample.interval_us as f64);
        Some(weighted.sum::<f64>() / interval_us)
    };
    SequenceSample {
        rate_bps: bytes as f64 * 8e6 / interval_us,
        streams: Some(last.active.streams.into()),
        retransmit_share: Some((again as f64 / sent.max(1) as f64).min(1.0)),
        rtt_min_us: last.tcp.rtt_min_us.filter(|rtt| *rtt > 0).map(Into::into),
        rtt_us: last.tcp.rtt_us.map(Into::into),
        source_empty: share(|sample| sample.queues.source_empty),
        destination_full: share(|sample| sample.queues.destination_full),
        rate_limit: share(|sample| sample.queues.rate_limit),
    }
}

#[cfg(test)]
mod tests {
    use penstock_tuner::{Parallelism, QueueShares, TcpDifferences};

    use super::*;

    const MODEL: &[u8] =
        include_bytes!("../../../core/forecast/tests/data/sequence-last.safetensors");

    fn sample(bytes: u64, interval_us: u64) -> TunerSample {
        TunerSample {
            interval_us,
            bytes,
            active: Parallelism::streams(4),
            tcp: TcpDifferences {
                rtt_us: Some(3000),
                rtt_min_us: Some(2000),
                ..Default::default()
            },
            queues: QueueShares { rate_limit: 0.25, ..QueueShares::default() },
            sender_cpu: 0.1,
            receiver_cpu: 0.1,
        }
    }

    #[test]
    fn samples_join_to_seconds() {
        let mut samples = vec![sample(1_448_000, 500_000), sample(2_896_000, 450_000)];
        samples[1].tcp.retransmitted_segments = 3;
        samples[1].queues.rate_limit = 0.0;
        samples[1].active = Parallelism::streams(8);
        samples.push(sample(1_000_000, 500_000));
        let seconds = join_to_seconds(&samples);
        assert_eq!(seconds.len(), 1, "the last half is left over");
        let second = seconds[0];
        assert!((second.rate_bps - 4_344_000.0 * 8.0 / 0.95).abs() < 1e-3, "{second:?}");
        assert_eq!(second.retransmit_share, Some(0.001));
        assert_eq!(
            (second.streams, second.rtt_us, second.rtt_min_us),
            (Some(8.0), Some(3000.0), Some(2000.0))
        );
        let share = second.rate_limit.unwrap();
        assert!((share - 0.25 * 500.0 / 950.0).abs() < 1e-12, "{share}");
        assert_eq!(join_to_seconds(&[]), []);
    }

    #[test]
    fn model_file_is_read_again() {
        let state = tempfile::tempdir().unwrap();
        let forecaster = RateForecaster::new(state.path());
        let samples = vec![sample(50_000_000, 500_000); 60];
        assert_eq!(forecaster.forecast(&samples), None, "no model");
        let path = state.path().join(SEQUENCE_MODEL_FILE);
        std::fs::write(&path, "none").unwrap();
        let refusal = forecaster.forecast(&samples).unwrap().unwrap_err();
        assert!(refusal.starts_with(&path.display().to_string()), "{refusal}");
        std::fs::write(&path, MODEL).unwrap();
        let found = forecaster.forecast(&samples).unwrap().unwrap();
        assert!(found.is_synthetic);
        let middle = found.horizons.iter().map(|one| (one.horizon_s, one.bits_per_second.p50));
        assert!(middle.eq([(1, 8e8), (5, 8e8)]), "{found:?}");
        let refusal = forecaster.forecast(&samples[1..]).unwrap().unwrap_err();
        assert!(refusal.contains("30 samples of a second, and there are 29"), "{refusal}");
    }
}
