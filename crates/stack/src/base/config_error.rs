//! Reason why a configuration was refused.
//!
//! Above: the code that validates devices, routes, settings and hosts as an application or an
//! administrator configures them.

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
    /// Creates the refusal of a value of `field` outside the allowed range, of kind `InvalidInput`.
    pub fn new(field: &'static str, value: impl ToString, allowed: impl ToString) -> Self {
        Self::refused(field, value, format!("expected {}", allowed.to_string()))
    }

    /// Creates the refusal of a value of `field` with a complete explanation, of kind
    /// `InvalidInput`.
    pub fn refused(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        let (value, reason) = (value.to_string(), reason.to_string());
        Self { field, value, reason, kind: io::ErrorKind::InvalidInput }
    }

    /// Creates the refusal of a value that names an object the host does not have, of kind
    /// `NotFound`.
    pub fn missing(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        Self { kind: io::ErrorKind::NotFound, ..Self::refused(field, value, reason) }
    }

    /// Creates the refusal of a value that the host already has, of kind `AlreadyExists`.
    pub fn exists(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        Self { kind: io::ErrorKind::AlreadyExists, ..Self::refused(field, value, reason) }
    }
}
