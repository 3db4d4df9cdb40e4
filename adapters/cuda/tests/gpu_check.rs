//! The program of `tools/gpu-check`, without a device and with the mock driver.

mod common;

use std::process::Command;

fn gpu_check(library_path: &std::path::Path) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_gpu-check"))
        .arg("--small")
        .env("LD_LIBRARY_PATH", library_path)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn without_a_device_it_says_so() {
    if gcodec_cuda::why_not().is_none() {
        return;
    }
    let (success, text) = gpu_check(std::path::Path::new("/nonexistent"));
    assert!(success && text.starts_with("SKIPPED: no CUDA driver"), "{text}");
}

#[test]
fn every_comparison_holds_with_the_mock_driver() {
    let Some(library) = common::build(&["-O3"]) else { return };
    let (success, text) = gpu_check(library.parent().unwrap());
    assert!(success && text.starts_with("device emulator 0\n"), "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with(": ok")).count(), 90, "{text}");
}
