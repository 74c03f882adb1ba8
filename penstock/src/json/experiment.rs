//! `penstock experiment`.

use serde::Serialize;
use utoipa::ToSchema;

/// Experiments of a folder.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExperimentListJson {
    /// Experiments, sorted by folder.
    pub(crate) experiments: Vec<Listed>,
}

/// Experiment with its cases.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Listed {
    /// Folder of the experiment.
    pub(crate) folder: String,
    /// Title in plain text.
    pub(crate) title: String,
    /// Names of the cases, as `--case` takes them.
    pub(crate) cases: Vec<String>,
}

/// Result of an experiment.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExperimentRunJson {
    /// Title in plain text.
    pub(crate) title: String,
    /// Origin of the published figures; null where nothing is published.
    pub(crate) source: Option<String>,
    /// Remark on the figures.
    pub(crate) note: Option<String>,
    /// Release of the kernel.
    pub(crate) kernel: String,
    /// Processors of this machine.
    pub(crate) cores: usize,
    /// Names of the columns with their units, in the order of `measured` and `published`.
    pub(crate) columns: Vec<String>,
    /// Results, one row for each case.
    pub(crate) rows: Vec<ExperimentRowJson>,
}

/// Results of a case.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExperimentRowJson {
    /// Name of the case.
    pub(crate) case: String,
    /// Title in plain text.
    pub(crate) title: Option<String>,
    /// Median of the valid plays, or of all where none was valid, for each column; null where no play gave a figure
    /// [unit of the column].
    pub(crate) measured: Vec<Option<f64>>,
    /// Published figure for each column; null where none is known [unit of the column].
    pub(crate) published: Vec<Option<f64>>,
    /// Expected figure for each column, such as one that was measured before [unit of the column].
    pub(crate) expected: Vec<Option<f64>>,
    /// Largest good figure for each column [unit of the column].
    pub(crate) bounds: Vec<Option<f64>>,
    /// Columns whose figure is above its bound.
    pub(crate) above_bounds: Vec<String>,
    /// Plays in which all links delivered packets in time.
    pub(crate) valid_plays: usize,
    /// Number of all plays.
    pub(crate) plays: usize,
}
