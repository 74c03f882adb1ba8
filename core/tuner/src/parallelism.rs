//! Settings that a controller chooses, and their limits.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Stage of a transfer's pipeline with workers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PipelineStage {
    /// Reader threads per device of the source.
    Readers,
    /// Data streams of the network stage.
    Streams,
    /// Writer threads per device of the destination.
    Writers,
}

impl PipelineStage {
    /// Every stage, in the order of the data.
    pub const ALL: [Self; 3] = [Self::Readers, Self::Streams, Self::Writers];
}

impl fmt::Display for PipelineStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Readers => "readers",
            Self::Streams => "streams",
            Self::Writers => "writers",
        })
    }
}

/// Number of workers of each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parallelism {
    /// Reader threads per device of the source.
    pub readers: u16,
    /// Data streams of the transfer together.
    pub streams: u16,
    /// Writer threads per device of the destination.
    pub writers: u16,
}

impl Parallelism {
    /// Creates settings with this number of streams and one worker at each other stage.
    #[must_use]
    pub const fn streams(streams: u16) -> Self {
        Self { readers: 1, streams, writers: 1 }
    }

    /// Returns the workers of one stage.
    #[must_use]
    pub const fn at(self, stage: PipelineStage) -> u16 {
        match stage {
            PipelineStage::Readers => self.readers,
            PipelineStage::Streams => self.streams,
            PipelineStage::Writers => self.writers,
        }
    }

    /// Returns the settings with `workers` at `stage`.
    #[must_use]
    pub const fn with(mut self, stage: PipelineStage, workers: u16) -> Self {
        match stage {
            PipelineStage::Readers => self.readers = workers,
            PipelineStage::Streams => self.streams = workers,
            PipelineStage::Writers => self.writers = workers,
        }
        self
    }
}

/// Range of each setting that the operator and the host allow; both ends belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TuningLimits {
    /// Fewest workers of each stage, at least one.
    pub min: Parallelism,
    /// Most workers of each stage.
    pub max: Parallelism,
}

impl TuningLimits {
    /// Creates limits that let only the streams change, up to `streams_max`, and keep the other stages of `fixed`.
    #[must_use]
    pub fn streams_up_to(streams_max: u16, fixed: Parallelism) -> Self {
        Self {
            min: fixed.with(PipelineStage::Streams, 1),
            max: fixed.with(PipelineStage::Streams, streams_max.max(1)),
        }
    }

    /// Returns `wanted` moved into the limits.
    #[must_use]
    pub fn clamp(&self, wanted: Parallelism) -> Parallelism {
        let clamp_one = |settings: Parallelism, stage| {
            let low = self.min.at(stage).max(1);
            let high = self.max.at(stage).max(low);
            settings.with(stage, settings.at(stage).clamp(low, high))
        };
        PipelineStage::ALL.into_iter().fold(wanted, clamp_one)
    }
}
