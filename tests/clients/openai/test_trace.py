"""The stream has the order and the shape of one that OpenAI itself sent (trace.json)."""

import json
from itertools import groupby
from pathlib import Path

import pytest

TRACE = json.loads((Path(__file__).parent / "trace.json").read_text())
TYPES = {"integer": int, "string": str, "boolean": bool, "list": list, "object": dict, "null": type(None), "number": (int, float)}


@pytest.fixture(scope="module")
def events(client):
    stream = client.responses.with_streaming_response.create(
        model="scripted",
        input="ponder: three programs and a link",
        include=["code_interpreter_call.outputs"],
        tools=[{"type": "code_interpreter", "container": {"type": "auto"}}],
        stream=True,
    )
    with stream as response:
        frames = "".join(response.iter_text()).split("\n\n")
    frames = [frame.split("\n") for frame in frames if frame and not frame.startswith(":")]
    for name, data in frames:
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]
    return [json.loads(data.removeprefix("data: ")) for _, data in frames]


def test_order(events):
    seen = [kind for kind, _ in groupby(event["type"] for event in events) if "reasoning" not in kind]
    assert seen == [kind for block in TRACE["order"] for kind in TRACE["blocks"][block]]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert items == [block for block in TRACE["order"] if block not in ("begin", "end")]


def differs(value, shape, path):
    """Returns the paths at which a value is not of its shape; additional fields do not matter."""
    if isinstance(shape, str) and shape in TYPES:
        good = isinstance(value, TYPES[shape]) and (shape == "boolean" or not isinstance(value, bool))
        return [] if good else [f"{path}: {value!r:.50} is no {shape}"]
    if shape == "item":
        shape = value["type"]
    if shape == "usage" and value is None:
        return []
    if not isinstance(value, dict):
        return [f"{path}: {value!r:.50} is no {shape}"]
    found = []
    for key, inner in TRACE["objects"][shape].items():
        if key not in value:
            found.append(f"{path}.{key} is missing")
            continue
        found += differs(value[key], inner, f"{path}.{key}")
        if isinstance(value[key], list):
            for place, element in enumerate(value[key]):
                found += differs(element, element["type"], f"{path}.{key}[{place}]")
    return found


def test_shape(events):
    found = []
    for event in events:
        if "reasoning" in event["type"]:
            continue  # The model of the recording kept its thoughts to itself.
        for key, shape in TRACE["events"][event["type"]].items():
            found += differs(event.get(key), shape, f"{event['type']}.{key}")
    assert not found


def test_one_container_and_exact_offsets(events):
    calls = [event["item"] for event in events if event.get("item", {}).get("type") == "code_interpreter_call"]
    assert len({call["container_id"] for call in calls}) == 1
    added = next(event["item"] for event in events if event["type"] == "response.output_item.added" and "code" in event["item"])
    assert (added["status"], added["code"], added["outputs"]) == ("in_progress", "", [])
    text = next(event["text"] for event in events if event["type"] == "response.output_text.done")
    cited = next(event["annotation"] for event in events if event["type"] == "response.output_text.annotation.added")
    assert text[cited["start_index"] : cited["end_index"]] == "sandbox:/mnt/data/sums.csv"
