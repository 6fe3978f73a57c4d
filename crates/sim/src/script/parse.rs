//! Parses a script: options at its head, then events.
//!
//! Not here: packets (`parse_packet`), calls (`parse_call`), whether an event is possible (`run`).

use std::time::Duration;

use super::{
    ScriptError,
    ast::{Event, Payload, Spec, Time, What},
    lex::{Token, Word, lex},
};

/// Options and events of a script.
#[derive(Debug)]
pub(super) struct Parsed {
    /// Name and value of each `--name=value` line, with its line number.
    pub(super) options: Vec<(u32, String, String)>,
    pub(super) events: Vec<Event>,
}

/// Parses a whole script.
pub(super) fn parse(text: &str) -> Result<Parsed, ScriptError> {
    let (options, rest) = split_options(text)?;
    let mut words = Words { tokens: lex(&rest)?, at: 0 };
    let mut events = Vec::new();
    while !words.is_done() {
        events.push(event(&mut words)?);
    }
    Ok(Parsed { options, events })
}

/// Options of the head: name and value with the line number.
type HeadOptions = Vec<(u32, String, String)>;

/// Removes the `--name=value` lines. Blank lines replace them, so that line numbers stay.
fn split_options(text: &str) -> Result<(HeadOptions, String), ScriptError> {
    let mut options = Vec::new();
    let mut rest = String::new();
    for (number, line) in (1_u32..).zip(text.lines()) {
        if let Some(option) = line.trim().strip_prefix("--") {
            let option = option.split("//").next().unwrap_or_default().trim();
            let Some((name, value)) = option.split_once('=') else {
                return Err(ScriptError::new(number, format!("--{option}: expected --name=value")));
            };
            options.push((number, name.to_owned(), value.to_owned()));
        } else {
            rest.push_str(line);
        }
        rest.push('\n');
    }
    Ok((options, rest))
}

fn event(words: &mut Words) -> Result<Event, ScriptError> {
    let line = words.line();
    let start = words.at;
    let time = time(words)?;
    let untimed = words.at == start;
    let what = match words.peek() {
        Some(Word::Name(_) | Word::Sign('<' | '>')) if untimed => {
            return Err(words.unexpected("a time"));
        }
        Some(Word::Sign('<')) => {
            words.skip();
            What::In(spec(words)?)
        }
        Some(Word::Sign('>')) => {
            words.skip();
            What::Out(spec(words)?)
        }
        Some(Word::Command(text)) => {
            let settings = sysctls(text).map_err(|text| ScriptError::new(line, text))?;
            words.skip();
            What::Sysctls(settings)
        }
        Some(Word::Code(text)) => {
            let code = text.clone();
            words.skip();
            What::Code(code)
        }
        Some(Word::Name(_)) => What::Call(super::parse_call::call(words)?),
        _ => return Err(words.unexpected("a packet, a call, a command or code")),
    };
    Ok(Event { line, time, what })
}

fn spec(words: &mut Words) -> Result<Spec, ScriptError> {
    let ip = super::parse_packet::ip(words)?;
    let payload = if words.take_name("icmp") {
        Payload::Icmp(super::parse_packet::icmp(words)?)
    } else {
        Payload::Tcp(super::parse_packet::tcp(words)?)
    };
    Ok(Spec { ip, payload })
}

fn time(words: &mut Words) -> Result<Time, ScriptError> {
    if words.take('*') {
        return Ok(Time::Any);
    }
    let relative = words.take('+');
    if !relative && !matches!(words.peek(), Some(Word::Number(_))) {
        return Ok(Time::Any);
    }
    let from = words.seconds()?;
    let mut to = from;
    let mut ends = None;
    if words.take('~') {
        words.take('+');
        to = words.seconds()?;
    } else if words.take_word(&Word::Ellipsis) {
        words.take('+');
        ends = Some(words.seconds()?);
    }
    if to < from || ends.is_some_and(|ends| ends < from) {
        return Err(words.error("the range ends before it begins"));
    }
    Ok(Time::At { relative, from, to, ends })
}

/// Parses commands that set sysctls. The interpreter executes them: no program runs.
fn sysctls(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut settings = Vec::new();
    for line in text.split(['\n', ';']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let Some(mut rest) = line.strip_prefix("sysctl").filter(|rest| rest.starts_with(' '))
        else {
            return Err(format!("`{line}`: only sysctl is interpreted"));
        };
        loop {
            rest = rest.trim_start();
            if rest.is_empty() {
                break;
            }
            if let Some(after) = rest.strip_prefix("-q").or_else(|| rest.strip_prefix("-w")) {
                rest = after;
                continue;
            }
            let Some((name, after)) = rest.split_once('=') else {
                return Err(format!("`{line}`: expected name=value"));
            };
            let (value, after) = value(after.trim_start());
            settings.push((name.trim().to_owned(), value.trim().to_owned()));
            rest = after;
        }
    }
    Ok(settings)
}

/// Splits a value, which ends at its closing quote or the next blank, from the rest.
fn value(text: &str) -> (&str, &str) {
    for quote in ['"', '\''] {
        if let Some((inside, after)) = text.strip_prefix(quote).and_then(|t| t.split_once(quote)) {
            return (inside, after);
        }
    }
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

/// The words that were not read.
pub(super) struct Words {
    tokens: Vec<Token>,
    at: usize,
}

impl Words {
    fn is_done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub(super) fn peek(&self) -> Option<&Word> {
        self.peek_at(0)
    }

    /// Returns the word `ahead` words after the next.
    pub(super) fn peek_at(&self, ahead: usize) -> Option<&Word> {
        self.tokens.get(self.at + ahead).map(|token| &token.word)
    }

    pub(super) fn skip(&mut self) {
        self.at += 1;
    }

    /// Line of the next word, or of the last one.
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or_else(|| self.tokens.last()).map_or(1, |token| token.line)
    }

    /// Whether the next word is on the line of the previous word.
    pub(super) fn on_same_line(&self) -> bool {
        self.at > 0
            && self.tokens.get(self.at).is_some_and(|t| t.line == self.tokens[self.at - 1].line)
    }

    pub(super) fn take_word(&mut self, word: &Word) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn take(&mut self, sign: char) -> bool {
        self.take_word(&Word::Sign(sign))
    }

    pub(super) fn take_name(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Some(Word::Name(next)) if next == name);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, sign: char) -> Result<(), ScriptError> {
        if self.take(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    pub(super) fn name(&mut self) -> Result<String, ScriptError> {
        let Some(Word::Name(name)) = self.peek() else { return Err(self.unexpected("a name")) };
        let name = name.clone();
        self.skip();
        Ok(name)
    }

    /// Reads a whole number, decimal or hexadecimal, that fits `T`.
    pub(super) fn number<T: TryFrom<i64>>(&mut self) -> Result<T, ScriptError> {
        let negative = self.take('-');
        let Some(Word::Number(text)) = self.peek() else { return Err(self.unexpected("a number")) };
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        let signed = parsed.ok().map(|value| if negative { -value } else { value });
        let Some(value) = signed.and_then(|value| T::try_from(value).ok()) else {
            return Err(self.unexpected("a number in range"));
        };
        self.skip();
        Ok(value)
    }

    /// Reads seconds with at most nine digits after the point.
    fn seconds(&mut self) -> Result<Duration, ScriptError> {
        let Some(Word::Number(text)) = self.peek() else { return Err(self.unexpected("a time")) };
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let nanos = format!("{fraction:0<9}");
        let (Ok(whole), Ok(nanos), 9) = (whole.parse(), nanos.parse(), nanos.len()) else {
            return Err(self.unexpected("a time"));
        };
        self.skip();
        Ok(Duration::new(whole, nanos))
    }

    pub(super) fn error(&self, text: impl Into<String>) -> ScriptError {
        ScriptError::new(self.line(), text.into())
    }

    pub(super) fn unexpected(&self, expected: &str) -> ScriptError {
        let found = self.peek().map_or_else(|| String::from("the end"), Word::show);
        self.error(format!("expected {expected}, found `{found}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        let parse_time = |text: &str| {
            time(&mut Words { tokens: lex(text).expect("words"), at: 0 }).map_err(|e| e.text)
        };
        let at = |relative, from, to, ends: Option<u64>| Time::At {
            relative,
            from: Duration::from_millis(from),
            to: Duration::from_millis(to),
            ends: ends.map(Duration::from_millis),
        };
        assert_eq!(parse_time("0.25 <"), Ok(at(false, 250, 250, None)));
        assert_eq!(parse_time("+.5"), Err(String::from("expected a time, found `.`")));
        assert_eq!(parse_time("+0...0.200"), Ok(at(true, 0, 0, Some(200))));
        assert_eq!(parse_time("+0.1~+0.3"), Ok(at(true, 100, 300, None)));
        assert_eq!(parse_time("* >"), Ok(Time::Any));
        assert!(parse_time("+0.3~+0.1").is_err());
    }

    #[test]
    fn commands_are_read_not_run() {
        let two = sysctls("sysctl -q net.ipv4.tcp_sack=0 net.ipv4.tcp_rmem=\"1 2 3\"");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            two,
            Ok(vec![pair("net.ipv4.tcp_sack", "0"), pair("net.ipv4.tcp_rmem", "1 2 3")])
        );
        assert_eq!(
            sysctls("rm -rf x"),
            Err(String::from("`rm -rf x`: only sysctl is interpreted"))
        );
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named() {
        let error = parse("--mss=1000\n\n0 < S 0:0(0)\n+0 > Q. 1:1(0)\n").unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (4, "`Q`: not a flag of TCP"));
    }
}
