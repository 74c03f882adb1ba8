//! The encoding of sFlow (XDR, RFC 4506): big-endian words, padded to four bytes.
//!
//! For: zero-copy parsing, and writing. Not for: the meaning of the words. Returns [`Cut`] if the
//! bytes end too early; never panics and never allocates while parsing.

use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The bytes end before the structure does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it ends before its last field")]
pub struct Cut;

/// A cursor over bytes.
#[derive(Debug, Clone, Copy)]
pub struct XdrReader<'a> {
    rest: &'a [u8],
}

impl<'a> XdrReader<'a> {
    /// Starts at the front of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes that are left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Takes `length` bytes, without padding.
    ///
    /// # Errors
    /// When fewer bytes are left.
    #[inline]
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Cut> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(Cut)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Cut> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Cut)?;
        self.rest = rest;
        Ok(*head)
    }

    /// Takes a big-endian word.
    ///
    /// # Errors
    /// When fewer than four bytes are left.
    #[inline]
    pub fn word(&mut self) -> Result<u32, Cut> {
        self.array().map(u32::from_be_bytes)
    }

    /// Takes `length` bytes and their padding. Padding may be missing at the very end, because some
    /// agents omit it there.
    ///
    /// # Errors
    /// When fewer bytes are left.
    #[inline]
    pub fn opaque(&mut self, length: usize) -> Result<&'a [u8], Cut> {
        let bytes = self.take(length)?;
        let padding = padding(length).min(self.rest.len());
        self.rest = &self.rest[padding..];
        Ok(bytes)
    }

    /// Parses the next structure.
    ///
    /// # Errors
    /// When the bytes end within it.
    pub fn get<T: Xdr<'a>>(&mut self) -> Result<T, Cut> {
        T::read(self)
    }
}

fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}

/// A type with an XDR encoding.
pub trait Xdr<'a>: Sized {
    /// Parses a value from the front of `from`.
    ///
    /// # Errors
    /// When the bytes end within it.
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut>;
    /// Appends the encoding to `to`.
    fn write(&self, to: &mut Vec<u8>);
}

macro_rules! words {
    ($($type:ty),*) => {$(
        impl<'a> Xdr<'a> for $type {
            #[inline]
            fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
                from.array().map(<$type>::from_be_bytes)
            }
            fn write(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_be_bytes());
            }
        }
    )*};
}
words!(u32, u64, i32, f32);

impl<'a, const N: usize> Xdr<'a> for [u32; N] {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        let mut words = [0; N];
        for word in &mut words {
            *word = from.word()?;
        }
        Ok(words)
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.iter().for_each(|word| word.write(to));
    }
}

/// Fixed 16 bytes: a UUID or a GID.
impl<'a> Xdr<'a> for [u8; 16] {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        from.array()
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }
}

/// A MAC address: six bytes and, on the wire, two of padding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl<'a> Xdr<'a> for Mac {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        let [a, b, c, d, e, f, _, _] = from.array::<8>()?;
        Ok(Self([a, b, c, d, e, f]))
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.0);
        to.extend_from_slice(&[0; 2]);
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'a> Xdr<'a> for Ipv4Addr {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        from.array::<4>().map(Self::from)
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.octets());
    }
}

impl<'a> Xdr<'a> for Ipv6Addr {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        from.array::<16>().map(Self::from)
    }
    fn write(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.octets());
    }
}

/// An address behind its type. Type 0, unknown, has no bytes and is legal for next hops; the length
/// of other types is undefined.
impl<'a> Xdr<'a> for Option<IpAddr> {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        match from.word()? {
            0 => Ok(None),
            1 => Ipv4Addr::read(from).map(|ip| Some(ip.into())),
            2 => Ipv6Addr::read(from).map(|ip| Some(ip.into())),
            _ => Err(Cut),
        }
    }
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            None => 0_u32.write(to),
            Some(IpAddr::V4(ip)) => {
                1_u32.write(to);
                ip.write(to);
            }
            Some(IpAddr::V6(ip)) => {
                2_u32.write(to);
                ip.write(to);
            }
        }
    }
}

/// Bytes or text of any length; text may be invalid UTF-8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Opaque<'a>(pub &'a [u8]);

impl<'a> Xdr<'a> for Opaque<'a> {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        let length = from.word()?;
        from.opaque(length as usize).map(Self)
    }
    fn write(&self, to: &mut Vec<u8>) {
        // A length beyond 32 bits fits no datagram; the encoder refuses the sample by its size.
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).write(to);
        to.extend_from_slice(self.0);
        to.extend_from_slice(&[0; 3][..padding(self.0.len())]);
    }
}

/// Prints as text, with control characters and invalid bytes replaced.
impl fmt::Display for Opaque<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                f.write_char(if c.is_control() { '?' } else { c })?;
            }
            if !chunk.invalid().is_empty() {
                f.write_char('?')?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Opaque<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// A counted list, still encoded. Parsing walks it once, so its items are valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct XdrList<'a, T> {
    count: u32,
    bytes: &'a [u8],
    item: PhantomData<T>,
}

impl<'a, T: Xdr<'a>> XdrList<'a, T> {
    /// Count of items in the list.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true if the list has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the items.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let mut from = XdrReader::new(self.bytes);
        (0..self.count).map_while(move |_| from.get().ok())
    }

    /// Creates a list without items.
    #[must_use]
    pub fn empty() -> Self {
        Self { count: 0, bytes: &[], item: PhantomData }
    }

    /// Encodes `items` into `bytes`, which the list borrows.
    pub fn of(items: &[T], bytes: &'a mut Vec<u8>) -> Self {
        bytes.clear();
        items.iter().for_each(|item| item.write(bytes));
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        Self { count, bytes, item: PhantomData }
    }
}

impl<'a, T: Xdr<'a>> Xdr<'a> for XdrList<'a, T> {
    fn read(from: &mut XdrReader<'a>) -> Result<Self, Cut> {
        let count = from.word()?;
        let bytes = from.rest();
        // Each item takes at least four bytes, so a false count fails quickly.
        for _ in 0..count {
            from.get::<T>()?;
        }
        let used = bytes.len() - from.rest().len();
        Ok(Self { count, bytes: &bytes[..used], item: PhantomData })
    }
    fn write(&self, to: &mut Vec<u8>) {
        self.count.write(to);
        to.extend_from_slice(self.bytes);
    }
}

impl<'a, T: Xdr<'a> + fmt::Debug> fmt::Debug for XdrList<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Structures whose fields are encoded in the order of their declaration.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[expect(missing_docs, reason = "the names and units are the specification's")]
        pub struct $name $(<$life>)? { $(pub $field: $type),* }

        impl<'a> $crate::sflow::xdr::Xdr<'a> for $name $(<$life>)? {
            #[inline]
            fn read(from: &mut $crate::sflow::xdr::XdrReader<'a>) -> Result<Self, $crate::sflow::xdr::Cut> {
                Ok(Self { $($field: $crate::sflow::xdr::Xdr::read(from)?),* })
            }
            fn write(&self, to: &mut Vec<u8>) {
                $($crate::sflow::xdr::Xdr::write(&self.$field, to);)*
            }
        }
    )*};
}
pub(super) use structures;

/// Records of one kind of sample, by format.
macro_rules! records {
    ($(#[$doc:meta])* $name:ident { $($(#[$case_doc:meta])* ($enterprise:literal, $format:literal) $case:ident($type:ty)),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub enum $name<'a> {
            $($(#[$case_doc])* $case($type),)*
            /// Unknown format: format and body.
            Unknown($crate::sflow::DataFormat, &'a [u8]),
        }

        impl<'a> $name<'a> {
            /// Format of the record.
            #[must_use]
            pub fn format(&self) -> $crate::sflow::DataFormat {
                match self {
                    $(Self::$case(_) => $crate::sflow::DataFormat::new($enterprise, $format),)*
                    Self::Unknown(format, _) => *format,
                }
            }

            /// Parses the body of a record. Bytes after the last known field are ignored: the
            /// specification lets a structure grow at its end.
            ///
            /// # Errors
            /// When the body ends too early.
            pub fn read(format: $crate::sflow::DataFormat, body: &'a [u8]) -> Result<Self, $crate::sflow::xdr::Cut> {
                let mut from = $crate::sflow::xdr::XdrReader::new(body);
                match (format.enterprise(), format.format()) {
                    $(($enterprise, $format) => from.get().map(Self::$case),)*
                    _ => Ok(Self::Unknown(format, body)),
                }
            }

            /// Appends format, length and body.
            pub fn write(&self, to: &mut Vec<u8>) {
                $crate::sflow::xdr::tlv(to, self.format(), |to| match self {
                    $(Self::$case(body) => $crate::sflow::xdr::Xdr::write(body, to),)*
                    Self::Unknown(_, body) => to.extend_from_slice(body),
                });
            }
        }
    };
}
pub(super) use records;

/// Appends format, length and the output of `body`.
pub(super) fn tlv(
    to: &mut Vec<u8>,
    format: crate::sflow::DataFormat,
    body: impl FnOnce(&mut Vec<u8>),
) {
    format.value().write(to);
    let at = to.len();
    0_u32.write(to);
    body(to);
    let length = u32::try_from(to.len() - at - 4).unwrap_or(u32::MAX);
    to[at..at + 4].copy_from_slice(&length.to_be_bytes());
}
