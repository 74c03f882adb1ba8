//! Forecasts of the rate of a running transfer in its next seconds, from its last samples.
//!
//! `python/training/sequence.py` trains the models; [docs/forecast.md](../../../docs/forecast.md#while-a-transfer-runs)
//! describes the file. Rates are ratios to the mean of the window, so that a model holds for fast and slow paths alike; the
//! outputs are such ratios, too: three quantiles for each horizon. Values outside of the training data are refused.

mod columns;
mod layers;
mod model_file;

pub use columns::{SEQUENCE_COLUMNS, SequenceColumn, SequenceSample};
pub use model_file::{SEQUENCE_BYTES_MAX, SequenceKind, SequenceModelError};

use crate::mismatch::{UnknownFeature, UntrainedValue};
use crate::quantiles::ForecastQuantiles;
use columns::RATE_COLUMN;
use layers::{AffineLayer, LstmLayer};
use model_file::{SequenceFeatureDocument, SequenceFile, field_error};

const FORMAT: &str = "penstock-sequence";
const FORMAT_VERSION: u32 = 1;
const TARGET: &str = "rate_by_window_mean";
const QUANTILE_LEVELS: [f64; 3] = [0.1, 0.5, 0.9];

/// Seconds of a sample.
const SAMPLE_S: u32 = 1;

/// Most samples of a window.
const WINDOW_SAMPLES_MAX: usize = 64;

/// Most horizons, and the longest in seconds.
const HORIZONS_MAX: usize = 4;
const HORIZON_S_MAX: u32 = 60;

/// Most cells of an LSTM: with the most golden vectors a file takes some tenths of a second.
const CELLS_MAX: usize = 64;

/// Most golden vectors.
const GOLDEN_MAX: usize = 64;

/// Largest difference to a golden output, relative to outputs above 1.
const GOLDEN_TOLERANCE: f64 = 1e-5;

/// Reason why a model gives no forecast of a running transfer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SequenceRefusal {
    /// The transfer has not run for long enough.
    #[error("the model needs {needed} samples of a second, and there are {samples}")]
    TooFew {
        /// Samples that exist.
        samples: usize,
        /// Samples of a window.
        needed: usize,
    },
    /// The model was not trained for a value of a sample.
    #[error(transparent)]
    Value(#[from] UntrainedValue),
    /// Nothing moved during the whole window.
    #[error("nothing moved during the last {0} s")]
    AtRest(usize),
    /// The model gives no number.
    #[error("the model gives no rate")]
    NoRate,
}

/// Forecast of the mean rate from now until the horizon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SequenceForecast {
    /// Seconds from now on.
    pub horizon_s: u32,
    /// Quantiles of the mean rate over these seconds.
    pub bits_per_second: ForecastQuantiles,
}

/// Feature of a model with the range of its training data.
#[derive(Debug)]
struct SequenceFeature {
    column: &'static SequenceColumn,
    low: f64,
    high: f64,
    offset: f64,
    scale: f64,
}

impl SequenceFeature {
    fn of(document: SequenceFeatureDocument) -> Result<Self, SequenceModelError> {
        let SequenceFeatureDocument { name, unit, offset, scale, low, high } = document;
        let known = SequenceColumn::find(&name).filter(|column| column.unit == unit);
        let Some(column) = known else { return Err(UnknownFeature { name, unit }.into()) };
        if !offset.is_finite() || !scale.is_normal() {
            return Err(field_error("offset, scale", format!("{offset}, {scale}"), "a number"));
        }
        Ok(Self { column, low, high, offset, scale })
    }

    fn checked(&self, sample: &SequenceSample) -> Result<f64, UntrainedValue> {
        let SequenceColumn { name, unit, .. } = *self.column;
        let value = self.column.value(sample).ok_or(UntrainedValue::Missing(name))?;
        let (low, high) = (self.low, self.high);
        match (low..=high).contains(&value) {
            true => Ok(value),
            false => Err(UntrainedValue::Range { name, unit, value, low, high }),
        }
    }
}

/// Part of a model before its affine layer.
#[derive(Debug)]
enum SequenceNetwork {
    Last,
    Linear,
    Lstm(LstmLayer),
    Bilstm { forward: LstmLayer, backward: LstmLayer },
}

/// A model of sequences that was read and checked.
#[derive(Debug)]
pub struct SequenceModel {
    /// Kind of the model.
    pub kind: SequenceKind,
    /// Traces of its training data.
    pub training_traces: u64,
    /// Those among them that a simulator made.
    pub synthetic_traces: u64,
    /// SHA-256 of the training data, in hexadecimal digits.
    pub training_sha256: String,
    /// Largest difference to an output of the training, relative to outputs above 1.
    pub golden_difference: f64,
    window: usize,
    horizons_s: Vec<u32>,
    features: Vec<SequenceFeature>,
    network: SequenceNetwork,
    head: AffineLayer,
}

impl SequenceModel {
    /// Reads a model file, and checks it with its golden vectors.
    ///
    /// # Errors
    /// When it is no model file of this version, is above a limit or damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, SequenceModelError> {
        let mut file = SequenceFile::read(bytes)?;
        let document = &mut file.document;
        need("format", &document.format.as_str(), &FORMAT)?;
        need("version", &document.version, &FORMAT_VERSION)?;
        need("target", &document.target.as_str(), &TARGET)?;
        let shown = |quantiles: &[f64]| format!("{quantiles:?}");
        need("quantiles", &shown(&document.quantiles), &shown(&QUANTILE_LEVELS))?;
        need("interval_s", &document.interval_s, &SAMPLE_S)?;
        between("window", document.window, 1, WINDOW_SAMPLES_MAX)?;
        let horizons_s = std::mem::take(&mut document.horizons_s);
        between("number of horizons", horizons_s.len(), 1, HORIZONS_MAX)?;
        for horizon in &horizons_s {
            between("horizon", *horizon, 1, HORIZON_S_MAX)?;
        }
        between("number of features", document.features.len(), 1, SEQUENCE_COLUMNS.len())?;
        let features = std::mem::take(&mut document.features).into_iter().map(SequenceFeature::of);
        let features = features.collect::<Result<Vec<_>, _>>()?;
        need("first feature", &features[0].column.name, &RATE_COLUMN)?;
        let (window, kind) = (document.window, document.kind);
        let network = match kind {
            SequenceKind::Last => SequenceNetwork::Last,
            SequenceKind::Linear => SequenceNetwork::Linear,
            SequenceKind::Lstm => SequenceNetwork::Lstm(lstm(&file, "forward", features.len())?),
            SequenceKind::Bilstm => SequenceNetwork::Bilstm {
                forward: lstm(&file, "forward", features.len())?,
                backward: lstm(&file, "backward", features.len())?,
            },
        };
        let outputs = horizons_s.len() * QUANTILE_LEVELS.len();
        let inputs = match &network {
            SequenceNetwork::Last => 0,
            SequenceNetwork::Linear => window * features.len(),
            SequenceNetwork::Lstm(layer) => layer.cells,
            SequenceNetwork::Bilstm { forward, backward } => forward.cells + backward.cells,
        };
        let head = AffineLayer {
            weight: match inputs {
                0 => Vec::new(),
                _ => file.numbers("head.weight", &[outputs, inputs])?,
            },
            bias: file.numbers("head.bias", &[outputs])?,
        };
        let training = &mut file.document.training;
        let mut model = Self {
            kind,
            training_traces: training.traces,
            synthetic_traces: training.synthetic_traces,
            training_sha256: std::mem::take(&mut training.sha256),
            golden_difference: 0.0,
            window,
            horizons_s,
            features,
            network,
            head,
        };
        model.golden_difference = model.check_golden(&file)?;
        Ok(model)
    }

    /// Samples that a forecast needs.
    #[must_use]
    pub const fn window(&self) -> usize {
        self.window
    }

    /// Columns that it needs.
    pub fn columns(&self) -> impl Iterator<Item = &'static SequenceColumn> {
        self.features.iter().map(|feature| feature.column)
    }

    /// Compares the golden vectors; returns the largest difference.
    fn check_golden(&self, file: &SequenceFile<'_>) -> Result<f64, SequenceModelError> {
        let [vectors, _, _] = file.shape("golden.input")?;
        between("number of golden vectors", vectors, 1, GOLDEN_MAX)?;
        let inputs = file.numbers("golden.input", &[vectors, self.window, self.features.len()])?;
        let outputs = file.numbers("golden.output", &[vectors, self.head.bias.len()])?;
        let inputs = inputs.chunks_exact(self.window * self.features.len());
        let mut largest = 0.0_f64;
        for (number, (input, expected)) in
            inputs.zip(outputs.chunks_exact(self.head.bias.len())).enumerate()
        {
            let Some((_, found)) = self.ratios(input.to_vec()) else {
                return Err(field_error("rate of a golden vector", 0, "a rate above 0"));
            };
            for (found, expected) in found.into_iter().zip(expected.iter().copied()) {
                let difference = (found - expected).abs() / expected.abs().max(1.0);
                let is_equal = difference <= GOLDEN_TOLERANCE;
                if !is_equal {
                    return Err(SequenceModelError::Golden { number, found, expected });
                }
                largest = largest.max(difference);
            }
        }
        Ok(largest)
    }

    /// Mean rate of a window and the outputs as ratios to it, not sorted. `values` has the features of each sample.
    /// `None` without a rate.
    fn ratios(&self, mut values: Vec<f64>) -> Option<(f64, Vec<f64>)> {
        let count = self.features.len();
        let mean = values.iter().step_by(count).sum::<f64>() / self.window as f64;
        if !mean.is_normal() || mean < 0.0 {
            return None;
        }
        let last = values[values.len() - count] / mean;
        for step in values.chunks_exact_mut(count) {
            step[0] /= mean;
            for (value, feature) in step.iter_mut().zip(&self.features) {
                *value = (*value - feature.offset) / feature.scale;
            }
        }
        let steps = || values.chunks_exact(count);
        let outputs = match &self.network {
            SequenceNetwork::Last => self.head.bias.iter().map(|offset| last + offset).collect(),
            SequenceNetwork::Linear => self.head.outputs(&values),
            SequenceNetwork::Lstm(layer) => self.head.outputs(&layer.last_outputs(steps())),
            SequenceNetwork::Bilstm { forward, backward } => {
                let mut seen = forward.last_outputs(steps());
                seen.extend(backward.last_outputs(steps().rev()));
                self.head.outputs(&seen)
            }
        };
        Some((mean, outputs))
    }

    /// Forecasts the rate from the latest samples of a transfer, newest last; earlier ones are not read.
    ///
    /// # Errors
    /// When there are too few samples, or one lies outside of the training data.
    pub fn forecast(
        &self,
        samples: &[SequenceSample],
    ) -> Result<Vec<SequenceForecast>, SequenceRefusal> {
        let Some(begin) = samples.len().checked_sub(self.window) else {
            let (samples, needed) = (samples.len(), self.window);
            return Err(SequenceRefusal::TooFew { samples, needed });
        };
        let mut values = Vec::with_capacity(self.window * self.features.len());
        for sample in &samples[begin..] {
            for feature in &self.features {
                values.push(feature.checked(sample)?);
            }
        }
        let (mean, ratios) = self.ratios(values).ok_or(SequenceRefusal::AtRest(self.window))?;
        let quantiles = |(horizon_s, ratios): (&u32, &[f64])| {
            let mut rates: [f64; 3] = ratios.try_into().ok()?;
            // Outputs of different quantiles may cross.
            rates.sort_by(f64::total_cmp);
            let [p10, p50, p90] = rates.map(|ratio| ratio.max(0.0) * mean);
            let is_number = rates.iter().all(|ratio| ratio.is_finite()) && p90.is_finite();
            let bits_per_second = ForecastQuantiles { p10, p50, p90 };
            is_number.then_some(SequenceForecast { horizon_s: *horizon_s, bits_per_second })
        };
        let ratios = ratios.chunks_exact(QUANTILE_LEVELS.len());
        let forecasts: Option<Vec<_>> = self.horizons_s.iter().zip(ratios).map(quantiles).collect();
        forecasts.ok_or(SequenceRefusal::NoRate)
    }
}

fn lstm(
    file: &SequenceFile<'_>,
    name: &str,
    inputs: usize,
) -> Result<LstmLayer, SequenceModelError> {
    let [_, cells] = file.shape(&format!("{name}.recurrent"))?;
    between("number of cells", cells, 1, CELLS_MAX)?;
    Ok(LstmLayer {
        inputs,
        cells,
        input: file.numbers(&format!("{name}.input"), &[4 * cells, inputs])?,
        recurrent: file.numbers(&format!("{name}.recurrent"), &[4 * cells, cells])?,
        bias: file.numbers(&format!("{name}.bias"), &[4 * cells])?,
    })
}

fn need<T: PartialEq + ToString>(
    field: &'static str,
    found: &T,
    expected: &T,
) -> Result<(), SequenceModelError> {
    match found == expected {
        true => Ok(()),
        false => Err(field_error(field, found.to_string(), expected.to_string())),
    }
}

fn between<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    found: T,
    low: T,
    high: T,
) -> Result<(), SequenceModelError> {
    match (&low..=&high).contains(&&found) {
        true => Ok(()),
        false => Err(field_error(field, found, format!("{low} to {high}"))),
    }
}
