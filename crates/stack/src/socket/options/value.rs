//! Values of socket options, and their bytes in `setsockopt` and `getsockopt`.
//!
//! Linux: the length checks of `sk_setsockopt`, `do_tcp_setsockopt`, `do_ip_setsockopt` and their
//! counterparts: a value that is too short is `EINVAL` (options of IP also take a single byte),
//! bytes after the value are ignored, and the result of `getsockopt` is cut to the size of the
//! buffer.

use core::time::Duration;
use std::borrow::Cow;

use super::{Form, SocketOption};
use crate::base::errno::Errno;

/// Bytes of the name of a congestion control, with the terminating zero (`TCP_CA_NAME_MAX`).
const NAME_BYTES_MAX: usize = 16;

/// Microseconds of a second.
const MICROS: i64 = 1_000_000;

/// Value of a socket option. Integers, `bool`, `Duration`, strings and bytes convert into an
/// `OptionValue`, so that `set_option(SocketOption::KeepIdle, Duration::from_secs(30))` works. For
/// an option that is a number, a `Duration` becomes a number in the option's own unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionValue {
    /// A number, or a switch: 0 is off, any other number is on.
    Int(i32),
    /// A number of 64 bits.
    Long(u64),
    /// `SO_LINGER`; `None` is off.
    Linger(Option<Duration>),
    /// A time limit; `None` is unlimited.
    Time(Option<Duration>),
    /// A name.
    Name(String),
    /// Anything else, as the kernel lays it out.
    Bytes(Vec<u8>),
}

impl From<bool> for OptionValue {
    fn from(on: bool) -> Self {
        Self::Int(i32::from(on))
    }
}

impl From<i32> for OptionValue {
    fn from(number: i32) -> Self {
        Self::Int(number)
    }
}

impl From<u32> for OptionValue {
    fn from(number: u32) -> Self {
        Self::from(u64::from(number))
    }
}

impl From<u64> for OptionValue {
    /// An [`Int`](Self::Int) where the number fits in one, else a [`Long`](Self::Long).
    fn from(number: u64) -> Self {
        i32::try_from(number).map_or(Self::Long(number), Self::Int)
    }
}

impl From<usize> for OptionValue {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<Duration> for OptionValue {
    fn from(time: Duration) -> Self {
        Self::Time(Some(time))
    }
}

impl From<Option<Duration>> for OptionValue {
    fn from(time: Option<Duration>) -> Self {
        Self::Time(time)
    }
}

impl From<&str> for OptionValue {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

impl From<String> for OptionValue {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

impl From<&[u8]> for OptionValue {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for OptionValue {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

/// Returns the `int` at offset `at`, or `EINVAL` if there are fewer bytes.
fn int(bytes: &[u8], at: usize) -> Result<i32, Errno> {
    let bytes = bytes.get(at..at + 4).ok_or(Errno::EINVAL)?;
    Ok(i32::from_ne_bytes(bytes.try_into().map_err(|_| Errno::EINVAL)?))
}

/// Returns the `long` at offset `at`, or `EINVAL` if there are fewer bytes.
fn long(bytes: &[u8], at: usize) -> Result<i64, Errno> {
    let bytes = bytes.get(at..at + 8).ok_or(Errno::EINVAL)?;
    Ok(i64::from_ne_bytes(bytes.try_into().map_err(|_| Errno::EINVAL)?))
}

/// Returns the whole seconds, at most `i32::MAX`.
fn seconds(time: Duration) -> i32 {
    i32::try_from(time.as_secs()).unwrap_or(i32::MAX)
}

impl OptionValue {
    /// Reads the bytes that `setsockopt` got for `option`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are too few bytes, `EDOM` for a time whose microseconds are negative or
    /// reach a second.
    pub fn decode(option: SocketOption, bytes: &[u8]) -> Result<Self, Errno> {
        Ok(match option.form() {
            Form::Int
            | Form::Size
            | Form::Unsigned
            | Form::Seconds
            | Form::Milliseconds
            | Form::Microseconds => Self::Int(int(bytes, 0)?),
            Form::ByteOrInt => Self::Int(match bytes {
                [] => 0,
                [byte] | [byte, _] | [byte, _, _] => i32::from(*byte),
                _ => int(bytes, 0)?,
            }),
            Form::IntOrLong => match long(bytes, 0) {
                Ok(number) => Self::Long(number.cast_unsigned()),
                Err(_) => Self::Int(int(bytes, 0)?),
            },
            Form::Linger => {
                let (on, seconds) = (int(bytes, 0)?, int(bytes, 4)?);
                // Linux casts a negative number of seconds to a large one, which is the longest
                // wait.
                let seconds = u64::try_from(seconds).unwrap_or(i32::MAX as u64);
                Self::Linger((on != 0).then(|| Duration::from_secs(seconds)))
            }
            Form::Time => time(long(bytes, 0)?, long(bytes, 8)?)?,
            Form::Name => {
                let bytes = &bytes[..bytes.len().min(NAME_BYTES_MAX - 1)];
                if bytes.is_empty() {
                    return Err(Errno::EINVAL);
                }
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                Self::Name(String::from_utf8_lossy(&bytes[..end]).into_owned())
            }
            Form::Bytes => Self::Bytes(bytes.to_vec()),
        })
    }

    /// Writes the value of `option` as `getsockopt` does into `room`, and returns the number of
    /// bytes written.
    pub fn encode(&self, option: SocketOption, room: &mut [u8]) -> usize {
        let bytes = match self {
            // If the buffer is shorter than an `int`, options of IP return one byte, unless the
            // number does not fit in a byte.
            Self::Int(number) if option.form() == Form::ByteOrInt && room.len() < 4 => {
                match u8::try_from(*number) {
                    Ok(byte) => vec![byte],
                    Err(_) => number.to_ne_bytes().to_vec(),
                }
            }
            Self::Int(number) => number.to_ne_bytes().to_vec(),
            Self::Long(number) if room.len() < 8 => {
                u32::try_from(*number).unwrap_or(u32::MAX).to_ne_bytes().to_vec()
            }
            Self::Long(number) => number.to_ne_bytes().to_vec(),
            Self::Linger(linger) => {
                let on = i32::from(linger.is_some()).to_ne_bytes();
                [on, seconds(linger.unwrap_or_default()).to_ne_bytes()].concat()
            }
            Self::Time(limit) => {
                let limit = limit.unwrap_or_default();
                let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
                [seconds.to_ne_bytes(), i64::from(limit.subsec_micros()).to_ne_bytes()].concat()
            }
            Self::Name(name) => {
                let mut bytes = name.as_bytes().to_vec();
                bytes.resize(NAME_BYTES_MAX, 0);
                bytes
            }
            Self::Bytes(bytes) => bytes.clone(),
        };
        let len = bytes.len().min(room.len());
        room[..len].copy_from_slice(&bytes[..len]);
        len
    }

    /// Returns the value in the form of `option`. A time becomes a linger time or a whole number of
    /// the option's unit, in which no time is 0. A size too large for an `int` becomes the largest
    /// size, and an unsigned number is limited to 32 bits.
    ///
    /// # Errors
    /// `EINVAL` for a time that is not a whole number of the option's unit, or is too long for an
    /// `int`.
    pub(super) fn in_form_of(&self, option: SocketOption) -> Result<Cow<'_, Self>, Errno> {
        let form = option.form();
        Ok(match (self, form) {
            (Self::Time(time), Form::Linger) => Cow::Owned(Self::Linger(*time)),
            (Self::Time(time), _) => match form.unit() {
                Some(unit) => Cow::Owned(Self::Int(in_units(time.unwrap_or_default(), unit)?)),
                None => Cow::Borrowed(self),
            },
            (Self::Long(_), Form::Size) => Cow::Owned(Self::Int(i32::MAX)),
            (Self::Long(number), Form::Unsigned) => {
                let bytes = u32::try_from(*number).unwrap_or(u32::MAX);
                Cow::Owned(Self::Int(bytes.cast_signed()))
            }
            _ => Cow::Borrowed(self),
        })
    }

    /// Returns the value if it is a number. A 64-bit number is limited to the largest unsigned
    /// 32-bit number, whose bits are returned as an `int`.
    #[must_use]
    pub fn as_int(&self) -> Option<i32> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Long(number) => Some(u32::try_from(*number).unwrap_or(u32::MAX).cast_signed()),
            _ => None,
        }
    }
}

/// Returns the time as a whole number of `unit`, or `EINVAL` if it is none.
fn in_units(time: Duration, unit: Duration) -> Result<i32, Errno> {
    let (ns, unit_ns) = (time.as_nanos(), unit.as_nanos());
    if ns % unit_ns != 0 {
        return Err(Errno::EINVAL);
    }
    i32::try_from(ns / unit_ns).map_err(|_| Errno::EINVAL)
}

/// Returns the limit for a `timeval`, as `sock_set_timeout` in Linux. A negative time means that a
/// call must not wait, and becomes the shortest limit. Zero means no limit.
fn time(seconds: i64, micros: i64) -> Result<OptionValue, Errno> {
    if !(0..MICROS).contains(&micros) {
        return Err(Errno::EDOM);
    }
    let limit = match (u64::try_from(seconds), u64::try_from(micros)) {
        (Ok(0), Ok(0)) => None,
        (Ok(seconds), Ok(micros)) => {
            Some(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)))
        }
        _ => Some(Duration::from_nanos(1)),
    };
    Ok(OptionValue::Time(limit))
}
