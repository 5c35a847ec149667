"""Every kind of stream of the Assistants API, through any version of OpenAI's Python client. Prints what was seen of each as JSON.

    variants.py BASE_URL KEY MODEL [strict]

`variants.mjs` is the same for Node, and prints the same. The server's runs expire after eight seconds.
"""

import json
import sys
import warnings

from openai import AssistantEventHandler, OpenAI

warnings.simplefilter("ignore", DeprecationWarning)
base_url, key, MODEL, *strict = sys.argv[1:]
client = OpenAI(base_url=base_url, api_key=key, max_retries=0, _strict_response_validation=bool(strict))
threads = client.beta.threads
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "code_interpreter"}, {"type": "function", "function": WEATHER}]
assistant = client.beta.assistants.create(model=MODEL, instructions="Compute.", tools=TOOLS)


class Heard(AssistantEventHandler):
    """The text, the programs and the output that the helper tells in pieces."""

    def __init__(self, cancels=False):
        super().__init__()
        self.text, self.code, self.logs, self.pieces, self.cancels = "", "", "", 0, cancels

    def on_text_delta(self, delta, snapshot):
        self.text += delta.value or ""

    def on_tool_call_delta(self, delta, snapshot):
        if delta.type != "code_interpreter":
            return
        self.code += delta.code_interpreter.input or ""
        for output in delta.code_interpreter.outputs or []:
            if output.type == "logs":
                self.logs, self.pieces = self.logs + (output.logs or ""), self.pieces + 1
                if self.cancels:
                    self.cancels = False
                    threads.runs.cancel(self.current_run.id, thread_id=self.current_run.thread_id)


def asked(question):
    return threads.create(messages=[{"role": "user", "content": question}]).id


def streamed(question, cancels=False):
    heard = Heard(cancels)
    with threads.runs.stream(thread_id=asked(question), assistant_id=assistant.id, event_handler=heard) as stream:
        stream.until_done()
    return heard


def told(heard):
    """The common part of all clients: the run, its steps and messages as the helper put them together, against the stored ones."""
    run, steps, messages = heard.current_run, heard.get_final_run_steps(), heard.get_final_messages() if heard.text else []
    stored = threads.runs.steps.list(run.id, thread_id=run.thread_id, order="asc").data
    # The helper leaves a step's status as it was at its last delta.
    assert [step.id for step in steps] == [step.id for step in stored]
    programs = [call.code_interpreter for step in stored if step.type == "tool_calls" for call in step.step_details.tool_calls if call.type == "code_interpreter"]
    assert heard.code == "".join(program.input for program in programs)
    text = "".join(part.text.value for message in messages for part in message.content if part.type == "text")
    assert heard.text == text
    return {
        "status": run.status,
        "steps": [step.status for step in stored],
        "text": text,
        "parts": [part.type for message in messages for part in message.content],
        # A program that is interrupted says so at its own pace.
        "logs": heard.logs if run.status == "completed" else heard.logs[:3],
        "outputs": [output.type for program in programs for output in program.outputs],
        "ended": [run.usage is not None, run.expires_at],
    }


def function():
    first = streamed("runs and asks")
    run = first.current_run
    [call] = run.required_action.submit_tool_outputs.tool_calls
    rest, outputs = Heard(), [{"tool_call_id": call.id, "output": "sunny"}]
    with threads.runs.submit_tool_outputs_stream(run_id=run.id, thread_id=run.thread_id, tool_outputs=outputs, event_handler=rest) as stream:
        stream.until_done()
    steps = threads.runs.steps.list(run.id, thread_id=run.thread_id).data
    return [run.status, call.function.arguments, rest.current_run.status, rest.text, rest.logs, [step.status for step in steps]]


def annotated():
    heard = streamed("three programs and a link")
    [part] = heard.get_final_messages()[-1].content
    [annotation] = part.text.annotations
    # Indexes count characters, as apps in Python do.
    assert part.text.value[annotation.start_index : annotation.end_index] == annotation.text
    return [annotation.text, client.files.content(annotation.file_path.file_id).read().decode(), told(heard)]


def made_with_its_thread():
    heard, thread = Heard(), {"messages": [{"role": "user", "content": "the factorial of 7?"}]}
    with client.beta.threads.create_and_run_stream(assistant_id=assistant.id, thread=thread, event_handler=heard) as stream:
        stream.until_done()
    return told(heard)


def polled():
    run = threads.runs.create_and_poll(thread_id=asked("2**20"), assistant_id=assistant.id)
    waits = threads.runs.create_and_poll(thread_id=asked("the weather"), assistant_id=assistant.id)
    [call] = waits.required_action.submit_tool_outputs.tool_calls
    outputs = [{"tool_call_id": call.id, "output": "sunny"}]
    answered = threads.runs.submit_tool_outputs_and_poll(run_id=waits.id, thread_id=waits.thread_id, tool_outputs=outputs)
    [answer] = threads.messages.list(answered.thread_id, limit=1).data
    return [run.status, waits.status, answered.status, answer.content[0].text.value]


def failed():
    run = streamed("upstream says 400").current_run
    return [run.status, run.last_error.code, run.usage.total_tokens]


def shown():
    heard = streamed("a chart")
    image = heard.get_final_messages()[-1].content[0].image_file
    return [client.files.content(image.file_id).read()[1:4].decode(), told(heard)]


def live():
    heard = streamed("counts slowly")
    return [heard.pieces > 1, told(heard)]


def incomplete():
    heard = streamed("stops short")
    [message] = threads.messages.list(heard.current_run.thread_id, run_id=heard.current_run.id).data
    return [heard.current_run.incomplete_details.reason, message.status, told(heard)]


VARIANTS = {
    "text": lambda: told(streamed("hello")),
    "one program": lambda: told(streamed("the factorial of 7?")),
    "two programs": lambda: told(streamed("two programs")),
    "two at once": lambda: told(streamed("two at once")),
    "text before a program": lambda: told(streamed("talks first")),
    "a program that fails": lambda: told(streamed("fails first")),
    "a picture": shown,
    "a link to a file": annotated,
    "a function": function,
    "with its thread": made_with_its_thread,
    "polled": polled,
    "live output": live,
    "failed": failed,
    "cancelled": lambda: told(streamed("runs long", cancels=True)),
    "expired": lambda: told(streamed("runs long")),
    "incomplete": incomplete,
}
seen = {}
for name, variant in VARIANTS.items():
    try:
        seen[name] = variant()
    except Exception as error:
        seen[name] = f"{type(error).__name__}: {error}"
print(json.dumps(seen))
