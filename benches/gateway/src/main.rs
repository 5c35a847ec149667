//! A scripted model's server that is faster than any gateway, and a load generator that counts every request. `benches/gateway/run` uses
//! both to measure gateways side by side.
#![forbid(unsafe_code)]

mod load;
mod upstream;
mod wire;

use clap::Parser;

#[derive(Debug, Parser)]
enum Command {
    /// Answer like a model; prints the port
    Upstream,
    /// Ask the same again and again; prints each request's microseconds
    Load(load::LoadArgs),
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match Command::parse() {
            Command::Upstream => upstream::serve().await,
            Command::Load(args) => load::run(&args).await,
        }
    })
}
