//! Performance markers, the progress reports of a third-party copy.
//!
//! The format is that of GridFTP, as HTTP-TPC clients parse it: `davix` skips a fixed number of characters after the
//! names of the last two numbers, and wants a new timestamp in each marker.

use std::fmt::Write;
use std::net::SocketAddr;

/// Most connections that a marker names, so that its line stays below the 1,024 bytes of clients.
const CONNECTIONS_SHOWN_MAX: usize = 16;

/// State of a copy at one time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PerformanceMarker<'a> {
    /// Time of the marker in seconds since 1970.
    pub(crate) timestamp: u64,
    pub(crate) bytes: u64,
    pub(crate) connections: &'a [SocketAddr],
}

impl PerformanceMarker<'_> {
    /// Formats the marker as lines.
    pub(crate) fn lines(self) -> String {
        let mut text = format!(
            "Perf Marker\nTimestamp: {}\nStripe Index: 0\nStripe Bytes Transferred: {}\nTotal Stripe Count: 1\n",
            self.timestamp, self.bytes
        );
        let mut separator = "RemoteConnections: ";
        for address in self.connections.iter().take(CONNECTIONS_SHOWN_MAX) {
            let address = SocketAddr::new(address.ip().to_canonical(), address.port());
            let _ = write!(text, "{separator}tcp:{address}");
            separator = ",";
        }
        if !self.connections.is_empty() {
            text.push('\n');
        }
        text.push_str("End\n");
        text
    }
}

/// Formats the last line of a copy that failed: one line, without control characters.
pub(crate) fn failure_line(reason: &str) -> String {
    let reason: String =
        reason.chars().map(|c| if c.is_control() { ' ' } else { c }).take(800).collect();
    format!("failure: {reason}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_has_the_lines_of_gridftp() {
        let connections = ["[::ffff:129.93.3.4]:1234", "[2600:900:6::1]:2345"];
        let connections: Vec<SocketAddr> =
            connections.iter().map(|address| address.parse().unwrap()).collect();
        let marker = PerformanceMarker {
            timestamp: 1_537_788_010,
            bytes: 238_745,
            connections: &connections,
        };
        assert_eq!(
            marker.lines(),
            "Perf Marker\nTimestamp: 1537788010\nStripe Index: 0\nStripe Bytes Transferred: 238745\n\
             Total Stripe Count: 1\nRemoteConnections: tcp:129.93.3.4:1234,tcp:[2600:900:6::1]:2345\nEnd\n"
        );
        let none = PerformanceMarker { connections: &[], ..marker };
        assert!(none.lines().ends_with("Total Stripe Count: 1\nEnd\n"));
        let many = vec!["[2001:db8:1111:2222:3333:4444:5555:6666]:65535".parse().unwrap(); 100];
        let lines = PerformanceMarker { connections: &many, ..marker }.lines();
        assert!(lines.lines().all(|line| line.len() < 1024));
    }

    #[test]
    fn failure_is_one_short_line() {
        assert_eq!(failure_line("a\r\nsuccess: b"), "failure: a  success: b\n");
        assert!(failure_line(&"x".repeat(5000)).len() < 1024);
    }
}
