//! Files of PyTorch, as every command sees them.

mod common;

use common::Dir;

const STATE: &[u8] = include_bytes!("../fixtures/state.pt");
const ODD: &[u8] = include_bytes!("../fixtures/odd.pt");
const ARRAYS: &[u8] = include_bytes!("../fixtures/stored.npz");

#[test]
fn archives_one_after_another_are_refused_by_every_command() {
    let dir = Dir::new();
    for (name, parts) in
        [("a.pt", &[STATE, ODD][..]), ("b.pt", &[ODD, STATE, STATE]), ("c.npz", &[ARRAYS, ARRAYS])]
    {
        std::fs::write(dir.path(name), parts.concat()).unwrap();
        let what = format!("{name}: {} archives one after another", parts.len());
        for command in ["inspect", "diff a.pt", "encode -o x.gcu --codec lossless", "audit"] {
            let run = dir.run(&format!("{command} {name}"));
            assert!(
                run.code == 3 && run.err.contains("archives one after another"),
                "{command}: {}",
                run.err
            );
            assert!(command.starts_with("diff") || run.err.contains(&what), "{command}: {}", run.err);
        }
    }
    // A part of a distributed checkpoint may be one archive.
    std::fs::write(dir.path("__0_0.distcp"), STATE).unwrap();
    for command in ["inspect __0_0.distcp", "diff __0_0.distcp __0_0.distcp"] {
        let run = dir.run(command);
        assert!(
            run.code == 3 && run.err.contains("a part of a PyTorch distributed checkpoint"),
            "{}",
            run.err
        );
    }
}
