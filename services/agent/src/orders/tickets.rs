//! Tickets: what lets another node in to write, as long as the controller's order stands.
//!
//! They survive a restart in the state directory, so that a transfer goes on before the controller is heard again.

use serde::{Deserialize, Serialize};

use crate::gate::Gate;
use crate::state::{State, StateError};
use penstock_operations::orders::OrderId;
use penstock_protocol::open::Refusal;

/// The file, for its owner's eyes only.
const FILE: &str = "tickets.json";

/// A ticket that was given out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Ticket {
    order: OrderId,
    ticket: String,
    below: String,
}

/// The tickets that stand, at the gate and in the state directory.
#[derive(Debug)]
pub(super) struct Tickets {
    state: State,
    standing: Vec<Ticket>,
}

impl Tickets {
    /// Those of the run before, which let in from now on.
    pub(super) fn open(state: State, gate: &Gate) -> Self {
        let kept = state.read_secret(FILE).map(|text| {
            let text = text.unwrap_or_else(|| "[]".to_owned());
            serde_json::from_str::<Vec<Ticket>>(&text).unwrap_or_default()
        });
        let mut standing = kept.unwrap_or_else(|error| {
            tracing::warn!("{error}: transfers to here begin when the controller is heard again");
            Vec::new()
        });
        standing.retain(|one| gate.admit(one.order, &one.ticket, &one.below).is_ok());
        Self { state, standing }
    }

    /// Orders whose tickets stand.
    pub(super) fn orders(&self) -> impl Iterator<Item = OrderId> + '_ {
        self.standing.iter().map(|one| one.order)
    }

    /// Lets the bearer of `ticket` in.
    ///
    /// # Errors
    /// When it cannot be.
    pub(super) fn admit(
        &mut self,
        gate: &Gate,
        order: OrderId,
        ticket: &str,
        below: &str,
    ) -> Result<(), Refusal> {
        gate.admit(order, ticket, below)?;
        let new = Ticket { order, ticket: ticket.to_owned(), below: below.to_owned() };
        if !self.standing.contains(&new) {
            self.standing.retain(|one| one.order != order);
            self.standing.push(new);
            self.keep();
        }
        Ok(())
    }

    /// Lets it in no more.
    pub(super) fn dismiss(&mut self, gate: &Gate, order: OrderId) {
        gate.dismiss(order);
        let before = self.standing.len();
        self.standing.retain(|one| one.order != order);
        if self.standing.len() < before {
            self.keep();
        }
    }

    fn keep(&self) {
        let text = serde_json::to_vec(&self.standing).expect("plain data");
        if let Err(error) = self.state.write(FILE, &text, 0o600) {
            let error: StateError = error;
            tracing::warn!("{error}: after a restart transfers to here wait for the controller");
        }
    }
}
