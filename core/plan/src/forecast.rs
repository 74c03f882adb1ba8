//! Forecast rates of flows, experiments and sites by year and traffic model.

use penstock_units::BitRate;

use crate::{DemandPlan, ExperimentDemand, PlannedFlow, TrafficModel};

/// Rate of a flow to all its targets, in a year, with the factors of a model.
#[must_use]
pub fn of_flow(plan: &DemandPlan, flow: &PlannedFlow, model: &TrafficModel, year: u16) -> BitRate {
    model.provisioned(plan.growth(flow.rate, flow.growth_permille, year))
}

/// Rate of all flows of an experiment.
#[must_use]
pub fn of_experiment(
    plan: &DemandPlan,
    experiment: &ExperimentDemand,
    model: &TrafficModel,
    year: u16,
) -> BitRate {
    let flows = experiment.flows.iter().map(|flow| of_flow(plan, flow, model, year).0);
    BitRate(flows.fold(0, u64::saturating_add))
}

/// Rate of all experiments.
#[must_use]
pub fn total(plan: &DemandPlan, model: &TrafficModel, year: u16) -> BitRate {
    let of = plan.experiments.iter().map(|one| of_experiment(plan, one, model, year).0);
    BitRate(of.fold(0, u64::saturating_add))
}

/// Rates into and out of a site, in this order.
#[must_use]
pub fn of_site(plan: &DemandPlan, site: usize, model: &TrafficModel, year: u16) -> [BitRate; 2] {
    let (mut into, mut out) = (0_u64, 0_u64);
    for flow in plan.experiments.iter().flat_map(|experiment| &experiment.flows) {
        for (target, rate) in flow.split(of_flow(plan, flow, model, year)) {
            // Traffic within a site needs no network.
            if target != flow.from {
                into = into.saturating_add(if target == site { rate.0 } else { 0 });
                out = out.saturating_add(if flow.from == site { rate.0 } else { 0 });
            }
        }
    }
    [into, out].map(BitRate)
}
