//! Connection of one queue: TCP, ICReq and ICResp, Connect, authentication, and single commands.

use std::io::{self, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use penstock_mover::Labelling;
use penstock_nvme::auth::{
    AUTHENTICATION_BYTES, AuthenticationError, AuthenticationStep, HostAuthentication, HostSecret,
};
use penstock_nvme::command::{NvmeCommand, connect_data};
use penstock_nvme::pdu::{
    CommandCompletion, INITIALIZATION_BYTES, InitializationResponse, PDU_HEADER_BYTES, TargetPdu,
    initialization_request,
};
use penstock_nvme::queue::{CommandQueue, QueueEvent};
use penstock_nvme::status::ConnectRefusal;
use penstock_protocol::open::Mark;
use penstock_sys::net::connect::{ConnectOptions, connect};

use crate::{DiskError, NvmeHostIdentity};

/// Bytes read ahead of a header: more would be copied twice.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// Longest answer that is no data of a read: that of Identify.
const ANSWER_BYTES_MAX: usize = 4096;
/// The target demands authentication (result of Connect, AUTHREQ).
const AUTHENTICATION_REQUIRED: u64 = 0b11 << 17;
/// Messages of one authentication at most.
const AUTHENTICATION_MESSAGES_MAX: usize = 8;

/// Identity, secret, source address, scitag and time limit with which this host connects.
#[derive(Debug, Clone)]
pub struct DiskHost {
    /// Name and identifier of this host.
    pub identity: NvmeHostIdentity,
    /// Secret that the target may demand.
    pub secret: Option<HostSecret>,
    /// Source address of all connections.
    pub source: Option<IpAddr>,
    /// Scitag of all connections.
    pub mark: Option<Mark>,
    /// Limit on the wait for a connection and for each answer but those to reads.
    pub timeout: Duration,
}

impl DiskHost {
    /// Host with this identity, without a secret.
    #[must_use]
    pub fn new(identity: NvmeHostIdentity) -> Self {
        let timeout = Duration::from_secs(2);
        Self { identity, secret: None, source: None, mark: None, timeout }
    }
}

/// Connection of a queue.
#[derive(Debug)]
pub(crate) struct QueueConnection {
    peer: SocketAddr,
    reader: BufReader<TcpStream>,
    alignment: usize,
    timeout: Duration,
    /// Label of its packets, as `Labelling` describes it.
    pub(crate) label: String,
}

impl QueueConnection {
    /// Connects and initialises the connection of queue `queue`.
    pub(crate) fn open(peer: SocketAddr, queue: u16, host: &DiskHost) -> Result<Self, DiskError> {
        let labelling = Labelling::connecting(host.mark, u32::from(queue), peer, host.source);
        let options = ConnectOptions {
            source: host.source,
            flow_label: labelling.flow_label,
            destination_option: labelling.destination_option,
            ..ConnectOptions::default()
        };
        let socket = connect(peer, &options, host.timeout)
            .map_err(|error| DiskError::Connect { peer, error })?;
        let mut connection = Self {
            peer,
            reader: BufReader::with_capacity(READ_AHEAD_BYTES, socket),
            alignment: 4,
            timeout: host.timeout,
            label: labelling.description,
        };
        let failed = |error| DiskError::Connection { peer, error };
        connection.socket().set_nodelay(true).map_err(failed)?;
        connection.set_timeout(host.timeout)?;
        connection.send(&initialization_request())?;
        let mut answer = [0; INITIALIZATION_BYTES];
        connection.read(&mut answer).map_err(|error| match error {
            DiskError::Silent { peer, after, .. } => DiskError::Silent {
                peer,
                after,
                remedy: "does an NVMe/TCP target listen on this port?",
            },
            DiskError::Closed { peer, .. } => {
                DiskError::Closed { peer, remedy: "does an NVMe/TCP target listen on this port?" }
            }
            other => other,
        })?;
        let response = InitializationResponse::parse(&answer)
            .map_err(|fault| DiskError::Pdu { peer, fault })?;
        connection.alignment = response.data_alignment;
        Ok(connection)
    }

    pub(crate) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Limits the wait of reads and writes, and the time of a whole answer of at most [`ANSWER_BYTES_MAX`].
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), DiskError> {
        self.timeout = timeout;
        let set = |socket: &TcpStream| {
            socket.set_read_timeout(Some(timeout))?;
            socket.set_write_timeout(Some(timeout))
        };
        set(self.socket()).map_err(|error| DiskError::Connection { peer: self.peer, error })
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<(), DiskError> {
        self.socket().write_all(bytes).map_err(|error| self.failed(error))
    }

    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.read_in_time(bytes).map_err(|error| self.failed(error))
    }

    /// As `read_exact`; a target that sends an answer byte by byte gets no more time than a silent one.
    fn read_in_time(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return self.reader.read_exact(bytes);
        }
        let begun = Instant::now();
        let mut read = 0;
        while read < bytes.len() {
            match self.reader.read(&mut bytes[read..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if read < bytes.len() && begun.elapsed() > self.timeout {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    /// Reads the next header.
    pub(crate) fn read_pdu(&mut self) -> Result<TargetPdu, DiskError> {
        let mut header = [0; PDU_HEADER_BYTES];
        self.read(&mut header)?;
        TargetPdu::parse(&header).map_err(|fault| DiskError::Pdu { peer: self.peer, fault })
    }

    /// Appends a capsule to `out`.
    pub(crate) fn write_capsule(
        &self,
        command: &NvmeCommand,
        id: u16,
        data: &[u8],
        out: &mut Vec<u8>,
    ) {
        command.write_capsule(id, data, self.alignment, out);
    }

    fn failed(&self, error: io::Error) -> DiskError {
        let peer = self.peer;
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let after = self.socket().read_timeout().ok().flatten().unwrap_or_default();
                DiskError::Silent { peer, after, remedy: "the target or the path hangs" }
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => {
                DiskError::Closed { peer, remedy: "see the kernel log of the target" }
            }
            _ => DiskError::Connection { peer, error },
        }
    }

    /// Sends one command while no other is outstanding, and waits for its completion; its data goes to `reply`.
    pub(crate) fn execute(
        &mut self,
        command: &NvmeCommand,
        data: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<CommandCompletion, DiskError> {
        let peer = self.peer;
        let protocol = |fault| DiskError::Protocol { peer, fault };
        let mut queue = CommandQueue::new(1);
        let id = queue.issue(command.reply_bytes).unwrap_or(0);
        let mut out = Vec::new();
        self.write_capsule(command, id, data, &mut out);
        self.send(&out)?;
        reply.clear();
        reply.resize(command.reply_bytes as usize, 0);
        loop {
            let pdu = self.read_pdu()?;
            match queue.receive(&pdu).map_err(protocol)? {
                QueueEvent::Ended(completion) => return Ok(completion),
                QueueEvent::Data { command, offset, bytes } => {
                    // The queue has checked the range.
                    let (begin, end) = (offset as usize, (offset + bytes) as usize);
                    self.read(&mut reply[begin..end])?;
                    if let Some(done) = queue.data_received(command).map_err(protocol)? {
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// Connects the queue to a controller, `None` for queue 0, and authenticates where the target demands it. Returns the
    /// number of the controller.
    pub(crate) fn join(
        &mut self,
        host: &DiskHost,
        nqn: &str,
        queue: u16,
        controller: Option<u16>,
        depth: u16,
        keep_alive: Duration,
    ) -> Result<u16, DiskError> {
        let peer = self.peer;
        let keep_alive_ms = u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX);
        let data = connect_data(&host.identity.id, controller, nqn, &host.identity.nqn);
        // The last entry stays free, so that targets with flow control take `depth` commands, too.
        let command = NvmeCommand::connect(queue, depth, keep_alive_ms);
        let mut reply = Vec::new();
        let done = self.execute(&command, &data, &mut reply)?;
        if !done.status.is_success() {
            return Err(match done.status.connect_refusal(done.result) {
                ConnectRefusal::UnknownSubsystem => {
                    DiskError::UnknownDisk { peer, nqn: nqn.to_owned(), known: Vec::new() }
                }
                ConnectRefusal::HostNotAllowed => DiskError::HostNotAllowed {
                    peer,
                    nqn: nqn.to_owned(),
                    host: host.identity.nqn.clone(),
                },
                ConnectRefusal::QueueLimits => DiskError::QueueLimits { peer, queue, depth },
                ConnectRefusal::AuthenticationRequired => DiskError::SecretMissing { peer },
                ConnectRefusal::Busy | ConnectRefusal::Other => DiskError::Command {
                    peer,
                    command: format!("connecting queue {queue}"),
                    status: done.status,
                },
            });
        }
        if done.result & AUTHENTICATION_REQUIRED != 0 {
            let secret = host.secret.as_ref().ok_or(DiskError::SecretMissing { peer })?;
            let proof = HostAuthentication::new(secret, &host.identity.nqn, nqn, queue + 1);
            self.authenticate(proof)?;
        }
        Ok((done.result & 0xFFFF) as u16)
    }

    fn authenticate(&mut self, mut proof: HostAuthentication) -> Result<(), DiskError> {
        let peer = self.peer;
        let mut message = proof.negotiate();
        let mut reply = Vec::new();
        for _ in 0..AUTHENTICATION_MESSAGES_MAX {
            let exchanged = self.exchange_messages(&message, &mut reply);
            exchanged.map_err(|error| match error {
                DiskError::Closed { .. } if proof.awaits_verdict() => {
                    DiskError::Authentication { peer, fault: AuthenticationError::ClosedAtResponse }
                }
                other => other,
            })?;
            match proof.receive(&reply) {
                Ok(AuthenticationStep::Done) => return Ok(()),
                Ok(AuthenticationStep::Send(next)) => message = next,
                Err(fault) => return Err(DiskError::Authentication { peer, fault }),
            }
        }
        Err(DiskError::Closed { peer, remedy: "the authentication does not end" })
    }

    /// Sends a message of authentication and receives the answer.
    fn exchange_messages(&mut self, message: &[u8], reply: &mut Vec<u8>) -> Result<(), DiskError> {
        let send = NvmeCommand::authentication_send(message.len());
        self.succeed(&send, message, reply, "sending a message of authentication")?;
        let receive = NvmeCommand::authentication_receive(AUTHENTICATION_BYTES);
        self.succeed(&receive, &[], reply, "receiving a message of authentication").map(drop)
    }

    /// Executes a command whose failure is an error; returns its result.
    pub(crate) fn succeed(
        &mut self,
        command: &NvmeCommand,
        data: &[u8],
        reply: &mut Vec<u8>,
        words: &str,
    ) -> Result<u64, DiskError> {
        let done = self.execute(command, data, reply)?;
        if done.status.is_success() {
            return Ok(done.result);
        }
        Err(DiskError::Command { peer: self.peer, command: words.to_owned(), status: done.status })
    }
}
