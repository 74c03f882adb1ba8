//! The datagram: its header, and an iterator over the samples.
//!
//! Only a malformed header is an error. Samples are parsed on demand, so a false count costs
//! nothing.

use std::net::IpAddr;

use super::sample::{Sample, SampleError};
use super::xdr::{Cut, XdrReader};
use super::{DataFormat, SFLOW_VERSION};

/// Error of a datagram's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    /// Shorter than a header; holds the length in bytes.
    #[error("{0} bytes hold no sFlow header: is another program sending to this port?")]
    Short(usize),
    /// Unsupported version of sFlow.
    #[error("sFlow version {0}: only version 5 is read; set the agent to version 5")]
    Version(u32),
    /// Unknown type of the agent's address.
    #[error("the agent's address has type {0}: 1 is IPv4 and 2 IPv6")]
    AddressType(u32),
}

/// A datagram with a parsed header.
#[derive(Debug, Clone, Copy)]
pub struct SflowDatagram<'a> {
    /// Address that the agent claims, which may differ from the source address; `None` if unknown.
    pub agent: Option<IpAddr>,
    /// Number of a process of the agent.
    pub sub_agent: u32,
    /// Sequence number of the sub-agent's datagrams.
    pub sequence: u32,
    /// Milliseconds since the agent started; wraps after 49 days.
    pub uptime_ms: u32,
    /// Count of samples by the header.
    pub declared_samples: u32,
    body: &'a [u8],
}

impl<'a> SflowDatagram<'a> {
    /// Parses the header of a datagram.
    ///
    /// # Errors
    /// When the header is not of sFlow version 5.
    pub fn read(bytes: &'a [u8]) -> Result<Self, DatagramError> {
        let short = |Cut| DatagramError::Short(bytes.len());
        let mut from = XdrReader::new(bytes);
        let version = from.word().map_err(short)?;
        if version != SFLOW_VERSION {
            return Err(DatagramError::Version(version));
        }
        let kind = XdrReader::new(from.rest()).word().map_err(short)?;
        if kind > 2 {
            return Err(DatagramError::AddressType(kind));
        }
        let agent = from.get::<Option<IpAddr>>().map_err(short)?;
        let [sub_agent, sequence, uptime_ms, declared_samples] = from.get().map_err(short)?;
        Ok(Self { agent, sub_agent, sequence, uptime_ms, declared_samples, body: from.rest() })
    }

    /// Iterates over the samples. A broken sample is an error, and the next one follows; after a
    /// length beyond the end, that error is the last item.
    #[must_use]
    pub fn samples(&self) -> SampleIter<'a> {
        SampleIter { left: self.declared_samples, at: 0, rest: XdrReader::new(self.body) }
    }
}

/// Iterator over the samples of a datagram.
#[derive(Debug, Clone)]
pub struct SampleIter<'a> {
    left: u32,
    at: u32,
    rest: XdrReader<'a>,
}

impl<'a> Iterator for SampleIter<'a> {
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
