//! Conditions under which a transfer of the agent begins.

use std::time::{Duration, Instant};

use penstock_host::load::HostLoad;
use penstock_protocol::open::Options;

use super::agent::AgentInner;
use super::ended_log::StartConditions;
use crate::base::lock::lock;

/// Time for which a reading of the host's load is used again: a gateway may begin many transfers a second.
const LOAD_AGE_MAX: Duration = Duration::from_secs(1);

impl AgentInner {
    /// Conditions for a transfer that is about to be added to the agent's transfers.
    pub(super) fn start_conditions(&self, options: Option<&Options>) -> StartConditions {
        if self.config.ended_log.is_none() {
            return StartConditions::default();
        }
        let sessions: Vec<_> = lock(&self.sessions).values().cloned().collect();
        let gateway = self.gateway_transfers();
        let streams = sessions.iter().map(|one| one.streams().max(1)).sum::<usize>()
            + self.initiated_streams(|_| false)
            + gateway.len();
        let transfers = sessions.len() + lock(&self.initiated).len() + gateway.len();
        StartConditions {
            block_bytes: options.map(|options| options.block_bytes),
            protection: options.map(|options| options.protection),
            other_transfers: u32::try_from(transfers).unwrap_or(u32::MAX),
            other_streams: u32::try_from(streams).unwrap_or(u32::MAX),
            load: self.host_load(),
        }
    }

    fn host_load(&self) -> HostLoad {
        let mut last = lock(&self.load);
        match *last {
            Some((at, load)) if at.elapsed() < LOAD_AGE_MAX => load,
            _ => {
                let load = HostLoad::read();
                *last = Some((Instant::now(), load));
                load
            }
        }
    }
}
