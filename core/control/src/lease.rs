//! Leases: of rates at nodes, and of the leadership among controllers.

use std::time::{Duration, Instant};

/// Time for which nodes keep their rates without a response, if the configuration does not say.
pub const RATE_LEASE_DEFAULT: Duration = Duration::from_secs(30);

/// Validity of the leadership of one controller among those that share a database.
pub const LEADER_LEASE: Duration = Duration::from_secs(5);

/// Interval at which the leader renews its lease, so that two lost attempts do not end it.
pub const LEADER_RENEWAL_INTERVAL: Duration =
    Duration::from_millis(LEADER_LEASE.as_millis() as u64 / 3);

/// Least duration of a rate lease; a shorter one is extended to it.
pub const RATE_LEASE_MIN: Duration = Duration::from_secs(3);

/// Lease of the rates of an agent: the time for which they hold without an answer of the controller.
#[derive(Debug, Clone)]
pub struct RateLease {
    duration: Duration,
    last_answer: Instant,
    expired: bool,
}

impl RateLease {
    /// Creates the lease of an agent that has just started.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { duration: RATE_LEASE_MIN, last_answer: now, expired: false }
    }

    /// Renews it on an answer.
    pub fn renew(&mut self, seconds: u32, now: Instant) {
        let duration = Duration::from_secs(seconds.into()).max(RATE_LEASE_MIN);
        (self.duration, self.last_answer, self.expired) = (duration, now, false);
    }

    /// Returns true, once, when it expires.
    pub fn expire(&mut self, now: Instant) -> bool {
        let expires = !self.expired && now.duration_since(self.last_answer) > self.duration;
        self.expired |= expires;
        expires
    }

    /// True from its expiry to the next answer.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_expires_once_after_silence() {
        let start = Instant::now();
        let mut lease = RateLease::new(start);
        lease.renew(30, start);
        assert!(!lease.expire(start + Duration::from_secs(30)));
        assert!(lease.expire(start + Duration::from_secs(31)));
        assert!(lease.is_expired() && !lease.expire(start + Duration::from_secs(32)));
        lease.renew(1, start + Duration::from_secs(40));
        assert!(!lease.is_expired() && !lease.expire(start + Duration::from_secs(43)));
    }

    #[test]
    fn leader_renews_before_expiry() {
        assert!(LEADER_RENEWAL_INTERVAL * 3 <= LEADER_LEASE);
    }
}
