//! A process that is killed (SIGKILL) before and after each call that writes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gcodec_store::object_store::local::LocalFileSystem;
use gcodec_store::object_store::path::Path;
use gcodec_store::{Collection, Publisher, Store};

use crate::basics::policy;
use crate::faulty::{Fault, Faulty};
use crate::weights::{check, options, publish};

/// Variable with the work, the folder and the number of the call at which the process waits for its end.
const CHILD: &str = "GCODEC_STORE_CHILD";

fn folder_store(folder: &str) -> Store {
    Store::open(folder, options().with_attempts(1)).unwrap()
}

fn work(store: &Store, what: &str) {
    match what {
        "publish" => drop(publish(&mut Publisher::new(store, policy(4)).unwrap(), 9)),
        "fold" => drop(store.fold(2, 7)),
        _ => drop(store.gc(&Collection::default())),
    }
}

/// The process that is killed. Without the variable it does nothing.
#[test]
fn child() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = task.split(' ').collect();
    let (what, folder, at) = (words[0], words[1], words[2].parse::<u64>().unwrap());
    let objects = Arc::new(LocalFileSystem::new_with_prefix(folder).unwrap());
    let faulty = Faulty::new(objects, move |call, _| {
        if call == at {
            println!("waiting");
            std::io::stdout().flush().unwrap();
            std::thread::sleep(Duration::from_secs(60));
        }
        Fault::None
    });
    let store = Store::with_objects(faulty, Path::default(), options()).unwrap();
    work(&store, what);
    println!("finished");
}

/// Kills a process at each of its calls. Before a call is after the one before it.
fn kill_at_each_call(what: &str) -> u64 {
    for at in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().to_str().unwrap();
        let store = folder_store(name).with_grace(Duration::ZERO);
        let mut publisher = Publisher::new(&store, policy(4)).unwrap();
        for step in 1..=8 {
            publish(&mut publisher, step).unwrap();
        }
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{what} {name} {at}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let last = lines.find(|line| line.ends_with("waiting") || line.ends_with("finished")).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let store = folder_store(name);
        let latest = store.latest().unwrap();
        assert!((8..=9).contains(&latest));
        let replica = store.pull(None, None).unwrap();
        check(&replica);
        // The same work, done again, ends well, and so do the others.
        if what != "publish" {
            work(&store, what);
        }
        assert_eq!(publish(&mut Publisher::new(&store, policy(4)).unwrap(), 10).unwrap().version, latest + 1);
        store.gc(&Collection::default()).unwrap();
        check(&store.pull(Some(replica), None).unwrap());
        check(&store.pull(None, None).unwrap());
        if last.ends_with("finished") {
            println!("{what}: killed at each of {at} calls");
            return at;
        }
    }
    unreachable!("the loop has no end")
}

#[test]
fn while_publishing() {
    assert!(kill_at_each_call("publish") > 8);
}

#[test]
fn while_folding() {
    assert!(kill_at_each_call("fold") > 8);
}

#[test]
fn while_collecting() {
    assert!(kill_at_each_call("gc") > 8);
}
