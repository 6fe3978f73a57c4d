//! Reason why a configuration was refused.
//!
//! Above: validation of requests by an application or an administrator: devices, routes, settings,
//! the host.

use std::io;

/// Refusal of a configuration, displayed as one line: "device tap7: no such device".
#[derive(Clone, Debug, thiserror::Error)]
#[error("{field} {value}: {reason}")]
pub struct ConfigError {
    /// Field or option, by its name in the builder.
    pub field: &'static str,
    /// Refused value.
    pub value: String,
    /// Reason of the refusal: the values that are accepted, or the conflict.
    pub reason: String,
    /// Kind of the error when converted to an [`io::Error`].
    pub kind: io::ErrorKind,
}

impl ConfigError {
    /// Refuses a value of `field` outside of the allowed range: `InvalidInput`.
    pub fn new(field: &'static str, value: impl ToString, allowed: impl ToString) -> Self {
        Self::refused(field, value, format!("expected {}", allowed.to_string()))
    }

    /// Refuses a value of `field` with a complete explanation: `InvalidInput`.
    pub fn refused(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        let (value, reason) = (value.to_string(), reason.to_string());
        Self { field, value, reason, kind: io::ErrorKind::InvalidInput }
    }

    /// Refuses a value that names an object the host does not have: `NotFound`.
    pub fn missing(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        Self { kind: io::ErrorKind::NotFound, ..Self::refused(field, value, reason) }
    }

    /// Refuses a value that the host already has: `AlreadyExists`.
    pub fn exists(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        Self { kind: io::ErrorKind::AlreadyExists, ..Self::refused(field, value, reason) }
    }
}
