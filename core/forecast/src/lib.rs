//! Forecasts of the duration and rate of a transfer from transfers before it.
//!
//! [`online::forecast`] needs no model file: it fits latency and rate of a path to its latest transfers and takes the
//! quantiles of what is left. [`ModelBundle`] holds gradient-boosted trees that `python/training` made, with features,
//! units, training range and golden vectors; [`ModelBundle::forecast`] corrects them by the latest transfers of the path.
//! Both give quantiles, and refuse with a reason what lies outside of what they saw. [`advise_streams`] says with how many
//! streams to begin. [`SequenceModel`] looks at a running transfer: it forecasts the rate of its next seconds.
//!
//! No clock and no I/O. A model file is untrusted input: everything in it has a limit.

#![forbid(unsafe_code)]

mod bundle;
mod features;
mod latency_fit;
mod mismatch;
pub mod online;
mod past;
mod quantiles;
mod sequence;
mod streams;
mod trees;

pub use bundle::{
    BundleError, FeatureRange, MODEL_BYTES_MAX, ModelBundle, ModelForecast, ModelRefusal,
};
pub use features::{FEATURES, FeatureColumn, FeatureGroup, TransferFeatures};
pub use latency_fit::LatencyFit;
pub use mismatch::{UnknownFeature, UntrainedValue};
pub use past::{PastTransfer, pair_rates_before};
pub use quantiles::{ForecastQuantiles, WeightedValues};
pub use sequence::{
    SEQUENCE_BYTES_MAX, SEQUENCE_COLUMNS, SequenceColumn, SequenceForecast, SequenceKind,
    SequenceModel, SequenceModelError, SequenceRefusal, SequenceSample,
};
pub use streams::{StreamsAdvice, StreamsOutcome, advise_streams};
pub use trees::{TreeModel, TreeModelError};
