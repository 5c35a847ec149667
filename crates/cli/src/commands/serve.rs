//! `aludel serve`: the server.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use aludel_engine::Engine;
use aludel_ignore::Ignore;
use aludel_sandbox::template::BuildCancellation;
use aludel_server::{App, ServeError, ServerSettings, Traces};
use aludel_store::{FULL_DISK, Store};
use anyhow::Context as _;
use clap::Args;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::args::flag;
use crate::config::{Collector, Config, Flag, LogFormatSetting, Section, help};
use crate::console::{Console, MessageLevel, StandardStream};
use crate::context::CommandContext;
use crate::exit::{Exit, usage, words};
use crate::sandboxes::RunningBackend;
use crate::signals::{self, Hangups, Signals};
use crate::{color, console, memory, socket, state, upstream};

/// Serve the APIs of OpenAI, Anthropic, Gemini, E2B, OpenSandbox and MCP, programs in sandboxes on this machine
///
/// Prints `listening on http://ADDRESS` when it is ready. Files, containers, conversations and responses are kept in the data directory.
/// SIGHUP reads the models of the configuration again, the rules and who is asked; what is going on keeps to what it began with. Other
/// settings, `approval.mode` among them, need a restart.
/// SIGTERM or Ctrl-C lets requests finish for 30 s, and ends; a second one does not wait. Without API keys (`aludel keys create`) it
/// serves this machine alone.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[arg(long, value_name = "ADDRESS", help = help(Section::Server, "listen"))]
    listen: Option<String>,
}

impl ServeArgs {
    pub(crate) fn flags(&self) -> Vec<Flag> {
        flag("--listen", Section::Server, "listen", self.listen.as_ref()).into_iter().collect()
    }
}

/// The longest wait for turns to end before their sandboxes, where the process is to end at once.
const HURRY: Duration = Duration::from_secs(1);

pub(crate) async fn run(_: ServeArgs, context: &CommandContext) -> anyhow::Result<Exit> {
    let config = &context.config;
    let mut signals = Signals::listen().context("cannot listen to signals")?;
    let mut hangups = Hangups::listen().context("cannot listen to signals")?;
    signals::ignore_user_signals().context("cannot listen to signals")?;
    let models = upstream::all(&config.models, &context.host)?;
    let approvals = config.approval.settings(&context.host)?;
    let state = state::directory(&config.server.data);
    let store =
        Store::open(&state).await.with_context(|| format!("cannot open the server's state in {}", state.display()))?;
    let wanted = &config.server.listen;
    let listener = TcpListener::bind(wanted.0).await;
    let listener = listener.with_context(|| format!("cannot listen on {} ({})", **wanted, wanted.origin))?;
    let address = listener.local_addr().context("the listener has no address")?;
    if !address.ip().is_loopback() && !store.has_keys().await? {
        return Err(usage(ServeError::NoKeys(address).to_string()));
    }
    let RunningBackend { backend, packages } = match start_backend(context, &listener, &mut signals).await {
        Ok(Ok(running)) => running,
        Ok(Err(exit)) => return Ok(exit),
        Err(error) if store.free_bytes().await.is_ok_and(|free| free < FULL_DISK) => {
            return Err(error.context(format!("the disk of {} is full; make room there", state.display())));
        }
        Err(error) => return Err(error),
    };
    if !store.has_keys().await? {
        console::status(&format!(
            "{} there are no API keys: every program on this machine may use this server, as one and the same user. \
             Make a key with `aludel keys create`.",
            color::warning("note:")
        ));
    }
    if config.models.iter().all(|model| model.is_demo()) {
        console::warn(&match &config.file {
            Some(file) => format!("{} has no other [[model]] than `demo`, which is a script", file.display()),
            None => "there is no configuration file: only `demo` answers, which is a script; `aludel config --help` tells where \
                     the file may be, and --config FILE names one"
                .to_owned(),
        });
    }
    let engine = Engine::new(store, Arc::clone(&backend), models, approvals, packages, config.sessions());
    let engine = Arc::new(engine);
    let app = Arc::new(App::new(Arc::clone(&engine), settings(config)?));
    let socket = if config.server.socket.0 { bind_socket(context, &app) } else { None };
    Console::new().line(StandardStream::Stdout, &format!("listening on http://{address}"))?;
    let (asked, was_asked) = tokio::sync::oneshot::channel();
    let served = aludel_server::serve(app, listener, async {
        let socket_served = async {
            match &socket {
                Some(socket) => socket.serve().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender lives until it is used or serving is over.
            _asked = was_asked => {}
            () = socket_served => {}
        }
    });
    let hurried = async {
        signals.next().await;
        console::status("ending: waiting for requests to finish; once more to end at once");
        asked.send(()).ignore("serving may be over already");
        signals.next().await;
    };
    let reloading = async {
        loop {
            hangups.next().await;
            if let Err(error) = reload(context, &engine) {
                console::fail(&format!("nothing was reloaded: {}", words(&error)));
            }
        }
    };
    let exit = tokio::select! {
        () = reloading => Exit::Success,
        () = memory::give_back() => Exit::Success,
        served = served => {
            served.context("cannot serve")?;
            Exit::Success
        }
        () = hurried => {
            // Turns that go on without their sandboxes would ask their models for an ending.
            engine.shutdown.cancel();
            engine.tasks.close();
            timeout(HURRY, engine.tasks.wait()).await.ignore("the next start ends what has not ended");
            Exit::Interrupted
        }
    };
    backend.shutdown().await;
    Ok(exit)
}

/// Starts the sandboxes, while requests hear that the server is not ready; returns the process's end if a signal ended that.
async fn start_backend(
    context: &CommandContext,
    listener: &TcpListener,
    signals: &mut Signals,
) -> anyhow::Result<Result<RunningBackend, Exit>> {
    let cancellation = BuildCancellation::default();
    let mut starting = pin!(RunningBackend::start_for_server(context, &cancellation));
    tokio::select! {
        started = &mut starting => return started.map(Ok),
        never = aludel_server::answer_early(listener) => match never {},
        () = signals.next() => {}
    }
    console::status("ending before the sandboxes are there; once more to end at once");
    cancellation.cancel();
    tokio::select! {
        // Its failure is the end of the build.
        started = starting => {
            if let Ok(RunningBackend { backend, .. }) = started {
                backend.shutdown().await;
            }
            Ok(Err(Exit::Success))
        }
        () = signals.next() => Ok(Err(Exit::Interrupted)),
    }
}

/// Opens the socket for `aludel run` and `aludel sandbox`. Without it the server serves only HTTP clients.
fn bind_socket(context: &CommandContext, app: &Arc<App>) -> Option<socket::SocketListener> {
    let bound = socket::SocketListener::bind(context, app);
    let failed = |reason| console::warn(&format!("`aludel run` and `aludel sandbox` cannot use this server: {reason}"));
    bound.map_err(failed).ok()
}

/// Opens the server's log, to which all messages go from now on.
pub(crate) fn open_log(config: &Config) {
    aludel_server::write_log_aside();
    console::write_by(aludel_server::write_line);
    aludel_server::log_as(match *config.server.log {
        LogFormatSetting::Text => aludel_server::LogFormat::Text,
        LogFormatSetting::Json => aludel_server::LogFormat::Json,
        LogFormatSetting::Off => aludel_server::LogFormat::Off,
    });
    console::log_to(|level, text| {
        let level = match level {
            MessageLevel::Info => aludel_server::LogLevel::Info,
            MessageLevel::Warning => aludel_server::LogLevel::Warning,
            MessageLevel::Error => aludel_server::LogLevel::Error,
        };
        aludel_server::notice(level, text)
    });
}

/// Reads the configuration again, and applies its models and approval settings.
fn reload(context: &CommandContext, engine: &Engine) -> anyhow::Result<()> {
    let config = context.reload()?;
    if config.file != context.config.file {
        // Probably a file that is only half replaced; the models of another file, or of none, would be wrong.
        let name =
            |file: &Option<PathBuf>| file.as_ref().map_or("no file".to_owned(), |file| file.display().to_string());
        let (was, is) = (name(&context.config.file), name(&config.file));
        return Err(usage(format!(
            "the server was started with {was}, and would now read {is}; restart it if that is meant"
        )));
    }
    let has_models = |config: &Config| config.models.iter().any(|model| !model.is_demo());
    if has_models(&context.config) && !has_models(&config) {
        return Err(usage(
            "the configuration has no [[model]] any more; restart the server if that is meant".to_owned(),
        ));
    }
    let models = upstream::all(&config.models, &context.host)?;
    let names: Vec<String> = models.iter().map(|model| model.name.clone()).collect();
    let approvals = config.approval.settings(&context.host)?;
    engine.set_models(models);
    console::status(&format!("models reloaded; there are: {}", names.join(", ")));
    // Another mode needs a restart: a half-replaced file must not switch approval off, and rules cannot know what ran before them.
    if config.approval.has_mode_of(&context.config.approval) {
        engine.set_approvals(approvals);
        console::status(&format!("approval reloaded; {}", config.approval.description()));
    } else {
        console::warn("approval was not reloaded, with its rules: another approval.mode needs a restart");
    }
    let others = context.config.changed(&config);
    if !others.is_empty() {
        console::warn(&format!("these changed, too, and need a restart: {}", others.join(", ")));
    }
    Ok(())
}

/// Returns an error if a server would refuse this configuration, whatever the data directory and the host contain.
pub(crate) fn check(context: &CommandContext) -> anyhow::Result<()> {
    let config = &context.config;
    upstream::all(&config.models, &context.host)?;
    config.approval.settings(&context.host)?;
    settings(config).map(drop)
}

fn settings(config: &Config) -> anyhow::Result<ServerSettings> {
    let server = &config.server;
    let traces = match &*server.traces {
        Collector::None => None,
        Collector::At(address) => Some(
            Traces::to(address)
                .map_err(|error| usage(format!("{}: server.traces = {address:?} {error}", server.traces.origin)))?,
        ),
    };
    let defaults = ServerSettings::default();
    Ok(ServerSettings {
        requests: server.requests.0,
        requests_per_key: server.requests_per_key.0,
        url: server.url.0.clone(),
        origins: (*server.origins).clone(),
        metrics: server.metrics.0,
        traces,
        log_contents: server.log_contents.0,
        mcp_return_after: server.mcp_return_after.duration(),
        run_lifetime: server.run_lifetime.duration(),
        // These have no setting.
        bodies: defaults.bodies,
        keys_fresh: defaults.keys_fresh,
    })
}
