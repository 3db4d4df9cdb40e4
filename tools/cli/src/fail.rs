//! Outcomes and failures of commands, and their exit codes.

use crate::output::printable;
use gcodec::error::{InputError, InputErrorKind};
use std::fmt;
use std::io;
use std::path::Path;

/// Result whose error ends the command.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Outcome of a command that ran to its end; the discriminant is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Outcome {
    /// Success.
    Well = 0,
    /// The inputs differ, or a check failed; the output has the details.
    Differs = 1,
}

/// Class of a failure; the discriminant is the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    /// The command line, or its request of the input, is invalid.
    Usage = 2,
    /// The input is corrupt, invalid or from a newer writer.
    Invalid = 3,
    /// The input exceeds a limit.
    Limit = 4,
    /// Reading or writing failed (`EX_IOERR` of sysexits.h).
    Io = 74,
}

/// Reason why a command could not run to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Class of the failure.
    pub(crate) code: Code,
    /// Message: lowercase, no final stop.
    pub(crate) message: String,
    broken_pipe: bool,
    has_nothing: bool,
}

impl Failure {
    /// Returns a failure with this code and message.
    pub(crate) fn new(code: Code, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), broken_pipe: false, has_nothing: false }
    }

    /// Returns a usage error.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(Code::Usage, message)
    }

    /// Returns an error of corrupt or invalid input.
    pub(crate) fn invalid(message: impl fmt::Display) -> Self {
        Self::new(Code::Invalid, message)
    }

    /// Returns the error of a sound file that has no tensors; among other files, it is left out.
    pub(crate) fn without_tensors(what: &str) -> Self {
        Self { has_nothing: true, ..Self::invalid(format_args!("{what} without tensors")) }
    }

    /// Whether the file is sound and has no tensors.
    pub(crate) fn has_nothing(&self) -> bool {
        self.has_nothing
    }

    /// Returns an error of an exceeded limit.
    pub(crate) fn limit(message: impl fmt::Display) -> Self {
        Self::new(Code::Limit, message)
    }

    /// Prefixes the message with its subject, a path or the name of a tensor.
    pub(crate) fn about(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Prefixes the message with the path; `-` becomes `standard input`.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        if path == Path::new("-") { self.about("standard input") } else { self.about(path.display()) }
    }

    /// Prefixes the message with the path of an output; `-` becomes `standard output`.
    pub(crate) fn in_output(self, path: &Path) -> Self {
        if path == Path::new("-") { self.about("standard output") } else { self.about(path.display()) }
    }

    /// Prints the message to standard error and returns the exit code.
    ///
    /// A closed pipe (`gcodec diff a b | head`) ends the command silently, with 0.
    pub(crate) fn report(&self) -> u8 {
        if self.broken_pipe {
            return Outcome::Well as u8;
        }
        // Ignores a closed standard error.
        let _ =
            io::Write::write_fmt(&mut io::stderr(), format_args!("error: {}\n", printable(&self.message)));
        self.code as u8
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self { broken_pipe: e.kind() == io::ErrorKind::BrokenPipe, ..Self::new(Code::Io, e) }
    }
}

impl From<gcodec::Error> for Failure {
    fn from(e: gcodec::Error) -> Self {
        match e {
            gcodec::Error::Io(e) => e.into(),
            gcodec::Error::Limit(_) => Self::limit(e),
            // The stream has the sender's digest of the result. The base is right, but the decoded tensors
            // differ.
            gcodec::Error::Input(InputError { kind: InputErrorKind::ResultMismatch, .. }) => Self::invalid(e),
            gcodec::Error::Input(_) => Self::usage(e),
            // Format, Unsupported and later variants: the bytes cannot be read.
            _ => Self::invalid(e),
        }
    }
}

/// Adds the file to a result's failure.
pub(crate) trait InFile<T> {
    /// See [`Failure::in_file`].
    fn in_file(self, path: &Path) -> Result<T>;
}

/// Adds the output to a result's failure.
pub(crate) trait InOutput<T> {
    /// See [`Failure::in_output`].
    fn in_output(self, path: &Path) -> Result<T>;
}

impl<T, E: Into<Failure>> InOutput<T> for std::result::Result<T, E> {
    fn in_output(self, path: &Path) -> Result<T> {
        self.map_err(|e| e.into().in_output(path))
    }
}

impl<T, E: Into<Failure>> InFile<T> for std::result::Result<T, E> {
    fn in_file(self, path: &Path) -> Result<T> {
        self.map_err(|e| e.into().in_file(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gcodec::tensor::{Dtype, TensorBuf};

    #[test]
    fn every_party_has_its_code() {
        let io = || io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(Failure::from(io()).code, Code::Io);
        assert_eq!(Failure::from(gcodec::Error::Io(io())).code, Code::Io);
        let input = TensorBuf::new(Dtype::F32, vec![2], vec![0; 7]).unwrap_err();
        assert_eq!(Failure::from(input).code, Code::Usage);
        assert_eq!(
            [Code::Usage as u8, Code::Invalid as u8, Code::Limit as u8, Code::Io as u8],
            [2, 3, 4, 74]
        );
    }

    #[test]
    fn context_comes_first() {
        let failure = Failure::invalid("header is cut").about("tensor \"a\"");
        let in_file: Result<()> = Err::<(), _>(failure).in_file(Path::new("x.npy"));
        assert_eq!(in_file.unwrap_err().message, "x.npy: tensor \"a\": header is cut");
        assert_eq!(Failure::usage("no").in_file(Path::new("-")).message, "standard input: no");
    }

    #[test]
    fn only_a_broken_pipe_is_quiet() {
        assert!(
            Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).in_file(Path::new("-")).broken_pipe
        );
        assert!(!Failure::from(io::Error::from(io::ErrorKind::NotFound)).broken_pipe);
    }
}
