//! Time-outs of connections and sessions.

use std::time::Duration;

/// Time after which a connection whose peer neither answers nor acknowledges is dead.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_secs(15);

/// Time limit of a handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for authentication of a connection.
pub(crate) const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a session is kept without its client.
pub(crate) const SESSION_RETENTION: Duration = Duration::from_secs(60);

/// Time for which a transfer to another agent continues without its requester. A requester that was
/// killed cannot reconnect, and the destination rejects a second session for the same files.
pub(crate) const DELEGATE_RETENTION: Duration = Duration::from_secs(3);
