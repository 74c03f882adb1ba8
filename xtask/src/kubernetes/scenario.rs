//! Scenario of the chart on a cluster: copies while pods are killed, nodes drained and releases upgraded; then the same
//! chart with every part that this cluster can run.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::cluster::KubernetesCluster;
use super::copies::FaultMoment;
use super::database::ClusterDatabase;
use super::installed_chart::{ChartParts, InstalledChart, pod_name};
use super::node_parts::NodeSettings;

/// Runs the scenario; `is_short` ends it after the first copy.
pub(super) fn run(
    root: &Path,
    cluster: &KubernetesCluster,
    binary: &Path,
    is_short: bool,
) -> Result<()> {
    let site = InstalledChart::prepare(root, cluster, binary)?;
    site.count_packets()?;
    run_basic_parts(&site, is_short)?;
    if !is_short {
        run_all_parts(&site)?;
    }
    Ok(())
}

fn run_basic_parts(site: &InstalledChart<'_>, is_short: bool) -> Result<()> {
    let parts = ChartParts::Basic;
    let begun = Instant::now();
    site.install(parts, "100M")?;
    println!("kubernetes: installed, ready and tested in {:.1} s", begun.elapsed().as_secs_f64());
    site.copy("plain", "no fault", FaultMoment::Start, || Ok(()))?;
    if !is_short {
        site.copy("killed", "the receiver's pod is killed", FaultMoment::FirstFiles, || {
            site.kill_pod(&site.agent_pod(2)?)?;
            site.wait_ready(parts)
        })?;
        site.copy("drained", "the controller's node is drained", FaultMoment::FirstFiles, || {
            drain(site, parts)
        })?;
        site.copy("upgraded", "every pod is replaced", FaultMoment::FirstFiles, || {
            site.helm("upgrade", parts, "200M")?;
            site.wait_ready(parts)
        })?;
    }
    site.uninstall()
}

fn run_all_parts(site: &InstalledChart<'_>) -> Result<()> {
    let parts = ChartParts::All;
    let database = ClusterDatabase::start(site.cluster)?;
    site.add_database_secret(&database)?;
    let settings = NodeSettings::read(site.cluster)?;
    let begun = Instant::now();
    site.install(parts, "100M")?;
    println!("kubernetes: all parts ready and tested in {:.1} s", begun.elapsed().as_secs_f64());
    settings.check_tuned(site.cluster)?;
    site.check_policies()?;
    site.check_labels()?;
    site.copy("all", "all parts, over IPv6", FaultMoment::Start, || Ok(()))?;
    site.copy("leader", "the leading controller is killed", FaultMoment::FirstFiles, || {
        kill_leader(site)?;
        site.wait_ready(parts)
    })?;
    site.uninstall()?;
    settings.check_restored(site.cluster)?;
    site.check_detached()
}

fn drain(site: &InstalledChart<'_>, parts: ChartParts) -> Result<()> {
    let words = ["drain", "n1", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"];
    site.cluster.kubectl(&words)?;
    site.cluster.kubectl(&["uncordon", "n1"])?;
    site.wait_ready(parts)
}

/// Kills the controller that makes the rounds; the other one answers a new request, and takes over.
fn kill_leader(site: &InstalledChart<'_>) -> Result<()> {
    let leader = leader(site)?.context("no controller leads")?;
    site.kill_pod(&leader)?;
    let begun = Instant::now();
    let number = site.submit("b:/store/all/1", "a:/store/again")?;
    let accepted = begun.elapsed();
    let next =
        site.cluster.wait("another controller leads", super::cluster::START_LIMIT, |_| {
            leader_other_than(site, &leader)
        })?;
    println!(
        "kubernetes: a request accepted {:.1} s after the leader was killed; {next} leads after {:.1} s",
        accepted.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    let request = site.wait_ended(&number)?;
    ensure!(request["state"] == "done", "{request}");
    Ok(())
}

fn leader_other_than(site: &InstalledChart<'_>, earlier: &str) -> Result<Option<String>> {
    Ok(leader(site)?.filter(|name| name != earlier))
}

/// Name of the pod of the controller that leads.
fn leader(site: &InstalledChart<'_>) -> Result<Option<String>> {
    let pods = site.pods("controller")?;
    let leads = |name: &String| {
        site.metrics(name)
            .is_ok_and(|text| text.lines().any(|line| line == "penstock_controller_leads 1"))
    };
    Ok(pods.iter().filter_map(pod_name).find(leads))
}
