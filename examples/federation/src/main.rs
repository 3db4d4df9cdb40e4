//! `gcodec-federation`: see `README.md`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use gcodec_federation::aggregator::{self, Config, Control};
use gcodec_federation::launch::{Kind, Launch, find_command, find_python};
use gcodec_federation::{Result, worker};

/// Workers of several libraries train one network together, exchanging gcodec streams.
#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Starts everything on this machine, with typical faults; exits with 1 if a check fails
    Launch {
        /// Uses three Rust workers, without Python
        #[arg(long)]
        rust_only: bool,
        #[command(flatten)]
        training: Training,
    },
    /// Runs the aggregator
    Aggregator {
        /// Address that workers connect to
        #[arg(long, default_value = "127.0.0.1:4747", value_name = "ADDRESS")]
        listen: String,
        /// Names that may take part
        #[arg(long, value_delimiter = ',', default_value = "torch,jax,rust", value_name = "NAMES")]
        roster: Vec<String>,
        #[command(flatten)]
        training: Training,
    },
    /// Runs a worker in Rust
    Worker {
        /// Address of the aggregator
        #[arg(long, default_value = "127.0.0.1:4747", value_name = "ADDRESS")]
        connect: String,
        /// This worker's name on the roster
        #[arg(long)]
        name: String,
    },
}

#[derive(Args)]
struct Training {
    /// Minimum number of rounds
    #[arg(long, default_value_t = 300)]
    rounds: u64,
    /// Learning rate: factor of the mean gradient
    #[arg(long, default_value_t = 0.3)]
    rate: f32,
    /// Codec of the workers' gradients, with at least one parameter, to which they append a seed
    #[arg(long, default_value = "topk:density=0.02,values=pow2", value_parser = seeded)]
    codec: String,
    /// Minimum time of a round, in milliseconds
    #[arg(long, default_value_t = 20)]
    pace: u64,
    /// Time that a round waits for a worker, in milliseconds
    #[arg(long, default_value_t = 2000)]
    deadline: u64,
    /// File for the stream of steps [default: federation.gcu beside this program]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Checks that a codec takes the seed of a worker.
fn seeded(codec: &str) -> Result<String> {
    let with_seed = format!("{codec},seed=0");
    with_seed.parse::<gcodec::Codec>().map_err(|e| format!("workers append `,seed=`: {e}"))?;
    Ok(codec.to_owned())
}

impl Training {
    fn config(self, roster: Vec<String>) -> Result<Config> {
        let record = self.record.map_or_else(
            || Ok(std::env::current_exe()?.with_file_name("federation.gcu")),
            std::path::absolute,
        );
        let mut config = Config::new(roster, record?);
        (config.rounds, config.rate, config.codec) = (self.rounds, self.rate, self.codec);
        config.pace = Duration::from_millis(self.pace);
        config.deadline = Duration::from_millis(self.deadline);
        Ok(config)
    }
}

fn launch(rust_only: bool, training: Training) -> Result<bool> {
    let kinds = match rust_only {
        true => [("first", Kind::Rust), ("second", Kind::Rust), ("third", Kind::Rust)],
        false => [("torch", Kind::Torch), ("jax", Kind::Jax), ("rust", Kind::Rust)],
    };
    let command = find_command().ok_or(
        "gcodec is missing, which opens the record: start this program with Cargo, or set GCODEC_CLI",
    )?;
    let launch = Launch {
        workers: kinds.map(|(name, kind)| (name.to_owned(), kind)).into(),
        program: std::env::current_exe()?,
        python: if rust_only { None } else { Some(find_python()?) },
        command: Some(command),
        config: training.config(Vec::new())?,
        print: true,
    };
    let checks = launch.run()?;
    println!();
    checks.iter().for_each(|check| println!("{check}"));
    Ok(checks.iter().all(|check| check.holds))
}

fn run() -> Result<bool> {
    match Program::parse().task {
        Task::Launch { rust_only, training } => launch(rust_only, training),
        Task::Aggregator { listen, roster, training } => {
            let listener = TcpListener::bind(&listen).map_err(|e| format!("{listen}: {e}"))?;
            println!("listening on {listen}");
            let outcome =
                aggregator::run(&listener, &training.config(roster)?, &Control::default(), &|event| {
                    println!("{event}");
                })?;
            let updates = outcome.rounds * outcome.same.len() as u64;
            println!("an update of {updates} has {} bytes on average", outcome.received / updates.max(1));
            Ok(outcome.same.values().all(|same| *same))
        }
        Task::Worker { connect, name } => worker::run(&connect, &name).map(|_| true),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
