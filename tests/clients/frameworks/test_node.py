"""Vercel's AI SDK in three protocols, and the agents of LibreChat, which send no tool."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import pages

NODE = os.environ.get("NODE_CLIENTS")
pytestmark = pytest.mark.skipif(not NODE, reason="npm is not installed")


def node(script, *arguments):
    """The output of a script, which finds its modules beside itself."""
    file = Path(NODE) / "script.mjs"
    file.write_text(script)
    ended = subprocess.run(["node", file, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_vercels_sdk_asks_twice(url):
    told = json.loads(node(Path(__file__).with_name("vercel.mjs").read_text(), url))
    # Of Gemini's programs it leaves out the ids, and repeats the signatures.
    # A program goes on with the variables of the one before the function.
    assert told["google with a function"] == told["interactions with a function"] == "Both: 43."
    assert told["openai"] == told["anthropic"] == told["google"] == ["y is set.", "y is kept."]


def test_librechats_agents_see_programs_in_the_text(url):
    told = json.loads(node(Path(__file__).with_name("librechat.mjs").read_text(), url))
    assert told["second"].startswith("````python\nprint(y)\n````") and told["second"].endswith("y is kept.")
    assert "/v1/links/" in told["third"] and told["pieces"] > 10


def test_the_program_of_the_guide(url):
    (program,) = pages.programs("frameworks.md", "js")
    assert "1048576" in node(program.replace("http://127.0.0.1:8080", url))
