//! `aludel template`: what sandboxes start from.

use aludel_agent::size;
use aludel_sandbox::template::{self, State};

use crate::config::Config;
use crate::engine;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
pub(crate) struct TemplateArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Build the default template, if it is missing
    Build {
        /// Build it anew even if it is there
        #[arg(long)]
        force: bool,
    },
    /// Tell what the default template holds
    Show,
    /// Remove templates that are no longer used
    Prune,
}

pub(crate) async fn run(arguments: &TemplateArguments, config: &Config) -> anyhow::Result<Exit> {
    match arguments.action {
        Action::Build { force } => {
            let template = engine::prepare(config, force).await?;
            println!("{}", template.root().display());
        }
        Action::Show => match template::state(&config.data) {
            State::Ready(template) => {
                println!(
                    "{}\nPython {}, {} on disk",
                    template.root().display(),
                    template.python_version(),
                    size(template.bytes())
                );
                for package in template.packages() {
                    println!("{} {}", package.name, package.version);
                }
            }
            State::Missing => println!("not built yet; `aludel template build` builds it"),
            State::Unbuildable(reason) => anyhow::bail!(reason),
        },
        Action::Prune => println!("{} removed", template::prune(&config.data)?),
    }
    Ok(Exit::Success)
}
