//! Rate limit of API requests per client.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Most clients tracked.
const CLIENTS_MAX: usize = 10_000;

/// A token bucket per client (the committed part of RFC 2697), with a burst of one second.
#[derive(Debug)]
pub(crate) struct Limiter {
    per_second: u32,
    clients: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Limiter {
    /// Creates a limiter; 0 for unlimited.
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second, clients: Mutex::default() }
    }

    /// True if the client may send a request now.
    pub(crate) fn admits(&self, client: &str) -> bool {
        self.admits_at(client, Instant::now())
    }

    fn admits_at(&self, client: &str, now: Instant) -> bool {
        if self.per_second == 0 {
            return true;
        }
        let most = f64::from(self.per_second);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(client) {
            clients.clear();
        }
        let (left, at) = clients.entry(client.to_owned()).or_insert((most, now));
        let since = now.saturating_duration_since(*at).as_secs_f64();
        (*left, *at) = ((*left + since * most).min(most), now);
        if *left < 1.0 {
            return false;
        }
        *left -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rate_limit_is_per_client() {
        let limiter = Limiter::new(3);
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let asked = [0, 0, 0, 0, 100, 400, 700].map(|ms| limiter.admits_at("a", at(ms)));
        assert_eq!(asked, [true, true, true, false, false, true, true]);
        assert!(limiter.admits_at("b", at(0)), "others have their own");
        assert!((0..1000).all(|_| Limiter::new(0).admits("a")));
    }
}
