//! Errors of the files of HPCC's simulator.

use super::read::{LINKS_MAX, NODES_MAX};

/// Error in an input file, with its line.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{line}: {fault}")]
pub struct HpccFileError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Fault of the line.
    pub fault: HpccFault,
}

/// Fault of a line of an input file.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum HpccFault {
    /// The file ends before a word.
    #[error("it ends before {0}")]
    End(&'static str),
    /// A word that cannot be read as what it stands for.
    #[error("'{}' is no {expected}", word.escape_debug())]
    Word {
        /// The word.
        word: String,
        /// Meaning of the word.
        expected: &'static str,
    },
    /// A number that cannot name a node.
    #[error("no such {0}")]
    NoNode(&'static str),
    /// Another number of words in the first line of a topology.
    #[error(
        "the first line has 3 numbers (nodes, switches, links), 4 as PowerTCP, or 6 words as SimAI"
    )]
    TopologyHead,
    /// A topology beyond the limits.
    #[error("at most {NODES_MAX} nodes, as many switches and {LINKS_MAX} links")]
    TopologySize,
    /// A node beyond the number of nodes.
    #[error("node {id} of {nodes}: ids are from 0")]
    NodeId {
        /// Id of the node.
        id: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// A link with one end.
    #[error("a link from node {0} to itself")]
    Loop(usize),
    /// An error rate out of range.
    #[error("an error rate is 0 up to 1, not {0}")]
    ErrorRate(f64),
    /// No line.
    #[error("it is empty")]
    Empty,
    /// No number in the first line of the flows.
    #[error("the first line is the number of flows")]
    FlowHead,
    /// Another number of words in the line of a flow.
    #[error("a flow is: source destination priority port bytes start")]
    FlowWords,
    /// A priority out of range.
    #[error("priority {0}: there are 0 to 7")]
    Priority(u64),
    /// A flow that moves nothing, or with a port out of range.
    #[error("a flow goes to another node, with bytes above 0 and a port up to 65535")]
    FlowValues,
    /// A flow before the one of the former line.
    #[error("flows are in the order of their start")]
    FlowOrder,
    /// Fewer flows than the first line says.
    #[error("{announced} flows are announced and {found} are there")]
    FlowCount {
        /// Number in the first line.
        announced: usize,
        /// Number of lines.
        found: usize,
    },
    /// An incomplete `LINK_DOWN`.
    #[error("LINK_DOWN is microseconds after 2 s and two nodes")]
    LinkDown,
    /// A key without a value.
    #[error("{0} has no value")]
    NoValue(String),
    /// A value that is no number.
    #[error("{key} is a number, not '{}'", word.escape_debug())]
    NoNumber {
        /// Name of the key.
        key: String,
        /// Its value.
        word: String,
    },
    /// A map of rates that is incomplete.
    #[error("a map is a number, and so many pairs of rate and value")]
    Map,
    /// A key that must be there.
    #[error("it names no {0}")]
    NoFile(String),
    /// Maps of marking thresholds for different rates.
    #[error("KMIN_MAP has {0}, and KMAX_MAP or PMAX_MAP has not")]
    Marking(u64),
    /// A congestion control that is not modelled.
    #[error("CC_MODE {0}: there are 1 (DCQCN), 3 (HPCC), 7 (TIMELY) and 8 (DCTCP)")]
    CongestionControl(u32),
    /// Retransmission from the first packet of a message.
    #[error("L2_BACK_TO_ZERO: hosts go back to the packet that is missing, not to the first")]
    BackToZero,
    /// No acknowledgements.
    #[error("L2_ACK_INTERVAL 0: nothing would be acknowledged, and no flow would end: give it 1")]
    NoAcknowledgements,
}

impl HpccFault {
    /// Returns the fault of a word that should be `expected`.
    pub(super) fn word(word: &str, expected: &'static str) -> Self {
        Self::Word { word: word.to_owned(), expected }
    }
}

/// Returns the error of a line.
pub(super) fn fault<T>(line: usize, fault: HpccFault) -> Result<T, HpccFileError> {
    Err(HpccFileError { line, fault })
}
