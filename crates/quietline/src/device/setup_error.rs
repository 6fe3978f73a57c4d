//! `SetupError`: the reason why a device could not be opened, as one line for users.
//!
//! Below: `tun`, `netlink`, `capture`. Above: the builder and the command line, which print it
//! unchanged. Linux: the errno of open, ioctl and the netlink acknowledgment.
//!
//! Every text names the step, the interface and the errno, and adds a remedy if one is known.
//!
//! Not here: errors of a running device (they are drop reasons and counters).

use std::fmt;
use std::io;

/// The reason why a device could not be set up. `Display` is one line without a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetupError {
    /// A configured value is out of its range.
    Field {
        /// Name of the field.
        field: &'static str,
        /// The refused value.
        value: String,
        /// Allowed values.
        allowed: &'static str,
    },
    /// The kernel refused a step.
    System {
        /// The attempted step, with the name of the interface.
        step: String,
        /// Positive errno.
        errno: i32,
        /// Further text of the kernel or a remedy; may be empty.
        hint: String,
    },
}

impl SetupError {
    pub(super) fn field(
        field: &'static str,
        value: impl fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self::Field { field, value: value.to_string(), allowed }
    }

    /// Builds the error of a refused step. EPERM and EACCES name the missing capability.
    pub(super) fn system(step: impl Into<String>, errno: i32) -> Self {
        let hint = match errno {
            libc::EPERM | libc::EACCES => "needs CAP_NET_ADMIN (run as root)",
            libc::EBUSY => "another program holds it",
            _ => "",
        };
        Self::System { step: step.into(), errno, hint: hint.to_owned() }
    }

    /// Replaces the general hint by `text`, unless `text` is empty.
    pub(super) fn with_hint(mut self, text: impl Into<String>) -> Self {
        let text = text.into();
        if let Self::System { hint, .. } = &mut self
            && !text.is_empty()
        {
            *hint = text;
        }
        self
    }

    /// Returns the errno for applications: EINVAL for a bad field.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Field { .. } => libc::EINVAL,
            Self::System { errno, .. } => *errno,
        }
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field { field, value, allowed } => {
                write!(f, "{field} \"{value}\" is not allowed: {allowed}")
            }
            Self::System { step, errno, hint } => {
                write!(f, "cannot {step}: {}", describe(*errno))?;
                if hint.is_empty() { Ok(()) } else { write!(f, "; {hint}") }
            }
        }
    }
}

impl std::error::Error for SetupError {}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

/// Returns a text such as "Operation not permitted (errno 1)".
fn describe(errno: i32) -> String {
    // The text of the standard library ends in "(os error 1)"; the Linux word is errno.
    io::Error::from_raw_os_error(errno).to_string().replace("(os error ", "(errno ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_step_errno_and_remedy() {
        let error = SetupError::system("create tap \"tap0\"", libc::EPERM);
        assert_eq!(
            error.to_string(),
            "cannot create tap \"tap0\": Operation not permitted (errno 1); needs CAP_NET_ADMIN (run as root)"
        );
        let error = io::Error::from(error);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(!error.to_string().contains('\n'));
    }

    #[test]
    fn a_bad_field_names_the_allowed_range() {
        let error = SetupError::field("mtu", 3, "68 to 65521 for a tap");
        assert_eq!(error.to_string(), "mtu \"3\" is not allowed: 68 to 65521 for a tap");
        assert_eq!(error.errno(), libc::EINVAL);
    }
}
