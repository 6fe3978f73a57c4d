//! The input of a run, read from the front.

/// The unread rest of the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Takes the next byte, if there is one.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// Takes the next byte; past the end it is zero.
    pub(crate) fn next(&mut self) -> u8 {
        self.byte().unwrap_or(0)
    }

    /// Takes the next two bytes.
    pub(crate) fn next_u16(&mut self) -> u16 {
        u16::from_be_bytes([self.next(), self.next()])
    }

    /// Takes the next four bytes.
    pub(crate) fn next_u32(&mut self) -> u32 {
        u32::from(self.next_u16()) << 16 | u32::from(self.next_u16())
    }

    /// Takes a byte that holds a length, and as many bytes behind it, or all that are left.
    pub(crate) fn counted(&mut self) -> &'a [u8] {
        let count = usize::from(self.next()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes
    }

    /// Takes a byte that picks one of `choices`.
    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.next()) % choices.len()]
    }
}
