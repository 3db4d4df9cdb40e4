//! Damaged, exchanged and missing objects; content of strangers.

use std::sync::Arc;

use futures_util::TryStreamExt;
use gcodec_store::object_store::path::Path;
use gcodec_store::object_store::{ObjectStore, ObjectStoreExt};
use gcodec_store::{Error, Store};

use crate::basics::{fill, memory, open};
use crate::weights::{check, options};

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn all(objects: &Arc<dyn ObjectStore>) -> Vec<(Path, Vec<u8>)> {
    wait(async {
        let metas: Vec<_> = objects.list(None).try_collect().await.unwrap();
        let mut found = Vec::new();
        for meta in metas {
            let bytes = objects.get(&meta.location).await.unwrap().bytes().await.unwrap();
            found.push((meta.location, bytes.to_vec()));
        }
        found
    })
}

fn copy(content: &[(Path, Vec<u8>)]) -> Arc<dyn ObjectStore> {
    let objects = memory();
    for (path, bytes) in content {
        wait(objects.put(path, bytes.clone().into())).unwrap();
    }
    objects
}

fn hurried(objects: &Arc<dyn ObjectStore>) -> Store {
    let options = options().with_attempts(1);
    Store::with_objects(Arc::clone(objects), Path::from("runs/7"), options).unwrap()
}

/// Pulls every version, with and without a held one. Returns how many pulls failed.
fn pull_all(objects: &Arc<dyn ObjectStore>, last: u64) -> (u64, u64) {
    let store = hurried(objects);
    let (mut right, mut refused) = (0, 0);
    for version in 1..=last {
        for held in [None, Some(2)] {
            let held = held.and_then(|held| store.pull(None, Some(held)).ok());
            match store.pull(held, Some(version)) {
                Ok(replica) => {
                    check(&replica);
                    right += 1;
                }
                Err(e) => {
                    assert!(["store", "newer writer", "caller", "limits"].contains(&e.fault()), "{e}");
                    refused += 1;
                }
            }
        }
        if let Ok(tensor) = store.tensor(Some(version), "embed") {
            assert_eq!(tensor.view(), crate::weights::weights(version)[0].1.view());
        }
    }
    (right, refused)
}

#[test]
fn no_damage_gives_a_wrong_version() {
    let objects = memory();
    fill(&open(&objects), 6);
    open(&objects).fold(2, 4).unwrap();
    let content = all(&objects);
    let (mut right, mut refused) = (0, 0);
    let mut count = |objects: &Arc<dyn ObjectStore>| {
        let (r, f) = pull_all(objects, 6);
        right += r;
        refused += f;
    };
    for (number, (path, bytes)) in content.iter().enumerate() {
        let objects = copy(&content);
        wait(objects.delete(path)).unwrap();
        count(&objects);
        let other = &content[(number + 1) % content.len()].1;
        let half = bytes.len() / 2;
        let mut damaged = vec![bytes[..half].to_vec(), vec![], other.clone(), [&bytes[..], b"x"].concat()];
        for at in [0, half / 2, half, bytes.len() - 1] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            damaged.push(flipped);
        }
        for bytes in damaged {
            wait(objects.put(path, bytes.into())).unwrap();
            count(&objects);
        }
    }
    assert!(right > refused && refused > 100, "{right} right, {refused} refused");
    println!("{} objects, {right} pulls right, {refused} refused, 0 wrong", content.len());
}

/// Writes a text object as a stranger would: with a right checksum.
fn forge(objects: &Arc<dyn ObjectStore>, path: &str, json: &str) {
    let body = format!("{json}\n");
    let text = format!("gcodec-store 1 {}\n{body}", blake3::hash(body.as_bytes()).to_hex());
    wait(objects.put(&Path::from(format!("runs/7/{path}")), text.into())).unwrap();
}

#[test]
fn forged_records_are_refused() {
    let objects = memory();
    fill(&open(&objects), 2);
    let version = "versions/00000000000000000002.json";
    let at = Path::from(format!("runs/7/{version}"));
    let text = wait(async { objects.get(&at).await.unwrap().bytes().await.unwrap() });
    let honest = String::from_utf8(text.to_vec()).unwrap();
    let honest = honest.split_once('\n').unwrap().1.trim_end().to_owned();
    let record: serde_json::Value = serde_json::from_str(&honest).unwrap();
    let huge = u64::MAX;
    let changes = [
        ("version", serde_json::json!(3)),
        ("parent", serde_json::json!(2)),
        ("parent", serde_json::json!(huge)),
        ("anchor_version", serde_json::json!(2)),
        ("anchor_version", serde_json::json!(huge)),
        ("state", serde_json::json!("00")),
        ("state", serde_json::json!("00112233445566778899aabbccddeeff")),
        ("delta", serde_json::Value::Null),
        ("delta", serde_json::json!([])),
        ("delta", serde_json::json!([{"path": "../../etc/passwd", "size": 1, "blake3": "", "group": 0}])),
        (
            "delta",
            serde_json::json!([{"path": "data/00000000000000000001-d0-ff", "size": huge, "blake3": "", "group": 0}]),
        ),
        ("model", serde_json::json!({"path": "data/00000000000000000001-m0-ff", "size": huge, "blake3": ""})),
        ("model", record["delta"][0].clone()),
        ("meta", serde_json::json!(7)),
    ];
    for (field, value) in changes {
        let mut forged = record.clone();
        forged[field] = value.clone();
        forge(&objects, version, &forged.to_string());
        let error = hurried(&objects).pull(None, None).expect_err(&format!("{field} = {value}"));
        assert!(["store", "limits"].contains(&error.fault()), "{field} = {value}: {error}");
    }
    forge(&objects, version, &honest);
    check(&hurried(&objects).pull(None, None).unwrap());
    // A hint decides nothing, whatever it says.
    for hint in [r#"{"version":0}"#, r#"{"version":18446744073709551615}"#, r#"{"version":1}"#, "[]"] {
        forge(&objects, "latest.json", hint);
        assert_eq!(hurried(&objects).latest().unwrap(), 2, "{hint}");
    }
    // Weights larger than the reader wants are refused before they are decoded.
    let small = options().with_max_weights(100);
    let small = Store::with_objects(Arc::clone(&objects), Path::from("runs/7"), small).unwrap();
    assert!(matches!(small.pull(None, None), Err(Error::Limit { .. })));
}
