//! `penstock plan`.

use serde::Serialize;
use utoipa::ToSchema;

/// Capacity plan by model and year.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CapacityPlan {
    /// Name of the plan.
    pub(crate) name: String,
    /// Title in plain text.
    pub(crate) title: Option<String>,
    /// Origin of the figures.
    pub(crate) source: Option<String>,
    /// Name of the network; null without `--topology`.
    pub(crate) topology: Option<String>,
    /// Experiments with their flows, as in the file.
    pub(crate) experiments: Vec<ExperimentJson>,
    /// Models with the rates that they need.
    pub(crate) models: Vec<ModelJson>,
}

/// Experiment with its flows.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExperimentJson {
    /// Name of the experiment.
    pub(crate) name: String,
    /// Title in plain text.
    pub(crate) title: Option<String>,
    /// Flows of its data.
    pub(crate) flows: Vec<FlowJson>,
}

/// A flow of data in the first year, before any factor of a model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct FlowJson {
    /// Name of the flow.
    pub(crate) name: String,
    /// Name of the sending site.
    pub(crate) from: String,
    /// Receiving sites with their rates.
    pub(crate) to: Vec<Share>,
    /// Rate to all sites.
    pub(crate) rate_bits_per_second: u64,
    /// Data to be moved; null where the file has a rate.
    pub(crate) data_bytes: Option<u64>,
    /// Time in which the data are to be moved; null where the file has a rate.
    pub(crate) within_seconds: Option<f64>,
    /// Growth by the year: 0.4 is 40 %.
    pub(crate) growth_per_year: f64,
}

/// Share of a site in a flow.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Share {
    /// Name of the receiving site.
    pub(crate) site: String,
    /// Rate to that site.
    pub(crate) rate_bits_per_second: u64,
}

/// Traffic model with its needs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ModelJson {
    /// Name of the model.
    pub(crate) name: String,
    /// Title in plain text.
    pub(crate) title: Option<String>,
    /// Factors by which all rates are multiplied.
    pub(crate) factors: Vec<Factor>,
    /// Need by the year.
    pub(crate) years: Vec<Year>,
    /// Load of the links; null without `--topology`.
    pub(crate) links: Option<Vec<PlanLinkJson>>,
}

/// A factor of a model.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Factor {
    /// Name of the factor.
    pub(crate) name: String,
    /// Value of the factor.
    pub(crate) times: f64,
}

/// Need in a year.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Year {
    /// Calendar year of the need.
    pub(crate) year: u16,
    /// Rate of all flows.
    pub(crate) rate_bits_per_second: u64,
    /// Need of each experiment.
    pub(crate) experiments: Vec<ExperimentNeed>,
    /// Need of each site.
    pub(crate) sites: Vec<SiteNeed>,
}

/// Need of an experiment.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct ExperimentNeed {
    /// Name of the experiment.
    pub(crate) name: String,
    /// Rate of its flows.
    pub(crate) rate_bits_per_second: u64,
}

/// Need of a site.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct SiteNeed {
    /// Name of the site.
    pub(crate) name: String,
    /// Rate that it receives.
    pub(crate) in_bits_per_second: u64,
    /// Rate that it sends.
    pub(crate) out_bits_per_second: u64,
}

/// Load of a link.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct PlanLinkJson {
    /// Name of the link.
    pub(crate) name: String,
    /// Names of both ends.
    pub(crate) ends: [String; 2],
    /// Rate of each direction.
    pub(crate) rate_bits_per_second: u64,
    /// Load by the year.
    pub(crate) years: Vec<LinkYear>,
    /// First year in which a direction must carry more than its rate.
    pub(crate) overflows: Option<u16>,
}

/// Load of a link in a year.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct LinkYear {
    /// Calendar year of the need.
    pub(crate) year: u16,
    /// Rates from the first end to the second, and back.
    pub(crate) rates_bits_per_second: [u64; 2],
}
