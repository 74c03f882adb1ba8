//! Model files of sequences: safetensors with weights and golden vectors, and their description as JSON in its metadata.

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::mismatch::UnknownFeature;

/// Largest model file that is read.
pub const SEQUENCE_BYTES_MAX: usize = 1 << 20;

/// Key of the description in the metadata.
const DESCRIPTION_KEY: &str = "penstock";

/// A model file of sequences that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SequenceModelError {
    /// The file is larger than is read.
    #[error("the model has {0} bytes, and at most {SEQUENCE_BYTES_MAX} are read")]
    Size(usize),
    /// It is no file of safetensors, or lacks a tensor.
    #[error("the model file cannot be read: {0}: make it with python/training/sequence.py")]
    Tensors(#[from] SafeTensorError),
    /// Its description is no JSON, or lacks a field.
    #[error(
        "the description of the model file cannot be read: {0}: make it with python/training/sequence.py"
    )]
    Json(#[from] serde_json::Error),
    /// A field or tensor differs from what this reader needs.
    #[error(
        "{field} of the model file is {found}, and {expected} is needed: make it with python/training/sequence.py"
    )]
    Field {
        /// Field of the description, or tensor.
        field: String,
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
        "golden vector {number} of the model file gives {found}, not {expected}: the file is damaged"
    )]
    Golden {
        /// Number of the vector.
        number: usize,
        /// Output here.
        found: f64,
        /// Output of the training.
        expected: f64,
    },
}

/// Kind of a model, from the simplest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SequenceKind {
    /// Last value, with the quantiles of its errors.
    Last,
    /// Linear in all values of the window.
    Linear,
    /// Long short-term memory.
    Lstm,
    /// Two of them: one reads the window from its beginning, one from its end.
    Bilstm,
}

/// Description of a model.
#[derive(Deserialize)]
pub(super) struct SequenceDocument {
    pub(super) format: String,
    pub(super) version: u32,
    pub(super) kind: SequenceKind,
    pub(super) target: String,
    pub(super) quantiles: Vec<f64>,
    pub(super) interval_s: u32,
    pub(super) window: usize,
    pub(super) horizons_s: Vec<u32>,
    pub(super) features: Vec<SequenceFeatureDocument>,
    pub(super) training: SequenceTrainingDocument,
}

#[derive(Deserialize)]
pub(super) struct SequenceFeatureDocument {
    pub(super) name: String,
    pub(super) unit: String,
    /// Subtracted before `scale` divides.
    pub(super) offset: f64,
    pub(super) scale: f64,
    /// Smallest and largest value of the training data.
    pub(super) low: f64,
    pub(super) high: f64,
}

#[derive(Deserialize)]
pub(super) struct SequenceTrainingDocument {
    pub(super) traces: u64,
    pub(super) synthetic_traces: u64,
    pub(super) sha256: String,
}

pub(super) fn field_error(
    field: impl Into<String>,
    found: impl ToString,
    expected: impl ToString,
) -> SequenceModelError {
    let (found, expected) = (found.to_string(), expected.to_string());
    SequenceModelError::Field { field: field.into(), found, expected }
}

/// File with its description.
pub(super) struct SequenceFile<'a> {
    pub(super) document: SequenceDocument,
    tensors: SafeTensors<'a>,
}

impl<'a> SequenceFile<'a> {
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, SequenceModelError> {
        if bytes.len() > SEQUENCE_BYTES_MAX {
            return Err(SequenceModelError::Size(bytes.len()));
        }
        let (_, header) = SafeTensors::read_metadata(bytes)?;
        let described = header.metadata().as_ref().and_then(|all| all.get(DESCRIPTION_KEY));
        let Some(described) = described else {
            return Err(field_error("metadata", "absent", DESCRIPTION_KEY));
        };
        let document = serde_json::from_str(described)?;
        Ok(Self { document, tensors: SafeTensors::deserialize(bytes)? })
    }

    /// Sizes of a tensor of this many dimensions.
    pub(super) fn shape<const DIMENSIONS: usize>(
        &self,
        name: &str,
    ) -> Result<[usize; DIMENSIONS], SequenceModelError> {
        let tensor = self.tensors.tensor(name)?;
        let shape = tensor.shape();
        shape
            .try_into()
            .map_err(|_| field_error(format!("shape of {name}"), format!("{shape:?}"), DIMENSIONS))
    }

    /// Numbers of a tensor of this shape, all finite.
    pub(super) fn numbers(
        &self,
        name: &str,
        shape: &[usize],
    ) -> Result<Vec<f64>, SequenceModelError> {
        let tensor = self.tensors.tensor(name)?;
        if tensor.shape() != shape {
            let (found, expected) = (format!("{:?}", tensor.shape()), format!("{shape:?}"));
            return Err(field_error(format!("shape of {name}"), found, expected));
        }
        let data = tensor.data();
        let numbers: Vec<f64> = match tensor.dtype() {
            Dtype::F32 => data
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f64::from(f32::from_le_bytes(*bytes)))
                .collect(),
            Dtype::F64 => {
                data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
            }
            other => {
                return Err(field_error(
                    format!("type of {name}"),
                    format!("{other:?}"),
                    "F32 or F64",
                ));
            }
        };
        match numbers.iter().find(|number| !number.is_finite()) {
            Some(number) => Err(field_error(name, number, "a number")),
            None => Ok(numbers),
        }
    }
}
