#![no_main]
//! The command line on any bytes: `inspect` as text, as JSON and annotated, and `verify`. It never panics,
//! its memory is proportional to the input, and `verify` agrees with the library.

use gcodec::block::Profile;
use gcodec::stream::{Body, Event, SliceReader};
use gcodec_fuzz::{begin, limits, memory};
use libfuzzer_sys::fuzz_target;

// The tool's modules, declared as in its `lib.rs`, since they refer to each other as `crate::..`.
macro_rules! modules_of_the_tool {
    ($($name:ident $path:literal)*) => { $(
        #[path = $path]
        #[allow(dead_code, unused_imports, reason = "the tool uses more of it")]
        #[allow(unfulfilled_lint_expectations, reason = "the tool expects lints of what is unused here")]
        mod $name;
    )* };
}
modules_of_the_tool! {
    annotate "../../tools/cli/src/annotate/mod.rs"
    baselines "../../tools/cli/src/baselines.rs"
    compare "../../tools/cli/src/compare.rs"
    console "../../tools/cli/src/console.rs"
    damage "../../tools/cli/src/damage.rs"
    digest "../../tools/cli/src/digest.rs"
    fail "../../tools/cli/src/fail.rs"
    files "../../tools/cli/src/files.rs"
    fit "../../tools/cli/src/fit.rs"
    input "../../tools/cli/src/input/mod.rs"
    inspect "../../tools/cli/src/inspect/mod.rs"
    learned "../../tools/cli/src/learned.rs"
    model "../../tools/cli/src/model.rs"
    naming "../../tools/cli/src/naming.rs"
    options "../../tools/cli/src/options.rs"
    order "../../tools/cli/src/order.rs"
    origin "../../tools/cli/src/origin.rs"
    output "../../tools/cli/src/output.rs"
    pairs "../../tools/cli/src/pairs.rs"
    parquet "../../tools/cli/src/parquet.rs"
    progress "../../tools/cli/src/progress.rs"
    records "../../tools/cli/src/records.rs"
    signals "../../tools/cli/src/signals.rs"
    spool "../../tools/cli/src/spool.rs"
    stream "../../tools/cli/src/stream.rs"
    tensors "../../tools/cli/src/tensors/mod.rs"
    terminal "../../tools/cli/src/terminal.rs"
    verify "../../tools/cli/src/verify.rs"
}

gcodec_fuzz::mutate_streams!();

/// Maximum characters per byte: one line per field; the shortest line has no byte (a heading of ten words).
const LINE: usize = 300;

fuzz_target!(|bytes: &[u8]| {
    begin(true);
    let limits = limits();
    // Beside the memory of reading there is the text: some hundred bytes for each byte, and as much again
    // while it is assembled. Tables of decoded integers have a declared size, which need not be present.
    let allowed = gcodec_fuzz::allowance(bytes.len(), 8) + 4 * LINE * bytes.len();
    memory::within(allowed, "inspecting", || {
        let wanted = inspect::Wanted { each: true, ..inspect::Wanted::default() };
        let (report, failure) = inspect::Report::of(bytes, bytes.len() as u64, &wanted, &limits);
        let json = serde_json::to_string_pretty(&report).expect("a report");
        let text = inspect::text::render(&report, "input", false);
        let most = LINE * (bytes.len() + 100) + 8 * limits.max_blocks as usize;
        assert!(json.len() <= 4 * most, "{} bytes of JSON for {}", json.len(), bytes.len());
        assert!(text.len() <= 4 * most, "{} bytes of text for {}", text.len(), bytes.len());
        assert_eq!(report.ok, failure.is_none(), "the report and its exit agree");
        let (_, damage) = verify::verify(bytes, bytes.len() as u64, Profile::Core, &wanted.models, &limits)
            .expect("a slice can be read");
        let verified = damage.failure();
        let takes = takes(bytes);
        assert!(takes || verified.is_some(), "verify finds nothing wrong");
        assert!(takes || failure.is_some(), "inspect finds nothing wrong");
        // Both also count bits per tensor, which may need more than the limits allow.
        for failure in verified.into_iter().chain(failure).filter(|_| takes) {
            assert_eq!(failure.code, fail::Code::Limit, "{} of what is well", failure.message);
        }
        let (pieces, error) = annotate::annotate(bytes, &inspect::Wanted::default(), &limits);
        let text = annotate::text(&pieces, bytes);
        assert!(text.len() <= 8 * most, "{} bytes of annotations for {}", text.len(), bytes.len());
        assert!(!takes || error.is_none(), "annotate refuses what is well");
        // Every byte of a piece is in one field. The annotations and the library were both written from the
        // spec.
        if takes {
            for piece in &pieces {
                let fields = piece.lines.iter().filter_map(|line| match line {
                    annotate::Line::Field(field) => Some(field.len as u64),
                    annotate::Line::Heading { .. } => None,
                });
                assert_eq!(
                    fields.sum::<u64>(),
                    piece.len,
                    "bytes annotated of the piece at {}",
                    piece.offset
                );
            }
        }
        for frame in 0..pieces.len().min(4) as u64 {
            let wanted = inspect::Wanted { frame: Some(frame), each: true, ..inspect::Wanted::default() };
            let (report, _) = inspect::Report::of(bytes, bytes.len() as u64, &wanted, &limits);
            std::hint::black_box(inspect::text::render(&report, "input", true));
        }
    });
});

/// Whether every frame can be read and every block decoded.
fn takes(bytes: &[u8]) -> bool {
    SliceReader::new(bytes, limits()).all(|event| match event {
        Ok(Event::Frame(_, Body::Update(part))) => {
            let budget = part.budget();
            (0..part.blocks.len()).all(|i| part.decode(i, &budget.with_memory_renewed()).is_ok())
        }
        event => event.is_ok(),
    })
}
