//! Differences between a model and this version or a transfer, of both kinds of models.

/// A feature of a model that this version does not have, or has in another unit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the model needs the feature {name:?} in {unit:?}, which this version does not have: train it again"
)]
pub struct UnknownFeature {
    /// Name of the feature.
    pub name: String,
    /// Unit of the feature.
    pub unit: String,
}

/// A value of a transfer for which a model was not trained.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum UntrainedValue {
    /// It lies outside of the training data.
    #[error("the model was trained with {name} from {low} to {high} {unit}, and it is {value} now")]
    Range {
        /// Name of the feature.
        name: &'static str,
        /// Unit of the feature.
        unit: &'static str,
        /// Value of the transfer.
        value: f64,
        /// Smallest value of the training data.
        low: f64,
        /// Largest value of the training data.
        high: f64,
    },
    /// It is not known, and all training data had it.
    #[error("the model needs {0}, which is not known here")]
    Missing(&'static str),
}
