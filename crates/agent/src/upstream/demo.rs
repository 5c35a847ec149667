//! The `demo` model: scripted, so that new users without a model can watch the whole loop on real input.
//!
//! It knows one analysis of one kind of file. Its next step depends only on the conversation: on its last program and the output. Its first
//! attempt to parse the data really fails, and it reads the traceback. The numbers of its final message come from its programs' output.

mod report;

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};

use super::{Delta, FinishReason, ModelCapabilities, ModelRequest, Upstream, UpstreamError};
use crate::item::{Call, Item, text_of};
use crate::program_call;

/// The file that the programs read is filled in here.
const PLACEHOLDER: &str = "{{CSV}}";
/// The columns it can work with.
const COLUMNS: [&str; 5] = ["date", "session_id", "product", "stage", "amount"];
/// Characters that are streamed at a time.
const FRAGMENT: usize = 48;
/// Beginning of an observation of a program that ran to its end.
const SUCCESS: &str = "The program ran to its end.";

/// The scripted model.
#[derive(Debug, Clone, Copy)]
pub struct Demo {
    pace: Duration,
}

impl Demo {
    /// Waits for `pace` after every fragment, so that a person can watch the code being written. May be zero.
    pub fn new(pace: Duration) -> Self {
        Self { pace }
    }
}

impl Upstream for Demo {
    fn name(&self) -> &str {
        "demo"
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities { function_calling: true, vision: false }
    }

    fn call(&self, request: ModelRequest) -> BoxStream<'static, Result<Delta, UpstreamError>> {
        let pace = self.pace;
        let deltas = match next_step(&request) {
            Next::Say(text) => fragments(&text).map(Delta::Text).collect::<Vec<_>>(),
            Next::Run { say, code, number } => {
                let arguments = serde_json::json!({ "code": code }).to_string();
                let started = Delta::CallStarted {
                    index: 0,
                    id: format!("call_demo_{number}"),
                    name: program_call::NAME.to_owned(),
                };
                let say = fragments(&say).map(Delta::Text);
                let call = fragments(&arguments).map(|fragment| Delta::CallArguments { index: 0, fragment });
                say.chain([started]).chain(call).collect()
            }
        };
        let deltas = deltas.into_iter().chain([Delta::Finished(FinishReason::Stop)]);
        stream::iter(deltas)
            .then(move |delta| async move {
                if !pace.is_zero() {
                    tokio::time::sleep(pace).await;
                }
                Ok(delta)
            })
            .boxed()
    }
}

fn fragments(text: &str) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(FRAGMENT).map(|chunk| chunk.iter().collect()).collect::<Vec<String>>().into_iter()
}

/// The programs, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Look,
    Try,
    Clean,
    Monthly,
    Products,
    Funnel,
    Excel,
    Pdf,
}

impl Step {
    const ALL: [Self; 8] =
        [Self::Look, Self::Try, Self::Clean, Self::Monthly, Self::Products, Self::Funnel, Self::Excel, Self::Pdf];

    fn program(self) -> &'static str {
        match self {
            Self::Look => include_str!("demo/1_look.py"),
            Self::Try => include_str!("demo/2_try.py"),
            Self::Clean => include_str!("demo/3_clean.py"),
            Self::Monthly => include_str!("demo/4_monthly.py"),
            Self::Products => include_str!("demo/5_products.py"),
            Self::Funnel => include_str!("demo/6_funnel.py"),
            Self::Excel => include_str!("demo/7_excel.py"),
            Self::Pdf => include_str!("demo/8_pdf.py"),
        }
    }

    fn say(self) -> &'static str {
        match self {
            Self::Look => "I start by looking at the file as it is.",
            Self::Try => "The dates look like year-month-day. I parse them strictly and sum the amounts by month.",
            Self::Clean => "I clean the data and count every repair.",
            Self::Monthly => "Now the monthly dynamics.",
            Self::Products => "Next, the products: the top ten, and an ABC analysis of all of them.",
            Self::Funnel => "The conversion funnel, by sessions.",
            Self::Excel => "I put the tables into an Excel workbook.",
            Self::Pdf => "Finally the PDF report.",
        }
    }

    fn after(self) -> Option<Self> {
        let index = Self::ALL.iter().position(|step| *step == self)?;
        Self::ALL.get(index + 1).copied()
    }
}

/// The model's next step.
#[derive(Debug, PartialEq)]
enum Next {
    Say(String),
    Run { say: String, code: String, number: usize },
}

fn next_step(request: &ModelRequest) -> Next {
    let Some(csv) = csv_of(request) else { return Next::Say(no_file()) };
    let calls: Vec<&Call> = request
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Call(call) => Some(call),
            _ => None,
        })
        .collect();
    let run = |step: Step, say: String| {
        let code = step.program().replace(PLACEHOLDER, &csv);
        Next::Run { say, code, number: calls.len() + 1 }
    };
    let Some(last) = calls.last() else {
        return if is_the_question(request) {
            run(Step::Look, Step::Look.say().into())
        } else {
            Next::Say(other_question())
        };
    };
    let observation = output_of(request, last).unwrap_or_default();
    let Some(step) = step_of(last, &csv) else { return Next::Say(lost()) };
    if step == Step::Try
        && let Some(value) = offending_date(&observation)
    {
        let say = format!(
            "The traceback shows the reason: `{value}` is not year-month-day, so the file mixes date formats. I handle both, and clean what else \
             the first look showed: stray spaces, upper and lower case, separators of thousands, missing values, and duplicates."
        );
        return run(Step::Clean, say);
    }
    if !observation.contains(SUCCESS) {
        return Next::Say(gave_up(&observation));
    }
    if step == Step::Look && !has_the_columns(&observation) {
        return Next::Say(other_columns());
    }
    match step.after() {
        Some(next) => run(next, next.say().into()),
        None => Next::Say(report::answer(&figures(request))),
    }
}

/// The first CSV file that the last message of the user lists.
fn csv_of(request: &ModelRequest) -> Option<String> {
    request.tools.iter().find(|tool| tool.name == program_call::NAME)?;
    let message = last_message(request)?;
    let files = message.split("[Files now: ").nth(1)?.split("/mnt/data/").skip(1);
    let name = files.filter_map(|rest| rest.find(".csv (").map(|end| format!("{}.csv", &rest[..end]))).next()?;
    // It is inserted into a program.
    name.chars().all(|character| character.is_alphanumeric() || "._- ".contains(character)).then_some(name)
}

fn is_the_question(request: &ModelRequest) -> bool {
    last_message(request).is_some_and(|text| {
        let text = text.to_lowercase();
        text.contains("sales") && ["report", "funnel", "monthly", "products"].iter().any(|word| text.contains(word))
    })
}

fn last_message(request: &ModelRequest) -> Option<String> {
    request.items.iter().rev().find_map(|item| match item {
        Item::User(parts) => Some(text_of(parts)),
        _ => None,
    })
}

fn step_of(call: &Call, csv: &str) -> Option<Step> {
    let code = program_call::code_of(&call.arguments).ok()?;
    Step::ALL.into_iter().find(|step| step.program().replace(PLACEHOLDER, csv) == code)
}

fn output_of(request: &ModelRequest, call: &Call) -> Option<String> {
    request.items.iter().find_map(|item| match item {
        Item::Output(output) if output.call_id == call.id => Some(text_of(&output.parts)),
        _ => None,
    })
}

/// The value in pandas' error about a date: `time data "13.02.2026" doesn't match format …`.
fn offending_date(observation: &str) -> Option<String> {
    let rest = observation.split("time data ").nth(1)?;
    let quote = rest.chars().next()?;
    let value = rest.get(1..)?.split(quote).next()?;
    rest.contains("match format").then(|| value.chars().take(30).collect())
}

/// All figures that the programs printed; later ones replace earlier ones.
fn figures(request: &ModelRequest) -> serde_json::Map<String, serde_json::Value> {
    let mut all = serde_json::Map::new();
    for item in &request.items {
        if let Item::Output(output) = item {
            let text = text_of(&output.parts);
            let lines = text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("FIGURES ")?).ok());
            lines.for_each(|mut figures: serde_json::Map<_, _>| all.append(&mut figures));
        }
    }
    all
}

fn has_the_columns(observation: &str) -> bool {
    let figures = observation
        .lines()
        .find_map(|line| serde_json::from_str::<serde_json::Value>(line.strip_prefix("FIGURES ")?).ok());
    figures.is_some_and(|figures| figures["columns"] == serde_json::json!(COLUMNS))
}

const SCRIPTED: &str = "*I am `demo`, a scripted model: I can do one analysis of one kind of file.*";

fn no_file() -> String {
    format!(
        "{SCRIPTED} I need a CSV file with the columns {}; attach one with --file, or run `aludel demo`.",
        COLUMNS.join(", ")
    )
}

fn other_question() -> String {
    format!(
        "{SCRIPTED} I cannot answer that question. Ask me for a report on sales data, or configure a real model: a [[model]] section in \
         aludel.toml with `name`, `url` and `key`, or --model, --url and --key on the command line."
    )
}

fn other_columns() -> String {
    format!("{SCRIPTED} This file has other columns than {}; a real model could work with it.", COLUMNS.join(", "))
}

fn lost() -> String {
    format!("{SCRIPTED} This conversation holds programs that are not mine, so I do not know how to go on.")
}

fn gave_up(observation: &str) -> String {
    let last = observation.trim().lines().last().unwrap_or("nothing");
    format!(
        "{SCRIPTED} My last program did not work, and my script has no answer to that: {}",
        crate::excerpt::line(last, 300)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::Part;
    use crate::upstream::{FunctionTool, Sampling, ToolChoice};

    const QUESTION: &str = "Analyze the attached Q1 2026 sales data. Create PDF report.";

    fn request(mut items: Vec<Item>) -> ModelRequest {
        let files = "[Files now: /mnt/data/notes.txt (1.0 kB), /mnt/data/sales.csv (1.9 MB)]";
        if let Some(Item::User(parts)) = items.first_mut() {
            parts.push(Part::Text(files.to_owned()));
        }
        let tool = FunctionTool {
            name: "python".into(),
            description: String::new(),
            parameters: serde_json::Value::Null.into(),
            strict: None,
        };
        ModelRequest {
            owner: String::new(),
            instructions: String::new(),
            items,
            tools: vec![tool],
            tool_choice: ToolChoice::Auto,
            sampling: Sampling::default(),
            headers: reqwest::header::HeaderMap::new(),
        }
    }

    fn ran(step: Step, id: &str, output: &str) -> [Item; 2] {
        let code = step.program().replace(PLACEHOLDER, "sales.csv");
        let arguments = serde_json::json!({ "code": code }).to_string();
        [Item::Call(Call { id: id.into(), name: "python".into(), arguments }), Item::output(id, output)]
    }

    fn after(step: Step, output: &str) -> Next {
        let mut items = vec![Item::user(QUESTION)];
        items.extend(ran(step, "c", output));
        next_step(&request(items))
    }

    fn runs(next: &Next, step: Step) -> bool {
        matches!(next, Next::Run { code, .. } if *code == step.program().replace(PLACEHOLDER, "sales.csv"))
    }

    #[test]
    fn it_goes_on_by_what_it_sees() {
        assert!(runs(&next_step(&request(vec![Item::user(QUESTION)])), Step::Look));
        let seen = format!("FIGURES {{\"columns\": {}}}\n{SUCCESS}", serde_json::json!(COLUMNS));
        assert!(runs(&after(Step::Look, &seen), Step::Try));
        let failed = r#"ValueError: time data "13.02.2026" doesn't match format "%Y-%m-%d""#;
        let next = after(Step::Try, failed);
        assert!(runs(&next, Step::Clean));
        assert!(matches!(next, Next::Run { say, .. } if say.contains("`13.02.2026`")));
        assert!(runs(&after(Step::Clean, SUCCESS), Step::Monthly));
    }

    #[test]
    fn it_says_what_it_cannot_do() {
        let says = |next: Next, word: &str| matches!(next, Next::Say(text) if text.contains("scripted") && text.contains(word));
        assert!(says(next_step(&request(vec![Item::user("What is love?")])), "[[model]]"));
        assert!(says(after(Step::Look, &format!("FIGURES {{\"columns\": [\"a\"]}}\n{SUCCESS}")), "other columns"));
        assert!(says(after(Step::Try, "MemoryError\nOut of memory: used 1 of 1."), "Out of memory"));
        assert!(says(after(Step::Pdf, "The program failed: OSError."), "OSError"));
        let without_file = ModelRequest { tools: Vec::new(), ..request(vec![Item::user(QUESTION)]) };
        assert!(says(next_step(&without_file), "--file"));
    }

    #[test]
    fn the_numbers_of_the_answer_come_from_the_output() {
        let answer = |revenue: &str| {
            let Next::Say(text) = after(
                Step::Pdf,
                &format!("FIGURES {{\"revenue\": {revenue}, \"orders\": 7, \"conversion\": 0.25}}\n{SUCCESS}"),
            ) else {
                panic!("no answer")
            };
            text
        };
        assert!(answer("1234567.8").contains("1,234,568") && answer("1234567.8").contains("25.0 %"));
        assert!(answer("55").contains("**55**"));
    }
}
