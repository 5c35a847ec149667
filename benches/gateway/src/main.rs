//! The two ends of the measurement that `run` makes: `upstream` is the model's server, `load` are the clients.
//!
//! Both are as plain as they can be, so that what is measured is what stands between them.

mod http;
mod load;
mod upstream;

use anyhow::bail;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("upstream") => upstream::serve().await,
        Some("load") => load::run().await,
        _ => bail!("usage: aludel-bench-gateway upstream | load; `benches/gateway/run` calls both"),
    }
}
