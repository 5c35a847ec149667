"""The programs of the guide, as they stand there."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))

import pages  # noqa: E402

NODE = os.environ.get("NODE_CLIENTS")


def test_programs_of_the_page(server):
    said = [pages.run(program, server.url, "gpt-5") for program in pages.programs("openai.md")]
    assert "24133" in said[0]
    assert "monthly.csv" in said[1] or ".png" in said[1]
    assert "1048576" in said[2] and "2**20" in said[2]
    assert "It is for the north." in said[3]


@pytest.mark.skipif(not NODE, reason="npm is not installed")
def test_programs_of_the_page_in_node(server):
    (program,) = pages.programs("openai.md", "js")
    # Modules are found beside the file.
    file = Path(NODE) / "page.mjs"
    file.write_text(program.replace("http://127.0.0.1:8080", server.url))
    assert "24133" in pages.run("", server.url, "gpt-5", command=["node", str(file)])


def test_the_readme(server):
    readme = Path(__file__).parents[3] / "README.md"
    (program,) = [block.split("```")[0] for block in readme.read_text().split("```python\n")[1:]]
    assert "24133" in pages.run(program, server.url, "gpt-5")
