//! The program is driven by keys, and its screens are compared.

use super::app::App;
use super::draw;
use crate::testing::TempDir;
use clap::Parser;
use gcodec_latent::Models;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::path::{Path, PathBuf};

/// Runs a command line of the program, without its first word.
fn gcodec(args: &[&str]) {
    let cli = crate::Cli::try_parse_from(["gcodec", "-q"].iter().chain(args)).unwrap();
    crate::execute(&cli).unwrap();
}

fn demo(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("gradients");
    folder.join(format!("{name}.safetensors")).display().to_string()
}

/// The program on a terminal of 100 columns and 24 lines.
struct Seen {
    app: App,
    terminal: Terminal<TestBackend>,
}

impl Seen {
    fn open(path: PathBuf) -> Self {
        Self::with(path, &Models::new())
    }

    fn with(path: PathBuf, models: &Models) -> Self {
        let app = App::open(&[path], models, &gcodec::Limits::default()).unwrap();
        Self { app, terminal: Terminal::new(TestBackend::new(100, 24)).unwrap() }
    }

    fn press(&mut self, keys: &str) -> String {
        for key in keys.split_whitespace() {
            let code = match key {
                "down" => KeyCode::Down,
                "up" => KeyCode::Up,
                "right" => KeyCode::Right,
                "left" => KeyCode::Left,
                "enter" => KeyCode::Enter,
                "esc" => KeyCode::Esc,
                "tab" => KeyCode::Tab,
                "end" => KeyCode::End,
                "page" => KeyCode::PageDown,
                one => KeyCode::Char(one.chars().next().unwrap()),
            };
            self.app.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
        self.screen()
    }

    fn screen(&mut self) -> String {
        self.terminal.draw(|frame| draw::screen(frame, &mut self.app)).unwrap();
        let buffer = self.terminal.backend().buffer();
        let width = usize::from(buffer.area.width);
        let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
        cells.chunks(width).map(|row| format!("{}\n", row.concat().trim_end())).collect()
    }
}

/// Writes a stream of two workers at step 30, as the page on dumps has it.
fn workers(dir: &TempDir) -> PathBuf {
    let path = dir.path("workers.gcu");
    let (a, b) = (demo("digits_convnet_step0030_worker0"), demo("digits_convnet_step0030_worker1"));
    let out = path.display().to_string();
    let codec = "topk:density=0.1,values=bf16";
    gcodec(&["encode", &a, &b, "-o", &out, "--codec", codec, "--rule", "*.bias=lossless"]);
    path
}

#[track_caller]
fn has(screen: &str, parts: &[&str]) {
    for part in parts {
        assert!(screen.contains(part), "{part}:\n{screen}");
    }
}

#[test]
fn keys_lead_through_modules_updates_and_tabs() {
    let dir = TempDir::new();
    let mut seen = Seen::open(workers(&dir));
    has(&seen.screen(), &["update 1 of 2: step 30, sender 0", "by bytes", "+ conv3", "1 Stats  2 Where"]);
    has(
        &seen.press("enter down"),
        &["- conv3", "    weight", "conv3.weight", "f32 48x32x3x3", "norm  0.5533", "2^"],
    );
    has(&seen.press("2"), &["48 rows, 288 columns; not zero: 10.0%", "▀▀▀"]);
    has(&seen.press("right"), &["update 2 of 2: step 30, sender 1", "not zero: 10.0%"]);
    has(&seen.press("3"), &["sender 1 of 2", "ratio", "exponents of this update"]);
    has(&seen.press("5"), &["nothing is damaged"]);
    has(&seen.press("4"), &["frame 4", "step", "body_crc"]);
    let before = seen.screen();
    assert_ne!(seen.press("n n n n n n n n"), before, "another field is selected");
    has(&seen.press("left s 1"), &["update 1 of 2", "by norm"]);
    has(&seen.press("/ b i a"), &["filter: bia_", "bn1.bias"]);
    let filtered = seen.press("enter end");
    assert!(!filtered.contains("conv3.weight") && filtered.contains("with \"bia\""), "{filtered}");
    has(&seen.press("esc ?"), &["keys", "left, right, [, ]", "quit"]);
    seen.press("x q");
    assert!(seen.app.is_done());
}

#[test]
fn codes_have_statistics_where_there_is_a_model() {
    let dir = TempDir::new();
    let [a, b] = [0, 1].map(|worker| demo(&format!("digits_convnet_step0030_worker{worker}")));
    let (model, path) = (dir.path("model.lgc"), dir.path("coded.gcu"));
    let out = model.display().to_string();
    gcodec(&["model", "train", &a, &b, "-o", &out, "--width", "1", "--iterations", "1"]);
    let codec = format!("lgc:model={out},density=0.1");
    gcodec(&["encode", &a, "-o", &path.display().to_string(), "--codec", &codec]);
    let mut models = Models::new();
    models.add(crate::learned::open(&model).unwrap());
    let keys = "enter down";
    has(&Seen::open(path.clone()).press(keys), &["conv3.weight", "norm  -"]);
    has(&Seen::with(path, &models).press(keys), &["conv3.weight", "norm  0."]);
}

#[test]
fn trends_have_the_errors_of_originals() {
    let dir = TempDir::new();
    let path = workers(&dir);
    let original: PathBuf = demo("digits_convnet_step0030_worker1").into();
    let (limits, wanted) = (gcodec::Limits::default(), crate::inspect::Wanted::default());
    let losses =
        crate::inspect::against::losses(std::slice::from_ref(&path), &original, &wanted, &limits).unwrap();
    let mut seen = Seen::open(path);
    assert!(!seen.press("3").contains("error"));
    seen.app.errors = losses.by_update();
    has(
        &seen.press("right"),
        &["density", "error", &crate::inspect::view::number(Some(losses.all.errors.relative_l2))],
    );
}

#[test]
fn every_size_and_every_key_is_harmless() {
    let dir = TempDir::new();
    let path = workers(&dir);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 900;
    bytes[at] ^= 1;
    std::fs::write(dir.path("damaged.gcu"), bytes).unwrap();
    for path in [path, dir.path("damaged.gcu"), demo("digits_convnet_step0030_worker0").into()] {
        let app = App::open(&[path], &Models::new(), &gcodec::Limits::default()).unwrap();
        let mut seen = Seen { app, terminal: Terminal::new(TestBackend::new(100, 24)).unwrap() };
        for keys in
            ["end enter page page", "right right right down down", "/ z z enter", "esc left up", "s s s s"]
        {
            for tab in ["1", "2", "3", "4", "5", "tab"] {
                seen.press(tab);
                seen.press(keys);
                for (width, height) in [(1, 1), (20, 4), (60, 10), (200, 60)] {
                    seen.terminal.backend_mut().resize(width, height);
                    seen.screen();
                }
                seen.terminal.backend_mut().resize(100, 24);
            }
        }
    }
    let damaged = Seen::open(dir.path("damaged.gcu")).press("5");
    has(&damaged, &["lost", "wrong checksum"]);
}

/// The screens of the page on dumps.
#[test]
fn the_recording_repeats() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/inspect.md");
    let page = std::fs::read_to_string(page).unwrap();
    let dir = TempDir::new();
    let mut seen = Seen::open(workers(&dir));
    let mut screens = page.split("```screen\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    for keys in ["enter down", "s enter 4 n n n n n n n n n n n n"] {
        let shown = seen.press(keys);
        let place = dir.root().display().to_string();
        let shown = shown.replace(&format!("{place}/"), "");
        let expected = screens.next().unwrap_or_default();
        assert_eq!(
            shown.lines().skip(1).collect::<Vec<_>>(),
            expected.lines().skip(1).collect::<Vec<_>>(),
            "{shown}"
        );
    }
    assert!(screens.next().is_none());
}
