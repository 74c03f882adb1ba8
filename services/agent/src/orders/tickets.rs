//! Tickets: secrets that let another node write below a directory while the controller's order is active.
//!
//! The state directory keeps them over a restart, so that a transfer resumes before the controller answers.

use serde::{Deserialize, Serialize};

use super::engine::TransferEngine;
use penstock_control::orders::OrderId;
use penstock_protocol::open::Refusal;

/// A ticket as stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct StoredTicket {
    order: OrderId,
    ticket: String,
    below: String,
}

/// The valid tickets, as granted and stored by the engine.
#[derive(Debug)]
pub(super) struct TicketStore {
    valid: Vec<StoredTicket>,
}

impl TicketStore {
    /// Loads the tickets from before a restart and grants them again.
    pub(super) fn open(engine: &dyn TransferEngine) -> Self {
        let kept = engine.read_tickets().map(|text| {
            let text = text.unwrap_or_else(|| "[]".to_owned());
            serde_json::from_str::<Vec<StoredTicket>>(&text).unwrap_or_default()
        });
        let mut valid = kept.unwrap_or_else(|error| {
            tracing::warn!("{error}: transfers to this host begin once the controller answers");
            Vec::new()
        });
        valid.retain(|one| engine.grant_ticket(one.order, &one.ticket, &one.below).is_ok());
        Self { valid }
    }

    /// Orders with a valid ticket.
    pub(super) fn orders(&self) -> impl Iterator<Item = OrderId> + '_ {
        self.valid.iter().map(|one| one.order)
    }

    /// Grants write access to the bearer of `ticket` and stores it.
    ///
    /// # Errors
    /// When the engine refuses it.
    pub(super) fn grant(
        &mut self,
        engine: &dyn TransferEngine,
        order: OrderId,
        ticket: &str,
        below: &str,
    ) -> Result<(), Refusal> {
        engine.grant_ticket(order, ticket, below)?;
        let new = StoredTicket { order, ticket: ticket.to_owned(), below: below.to_owned() };
        if !self.valid.contains(&new) {
            self.valid.retain(|one| one.order != order);
            self.valid.push(new);
            self.store(engine);
        }
        Ok(())
    }

    /// Revokes the ticket of an order.
    pub(super) fn revoke(&mut self, engine: &dyn TransferEngine, order: OrderId) {
        engine.revoke_ticket(order);
        let before = self.valid.len();
        self.valid.retain(|one| one.order != order);
        if self.valid.len() < before {
            self.store(engine);
        }
    }

    fn store(&self, engine: &dyn TransferEngine) {
        let text = serde_json::to_vec(&self.valid).expect("plain data");
        if let Err(error) = engine.write_tickets(&text) {
            tracing::warn!(
                "{error}: after a restart transfers to this host wait for the controller"
            );
        }
    }
}
