//! A case: what the server is set to, the model's script, and requests in their order.

use std::time::Duration;

use aludel_engine::{ApprovalPolicy, SessionSettings};
use aludel_testkit::Scripted;
use serde_json::Value;

/// One case.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) settings: SessionSettings,
    pub(super) server: aludel_server::ServerSettings,
    pub(super) approvals: ApprovalPolicy,
    /// Time for which the model may be silent.
    pub(super) patience: Duration,
    /// The model's server takes chat completions as they are.
    pub(super) passes: bool,
    /// A server listens at the model's address.
    pub(super) reachable: bool,
    /// Requests to the model are recorded.
    pub(super) shows_model: bool,
    /// Reason for which no sandbox can be made.
    pub(super) no_sandbox: Option<&'static str>,
    /// Requests carry a tenant's key.
    pub(super) has_keys: bool,
    /// Its backends.
    pub(super) place: Place,
    pub(super) script: Vec<Scripted>,
    pub(super) steps: Vec<Step>,
}

/// The backends on which a case runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The memory backend alone: nothing in it depends on the sandbox.
    Memory,
    /// The memory backend and the local one, which behave the same.
    Both,
    /// The local backend alone: only it enforces what the case is about.
    Local,
}

/// One step of a case.
#[derive(Debug)]
pub(super) enum Step {
    /// Sends a request and records its answer.
    Send(Request),
    /// Sends a request in the background.
    Begin(Request),
    /// Records the answer to the request that was begun first.
    Join,
    /// Asks this path again and again until the value at the pointer is this one. Nothing is recorded.
    Until(String, &'static str, Value),
    /// Follows this stream until it holds these words. Nothing is recorded.
    UntilTold(String, &'static str),
    /// Asks for the stream that was recorded last again, by this path: it must be the same, byte for byte.
    SameStream(String),
    /// Ends the server and starts another one on the same data.
    Restart,
}

/// One request.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) body: Body,
    /// Form in which its answer is recorded.
    pub(super) shown: Shown,
}

/// The body of a request.
#[derive(Debug, Clone)]
pub(super) enum Body {
    Empty,
    Json(Value),
    Bytes(Vec<u8>),
    /// A form with these texts and this file: its part, its name and what it holds.
    Form(Vec<(&'static str, String)>, Option<(&'static str, &'static str, Vec<u8>)>),
}

/// Form in which an answer is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// JSON with sorted fields, streams frame by frame.
    Parsed,
    /// The body as it came.
    AsItIs,
    /// The chunks of each choice together: which of several comes first is chance.
    ByChoice,
}

impl Request {
    pub(super) fn get(path: &str) -> Self {
        Self { method: "GET", path: path.to_owned(), headers: Vec::new(), body: Body::Empty, shown: Shown::Parsed }
    }
}

impl Case {
    /// A case without any request.
    pub(super) fn new(name: &'static str) -> Self {
        let mut settings = SessionSettings::default();
        settings.limits.memory = 512 << 20;
        settings.limits.disk = 64 << 20;
        settings.limits.file_size = 64 << 20;
        settings.limits.grace = Duration::from_secs(30);
        settings.max_memory = settings.limits.memory;
        Self {
            name,
            settings,
            server: aludel_server::ServerSettings::default(),
            approvals: ApprovalPolicy::default(),
            patience: Duration::from_secs(20),
            passes: true,
            reachable: true,
            shows_model: true,
            no_sandbox: None,
            has_keys: false,
            place: Place::Memory,
            script: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Changes what the server is set to.
    pub(super) fn settings(mut self, change: impl FnOnce(&mut SessionSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Changes the bounds on requests.
    pub(super) fn server(mut self, change: impl FnOnce(&mut aludel_server::ServerSettings)) -> Self {
        change(&mut self.server);
        self
    }

    /// Holds programs back.
    pub(super) fn approvals(mut self, approvals: ApprovalPolicy) -> Self {
        self.approvals = approvals;
        self
    }

    /// Lets the model be silent for so long.
    pub(super) fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Asks a model whose server speaks another protocol than Chat Completions, so that nothing is handed on.
    pub(super) fn passes_nothing(mut self) -> Self {
        self.passes = false;
        self
    }

    /// Asks a model at whose address nobody listens.
    pub(super) fn unreachable(mut self) -> Self {
        self.reachable = false;
        self
    }

    /// Runs on these backends.
    pub(super) fn on(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Runs on both backends, unless it runs on the local one alone.
    pub(super) fn on_both(self) -> Self {
        if self.place == Place::Local { self } else { self.on(Place::Both) }
    }

    /// Leaves out what the model is asked, where chance decides how often it is.
    pub(super) fn without_model(mut self) -> Self {
        self.shows_model = false;
        self
    }

    /// Fails to make sandboxes, for this reason.
    pub(super) fn no_sandbox(mut self, reason: &'static str) -> Self {
        self.no_sandbox = Some(reason);
        self
    }

    /// Makes keys, and asks with one of them.
    pub(super) fn keys(mut self) -> Self {
        self.has_keys = true;
        self
    }

    /// Adds answers of the model.
    pub(super) fn model(mut self, script: impl IntoIterator<Item = Scripted>) -> Self {
        self.script.extend(script);
        self
    }

    pub(super) fn get(self, path: &str) -> Self {
        self.send("GET", path, Body::Empty)
    }

    /// Gets something with the key of another tenant.
    pub(super) fn get_as_other(self, path: &str) -> Self {
        self.get(path).header("authorization", "Bearer <other key>")
    }

    pub(super) fn delete(self, path: &str) -> Self {
        self.send("DELETE", path, Body::Empty)
    }

    pub(super) fn post(self, path: &str, body: Value) -> Self {
        self.send("POST", path, Body::Json(body))
    }

    /// Posts one body after another to the same path.
    pub(super) fn post_each(self, path: &str, bodies: impl IntoIterator<Item = Value>) -> Self {
        bodies.into_iter().fold(self, |case, body| case.post(path, body))
    }

    pub(super) fn post_bytes(self, path: &str, body: impl Into<Vec<u8>>) -> Self {
        self.send("POST", path, Body::Bytes(body.into()))
    }

    /// Posts a form with a file.
    pub(super) fn upload(
        self,
        path: &str,
        texts: &[(&'static str, &str)],
        part: &'static str,
        name: &'static str,
    ) -> Self {
        let texts = texts.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        self.send("POST", path, Body::Form(texts, Some((part, name, b"a,b\n1,2\n".to_vec()))))
    }

    /// Posts a form without a file.
    pub(super) fn form(self, path: &str, texts: &[(&'static str, &str)]) -> Self {
        let texts = texts.iter().map(|(name, text)| (*name, (*text).to_owned())).collect();
        self.send("POST", path, Body::Form(texts, None))
    }

    pub(super) fn send(mut self, method: &'static str, path: &str, body: Body) -> Self {
        let request = Request { method, path: path.to_owned(), headers: Vec::new(), body, shown: Shown::Parsed };
        self.steps.push(Step::Send(request));
        self
    }

    /// Adds a header to the last request.
    pub(super) fn header(self, name: &'static str, value: &'static str) -> Self {
        self.last(|request| request.headers.push((name, value)))
    }

    /// Records the answer to the last request in this way.
    pub(super) fn shown(self, shown: Shown) -> Self {
        self.last(|request| request.shown = shown)
    }

    fn last(mut self, change: impl FnOnce(&mut Request)) -> Self {
        match self.steps.last_mut() {
            Some(Step::Send(request) | Step::Begin(request)) => change(request),
            other => panic!("{other:?} is no request"),
        }
        self
    }

    /// Posts without waiting for the answer.
    pub(super) fn begin(mut self, path: &str, body: Value) -> Self {
        self = self.post(path, body);
        let Some(Step::Send(request)) = self.steps.pop() else { panic!("a request was just added") };
        self.steps.push(Step::Begin(request));
        self
    }

    /// Records the answer to what was begun.
    pub(super) fn join(mut self) -> Self {
        self.steps.push(Step::Join);
        self
    }

    /// Waits until an answer has a value.
    pub(super) fn until(mut self, path: &str, pointer: &'static str, value: impl Into<Value>) -> Self {
        self.steps.push(Step::Until(path.to_owned(), pointer, value.into()));
        self
    }

    /// Waits until a stream has this.
    pub(super) fn until_told(mut self, path: &str, words: &'static str) -> Self {
        self.steps.push(Step::UntilTold(path.to_owned(), words));
        self
    }

    /// Gets the last stream again.
    pub(super) fn same_stream(mut self, path: &str) -> Self {
        self.steps.push(Step::SameStream(path.to_owned()));
        self
    }

    pub(super) fn restart(mut self) -> Self {
        self.steps.push(Step::Restart);
        self
    }
}
