//! The instructions of a traced program: which of them are atomic.
//!
//! Above: [`Trace`](super::Trace).

use std::{fs, io, ops::Range, path::Path};

/// The instructions of a program, by the addresses at which it runs.
#[derive(Debug, Default)]
pub struct Image {
    file: Vec<u8>,
    /// Addresses of the parts of the file in memory, with their offsets in it.
    maps: Vec<(Range<u64>, u64)>,
}

impl Image {
    /// Reads the file of a program.
    pub fn of(program: &Path) -> io::Result<Self> {
        Ok(Self { file: fs::read(program)?, maps: Vec::new() })
    }

    /// Adds a line of `/proc/PID/maps`.
    pub(super) fn add(&mut self, line: &str) -> Option<()> {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let offset = hex(fields.nth(1)?)?;
        self.maps.push((hex(start)?..hex(end)?, offset));
        Some(())
    }

    /// Offset in the file of an instruction of the program; `None` in libraries.
    pub(super) fn offset(&self, pc: u64) -> Option<u64> {
        let (range, offset) = self.maps.iter().find(|(range, _)| range.contains(&pc))?;
        Some(pc - range.start + offset)
    }

    /// Address of an instruction as the symbols of the program have it.
    pub(super) fn symbol_address(&self, pc: u64) -> Option<u64> {
        self.offset(pc)?;
        let base = self.maps.iter().map(|(range, offset)| range.start - offset).min()?;
        Some(pc - base)
    }

    /// Whether an instruction is an atomic read-modify-write of x86-64.
    pub(super) fn is_atomic(&self, pc: u64) -> bool {
        const LOCK: u8 = 0xf0;
        const OPERAND_SIZE: u8 = 0x66;
        let Some(offset) = self.offset(pc).and_then(|offset| usize::try_from(offset).ok()) else {
            return false;
        };
        let code = self.file.get(offset..).unwrap_or_default();
        let mut bytes = code.iter().copied().skip_while(|&byte| byte == OPERAND_SIZE);
        match bytes.next() {
            Some(LOCK) => true,
            // REX, then the opcode.
            Some(0x40..=0x4f) => matches!(bytes.next(), Some(0x86 | 0x87)),
            Some(0x86 | 0x87) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_are_atomic() {
        let file = vec![0xf0, 0x48, 0x0f, 0xb1, 0x48, 0x87, 0x07, 0x48, 0x89, 0x07, 0x66, 0xf0];
        let mut image = Image { file, maps: Vec::new() };
        image.add("00001000-00002000 r-xp 00000000 00:00 0 /program").expect("a map");
        let atomic: Vec<_> =
            [0x1000, 0x1004, 0x1007, 0x100a, 0x5000].map(|pc| image.is_atomic(pc)).into();
        assert_eq!(atomic, [true, true, false, true, false]);
    }
}
