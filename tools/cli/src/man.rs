//! `gcodec completions` prints shell completions; `gcodec man DIR` writes man pages.

use crate::fail::{InFile, Outcome, Result};
use crate::output::print;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print shell completions
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Print the man page, or write the man pages of all commands to a directory
    Man {
        /// Directory to write to
        directory: Option<PathBuf>,
    },
}

/// Runs one of the commands for `gcodec`, the whole command line.
pub(crate) fn run(command: &Command, gcodec: clap::Command) -> Result<Outcome> {
    match command {
        Command::Completions { shell } => completions(gcodec, *shell),
        Command::Man { directory } => pages(gcodec, directory.as_deref()),
    }
}

/// Prints the completions of a shell.
fn completions(mut command: clap::Command, shell: clap_complete::Shell) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "gcodec", &mut script);
    print(String::from_utf8_lossy(&script))?;
    Ok(Outcome::Well)
}

/// Prints the main man page, or writes the page of each visible command to `directory`.
fn pages(command: clap::Command, directory: Option<&Path>) -> Result<Outcome> {
    match directory {
        Some(directory) => {
            std::fs::create_dir_all(directory)
                .and_then(|()| clap_mangen::generate_to(command, directory))
                .in_file(directory)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            print(String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Outcome::Well)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    #[test]
    fn there_is_a_page_for_each_command() {
        let dir = TempDir::new();
        let command = clap::Command::new("gcodec").subcommand(clap::Command::new("diff"));
        pages(command, Some(&dir.path("man"))).unwrap();
        assert!(dir.path("man/gcodec.1").is_file() && dir.path("man/gcodec-diff.1").is_file());
    }
}
