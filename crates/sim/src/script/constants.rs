//! Names that calls use, by their Linux numbers.
//!
//! Not here: errno (`stack::Errno`), fields of `TCP_INFO` (`info`).

use super::ast::Arg;

const NAMES: &[(&str, i64)] = &[
    ("AF_INET", 2),
    ("PF_INET", 2),
    ("SOCK_STREAM", 1),
    ("SOCK_NONBLOCK", O_NONBLOCK),
    ("IPPROTO_IP", 0),
    ("IPPROTO_TCP", 6),
    ("SOL_TCP", 6),
    ("SOL_SOCKET", 1),
    ("F_GETFL", 3),
    ("F_SETFL", 4),
    ("O_RDWR", 2),
    ("O_NONBLOCK", O_NONBLOCK),
    ("SHUT_RD", 0),
    ("SHUT_WR", 1),
    ("SHUT_RDWR", 2),
    ("MSG_OOB", MSG_OOB),
    ("MSG_PEEK", MSG_PEEK),
    ("MSG_TRUNC", MSG_TRUNC),
    ("MSG_DONTWAIT", MSG_DONTWAIT),
    ("MSG_WAITALL", MSG_WAITALL),
    ("MSG_NOSIGNAL", MSG_NOSIGNAL),
    ("MSG_MORE", MSG_MORE),
    ("MSG_FASTOPEN", MSG_FASTOPEN),
    ("SIOCINQ", 0x541b),
    ("FIONREAD", 0x541b),
    ("SIOCOUTQ", 0x5411),
    ("SIOCATMARK", 0x8905),
    ("POLLIN", 1),
    ("POLLPRI", 2),
    ("POLLOUT", 4),
    ("POLLERR", 8),
    ("POLLHUP", 16),
    ("POLLRDHUP", 0x2000),
];

pub(super) const O_NONBLOCK: i64 = 0x800;
pub(super) const MSG_OOB: i64 = 1;
pub(super) const MSG_PEEK: i64 = 2;
pub(super) const MSG_TRUNC: i64 = 0x20;
pub(super) const MSG_DONTWAIT: i64 = 0x40;
pub(super) const MSG_WAITALL: i64 = 0x100;
pub(super) const MSG_NOSIGNAL: i64 = 0x4000;
pub(super) const MSG_MORE: i64 = 0x8000;
pub(super) const MSG_FASTOPEN: i64 = 0x2000_0000;

impl Arg {
    /// The number of an argument: itself, or its names joined by `|`.
    pub(super) fn number(&self) -> Result<i64, String> {
        match self {
            Self::Number(number) => Ok(*number),
            Self::Names(names) => names.iter().try_fold(0, |bits, name| {
                let known = NAMES.iter().find(|(known, _)| known == name);
                known.map(|(_, value)| bits | value).ok_or_else(|| format!("{name}: no such name"))
            }),
            Self::List(list) if list.len() == 1 => list[0].number(),
            other => Err(format!("{other:?} is not a number")),
        }
    }

    /// One name.
    pub(super) fn name(&self) -> Result<&str, String> {
        match self {
            Self::Names(names) if names.len() == 1 => Ok(&names[0]),
            other => Err(format!("{other:?} is not a name")),
        }
    }

    /// A field of a structure.
    pub(super) fn field(&self, name: &str) -> Result<&Self, String> {
        let Self::Fields(fields) = self else { return Err(format!("{self:?} has no fields")) };
        let found = fields.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value).ok_or_else(|| format!("the field {name} is missing"))
    }
}
