"""smolagents: an agent whose programs run in a sandbox by `E2BExecutor`. The model is scripted."""

from smolagents import CodeAgent
from smolagents.models import ChatMessage, MessageRole, Model

STEPS = [
    "Thought: begin.\n<code>\nx = 6\nprint('seen', x)\n</code>",
    "Thought: go on.\n<code>\nimport statistics\nfinal_answer(statistics.mean([x * 7, 42]))\n</code>",
]


class Scripted(Model):
    def generate(self, messages, **_options):
        return ChatMessage(role=MessageRole.ASSISTANT, content=STEPS.pop(0))


agent = CodeAgent(tools=[], model=Scripted(), executor_type="e2b", additional_authorized_imports=["statistics"])
try:
    assert agent.run("Calculate.") == 42
finally:
    agent.cleanup()
