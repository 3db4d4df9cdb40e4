//! Programs that the tasks run: those of the workspace, and those of the machine.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use crate::{Result, root};

/// Exit code of a task whose tools are missing on this machine.
pub const SKIPPED: u8 = 77;

/// Builds a program of the workspace and returns its path.
pub fn build(name: &str) -> Result<PathBuf> {
    let mut build = Command::new("cargo");
    // `--workspace` rather than `--package`: with the features of the whole workspace, so that no dependency
    // is compiled a second time.
    build.args(["build", "--quiet", "--workspace", "--all-features", "--bin", name]);
    run(build.current_dir(root()))?;
    Ok(target().join("debug").join(name))
}

/// Runs a command; an error if it fails.
pub fn run(command: &mut Command) -> Result<()> {
    match command.status()?.success() {
        true => Ok(()),
        false => Err(format!("failed: {command:?}").into()),
    }
}

/// Whether a program is there, and succeeds; its output is not shown.
pub fn succeeds(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

/// Returns the folder where cargo builds.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs `work` on all items, `at_once` of them at a time, and returns the results in the items' order.
pub fn each_of<T: Sync, R: Send>(
    at_once: usize,
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let waiting = Mutex::new(items.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let worker = || -> std::result::Result<(), String> {
        loop {
            let next = waiting.lock().map_err(|e| e.to_string())?.next();
            let Some((number, item)) = next else { return Ok(()) };
            let result = work(item).map_err(|e| e.to_string())?;
            done.lock().map_err(|e| e.to_string())?.push((number, result));
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })?;
    let mut done = done.into_inner().map_err(|e| e.to_string())?;
    done.sort_by_key(|(number, _)| *number);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}
