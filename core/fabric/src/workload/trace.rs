//! Flow traces: one line per flow with start, source, destination and bytes.

use penstock_units::{ByteCount, parse_duration};

use crate::flow::FlowSpec;
use crate::time::{PS_PER_NANOSECOND, PS_PER_SECOND};

const FLOWS_MAX: usize = 4 << 20;

/// Syntax error in a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{line}: {fault}")]
pub struct TraceError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Fault of the line.
    pub fault: TraceFault,
}

/// Fault of a line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceFault {
    /// Another number of words.
    #[error("a flow is: start source destination bytes")]
    Words,
    /// An unknown host.
    #[error("there is no host '{}'", .0.escape_debug())]
    Host(String),
    /// A flow from a host to itself.
    #[error("a flow goes to another host")]
    Loop,
    /// An invalid start, or one after 10^6 seconds.
    #[error("'{}' is no start, such as 0.0015 or 1.5ms", .0.escape_debug())]
    Start(String),
    /// An invalid size, or one of 2^50 bytes and more.
    #[error("bytes are a number above 0, such as 65536 or 1MB")]
    Bytes,
    /// A flow beyond the limit.
    #[error("more than {FLOWS_MAX} flows")]
    TooMany,
    /// A trace without flows.
    #[error("there is no flow in it")]
    Empty,
}

/// Parses lines of start (seconds, or with a unit), source, destination and bytes, separated by blanks or commas, in
/// any order. `host` resolves a host name. Text after # is ignored.
///
/// # Errors
/// Reports the first malformed line, and a trace without flows.
pub fn trace(text: &str, host: impl Fn(&str) -> Option<u32>) -> Result<Vec<FlowSpec>, TraceError> {
    let mut flows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fault = |fault| TraceError { line: number + 1, fault };
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line
            .split(|c: char| c == ',' || c.is_whitespace())
            .filter(|word| !word.is_empty())
            .collect();
        if words.is_empty() {
            continue;
        }
        let [start, from, to, bytes] = words[..] else {
            return Err(fault(TraceFault::Words));
        };
        let find = |name: &str| host(name).ok_or_else(|| fault(TraceFault::Host(name.to_owned())));
        let (from, to) = (find(from)?, find(to)?);
        if from == to {
            return Err(fault(TraceFault::Loop));
        }
        let start_ps = start_ps(start).ok_or_else(|| fault(TraceFault::Start(start.to_owned())))?;
        let bytes = bytes.parse().ok().filter(|bytes: &ByteCount| (1..1 << 50).contains(&bytes.0));
        let Some(bytes) = bytes else {
            return Err(fault(TraceFault::Bytes));
        };
        if flows.len() == FLOWS_MAX {
            return Err(fault(TraceFault::TooMany));
        }
        flows.push(FlowSpec::new(from, to, start_ps, bytes.0));
    }
    if flows.is_empty() {
        return Err(TraceError { line: 1, fault: TraceFault::Empty });
    }
    Ok(flows)
}

fn start_ps(word: &str) -> Option<u64> {
    if let Ok(seconds) = word.parse::<f64>() {
        return (0.0..1e6)
            .contains(&seconds)
            .then(|| (seconds * PS_PER_SECOND as f64).round() as u64);
    }
    let nanoseconds = u64::try_from(parse_duration(word).ok()?.as_nanos()).ok()?;
    nanoseconds.checked_mul(PS_PER_NANOSECOND).filter(|ps| *ps < 1_000_000 * PS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Option<u32> {
        ["a", "b", "c"].iter().position(|known| *known == name).map(|at| at as u32)
    }

    #[test]
    fn trace_errors_name_their_line() {
        let text = "# seconds from to bytes\n0.001 a b 65536\n2.5us, b, c, 1MB\n\n";
        let flows = trace(text, host).unwrap();
        assert_eq!(
            flows,
            [FlowSpec::new(0, 1, 1_000_000_000, 65_536), FlowSpec::new(1, 2, 2_500_000, 1_000_000)]
        );
        let start = |text: &str| TraceFault::Start(text.to_owned());
        for (text, line, fault) in [
            ("", 1, TraceFault::Empty),
            ("0 a b", 1, TraceFault::Words),
            ("0 a b 1\n0 a d 1", 2, TraceFault::Host("d".to_owned())),
            ("0 a a 1", 1, TraceFault::Loop),
            ("-1 a b 1", 1, start("-1")),
            ("nan a b 1", 1, start("nan")),
            ("x a b 1", 1, start("x")),
            ("0 a b 0", 1, TraceFault::Bytes),
            ("0 a b 1 1", 1, TraceFault::Words),
            ("99999999999s a b 1", 1, start("99999999999s")),
        ] {
            assert_eq!(trace(text, host), Err(TraceError { line, fault }), "{text:?}");
        }
    }
}
