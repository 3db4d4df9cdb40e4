//! The page of `inspect --html`: its numbers are those of `--json`, it is small, and a browser shows it.

mod common;

use common::{Dir, f32s, step, worker, write_tensors};
use gcodec::frame::{Manifest, TensorInfo, UpdateHeader};
use gcodec::stream::EncodeOptions;
use gcodec::{Dtype, TensorBuf, Writer};
use serde_json::Value;
use std::sync::Arc;

/// Returns the rows of the table of tensors: name, and the exact numbers of the cells that have some.
fn rows(page: &str) -> Vec<(String, Vec<String>)> {
    let table = page.split("<table id=\"all\"").nth(1).unwrap().split("</table>").next().unwrap();
    let row = |row: &str| {
        let name = row.split("<th scope=\"row\">").nth(1)?.split("</th>").next()?.to_owned();
        let numbers = row.split("data-v=\"").skip(1).filter_map(|rest| rest.split('"').next());
        Some((name, numbers.map(str::to_owned).collect()))
    };
    table.split("<tr id=\"t").skip(1).filter_map(row).collect()
}

/// Whether both are the same number. The reader of JSON rounds its last digit.
fn equal(number: f64, expected: &Value) -> bool {
    let expected = expected.as_f64().unwrap();
    (number - expected).abs() <= 1e-15 * expected.abs()
}

/// Whether a cell of the page has this number.
fn has(page: &str, expected: &Value) -> bool {
    let numbers = page.split("data-v=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok());
    numbers.into_iter().any(|number: f64| equal(number, expected))
}

fn json(dir: &Dir, line: &str) -> Value {
    serde_json::from_slice(&dir.well(line).stdout).unwrap()
}

#[test]
fn the_numbers_of_the_page_are_those_of_json() {
    let dir = Dir::new();
    let input = worker(0);
    dir.well(&format!("encode {input} -o x.gcu --codec topk:density=0.1 --rule *.bias=lossless"));
    dir.well("inspect x.gcu --html x.html");
    let page = std::fs::read_to_string(dir.path("x.html")).unwrap();
    let listed = json(&dir, "inspect x.gcu --tensors --json");
    let found = rows(&page);
    assert_eq!(found.len(), listed.as_array().unwrap().len());
    for ((name, numbers), expected) in found.iter().zip(listed.as_array().unwrap()) {
        assert_eq!(*name, expected["name"]);
        // Bytes, share, density, norm, mean, std, min, max, NaN, Inf.
        let of = |column: usize| numbers[column].parse::<f64>().unwrap();
        for (column, key) in
            [(0, "bytes"), (2, "nonzero"), (3, "norm"), (4, "mean"), (5, "std"), (6, "min"), (7, "max")]
        {
            assert!(equal(of(column), &expected[key]), "{name} {key}");
        }
        assert_eq!((of(8), of(9)), (0.0, 0.0));
    }
    // Each update has its norm in the matrix; the loss is that of --against.
    dir.well(&format!("encode {} {} {} -o run.gcu --codec topk:density=0.1", step(15), step(200), step(600)));
    dir.well(&format!("inspect run.gcu --html run.html --step 200 --against {}", step(200)));
    dir.well("inspect run.gcu --html all.html");
    let all = std::fs::read_to_string(dir.path("all.html")).unwrap();
    for update in json(&dir, "inspect run.gcu --json")["updates"].as_array().unwrap() {
        assert!(has(&all, &update["norm"]), "{}", update["norm"]);
    }
    let page = std::fs::read_to_string(dir.path("run.html")).unwrap();
    let losses = json(&dir, &format!("inspect run.gcu --step 200 --against {} --json", step(200)));
    for key in ["norm", "relative_l2", "cosine", "energy_kept"] {
        assert!(has(&page, &losses["all"][key]), "{key}");
    }
}

#[test]
fn errors_of_several_updates_are_a_trend() {
    let dir = Dir::new();
    std::fs::create_dir(dir.path("originals")).unwrap();
    for number in [15, 200, 600] {
        let path = step(number);
        std::fs::copy(&path, dir.path("originals").join(std::path::Path::new(&path).file_name().unwrap()))
            .unwrap();
    }
    dir.well("encode originals/resnet_head_step0015_worker0.safetensors originals/resnet_head_step0200_worker0.safetensors originals/resnet_head_step0600_worker0.safetensors -o run.gcu --codec topk:density=0.1");
    let losses = json(&dir, "inspect run.gcu --against originals --json");
    let updates = losses["updates"].as_array().unwrap();
    assert_eq!(updates.iter().map(|u| u["step"].as_u64().unwrap()).collect::<Vec<_>>(), [15, 200, 600]);
    for update in updates {
        let number = update["step"].as_u64().unwrap() as u32;
        let one = json(&dir, &format!("inspect run.gcu --step {number} --against {} --json", step(number)));
        assert_eq!(update["relative_l2"], one["all"]["relative_l2"]);
    }
    let text = dir.well("inspect run.gcu --against originals").out();
    assert!(text.lines().nth(2).unwrap().trim_start().starts_with("200  "), "{text}");
    dir.well("inspect run.gcu --html run.html --against originals");
    assert!(std::fs::read_to_string(dir.path("run.html")).unwrap().contains("<figcaption>Relative error"));
    dir.fails(2, "no update has the step", "inspect run.gcu --sender 4 --against originals");
}

#[test]
fn the_page_needs_nothing_and_trusts_no_name() {
    let dir = Dir::new();
    let name = "<script>alert(1)</script>\" onload='x' \u{202e}";
    let tensors = [(name, "F32", &[4u64, 4][..], &f32s(&[1.0, 0.0, f32::NAN, -2.0].repeat(4))[..])];
    write_tensors(&dir.path("evil.safetensors"), &tensors);
    dir.well("inspect evil.safetensors --html evil.html");
    let page = std::fs::read_to_string(dir.path("evil.html")).unwrap();
    assert!(
        !page.contains("<script>alert") && !page.contains('\u{202e}') && page.contains("&lt;script&gt;alert")
    );
    assert_eq!(page.matches("<script").count(), 1);
    for word in ["http:", "https:", "//", "url(", "@import", "<link"] {
        let outside = page.replace("data:image/bmp;base64,", "");
        let text: String =
            outside.split("src=\"").map(|part| part.split_once('"').map_or(part, |p| p.1)).collect();
        assert!(!text.contains(word), "{word}");
    }
    for tag in ["section", "table", "tr", "td", "svg", "figure", "div", "main", "a", "g"] {
        let open = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    // Without elements, and with damage.
    write_tensors(&dir.path("empty.safetensors"), &[("none", "F32", &[0, 3], &[])]);
    dir.well("inspect empty.safetensors --html empty.html");
    dir.well("encode evil.safetensors -o x.gcu --codec raw");
    let mut bytes = std::fs::read(dir.path("x.gcu")).unwrap();
    let at = bytes.windows(4).rposition(|w| w == (-2f32).to_le_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::write(dir.path("x.gcu"), bytes).unwrap();
    dir.fails(3, "checksum", "inspect x.gcu --html damaged.html");
    let page = std::fs::read_to_string(dir.path("damaged.html")).unwrap();
    assert!(page.contains("1 fault") && page.contains("wrong checksum"));
    dir.fails(2, "also an input", "inspect x.gcu --html x.gcu");
}

/// Writes a stream of 1,000 tensors and 100 steps.
fn large(dir: &Dir) {
    let infos = (0..1000)
        .map(|i| TensorInfo::new(format!("model.layers.{}.block.w{}", i / 10, i % 10), Dtype::F32, [8, 8]));
    let manifest = Arc::new(Manifest::new(infos.collect()).unwrap());
    let names: Vec<String> = manifest.tensors().iter().map(|info| info.name.clone()).collect();
    let mut writer = Writer::new(Vec::new(), EncodeOptions::default());
    for step in 0..100u32 {
        let of = |tensor: u32| {
            let value = |i: u32| ((i * 7 + tensor * 13 + step * 29) % 101) as f32 - 50.0;
            TensorBuf::from_f32(vec![8, 8], &(0..64).map(value).collect::<Vec<_>>()).unwrap()
        };
        let tensors: Vec<TensorBuf> = (0..1000).map(of).collect();
        let inputs: Vec<_> = (0u64..)
            .zip(&tensors)
            .map(|(tensor, t)| gcodec::compress::Input {
                tensor,
                name: &names[tensor as usize],
                view: t.view(),
                base: None,
            })
            .collect();
        let codecs = vec!["topk:density=0.1".parse().unwrap(); 1000];
        let blocks = gcodec::compress::compress(&inputs, &codecs, &Default::default(), None).unwrap();
        writer.update(&UpdateHeader::default().with_step(step.into()), &manifest, &blocks).unwrap();
    }
    std::fs::write(dir.path("large.gcu"), writer.finish().unwrap()).unwrap();
}

#[test]
fn a_thousand_tensors_and_a_hundred_steps_stay_small() {
    let dir = Dir::new();
    large(&dir);
    dir.well("inspect large.gcu --html large.html");
    let page = std::fs::read_to_string(dir.path("large.html")).unwrap();
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
    assert_eq!(rows(&page).len(), 1000);
    assert_eq!(page.matches("<th scope=\"row\">").count(), 1100, "tensors and steps");
    browse(&dir, "large.html", 1000);
}

/// Shows a page in a browser without a window: its script runs without an error. Skipped without Chromium.
fn browse(dir: &Dir, page: &str, tensors: usize) {
    let run = |program: &str| {
        std::process::Command::new(program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"])
            .arg(format!("--user-data-dir={}", dir.path("browser").display()))
            .arg(format!("file://{}", dir.path(page).display()))
            .output()
            .ok()
    };
    let Some(output) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(run) else {
        println!("skipped: no Chromium here");
        return;
    };
    let (shown, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!log.contains("CONSOLE"), "{log}");
    assert!(shown.contains("<html lang=\"en\" class=\"js\">"), "the script ran to its first line: {log}");
    assert_eq!(shown.matches("<tr id=\"t").count(), tensors);
    assert_eq!(shown.matches("<button type=\"button\">").count(), 14, "it ran to its end");
}
