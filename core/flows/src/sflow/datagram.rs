//! The datagram: who speaks, how many datagrams it has sent, and the samples.
//!
//! A datagram is refused only when its header is broken. Its samples are read one by one while they are
//! asked for, so a count that lies costs nothing.

use std::net::IpAddr;

use super::sample::{Sample, SampleError};
use super::xdr::{Cut, Reader};
use super::{DataFormat, VERSION};

/// Why bytes are no datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Too short for a header.
    #[error("{0} bytes hold no sFlow header: is another program sending to this port?")]
    Short(usize),
    /// Another version.
    #[error("sFlow version {0}: only version 5 is read; set the agent to version 5")]
    Version(u32),
    /// The agent's address has a type that is none.
    #[error("the agent's address has type {0}: 1 is IPv4 and 2 IPv6")]
    AddressType(u32),
}

/// A datagram whose header was read.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// The agent by its own word, which need not be where the datagram came from; `None` for unknown.
    pub agent: Option<IpAddr>,
    /// Tells the processes of one agent apart.
    pub sub_agent: u32,
    /// Counts the datagrams of a sub-agent.
    pub sequence: u32,
    /// Milliseconds since the agent started; starts over after 49 days.
    pub uptime_ms: u32,
    /// How many samples it says to have.
    pub declared_samples: u32,
    body: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// When the header is not of sFlow version 5.
    pub fn read(bytes: &'a [u8]) -> Result<Self, DatagramError> {
        let short = |Cut| DatagramError::Short(bytes.len());
        let mut from = Reader::new(bytes);
        let version = from.word().map_err(short)?;
        if version != VERSION {
            return Err(DatagramError::Version(version));
        }
        let kind = Reader::new(from.rest()).word().map_err(short)?;
        if kind > 2 {
            return Err(DatagramError::AddressType(kind));
        }
        let agent = from.get::<Option<IpAddr>>().map_err(short)?;
        let [sub_agent, sequence, uptime_ms, declared_samples] = from.get().map_err(short)?;
        Ok(Self { agent, sub_agent, sequence, uptime_ms, declared_samples, body: from.rest() })
    }

    /// Its samples. One that is broken is an error, and the next one follows; when a length leads beyond
    /// the end, that error is the last.
    #[must_use]
    pub fn samples(&self) -> Samples<'a> {
        Samples { left: self.declared_samples, at: 0, rest: Reader::new(self.body) }
    }
}

/// Goes through the samples of a datagram.
#[derive(Debug, Clone)]
pub struct Samples<'a> {
    left: u32,
    at: u32,
    rest: Reader<'a>,
}

impl<'a> Iterator for Samples<'a> {
    type Item = Result<Sample<'a>, SampleError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let index = self.at;
        self.at += 1;
        let mut read = || {
            let format = DataFormat::from_value(self.rest.word()?);
            let length = self.rest.word()? as usize;
            Ok((format, self.rest.take(length)?))
        };
        match read() {
            Ok((format, body)) => {
                Some(Sample::read(format, body).map_err(|Cut| SampleError::Body { index, format }))
            }
            Err(Cut) => {
                self.left = 0;
                Some(Err(SampleError::Length { index }))
            }
        }
    }
}
