//! Words of a script: names, numbers, strings, signs, and the two kinds of quoted text (``
//! `command` ``, `%{ code }%`).
//!
//! Not here: the meaning of the words (`parse`).

use super::ScriptError;

/// One word with its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) line: u32,
    pub(super) word: Word,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Letters, digits and underscores that are not a number.
    Name(String),
    /// As written: `10`, `0x1f`, `0.250`.
    Number(String),
    /// Between double quotes, without them.
    Text(String),
    /// Between backticks.
    Command(String),
    /// Between `%{` and `}%`.
    Code(String),
    /// Three dots.
    Ellipsis,
    /// Any other character.
    Sign(char),
}

impl Word {
    /// The word as a script contains it, for messages.
    pub(super) fn show(&self) -> String {
        match self {
            Self::Name(text) | Self::Number(text) => text.clone(),
            Self::Text(text) => format!("{text:?}"),
            Self::Command(_) => String::from("`...`"),
            Self::Code(_) => String::from("%{...}%"),
            Self::Ellipsis => String::from("..."),
            Self::Sign(sign) => sign.to_string(),
        }
    }
}

/// Splits a script, without its `--option` lines, into words.
pub(super) fn lex(text: &str) -> Result<Vec<Token>, ScriptError> {
    let mut lexer = Lexer { rest: text, line: 1 };
    let mut tokens = Vec::new();
    while let Some(token) = lexer.next()? {
        tokens.push(token);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Result<Option<Token>, ScriptError> {
        self.skip_blanks()?;
        let line = self.line;
        let Some(first) = self.rest.chars().next() else { return Ok(None) };
        let word = if self.rest.starts_with("...") {
            self.advance(3);
            Word::Ellipsis
        } else if self.rest.starts_with("%{") {
            Word::Code(self.quoted("%{", "}%")?.to_owned())
        } else if first == '`' {
            Word::Command(self.quoted("`", "`")?.to_owned())
        } else if first == '"' {
            Word::Text(self.quoted("\"", "\"")?.to_owned())
        } else if first.is_ascii_alphanumeric() || first == '_' {
            self.alphanumeric()
        } else {
            self.advance(first.len_utf8());
            Word::Sign(first)
        };
        Ok(Some(Token { line, word }))
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += u32::try_from(taken.matches('\n').count()).unwrap_or(u32::MAX);
        self.rest = rest;
        taken
    }

    fn skip_blanks(&mut self) -> Result<(), ScriptError> {
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            self.advance(blanks);
            if self.rest.starts_with("//") || self.rest.starts_with('#') {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.advance(end);
            } else if self.rest.starts_with("/*") {
                self.quoted("/*", "*/")?;
            } else {
                return Ok(());
            }
        }
    }

    fn quoted(&mut self, open: &str, close: &str) -> Result<&'a str, ScriptError> {
        let line = self.line;
        self.advance(open.len());
        let Some(end) = self.rest.find(close) else {
            return Err(ScriptError::new(line, format!("{open} without {close}")));
        };
        let inside = self.advance(end);
        self.advance(close.len());
        Ok(inside)
    }

    /// Reads a name or a number. A point belongs to a number only if a digit follows: `0...1` is a
    /// range.
    fn alphanumeric(&mut self) -> Word {
        let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let len = self.rest.find(ends).unwrap_or(self.rest.len());
        let (word, after) = self.rest.split_at(len);
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if digits(word) {
            let fraction = after.strip_prefix('.').map_or(0, |fraction| {
                fraction.find(|c: char| !c.is_ascii_digit()).unwrap_or(fraction.len())
            });
            let whole = if fraction > 0 { len + 1 + fraction } else { len };
            return Word::Number(self.advance(whole).to_owned());
        }
        let hex = word.strip_prefix("0x").is_some_and(|digits| {
            !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        let word = self.advance(len).to_owned();
        if hex { Word::Number(word) } else { Word::Name(word) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        lex(text).expect("words").iter().map(|token| token.word.show()).collect()
    }

    #[test]
    fn ranges_fractions_and_flags() {
        assert_eq!(words("0.1...0.25 > S. 1:11(10)").join(" "), "0.1 ... 0.25 > S . 1 : 11 ( 10 )");
        assert_eq!(words("+0 < . 0x1f").join(" "), "+ 0 < . 0x1f");
    }

    #[test]
    fn comments_are_not_words_and_lines_are_counted() {
        let tokens = lex("// one\n/* two\nthree */ a # b\n%{ x\n}% c").expect("words");
        let lines: Vec<_> = tokens.iter().map(|token| (token.line, token.word.show())).collect();
        let expected = [(3, "a"), (4, "%{...}%"), (5, "c")].map(|(line, word)| (line, word.into()));
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_is_not_closed_is_an_error() {
        assert_eq!(lex("\n`a").unwrap_err().line, 2);
    }
}
