//! The text of paths, as in `paths.txt`.

use std::fmt::Write as _;

use super::{Path, PathStep};
use crate::coherence::directory::Access;

/// Columns of a line of `paths.txt`.
const COLUMNS: usize = 96;

impl Path {
    /// Its text in `paths.txt`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("path {}\n", self.name);
        for name in &self.lines {
            let _ = writeln!(text, "line {name}");
        }
        for (cpu, steps) in self.cpus.iter().enumerate() {
            let _ = writeln!(text, "cpu {cpu}\nstores {}", self.own_stores[cpu]);
            let mut column = 0;
            for step in steps {
                let word = match step {
                    PathStep::Instructions(count) => count.to_string(),
                    PathStep::Line(line, Access::Read) => format!("r{line}"),
                    PathStep::Line(line, Access::Write) => format!("w{line}"),
                    PathStep::Line(line, Access::Rmw) => format!("a{line}"),
                    PathStep::CompareAndSwap(line) => format!("c{line}"),
                    PathStep::Fence => "f".to_owned(),
                };
                column += word.len() + 1;
                let end = if column > COLUMNS { "\n" } else { " " };
                column = if column > COLUMNS { 0 } else { column };
                let _ = write!(text, "{word}{end}");
            }
            text.truncate(text.trim_end().len());
            text.push('\n');
        }
        text
    }
}

/// Reads paths from their text.
pub fn parse(text: &str) -> Option<Vec<Path>> {
    let mut paths = Vec::<Path>::new();
    let mut cpu = 0;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "path" {
            paths.push(Path { name: rest.to_owned(), ..Path::default() });
            continue;
        }
        let path = paths.last_mut()?;
        match word {
            "line" => path.lines.push(rest.to_owned()),
            "cpu" => cpu = rest.parse().ok()?,
            "stores" => *path.own_stores.get_mut(cpu)? = rest.parse().ok()?,
            _ => {
                for word in line.split_whitespace() {
                    path.cpus.get_mut(cpu)?.push(step(word)?);
                }
            }
        }
    }
    Some(paths)
}

/// Reads a step: a number of instructions, or a letter and the index of a line.
fn step(word: &str) -> Option<PathStep> {
    if let Ok(count) = word.parse() {
        return Some(PathStep::Instructions(count));
    }
    if word == "f" {
        return Some(PathStep::Fence);
    }
    let line = word.get(1..)?.parse().ok()?;
    Some(match word.as_bytes().first()? {
        b'r' => PathStep::Line(line, Access::Read),
        b'w' => PathStep::Line(line, Access::Write),
        b'a' => PathStep::Line(line, Access::Rmw),
        b'c' => PathStep::CompareAndSwap(line),
        _ => return None,
    })
}
