//! Bounded big-endian encoding of every binary message.
//!
//! Decoding never panics and never allocates more than the message holds: a list's count is checked
//! against the remaining bytes before allocation. A message that is too short, too long or has trailing
//! bytes is an error that names the field's type.

use std::collections::VecDeque;

/// Error of decoding a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends inside a field of this type.
    #[error("message ends inside {0}")]
    Truncated(&'static str),
    /// A field of this type holds a value that the protocol does not allow.
    #[error("message holds an invalid {0}")]
    Invalid(&'static str),
    /// Number of bytes after the last field.
    #[error("message has {0} bytes too many")]
    Trailing(usize),
}

/// A value with exactly one binary encoding.
pub trait WireFormat: Sized {
    /// Smallest encoded size; bounds the count of list items that a message can hold.
    const MIN_BYTES: usize;
    /// Appends the encoded value to `out`.
    fn put(&self, out: &mut Vec<u8>);
    /// Decodes one value from the front of `input`.
    ///
    /// # Errors
    /// If the bytes end early or hold a value that is not allowed.
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError>;
}

/// Cursor over the bytes that are not decoded yet.
#[derive(Debug)]
pub struct WireReader<'a> {
    bytes: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// Creates a cursor at the first byte of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Consumes exactly `count` bytes; `what` names the field in the error.
    ///
    /// # Errors
    /// If fewer are left.
    pub fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.bytes.split_at_checked(count).ok_or(WireError::Truncated(what))?;
        self.bytes = tail;
        Ok(head)
    }

    /// Number of bytes not consumed yet.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }
}

/// Encodes a value into a new buffer.
#[must_use]
pub fn encode<T: WireFormat>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Decodes a message that is exactly one value.
///
/// # Errors
/// If the bytes are not exactly one value.
pub fn decode<T: WireFormat>(bytes: &[u8]) -> Result<T, WireError> {
    let mut input = WireReader::new(bytes);
    let value = T::take(&mut input)?;
    match input.remaining() {
        0 => Ok(value),
        extra => Err(WireError::Trailing(extra)),
    }
}

macro_rules! integers {
    ($($kind:ident),*) => {$(
        impl WireFormat for $kind {
            const MIN_BYTES: usize = size_of::<$kind>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
                let bytes = input.bytes(size_of::<$kind>(), stringify!($kind))?;
                bytes.try_into().map($kind::from_be_bytes).map_err(|_| WireError::Truncated(stringify!($kind)))
            }
        }
    )*};
}

integers!(u16, u32, u64, i64);

impl WireFormat for u8 {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(input.bytes(1, "u8")?[0])
    }
}

impl WireFormat for bool {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid("yes or no")),
        }
    }
}

impl<const N: usize> WireFormat for [u8; N] {
    const MIN_BYTES: usize = N;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        input.bytes(N, "fixed bytes")?.try_into().map_err(|_| WireError::Truncated("fixed bytes"))
    }
}

/// Byte string of at most 2^32 - 1 bytes, in practice bounded by its message.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl WireFormat for Bytes {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (u32::try_from(self.0.len()).expect("a field is under 4 GiB")).put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        let count = u32::take(input)? as usize;
        Ok(Self(input.bytes(count, "byte string")?.to_vec()))
    }
}

impl WireFormat for String {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (u32::try_from(self.len()).expect("a text is under 4 GiB")).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Self::from_utf8(Bytes::take(input)?.0).map_err(|_| WireError::Invalid("UTF-8 text"))
    }
}

impl<T: WireFormat> WireFormat for Option<T> {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        if bool::take(input)? { T::take(input).map(Some) } else { Ok(None) }
    }
}

impl<T: WireFormat> WireFormat for Box<T> {
    const MIN_BYTES: usize = T::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        T::take(input).map(Self::new)
    }
}

impl<T: WireFormat> WireFormat for Vec<T> {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (u32::try_from(self.len()).expect("a list has under 2^32 items")).put(out);
        for item in self {
            item.put(out);
        }
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        let count = u32::take(input)? as usize;
        if count.saturating_mul(T::MIN_BYTES.max(1)) > input.remaining() {
            return Err(WireError::Truncated("list"));
        }
        (0..count).map(|_| T::take(input)).collect()
    }
}

impl<A: WireFormat, B: WireFormat> WireFormat for (A, B) {
    const MIN_BYTES: usize = A::MIN_BYTES + B::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

/// Implements [`WireFormat`] for a struct: its fields in declaration order.
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        pub struct $name { $($(#[$field_meta])* pub $field: $kind,)* }
        impl $crate::wire::WireFormat for $name {
            const MIN_BYTES: usize = 0 $(+ <$kind as $crate::wire::WireFormat>::MIN_BYTES)*;
            fn put(&self, out: &mut Vec<u8>) { $($crate::wire::WireFormat::put(&self.$field, out);)* }
            fn take(
                input: &mut $crate::wire::WireReader<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                Ok(Self { $($field: $crate::wire::WireFormat::take(input)?,)* })
            }
        }
    };
}

/// Implements [`WireFormat`] for an enum of one-field variants: a tag byte, then the field.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident($kind:ty) = $tag:literal,)* }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$variant_meta])* $variant($kind),)* }
        impl $crate::wire::WireFormat for $name {
            const MIN_BYTES: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                match self { $(Self::$variant(value) => {
                    out.push($tag);
                    $crate::wire::WireFormat::put(value, out);
                })* }
            }
            fn take(
                input: &mut $crate::wire::WireReader<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                match <u8 as $crate::wire::WireFormat>::take(input)? {
                    $($tag => Ok(Self::$variant($crate::wire::WireFormat::take(input)?)),)*
                    _ => Err($crate::wire::WireError::Invalid(concat!(stringify!($name), " tag"))),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};

/// Encoded bytes of a list after which a message takes no further item.
const LIST_BYTES_TARGET: usize = 64 * 1024;

/// Removes items from the front, about [`LIST_BYTES_TARGET`] of them but at least one.
pub(crate) fn drain_batch<T: WireFormat>(items: &mut VecDeque<T>) -> Vec<T> {
    take_batch(&mut std::iter::from_fn(|| items.pop_front()))
}

/// Takes items of an iterator, about [`LIST_BYTES_TARGET`] of them but at least one.
pub(crate) fn take_batch<T: WireFormat>(items: &mut dyn Iterator<Item = T>) -> Vec<T> {
    let mut bytes = 0;
    let mut some = Vec::new();
    while bytes < LIST_BYTES_TARGET
        && let Some(item) = items.next()
    {
        bytes += encode(&item).len();
        some.push(item);
    }
    some
}

impl WireFormat for () {
    const MIN_BYTES: usize = 0;
    fn put(&self, _out: &mut Vec<u8>) {}
    fn take(_input: &mut WireReader<'_>) -> Result<Self, WireError> {
        Ok(())
    }
}
