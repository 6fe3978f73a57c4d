//! Random content, and its digest.
//!
//! Not here: SHA-256 itself. coreutils computes it, so that quietline's own code does not verify
//! itself.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::process::Finished;

/// A file of seeded random bytes.
#[derive(Debug)]
pub struct Content {
    /// Path of the file.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: usize,
    /// SHA-256 in hexadecimal.
    pub sha256: String,
}

impl Content {
    /// Writes `bytes` random bytes of `seed` to `directory/name`.
    pub fn create(directory: &Path, name: &str, bytes: usize, seed: u64) -> Result<Self> {
        let path = directory.join(name);
        let mut file = BufWriter::new(File::create(&path).context("creating the content")?);
        let mut state = seed;
        let mut block = [0; 4096];
        for start in (0..bytes).step_by(block.len()) {
            for word in block.chunks_exact_mut(8) {
                word.copy_from_slice(&split_mix(&mut state).to_le_bytes());
            }
            let wanted = block.len().min(bytes - start);
            file.write_all(&block[..wanted]).context("writing the content")?;
        }
        file.flush().context("writing the content")?;
        drop(file);
        let sha256 = sha256(&path)?;
        Ok(Self { path, bytes, sha256 })
    }
}

/// Returns the SHA-256 of a file in hexadecimal, by coreutils.
pub fn sha256(path: &Path) -> Result<String> {
    let printed = Finished::of(Command::new("sha256sum").arg("--").arg(path))?.success()?;
    let digest = printed.split_whitespace().next().unwrap_or_default();
    Ok(digest.trim_start_matches('\\').to_owned())
}

/// SplitMix64: one addition and three mixes per word, the same on every machine.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
