//! One attempt of a copy: the connection to the other agent, and the start on the mover.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use penstock_identity::tls_client_config;
use penstock_mover::{Agent, AgentCopyRequest, Caller, CopyError, InitiatedTransfer};
use penstock_mover::{Gatekeeper, PeerConnector, StreamDscp, TcpDial};
use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_units::Dscp;

use super::body::{CopyPeer, CopyPlan};
use crate::authorizer::{Authorizer, SelfLogin};
use crate::orders::faults::{FailureAction, of_copy, of_own_refusal, permanent};

/// Time for which a transfer reconnects by itself before the next attempt.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Services that attempts use.
#[derive(Debug, Clone)]
pub(super) struct CopyServices {
    pub(super) mover: Agent,
    pub(super) authorizer: Arc<Authorizer>,
}

/// An attempt that did not start.
#[derive(Debug)]
pub(super) enum AttemptError {
    /// The agent is full, or shuts down.
    Busy(String),
    /// Any other reason, with the reaction.
    Failed(FailureAction),
}

/// An attempt that the mover carries out.
#[derive(Debug)]
pub(super) struct StartedAttempt {
    pub(super) transfer: Arc<InitiatedTransfer>,
    /// Login at this agent itself, valid until the attempt has ended.
    _login: Option<SelfLogin>,
}

impl CopyServices {
    /// Starts a copy for a client under the number `id`. `from_here`: the client is on this host.
    pub(super) fn start(
        &self,
        id: u64,
        plan: &CopyPlan,
        caller: &Caller,
        from_here: bool,
    ) -> Result<StartedAttempt, AttemptError> {
        let own = |refusal: Refusal| match refusal.kind {
            RefusalKind::Busy => AttemptError::Busy(refusal.text),
            _ => AttemptError::Failed(of_own_refusal(&refusal)),
        };
        let failed = |error: &dyn std::fmt::Display| {
            AttemptError::Failed(FailureAction::End(permanent(error.to_string())))
        };
        let (dial, fingerprint, token, login) = match &plan.peer {
            CopyPeer::Own => {
                let login = self.authorizer.self_login(caller.clone());
                let dial =
                    TcpDial::to_any(&self.own_addresses()).map_err(|error| failed(&error))?;
                (dial, self.mover.fingerprint(), login.secret().to_owned(), Some(login))
            }
            CopyPeer::Other { host, port, token, fingerprint } => {
                // An unknown name may be known later.
                let dial = TcpDial::new(host, *port, &[], &[], None).map_err(|error| {
                    AttemptError::Failed(FailureAction::Wait(error.to_string()))
                })?;
                let dial = dial.only_to(|to| self.may_reach(to, from_here)).map_err(own)?;
                (dial, *fingerprint, token.clone(), None)
            }
        };
        let with = PeerConnector {
            dial: Arc::new(dial),
            tls: tls_client_config(fingerprint, None).map_err(|error| failed(&error))?,
            token,
            protection: plan.push.options.protection,
            transport: plan.transport,
            cleartext: self.authorizer.cleartext_networks(),
            dscp: StreamDscp { requested: plan.dscp, own: Dscp::DEFAULT },
            give_up_after: RECONNECT_TIMEOUT,
        };
        let (pull, push) = (plan.pull.clone(), plan.push.clone());
        let CopyPlan { direction, keep_streams, tune, .. } = *plan;
        let request = AgentCopyRequest { id, with, direction, pull, push, keep_streams, tune };
        let transfer = self.mover.copy(caller.clone(), request).map_err(own)?;
        Ok(StartedAttempt { transfer, _login: login })
    }

    fn own_addresses(&self) -> Vec<SocketAddr> {
        let loopback = |ip: IpAddr| match ip {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let addresses = self.mover.addresses().into_iter();
        addresses.map(|address| SocketAddr::new(loopback(address.ip()), address.port())).collect()
    }

    /// Authorises a connection by the rules of third-party copies.
    pub(super) fn may_reach(&self, to: SocketAddr, from_here: bool) -> Result<(), Refusal> {
        self.authorizer.may_send_to(to, from_here || self.mover.addresses().contains(&to))
    }
}

/// Reaction to a failed attempt.
pub(super) fn reaction(error: &CopyError) -> FailureAction {
    match error {
        // The token of the other agent does not get better.
        CopyError::Refused(_, refusal) if refusal.kind == RefusalKind::Identity => {
            FailureAction::End(permanent(error.to_string()))
        }
        CopyError::RefusedHere(refusal) => of_own_refusal(refusal),
        CopyError::Rdma(obstacle) => {
            let text =
                format!("RDMA: {obstacle}; with \"transport\": \"auto\" it is copied by TCP then");
            FailureAction::End(permanent(text))
        }
        error => of_copy(error),
    }
}
