//! A file server over HTTP, and a real S3 server (moto), on loopback.

#[cfg(any(feature = "aws", feature = "http"))]
use crate::basics::fill;

#[cfg(feature = "http")]
mod http {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::PathBuf;

    use gcodec_store::Store;

    use super::fill;
    use crate::weights::{check, options};

    /// Serves files of a folder, with ranges, and nothing else: no listing, no writing.
    fn serve(folder: PathBuf) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let folder = folder.clone();
                std::thread::spawn(move || {
                    // A client that closes its connection ends the thread.
                    let _ = answer(stream.unwrap(), &folder);
                });
            }
        });
        address
    }

    fn answer(mut stream: TcpStream, folder: &std::path::Path) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut request, mut range) = (String::new(), None);
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                if line.trim().is_empty() {
                    break;
                }
                if let Some(bytes) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
                    range = bytes.trim().split_once('-').map(|(a, b)| (a.parse().unwrap(), b.parse().ok()));
                }
            }
            let words: Vec<&str> = request.split(' ').collect();
            let path = folder.join(words[1].trim_start_matches('/'));
            let Ok(bytes) = std::fs::read(path) else {
                write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            };
            if !["GET", "HEAD"].contains(&words[0]) {
                write!(stream, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")?;
                continue;
            }
            let (start, end) = match range {
                Some((start, end)) => (start, end.map_or(bytes.len(), |end: usize| end + 1).min(bytes.len())),
                None => (0, bytes.len()),
            };
            let status = if range.is_some() { "206 Partial Content" } else { "200 OK" };
            write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n\
                 Last-Modified: Sun, 22 Nov 2026 10:00:00 GMT\r\nETag: \"x\"\r\n\r\n",
                end - start,
                end.max(1) - 1,
                bytes.len()
            )?;
            if words[0] == "GET" {
                stream.write_all(&bytes[start..end])?;
            }
        }
    }

    #[test]
    fn a_file_server_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let local = Store::open(folder.path().join("run").to_str().unwrap(), options()).unwrap();
        fill(&local, 7);
        local.fold(2, 7).unwrap();
        let address = format!("{}/run", serve(folder.path().to_owned()));
        let store = Store::open(&address, options().with_attempts(2)).unwrap();
        let held = store.pull(None, Some(2)).unwrap();
        check(&held);
        // Without a listing, the fold of exactly these versions is found.
        let staged = store.stage(Some(&held), None).unwrap();
        assert_eq!(staged.steps(), 1);
        check(&staged.verify().unwrap().commit(Some(held)).unwrap());
        assert_eq!(store.tensor(None, "embed").unwrap().view(), crate::weights::weights(7)[0].1.view());
        assert!(store.gc(&Default::default()).is_err());
    }
}

#[cfg(feature = "aws")]
mod s3 {
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use gcodec_store::object_store::aws::AmazonS3Builder;
    use gcodec_store::object_store::path::Path;
    use gcodec_store::{Collection, Error, Publisher, Store};

    use super::fill;
    use crate::basics::policy;
    use crate::weights::{check, options, publish};

    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Starts moto, from PyPI (`pip install "moto[s3,server]"`); `None` if it is not installed.
    fn start() -> Option<(Server, String)> {
        let home = std::env::var("HOME").unwrap_or_default();
        let venv = std::env::var("GCODEC_VENV").unwrap_or(format!("{home}/.cache/gcodec/venv"));
        let pythons = [
            std::env::var("GCODEC_MOTO").unwrap_or_default(),
            format!("{venv}/bin/python"),
            "python3".into(),
        ];
        let has_moto = |python: &&String| {
            let found =
                Command::new(python).args(["-c", "import moto.server"]).stderr(Stdio::null()).status();
            found.is_ok_and(|status| status.success())
        };
        let python = pythons.iter().filter(|python| !python.is_empty()).find(has_moto)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Command::new(python)
            .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server(server);
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "moto does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some((server, format!("http://127.0.0.1:{port}")))
    }

    #[test]
    fn an_s3_server_is_a_store() {
        let Some((_server, endpoint)) = start() else {
            eprintln!("SKIPPED: moto is not installed (pip install \"moto[s3,server]\")");
            return;
        };
        // The bucket is made by a request that the server accepts without a signature.
        let host = endpoint.strip_prefix("http://").unwrap();
        let mut stream = std::net::TcpStream::connect(host).unwrap();
        let request =
            format!("PUT /bucket HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(answer.contains(" 200 "), "{answer}");
        let s3 = AmazonS3Builder::new()
            .with_bucket_name("bucket")
            .with_endpoint(&endpoint)
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_access_key_id("test")
            .with_secret_access_key("test")
            .build()
            .unwrap();
        let s3 = Arc::new(s3);
        let open = || Store::with_objects(s3.clone(), Path::from("runs/7"), options()).unwrap();
        let store = open().with_grace(Duration::ZERO);
        fill(&store, 7);
        let held = store.pull(None, Some(2)).unwrap();
        check(&held);
        check(&store.pull(Some(held), None).unwrap());
        assert!(store.fold(2, 7).unwrap().bytes > 0);
        // Of two publishers after the same version, one wins.
        let (one, two) = (open(), open());
        let mut publishers =
            [Publisher::new(&one, policy(4)).unwrap(), Publisher::new(&two, policy(4)).unwrap()];
        publish(&mut publishers[0], 8).unwrap();
        assert!(matches!(publish(&mut publishers[1], 9), Err(Error::Conflict { version: 8 })));
        publishers[1].synchronise().unwrap();
        assert_eq!(publish(&mut publishers[1], 9).unwrap().version, 9);
        assert_eq!(store.tensor(None, "embed").unwrap().view(), crate::weights::weights(9)[0].1.view());
        // S3 states times in seconds.
        std::thread::sleep(Duration::from_millis(1100));
        assert!(store.gc(&Collection::default()).unwrap().deleted > 0);
        check(&store.pull(None, None).unwrap());
    }
}
