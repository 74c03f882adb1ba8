//! Times of the connection to the controller.

use std::time::Duration;

/// Time between steps of the orders.
pub const ADVANCE_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit of one answer of the controller.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Orders that are fetched between two reports.
pub const FETCHES_PER_REPORT_MAX: usize = 32;
