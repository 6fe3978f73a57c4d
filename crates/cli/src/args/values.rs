//! Parsers of single option values, with the messages for refused values.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;

/// Returns a parser of decimal numbers in a range.
pub(super) fn number<T: TryFrom<u64> + 'static>(
    allowed: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        // `parse` alone would accept a leading plus sign.
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse::<u64>().ok().filter(|value| digits && allowed.contains(value));
        value.and_then(|value| T::try_from(value).ok()).ok_or_else(|| {
            format!("expected a number from {} to {}", allowed.start(), allowed.end())
        })
    }
}

/// Parses an IP address.
pub(super) fn parse_address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "expected an IP address, such as 10.7.0.1".to_owned())
}

/// Parses an IP address with a prefix length.
pub(super) fn parse_network(text: &str) -> Result<IpNet, String> {
    if let Ok(network) = text.parse() {
        return Ok(network);
    }
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!("the prefix length is missing; did you mean {text}/24?"));
    }
    Err("expected an address and a prefix length, such as 10.7.0.2/24".to_owned())
}

/// Parses the number of runs of an experiment, half of which go backwards.
pub(super) fn parse_runs(text: &str) -> Result<u32, String> {
    let runs = number::<u32>(2..=10_000)(text).ok().filter(|runs| runs.is_multiple_of(2));
    runs.ok_or_else(|| "expected an even number from 2 to 10000".to_owned())
}

/// Parses the duration of a demo.
pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.01 to 3600".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_bounds_are_refused() {
        let port = number::<u16>(1..=65_535);
        assert_eq!((port("1"), port("65535")), (Ok(1), Ok(65_535)));
        for text in ["", "0", "65536", "+1", "-1", "1.0", "x", "99999999999999999999"] {
            assert_eq!(port(text), Err("expected a number from 1 to 65535".to_owned()), "{text}");
        }
    }
}
