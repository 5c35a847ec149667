//! `aludel demo`: the main job on real input, without any model at hand.

mod sample;

use std::path::PathBuf;

use aludel_agent::CodeInterpreter;
use aludel_session::Session;
use anyhow::Context;

use super::ask::{Conversation, DEMO_PACE, INSTRUCTIONS, builder_for, package_names};
use super::run::add_files;
use crate::config::Config;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::paint;

const QUESTION: &str = "Analyze the attached Q1 2026 sales data. Calculate monthly dynamics, top 10 products, conversion funnel. Create PDF \
report with visualizations.";

#[derive(Debug, clap::Args)]
pub(crate) struct DemoArguments {
    /// Where the data, the report and the transcript go
    #[arg(long, value_name = "DIR", default_value = "aludel-demo")]
    out: PathBuf,
}

pub(crate) async fn run(arguments: &DemoArguments, config: &Config) -> anyhow::Result<Exit> {
    let out = &arguments.out;
    std::fs::create_dir_all(out).with_context(|| format!("make {}", out.display()))?;
    let csv = out.join("sales_q1_2026.csv");
    sample::write(&csv).with_context(|| format!("write {}", csv.display()))?;
    let engine = Engine::start(config, 0).await?;
    let session = Session::create(engine.backend.clone(), config.limits.clone()).await?;
    add_files(&session, std::slice::from_ref(&csv)).await?;

    eprintln!("{} {}", paint::strong("Data:    "), csv.display());
    eprintln!("{} {QUESTION}", paint::strong("Question:"));
    eprintln!(
        "{} demo, which is scripted: it writes the same programs every time. The sandbox, the loop and the data are real.\n",
        paint::strong("Model:   ")
    );

    let model = config.model(Some("demo"))?;
    let interpreter = CodeInterpreter::new(session.clone()).packages(package_names(&engine));
    let agent = builder_for(&model, DEMO_PACE)?.instructions(INSTRUCTIONS).code_interpreter(interpreter).build();
    let conversation = Conversation { question: QUESTION, model: "demo (scripted)", out: Some(out), json: false };
    let result = conversation.hold(&agent, &session).await;
    session.close().await?;
    engine.backend.shutdown().await;
    let exit = result?;
    if exit == Exit::Success {
        eprintln!("\nOpen {}. Then try:", out.join("report.pdf").display());
        eprintln!("  aludel run -c 'import pandas as pd; print(pd.__version__)'");
        eprintln!(
            "  aludel ask \"What is in this file?\" --file data.csv --url http://localhost:11434/v1 --model MODEL"
        );
        eprintln!("  aludel doctor");
    }
    Ok(exit)
}
