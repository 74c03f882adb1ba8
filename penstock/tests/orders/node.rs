//! An agent under the scripted controller.

use penstock_control::orders::{File, OrderTask, Overwrite, Send, Verify};

use crate::common::fixed_address;
pub(crate) use crate::common::site::Node;
use crate::controller::{Controller, TOKEN};

impl Node {
    pub(crate) fn start(controller: &Controller, name: &str) -> Self {
        Self::start_at(controller, name, &fixed_address(), "")
    }

    /// Appends `more` to the table `[agent.controller]`.
    pub(crate) fn start_at(controller: &Controller, name: &str, listen: &str, more: &str) -> Self {
        let node = Self::under(&controller.address.to_string(), TOKEN, name, listen, more);
        controller.await_report(name);
        node
    }

    /// A task that sends `files` to the directory `below` of this node.
    pub(crate) fn files_to(&self, below: &str, ticket: &str, files: &[&str]) -> Send {
        let file = |path: &&str| File { path: (*path).to_owned(), digest: None };
        Send {
            from: "/data".into(),
            to: below.into(),
            files: files.iter().map(file).collect(),
            addresses: vec![self.listen.clone()],
            fingerprint: self.agent.fingerprint.replace("SHA256:", ""),
            ticket: ticket.into(),
            batch: None,
            scitag: None,
            overwrite: Overwrite::Changed,
            verify: Verify::Transfer,
            encrypt: false,
            tune: None,
            transport: None,
        }
    }

    /// A task that accepts files below `below` with this ticket.
    pub(crate) fn receive(below: &str, ticket: &str) -> OrderTask {
        OrderTask::Receive { ticket: ticket.into(), below: below.into() }
    }
}
