//! Stores whose weights, objects and streams are in temporary files.

use std::process::Command;

use crate::weights::SCRATCH;

/// Runs the other tests with a folder for temporary files, of which nothing is left.
#[test]
fn all_tests_pass_with_temporary_files() {
    if std::env::var_os(SCRATCH).is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let run = tests.args(["--skip", "crash::while"]).env(SCRATCH, folder.path()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
