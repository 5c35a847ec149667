//! `aludel config import`: translation of another program's configuration.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Deserialize;
use serde_json::Value;

use crate::console::{self, Console, StandardStream};
use crate::exit::{Exit, usage};

/// The largest file that is read, bytes.
const MAX_FILE: u64 = 4 << 20;
/// Prefix of values that stand in the environment.
const IN_ENVIRONMENT: &str = "os.environ/";
/// Addresses and protocols of providers that need no `api_base`.
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
/// Providers whose servers have Chat Completions below `/v1` of the file's address, or of this one.
const SELF_HOSTED: [(&str, Option<&str>); 7] = [
    ("hosted_vllm", None),
    ("vllm", None),
    ("ollama", Some("http://localhost:11434")),
    ("ollama_chat", Some("http://localhost:11434")),
    ("lm_studio", None),
    ("llamafile", None),
    ("litellm_proxy", None),
];
/// Values that files hold as the key of a server that wants none.
const NO_KEYS: [&str; 6] = ["", "none", "null", "empty", "no-key", "not-needed"];

/// Translate another program's configuration into an aludel.toml, which is printed
///
/// Settings without a counterpart are told in comments. Keys that stand in the file itself are not copied: they are named after the model,
/// to be put into the environment.
#[derive(Debug, Args)]
pub(super) struct ConfigImportArgs {
    /// Program whose file it is
    #[arg(value_enum)]
    from: ImportedProgram,
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ImportedProgram {
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

#[derive(Clone, Deserialize)]
struct Deployment {
    model_name: String,
    litellm_params: BTreeMap<String, Value>,
    #[serde(default)]
    model_info: BTreeMap<String, Value>,
}

/// A deployment, of which it is known where it is or not.
struct LocatedDeployment {
    name: String,
    full: String,
    api: &'static str,
    /// Its address, or the reason for which that is not known.
    url: Result<String, String>,
    parameters: BTreeMap<String, Value>,
    vision: bool,
}

pub(super) fn run(args: &ConfigImportArgs) -> anyhow::Result<Exit> {
    let ImportedProgram::Litellm = args.from;
    let text = read(&args.file)?;
    let found: Litellm = serde_saphyr::from_str(&text).map_err(|error| {
        // The rest quotes lines of the file, which may contain keys.
        let error = error.to_string();
        let why = error.lines().next().unwrap_or_default();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        usage(format!("{} is no configuration of LiteLLM: {why}", args.file.display()))
    })?;
    if found.model_list.is_empty() {
        console::warn(&format!("{} has no models (model_list)", args.file.display()));
    }
    Console::new().line(StandardStream::Stdout, translate(found).trim_end())?;
    Ok(Exit::Success)
}

fn read(file: &Path) -> anyhow::Result<String> {
    let cannot = |error: std::io::Error| usage(format!("cannot read {}: {error}", file.display()));
    let size = std::fs::metadata(file).map_err(cannot)?.len();
    if size > MAX_FILE {
        return Err(usage(format!("{} is larger than {} MB", file.display(), MAX_FILE >> 20)));
    }
    std::fs::read_to_string(file).map_err(cannot)
}

fn translate(found: Litellm) -> String {
    let Litellm { mut model_list, sandbox_tools, mut litellm_settings, mut router_settings, others } = found;
    for source in [&mut litellm_settings, &mut router_settings] {
        add_aliases(&mut model_list, source.remove("model_group_alias").as_ref());
    }
    // There, deployments of one name share its load; here they are fallbacks of the first, before models of other names.
    let mut steps_in: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut usual = Vec::new();
    for source in [&mut litellm_settings, &mut router_settings] {
        for entry in source.remove("fallbacks").as_ref().and_then(Value::as_array).into_iter().flatten() {
            for (name, others) in entry.as_object().into_iter().flatten() {
                steps_in.entry(name.clone()).or_default().extend(texts(Some(others)));
            }
        }
        usual.extend(texts(source.remove("default_fallbacks").as_ref()));
    }
    let (mut models, wildcards): (Vec<LocatedDeployment>, Vec<LocatedDeployment>) =
        model_list.into_iter().map(look).partition(|model| !model.name.contains('*') && !model.full.contains('*'));
    let mut names: Vec<String> = Vec::new();
    let mut siblings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for model in models.iter_mut().filter(|model| model.url.is_ok()) {
        let first = model.name.clone();
        for number in 2.. {
            if !names.contains(&model.name) {
                break;
            }
            model.name = format!("{first}-{number}");
        }
        if model.name != first {
            siblings.entry(first).or_default().push(model.name.clone());
        }
        names.push(model.name.clone());
    }
    let mut variables = Vec::new();
    let mut text = String::new();
    for model in models {
        let others = steps_in.get(&model.name).unwrap_or(&usual);
        let fallback = siblings.get(&model.name).into_iter().flatten().chain(others);
        let mut fallback: Vec<&String> =
            fallback.filter(|other| names.contains(other) && **other != model.name).collect();
        let mut seen = HashSet::new();
        fallback.retain(|name| seen.insert(*name));
        write_model(model, &fallback, &mut variables, &mut text);
    }
    for model in wildcards {
        let name = one_line(&model.name);
        let _ =
            writeln!(text, "\n# {name}: every model has a name here; write a [[model]] for each that is asked for.");
    }
    let callbacks: Vec<String> = ["callbacks", "success_callback", "failure_callback"]
        .into_iter()
        .flat_map(|key| texts(litellm_settings.remove(key).as_ref()))
        .collect();
    text.push('\n');
    write_rest(&callbacks, &sandbox_tools, [&litellm_settings, &router_settings], &others, &mut text);
    let mut head = String::from(
        "# Translated from a configuration of LiteLLM. Every tool of the type code_interpreter works with all models below.\n",
    );
    let mut seen = HashSet::new();
    variables.retain(|variable| seen.insert(variable.clone()));
    if !variables.is_empty() {
        let _ = writeln!(head, "# `aludel serve` wants these variables: {}", variables.join(", "));
    }
    head + &text
}

/// Adds deployments under their aliases: an alias is a name, or an object with one.
fn add_aliases(model_list: &mut Vec<Deployment>, aliases: Option<&Value>) {
    let aliases = aliases.and_then(Value::as_object);
    for (alias, of) in aliases.into_iter().flatten() {
        let of = of.as_str().or_else(|| of.get("model")?.as_str());
        let known = model_list.iter().filter(|model| Some(model.model_name.as_str()) == of);
        let again: Vec<Deployment> =
            known.map(|model| Deployment { model_name: alias.clone(), ..model.clone() }).collect();
        model_list.extend(again);
    }
}

/// The texts of a list, or a single text.
fn texts(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

fn write_rest(
    callbacks: &[String],
    sandbox_tools: &[Value],
    [litellm_settings, router_settings]: [&BTreeMap<String, Value>; 2],
    others: &BTreeMap<String, Value>,
    text: &mut String,
) {
    if !sandbox_tools.is_empty() {
        text.push_str("# sandbox_tools: not needed. Programs run in sandboxes of this machine.\n");
    }
    for callback in callbacks {
        let _ = match callback.as_str() {
            "code_interpreter_interception" => {
                writeln!(text, "# callbacks: code_interpreter_interception is built in.")
            }
            "prometheus" => writeln!(text, "# callbacks: for prometheus, write metrics = true below [server]."),
            "otel" => {
                writeln!(text, "# callbacks: for otel, write traces = \"http://…:4318\" below [server].")
            }
            other => writeln!(text, "# callbacks: {} has no counterpart.", one_line(other)),
        };
    }
    for (section, settings) in [("litellm_settings", litellm_settings), ("router_settings", router_settings)] {
        for key in settings.keys() {
            let _ = match key.as_str() {
                "code_interpreter_interception_params" => writeln!(
                    text,
                    "# code_interpreter_interception_params: not needed. It is always on, for all models."
                ),
                key => writeln!(text, "# {section}.{}: no counterpart.", one_line(key)),
            };
        }
    }
    for key in others.keys() {
        let _ = match key.as_str() {
            "general_settings" => writeln!(
                text,
                "# general_settings: make API keys with `aludel keys create NAME` in place of a master_key; with --key it takes \
                 those that clients have."
            ),
            "include" => writeln!(text, "# include: import the files that it names, too; their models are not here."),
            key => writeln!(text, "# {}: no counterpart.", one_line(key)),
        };
    }
}

fn look(deployment: Deployment) -> LocatedDeployment {
    let Deployment { model_name, litellm_params: mut parameters, model_info } = deployment;
    let mut take = |key: &str| parameters.remove(key).and_then(|value| value.as_str().map(str::to_owned));
    let full = with_provider(take("model").unwrap_or_default());
    let base = take("api_base").or_else(|| take("base_url"));
    let (full, api) = match full.split_once("/responses/") {
        Some((provider, name)) => (format!("{provider}/{name}"), "responses"),
        None => {
            let known = PROVIDERS.into_iter().find(|(known, ..)| *known == provider(&full).0);
            let api = known.map_or("chat", |(_, api, _)| api);
            (full, api)
        }
    };
    let (provider, _) = provider(&full);
    if provider == "azure" {
        // The versioned API is the one below v1.
        parameters.remove("api_version");
    }
    let url = match base.as_deref().map(from_environment) {
        Some(Ok(base)) => Ok(below(provider, base.trim_end_matches('/'))),
        Some(Err(variable)) => Err(format!("its url stands in the variable {}; put it here", one_line(variable))),
        None => {
            let usual = SELF_HOSTED.into_iter().find(|(known, _)| *known == provider).and_then(|(_, url)| url);
            let usual = usual.map(|url| below(provider, url));
            let known = PROVIDERS.into_iter().find(|(known, ..)| *known == provider).map(|(_, _, url)| url.to_owned());
            usual.or(known).ok_or_else(|| format!("where {} is, is not known here; give it a url", one_line(&full)))
        }
    };
    let vision = model_info.get("supports_vision").and_then(Value::as_bool) == Some(true);
    LocatedDeployment { name: model_name, full, api, url, parameters, vision }
}

/// A model's name with its provider, which may be implied by the name.
fn with_provider(full: String) -> String {
    let tells = [("claude", "anthropic"), ("gemini-", "vertex_ai"), ("command", "cohere")];
    let provider = tells.into_iter().find(|(begins, _)| full.starts_with(begins));
    match provider {
        Some((_, provider)) if !full.contains('/') => format!("{provider}/{full}"),
        _ => full,
    }
}

/// Splits `provider/name` into the provider and the name of the model.
fn provider(full: &str) -> (&str, &str) {
    full.split_once('/').unwrap_or(("openai", full))
}

/// Returns the address of a provider's API, from a base in the usual form without the path.
fn below(provider: &str, base: &str) -> String {
    match provider {
        "azure" => {
            let whole = format!("{base}/");
            format!("{}/openai/v1", whole.split_once("/openai/").map_or(base, |(host, _)| host))
        }
        "anthropic" => format!("{}/v1", base.trim_end_matches("/messages").trim_end_matches("/v1")),
        _ if SELF_HOSTED.iter().any(|(known, _)| *known == provider) => {
            format!("{}/v1", base.trim_end_matches("/v1"))
        }
        _ => base.to_owned(),
    }
}

/// Writes a model, as a comment if its address is unknown.
fn write_model(model: LocatedDeployment, fallback: &[&String], variables: &mut Vec<String>, whole: &mut String) {
    let (name, url) = (model.name.clone(), model.url.clone());
    let (text, wanted) = model_table(model, fallback);
    whole.push('\n');
    match url {
        Ok(_) => {
            variables.extend(wanted.iter().map(|variable| one_line(variable)));
            whole.push_str(&text);
        }
        Err(why) => {
            let _ = writeln!(whole, "# {}: {why}:", one_line(&name));
            for line in text.lines() {
                let _ = writeln!(whole, "# {}", line.trim_start_matches("# "));
            }
        }
    }
}

/// The table of a model, and the variables that it wants.
fn model_table(model: LocatedDeployment, fallback: &[&String]) -> (String, Vec<String>) {
    let LocatedDeployment { name, full, api, url, mut parameters, vision } = model;
    let (provider, upstream_name) = provider(&full);
    let known = PROVIDERS.into_iter().find(|(known, ..)| *known == provider);
    let mut wanted = Vec::new();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "[[model]]\nname = {}\nurl = {}",
        quoted(&name),
        quoted(url.as_deref().unwrap_or(if provider == "azure" {
            "https://….openai.azure.com/openai/v1"
        } else {
            "https://…/v1"
        }))
    );
    if api != "chat" {
        let _ = writeln!(text, "api = {}", quoted(api));
    }
    if upstream_name != name {
        let _ = writeln!(text, "upstream_name = {}", quoted(upstream_name));
    }
    let key = parameters.remove("api_key").and_then(|key| key.as_str().map(str::to_owned));
    let (key, advice) = match key.as_deref().map(from_environment) {
        Some(Err(variable)) => (Some(variable.to_owned()), ""),
        Some(Ok(key)) if NO_KEYS.contains(&key.to_lowercase().as_str()) => (None, ""),
        Some(Ok(_)) => (Some(variable(&name, "KEY")), " # put the key of the old file into this variable"),
        None => (known.map(|_| format!("{}_API_KEY", provider.to_uppercase())), ""),
    };
    if let Some(key) = key {
        let _ = writeln!(text, "key = {}{advice}", quoted(&format!("env:{key}")));
        wanted.push(key);
    }
    if !fallback.is_empty() {
        let names: Vec<String> = fallback.iter().map(|name| quoted(name)).collect();
        let _ = writeln!(text, "fallback = [{}]", names.join(", "));
    }
    if vision {
        text.push_str("vision = true\n");
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
    if let Some(Value::Object(headers)) = parameters.remove("extra_headers") {
        let line = |(header, value): (&String, &Value)| {
            let source = match from_environment(value.as_str()?) {
                Err(variable) => variable.to_owned(),
                Ok(_) => variable(&format!("{name} {header}"), "HEADER"),
            };
            let line = format!("{} = {}", quoted(header), quoted(&format!("env:{source}")));
            wanted.push(source);
            Some(line)
        };
        let headers = headers.iter().filter_map(line).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "headers = {{ {headers} }} # put the values of the old file into these variables");
    }
    for key in parameters.keys() {
        let _ = writeln!(text, "# {}: no counterpart.", one_line(key));
    }
    (text, wanted)
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
            "name = \"gpt-4o\"\nurl = \"https://api.openai.com/v1\"\nkey = \"env:OPENAI_API_KEY\"\nfallback = [\"gpt-4o-2\", \"qwen\"]\nidle_timeout = \"90s\"\nmax_output_tokens = 4000\nrequests = 3\nheaders = { \"X-Org\" = \"env:ORG\", \"X-Team\" = \"env:GPT_4O_X_TEAM_HEADER\" } # put the values of the old file into these variables\n# rpm: no counterpart.",
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
        let host = crate::config::HostEnvironment::made_up(directory.path(), &[("HOME", "/nowhere")]);
        let config = crate::config::load(&host, Some(&file), &[]).unwrap();
        assert_eq!(
            config.models.iter().map(|model| &**model.name).collect::<Vec<_>>(),
            ["gpt-4o", "gpt-4o-2", "qwen", "demo"]
        );
    }

    #[test]
    fn what_a_provider_calls_itself_is_found_and_what_is_not_known_is_a_comment() {
        let text = r#"
model_list:
  - model_name: main
    litellm_params: {model: azure/ours, api_base: os.environ/AZURE, api_key: os.environ/AZURE_KEY, api_version: "2024-10-21"}
  - model_name: main
    litellm_params: {model: azure/ours, api_base: "https://openai-x.openai.azure.com/", api_key: os.environ/AZURE_KEY, api_version: "2024-10-21"}
    model_info: {supports_vision: true}
  - model_name: main
    litellm_params: {model: ollama_chat/llama3.1}
    model_info:
  - model_name: claude
    litellm_params: {model: anthropic/claude, api_base: "https://api.anthropic.com"}
  - model_name: local
    litellm_params: {model: openai/x, api_base: "http://x/v1", api_key: None}
  - model_name: "openai/*"
    litellm_params: {model: "openai/*"}
litellm_settings:
  success_callback: ["prometheus", "langfuse"]
  fallbacks: [{"main": ["claude"]}]
  default_fallbacks: ["main"]
router_settings:
general_settings:
"#;
        let toml = translate(serde_saphyr::from_str(text).unwrap());
        for line in [
            "wants these variables: AZURE_KEY, ANTHROPIC_API_KEY\n",
            "# main: its url stands in the variable AZURE; put it here:\n# [[model]]\n# name = \"main\"\n",
            "\n[[model]]\nname = \"main\"\nurl = \"https://openai-x.openai.azure.com/openai/v1\"\nupstream_name = \"ours\"\nkey = \"env:AZURE_KEY\"\nfallback = [\"main-2\", \"claude\"]\nvision = true\n\n",
            "name = \"main-2\"\nurl = \"http://localhost:11434/v1\"\nupstream_name = \"llama3.1\"\nfallback = [\"main\"]\n",
            "url = \"https://api.anthropic.com/v1\"\n",
            "name = \"local\"\nurl = \"http://x/v1\"\nupstream_name = \"x\"\nfallback = [\"main\"]\n",
            "# openai/*: every model has a name here",
            "for prometheus, write metrics = true",
            "# callbacks: langfuse has no counterpart",
        ] {
            assert!(toml.contains(line), "{line}\nis not in\n{toml}");
        }
    }

    #[test]
    fn other_names_and_what_names_tell_are_understood() {
        let text = r#"
model_list:
  - model_name: gpt-4o
    litellm_params: {model: openai/gpt-4o, api_key: os.environ/OPENAI_API_KEY}
  - model_name: pro
    litellm_params: {model: openai/responses/gpt-5-pro, api_key: os.environ/OPENAI_API_KEY}
  - model_name: sonnet
    litellm_params: {model: claude-sonnet-4-5}
  - model_name: flash
    litellm_params: {model: gemini-2.5-flash}
router_settings:
  model_group_alias: {"gpt-4": "gpt-4o", "hidden": {"model": "pro", "hidden": true}, "gone": "no-such"}
"#;
        let toml = translate(serde_saphyr::from_str(text).unwrap());
        for line in [
            "name = \"pro\"\nurl = \"https://api.openai.com/v1\"\napi = \"responses\"\nupstream_name = \"gpt-5-pro\"\nkey = \"env:OPENAI_API_KEY\"\n",
            "name = \"sonnet\"\nurl = \"https://api.anthropic.com/v1\"\napi = \"anthropic\"\nupstream_name = \"claude-sonnet-4-5\"\nkey = \"env:ANTHROPIC_API_KEY\"\n",
            "# flash: where vertex_ai/gemini-2.5-flash is, is not known here",
            "name = \"gpt-4\"\nurl = \"https://api.openai.com/v1\"\nupstream_name = \"gpt-4o\"\n",
            "name = \"hidden\"\nurl = \"https://api.openai.com/v1\"\napi = \"responses\"\nupstream_name = \"gpt-5-pro\"\n",
        ] {
            assert!(toml.contains(line), "{line}\nis not in\n{toml}");
        }
        assert!(!toml.contains("no-such") && !toml.contains("model_group_alias"), "{toml}");
    }
}
