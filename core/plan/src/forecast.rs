//! What a plan comes to: rates of experiments and of sites, year by year and model by model.

use penstock_units::BitRate;

use crate::{Experiment, Flow, Model, Plan};

/// What a flow needs in a year by a model, of all its targets together.
#[must_use]
pub fn of_flow(plan: &Plan, flow: &Flow, model: &Model, year: u16) -> BitRate {
    model.provisioned(plan.growth(flow.rate, flow.growth_permille, year))
}

/// What an experiment needs in a year by a model.
#[must_use]
pub fn of_experiment(plan: &Plan, experiment: &Experiment, model: &Model, year: u16) -> BitRate {
    let flows = experiment.flows.iter().map(|flow| of_flow(plan, flow, model, year).0);
    BitRate(flows.fold(0, u64::saturating_add))
}

/// What all experiments need.
#[must_use]
pub fn total(plan: &Plan, model: &Model, year: u16) -> BitRate {
    let of = plan.experiments.iter().map(|one| of_experiment(plan, one, model, year).0);
    BitRate(of.fold(0, u64::saturating_add))
}

/// What comes into a site, and what goes out of it.
#[must_use]
pub fn of_site(plan: &Plan, site: usize, model: &Model, year: u16) -> [BitRate; 2] {
    let (mut into, mut out) = (0_u64, 0_u64);
    for flow in plan.experiments.iter().flat_map(|experiment| &experiment.flows) {
        for (target, rate) in flow.split(of_flow(plan, flow, model, year)) {
            // What stays at a site needs no network.
            if target != flow.from {
                into = into.saturating_add(if target == site { rate.0 } else { 0 });
                out = out.saturating_add(if flow.from == site { rate.0 } else { 0 });
            }
        }
    }
    [into, out].map(BitRate)
}
