//! The cookie that the Fast Open option carries.
//!
//! RFC 7413 §4.1.1.
//!
//! Not here: the keys from which a server computes cookies (`open::fast_open`), the cookies that a
//! client stores (`stack::socket::fast_open`).

/// Bytes of the longest cookie (RFC 7413 §4.1.1).
const COOKIE_BYTES_MAX: usize = 16;
/// Bytes of the shortest cookie.
const COOKIE_BYTES_MIN: usize = 4;

/// The value of a Fast Open option; empty when a client requests a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cookie {
    /// Whether the cookie is carried by the experimental option (kind 254).
    experimental: bool,
    len: u8,
    bytes: [u8; COOKIE_BYTES_MAX],
}

impl Cookie {
    /// A client's request for a cookie.
    pub const REQUEST: Self = Self { experimental: false, len: 0, bytes: [0; COOKIE_BYTES_MAX] };

    /// Returns a cookie of these bytes, or a request if there are none; `None` for a length that
    /// RFC 7413 §4.1.1 does not allow.
    #[must_use]
    pub fn new(value: &[u8]) -> Option<Self> {
        let allowed = value.is_empty()
            || ((COOKIE_BYTES_MIN..=COOKIE_BYTES_MAX).contains(&value.len())
                && value.len().is_multiple_of(2));
        if !allowed {
            return None;
        }
        let mut bytes = [0; COOKIE_BYTES_MAX];
        bytes[..value.len()].copy_from_slice(value);
        Some(Self { experimental: false, len: u8::try_from(value.len()).ok()?, bytes })
    }

    /// Returns a cookie that consists of the first eight bytes of a keyed hash.
    pub(crate) fn of_hash(hash: [u8; 8]) -> Self {
        let mut bytes = [0; COOKIE_BYTES_MAX];
        bytes[..hash.len()].copy_from_slice(&hash);
        Self { experimental: false, len: 8, bytes }
    }

    /// Returns the bytes of the cookie.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the same cookie for the experimental option (kind 254 with the number 0xF989), or
    /// for the option of RFC 7413.
    #[must_use]
    pub const fn in_form(self, experimental: bool) -> Self {
        Self { experimental, ..self }
    }

    /// Whether the experimental option carries the cookie.
    #[must_use]
    pub const fn is_experimental(&self) -> bool {
        self.experimental
    }

    /// Whether the option has no cookie and is a client's request for one.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_cookie_lengths_of_rfc_7413_are_accepted() {
        for len in 0..=20 {
            let allowed = matches!(len, 0 | 4 | 6 | 8 | 10 | 12 | 14 | 16);
            assert_eq!(Cookie::new(&[7; 20][..len]).is_some(), allowed, "{len}");
        }
    }
}
