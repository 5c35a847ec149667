"""Clients that mean no good, and servers behind us that do not work."""

import concurrent.futures
import json
import os
import socket
import subprocess
import time

import openai
import pytest
from openai import OpenAI

from conftest import Server
from test_responses import AUTO, ask, calls, ended


def connect(server, body, path="/v1/responses"):
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def memory(server):
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) << 10


def test_a_body_of_100_mb_is_refused_before_it_is_read(server):
    before = memory(server)
    connection = connect(server, b"")
    head = "POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 104857600\r\n\r\n"
    connection = socket.create_connection(connection.getpeername())
    connection.sendall(head.encode() + b"{" * 1000)
    assert connection.recv(1000).startswith(b"HTTP/1.1 413")
    assert memory(server) - before < 50 << 20


def test_a_slow_reader_costs_little(server):
    body = json.dumps({"model": "gpt-5", "input": "prints much", "tools": [AUTO], "stream": True}).encode()
    before = memory(server)
    readers = [connect(server, body) for _ in range(5)]
    [reader.recv(100) for reader in readers]
    time.sleep(5)
    assert memory(server) - before < 200 << 20
    # Others are served meanwhile, and the turn has ended although nobody read of it.
    assert ask(server.client(), "2**20").status == "completed"
    [reader.close() for reader in readers]


def test_ids_of_another_tenant_do_not_exist(upstream):
    with Server(upstream) as server:
        keys = []
        for name in ("ada", "eve"):
            command = [*os.environ.get("ALUDEL", "aludel").split(), "keys", "create", name, "--data", server.directory.name]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            keys.append(next(word for word in printed.split() if word.startswith("sk-")))
        ada, eve = (OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0) for key in keys)
        with pytest.raises(openai.AuthenticationError):
            ask(OpenAI(base_url=server.url + "/v1", api_key="sk-wrong"), "hello")
        file = ada.files.create(file=("a.csv", b"a"), purpose="user_data")
        response = ask(ada, "Please write a file", background=True)
        response = ended(ada, response)
        container = calls(response)[0].container_id
        cited = next(iter(ada.containers.files.list(container)))
        conversation = ada.conversations.create(items=[{"type": "message", "role": "user", "content": "hi"}])
        auto = {"type": "auto", "file_ids": [file.id]}
        for theft in (
            lambda: eve.files.retrieve(file.id),
            lambda: eve.files.content(file.id),
            lambda: eve.responses.retrieve(response.id),
            lambda: eve.responses.cancel(response.id),
            lambda: eve.responses.delete(response.id),
            lambda: eve.responses.input_items.list(response.id),
            lambda: list(eve.responses.retrieve(response.id, stream=True)),
            lambda: ask(eve, "more", previous_response_id=response.id),
            lambda: ask(eve, "more", conversation=conversation.id),
            lambda: ask(eve, "2**20", tools=[{"type": "code_interpreter", "container": container}]),
            lambda: ask(eve, "2**20", tools=[{"type": "code_interpreter", "container": auto}]),
            lambda: eve.containers.retrieve(container),
            lambda: eve.containers.files.list(container),
            lambda: eve.containers.files.content.retrieve(cited.id, container_id=container),
            lambda: eve.containers.delete(container),
            lambda: eve.conversations.retrieve(conversation.id),
            lambda: eve.conversations.items.list(conversation.id),
        ):
            with pytest.raises((openai.NotFoundError, openai.BadRequestError), match="not found|No such|does not exist"):
                theft()
        # A replayed call that names a container of somebody else's gets one of its own.
        item = calls(response)[0].model_dump()
        mine = ask(eve, [{"role": "user", "content": "x"}, item, {"role": "user", "content": "Please read the file"}])
        assert calls(mine)[0].container_id != container and "a note" not in mine.output_text
        assert not list(eve.files.list()) and len(list(eve.containers.list())) == 1
        assert ada.files.retrieve(file.id).bytes == 1


def test_a_thousand_containers_at_once(upstream):
    with Server(upstream) as server:
        client = OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)

        def create(number):
            try:
                return client.containers.create(name=f"c{number}").id
            except openai.RateLimitError as error:
                return error

        with concurrent.futures.ThreadPoolExecutor(100) as threads:
            made = list(threads.map(create, range(1000)))
        ids = {one for one in made if isinstance(one, str)}
        assert len(ids) > 100 and memory(server) < 300 << 20
        assert server.sandboxes() <= 4, "only the pool: nobody ran anything"


@pytest.mark.parametrize("fault", ["upstream hangs up", "upstream says 500", "upstream says 401"])
def test_a_broken_upstream_is_a_proper_error(server, fault):
    client = server.client(max_retries=0)
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError):
            ask(client, fault, stream=stream)


def test_a_conversation_that_is_too_long_is_cut_where_that_is_allowed(client):
    history = [{"role": role, "content": "word"} for role in ("user", "assistant") * 6]
    history.append({"role": "user", "content": "a long story"})
    assert ask(client, history, truncation="auto").output_text == "You said: a long story"
    with pytest.raises(openai.BadRequestError, match="context length"):
        ask(client, history)


def test_thoughts_survive_a_replay(client):
    first = ask(client, "think", include=["reasoning.encrypted_content"], store=False)
    (thoughts,) = [item for item in first.output if item.type == "reasoning"]
    assert thoughts.encrypted_content and thoughts.content[0].text == "Let me see. "
    history = [{"role": "user", "content": "think"}, *[item.model_dump(exclude_none=True) for item in first.output]]
    second = ask(client, [*history, {"role": "user", "content": "think more"}], store=False)
    assert "I remember." in second.output_text
