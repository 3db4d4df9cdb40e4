//! Trains the autoencoders of `gcodec-latent`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use gcodec::compress::Amount;
use gcodec_latent::{Architecture, Innovation};
use gcodec_latent_train::autoencoder::{Training, train};
use gcodec_latent_train::experiment::{Experiment, run};
use gcodec_latent_train::{Result, dumps};

/// Trains an encoder and one decoder for each worker (LGC, arXiv 2103.08870) on gradients, and writes the
/// model.
#[derive(Debug, Parser)]
#[command(name = "gcodec-latent-train", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: Option<Train>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Trains a network, trains autoencoders on its gradients, and measures them on later ones
    Experiment {
        /// Page whose measured part is replaced
        #[arg(long)]
        write: Option<PathBuf>,
        /// File of the digits
        #[arg(long, default_value = "tools/study/digits/digits.u8")]
        data: PathBuf,
        #[command(flatten)]
        experiment: Experiment,
    },
}

#[derive(Debug, clap::Args)]
struct Train {
    /// File for the model
    #[arg(long)]
    out: PathBuf,
    /// Gradients: <run>_step<number>_worker<number>.safetensors
    #[arg(required = true)]
    gradients: Vec<PathBuf>,
    /// Layer that is sent dense, if it is not the first in the files
    #[arg(long)]
    first: Option<String>,
    /// Layer of which only the largest elements are sent, if it is not the last in the files
    #[arg(long)]
    last: Option<String>,
    /// Use one decoder for all workers, on the mean of the codes
    #[arg(long)]
    ring: bool,
    /// Density of the shared set, in each tensor
    #[arg(long, default_value_t = 0.01)]
    density: f64,
    /// Channels of the encoder's first layer
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// Store the weights as binary16
    #[arg(long)]
    half: bool,
    #[command(flatten)]
    training: Training,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gcodec-latent-train: {e}");
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: &Cli) -> Result<()> {
    match (&cli.command, &cli.train) {
        (Some(Command::Experiment { write, data, experiment }), _) => {
            let measured = run(experiment, data, |line| eprintln!("{line}"))?;
            match write {
                Some(path) => {
                    let page = std::fs::read_to_string(path)?;
                    let (head, rest) = page.split_once(BEGIN).ok_or("no place for the measured part")?;
                    let (_, tail) = rest.split_once(END).ok_or("no end of the measured part")?;
                    Ok(std::fs::write(path, format!("{head}{BEGIN}\n\n{measured}{END}{tail}"))?)
                }
                None => {
                    print!("{measured}");
                    Ok(())
                }
            }
        }
        (None, Some(args)) => {
            let steps = dumps::read(&args.gradients, args.first.as_deref(), args.last.as_deref())?;
            let amount = Amount::Density(args.density);
            let signals: Vec<_> = steps.iter().map(|s| dumps::signals(s, amount)).collect::<Result<_>>()?;
            let (decoders, innovation) = match args.ring {
                true => (1, Innovation::None),
                false => (signals.first().map_or(0, |s| s.values.len()), Innovation::Channel),
            };
            let architecture = Architecture::new(decoders, innovation).with_width(args.width);
            let model = architecture.with_half(args.half).init(args.training.seed)?;
            let model = train(&model, &signals, &args.training, |iteration, loss| {
                if iteration % 100 == 0 {
                    eprintln!("{iteration}: values {:.4}, codes {:.4}", loss.rec, loss.sim);
                }
            })?;
            std::fs::write(&args.out, model.as_bytes())?;
            println!("{}  {}", model.id(), args.out.display());
            Ok(())
        }
        (None, None) => Err("nothing to do: see --help".into()),
    }
}

const BEGIN: &str = "<!-- measured -->";
const END: &str = "<!-- end of measured -->";
