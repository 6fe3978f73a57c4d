//! Queueing disciplines as `tc qdisc` writes them: `tbf rate 100mbit burst 10kb latency 50ms`.
//!
//! Above: the builder and the CLI. Units are those of tc(8): rates in bits (`kbit`, `mbit`, `gbit`:
//! powers of 1000) or bytes (`kbps`, …) per second, sizes in bytes (`kb`, `mb`: powers of 1024),
//! times in `s`, `ms`, `us`, `ns`.

use std::{
    fmt,
    str::{FromStr, SplitWhitespace},
    string::String,
    time::Duration,
};

use super::modes::DefaultQdisc;

/// Discipline of a device queue, with its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QdiscConfig {
    /// No discipline: packets go directly to the device. If the device has no room, they wait for a
    /// completion. Meant for devices that accept all packets.
    #[default]
    NoQueue,
    /// Three FIFO bands of `txqueuelen` packets.
    PfifoFast,
    /// Token bucket filter.
    Tbf(TbfConfig),
    /// Fair queueing with departure times.
    Fq(FqConfig),
    /// Fair queueing with controlled delay.
    FqCodel(FqCodelConfig),
}

impl From<DefaultQdisc> for QdiscConfig {
    fn from(default: DefaultQdisc) -> Self {
        match default {
            DefaultQdisc::PfifoFast => Self::PfifoFast,
            DefaultQdisc::Fq => Self::Fq(FqConfig::default()),
            DefaultQdisc::FqCodel => Self::FqCodel(FqCodelConfig::default()),
            DefaultQdisc::NoQueue => Self::NoQueue,
        }
    }
}

/// Error of parsing a discipline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("qdisc {text:?}: {reason}")]
pub struct QdiscConfigError {
    text: String,
    reason: String,
}

impl FromStr for QdiscConfig {
    type Err = QdiscConfigError;

    /// Parses a discipline with its parameters. Omitted parameters have their defaults.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|reason| QdiscConfigError { text: String::from(text), reason })
    }
}

fn parse(text: &str) -> Result<QdiscConfig, String> {
    let mut words = text.split_whitespace();
    match words.next() {
        Some("noqueue") => end(words, QdiscConfig::NoQueue),
        Some("pfifo_fast") => end(words, QdiscConfig::PfifoFast),
        Some("tbf") => parse_tbf(words).map(QdiscConfig::Tbf),
        Some("fq") => parse_fq(words).map(QdiscConfig::Fq),
        Some("fq_codel") => parse_fq_codel(words).map(QdiscConfig::FqCodel),
        Some(other) => Err(format!(
            "{other:?} is not known: expected noqueue, pfifo_fast, tbf, fq or fq_codel"
        )),
        None => Err(String::from("a name is missing")),
    }
}

fn end(mut words: SplitWhitespace<'_>, config: QdiscConfig) -> Result<QdiscConfig, String> {
    match words.next() {
        None => Ok(config),
        Some(word) => Err(format!("{word:?}: the discipline has no parameters")),
    }
}

fn parse_tbf(mut words: SplitWhitespace<'_>) -> Result<TbfConfig, String> {
    let (mut rate, mut burst, mut limit, mut latency) = (None, None, None, None);
    while let Some(word) = words.next() {
        match word {
            "rate" => rate = Some(value(&mut words, word, rate_bps)?),
            "burst" | "buffer" | "maxburst" => burst = Some(value(&mut words, word, size)?),
            "limit" => limit = Some(value(&mut words, word, size)?),
            "latency" => latency = Some(value(&mut words, word, time)?),
            _ => return Err(unknown(word, "rate, burst, limit or latency")),
        }
    }
    let rate_bps = rate.filter(|rate| *rate > 0).ok_or("tbf needs a rate above 0")?;
    let burst = burst.filter(|burst| *burst > 0).ok_or("tbf needs a burst above 0")?;
    let burst_bytes = u32::try_from(burst).map_err(|_| "burst must be below 4gb")?;
    let limit_bytes = match (limit, latency) {
        (Some(limit), None) => limit,
        (None, Some(latency)) => {
            // As in tc, the limit is the number of bytes that leave in this time, plus the burst.
            let bytes = u128::from(rate_bps) * latency.as_nanos() / 8_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(burst)
        }
        _ => return Err(String::from("tbf needs either limit or latency")),
    };
    Ok(TbfConfig { rate_bps, burst_bytes, limit_bytes })
}

fn parse_fq(mut words: SplitWhitespace<'_>) -> Result<FqConfig, String> {
    let mut config = FqConfig::default();
    while let Some(word) = words.next() {
        match word {
            "limit" => config.limit = value(&mut words, word, count)?,
            "flow_limit" => config.flow_limit = value(&mut words, word, count)?,
            "quantum" => config.quantum = value(&mut words, word, count)?,
            "initial_quantum" => config.initial_quantum = value(&mut words, word, count)?,
            "horizon" => config.horizon = value(&mut words, word, time)?,
            "horizon_drop" => config.horizon_drop = true,
            "horizon_cap" => config.horizon_drop = false,
            _ => {
                let known = "limit, flow_limit, quantum, initial_quantum, horizon, horizon_drop or \
                             horizon_cap";
                return Err(unknown(word, known));
            }
        }
    }
    if config.quantum == 0 {
        return Err(String::from("quantum must be above 0"));
    }
    Ok(config)
}

fn parse_fq_codel(mut words: SplitWhitespace<'_>) -> Result<FqCodelConfig, String> {
    let mut config = FqCodelConfig::default();
    while let Some(word) = words.next() {
        match word {
            "limit" => config.limit = value(&mut words, word, count)?,
            "memory_limit" => config.memory_limit = value(&mut words, word, size)?,
            "flows" => config.flows = value(&mut words, word, count)?,
            "target" => config.target = value(&mut words, word, time)?,
            "interval" => config.interval = value(&mut words, word, time)?,
            "quantum" => config.quantum = value(&mut words, word, count)?,
            "ecn" => config.ecn = true,
            "noecn" => config.ecn = false,
            _ => {
                let known = "limit, memory_limit, flows, target, interval, quantum, ecn or noecn";
                return Err(unknown(word, known));
            }
        }
    }
    if config.quantum == 0 || !(1..=65_536).contains(&config.flows) {
        return Err(String::from("quantum must be above 0, flows from 1 to 65536"));
    }
    Ok(config)
}

fn unknown(word: &str, known: &str) -> String {
    format!("{word:?} is not a parameter of this discipline: expected {known}")
}

fn value<T>(
    words: &mut SplitWhitespace<'_>,
    name: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<T, String> {
    let word = words.next().ok_or_else(|| format!("{name} needs a value"))?;
    read(word).ok_or_else(|| format!("{name}: {word:?} is not a valid value"))
}

fn count(word: &str) -> Option<u32> {
    word.parse().ok()
}

/// Parses a number with one of the units and scales it. As in tc, fractions are allowed.
fn scaled(word: &str, units: &[(&str, f64)]) -> Option<f64> {
    let digits = word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1;
    let value = number.parse::<f64>().ok()? * factor;
    (value.is_finite() && value >= 0.0).then_some(value)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is not negative, and the cast saturates"
)]
fn rate_bps(word: &str) -> Option<u64> {
    let units = [
        ("", 1.0),
        ("bit", 1.0),
        ("kbit", 1e3),
        ("mbit", 1e6),
        ("gbit", 1e9),
        ("tbit", 1e12),
        ("bps", 8.0),
        ("kbps", 8e3),
        ("mbps", 8e6),
        ("gbps", 8e9),
    ];
    scaled(word, &units).map(|rate| rate as u64)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the value is not negative, and the cast saturates"
)]
fn size(word: &str) -> Option<u64> {
    let (k, m, g) = (1024.0, 1_048_576.0, 1_073_741_824.0);
    let units =
        [("", 1.0), ("b", 1.0), ("k", k), ("kb", k), ("m", m), ("mb", m), ("g", g), ("gb", g)];
    scaled(word, &units).map(|bytes| bytes as u64)
}

fn time(word: &str) -> Option<Duration> {
    let units = [
        ("", 1e-6),
        ("us", 1e-6),
        ("usec", 1e-6),
        ("ms", 1e-3),
        ("msec", 1e-3),
        ("s", 1.0),
        ("sec", 1.0),
        ("ns", 1e-9),
    ];
    Duration::try_from_secs_f64(scaled(word, &units)?).ok()
}

impl fmt::Display for QdiscConfig {
    /// Writes the text that [`FromStr`] parses.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue => f.write_str("noqueue"),
            Self::PfifoFast => f.write_str("pfifo_fast"),
            Self::Tbf(TbfConfig { rate_bps, burst_bytes, limit_bytes }) => {
                write!(f, "tbf rate {rate_bps}bit burst {burst_bytes}b limit {limit_bytes}b")
            }
            Self::Fq(config) => {
                let horizon = if config.horizon_drop { "horizon_drop" } else { "horizon_cap" };
                write!(
                    f,
                    "fq limit {} flow_limit {} quantum {} initial_quantum {} horizon {}us {horizon}",
                    config.limit,
                    config.flow_limit,
                    config.quantum,
                    config.initial_quantum,
                    config.horizon.as_micros(),
                )
            }
            Self::FqCodel(config) => {
                let ecn = if config.ecn { "ecn" } else { "noecn" };
                write!(
                    f,
                    "fq_codel limit {} flows {} quantum {} target {}us interval {}us memory_limit {}b {ecn}",
                    config.limit,
                    config.flows,
                    config.quantum,
                    config.target.as_micros(),
                    config.interval.as_micros(),
                    config.memory_limit,
                )
            }
        }
    }
}

/// Parameters of `fq`, with the defaults of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqConfig {
    /// Maximum number of waiting packets.
    pub limit: u32,
    /// Maximum number of waiting packets of one flow.
    pub flow_limit: u32,
    /// Bytes that a flow may send each time it is served: two frames.
    pub quantum: u32,
    /// Bytes that a new flow may send when it is first served: ten frames, an initial window
    /// (RFC 6928).
    pub initial_quantum: u32,
    /// Maximum time from now to the departure of a packet. Packets that depart later are dropped,
    /// or their departure time is reduced to this maximum.
    pub horizon: Duration,
    /// True if packets beyond the horizon are dropped.
    pub horizon_drop: bool,
}

impl Default for FqConfig {
    fn default() -> Self {
        Self {
            limit: 10_000,
            flow_limit: 100,
            quantum: 2 * 1514,
            initial_quantum: 10 * 1514,
            horizon: Duration::from_secs(10),
            horizon_drop: true,
        }
    }
}

/// Parameters of `fq_codel`, with the defaults of RFC 8290 §5.2 and Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FqCodelConfig {
    /// Maximum number of waiting packets.
    pub limit: u32,
    /// Maximum memory of waiting packets in bytes (truesize).
    pub memory_limit: u64,
    /// Number of queues that flows are hashed into.
    pub flows: u32,
    /// Queueing delay that CoDel accepts.
    pub target: Duration,
    /// Time for which the delay may exceed the target before packets are dropped: about a round
    /// trip.
    pub interval: Duration,
    /// Bytes that a flow may send each time it is served.
    pub quantum: u32,
    /// True if ECN-capable packets are marked instead of dropped.
    pub ecn: bool,
}

impl Default for FqCodelConfig {
    fn default() -> Self {
        Self {
            limit: 10_240,
            memory_limit: 32 << 20,
            flows: 1024,
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            quantum: 1514,
            ecn: true,
        }
    }
}

/// Parameters of a token bucket filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TbfConfig {
    /// Rate in bits per second. Preamble and checksum of the link's frames do not count.
    pub rate_bps: u64,
    /// Bytes that may leave at once after a pause; no packet may be larger.
    pub burst_bytes: u32,
    /// Maximum number of waiting bytes.
    pub limit_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_tc_is_parsed() {
        let tbf = "tbf rate 100mbit burst 10kb latency 50ms".parse::<QdiscConfig>().unwrap();
        let expected =
            TbfConfig { rate_bps: 100_000_000, burst_bytes: 10_240, limit_bytes: 625_000 + 10_240 };
        assert_eq!(tbf, QdiscConfig::Tbf(expected));
        let fq = "fq flow_limit 200 horizon 2s horizon_cap".parse().unwrap();
        let horizon = Duration::from_secs(2);
        let expected =
            FqConfig { flow_limit: 200, horizon, horizon_drop: false, ..FqConfig::default() };
        assert_eq!(QdiscConfig::Fq(expected), fq);
        let fq_codel = "fq_codel target 1.5ms noecn".parse().unwrap();
        let target = Duration::from_micros(1500);
        let expected = FqCodelConfig { target, ecn: false, ..FqCodelConfig::default() };
        assert_eq!(QdiscConfig::FqCodel(expected), fq_codel);
        assert_eq!("noqueue".parse(), Ok(QdiscConfig::NoQueue));
        assert_eq!("pfifo_fast".parse(), Ok(QdiscConfig::PfifoFast));
    }

    #[test]
    fn a_printed_discipline_is_parsed_again() {
        let texts = [
            "noqueue",
            "pfifo_fast",
            "tbf rate 1gbit burst 64kb limit 1mb",
            "fq limit 100",
            "fq_codel flows 32 ecn",
        ];
        for text in texts {
            let config: QdiscConfig = text.parse().unwrap();
            assert_eq!(config.to_string().parse(), Ok(config), "{config}");
        }
    }

    #[test]
    fn invalid_disciplines_are_rejected_with_a_reason() {
        let refused = [
            ("", "a name is missing"),
            ("cake", "\"cake\" is not known: expected noqueue, pfifo_fast, tbf, fq or fq_codel"),
            ("pfifo_fast limit 3", "\"limit\": the discipline has no parameters"),
            ("tbf burst 1kb limit 1kb", "tbf needs a rate above 0"),
            ("tbf rate 1mbit burst 1kb", "tbf needs either limit or latency"),
            ("tbf rate fast burst 1kb limit 1kb", "rate: \"fast\" is not a valid value"),
            ("fq quantum", "quantum needs a value"),
            ("fq quantum 0", "quantum must be above 0"),
            ("fq_codel flows 0", "quantum must be above 0, flows from 1 to 65536"),
        ];
        for (text, reason) in refused {
            let error = text.parse::<QdiscConfig>().unwrap_err();
            assert_eq!(error.to_string(), format!("qdisc {text:?}: {reason}"));
        }
    }
}
