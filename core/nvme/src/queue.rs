//! State machine of a queue: commands that are outstanding, and the data that has come for each.
//!
//! ```text
//! Free ── issue ──> Issued ── data header ──> Receiving ── data received ──> Issued or Free
//!                   Issued ── response ──> Free
//! ```
//!
//! Data of one command comes in order of its offsets; the data of different commands may alternate. A gap, an overlap,
//! data beyond the command, or a response before all data is a fault of the target, and the queue ends.

use crate::pdu::{CommandCompletion, TargetPdu, fault_words};
use crate::status::NvmeStatus;

/// Most commands of a queue.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// State of a command identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CommandState {
    Free,
    /// The target has the command.
    Issued {
        expected_bytes: u32,
        received_bytes: u32,
        /// The last data has come.
        is_complete: bool,
    },
    /// Data follows on the connection.
    Receiving {
        expected_bytes: u32,
        received_bytes: u32,
        coming_bytes: u32,
        is_last: bool,
        is_success: bool,
    },
}

/// Effect of a PDU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueEvent {
    /// Read `bytes` from the connection into the data of the command at `offset`, then call
    /// [`CommandQueue::data_received`].
    Data {
        /// Identifier of the command.
        command: u16,
        /// Offset in its data.
        offset: u32,
        /// Number of bytes.
        bytes: u32,
    },
    /// The command has ended, and its identifier is free.
    Ended(CommandCompletion),
}

/// Fault of a target, after which its connection is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QueueFault {
    /// No outstanding command has this identifier.
    #[error("the target answers command {0}, which is not outstanding")]
    UnknownCommand(u16),
    /// Data that does not continue that of the command.
    #[error("the target sends data at {offset} of command {command}, and {expected} comes next")]
    OutOfOrder {
        /// Identifier of the command.
        command: u16,
        /// Offset of the data.
        offset: u32,
        /// Offset that comes next.
        expected: u32,
    },
    /// Data beyond the end of the command.
    #[error("the target sends {bytes} B at {offset} of command {command}, which has {expected} B")]
    Excess {
        /// Identifier of the command.
        command: u16,
        /// Offset of the data.
        offset: u32,
        /// Length of the data.
        bytes: u32,
        /// Length of the command's data.
        expected: u32,
    },
    /// The command succeeds before all data has come.
    #[error("the target ends command {command} after {received} of {expected} B")]
    Short {
        /// Identifier of the command.
        command: u16,
        /// Bytes received.
        received: u32,
        /// Bytes of the command.
        expected: u32,
    },
    /// The target asks for data, and no command has any.
    #[error("the target asks for data of command {0}, which only reads")]
    ReadyToTransfer(u16),
    /// The target ends the connection.
    #[error("the target ends the connection: {}", fault_words(*.0))]
    Terminated(u16),
}

/// Outstanding commands of a queue.
#[derive(Debug, Clone)]
pub struct CommandQueue {
    commands: Vec<CommandState>,
    free: Vec<u16>,
}

impl CommandQueue {
    /// Queue for `depth` commands, 1 to [`QUEUE_DEPTH_MAX`].
    #[must_use]
    pub fn new(depth: u16) -> Self {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX);
        Self {
            commands: vec![CommandState::Free; usize::from(depth)],
            free: (0..depth).rev().collect(),
        }
    }

    /// Number of outstanding commands.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    /// Assigns an identifier to a command with `expected_bytes` of data from the target; `None` while all are in use.
    pub fn issue(&mut self, expected_bytes: u32) -> Option<u16> {
        let command = self.free.pop()?;
        self.commands[usize::from(command)] =
            CommandState::Issued { expected_bytes, received_bytes: 0, is_complete: false };
        Some(command)
    }

    /// Takes the header of a PDU and returns its effect.
    ///
    /// # Errors
    /// When the target breaks the protocol: the connection must be closed.
    pub fn receive(&mut self, pdu: &TargetPdu) -> Result<QueueEvent, QueueFault> {
        match *pdu {
            TargetPdu::Response(completion) => self.end(completion),
            TargetPdu::Data { command, offset, bytes, is_last, is_success } => {
                let (expected_bytes, received_bytes) = self.issued(command)?;
                if offset != received_bytes {
                    let expected = received_bytes;
                    return Err(QueueFault::OutOfOrder { command, offset, expected });
                }
                if bytes > expected_bytes - received_bytes {
                    let expected = expected_bytes;
                    return Err(QueueFault::Excess { command, offset, bytes, expected });
                }
                self.commands[usize::from(command)] = CommandState::Receiving {
                    expected_bytes,
                    received_bytes,
                    coming_bytes: bytes,
                    is_last,
                    is_success,
                };
                Ok(QueueEvent::Data { command, offset, bytes })
            }
            TargetPdu::ReadyToTransfer { command } => Err(QueueFault::ReadyToTransfer(command)),
            TargetPdu::Termination { fault } => Err(QueueFault::Terminated(fault)),
        }
    }

    /// Notes that the data of the last [`QueueEvent::Data`] of the command has come. Returns its completion where no
    /// response follows.
    ///
    /// # Errors
    /// When no data was announced, or the command ends before all its data.
    pub fn data_received(&mut self, command: u16) -> Result<Option<CommandCompletion>, QueueFault> {
        let state = self.commands.get_mut(usize::from(command));
        let Some(CommandState::Receiving {
            expected_bytes,
            received_bytes,
            coming_bytes,
            is_last,
            is_success,
        }) = state.as_deref().copied()
        else {
            return Err(QueueFault::UnknownCommand(command));
        };
        if let Some(state) = state {
            *state = CommandState::Issued {
                expected_bytes,
                received_bytes: received_bytes + coming_bytes,
                is_complete: is_last,
            };
        }
        if !is_success {
            return Ok(None);
        }
        let completion = CommandCompletion { command, result: 0, status: NvmeStatus::SUCCESS };
        self.end(completion).map(|_| Some(completion))
    }

    fn end(&mut self, completion: CommandCompletion) -> Result<QueueEvent, QueueFault> {
        let command = completion.command;
        let state = self.commands.get(usize::from(command)).copied();
        let Some(CommandState::Issued { expected_bytes, received_bytes, .. }) = state else {
            return Err(QueueFault::UnknownCommand(command));
        };
        if completion.status.is_success() && received_bytes != expected_bytes {
            let (received, expected) = (received_bytes, expected_bytes);
            return Err(QueueFault::Short { command, received, expected });
        }
        self.commands[usize::from(command)] = CommandState::Free;
        self.free.push(command);
        Ok(QueueEvent::Ended(completion))
    }

    /// Expected and received bytes of a command that waits for data.
    fn issued(&self, command: u16) -> Result<(u32, u32), QueueFault> {
        match self.commands.get(usize::from(command)) {
            Some(CommandState::Issued { expected_bytes, received_bytes, is_complete: false }) => {
                Ok((*expected_bytes, *received_bytes))
            }
            _ => Err(QueueFault::UnknownCommand(command)),
        }
    }
}
