use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file that appears under its name only once it is complete: written beside it, flushed to disk, then renamed.
///
/// Dropping it before [`AtomicFile::commit`] removes what was written and leaves an older file as it was. A target that is
/// a symbolic link stays one, what it leads to is replaced; the permissions of an older file stay.
#[derive(Debug)]
pub struct AtomicFile {
    file: Option<io::BufWriter<fs::File>>,
    temporary: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Begins to write what will be `target`.
    ///
    /// # Errors
    /// [`io::Error`] if no file can be made beside it, or if it is a directory.
    pub fn create(target: &Path) -> io::Result<Self> {
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let old = fs::metadata(&target).ok();
        if old.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let name = target.file_name().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        for attempt in 0..1000u32 {
            let mut temporary_name = std::ffi::OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{}-{attempt}.tmp", std::process::id()));
            let temporary = target.with_file_name(temporary_name);
            match fs::OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    let permissions = old.map_or(Ok(()), |old| file.set_permissions(old.permissions()));
                    // From here on dropping it removes the temporary file.
                    let this = Self { file: Some(io::BufWriter::new(file)), temporary, target };
                    return permissions.map(|()| this);
                }
                // Of another writer in this process, or left by one of the same number that was killed.
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
            // The name is free again: what another writer puts there is not this one's to remove.
            self.temporary.clear();
            // The new name is durable once the directory is; not every system can sync one, and the data is safe.
            let parent = self.target.parent().filter(|p| !p.as_os_str().is_empty());
            let _ = fs::File::open(parent.unwrap_or(Path::new("."))).and_then(|d| d.sync_all());
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
        if !self.temporary.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
