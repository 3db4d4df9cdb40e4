//! Files that appear whole: written in the folder of their target, then named.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{Builder, JoinHandle};

use tempfile::TempPath;

use super::Map;

/// A file that appears under its name only when it is complete: it is written in the folder of its target,
/// flushed to disk and named.
///
/// Dropping it before [`AtomicFile::commit`] removes it and leaves an older target unchanged. On Linux it has
/// no name until then, where the file system allows this (`O_TMPFILE`): nothing is left of a program that was
/// killed. Elsewhere it has a temporary name, `.NAME.RANDOM.tmp`. A target that is a symbolic link stays a
/// link, and the file that it points to is replaced. An older file's permissions are kept. From 128 MiB on, a
/// thread flushes what is there while more is written.
#[derive(Debug)]
pub struct AtomicFile {
    file: io::BufWriter<fs::File>,
    /// Its name, if it has one.
    temporary: Option<TempPath>,
    target: PathBuf,
    early: EarlySync,
}

impl AtomicFile {
    /// Creates the file in the folder of `target`.
    ///
    /// # Errors
    /// [`io::Error`] if the file cannot be created, if `target` is a directory, or if it could not be
    /// replaced in the end: it is a mount point, or its folder has no renames (as some network file systems
    /// have none).
    pub fn create(target: &Path) -> io::Result<Self> {
        Self::with(target, unnamed)
    }

    /// `unnamed` creates a file without a name in a folder, if it can.
    fn with(
        target: &Path,
        unnamed: impl FnOnce(&tempfile::Builder<'_, '_>, &Path) -> Option<fs::File>,
    ) -> io::Result<Self> {
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_owned());
        let old = fs::metadata(&target).ok();
        if old.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if old.is_some() && is_mount_point(&target) {
            let what = "a mount point, which no other file can replace: mount its folder instead";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, what));
        }
        let prefix = prefix(&target)?;
        let names = names(&prefix);
        let (file, temporary) = match unnamed(&names, folder_of(&target)) {
            Some(file) => (file, None),
            None => {
                let (file, path) = names.tempfile_in(folder_of(&target))?.into_parts();
                (file, Some(renamed(path)?))
            }
        };
        if let Some(old) = old {
            file.set_permissions(old.permissions())?;
        }
        Ok(Self { file: io::BufWriter::new(file), temporary, target, early: EarlySync::default() })
    }

    /// Returns the path of the file, for a program that removes it when a signal ends it; `None` while it has
    /// none.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref()
    }

    /// Maps what was written so far, at least one byte.
    ///
    /// # Errors
    /// [`io::Error`] of the writes that were due, or of [`Map::of`].
    pub fn written(&mut self) -> io::Result<Map> {
        self.file.flush()?;
        Map::of(self.file.get_ref())
    }

    /// Flushes the data to disk and gives the file its name.
    ///
    /// # Errors
    /// [`io::Error`]; an older target is unchanged.
    pub fn commit(mut self) -> io::Result<()> {
        self.early.wait()?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        match self.temporary {
            Some(path) => path.persist(&self.target)?,
            None => name(&file, &self.target)?,
        }
        // The new name is durable when the directory is synced. Not every system can do that; the data itself
        // is synced.
        let _ = fs::File::open(folder_of(&self.target)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

/// Bytes that the system takes at a time. With 1 MiB, Linux 6.18 takes twice as long to copy the same bytes
/// to new pages of ext4 (decoding 4 GB: 4.0 s of system time; with 128 KiB 2.0, with 32 KiB 2.8).
const AT_ONCE: usize = 128 << 10;

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // First: an error says that none of these bytes were taken.
        self.early.begin(self.file.get_ref())?;
        let written = self.file.write(&bytes[..bytes.len().min(AT_ONCE)])?;
        self.early.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Brings a long file to the disk while more of it is written. A writer that flushes all of it at the end
/// waits for the disk, which until then had little to do: a fifth of the time of encoding 4 GB.
#[derive(Debug)]
struct EarlySync {
    /// Bytes that were written since the last flush began, and those after which one begins.
    written: u64,
    every: u64,
    flush: Option<JoinHandle<io::Result<()>>>,
}

impl Default for EarlySync {
    fn default() -> Self {
        Self { written: 0, every: 128 << 20, flush: None }
    }
}

impl EarlySync {
    /// Begins a flush of `file` if many bytes were written since the last one began, and that one has ended.
    ///
    /// # Errors
    /// The error of the flush that has ended.
    fn begin(&mut self, file: &fs::File) -> io::Result<()> {
        if self.written < self.every || self.flush.as_ref().is_some_and(|flush| !flush.is_finished()) {
            return Ok(());
        }
        self.wait()?;
        self.written = 0;
        // Without a handle or a thread, only the end takes longer.
        let begin = |file: fs::File| Builder::new().stack_size(STACK).spawn(move || file.sync_data()).ok();
        self.flush = file.try_clone().ok().and_then(begin);
        Ok(())
    }

    /// Waits for the flush. A system tells an error of the disk once, so a later flush would not have it.
    fn wait(&mut self) -> io::Result<()> {
        let ended = self.flush.take().map(JoinHandle::join);
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|_| Err(io::Error::other("a flush to disk panicked")))
    }
}

/// Bytes of stack for a thread that makes one call.
const STACK: usize = 64 << 10;

/// Returns what the temporary names of a target begin with.
fn prefix(target: &Path) -> io::Result<OsString> {
    let mut prefix = OsString::from(".");
    prefix.push(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    prefix.push(".");
    Ok(prefix)
}

/// Makes files with temporary names, before [`renamed`].
fn names(prefix: &OsStr) -> tempfile::Builder<'_, '_> {
    let mut names = tempfile::Builder::new();
    names.prefix(prefix).suffix(".new.tmp");
    #[cfg(unix)]
    {
        // The same mode as of `File::create`: by default a temporary file is private to its owner.
        names.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    }
    names
}

/// Renames a temporary file: a folder that cannot do this cannot replace the target either.
fn renamed(path: TempPath) -> io::Result<TempPath> {
    let new = path.with_extension("").with_extension("tmp");
    path.persist(&new).map_err(|e| {
        let what = format!("its folder cannot rename files, so no file can appear there whole: {}", e.error);
        io::Error::new(e.error.kind(), what)
    })?;
    TempPath::try_from_path(new)
}

/// Creates a file without a name; `None` where the folder cannot have one or cannot name it later.
#[cfg(target_os = "linux")]
fn unnamed(names: &tempfile::Builder<'_, '_>, folder: &Path) -> Option<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::File::options();
    let options = options.read(true).write(true).mode(0o666).custom_flags(libc::O_TMPFILE);
    // A file that had a name and lost it gets no other: another one is tried.
    let tried = options.open(folder).ok()?;
    drop(names.make_in(folder, |path| link(&tried, path)).ok()?);
    options.open(folder).ok()
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_: &tempfile::Builder<'_, '_>, _: &Path) -> Option<fs::File> {
    None
}

/// Gives a file without a name that of its target.
#[cfg(target_os = "linux")]
fn name(file: &fs::File, target: &Path) -> io::Result<()> {
    // A link replaces no file, but a renamed file does.
    match link(file, target) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let prefix = prefix(target)?;
            let named = names(&prefix).make_in(folder_of(target), |path| link(file, path))?;
            Ok(named.into_temp_path().persist(target)?)
        }
        linked => linked,
    }
}

#[cfg(not(target_os = "linux"))]
fn name(_: &fs::File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Gives a file without a name a first one.
#[cfg(target_os = "linux")]
fn link(file: &fs::File, path: &Path) -> io::Result<()> {
    use rustix::fs::{AtFlags, CWD, linkat};
    use std::os::fd::AsRawFd;
    // With the file itself in place of its path, programs with few rights may not link it.
    let of = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(linkat(CWD, of, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Whether a file is a mount point, as `docker run -v file:file` makes one. False where the system does not
/// tell.
fn is_mount_point(target: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    target.to_str().is_some_and(|target| mount_points(&mounts).any(|point| point == target))
}

/// Returns the mount points of a `mountinfo` file of Linux. It has blanks and backslashes in octal.
fn mount_points(mounts: &str) -> impl Iterator<Item = String> {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(move |point| {
        escapes.iter().fold(point.to_owned(), |text, (code, plain)| text.replace(code, plain))
    })
}

fn folder_of(target: &Path) -> &Path {
    target.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_is_flushed_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("long");
        let mut file = AtomicFile::create(&target).unwrap();
        assert_eq!((file.early.written, file.early.every), (0, 128 << 20));
        file.early.every = 10_000;
        for i in 0..100u8 {
            file.write_all(&[i; 1000]).unwrap();
            assert_eq!(file.early.flush.is_some(), i >= 10);
            // The next flush begins after as many bytes again.
            assert!(i > 10 || file.early.written == if i < 10 { (u64::from(i) + 1) * 1000 } else { 1000 });
        }
        file.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), (0..100).flat_map(|i| [i; 1000]).collect::<Vec<_>>());
    }

    /// Whether files in a folder need a name.
    fn need_names(folder: &Path) -> bool {
        #[cfg(target_os = "linux")]
        {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = fs::File::options();
            let unnamed = options.write(true).custom_flags(libc::O_TMPFILE).open(folder);
            unnamed.is_err() || !Path::new("/proc/self/fd").exists()
        }
        #[cfg(not(target_os = "linux"))]
        folder.exists()
    }

    #[test]
    fn files_appear_whole_with_and_without_a_name_before() {
        type Unnamed = fn(&tempfile::Builder<'_, '_>, &Path) -> Option<fs::File>;
        for (way, is_named) in [(unnamed as Unnamed, false), (|_, _| None, true)] {
            let folder = tempfile::tempdir().unwrap();
            let is_named = is_named || need_names(folder.path());
            let target = folder.path().join("file");
            let files = || fs::read_dir(folder.path()).unwrap().count();
            for text in [b"new", b"old"] {
                let before = files();
                let mut file = AtomicFile::with(&target, way).unwrap();
                file.write_all(text).unwrap();
                assert_eq!(*file.written().unwrap(), *text);
                let name =
                    file.temporary().map(|path| path.file_name().unwrap().to_string_lossy().into_owned());
                assert!(name.is_none_or(|name| name.starts_with(".file.") && !name.ends_with(".new.tmp")));
                assert_eq!((file.temporary().is_some(), files()), (is_named, before + usize::from(is_named)));
                drop(file);
                assert_eq!(files(), before);
                let mut file = AtomicFile::with(&target, way).unwrap();
                file.write_all(text).unwrap();
                file.commit().unwrap();
                assert_eq!((fs::read(&target).unwrap().as_slice(), files()), (text.as_slice(), 1));
                #[cfg(unix)]
                {
                    use std::os::unix::fs::PermissionsExt;
                    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
                    let elsewhere = tempfile::tempdir().unwrap();
                    let plain = elsewhere.path().join("file");
                    fs::File::create(&plain).unwrap();
                    assert_eq!(mode(&target), mode(&plain));
                }
            }
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_error_of_an_early_flush_is_the_files() {
        let unflushed = fs::File::open("/dev/null").unwrap();
        let mut early = EarlySync { every: 1, written: 1, flush: None };
        early.begin(&unflushed).unwrap();
        while early.flush.as_ref().is_some_and(|flush| !flush.is_finished()) {
            std::thread::yield_now();
        }
        early.written = 1;
        assert!(early.begin(&unflushed).is_err());
        early.begin(&unflushed).unwrap();
        assert!(early.wait().is_err());
        early.wait().unwrap();
    }

    #[test]
    fn a_file_whose_early_flush_failed_does_not_appear() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        file.early.flush = Some(std::thread::spawn(|| Err(io::Error::other("no space"))));
        assert_eq!(file.commit().unwrap_err().to_string(), "no space");
        assert!(!target.exists());
    }

    #[test]
    fn mount_points_are_refused_before_the_work() {
        let text = "22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:5 /a /data/a\\040b\\134c ro - tmpfs x rw\n";
        assert_eq!(mount_points(text).collect::<Vec<_>>(), ["/", "/data/a b\\c"]);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let Some(file) = mount_points(&mounts).find(|point| Path::new(point).is_file()) else {
            eprintln!("skipped: no file is a mount point here");
            return;
        };
        let refused = AtomicFile::create(Path::new(&file)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ResourceBusy, "{file}");
    }
}
