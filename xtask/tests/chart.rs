//! The Helm chart of `deploy/helm`: lint, golden manifests, schemas, refused values.

use penstock_testkit::{Requirement, skip};
use xtask::kubernetes::chart::{Chart, without_generated};
use xtask::workspace_root;

fn chart() -> Option<Chart> {
    let chart = Chart::open(&workspace_root()).unwrap();
    if chart.is_none() {
        let build =
            "helm and kubeconform: cargo xtask kubernetes --tools helm kubeconform builds them";
        skip(Requirement::Program, build);
    }
    chart
}

#[test]
fn chart_passes_lint() {
    let Some(chart) = chart() else { return };
    for case in chart.cases().unwrap() {
        chart.lint(&case).unwrap();
    }
}

#[test]
fn manifests_equal_golden_files() {
    let Some(chart) = chart() else { return };
    for case in chart.cases().unwrap() {
        let rendered = without_generated(&chart.render(&case, &[]).unwrap());
        let golden = chart.golden(&case);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&golden, &rendered).unwrap();
        }
        let expected = std::fs::read_to_string(&golden).unwrap_or_default();
        assert!(
            rendered == expected,
            "{case}: the manifests differ from {}: look at `UPDATE_GOLDEN=1 cargo test -p xtask --test chart` and git diff",
            golden.display()
        );
    }
}

#[test]
fn manifests_satisfy_schemas() {
    let Some(chart) = chart() else { return };
    if !chart.can_conform().unwrap() {
        return skip(Requirement::Program, "kubeconform: cargo xtask kubernetes builds it");
    }
    for case in chart.cases().unwrap() {
        let rendered = chart.render(&case, &[]).unwrap();
        chart.conform(&rendered).unwrap_or_else(|error| panic!("{case}: {error}"));
    }
    let wrong = "apiVersion: v1\nkind: Pod\nmetadata: { name: a }\nspec: { contaners: [] }\n";
    assert!(chart.conform(wrong).unwrap_err().to_string().contains("contaners"));
    let wrong = "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: { name: a }\n\
                 spec: { selector: {}, endpoints: [{ prot: http }] }\n";
    assert!(chart.conform(wrong).unwrap_err().to_string().contains("prot"));
}

#[test]
fn contradictory_values_are_refused() {
    let Some(chart) = chart() else { return };
    for (settings, expected) in [
        (&["agents.prot=8620"][..], "prot"),
        (&["agents.port=70000"], "port"),
        (&["agents.kind=Deployment"], "kind"),
        (&["controller.replicas=2"], "need controller.database.url"),
        (&["agents.hosts=null"], "agents.hosts is empty"),
        (&["agents.state.kind=claim"], "needs agents.kind StatefulSet"),
        (&["agents.network=pod", "agents.tune.enabled=true"], "needs agents.network host"),
        (&["marker.enabled=true"], "marker.tags is empty"),
        (&["ingress.enabled=true"], "ingress.host is empty"),
    ] {
        let error = chart.render("site", settings).unwrap_err().to_string();
        assert!(error.contains(expected), "{settings:?}: {error}");
    }
}
