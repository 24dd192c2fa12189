"""The surface that a client sees: shapes of answers and errors, tools, and fields that the router does not know."""
import json
import re
import urllib.request

import openai

from drive import ask, client
from fleet import MODEL, Replica, Router

HELLO = [{"role": "user", "content": "hello there"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "set_unit", "description": "Sets the unit of temperatures.", "strict": True,
        "parameters": {
            "type": "object", "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
            "required": ["unit"], "additionalProperties": False,
        },
    },
}


def _post(port: int, path: str, body: bytes) -> tuple[int, dict, dict]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def _openai_shape(body: dict) -> dict:
    error = body.get("error")
    assert isinstance(error, dict) and {"message", "type", "param", "code"} <= set(error), f"not OpenAI's error shape: {body}"
    return error


def whole_answer(router: Router, replicas: list[Replica]) -> None:
    turn = ask(client(router.url), HELLO, stream=False)
    assert turn.finished and turn.prompt_tokens > 0, turn


def streamed_answer(router: Router, replicas: list[Replica]) -> None:
    turn = ask(client(router.url), HELLO, stream=True)
    assert turn.finished and turn.answer and turn.prompt_tokens > 0 and turn.ttft_s, turn


def same_as_direct(router: Router, replicas: list[Replica]) -> None:
    """The same greedy answer as without the router."""
    for stream in (True, False):
        direct, routed = (ask(client(url), HELLO, stream) for url in (replicas[0].url, router.url))
        assert direct.answer == routed.answer and direct.prompt_tokens == routed.prompt_tokens, (direct, routed)


def usage_only_if_asked(router: Router, replicas: list[Replica]) -> None:
    """A client that did not ask for usage in its stream does not see any, nor chunks without choices."""
    chunks = list(client(router.url).chat.completions.create(model=MODEL, messages=HELLO, stream=True, max_tokens=4))
    assert chunks and all(chunk.choices and not chunk.usage for chunk in chunks), chunks


def tool_calls(router: Router, replicas: list[Replica]) -> None:
    """A forced tool call comes back as one, streamed and whole.

    The weights are random, so the tokens of the wanted answer get a bias; the engine's grammar does the rest.
    """
    wanted = '{"unit":"celsius"}}</tool_call>'
    _, body, _ = _post(router.port, "/tokenize", json.dumps({"model": MODEL, "prompt": wanted, "add_special_tokens": False}).encode())
    options = dict(
        model=MODEL, messages=HELLO, tools=[TOOL], max_tokens=96, tool_choice={"type": "function", "function": {"name": "set_unit"}},
        logit_bias={str(token): 100 for token in body["tokens"]},
    )
    sdk = client(router.url)
    answer = sdk.chat.completions.create(**options)
    calls = answer.choices[0].message.tool_calls
    assert calls and calls[0].function.name == "set_unit", answer
    assert json.loads(calls[0].function.arguments)["unit"] in ("celsius", "fahrenheit"), calls
    names = [
        call.function.name
        for chunk in sdk.chat.completions.create(stream=True, **options) for choice in chunk.choices for call in choice.delta.tool_calls or []
        if call.function and call.function.name
    ]
    assert names == ["set_unit"], names


def unknown_model(router: Router, replicas: list[Replica]) -> None:
    for stream in (False, True):
        try:
            client(router.url).chat.completions.create(model="no-such-model", messages=HELLO, stream=stream)
        except openai.NotFoundError as error:
            assert MODEL in str(error) and _openai_shape({"error": error.body}), error
        else:
            raise AssertionError("an unknown model was accepted")


def bad_json(router: Router, replicas: list[Replica]) -> None:
    status, body, _ = _post(router.port, "/v1/chat/completions", b'{"model": "bench",\n "messages": [}')
    error = _openai_shape(body)
    assert status == 400, (status, body)
    assert re.search(r"line 2\D+column \d+", error["message"]), f"no line and column: {error['message']}"


def engine_errors_pass(router: Router, replicas: list[Replica]) -> None:
    """What only the engine can judge, the engine answers: here a temperature out of range."""
    body = json.dumps({"model": MODEL, "messages": HELLO, "temperature": -3}).encode()
    direct, routed = _post(replicas[0].port, "/v1/chat/completions", body), _post(router.port, "/v1/chat/completions", body)
    assert routed[0] == direct[0] == 400 and routed[1]["error"]["message"] == direct[1]["error"]["message"], (direct, routed)


def unknown_fields_pass(router: Router, replicas: list[Replica]) -> None:
    """Fields of the engine that no OpenAI schema has take effect; fields that nobody knows do no harm."""
    answer = client(router.url).chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=7,
        extra_body={"ignore_eos": True, "return_token_ids": True, "x_nobody_knows": {"deep": [1, 2**70, "caf\u00e9 \U0001f600"]}},
    )
    assert answer.usage.completion_tokens == 7, answer.usage
    assert answer.model_extra.get("prompt_token_ids"), answer.model_extra


def models(router: Router, replicas: list[Replica]) -> None:
    assert [model.id for model in client(router.url).models.list()] == [MODEL]


def other_paths(router: Router, replicas: list[Replica]) -> None:
    """Paths beside the chat ones reach a replica too."""
    body = json.dumps({"model": MODEL, "prompt": "import os"}).encode()
    status, answer, _ = _post(router.port, "/tokenize", body)
    assert status == 200 and answer["count"] > 0, answer
    completion = client(router.url).completions.create(model=MODEL, prompt="import os", max_tokens=3, extra_body={"ignore_eos": True})
    assert completion.usage.completion_tokens == 3, completion


def request_id(router: Router, replicas: list[Replica]) -> None:
    """The id that a client gives comes back."""
    raw = client(router.url).chat.completions.with_raw_response.create(
        model=MODEL, messages=HELLO, max_tokens=2, extra_headers={"x-request-id": "given-by-client-1"}
    )
    assert raw.headers.get("x-request-id") == "given-by-client-1", dict(raw.headers)


CHECKS = [
    whole_answer, streamed_answer, same_as_direct, usage_only_if_asked, tool_calls, unknown_model, bad_json, engine_errors_pass,
    unknown_fields_pass, models, other_paths, request_id,
]
