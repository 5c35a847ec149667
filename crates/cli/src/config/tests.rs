//! The three layers together.

use std::path::PathBuf;

use super::*;

/// A home directory for a test, with a configuration file in the working directory.
struct TestHome(tempfile::TempDir);

impl TestHome {
    fn with(text: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("aludel.toml"), text).unwrap();
        Self(home)
    }

    fn load(&self, variables: &[(&str, &str)], flags: &[Flag]) -> Result<Config, ConfigError> {
        let home = self.0.path().to_str().unwrap();
        let variables: Vec<_> = variables.iter().copied().chain([("HOME", home)]).collect();
        load(&HostEnvironment::made_up(self.0.path(), &variables), None, flags)
    }

    /// The error's text, with the directory taken out.
    fn error(&self) -> String {
        self.load(&[], &[]).unwrap_err().to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

fn flag(flag: &'static str, section: Section, key: &'static str, text: &str) -> Flag {
    Flag { flag, section, key, text: text.to_owned() }
}

fn shown(config: &Config, key: &str) -> (String, String) {
    let entries = config.entries();
    let entry = entries.iter().find(|entry| entry.key == key).unwrap_or_else(|| panic!("no {key}"));
    let origin = match &entry.origin {
        ValueOrigin::File { line, .. } => format!("file:{line}"),
        other => other.to_string(),
    };
    (entry.value.clone(), origin)
}

#[test]
fn nothing_has_to_be_configured() {
    let home = TestHome::with("");
    let config = home.load(&[], &[]).unwrap();
    assert_eq!(**config.server.data, home.0.path().join(".local/share/aludel"));
    assert_eq!(shown(&config, "sandbox.memory"), ("1g".into(), "default".into()));
    assert_eq!(config.models.len(), 1);
    assert!(config.models[0].is_demo());
    let limits = config.sandbox.limits();
    assert_eq!(limits, aludel_sandbox::Limits { file_size: limits.disk, ..aludel_sandbox::Limits::default() });
}

#[test]
fn layers_lie_over_one_another() {
    let home = TestHome::with("[sandbox]\nmemory = '2g'\ntimeout = '1m'\nidle = '5m'\n");
    let variables =
        [("ALUDEL_SANDBOX_TIMEOUT", "2m"), ("ALUDEL_SANDBOX_IDLE", "6m"), ("ALUDEL_SERVICE_HOST", "10.0.0.1")];
    let config = home.load(&variables, &[flag("--timeout", Section::Sandbox, "timeout", "90s")]).unwrap();
    assert_eq!(shown(&config, "sandbox.memory"), ("2g".into(), "file:2".into()));
    assert_eq!(shown(&config, "sandbox.timeout"), ("90s".into(), "--timeout".into()));
    assert_eq!(shown(&config, "sandbox.idle"), ("6m".into(), "$ALUDEL_SANDBOX_IDLE".into()));
}

/// A file with a value for every key that is not its default.
const EVERY_KEY: &str = r#"
[server]
listen = "0.0.0.0:80"
data = "state"
containers = 8
requests = 16
requests_per_key = 4
storage = "1t"
metrics = true
log = "json"
log_contents = true
traces = "http://127.0.0.1:4318"
url = "https://aludel.example.com"
mcp_return_after = "20s"
run_lifetime = "1h"
origins = ["https://app.example.com", "http://localhost:3000"]
socket = false
[sandbox]
backend = "local"
template = "ml"
templates = ["geo", "bio"]
shared = "/srv/aludel"
key_templates = { key_1 = "ml" }
env = { REGION = "north: all" }
require = "strict"
memory = "512m"
timeout = "30s"
idle = "1h"
answers = "2m"
pool = 0
disk = "400m"
cpus = 1.5
processes = 64
output = "1m"
cpu_time = "10s"
fresh = true
hash_seed = 7
max_memory = "4g"
linger = "30s"
lifetime = "2h"
keep = "7d"
[sandbox.docker]
image = "registry.example.com/data:1"
runtime = "runsc"
host = "unix:///run/podman/podman.sock"
[sandbox.e2b]
key = "env:THE_KEY"
domain = "sandboxes.example.com"
url = "https://api.example.com"
sandbox_url = "https://sandbox.example.com"
template = "data"
[sandbox.opensandbox]
url = "https://opensandbox.example.com"
key = "env:THE_KEY"
image = "data:1"
network = "default"
use_server_proxy = true
[approval]
mode = "always"
rules = "rules.toml"
timeout = "1h"
on_timeout = "allow"
decided_by = "key"
webhook = "https://example.com/hook"
webhook_secret = "env:THE_SECRET"
[[model]]
name = "gpt-5"
url = "https://example.com/v1"
api = "chat"
key = "env:THE_KEY"
upstream_name = "gpt-5-2026-01"
vision = true
function_calling = false
idle_timeout = "5m"
fallback = ["local", "demo"]
headers = { X-Team = "env:TEAM", X-Org = "an org, of words" }
max_output_tokens = 8_192
requests = 16
code_interpreter = "output"
template = "geo"
[[model]]
name = "local"
url = "http://127.0.0.1:11434/v1"
key = "file:secrets/local"
"#;

#[test]
fn every_key_is_understood() {
    let home = TestHome::with(EVERY_KEY);
    let last_line = |beginning: &str| {
        let lines = EVERY_KEY.lines().zip(1..).filter(|(line, _)| line.starts_with(beginning));
        format!("file:{}", lines.last().unwrap().1)
    };
    let config = home.load(&[("THE_KEY", "sk-1")], &[]).unwrap();
    let defaults =
        config.entries().into_iter().filter(|entry| entry.origin == ValueOrigin::Default).map(|entry| entry.key);
    let left: Vec<_> =
        defaults.filter(|key| !key.starts_with("model.local") && !key.starts_with("model.demo")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(**config.server.data, home.0.path().join("state"));
    assert_eq!(shown(&config, "server.origins").0, "https://app.example.com, http://localhost:3000");
    assert_eq!(shown(&config, "model.gpt-5.key"), ("env:THE_KEY".into(), last_line("key = \"env:THE_KEY\"")));
    let secrets = home.0.path().join("secrets/local");
    assert_eq!(shown(&config, "model.local.key").0, format!("file:{}", secrets.display()));
    assert_eq!(shown(&config, "model.local.upstream_name"), ("local".into(), "default".into()));
    let headers = ("X-Org: (hidden), X-Team: env:TEAM".into(), last_line("headers = "));
    assert_eq!(shown(&config, "model.gpt-5.headers"), headers);
    assert_eq!(config.models.len(), 3);
    assert!(config.warnings.is_empty());
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (text, words) in [
        ("[sandbox]\nmemroy = '1g'", "aludel.toml:2: there is no `sandbox.memroy`; did you mean `memory`?"),
        ("[sandbx]", "aludel.toml:1: there is no `sandbx`; did you mean `sandbox`?"),
        ("memory = '1g'", "aludel.toml:1: there is no `memory`; did you mean `sandbox.memory`?"),
        ("[colours]", "aludel.toml:1: there is no `colours`; known are: server, sandbox, approval, model"),
        (
            "\n[sandbox]\nmemory = 512",
            "aludel.toml:3: sandbox.memory = \"512\" has no unit; a size is written like 512m or 2g",
        ),
        ("[sandbox]\nmemory = '1m'", "too little for an interpreter; at least 64m"),
        ("[sandbox]\ntimeout = '0s'", "sandbox.timeout = \"0s\" is no time at all"),
        (
            "[sandbox]\nmemory = '1g'\ndisk = '2g'",
            "aludel.toml:3: sandbox.disk = \"2g\" is more than sandbox.memory (1g), and files are kept",
        ),
        ("[sandbox]\ncpus = 0", "is not a number of cores"),
        ("[server]\nlog = 'loud'", "aludel.toml:2: server.log = \"loud\" is none of: text, json, off"),
        ("[server]\nmetrics = 'yes'", "aludel.toml:2: server.metrics = \"yes\" is neither true nor false"),
        ("[server]\ntraces = 'collector:4318'", "is neither off nor an address like http://127.0.0.1:4318"),
        ("[sandbox]\npool = -1", "sandbox.pool = \"-1\" is not a number from 0 to 256"),
        ("[sandbox]\nbackend = 'cloud'", "is none of: auto, local, docker, e2b, opensandbox"),
        ("[sandbox.docker]\nimge = 'a'", "aludel.toml:2: there is no `sandbox.docker.imge`; did you mean"),
        ("[server]\nlisten = '8080'", "is not an address and a port, like 127.0.0.1:8080"),
        ("[server]\ndata = '~/aludel'", "begins with ~"),
        ("[server]\ndata = ['a']", "aludel.toml:2: `data` is of type array, but should be one value"),
        (
            "[model]\nname = 'a'",
            "aludel.toml:1: `model` is of type table, but should be a list of tables: write [[model]]",
        ),
        ("sandbox = 1", "`sandbox` is of type integer, but should be a table"),
        (
            "[[model]]\nname = 'a'\nurl = 'http://a/v1'\n[[model]]\nurl = 'http://b/v1'",
            "aludel.toml:5: a [[model]] needs a name",
        ),
        ("\n[[model]]", "aludel.toml:2: a [[model]] needs a name"),
        ("[[model]]\nname = 'a'", "aludel.toml:2: the model `a` needs a url"),
        ("[[model]]\nname = 'a'\nurl = 'a.example'", "does not begin with http:// or https://"),
        (
            "[[model]]\nname = 'a'\napi = 'soap'",
            "aludel.toml:3: model.api = \"soap\" is none of: chat, responses, anthropic, gemini",
        ),
        (
            "[[model]]\nheaders = ['a']",
            "aludel.toml:2: `headers` is of type array, but should be a table of single values",
        ),
        (
            "[[model]]\nheaders = { 'X Y' = 'secret' }",
            "aludel.toml:2: model.headers needs names of headers; write headers =",
        ),
        ("[[model]]\nheaders = { X = '' }", "aludel.toml:2: model.headers.X is empty; write env:NAME or file:PATH"),
        ("[[model]]\nrequests = 0", "model.requests = \"0\" is no whole number from 1 on"),
        ("[[model]]\nname = 'a'\nvision = 'yes'", "model.vision = \"yes\" is neither true nor false"),
        ("[[model]]\nname = 'demo'\n[[model]]\nname = 'demo'", "aludel.toml:4: the model `demo` is there twice"),
        (
            "[[model]]\nname = 'a'\nurl = 'http://a/v1'\nfallback = ['b']",
            "aludel.toml:4: the model `a` cannot fall back to `b`: there is no other model of that name",
        ),
        ("[[model]]\nname = 'a'\nfallback = [['b']]", "`fallback` is of type array, but should be a list"),
        ("[approval]\nmode = 'sometimes'", "is none of: never, always, rules"),
        ("[approval]\non_timeout = 'wait'", "is none of: refuse, allow"),
        ("[approval]\ndecided_by = 'me'", "is none of: operator, key"),
        ("[[model]]\nkey = 'env:'", "aludel.toml:2: model.key names no variable; write env:NAME"),
        ("[sandbox\n", "aludel.toml:1: this is not TOML"),
        ("[sandbox]\nmemory = '1g'\nmemory = '2g'", "aludel.toml:3: this is not TOML: duplicate key"),
    ] {
        let error = TestHome::with(text).error();
        assert!(error.contains(words), "{text}\n  says:  {error}\n  lacks: {words}");
    }
}

#[test]
fn a_misspelt_variable_is_an_error() {
    let home = TestHome::with("");
    for (name, nearest) in
        [("ALUDEL_SANDBOX_MEMROY", "ALUDEL_SANDBOX_MEMORY"), ("ALUDEL_SANBOX_MEMORY", "ALUDEL_SANDBOX_MEMORY")]
    {
        let error = home.load(&[(name, "1g")], &[]).unwrap_err().to_string();
        assert_eq!(error, format!("${name}: there is no `{name}`; did you mean `{nearest}`?"));
    }
}

#[test]
fn a_file_that_was_asked_for_must_be_there() {
    let home = TestHome::with("");
    let host = HostEnvironment::made_up(home.0.path(), &[]);
    let error = load(&host, Some(&PathBuf::from("/nowhere/aludel.toml")), &[]).unwrap_err();
    assert!(matches!(error, ConfigError::Unreadable { .. }));
}

#[test]
fn without_a_home_the_data_needs_a_place() {
    let home = TestHome::with("");
    let host = HostEnvironment::made_up(home.0.path(), &[]);
    assert!(matches!(load(&host, None, &[]), Err(ConfigError::NoHome)));
    let data = [flag("--data", Section::Server, "data", "/srv/aludel")];
    assert_eq!(**load(&host, None, &data).unwrap().server.data, PathBuf::from("/srv/aludel"));
}

const TWO_MODELS: &str = "[[model]]\nname = 'a'\nurl = 'http://a/v1'\nkey = 'env:A'\n[[model]]\nname = 'b'\nurl = 'http://b/v1'\nkey = 'sk-literal'\n";

/// The models' names, and url and key of the first.
fn models(config: &Config) -> (Vec<&str>, &str, String) {
    let names = config.models.iter().map(|model| model.name.as_str()).collect();
    let first = &config.models[0];
    (names, first.url.as_str(), if first.is_demo() { String::new() } else { first.key.to_string() })
}

#[test]
fn a_flag_chooses_or_changes_a_model() {
    let home = TestHome::with(TWO_MODELS);
    let model = |key, text| flag("--x", Section::Model, key, text);
    for (flags, expected) in [
        (vec![], (vec!["a", "b", "demo"], "http://a/v1", "env:A")),
        (vec![model("name", "b")], (vec!["b", "a", "demo"], "http://b/v1", "(hidden)")),
        (vec![model("name", "demo")], (vec!["demo", "a", "b"], "", "")),
        // The key of one url is not sent to another.
        (vec![model("url", "http://c/v1")], (vec!["a", "b", "demo"], "http://c/v1", "none")),
        (
            vec![model("name", "c"), model("url", "http://c/v1"), model("key", "env:C")],
            (vec!["c", "a", "b", "demo"], "http://c/v1", "env:C"),
        ),
    ] {
        let config = home.load(&[], &flags).unwrap();
        let (names, url, key) = models(&config);
        assert_eq!((names, url, key.as_str()), expected);
    }
    let error = home.load(&[], &[model("name", "c")]).unwrap_err().to_string();
    assert!(error.contains("the model `c` is not configured; there are: a, b, demo"), "{error}");
    let error = TestHome::with("").load(&[], &[model("url", "http://c/v1")]).unwrap_err().to_string();
    assert!(error.contains("add --model NAME"), "{error}");
    let error = home.load(&[], &[model("key", "sk-1")]).unwrap_err().to_string();
    assert!(error.contains("can read a command line") && !error.contains("sk-1"), "{error}");
}

#[test]
fn the_environment_may_speak_of_whichever_model_there_is() {
    let variables = [("ALUDEL_MODEL_KEY", "env:K"), ("ALUDEL_MODEL_VISION", "true")];
    let config = TestHome::with(TWO_MODELS).load(&variables, &[]).unwrap();
    assert_eq!(models(&config), (vec!["a", "b", "demo"], "http://a/v1", "env:K".into()));
    let home = TestHome::with("");
    assert_eq!(models(&home.load(&variables, &[]).unwrap()).0, ["demo"]);
    let flags = [("name", "c"), ("url", "http://c/v1")].map(|(key, text)| flag("--x", Section::Model, key, text));
    let config = home.load(&variables, &flags).unwrap();
    // The key is not of the url's layer; everything else is.
    assert_eq!(models(&config), (vec!["c", "demo"], "http://c/v1", "none".into()));
    assert_eq!(shown(&config, "model.c.vision"), ("true".into(), "$ALUDEL_MODEL_VISION".into()));
    let error = home.load(&[("ALUDEL_MODEL_URL", "http://c/v1")], &[]).unwrap_err().to_string();
    assert_eq!(error, "$ALUDEL_MODEL_URL: a model needs a name; set ALUDEL_MODEL_NAME");
}

#[test]
fn keys_are_fetched_and_never_shown() {
    let home = TestHome::with(TWO_MODELS);
    let config = home.load(&[], &[]).unwrap();
    let host = HostEnvironment::made_up(home.0.path(), &[("A", " sk-a\n")]);
    let key = |index: usize, host: &HostEnvironment| config.models[index].key.fetch("m", host);
    assert_eq!(key(0, &host).unwrap().unwrap().expose(), "sk-a");
    assert_eq!(key(1, &host).unwrap().unwrap().expose(), "sk-literal");
    let missing = key(0, &HostEnvironment::made_up(home.0.path(), &[])).unwrap_err().to_string();
    assert!(missing.ends_with("aludel.toml:4): the environment variable A is not set"), "{missing}");
    let two_words = key(0, &HostEnvironment::made_up(home.0.path(), &[("A", "one two")])).unwrap_err().to_string();
    assert!(two_words.contains("no key") && !two_words.contains("two)"), "{two_words}");
    assert!(!format!("{config:?}").contains("sk-literal"));
    assert_eq!(config.warnings.len(), 1);
    assert!(config.warnings[0].contains("aludel.toml:8: the key of the model `b` stands in the file itself"));
}
