//! DSCP of an agent's packets: its own, and those that clients may choose.

use penstock_protocol::open::{Refusal, RefusalKind};
use penstock_units::Dscp;
use serde::Serialize;

/// DSCP of the packets of an agent's data streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DscpPolicy {
    /// DSCP of sessions whose client chooses none. Clients may choose it, too.
    pub own: Dscp,
    /// Others that clients may choose.
    pub clients: Vec<Dscp>,
}

impl Default for DscpPolicy {
    /// Best effort; clients may yield to other traffic, and take no precedence.
    fn default() -> Self {
        Self { own: Dscp::DEFAULT, clients: vec![Dscp::DEFAULT, Dscp::LOWER_EFFORT] }
    }
}

impl DscpPolicy {
    /// Best effort unless the client, who is the operator, chooses another one.
    #[must_use]
    pub fn of_operator() -> Self {
        Self { own: Dscp::DEFAULT, clients: (0..64).filter_map(Dscp::new).collect() }
    }

    /// DSCP of a session whose client requests this one, if any.
    ///
    /// # Errors
    /// If the client may not choose it; the text names those it may.
    pub(crate) fn decide(&self, requested: Option<Dscp>) -> Result<Dscp, Refusal> {
        let dscp = requested.unwrap_or(self.own);
        if dscp == self.own || self.clients.contains(&dscp) {
            return Ok(dscp);
        }
        let mut allowed = vec![self.own];
        allowed.extend(self.clients.iter().filter(|other| **other != self.own));
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        let text = format!(
            "clients may not choose DSCP {dscp} here, but {}: its operator can add it to dscp of [limits]",
            allowed.join(", ")
        );
        Err(Refusal::new(RefusalKind::Permission, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dscp(text: &str) -> Dscp {
        text.parse().expect(text)
    }

    #[test]
    fn clients_choose_within_policy() {
        let policy = DscpPolicy::default();
        assert_eq!(policy.decide(None), Ok(Dscp::DEFAULT));
        assert_eq!(policy.decide(Some(dscp("le"))), Ok(dscp("le")));
        let refusal = policy.decide(Some(dscp("ef"))).expect_err("not allowed");
        assert_eq!(refusal.kind, RefusalKind::Permission);
        assert!(refusal.text.contains("DSCP ef here, but default, le:"), "{}", refusal.text);
        let policy = DscpPolicy { own: dscp("af31"), clients: vec![dscp("ef")] };
        for (requested, decided) in [(None, "af31"), (Some("af31"), "af31"), (Some("ef"), "ef")] {
            assert_eq!(policy.decide(requested.map(dscp)), Ok(dscp(decided)));
        }
        let refusal = policy.decide(Some(dscp("default"))).expect_err("not in the list");
        assert!(refusal.text.contains("but af31, ef:"), "{}", refusal.text);
    }
}
