//! Why a configuration was refused.
//!
//! Above: whoever checks what an application or an administrator asks for: devices, routes, settings, the host.

use std::io;

/// Why a configuration was refused, as one line: "device tap7: no such device".
#[derive(Clone, Debug, thiserror::Error)]
#[error("{field} {value}: {reason}")]
pub struct ConfigError {
    /// The field or option, by its name in the builder.
    pub field: &'static str,
    /// The refused value.
    pub value: String,
    /// The reason of the refusal: a value that would be accepted, or what stands against this one.
    pub reason: String,
    /// The kind that the error has as an [`io::Error`].
    pub kind: io::ErrorKind,
}

impl ConfigError {
    /// A value of `field` outside of what is allowed: `InvalidInput`.
    pub fn new(field: &'static str, value: impl ToString, allowed: impl ToString) -> Self {
        Self::refused(field, value, format!("expected {}", allowed.to_string()))
    }

    /// A value of `field` that a whole sentence explains: `InvalidInput`.
    pub fn refused(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        let (value, reason) = (value.to_string(), reason.to_string());
        Self { field, value, reason, kind: io::ErrorKind::InvalidInput }
    }

    /// A value that names something the host does not have: `NotFound`.
    pub fn missing(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        Self { kind: io::ErrorKind::NotFound, ..Self::refused(field, value, reason) }
    }

    /// A value that the host has already: `AlreadyExists`.
    pub fn exists(field: &'static str, value: impl ToString, reason: impl ToString) -> Self {
        Self { kind: io::ErrorKind::AlreadyExists, ..Self::refused(field, value, reason) }
    }
}
