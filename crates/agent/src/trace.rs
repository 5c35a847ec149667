//! The span of one program, for operators.

use aludel_sandbox::{ExecutionEvent, KernelSpec};
use tracing::field::Empty;
use tracing::{Span, info_span, record_all};

use crate::contents::{self, Excerpt};

/// The span of one program, which gets its outcome when the program ends.
#[derive(Debug)]
pub struct ProgramSpan {
    span: Span,
    /// The beginning of what it put out, if operators want to see it.
    output: Option<Excerpt>,
}

impl ProgramSpan {
    /// A span below the current one, for a program of this kernel.
    pub fn begin(kernel: &KernelSpec, call_id: &str) -> Self {
        let span = info_span!(
            "execute_tool",
            tool = kernel.tool_name,
            call_id,
            code = Empty,
            output = Empty,
            seconds = Empty,
            outcome = Empty,
        );
        let output = span.in_scope(contents::are_wanted).then(Excerpt::default);
        Self { span, output }
    }

    /// The span, to be entered.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Records an event of the program `code`.
    pub fn record(&mut self, code: &str, event: &ExecutionEvent) {
        if let Some(output) = &mut self.output {
            output.push(contents::output_of(event));
        }
        if let ExecutionEvent::Finished(finished) = event {
            let output = self.output.as_ref();
            record_all!(
                self.span,
                code = output.map(|_| Excerpt::from(code)).as_ref().map(Excerpt::as_str),
                output = output.map(Excerpt::as_str),
                seconds = finished.elapsed.as_secs_f64(),
                outcome = finished.outcome.name(),
            );
        }
    }
}
