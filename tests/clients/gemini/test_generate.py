"""Answers with programs, by Google's Python client."""

import asyncio
import base64
import hashlib
import io

import pytest
from google import genai
from google.genai import errors, types

import pages
from server import MODEL as CONFIGURATION
from server import Server, scripted_model

MODEL = "gemini-scripted"
CODE = types.GenerateContentConfig(tools=[types.Tool(code_execution=types.ToolCodeExecution())])


@pytest.fixture(scope="session")
def server():
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        yield server


def client_of(server, api_key="any", version=None):
    # The client closes its connections with itself, so tests hold it.
    options = types.HttpOptions(base_url=server.url, api_version=version)
    return genai.Client(api_key=api_key, http_options=options)


@pytest.fixture(scope="session")
def client(server):
    return client_of(server)


def parts(answer):
    return answer.candidates[0].content.parts or []


def kinds(parts):
    return [next(iter(part.model_dump(exclude_none=True))) for part in parts]


@pytest.mark.parametrize("version", [None, "v1beta"])
def test_an_answer_has_the_program_and_its_result(server, version):
    client = client_of(server, version=version)
    answer = client.models.generate_content(model=MODEL, contents="the factorial of 7?", config=CODE)
    assert kinds(parts(answer)) == ["executable_code", "code_execution_result", "text"]
    assert "math.factorial(7)" in answer.executable_code
    result = parts(answer)[1].code_execution_result
    assert (result.outcome, result.output) == (types.Outcome.OUTCOME_OK, "5040\n")
    assert answer.text == "The factorial of 7 is 5040."
    assert answer.candidates[0].finish_reason == types.FinishReason.STOP
    assert answer.usage_metadata.total_token_count > 0


def test_a_chart_is_a_part(client):
    answer = client.models.generate_content(model=MODEL, contents="a chart", config=CODE)
    images = [part.inline_data for part in parts(answer) if part.inline_data]
    assert [image.mime_type for image in images] == ["image/png"]
    assert images[0].data.startswith(b"\x89PNG")


def test_a_stream_comes_in_frames(client):
    stream = client.models.generate_content_stream(model=MODEL, contents="fails first", config=CODE)
    frames = list(stream)
    told = [part for frame in frames for part in parts(frame)]
    outcomes = [part.code_execution_result.outcome for part in told if part.code_execution_result]
    assert outcomes == [types.Outcome.OUTCOME_FAILED, types.Outcome.OUTCOME_OK]
    assert "".join(part.text for part in told if part.text) == "It is mended."
    assert frames[-1].candidates[0].finish_reason == types.FinishReason.STOP


def test_asynchronous_clients_hear_the_same(client):
    async def ask():
        stream = await client.aio.models.generate_content_stream(model=MODEL, contents="2**20", config=CODE)
        return [part async for frame in stream for part in parts(frame)]

    assert "1048576" in "".join(part.text or "" for part in asyncio.run(ask()))


def test_a_chat_goes_on_in_the_same_kernel(client):
    chat = client.chats.create(model=MODEL, config=CODE)
    assert chat.send_message("set y").text == "y is set."
    assert chat.send_message("get y").text == "y is kept."


def test_a_file_of_the_message_is_there_and_one_that_is_made_is_linked(client):
    sales = types.Part.from_bytes(data=b"date,amount\n2026-01-05,10\n2026-02-01,7\n", mime_type="text/csv")
    listing = types.Part.from_text(text="write a file")
    answer = client.models.generate_content(model=MODEL, contents=[sales, listing], config=CODE)
    assert "/v1/links/" in answer.text and "note.txt" in answer.text


def test_an_uploaded_file_is_there(client, tmp_path):
    path = tmp_path / "sales.csv"
    path.write_bytes(b"date,amount\n2026-01-05,10\n2026-02-01,7\n")
    sales = client.files.upload(file=path)
    assert (sales.state, sales.size_bytes, sales.mime_type) == (types.FileState.ACTIVE, 39, "text/csv")
    assert client.files.get(name=sales.name).uri == sales.uri
    assert sales.name in [file.name for file in client.files.list(config={"page_size": 1})]
    assert client.files.download(file=sales) == path.read_bytes()
    answer = client.models.generate_content(model=MODEL, contents=[sales, "How much were the sales of each month?"], config=CODE)
    assert "2026-02     7" in parts(answer)[1].code_execution_result.output
    client.files.delete(name=sales.name)
    with pytest.raises(errors.ClientError) as gone:
        client.files.get(name=sales.name)
    assert gone.value.status == "NOT_FOUND"


def test_a_large_file_comes_in_pieces(client):
    config = {"display_name": "noise", "mime_type": "application/octet-stream"}
    content = bytes(range(256)) * (4 << 12) * 5
    noise = client.files.upload(file=io.BytesIO(content), config=config)
    assert (noise.display_name, noise.size_bytes) == ("noise", 20 << 20)
    assert client.files.download(file=noise) == content


def test_a_file_has_the_id_that_its_client_chose(client):
    config = {"name": "files/chosen-1", "mime_type": "text/csv"}
    made = client.files.upload(file=io.BytesIO(b"a\n1"), config=config)
    assert made.name == "files/chosen-1"
    assert base64.b64decode(made.sha256_hash).decode() == hashlib.sha256(b"a\n1").hexdigest()
    assert client.files.get(name="chosen-1") == made
    with pytest.raises(errors.ClientError) as taken:
        client.files.upload(file=io.BytesIO(b"a\n1"), config=config)
    assert (taken.value.code, taken.value.status) == (409, "ALREADY_EXISTS")
    client.files.delete(name=made.name)


def test_a_function_of_the_client_is_called_by_it(client):
    def get_weather(city: str) -> str:
        """Tells the weather."""
        return f"sunny, in {city}"

    config = CODE.model_copy(update={"tools": [*CODE.tools, get_weather]})
    answer = client.models.generate_content(model=MODEL, contents="runs and asks", config=config)
    assert answer.text.endswith("Both: 43.") or "Both" in answer.text


def test_errors_are_the_clients_own(client):
    with pytest.raises(errors.ClientError) as unknown:
        client.models.generate_content(model="nobody", contents="hello")
    assert (unknown.value.code, unknown.value.status) == (404, "NOT_FOUND")
    search = types.GenerateContentConfig(tools=[types.Tool(google_search=types.GoogleSearch())])
    with pytest.raises(errors.ClientError, match="googleSearch") as refused:
        client.models.generate_content(model=MODEL, contents="hello", config=search)
    assert refused.value.status == "INVALID_ARGUMENT"


def test_models_and_tokens(client):
    assert f"models/{MODEL}" in [model.name for model in client.models.list()]
    assert client.models.get(model=MODEL).display_name == MODEL
    assert client.models.count_tokens(model=MODEL, contents="hello there").total_tokens > 0


def test_a_key_is_needed_where_there_are_keys():
    with scripted_model() as port, Server(CONFIGURATION.format(name=MODEL, port=port)) as server:
        key = server.key("one")
        with_key, without = client_of(server, key), client_of(server, "wrong")
        assert with_key.models.generate_content(model=MODEL, contents="hello").text
        with pytest.raises(errors.ClientError) as refused:
            without.models.generate_content(model=MODEL, contents="hello")
        assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")
        kept = with_key.files.upload(file=io.BytesIO(b"1"), config={"mime_type": "text/plain"})
        assert kept.name in [file.name for file in with_key.files.list()]


def test_the_program_of_the_guide(server):
    program, _ = pages.programs("gemini.md")
    assert "1048576" in pages.run(program, server.url, MODEL)
