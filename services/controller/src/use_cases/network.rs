//! Changes of the network by operators: drains of hosts and sites, links down and up.

use crate::repository::runs::RunSelection;
use crate::repository::writer::TxContext;
use crate::repository::{Audit, DatabaseError, hosts, links, runs};

/// Options of a drain.
#[derive(Debug, Clone)]
pub(crate) struct Drain {
    pub(crate) reason: String,
    /// Withdraws the orders at its hosts.
    pub(crate) now: bool,
    /// Declares its hosts gone for good: none of their orders continues.
    pub(crate) gone: bool,
}

/// Stops or resumes the start of work at a host or site with these hosts.
pub(crate) async fn drain(
    cx: &mut TxContext,
    name: &str,
    hosts: &[String],
    on: Option<&Drain>,
    audit: Audit,
) -> Result<(), DatabaseError> {
    let text = match on {
        Some(Drain { reason, now, gone }) => {
            let state = if *gone { "gone" } else { "drained" };
            hosts::drain(cx, name, &audit.who, reason).await?;
            for host in hosts.iter().filter(|_| *gone) {
                hosts::set_gone(cx, host, cx.now).await?;
            }
            for host in hosts.iter().filter(|_| *now || *gone) {
                let why = format!("{name} is {state}");
                runs::withdraw(cx, RunSelection::FromHost(host), &why).await?;
                runs::withdraw(cx, RunSelection::ToHost(host), &why).await?;
            }
            format!("{name} is {state}: {reason}")
        }
        None => {
            for host in hosts {
                hosts::set_gone(cx, host, 0).await?;
            }
            hosts::undrain(cx, name).await?;
            format!("{name} takes work again")
        }
    };
    cx.event(None, None, "drain", text);
    cx.audit(audit);
    cx.request_round();
    Ok(())
}

/// Sets a link down or up.
pub(crate) async fn set_link(
    cx: &mut TxContext,
    name: &str,
    down: bool,
    why: &str,
    audit: Audit,
) -> Result<(), DatabaseError> {
    links::set(cx, name, down, why).await?;
    let state = if down { "down" } else { "up" };
    cx.event(None, None, "link", format!("{name} is {state}: {why}"));
    cx.audit(audit);
    cx.request_round();
    Ok(())
}
