//! Bounded big-endian encoding, the alphabet of every binary message.
//!
//! Decoding never panics and never allocates more than the bytes that were received: a count is
//! checked against what is left of the message before room is made for it. A message that is too
//! short, too long or has bytes to spare is an error that names the field's kind.

use std::collections::VecDeque;

/// Why bytes are not the message they should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ended inside a field.
    #[error("message ends inside {0}")]
    Truncated(&'static str),
    /// A field holds a value that the protocol does not allow.
    #[error("message holds an invalid {0}")]
    Invalid(&'static str),
    /// Bytes are left after the last field.
    #[error("message has {0} bytes too many")]
    Trailing(usize),
}

/// A value with one binary form.
pub trait Wire: Sized {
    /// The fewest bytes that a value takes, which bounds how many of them fit in a message.
    const MIN_BYTES: usize;
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Reads one value.
    ///
    /// # Errors
    /// When the bytes end early or hold a value that is not allowed.
    fn take(input: &mut Input<'_>) -> Result<Self, WireError>;
}

/// Bytes not yet decoded.
#[derive(Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Starts at the first byte of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Takes exactly `count` bytes.
    ///
    /// # Errors
    /// When fewer are left.
    pub fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.bytes.split_at_checked(count).ok_or(WireError::Truncated(what))?;
        self.bytes = tail;
        Ok(head)
    }

    /// How many bytes are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes.len()
    }
}

/// Encodes a value into bytes of its own.
#[must_use]
pub fn encode<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

/// Decodes a message that is exactly one value.
///
/// # Errors
/// When the bytes are not exactly one value.
pub fn decode<T: Wire>(bytes: &[u8]) -> Result<T, WireError> {
    let mut input = Input::new(bytes);
    let value = T::take(&mut input)?;
    match input.left() {
        0 => Ok(value),
        extra => Err(WireError::Trailing(extra)),
    }
}

macro_rules! integers {
    ($($kind:ident),*) => {$(
        impl Wire for $kind {
            const MIN_BYTES: usize = size_of::<$kind>();
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
            fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
                let bytes = input.bytes(size_of::<$kind>(), stringify!($kind))?;
                bytes.try_into().map($kind::from_be_bytes).map_err(|_| WireError::Truncated(stringify!($kind)))
            }
        }
    )*};
}

integers!(u16, u32, u64, i64);

impl Wire for u8 {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        Ok(input.bytes(1, "u8")?[0])
    }
}

impl Wire for bool {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid("yes or no")),
        }
    }
}

impl<const N: usize> Wire for [u8; N] {
    const MIN_BYTES: usize = N;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        input.bytes(N, "fixed bytes")?.try_into().map_err(|_| WireError::Truncated("fixed bytes"))
    }
}

/// A byte string of at most 2^32 - 1 bytes, in practice bounded by the message that carries it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub Vec<u8>);

impl Wire for Bytes {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (u32::try_from(self.0.len()).expect("a field is under 4 GiB")).put(out);
        out.extend_from_slice(&self.0);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        let count = u32::take(input)? as usize;
        Ok(Self(input.bytes(count, "byte string")?.to_vec()))
    }
}

impl Wire for String {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (u32::try_from(self.len()).expect("a text is under 4 GiB")).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        Self::from_utf8(Bytes::take(input)?.0).map_err(|_| WireError::Invalid("UTF-8 text"))
    }
}

impl<T: Wire> Wire for Option<T> {
    const MIN_BYTES: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        if bool::take(input)? { T::take(input).map(Some) } else { Ok(None) }
    }
}

impl<T: Wire> Wire for Box<T> {
    const MIN_BYTES: usize = T::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        T::put(self, out);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        T::take(input).map(Self::new)
    }
}

impl<T: Wire> Wire for Vec<T> {
    const MIN_BYTES: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (u32::try_from(self.len()).expect("a list has under 2^32 items")).put(out);
        for item in self {
            item.put(out);
        }
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        let count = u32::take(input)? as usize;
        if count.saturating_mul(T::MIN_BYTES.max(1)) > input.left() {
            return Err(WireError::Truncated("list"));
        }
        (0..count).map(|_| T::take(input)).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const MIN_BYTES: usize = A::MIN_BYTES + B::MIN_BYTES;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        Ok((A::take(input)?, B::take(input)?))
    }
}

/// Gives a struct the binary form of its fields in order.
macro_rules! wire_struct {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        pub struct $name { $($(#[$field_meta])* pub $field: $kind,)* }
        impl $crate::wire::Wire for $name {
            const MIN_BYTES: usize = 0 $(+ <$kind as $crate::wire::Wire>::MIN_BYTES)*;
            fn put(&self, out: &mut Vec<u8>) { $($crate::wire::Wire::put(&self.$field, out);)* }
            fn take(
                input: &mut $crate::wire::Input<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                Ok(Self { $($field: $crate::wire::Wire::take(input)?,)* })
            }
        }
    };
}

/// Gives an enum of one-field variants the binary form of a tag byte and the field.
macro_rules! wire_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident($kind:ty) = $tag:literal,)* }) => {
        $(#[$meta])*
        pub enum $name { $($(#[$variant_meta])* $variant($kind),)* }
        impl $crate::wire::Wire for $name {
            const MIN_BYTES: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                match self { $(Self::$variant(value) => {
                    out.push($tag);
                    $crate::wire::Wire::put(value, out);
                })* }
            }
            fn take(
                input: &mut $crate::wire::Input<'_>,
            ) -> Result<Self, $crate::wire::WireError> {
                match <u8 as $crate::wire::Wire>::take(input)? {
                    $($tag => Ok(Self::$variant($crate::wire::Wire::take(input)?)),)*
                    _ => Err($crate::wire::WireError::Invalid(concat!(stringify!($name), " tag"))),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};

/// About how many bytes of a list one message carries.
const LIST_BYTES: usize = 64 * 1024;

/// Takes items with about as many bytes as one message should carry, one at least.
pub(crate) fn some_of<T: Wire>(items: &mut VecDeque<T>) -> Vec<T> {
    some_from(&mut std::iter::from_fn(|| items.pop_front()))
}

/// As [`some_of`], the next ones.
pub(crate) fn some_from<T: Wire>(items: &mut dyn Iterator<Item = T>) -> Vec<T> {
    let mut bytes = 0;
    let mut some = Vec::new();
    while bytes < LIST_BYTES
        && let Some(item) = items.next()
    {
        bytes += encode(&item).len();
        some.push(item);
    }
    some
}

impl Wire for () {
    const MIN_BYTES: usize = 0;
    fn put(&self, _out: &mut Vec<u8>) {}
    fn take(_input: &mut Input<'_>) -> Result<Self, WireError> {
        Ok(())
    }
}
