use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that appears under its name only once it is complete: written beside it, flushed to disk, then renamed.
///
/// Dropping it before [`AtomicFile::commit`] removes what was written and leaves an older file as it was.
pub struct AtomicFile {
    file: Option<io::BufWriter<fs::File>>,
    temporary: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Begins to write what will be `target`.
    ///
    /// # Errors
    /// [`io::Error`] if no file can be made beside it.
    pub fn create(target: &Path) -> io::Result<Self> {
        // The file that a link leads to is replaced, not the link.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let name = target.file_name().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        for attempt in 0..1000u32 {
            let mut temporary_name = std::ffi::OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{}-{attempt}.tmp", std::process::id()));
            let temporary = target.with_file_name(temporary_name);
            match fs::OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    if let Ok(old) = fs::metadata(&target) {
                        file.set_permissions(old.permissions())?;
                    }
                    return Ok(Self { file: Some(io::BufWriter::new(file)), temporary, target });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Flushes to disk and gives the file its name.
    ///
    /// # Errors
    /// [`io::Error`]; the older file, if any, is as it was then.
    pub fn commit(mut self) -> io::Result<()> {
        if let Some(file) = self.file.take() {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            fs::rename(&self.temporary, &self.target)?;
        }
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(bytes.len()), |f| f.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        drop(self.file.take());
        // Gone already after a commit.
        let _ = fs::remove_file(&self.temporary);
    }
}
