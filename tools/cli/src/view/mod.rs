//! `gcodec view`: looks through dumps in the terminal.

mod app;
mod draw;
#[cfg(test)]
mod tests;
mod tree;

use crate::fail::{Failure, Outcome, Result};
use crate::input::is_standard;
use crate::inspect::{Wanted, against};
use crate::learned::ModelArgs;
use crate::options::LimitArgs;
use app::App;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::IsTerminal;
use std::path::PathBuf;

/// Browse streams and files of tensors in the terminal: modules, statistics, maps, trends, bytes, damage
///
/// Reads what `inspect` reads. The key ? lists all keys.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  gcodec view run.gcu
  gcodec view dumps/
  gcodec view run.gcu --against gradients/")]
pub(crate) struct Args {
    /// Streams, files of tensors, and folders of them
    #[arg(required = true, value_name = "IN")]
    inputs: Vec<PathBuf>,
    /// Tensors that the updates were made from, a file or a folder; the tab Trend then shows each update's
    /// error
    #[arg(long, value_name = "ORIGINAL")]
    against: Option<PathBuf>,
    #[command(flatten)]
    models: ModelArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Runs the command until the user ends it.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    if args.inputs.iter().any(|path| is_standard(path)) {
        return Err(Failure::usage("standard input is the keyboard here; give a file"));
    }
    if !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
        return Err(Failure::usage("standard input or output is not a terminal; use `gcodec inspect`"));
    }
    let limits = args.limits.limits();
    let wanted = Wanted { models: args.models.models()?, ..Wanted::default() };
    let mut app = App::open(&args.inputs, &wanted.models, &limits)?;
    if let Some(original) = &args.against {
        let losses = against::losses(&args.inputs, original, &wanted, &limits)?;
        app.errors = losses.by_update();
    }
    let mut terminal = ratatui::try_init()?;
    let ended = show(&mut terminal, &mut app);
    ratatui::try_restore()?;
    ended.map(|()| Outcome::Well)
}

fn show(terminal: &mut ratatui::DefaultTerminal, app: &mut App) -> Result<()> {
    while !app.is_done() {
        terminal.draw(|frame| draw::screen(frame, app))?;
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            app.press(key);
        }
    }
    Ok(())
}
