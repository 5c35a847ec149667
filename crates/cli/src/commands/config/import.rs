//! `aludel config import`: another program's configuration, in our words.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::Value;

use crate::console::{Console, Stream};
use crate::exit::{Exit, usage};

/// The largest file that is read, bytes.
const MAX_FILE: u64 = 4 << 20;
/// What the values of a file begin with that stand in the environment.
const IN_ENVIRONMENT: &str = "os.environ/";
/// Where providers are that need no `api_base`, and what they speak.
const PROVIDERS: [(&str, &str, &str); 12] = [
    ("openai", "chat", "https://api.openai.com/v1"),
    ("anthropic", "anthropic", "https://api.anthropic.com/v1"),
    ("gemini", "gemini", "https://generativelanguage.googleapis.com"),
    ("deepseek", "chat", "https://api.deepseek.com/v1"),
    ("groq", "chat", "https://api.groq.com/openai/v1"),
    ("mistral", "chat", "https://api.mistral.ai/v1"),
    ("openrouter", "chat", "https://openrouter.ai/api/v1"),
    ("together_ai", "chat", "https://api.together.xyz/v1"),
    ("fireworks_ai", "chat", "https://api.fireworks.ai/inference/v1"),
    ("xai", "chat", "https://api.x.ai/v1"),
    ("perplexity", "chat", "https://api.perplexity.ai"),
    ("cerebras", "chat", "https://api.cerebras.ai/v1"),
];
/// Providers whose servers speak Chat Completions below `/v1` of an address that the file gives.
const SELF_HOSTED: [&str; 7] =
    ["hosted_vllm", "vllm", "ollama", "ollama_chat", "lm_studio", "llamafile", "litellm_proxy"];

/// Translate another program's configuration into an aludel.toml, which is printed
///
/// What has no counterpart is told in comments. Keys that stand in the file itself are not copied: they are named after the model, to be
/// put into the environment.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// Whose configuration it is
    #[arg(value_enum)]
    from: Program,
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Program {
    /// The LiteLLM proxy
    Litellm,
}

#[derive(Deserialize)]
struct Litellm {
    #[serde(default)]
    model_list: Vec<Deployment>,
    #[serde(default)]
    sandbox_tools: Vec<Value>,
    #[serde(default)]
    litellm_settings: BTreeMap<String, Value>,
    #[serde(default)]
    router_settings: BTreeMap<String, Value>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Deployment {
    model_name: String,
    litellm_params: BTreeMap<String, Value>,
}

pub(super) fn run(args: &ImportArgs) -> anyhow::Result<Exit> {
    let Program::Litellm = args.from;
    let text = read(&args.file)?;
    let found: Litellm = serde_saphyr::from_str(&text)
        .map_err(|error| usage(format!("{} is no configuration of LiteLLM: {error}", args.file.display())))?;
    Console::new().line(Stream::Stdout, translate(found).trim_end())?;
    Ok(Exit::Success)
}

fn read(file: &Path) -> anyhow::Result<String> {
    let size = std::fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.len();
    if size > MAX_FILE {
        return Err(usage(format!("{} is larger than {} MB", file.display(), MAX_FILE >> 20)));
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

fn translate(found: Litellm) -> String {
    let Litellm { model_list, sandbox_tools, mut litellm_settings, mut router_settings, others } = found;
    let mut text = String::from(
        "# Translated from a configuration of LiteLLM. Every tool of the type code_interpreter works with all models below.\n",
    );
    let mut names: Vec<String> = Vec::new();
    // Deployments of one name share its load there; here the others step in for the first.
    let mut steps_in: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in [&mut litellm_settings, &mut router_settings] {
        for entry in source.remove("fallbacks").as_ref().and_then(Value::as_array).into_iter().flatten() {
            for (name, others) in entry.as_object().into_iter().flatten() {
                let others = others.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
                steps_in.entry(name.clone()).or_default().extend(others);
            }
        }
    }
    let mut models = Vec::new();
    for deployment in model_list {
        let first = deployment.model_name.clone();
        let mut name = first.clone();
        for number in 2.. {
            if !names.contains(&name) {
                break;
            }
            name = format!("{first}-{number}");
        }
        if name != first {
            steps_in.entry(first).or_default().push(name.clone());
        }
        names.push(name.clone());
        models.push((name, deployment.litellm_params));
    }
    for (name, parameters) in models {
        let fallback: Vec<&String> = steps_in
            .get(&name)
            .into_iter()
            .flatten()
            .filter(|other| names.contains(other) && **other != name)
            .collect();
        model(&name, parameters, &fallback, &mut text);
    }
    text.push('\n');
    if !sandbox_tools.is_empty() {
        text.push_str("# sandbox_tools: not needed. Programs run in sandboxes of this machine.\n");
    }
    for (section, settings) in [("litellm_settings", litellm_settings), ("router_settings", router_settings)] {
        for key in settings.keys() {
            match key.as_str() {
                "code_interpreter_interception_params" => {
                    text.push_str(
                        "# code_interpreter_interception_params: not needed. It is always on, for all models.\n",
                    );
                }
                "callbacks" => text
                    .push_str("# callbacks: code_interpreter_interception is built in; others have no counterpart.\n"),
                key => {
                    let _ = writeln!(text, "# {section}.{}: no counterpart.", one_line(key));
                }
            }
        }
    }
    for key in others.keys() {
        match key.as_str() {
            "general_settings" => {
                text.push_str(
                    "# general_settings: make API keys with `aludel keys create NAME` in place of a master_key.\n",
                );
            }
            key => {
                let _ = writeln!(text, "# {}: no counterpart.", one_line(key));
            }
        }
    }
    text
}

fn model(name: &str, mut parameters: BTreeMap<String, Value>, fallback: &[&String], text: &mut String) {
    let mut take = |key: &str| parameters.remove(key).and_then(|value| value.as_str().map(str::to_owned));
    let full = take("model").unwrap_or_default();
    let (provider, upstream_name) = full.split_once('/').unwrap_or(("openai", &full));
    let (base, key) = (take("api_base").or_else(|| take("base_url")), take("api_key"));
    let known = PROVIDERS.into_iter().find(|(known, ..)| *known == provider);
    let api = known.map_or("chat", |(_, api, _)| api);
    let url = match (base.as_deref().map(from_environment), known) {
        (Some(Ok(base)), _) if SELF_HOSTED.contains(&provider) && !base.trim_end_matches('/').ends_with("/v1") => {
            Some(format!("{}/v1", base.trim_end_matches('/')))
        }
        (Some(Ok(base)), _) => Some(base.to_owned()),
        (Some(Err(variable)), _) => {
            let _ = writeln!(
                text,
                "\n# The url of the next model stands in the variable {}; put it here.",
                one_line(variable)
            );
            None
        }
        (None, Some((_, _, url))) => Some(url.to_owned()),
        (None, None) => None,
    };
    let Some(url) = url else {
        let _ =
            writeln!(text, "\n# {}: where {} is, is not known here; give it a url:", one_line(name), one_line(&full));
        let _ = writeln!(text, "# [[model]]\n# name = {}\n# url = \"https://…/v1\"", quoted(name));
        return;
    };
    let _ = writeln!(text, "\n[[model]]\nname = {}\nurl = {}", quoted(name), quoted(&url));
    if api != "chat" {
        let _ = writeln!(text, "api = {}", quoted(api));
    }
    if upstream_name != name {
        let _ = writeln!(text, "upstream_name = {}", quoted(upstream_name));
    }
    match key.as_deref().map(from_environment) {
        Some(Err(variable)) => {
            let _ = writeln!(text, "key = {}", quoted(&format!("env:{variable}")));
        }
        Some(Ok(_)) => {
            let _ = writeln!(
                text,
                "key = {} # put the key of the old file into this variable",
                quoted(&format!("env:{}", variable(name, "KEY")))
            );
        }
        None if known.is_some() => {
            let usual = format!("{}_API_KEY", provider.to_uppercase());
            let _ = writeln!(text, "key = {}", quoted(&format!("env:{usual}")));
        }
        None => {}
    }
    if !fallback.is_empty() {
        let names: Vec<String> = fallback.iter().map(|name| quoted(name)).collect();
        let _ = writeln!(text, "fallback = [{}]", names.join(", "));
    }
    for key in ["timeout", "stream_timeout"] {
        if let Some(seconds) = parameters.remove(key).and_then(|value| value.as_f64()).filter(|seconds| *seconds >= 1.0)
        {
            let _ = writeln!(text, "idle_timeout = \"{}s\"", seconds.ceil());
            parameters.remove("stream_timeout");
        }
    }
    for (theirs, ours) in [("max_tokens", "max_output_tokens"), ("max_parallel_requests", "requests")] {
        if let Some(number @ 1..) = parameters.get(theirs).and_then(Value::as_u64) {
            parameters.remove(theirs);
            let _ = writeln!(text, "{ours} = {number}");
        }
    }
    let headers = parameters.get("extra_headers").and_then(Value::as_object).map(|headers| {
        let line = |(header, value): (&String, &Value)| {
            let source = match from_environment(value.as_str()?) {
                Err(variable) => format!("env:{variable}"),
                Ok(_) => format!("env:{}", variable(&format!("{name} {header}"), "HEADER")),
            };
            Some(format!("{} = {}", quoted(header), quoted(&source)))
        };
        headers.iter().filter_map(line).collect::<Vec<_>>().join(", ")
    });
    if let Some(headers) = headers {
        parameters.remove("extra_headers");
        let _ = writeln!(text, "headers = {{ {headers} }} # put the values of the old file into these variables");
    }
    for key in parameters.keys() {
        let _ = writeln!(text, "# {}: no counterpart.", one_line(key));
    }
}

/// The value, or the variable that holds it.
fn from_environment(value: &str) -> Result<&str, &str> {
    value.strip_prefix(IN_ENVIRONMENT).map_or(Ok(value), Err)
}

/// A name for the variable of something of a model's.
fn variable(model: &str, what: &str) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' };
    format!("{}_{what}", model.chars().map(plain).collect::<String>())
}

/// A text of TOML: its escapes are those of JSON.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// A text in a comment, which ends with the line.
fn one_line(text: &str) -> String {
    crate::terminal::excerpt(text, 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_with_the_interceptor_becomes_models_and_comments() {
        let text = r#"
model_list:
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY, rpm: 6, timeout: 90, max_tokens: 4000, max_parallel_requests: 3, extra_headers: {X-Team: sk-secret, X-Org: os.environ/ORG}}
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o-mini, api_key: sk-secret}
  - model_name: qwen
    litellm_params: {model: hosted_vllm/Qwen/Qwen3, api_base: "http://gpu:8000/"}
  - model_name: cloud
    litellm_params: {model: bedrock/x}
sandbox_tools:
  - {sandbox_tool_name: a, litellm_params: {sandbox_provider: e2b, api_key: sk-other-secret}}
litellm_settings:
  callbacks: ["code_interpreter_interception"]
  code_interpreter_interception_params: {enabled: true}
  fallbacks: [{"gpt-4o": ["qwen", "gone"]}]
general_settings: {master_key: sk-1234}
"#;
        let toml = translate(serde_saphyr::from_str(text).unwrap());
        assert!(!toml.contains("secret") && !toml.contains("sk-1234"), "{toml}");
        for line in [
            "name = \"gpt-4o\"\nurl = \"https://api.openai.com/v1\"\nkey = \"env:OPENAI_API_KEY\"\nfallback = [\"qwen\", \"gpt-4o-2\"]\nidle_timeout = \"90s\"\nmax_output_tokens = 4000\nrequests = 3\nheaders = { \"X-Org\" = \"env:ORG\", \"X-Team\" = \"env:GPT_4O_X_TEAM_HEADER\" } # put the values of the old file into these variables\n# rpm: no counterpart.",
            "name = \"gpt-4o-2\"\nurl = \"https://api.openai.com/v1\"\nupstream_name = \"gpt-4o-mini\"\nkey = \"env:GPT_4O_2_KEY\" #",
            "name = \"qwen\"\nurl = \"http://gpu:8000/v1\"\nupstream_name = \"Qwen/Qwen3\"\n",
            "# cloud: where bedrock/x is, is not known here",
            "# sandbox_tools: not needed",
            "aludel keys create",
        ] {
            assert!(toml.contains(line), "{line}\nis not in\n{toml}");
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("aludel.toml");
        std::fs::write(&file, &toml).unwrap();
        let surroundings = crate::config::Surroundings::made_up(directory.path(), &[("HOME", "/nowhere")]);
        let config = crate::config::load(&surroundings, Some(&file), &[]).unwrap();
        assert_eq!(
            config.models.iter().map(|model| &**model.name).collect::<Vec<_>>(),
            ["gpt-4o", "gpt-4o-2", "qwen", "demo"]
        );
    }
}
