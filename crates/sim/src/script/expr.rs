//! Assertions of a script: `assert tcpi_snd_cwnd == 10 and TcpRetransSegs == 0`.
//!
//! One assertion per line, or several with `;` between them. Words: numbers, names, `or and not`,
//! `== != < <= > >=`, `& | + - * / %`, parentheses. As in Python, comparisons bind less tightly
//! than arithmetic.
//!
//! Not here: the values of names (`info`, the host's counters).

/// Values of names.
pub(super) trait Names {
    /// Returns the value of a name.
    ///
    /// # Errors
    /// When the name has no value.
    fn value(&mut self, name: &str) -> Result<i64, String>;
}

/// Checks every assertion of `code`.
///
/// # Errors
/// The assertion that does not hold, with the values of its names; or the text that cannot be
/// parsed.
pub(super) fn check(code: &str, names: &mut dyn Names) -> Result<(), String> {
    let mut checked = 0;
    for statement in code.split(['\n', ';']) {
        let statement = statement.split("//").next().unwrap_or_default();
        let statement = statement.split('#').next().unwrap_or_default().trim();
        if statement.is_empty() {
            continue;
        }
        let Some(text) = statement.strip_prefix("assert ") else {
            return Err(format!("`{statement}`: expected assert"));
        };
        let mut reader = Reader { rest: text, names, seen: Vec::new() };
        let value = reader.or()?;
        // In Python a message follows the comma.
        reader.skip_blanks();
        if !reader.rest.is_empty() && !reader.rest.starts_with(',') {
            return Err(format!("`{text}`: cannot read `{}`", reader.rest));
        }
        checked += 1;
        if value == 0 {
            let values: Vec<_> =
                reader.seen.iter().map(|(name, value)| format!("{name} is {value}")).collect();
            return Err(format!("assert {text}: {}", values.join(", ")));
        }
    }
    if checked == 0 { Err(String::from("code without an assertion")) } else { Ok(()) }
}

/// One comparison.
type Compare = fn(&i64, &i64) -> bool;

struct Reader<'a> {
    rest: &'a str,
    names: &'a mut dyn Names,
    seen: Vec<(String, i64)>,
}

impl Reader<'_> {
    fn skip_blanks(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, sign: &str) -> bool {
        self.skip_blanks();
        let Some(rest) = self.rest.strip_prefix(sign) else { return false };
        let is_word = sign.ends_with(|c: char| c.is_ascii_alphabetic());
        if is_word && rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return false;
        }
        self.rest = rest;
        true
    }

    fn or(&mut self) -> Result<i64, String> {
        let mut value = self.and()?;
        while self.take("or") {
            let right = self.and()?;
            value = i64::from(value != 0 || right != 0);
        }
        Ok(value)
    }

    fn and(&mut self) -> Result<i64, String> {
        let mut value = self.not()?;
        while self.take("and") {
            let right = self.not()?;
            value = i64::from(value != 0 && right != 0);
        }
        Ok(value)
    }

    fn not(&mut self) -> Result<i64, String> {
        if self.take("not") { Ok(i64::from(self.not()? == 0)) } else { self.comparison() }
    }

    /// `a < b < c` holds when both do.
    fn comparison(&mut self) -> Result<i64, String> {
        const SIGNS: [(&str, Compare); 6] = [
            ("==", i64::eq),
            ("!=", i64::ne),
            ("<=", i64::le),
            (">=", i64::ge),
            ("<", i64::lt),
            (">", i64::gt),
        ];
        let mut left = self.sum()?;
        let mut holds = None;
        while let Some((_, compare)) = SIGNS.iter().find(|(sign, _)| self.take(sign)) {
            let right = self.sum()?;
            holds = Some(holds.unwrap_or(true) && compare(&left, &right));
            left = right;
        }
        Ok(holds.map_or(left, i64::from))
    }

    fn sum(&mut self) -> Result<i64, String> {
        let mut value = self.product()?;
        loop {
            value = if self.take("+") {
                value.saturating_add(self.product()?)
            } else if self.take("-") {
                value.saturating_sub(self.product()?)
            } else if self.take("|") {
                value | self.product()?
            } else {
                return Ok(value);
            };
        }
    }

    fn product(&mut self) -> Result<i64, String> {
        let mut value = self.unary()?;
        loop {
            let divide = |left: i64, right: i64, rest: bool| {
                let result = if rest { left.checked_rem(right) } else { left.checked_div(right) };
                result.ok_or_else(|| String::from("division by zero"))
            };
            value = if self.take("*") {
                value.saturating_mul(self.unary()?)
            } else if self.take("/") {
                divide(value, self.unary()?, false)?
            } else if self.take("%") {
                divide(value, self.unary()?, true)?
            } else if self.take("&") {
                value & self.unary()?
            } else {
                return Ok(value);
            };
        }
    }

    fn unary(&mut self) -> Result<i64, String> {
        if self.take("-") {
            return Ok(-self.unary()?);
        }
        if self.take("(") {
            let value = self.or()?;
            return if self.take(")") { Ok(value) } else { Err(String::from("a ( without )")) };
        }
        self.skip_blanks();
        let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
        let (word, rest) = self.rest.split_at(self.rest.find(ends).unwrap_or(self.rest.len()));
        if word.is_empty() {
            return Err(format!("expected a value, found `{}`", self.rest));
        }
        self.rest = rest;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let parsed = match word.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(hex, 16),
                None => word.parse(),
            };
            return parsed.map_err(|_| format!("`{word}`: not a number"));
        }
        let value = self.names.value(word)?;
        self.seen.push((word.to_owned(), value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Some;

    impl Names for Some {
        fn value(&mut self, name: &str) -> Result<i64, String> {
            match name {
                "two" => Ok(2),
                "ten" => Ok(10),
                _ => Err(format!("{name}: no such name")),
            }
        }
    }

    #[test]
    fn a_failed_assertion_shows_the_values_of_its_names() {
        let run = |code| check(code, &mut Some);
        assert_eq!(run("assert two + 2 * 4 == ten and not ten < two; assert (two|1) == 3"), Ok(()));
        assert_eq!(run("\n assert 1 < two < 3, two # so\n"), Ok(()));
        assert_eq!(run("assert ten == 9 or two"), Ok(()));
        assert_eq!(run("assert ten <= 0x9"), Err("assert ten <= 0x9: ten is 10".into()));
        assert_eq!(run("assert eleven"), Err("eleven: no such name".into()));
        assert_eq!(run("assert ten / (two - 2)"), Err("division by zero".into()));
        assert!(run("assert ten 3").is_err() && run("").is_err() && run("ten == 10").is_err());
    }
}
