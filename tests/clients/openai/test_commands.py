"""Every command of the guide's pages is run, here as it stands there, or by the test that is named below."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(Path(__file__).parent.parent))

import pages  # noqa: E402
import server as servers  # noqa: E402

# Beginnings of commands, and the test of `dev/test` that runs them: they need an index, a terminal, a second hand or a compiler.
ELSEWHERE = {
    "aludel serve": "tests/clients/server.py",
    "aludel doctor --attack": "crates/sandbox/tests/escapes.rs",
    "aludel bench": "crates/cli/tests/info.rs",
    'aludel ask "Which product grows fastest?" --file sales.csv --approve': "crates/cli/tests/terminal.rs",
    "aludel approvals show": "tests/clients/openai/test_approval.py",
    "aludel approvals approve": "tests/clients/openai/test_approval.py",
    "aludel approvals refuse": "tests/clients/openai/test_approval.py",
    "aludel sandbox port": "crates/cli/tests/sandboxes.rs",
    "aludel template build": "crates/cli/tests/template.rs",
    "aludel run --template": "crates/cli/tests/template.rs",
    "aludel template info ml": "crates/cli/tests/template.rs",
    "aludel template rm": "crates/cli/tests/template.rs",
    "aludel template export": "crates/cli/tests/template.rs",
    "aludel template import": "crates/cli/tests/template.rs",
    # It would take templates away from tests that run beside this one.
    "aludel template prune": "crates/sandbox/src/template/archive.rs",
    "sudo aludel template build": "crates/cli/tests/template.rs",
    "export": "tests/clients/e2b",
}
# Beginnings of commands that `dev/test` does not run, with the reason, and the script that does.
BY_HAND = {
    "docker": ("a container engine", "dev/image-test"),
    "dev/image": ("a container engine", "dev/image-test"),
    "dev/package": ("a release build, and root to install", "dev/package-test"),
    "tar xf aludel-": ("an archive of a release build", "dev/package-test"),
    "bin/aludel": ("an archive of a release build", "dev/package-test"),
    "dev/test": ("it is that", "dev/test"),
    "cargo": ("a build, in an empty root file system", "dev/walk"),
    # Its client of this address is run, without a GPU.
    "vllm": ("a GPU", "tests/clients/mcp"),
}
# Programs and configuration of the pages by language, and the place that runs or reads them. Frameworks are run by hand, for their size.
BLOCKS = {
    ("README.md", "python"): "tests/clients/openai/test_pages.py",
    ("anthropic.md", "python"): "tests/clients/anthropic/test_messages.py",
    ("approval.md", "python"): "tests/clients/openai/test_approval.py",
    ("assistants.md", "python"): "tests/clients/assistants/test_runs.py",
    ("frameworks.md", "js"): "tests/clients/frameworks/test_node.py",
    ("frameworks.md", "python"): "tests/clients/frameworks/test_current.py",
    ("gemini.md", "python"): "tests/clients/gemini/test_generate.py",
    ("openai.md", "js"): "tests/clients/openai/test_pages.py",
    ("openai.md", "python"): "tests/clients/openai/test_pages.py",
    ("rust.md", "rust,no_run"): "crates/agent/src/lib.rs",
    ("sandboxes.md", "python"): "tests/clients/e2b/test_sandboxes.py",
    # A service; one of ours takes its place.
    ("terminal.md", ""): "crates/cli/tests/remote.rs",
}
# Languages of which no block runs: configuration that `guide.rs` loads, measurements, and proxies that are not installed here.
NOT_RUN = {"sh": "below", "toml": "crates/cli/src/guide.rs", "text": "", "nginx": "", "caddyfile": ""}


def commands(page):
    """The commands of a page's shells, in order, without their comments."""
    text = "".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.S)).replace("\\\n", " ")
    return [re.sub(r"\s+# .*", "", line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture(scope="module")
def shell(upstream, tmp_path_factory):
    """Runs a line where `aludel` is the executable, and the files are that the pages name."""
    work = tmp_path_factory.mktemp("work")
    for name, text in {
        "analysis.py": "import csv; print(sum(float(row['amount']) for row in csv.DictReader(open('data.csv'))))",
        "report.py": "import os, sys; print(len(sys.stdin.read()), os.environ.get('LANG'), sys.argv[1:])",
        "data.csv": "product,amount\nTent,399\n",
        "sales.csv": "date,amount\n2026-01-05,10\n2026-02-03,20\n",
        "data/one.csv": "a\n1\n",
        "data/two.csv": "a\n2\n",
        "config.json": "{}",
        "project/__main__.py": "import of_project; print(of_project.name)",
        "project/of_project.py": "name = 'project'",
        "litellm.yaml": "model_list:\n- model_name: gpt\n  litellm_params: {model: openai/gpt-5, api_base: http://127.0.0.1:9/v1}\n",
        "analysis.ipynb": json.dumps({
            "cells": [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": ["6 * 7"]}],
            "metadata": {}, "nbformat": 4, "nbformat_minor": 5,
        }),
    }.items():  # fmt: skip
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    with servers.Server(servers.MODEL.format(name="scripted", port=upstream)) as server:
        directory = Path(server.directory.name)
        executable = directory / "bin" / "aludel"
        executable.parent.mkdir()
        program, *first = server.command()
        executable.write_text("#!/bin/sh\nexec " + " ".join([program, *first]) + ' "$@"\n')
        executable.chmod(0o755)

        def run(line):
            line = line.replace("http://localhost:11434/v1", f"http://127.0.0.1:{upstream}/v1").replace("/mnt/backup", f"{work}/backup")
            line = line.replace("--model qwen3", "--model scripted")
            line = f"PATH={executable.parent}:$PATH\n{line}"
            return subprocess.run(["bash", "-euc", line], cwd=work, capture_output=True, text=True, timeout=180, stdin=subprocess.DEVNULL)

        yield run


def place(line):
    by_hand = {start: where for start, (_reason, where) in BY_HAND.items()}
    return next((where for start, where in {**ELSEWHERE, **by_hand}.items() if (line + " ").startswith(start)), None)


PAGES = [ROOT / "README.md", *sorted(pages.GUIDE.glob("*.md"))]
HERE = [(page.name, [line for line in commands(page) if not place(line)]) for page in PAGES]


@pytest.mark.parametrize("page, lines", [(page, lines) for page, lines in HERE if lines])
def test_commands_of_a_page(shell, page, lines):
    for line in lines:
        if line.endswith(" ID"):
            line = line.removesuffix("ID") + re.findall(r"key_\w+", shell("aludel keys list").stdout)[0]
        if "aludel audit verify" in line or "--before" in line:
            # There is nothing so old; what is newer is archived.
            line = re.sub(r"--before \S+", "--before 2099-01-01", line)
        if line.startswith("aludel sandbox shell"):
            line = f"script -qec '{line}' /dev/null <<<exit"
        done = shell(line)
        assert done.returncode == 0, f"{page}: {line}\n{done.stdout}{done.stderr}"


def test_every_other_command_has_its_place():
    lines = [line for page in PAGES for line in commands(page)]
    assert len(lines) > 60
    places = [*ELSEWHERE.items(), *((start, where) for start, (_reason, where) in BY_HAND.items())]
    for start, where in places:
        assert (ROOT / where).exists(), where
        assert any((line + " ").startswith(start) for line in lines), f"no page has `{start}` any more"


def test_every_program_of_a_page_has_its_place():
    found = {(page.name, language) for page in PAGES for language in re.findall(r"^```([^\n]*)\n.*?^```$", page.read_text(), re.S | re.M)}
    assert {block for block in found if block[1] not in NOT_RUN} == set(BLOCKS)
    for where in BLOCKS.values():
        assert (ROOT / where).exists(), where
