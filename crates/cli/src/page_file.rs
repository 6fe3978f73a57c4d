//! The file of `--report`: opened before the run, written after it, and removed if the run created
//! but did not write it.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// A writable file whose content is unchanged so far.
#[derive(Debug)]
pub(crate) struct PageFile {
    path: PathBuf,
    file: File,
    /// The file was created by this run and is not written yet, so it can be removed without loss.
    is_ours_and_empty: bool,
}

impl PageFile {
    /// Opens or creates the file before the run, so that an invalid path is reported at once.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).open(path);
        let is_ours_and_empty = made.is_ok();
        let file = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                OpenOptions::new().write(true).open(path)
            }
            made => made,
        };
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, is_ours_and_empty })
    }

    /// Replaces the content of the file by the page.
    pub(crate) fn write(mut self, page: &str) -> Result<()> {
        self.replace(page).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.is_ours_and_empty = false;
        Ok(())
    }

    fn replace(&mut self, page: &str) -> std::io::Result<()> {
        // A device or a pipe cannot be truncated.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(page.as_bytes())?;
        self.file.flush()
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if self.is_ours_and_empty {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unwritten_page_is_removed_and_an_existing_one_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("page.html");
        drop(PageFile::open(&path).expect("a file"));
        assert!(!path.exists(), "an empty page was not removed");
        PageFile::open(&path).expect("a file").write("a page, the first").expect("written");
        // A run that ends early keeps the page of the previous run.
        drop(PageFile::open(&path).expect("a file"));
        assert_eq!(fs::read_to_string(&path).expect("a page"), "a page, the first");
        PageFile::open(&path).expect("a file").write("the second").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("a page"), "the second");
    }

    #[test]
    fn a_device_is_written_and_not_removed() {
        PageFile::open(Path::new("/dev/null")).expect("a device").write("x").expect("written");
        let full = PageFile::open(Path::new("/dev/full")).expect("a device").write("x");
        assert!(full.is_err_and(|error| format!("{error:#}").contains("/dev/full")));
        assert!(Path::new("/dev/full").exists());
    }
}
