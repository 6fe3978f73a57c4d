//! Values of socket options as a script writes them.
//!
//! Names, rules and errors are the stack's own (`stack::socket::SocketOption`). Not here: options it does not have; a
//! script that names one fails.

use std::time::Duration;

use stack::socket::options::{OptionValue, SocketOption};

use super::ast::Arg;

/// The option of a name.
///
/// # Errors
/// When the stack has no such option.
pub(super) fn option(name: &str) -> Result<SocketOption, String> {
    let found = SocketOption::from_name(name);
    found.ok_or_else(|| format!("the stack has no socket option {name}"))
}

/// `[1]`, `"reno"` or `{onoff=1, linger=5}`.
///
/// # Errors
/// When it is none of them.
pub(super) fn value(arg: &Arg) -> Result<OptionValue, String> {
    Ok(match arg {
        Arg::Text(name) => OptionValue::Name(name.clone()),
        Arg::Fields(_) => {
            let on = arg.field("onoff")?.number()? != 0;
            let seconds = u64::try_from(arg.field("linger")?.number()?)
                .map_err(|_| String::from("a negative linger time"))?;
            OptionValue::Linger(on.then(|| Duration::from_secs(seconds)))
        }
        number => OptionValue::Int(
            i32::try_from(number.number()?).map_err(|_| String::from("more than an int holds"))?,
        ),
    })
}
