//! Sizes: a file of at most 800 code lines, a function of at most 70 lines.
//!
//! Functions of 71–80 lines are counted, and their number may only fall. A function above 80 lines
//! fails. A function that is a table is exempt if it is marked `#[expect(clippy::too_many_lines,
//! reason = "a table")]`.
//!
//! Not here: complexity.

use std::cmp::Ordering;

use crate::findings::Findings;
use crate::source::RustSource;

/// Largest number of code lines (neither blank nor comment) of a file.
const FILE_CODE_LINES_MAX: usize = 800;
/// Largest number of lines of a function, signature and closing brace included: one screen.
const FUNCTION_LINES: usize = 70;
/// Largest number of lines of any function.
const FUNCTION_LINES_MAX: usize = 80;
/// Number of functions of 71–80 lines in the repository. Lower it when one is split.
const RED_ZONE_COUNT: usize = 0;

/// Checks the sizes in one file.
pub(crate) fn check(source: &RustSource, findings: &mut Findings) {
    let lines = source.code_lines();
    if lines > FILE_CODE_LINES_MAX {
        let message = format!("{lines} code lines, at most {FILE_CODE_LINES_MAX}: split the file");
        findings.note(&source.path, 0, message);
    }
    for function in functions(source) {
        if function.lines > FUNCTION_LINES_MAX && !is_table(source, &function) {
            let message =
                format!("fn {}: {} lines, at most {FUNCTION_LINES}", function.name, function.lines);
            findings.note(&source.path, function.line, message);
        }
    }
}

/// Checks the number of functions of 71–80 lines.
pub(crate) fn check_ratchet(sources: &[RustSource], findings: &mut Findings) {
    let mut count = 0;
    let mut places = Vec::new();
    for source in sources {
        for function in functions(source) {
            let red = (FUNCTION_LINES + 1..=FUNCTION_LINES_MAX).contains(&function.lines);
            if red && !is_table(source, &function) {
                count += 1;
                let Function { name, line, lines } = function;
                places.push(format!("{}:{line} fn {name} ({lines} lines)", source.path));
            }
        }
    }
    match count.cmp(&RED_ZONE_COUNT) {
        Ordering::Equal => {}
        Ordering::Less => {
            let message =
                format!("{count} functions of 71-80 lines are left: lower RED_ZONE_COUNT in xtask");
            findings.note("", 0, message);
        }
        Ordering::Greater => {
            let places = places.join(", ");
            let message =
                format!("{count} functions of 71-80 lines, {RED_ZONE_COUNT} allowed: {places}");
            findings.note("", 0, message);
        }
    }
}

/// Whether the lines right above a function exempt it from the limit.
fn is_table(source: &RustSource, function: &Function) -> bool {
    let above = source.code.lines().take(function.line).skip(function.line.saturating_sub(4));
    above.into_iter().any(|line| line.contains("clippy::too_many_lines"))
}

/// A function found by its keyword and braces.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its bare name.
    pub(crate) name: String,
    /// The line of its `fn`.
    pub(crate) line: usize,
    /// Number of lines from `fn` to the closing brace; 1 for a declaration.
    pub(crate) lines: usize,
}

/// Returns every function of a file, in order, including nested ones.
pub(crate) fn functions(source: &RustSource) -> Vec<Function> {
    let code = source.code.as_bytes();
    let mut found = Vec::new();
    let mut line = 1;
    for at in 0..code.len() {
        if code[at] == b'\n' {
            line += 1;
        }
        if let Some(name) = function_name(&source.code, at) {
            let end = body_end(code, at);
            let lines = 1 + code[at..end].iter().filter(|&&byte| byte == b'\n').count();
            found.push(Function { name, line, lines });
        }
    }
    found
}

/// Returns the name after the keyword `fn` at `at`, if that keyword is there.
fn function_name(code: &str, at: usize) -> Option<String> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = code.as_bytes();
    let starts_word = at == 0 || !is_word(bytes[at - 1]);
    if !starts_word || !bytes[at..].starts_with(b"fn ") {
        return None;
    }
    let name: String =
        code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    (!name.is_empty()).then_some(name)
}

/// Returns the end of the body of the function whose keyword is at `at`, or of its declaration.
fn body_end(code: &[u8], at: usize) -> usize {
    let (mut braces, mut brackets) = (0_usize, 0_usize);
    for (offset, byte) in code[at..].iter().enumerate() {
        match byte {
            b'(' | b'[' if braces == 0 => brackets += 1,
            b')' | b']' if braces == 0 => brackets = brackets.saturating_sub(1),
            b';' if braces == 0 && brackets == 0 => return at + offset,
            b'{' => braces += 1,
            b'}' if braces <= 1 => return at + offset,
            b'}' => braces -= 1,
            _ => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_measured() {
        let text = "trait T {\n    fn declared(&self, a: [u8; 4]) -> u8;\n}\nfn body(f: fn(u8) -> u8) -> u8 {\n    \
                    if f(1) == 2 {\n        3\n    } else {\n        4\n    }\n}\n";
        let found = functions(&RustSource::new("a.rs", text.to_owned()));
        let expected = [("declared", 2, 1), ("body", 4, 7)];
        let found: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn long_functions_are_found() {
        let text = format!("fn long() {{\n{}}}\n", "    step();\n".repeat(90));
        let mut findings = Findings::default();
        check(&RustSource::new("a.rs", text), &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn tables_are_excused() {
        let steps = "    step();\n".repeat(90);
        let text = format!(
            "#[expect(clippy::too_many_lines, reason = \"a table\")]\nfn table() {{\n{steps}}}\n"
        );
        let mut findings = Findings::default();
        check(&RustSource::new("a.rs", text), &mut findings);
        assert_eq!(findings.len(), 0);
    }

    #[test]
    fn long_files_are_found() {
        let text = "const A: u8 = 1;\n// Comment.\n\n".repeat(FILE_CODE_LINES_MAX + 1);
        let mut findings = Findings::default();
        check(&RustSource::new("a.rs", text), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
