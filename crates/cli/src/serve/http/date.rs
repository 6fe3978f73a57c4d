//! HTTP dates (RFC 9110 §5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`, whole seconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) use httpdate::HttpDate;

/// The last second of the year 9999: the format has four digits for the year.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// Formats a time. Times that the format cannot express become the first or the last date.
pub(super) fn http_date(time: SystemTime) -> HttpDate {
    HttpDate::from(time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST))
}

/// Parses a date in any of the three formats that a recipient must accept; `None` for other text.
pub(super) fn parse(value: &[u8]) -> Option<HttpDate> {
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(seconds: u64) -> String {
        http_date(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
    }

    #[test]
    fn known_times_are_formatted_correctly() {
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(date(4_107_542_399), "Sun, 28 Feb 2100 23:59:59 GMT");
        assert_eq!(date(4_107_542_400), "Mon, 01 Mar 2100 00:00:00 GMT");
    }

    #[test]
    fn times_outside_the_format_are_clamped() {
        let early = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(http_date(early).to_string(), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(u64::from(u32::MAX) * 1000), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn all_three_date_formats_are_parsed() {
        let expected = http_date(UNIX_EPOCH + Duration::from_secs(784_111_777));
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
        for text in ["", "yesterday", "1994-11-06T08:49:37Z", "784111777"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
