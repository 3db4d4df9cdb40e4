//! `gcodec-federation`: see `README.md`.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use gcodec_federation::aggregator::{self, Config, Control};
use gcodec_federation::demo::{Demo, Kind, find_command, find_python};
use gcodec_federation::{Result, worker};

/// Workers of several libraries train one network together, exchanging gcodec streams.
#[derive(Parser)]
struct Program {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything at once, on this machine, with what goes wrong in practice; exits with 1 if anything is not as it must be
    Demo {
        /// Three Rust workers, without Python
        #[arg(long)]
        rust_only: bool,
        #[command(flatten)]
        training: Training,
    },
    /// Takes gradients, and sends steps
    Aggregator {
        /// Where workers connect to
        #[arg(long, default_value = "127.0.0.1:4747", value_name = "ADDRESS")]
        listen: String,
        /// Who may take part
        #[arg(long, value_delimiter = ',', default_value = "torch,jax,rust", value_name = "NAMES")]
        roster: Vec<String>,
        #[command(flatten)]
        training: Training,
    },
    /// A worker in Rust
    Worker {
        /// Where the aggregator is
        #[arg(long, default_value = "127.0.0.1:4747", value_name = "ADDRESS")]
        connect: String,
        /// This worker's name on the roster
        #[arg(long)]
        name: String,
    },
}

#[derive(Args)]
struct Training {
    /// Rounds, at least
    #[arg(long, default_value_t = 300)]
    rounds: u64,
    /// What the mean gradient is multiplied by
    #[arg(long, default_value_t = 0.3)]
    rate: f32,
    /// What workers compress gradients with: a codec with a seed
    #[arg(long, default_value = "topk:density=0.02,values=pow2")]
    codec: String,
    /// Milliseconds that a round takes at least
    #[arg(long, default_value_t = 20)]
    pace: u64,
    /// Milliseconds that a round waits for a worker
    #[arg(long, default_value_t = 2000)]
    deadline: u64,
    /// The file for the stream of steps [default: federation.gcu beside this program]
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
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

fn demo(rust_only: bool, training: Training) -> Result<bool> {
    let kinds = match rust_only {
        true => [("first", Kind::Rust), ("second", Kind::Rust), ("third", Kind::Rust)],
        false => [("torch", Kind::Torch), ("jax", Kind::Jax), ("rust", Kind::Rust)],
    };
    let command = find_command()
        .ok_or("no gcodec to open the record with: start this by Cargo, or say where by GCODEC_CLI")?;
    let demo = Demo {
        workers: kinds.map(|(name, kind)| (name.to_owned(), kind)).into(),
        program: std::env::current_exe()?,
        python: if rust_only { None } else { Some(find_python()?) },
        command: Some(command),
        config: training.config(Vec::new())?,
        print: true,
    };
    let checks = demo.run()?;
    println!();
    checks.iter().for_each(|check| println!("{check}"));
    Ok(checks.iter().all(|check| check.holds))
}

fn run() -> Result<bool> {
    match Program::parse().task {
        Task::Demo { rust_only, training } => demo(rust_only, training),
        Task::Aggregator { listen, roster, training } => {
            let listener = TcpListener::bind(&listen).map_err(|e| format!("{listen}: {e}"))?;
            let outcome =
                aggregator::run(&listener, &training.config(roster)?, &Control::default(), &|event| {
                    println!("{event}");
                })?;
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
