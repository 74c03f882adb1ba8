//! Leases: of rates at nodes, and of the leadership among controllers.

use std::time::Duration;

/// Time for which nodes keep their rates without a response, if the configuration does not say.
pub const RATE_LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// Validity of the leadership of one controller among those that share a database.
pub const LEADER_LEASE: Duration = Duration::from_secs(5);

/// Interval at which the leader renews its lease, so that two lost attempts do not end it.
pub const LEADER_RENEWAL_INTERVAL: Duration =
    Duration::from_millis(LEADER_LEASE.as_millis() as u64 / 3);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_renews_before_expiry() {
        assert!(LEADER_RENEWAL_INTERVAL * 3 <= LEADER_LEASE);
    }
}
