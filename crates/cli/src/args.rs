//! Arguments that several commands have.

use aludel_engine::approvals::ApprovalMode;

use crate::config::{Flag, ModelSection, Section, help};
use crate::context::CommandContext;
use crate::exit::usage;
use crate::turn::ModelAndApproval;
use crate::{approval, color, console, terminal, upstream};

/// A part of the configuration, if it was given.
pub(crate) fn flag(flag: &'static str, section: Section, key: &'static str, text: Option<&String>) -> Option<Flag> {
    text.map(|text| Flag { flag, section, key, text: text.clone() })
}

/// The model that is asked, and who allows its programs.
#[derive(Debug, clap::Args)]
pub(crate) struct ModelArgs {
    /// Name of the configured model to ask, or with --url, of another [default: the first]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Address of the model, for example http://localhost:11434/v1; the key of another url is not sent there
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Place of its key: env:NAME or file:PATH
    #[arg(long, value_name = "WHERE")]
    key: Option<String>,
    /// Ask before each program runs; without it, `approval.mode` of the configuration holds
    #[arg(long)]
    approve: bool,
    /// Go on with the last conversation and its files, which are kept for a day
    #[arg(long = "continue")]
    pub(crate) continues: bool,
}

impl ModelArgs {
    pub(crate) fn flags(&self) -> impl Iterator<Item = Flag> {
        let name = flag("--model", Section::Model, "name", self.model.as_ref());
        let url = flag("--url", Section::Model, "url", self.url.as_ref());
        let key = flag("--key", Section::Model, "key", self.key.as_ref());
        name.into_iter().chain(url).chain(key)
    }

    /// Builds the model of the command line, and prints its name to stderr.
    pub(crate) fn model_and_approval(&self, context: &CommandContext) -> anyhow::Result<ModelAndApproval> {
        let configured = context.config.approval.mode()?;
        let (approval, asked_by) =
            if self.approve { (ApprovalMode::Always, "--approve") } else { (configured, "approval.mode = \"always\"") };
        if matches!(approval, ApprovalMode::Always) && !approval::can_be_asked() {
            return Err(usage(format!(
                "{asked_by} needs a terminal to ask at; without one, no program could be allowed"
            )));
        }
        let Some(model) = context.config.models.first() else { return Err(usage("no model is configured")) };
        let asked = ModelAndApproval { model: upstream::first(&context.config.models, &context.host)?, approval };
        console::status(&color::faint(&describe(model)));
        Ok(asked)
    }
}

/// Properties of sandboxes that can be given for one command.
#[derive(Debug, clap::Args)]
pub(crate) struct SandboxOptions {
    #[arg(long, value_name = "NAME", help = help(Section::Sandbox, "template"))]
    template: Option<String>,
    #[arg(long, value_name = "TIME", help = help(Section::Sandbox, "timeout"))]
    timeout: Option<String>,
    #[arg(long, value_name = "SIZE", help = help(Section::Sandbox, "memory"))]
    memory: Option<String>,
    #[arg(long, value_name = "SIZE", help = help(Section::Sandbox, "disk"))]
    disk: Option<String>,
}

impl SandboxOptions {
    pub(crate) fn flags(&self) -> impl Iterator<Item = Flag> {
        let template = flag("--template", Section::Sandbox, "template", self.template.as_ref());
        let timeout = flag("--timeout", Section::Sandbox, "timeout", self.timeout.as_ref());
        let memory = flag("--memory", Section::Sandbox, "memory", self.memory.as_ref());
        let disk = flag("--disk", Section::Sandbox, "disk", self.disk.as_ref());
        [template, timeout, memory, disk].into_iter().flatten()
    }
}

/// A description of the model.
fn describe(model: &ModelSection) -> String {
    if model.is_demo() {
        "asking the demo model: a script that knows one analysis (see `aludel demo`), not a language model. \
         To ask a real one, give --model and --url, or a [[model]] in aludel.toml."
            .to_owned()
    } else {
        format!("asking {} at {}", terminal::name(&model.name), terminal::name(&model.url))
    }
}
