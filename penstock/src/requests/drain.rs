//! `penstock drain`: hosts and sites that take no new work from a controller.

use penstock_controller::api::network::{DrainBody, Drained, HostFacts, Hosts};
use penstock_units::BitRate;

use super::{ControllerArgs, print_json, printable};
use crate::exit::{Code, CommandFailure};
use crate::table::table;

/// Stop new work at a host or site of a controller, or undo it; list hosts
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Running transfers finish there, or with --now move to another host of the same site. A host that does not report keeps \
its orders, as it may still execute them; --gone declares it lost for good, and other hosts get its work once the other \
end has stopped or is lost too. Without a name the command lists all hosts.

Examples:
  penstock drain
  penstock drain dtn1 --reason 'new disks'
  penstock drain --site cern --now
  penstock drain dtn2 --gone --reason 'burnt down'
  penstock drain dtn1 --undo")]
pub(crate) struct DrainArgs {
    /// Name of the host in the controller's topology, or of the site with --site
    name: Option<String>,
    /// The name is that of a site
    #[arg(long, requires = "name")]
    site: bool,
    /// Accept work again
    #[arg(long, requires = "name", conflicts_with_all = ["now", "gone", "reason"])]
    undo: bool,
    /// Withdraw running work, too
    #[arg(long, requires = "name")]
    now: bool,
    /// The host is gone for good: end its orders. Refused while it reports
    #[arg(long, requires = "name")]
    gone: bool,
    /// Reason, shown to people
    #[arg(long, value_name = "TEXT", requires = "name")]
    reason: Option<String>,
    /// Print one JSON object: {"hosts": [...]}, or name and draining; docs/json.md has its fields
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: ControllerArgs,
}

pub(crate) fn run(args: &DrainArgs) -> Result<Code, CommandFailure> {
    let controller = args.place.open()?;
    let Some(name) = &args.name else {
        let hosts: Hosts = controller.get("/api/v1/hosts")?;
        if args.json {
            print_json(&hosts)?;
        } else {
            print!("{}", listing(&hosts.hosts));
        }
        return Ok(Code::Done);
    };
    let path = format!("/api/v1/{}/{name}/drain", if args.site { "sites" } else { "hosts" });
    let drained: Drained = if args.undo {
        controller.ask("DELETE", &path, None::<&()>)?
    } else {
        let reason = args.reason.clone().unwrap_or_default();
        controller.ask("PUT", &path, Some(&DrainBody { reason, now: args.now, gone: args.gone }))?
    };
    if args.json {
        print_json(&drained)?;
    } else {
        let what = if drained.draining { "takes no new work" } else { "takes work" };
        println!("{} {what}", drained.name);
    }
    Ok(Code::Done)
}

fn listing(hosts: &[HostFacts]) -> String {
    let headings = ["HOST", "SITE", "STATE", "ORDERS", "SENDS", "RECEIVES", "DRAIN"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    for host in hosts {
        rows.push(vec![
            host.name.clone(),
            host.site.clone().unwrap_or_default(),
            host.state.clone(),
            host.orders.to_string(),
            BitRate(host.sent_bps).to_string(),
            BitRate(host.received_bps).to_string(),
            printable(host.drain_reason.as_deref().unwrap_or("")),
        ]);
    }
    table(&rows)
}
