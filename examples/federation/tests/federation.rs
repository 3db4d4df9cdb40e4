//! The protocol with Rust workers: a complete run with all its faults, and peers that break the rules.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use gcodec::Writer;
use gcodec::block::CodedBlock;
use gcodec::compress::Codec;
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::EncodeOptions;
use gcodec_federation::aggregator::{self, CONNECTIONS, Config, Control, Event};
use gcodec_federation::launch::{Kind, Launch};
use gcodec_federation::model::{Numbers, manifest};
use gcodec_federation::wire::{blocks, metadata};
use gcodec_federation::worker;

fn record(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.gcu"))
}

#[test]
fn a_killed_worker_comes_back_and_garbage_is_refused() {
    let mut config = Config::new(Vec::new(), record("launch"));
    config.rounds = 150;
    let launch = Launch {
        workers: ["first", "second", "third"].map(|name| (name.to_owned(), Kind::Rust)).into(),
        program: env!("CARGO_BIN_EXE_gcodec-federation").into(),
        python: None,
        command: None,
        config,
        print: true,
    };
    let checks = launch.run().expect("a complete run");
    for check in &checks {
        assert!(check.holds, "{check}");
    }
    assert_eq!(checks.len(), 7);
}

/// Runs a worker "good" beside `peer`, which acts as "bad"; returns the aggregator's events about the
/// others.
fn among(name: &str, settings: impl Fn(&mut Config), peer: impl FnOnce(&str) + Send) -> Vec<Event> {
    let mut config = Config::new(vec!["good".into(), "bad".into()], record(name));
    (config.start_with, config.rounds, config.deadline) = (1, 5, Duration::from_millis(200));
    config.pace = Duration::from_millis(5);
    settings(&mut config);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let (tell, told) = channel();
    let control = Control::default();
    control.go_on.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let (config, control, listener) = (&config, &control, &listener);
        let training =
            scope.spawn(move || aggregator::run(listener, config, control, &|e| drop(tell.send(e.clone()))));
        let good = scope.spawn(|| worker::run(&address, "good"));
        // The peer joins after "good".
        let mut seen = Vec::new();
        while !seen.iter().any(|e| matches!(e, Event::Joined { .. })) {
            seen.push(told.recv_timeout(Duration::from_secs(60)).expect("the good worker joins"));
        }
        peer(&address);
        // The event arrives within this time, or never.
        let until = Instant::now() + Duration::from_secs(20);
        let of_it = |e: &Event| match e {
            Event::Refused { .. } => true,
            Event::Left { name, .. } => name == "bad",
            _ => false,
        };
        while !seen.iter().any(of_it) && Instant::now() < until {
            seen.extend(told.recv_timeout(Duration::from_millis(100)).ok());
        }
        control.go_on.store(false, Ordering::SeqCst);
        let outcome = training.join().expect("no panic").expect("training goes on");
        let weights = good.join().expect("no panic").expect("the good worker is not disturbed");
        assert!(weights.same_bits(&outcome.weights));
        assert_eq!(outcome.same.get("good"), Some(&true));
        seen.extend(told.try_iter());
        seen.retain(|e| of_it(e));
        seen
    })
}

/// Joins as "bad", sends an update, and holds the connection until the aggregator closes it.
fn send_update(
    address: &str,
    header: &UpdateHeader,
    manifest: &std::sync::Arc<Manifest>,
    blocks: &[CodedBlock],
) {
    let socket = TcpStream::connect(address).expect("a connection");
    let mut writer = Writer::new(&socket, EncodeOptions::default());
    writer.metadata(&metadata([("name", "bad".into())])).expect("written");
    writer.update(header, manifest, blocks).expect("written");
    hold(&socket);
}

/// Reads until the other end closes.
fn hold(mut socket: &TcpStream) {
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    let _ = std::io::copy(&mut socket, &mut std::io::sink());
}

fn only_refusal(events: &[Event]) -> (&str, &str) {
    match events {
        [Event::Refused { who, why }, rest @ ..]
            if !rest.iter().any(|e| matches!(e, Event::Refused { .. })) =>
        {
            (who, why)
        }
        _ => panic!("{events:?}"),
    }
}

#[test]
fn what_is_no_gradient_of_this_network_is_refused_by_name() {
    let ours = manifest().expect("the manifest");
    let header = UpdateHeader::default().with_sender(1).with_world(2);
    let with = |at: usize, x: f32| {
        let mut numbers = Numbers::zeros();
        numbers.0[2][at] = x;
        blocks(&numbers, Codec::Raw, None).expect("blocks")
    };
    let other: Vec<TensorInfo> = ours
        .tensors()
        .iter()
        .map(|t| TensorInfo::new(format!("x{}", t.name), t.dtype, t.shape.clone()))
        .collect();
    let other = std::sync::Arc::new(Manifest::new(other).expect("a manifest"));
    let cases = [
        ("nan", header.clone(), &ours, with(3, f32::NAN), "not finite"),
        ("large", header.clone(), &ours, with(3, 1e30), "beyond 1000"),
        ("sender", header.clone().with_sender(0), &ours, with(0, 1.0), "it is sender 1, its update says 0"),
        (
            "world",
            header.clone().with_world(9),
            &ours,
            with(0, 1.0),
            "there are 2 senders, its update says 9",
        ),
        (
            "future",
            header.clone().with_step(1 << 40),
            &ours,
            with(0, 1.0),
            "an update of round 1099511627776",
        ),
        ("other", header.clone(), &other, with(0, 1.0), "another network"),
    ];
    for (name, header, manifest, blocks, why) in cases {
        let seen = among(name, |_| {}, |address| send_update(address, &header, manifest, &blocks));
        let (who, found) = only_refusal(&seen);
        assert!(who.starts_with("\"bad\" (127.0.0.1:"), "{name}: {who}");
        assert!(found.contains(why) && found.contains("at byte 0x"), "{name}: {found}");
    }
}

#[test]
fn who_does_not_say_a_name_in_time_is_sent_away() {
    let hello = |config: &mut Config| config.hello = Duration::from_secs(1);
    // Single bytes, each in time, but never the whole frame.
    let seen = among("slow", hello, |address| {
        let mut socket = TcpStream::connect(address).expect("a connection");
        for byte in [0x89, b'G', b'C', b'U', b'\r', b'\n'] {
            let _ = std::io::Write::write_all(&mut socket, &[byte]);
            thread::sleep(Duration::from_millis(300));
        }
    });
    let (who, why) = only_refusal(&seen);
    assert!(who.starts_with("127.0.0.1:") && why.contains("does not send its name"), "{who}: {why}");
}

#[test]
fn who_vanishes_within_an_update_is_left_out_of_the_round() {
    let seen = among(
        "vanish",
        |_| {},
        |address| {
            let mut bytes = Vec::new();
            let mut writer = Writer::new(&mut bytes, EncodeOptions::default());
            writer.metadata(&metadata([("name", "bad".into())])).expect("written");
            let gradient = blocks(&Numbers::random(5), Codec::Raw, None).expect("blocks");
            let header = UpdateHeader::default().with_sender(1).with_world(2);
            writer.update(&header, &manifest().expect("the manifest"), &gradient).expect("written");
            drop(writer);
            let mut socket = TcpStream::connect(address).expect("a connection");
            std::io::Write::write_all(&mut socket, &bytes[..bytes.len() / 2]).expect("half of it");
        },
    );
    let [Event::Left { name, why, .. }] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(name, "bad");
    // A reset occurs if the received bytes were still unread.
    assert!(why.contains("the stream is truncated") || why.contains("reset"), "{why}");
}

#[test]
fn who_joins_and_says_nothing_is_dropped_after_some_rounds() {
    let patience = |config: &mut Config| (config.patience, config.deadline) = (2, Duration::from_millis(50));
    let seen = among("silent", patience, |address| {
        let socket = TcpStream::connect(address).expect("a connection");
        let mut writer = Writer::new(&socket, EncodeOptions::default());
        writer.metadata(&metadata([("name", "bad".into())])).expect("written");
        hold(&socket);
    });
    let [Event::Left { name, why, .. }] = &seen[..] else { panic!("{seen:?}") };
    assert!(name == "bad" && why.contains("missed too many rounds"), "{name}: {why}");
}

#[test]
fn who_does_not_read_is_dropped_and_the_others_do_not_wait_for_it() {
    // It may miss any number of rounds; each waits one millisecond for it.
    // The system buffers some megabytes; a step with this density takes some tens of kilobytes.
    let settings = |config: &mut Config| {
        (config.patience, config.deadline) = (u32::MAX, Duration::from_millis(1));
        (config.pace, config.codec) = (Duration::ZERO, "topk:density=0.5,values=pow2".into());
    };
    let (go, stay) = channel::<()>();
    let seen = thread::scope(|scope| {
        let seen = among("deaf", settings, |address| {
            let socket = TcpStream::connect(address).expect("a connection");
            let mut writer = Writer::new(socket, EncodeOptions::default());
            writer.metadata(&metadata([("name", "bad".into())])).expect("written");
            // Stays open and unread until the run ends.
            scope.spawn(move || stay.recv().map(|()| drop(writer)));
        });
        drop(go);
        seen
    });
    let [Event::Left { name, why, .. }] = &seen[..] else { panic!("{seen:?}") };
    assert!(name == "bad" && why.contains("does not read its steps"), "{name}: {why}");
}

#[test]
fn a_name_is_one_workers_at_a_time_and_connections_are_bounded() {
    let seen = among(
        "twice",
        |_| {},
        |address| {
            let error = worker::run(address, "good").expect_err("the name is taken");
            assert!(error.to_string().contains("is already connected"), "{error}");
        },
    );
    assert!(only_refusal(&seen).1.contains("is already connected"));

    let seen = among(
        "many",
        |_| {},
        |address| {
            // Together with "good" this is one connection more than allowed: the last is closed.
            let sockets: Vec<_> =
                (0..CONNECTIONS).map(|_| TcpStream::connect(address).expect("a connection")).collect();
            hold(&sockets[CONNECTIONS - 1]);
            drop(sockets);
        },
    );
    let refused = |why: &str| {
        seen.iter().filter(|e| matches!(e, Event::Refused { why: w, .. } if w.contains(why))).count()
    };
    assert_eq!(refused("too many connections"), 1, "{seen:?}");
}
