//! A model file: trees with their features, training range, training data and golden vectors.
//!
//! `python/training` writes it; [docs/forecast.md](../../../docs/forecast.md) describes the format. The trees give the
//! natural logarithm of the rate in bit/s at three quantiles. The golden vectors are outputs of XGBoost itself: a file whose
//! trees give others here is refused.

use serde::Deserialize;

use crate::features::{FeatureColumn, TransferFeatures};
use crate::mismatch::{UnknownFeature, UntrainedValue};
use crate::online::{TRANSFERS_MIN, WINDOW_TRANSFERS, weight_of_rank};
use crate::quantiles::{ForecastQuantiles, WeightedValues};
use crate::trees::{FEATURES_MAX, TreeModel, TreeModelError, TreesFile};

/// Largest model file that is read.
pub const MODEL_BYTES_MAX: usize = 32 << 20;

/// Most golden vectors.
const GOLDEN_MAX: usize = 10_000;

const FORMAT: &str = "penstock-forecast";
const FORMAT_VERSION: u32 = 1;
const TARGET: &str = "ln_bits_per_second";
const QUANTILE_LEVELS: [f64; 3] = [0.1, 0.5, 0.9];

/// Largest difference to a golden output, relative to outputs above 1.
const GOLDEN_TOLERANCE: f64 = 1e-5;

/// Largest logarithm of a rate that is believed: 1e18 bit/s.
const LN_RATE_MAX: f64 = 41.5;

/// A model file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file is larger than is read.
    #[error("the model has {0} bytes, and at most {MODEL_BYTES_MAX} are read")]
    Size(usize),
    /// It is no JSON, or lacks a field.
    #[error("the model file cannot be read: {0}: make it with penstock tune train")]
    Json(#[from] serde_json::Error),
    /// Its trees cannot be used.
    #[error("the trees of the model file: {0}")]
    Trees(#[from] TreeModelError),
    /// A field has a value of another kind of file.
    #[error(
        "{field} of the model file is {found}, and {expected} is needed: make it with penstock tune train"
    )]
    Field {
        /// Field of the file.
        field: &'static str,
        /// Value of the file.
        found: String,
        /// Value that this reader needs.
        expected: String,
    },
    /// It needs a feature that this version does not have.
    #[error(transparent)]
    Feature(#[from] UnknownFeature),
    /// A golden vector differs.
    #[error(
        "golden vector {number} of the model file gives {found}, not {expected}: the file is damaged, or its XGBoost differs from what is known here"
    )]
    Golden {
        /// Number of the vector.
        number: usize,
        /// Output here.
        found: f64,
        /// Output of XGBoost.
        expected: f64,
    },
}

#[derive(Deserialize)]
struct BundleDocument {
    format: String,
    version: u32,
    target: String,
    quantiles: Vec<f64>,
    features: Vec<FeatureDocument>,
    training: TrainingDocument,
    golden: Vec<GoldenDocument>,
    model: TreesFile,
}

#[derive(Deserialize)]
struct FeatureDocument {
    name: String,
    unit: String,
    /// Subtracted before `scale` divides.
    offset: f64,
    scale: f64,
    /// Smallest and largest value of the training data; null for none.
    low: Option<f64>,
    high: Option<f64>,
    /// True if some of the training data had no value.
    missing: bool,
}

#[derive(Deserialize)]
struct TrainingDocument {
    rows: u64,
    synthetic_rows: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct GoldenDocument {
    input: Vec<Option<f64>>,
    output: Vec<f64>,
}

/// A feature of a model with the range of its training data.
#[derive(Debug)]
pub struct FeatureRange {
    /// Column of the features.
    pub column: &'static FeatureColumn,
    /// Smallest and largest value of the training data; `None` where it had none.
    pub range: Option<(f64, f64)>,
    /// True if some of the training data had no value.
    pub may_be_missing: bool,
    offset: f64,
    scale: f64,
}

/// A model that was read and checked.
#[derive(Debug)]
pub struct ModelBundle {
    features: Vec<FeatureRange>,
    trees: TreeModel,
    /// Rows of its training data.
    pub training_rows: u64,
    /// Those among them that a simulator or generator made.
    pub synthetic_rows: u64,
    /// SHA-256 of the training data, in hexadecimal digits.
    pub training_sha256: String,
}

/// Forecast of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelForecast {
    /// Quantiles of the duration.
    pub seconds: ForecastQuantiles,
    /// Quantiles of the mean rate.
    pub bits_per_second: ForecastQuantiles,
    /// Factor by which the latest transfers of the pair were faster than the model's median.
    pub correction: f64,
    /// Transfers of the pair that gave the correction; 0 where they were too few.
    pub corrected_by: usize,
}

/// Reason why a model gives no forecast.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelRefusal {
    /// The model was not trained for a value.
    #[error(transparent)]
    Value(#[from] UntrainedValue),
    /// The size is not known or zero.
    #[error("a forecast needs a number of bytes")]
    NoBytes,
    /// The trees give no rate.
    #[error("the model gives no rate")]
    NoRate,
}

fn need<T: PartialEq + ToString>(
    field: &'static str,
    found: &T,
    expected: &T,
) -> Result<(), BundleError> {
    if found == expected {
        return Ok(());
    }
    Err(BundleError::Field { field, found: found.to_string(), expected: expected.to_string() })
}

impl FeatureRange {
    fn of(document: FeatureDocument) -> Result<Self, BundleError> {
        let FeatureDocument { name, unit, offset, scale, low, high, missing } = document;
        let known = FeatureColumn::find(&name).filter(|column| column.unit == unit);
        let Some(column) = known else { return Err(UnknownFeature { name, unit }.into()) };
        if !offset.is_finite() || !scale.is_normal() {
            let (found, expected) = (format!("{offset}, {scale}"), "a number".to_owned());
            return Err(BundleError::Field { field: "offset, scale", found, expected });
        }
        Ok(Self { column, range: low.zip(high), may_be_missing: missing, offset, scale })
    }

    fn scaled(&self, value: Option<f64>) -> f32 {
        value.map_or(f32::NAN, |value| ((value - self.offset) / self.scale) as f32)
    }

    /// Checks that the training data had such values.
    fn check(&self, value: Option<f64>) -> Result<(), UntrainedValue> {
        let FeatureColumn { name, unit, .. } = *self.column;
        match (value, self.range) {
            (Some(value), Some((low, high))) if !(low..=high).contains(&value) => {
                Err(UntrainedValue::Range { name, unit, value, low, high })
            }
            (None, _) if !self.may_be_missing => Err(UntrainedValue::Missing(name)),
            _ => Ok(()),
        }
    }
}

impl ModelBundle {
    /// Reads a model file, and checks it with its golden vectors.
    ///
    /// # Errors
    /// When it is no model file of this version, is above a limit or damaged.
    pub fn parse(json: &[u8]) -> Result<Self, BundleError> {
        if json.len() > MODEL_BYTES_MAX {
            return Err(BundleError::Size(json.len()));
        }
        let document: BundleDocument = serde_json::from_slice(json)?;
        need("format", &document.format.as_str(), &FORMAT)?;
        need("version", &document.version, &FORMAT_VERSION)?;
        need("target", &document.target.as_str(), &TARGET)?;
        let shown = |quantiles: &[f64]| format!("{quantiles:?}");
        need("quantiles", &shown(&document.quantiles), &shown(&QUANTILE_LEVELS))?;
        let limit = |what, count, limit| match count > limit {
            true => Err(TreeModelError::TooMany { what, count, limit }),
            false => Ok(()),
        };
        limit("features", document.features.len(), FEATURES_MAX)?;
        limit("golden vectors", document.golden.len(), GOLDEN_MAX)?;
        let features = document.features.into_iter().map(FeatureRange::of);
        let features = features.collect::<Result<Vec<_>, _>>()?;
        let trees = TreeModel::lower(document.model)?;
        need("number of features", &trees.features(), &features.len())?;
        need("number of outputs", &trees.outputs(), &QUANTILE_LEVELS.len())?;
        let bundle = Self {
            features,
            trees,
            training_rows: document.training.rows,
            synthetic_rows: document.training.synthetic_rows,
            training_sha256: document.training.sha256,
        };
        if document.golden.is_empty() {
            let (found, expected) = ("0".to_owned(), "at least 1".to_owned());
            return Err(BundleError::Field { field: "number of golden vectors", found, expected });
        }
        for (number, golden) in document.golden.iter().enumerate() {
            bundle.check_golden(number, golden)?;
        }
        Ok(bundle)
    }

    fn check_golden(&self, number: usize, golden: &GoldenDocument) -> Result<(), BundleError> {
        need("length of an input", &golden.input.len(), &self.features.len())?;
        need("length of an output", &golden.output.len(), &self.trees.outputs())?;
        let found = self.outputs(golden.input.iter().copied());
        for (found, expected) in found.into_iter().zip(&golden.output) {
            let (found, expected) = (f64::from(found), *expected);
            let is_equal = (found - expected).abs() <= GOLDEN_TOLERANCE * expected.abs().max(1.0);
            if !is_equal {
                return Err(BundleError::Golden { number, found, expected });
            }
        }
        Ok(())
    }

    /// Features with the ranges of the training data.
    #[must_use]
    pub fn features(&self) -> &[FeatureRange] {
        &self.features
    }

    fn outputs(&self, values: impl Iterator<Item = Option<f64>>) -> Vec<f32> {
        let scaled = self.features.iter().zip(values).map(|(one, value)| one.scaled(value));
        self.trees.predict(&scaled.collect::<Vec<_>>())
    }

    /// Logarithms of the rate at the three quantiles, in order. Trees of different quantiles may cross.
    fn ln_rates(&self, features: &TransferFeatures) -> Option<[f64; 3]> {
        let values = self.features.iter().map(|one| one.column.value(features));
        let mut rates: Vec<f64> = self.outputs(values).into_iter().map(f64::from).collect();
        rates.sort_by(f64::total_cmp);
        let rates: [f64; 3] = rates.try_into().ok()?;
        rates.iter().all(|rate| rate.abs() <= LN_RATE_MAX).then_some(rates)
    }

    /// Forecasts a transfer. `recent` are features and rates in bits per second of the latest transfers of the same pair,
    /// newest first: the median of what the model missed there corrects it.
    ///
    /// # Errors
    /// When a feature lies outside of the training data.
    pub fn forecast(
        &self,
        features: &TransferFeatures,
        recent: &[(TransferFeatures, f64)],
    ) -> Result<ModelForecast, ModelRefusal> {
        let bytes = features.bytes.filter(|bytes| *bytes > 0.0).ok_or(ModelRefusal::NoBytes)?;
        for one in &self.features {
            one.check(one.column.value(features))?;
        }
        let [p10, p50, p90] = self.ln_rates(features).ok_or(ModelRefusal::NoRate)?.map(f64::exp);
        let residual = |(rank, (features, rate)): (usize, &(TransferFeatures, f64))| {
            let [_, median, _] = self.ln_rates(features)?;
            Some((rate.ln() - median, weight_of_rank(rank)))
        };
        let residuals: Vec<_> =
            recent.iter().take(WINDOW_TRANSFERS).enumerate().filter_map(residual).collect();
        let corrected_by = if residuals.len() < TRANSFERS_MIN { 0 } else { residuals.len() };
        let median = WeightedValues::new(residuals.iter().take(corrected_by).copied()).median();
        let correction = median.unwrap_or(0.0).exp();
        let bits_per_second = ForecastQuantiles { p10, p50, p90 }.scaled(correction);
        let seconds = bits_per_second.reciprocal(bytes * 8.0);
        Ok(ModelForecast { seconds, bits_per_second, correction, corrected_by })
    }
}
