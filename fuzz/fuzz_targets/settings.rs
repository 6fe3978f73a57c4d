//! Settings as text: `NAME=VALUE`, one per line. A name of one character stands for a setting of
//! the table, and a line `?` asks for the list.
//!
//! A setting that is refused changes nothing, and the reason is one line. A setting that is
//! accepted can be read, and setting the value read changes nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use stack::sysctl::Sysctls;

/// Maximum number of lines of one run.
const LINES_MAX: usize = 16;

thread_local! {
    static NAMES: Vec<&'static str> = Sysctls::names().map(|(name, _)| name).collect();
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = str::from_utf8(data) else { return };
    let mut sysctls = Sysctls::default();
    for line in text.lines().take(LINES_MAX) {
        if line == "?" {
            list(&sysctls);
            continue;
        }
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        let mut characters = name.chars();
        match (characters.next(), characters.next()) {
            (Some(number), None) => NAMES.with(|names| {
                set(&mut sysctls, names[u32::from(number) as usize % names.len()], value);
            }),
            _ => set(&mut sysctls, name, value),
        }
    }
});

/// Checks that every listed setting can be read by its name.
fn list(sysctls: &Sysctls) {
    for (name, value) in sysctls.iter() {
        assert_eq!(sysctls.get(&name).as_deref(), Ok(&*value), "{name} is listed");
    }
}

fn set(sysctls: &mut Sysctls, name: &str, value: &str) {
    let before = sysctls.clone();
    if let Err(error) = sysctls.set(name, value) {
        assert_eq!(*sysctls, before, "{name} = {value} was refused");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
        return;
    }
    let read = sysctls.get(name).expect("it was set");
    let mut again = sysctls.clone();
    assert_eq!(again.set(name, &read), Ok(()), "{name} = {value}, read as {read}");
    assert_eq!(again, *sysctls, "{name} = {value}, read as {read}");
}
