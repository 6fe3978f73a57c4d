//! Calls as strace(1) prints them: `write(4, ..., 1000) = -1 EAGAIN (Resource temporarily
//! unavailable)`.
//!
//! Not here: the number of a name (`posix::abi`), the effect of a call (`syscall`).

use super::{
    ScriptError,
    ast::{Arg, Call, Expected},
    lex::Word,
    parse::Words,
};

pub(super) fn call(words: &mut Words) -> Result<Call, ScriptError> {
    let name = words.name()?;
    words.expect('(')?;
    let args = list(words, ')')?;
    words.expect('=')?;
    let result = expected(words)?;
    if words.take('(') {
        skip_note(words)?;
    }
    Ok(Call { name, args, result })
}

fn expected(words: &mut Words) -> Result<Expected, ScriptError> {
    if words.take('?') {
        return Ok(Expected::Any);
    }
    let value: i64 = words.number()?;
    if value == -1 && words.on_same_line() && matches!(words.peek(), Some(Word::Name(_))) {
        return Ok(Expected::Fails(words.name()?));
    }
    Ok(Expected::Value(value))
}

/// Skips a text of strerror(3) or names of flags, up to the closing parenthesis.
fn skip_note(words: &mut Words) -> Result<(), ScriptError> {
    let mut depth = 1;
    while depth > 0 {
        match words.peek() {
            Some(Word::Sign('(')) => depth += 1,
            Some(Word::Sign(')')) => depth -= 1,
            Some(_) => {}
            None => return Err(words.unexpected("`)`")),
        }
        words.skip();
    }
    Ok(())
}

/// Parses arguments up to `close`.
fn list(words: &mut Words, close: char) -> Result<Vec<Arg>, ScriptError> {
    let mut args = Vec::new();
    if words.take(close) {
        return Ok(args);
    }
    loop {
        args.push(arg(words)?);
        if words.take(close) {
            return Ok(args);
        }
        words.expect(',')?;
    }
}

fn arg(words: &mut Words) -> Result<Arg, ScriptError> {
    match words.peek() {
        Some(Word::Ellipsis) => {
            words.skip();
            Ok(Arg::Any)
        }
        Some(Word::Number(_) | Word::Sign('-')) => Ok(Arg::Number(words.number()?)),
        Some(Word::Text(text)) => {
            let text = text.clone();
            words.skip();
            Ok(Arg::Text(text))
        }
        Some(Word::Sign('[')) => {
            words.skip();
            Ok(Arg::List(list(words, ']')?))
        }
        Some(Word::Sign('{')) => {
            words.skip();
            fields(words)
        }
        Some(Word::Name(_)) => named(words),
        _ => Err(words.unexpected("an argument")),
    }
}

/// `MSG_DONTWAIT|MSG_MORE`, or `htons(8080)`, which is its argument.
fn named(words: &mut Words) -> Result<Arg, ScriptError> {
    let mut names = vec![words.name()?];
    if words.take('(') {
        let inside = arg(words)?;
        words.expect(')')?;
        return Ok(inside);
    }
    while words.take('|') {
        names.push(words.name()?);
    }
    Ok(Arg::Names(names))
}

fn fields(words: &mut Words) -> Result<Arg, ScriptError> {
    let mut list = Vec::new();
    loop {
        let name = words.name()?;
        words.expect('=')?;
        list.push((name, arg(words)?));
        if words.take('}') {
            return Ok(Arg::Fields(list));
        }
        words.expect(',')?;
    }
}
