//! Full disks: the old file stays, no temporary file remains, and the exit code reports it.

use std::path::Path;
use std::process::Command;

use super::crash::{Job, jobs};
use super::scratch::{Scratch, has};
use super::{Section, thousands};
use crate::Result;
use crate::programs::gcodec;

/// Exit code for failures of reading and writing.
const IO: i32 = 74;

#[derive(Default)]
struct Tally {
    tried: u64,
    refused: u64,
    new: u64,
    wrong: Vec<String>,
}

pub(crate) fn run(quick: bool) -> Result<Vec<Section>> {
    let mut section = Section::new(
        "Full disks",
        "The same commands with limited space: a limit on the size of a file from zero up to the \
         needed size (`prlimit --fsize` with the signal ignored, so that writing fails as on a full \
         disk), a small separate file system, and `/dev/full`. *Refused*: exit code 74, the old file \
         unchanged, and no temporary file.",
        &["Command", "Where", "tried", "refused", "new file", "wrong"],
    );
    let program = gcodec()?;
    let scratch = Scratch::new("disk")?;
    let jobs = jobs(&scratch, &program, 300)?;
    if cfg!(unix) && has("prlimit") {
        for job in &jobs {
            report(&mut section, job, "a limit on the file's size", limited(job, &program, &scratch, quick)?);
        }
    } else {
        section.skipped("limits on a file's size need prlimit, of util-linux");
    }
    if Path::new("/dev/full").exists() {
        for job in jobs.iter().filter(|job| !job.appends && job.target.ends_with(".gcu")) {
            let mut command = Command::new(&program);
            command
                .args(job.args.split_whitespace())
                .args(["-o", "/dev/full", "-q"])
                .current_dir(scratch.root());
            let output = command.output()?;
            let mut tally = Tally { tried: 1, ..Tally::default() };
            match output.status.code() {
                Some(IO) if !output.stderr.is_empty() => tally.refused += 1,
                _ => tally.wrong.push(format!("/dev/full: {}", output.status)),
            }
            report(&mut section, job, "/dev/full", tally);
        }
    }
    if !small_file_system(&mut section, &jobs, &program, &scratch, quick)? {
        section.skipped("a small file system needs root, who may mount a tmpfs");
    }
    Ok(vec![section])
}

fn report(section: &mut Section, job: &Job, at: &str, tally: Tally) {
    for wrong in tally.wrong.iter().take(5) {
        section.wrong(format!("{}: {wrong}", job.name));
    }
    let counts = [tally.tried, tally.refused, tally.new, tally.wrong.len() as u64].map(thousands);
    section.row([job.name.to_owned(), at.to_owned()].into_iter().chain(counts));
}

/// Returns limits from zero to a little more than the output's size.
fn limited(job: &Job, program: &Path, scratch: &Scratch, quick: bool) -> Result<Tally> {
    let mut tally = Tally::default();
    let least = if job.appends { job.old.len() } else { 0 };
    let steps = if quick { 8 } else { 60 };
    let needed = job.new.len() - least;
    let sizes = (0..steps).map(|i| least + needed * i / steps);
    // Every size within the last bytes: the end frame and its neighbours.
    let last = (0..if quick { 3 } else { 50 }).map(|i| job.new.len() - i);
    for size in sizes.chain(last).chain([job.new.len() + 1]) {
        scratch.write(job.target, &job.old)?;
        let mut command = Command::new("sh");
        command
            .args(["-c", "trap '' XFSZ; exec prlimit --fsize=$0 \"$@\""])
            .arg(size.to_string())
            .arg(program);
        job.on(&mut command, scratch.root());
        let status = command.status()?;
        check(job, scratch, &mut tally, status.code(), size < job.new.len(), &format!("{size} bytes"))?;
    }
    Ok(tally)
}

/// `must_fail`: whether the limit is certainly too small.
fn check(
    job: &Job,
    scratch: &Scratch,
    tally: &mut Tally,
    code: Option<i32>,
    must_fail: bool,
    at: &str,
) -> Result<()> {
    tally.tried += 1;
    let found = scratch.read(job.target)?;
    match code {
        Some(IO) if found == job.old && must_fail => tally.refused += 1,
        Some(0) if found == job.new && !must_fail => tally.new += 1,
        _ => {
            let which = if found == job.old {
                "the old file"
            } else if found == job.new {
                "the new file"
            } else {
                "neither file"
            };
            tally.wrong.push(format!("{at}: exit code {code:?}, {which}"));
        }
    }
    if scratch.remove_temporary()? > 0 {
        tally.wrong.push(format!("{at}: a temporary file is left"));
    }
    Ok(())
}

/// Mounts a file system of a few pages; false if this is impossible.
fn small_file_system(
    section: &mut Section,
    jobs: &[Job],
    program: &Path,
    scratch: &Scratch,
    quick: bool,
) -> Result<bool> {
    let mount = scratch.path("small");
    std::fs::create_dir_all(&mount)?;
    for job in jobs {
        let mut tally = Tally::default();
        // Space for the old file, and in pages from none to enough for the new one.
        let (old, new) = (job.old.len().div_ceil(4096), job.new.len().div_ceil(4096));
        let more = if job.appends { new - old } else { new };
        let step = if quick { more.div_ceil(4).max(1) } else { more.div_ceil(16).max(1) };
        for pages in (0..=more).step_by(step).chain([more]) {
            // The directory takes one page.
            let size = format!("size={}k", 4 * (1 + old + pages));
            let mounted =
                Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&mount).output();
            if !mounted.is_ok_and(|o| o.status.success()) {
                return Ok(false);
            }
            let tried = in_small(job, program, scratch, &mount, &mut tally, pages >= more);
            let unmounted = Command::new("umount").arg(&mount).status()?.success();
            tried?;
            if !unmounted {
                return Err(format!("{} cannot be unmounted", mount.display()).into());
            }
        }
        report(section, job, "a small file system", tally);
    }
    Ok(true)
}

fn in_small(
    job: &Job,
    program: &Path,
    scratch: &Scratch,
    mount: &Path,
    tally: &mut Tally,
    enough: bool,
) -> Result<()> {
    let target = mount.join(job.target);
    std::fs::write(&target, &job.old)?;
    let mut command = Command::new(program);
    command.args(job.args.split_whitespace()).arg("-o").arg(&target).arg("-q").current_dir(scratch.root());
    let output = command.output()?;
    tally.tried += 1;
    let found = std::fs::read(&target)?;
    match output.status.code() {
        Some(IO) if found == job.old && !enough => tally.refused += 1,
        Some(0) if found == job.new => tally.new += 1,
        _ => tally.wrong.push(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
    if std::fs::read_dir(mount)?.count() != 1 {
        tally.wrong.push("a temporary file is left".into());
    }
    Ok(())
}
