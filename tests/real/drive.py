"""Multi-turn conversations over shared system prompts, driven with the OpenAI Python SDK.

The order of turns is drawn from a seed, so that every pass sees the same traffic. Users answer at once; a few are in flight together.
"""
import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import openai

from fleet import MODEL

SYSTEMS = 4
CONVERSATIONS = 20
TURNS = 5
IN_FLIGHT = 4
ANSWER_TOKENS = 24
SYSTEM_WORDS = 840
USER_WORDS = 170

_WORDS = (
    "import return class value path file open read write list table number string result error index block cache model token "
    "request answer server client stream buffer thread process memory queue worker batch prefix replica router latency"
).split()


def text(seed: str, words: int) -> str:
    """Words in an order that only the seed decides."""
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def client(url: str) -> openai.OpenAI:
    """An SDK client that shows failures instead of hiding them behind its own retries."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120.0)


@dataclass
class Turn:
    """One request and what became of it."""

    stream: bool
    sent: float
    begun: bool = False
    """A part of the answer arrived, if only its headers."""
    ttft_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    predicted_tokens: int | None = None
    replica: str | None = None
    answer: str = ""
    finished: bool = False
    error: str | None = None
    error_event: bool = False
    """The answer ended with an error event, as an OpenAI stream reports it."""

    @property
    def failed(self) -> bool:
        return not self.finished


def ask(sdk: openai.OpenAI, messages: list[dict], stream: bool, max_tokens: int = ANSWER_TOKENS) -> Turn:
    """Sends one chat request; never raises for what the server or the network does."""
    turn = Turn(stream=stream, sent=time.monotonic())
    options = dict(model=MODEL, messages=messages, max_tokens=max_tokens, temperature=0.0, extra_body={"ignore_eos": True},
                   extra_headers={"x-homing-explain": "1"})
    try:
        if stream:
            options["stream_options"] = {"include_usage": True}
        raw = sdk.chat.completions.with_raw_response.create(stream=stream, **options)
        turn.begun = True
        turn.replica = raw.headers.get("x-homing-replica")
        predicted = raw.headers.get("x-homing-cached-tokens")
        turn.predicted_tokens = int(predicted) if predicted is not None else None
        if stream:
            _read_stream(raw.parse(), turn)
        else:
            answer = raw.parse()
            turn.answer = answer.choices[0].message.content or ""
            turn.finished = answer.choices[0].finish_reason is not None
            _usage(turn, answer.usage)
    except openai.APIConnectionError as error:
        turn.error = f"{type(error).__name__}: {error.__cause__ or error}"
    except openai.APIError as error:
        turn.error, turn.error_event = str(error), True
    except Exception as error:  # what httpx raises in the middle of a body is not wrapped by the SDK
        turn.error = f"{type(error).__name__}: {error}"
    return turn


def _read_stream(chunks, turn: Turn) -> None:
    parts = []
    for chunk in chunks:
        if chunk.usage:
            _usage(turn, chunk.usage)
        for choice in chunk.choices:
            # The first chunk only names the role: the first token is the one after it.
            if choice.delta.content or choice.finish_reason:
                turn.ttft_s = turn.ttft_s or time.monotonic() - turn.sent
            parts.append(choice.delta.content or "")
            turn.finished |= choice.finish_reason is not None
    turn.answer = "".join(parts)
    if not turn.finished:
        turn.error = "the stream ended without a finish reason and without an error"


def _usage(turn: Turn, usage) -> None:
    turn.prompt_tokens = usage.prompt_tokens
    if usage.prompt_tokens_details:
        turn.cached_tokens = usage.prompt_tokens_details.cached_tokens or 0


@dataclass
class Pass:
    """All turns of one run through the conversations."""

    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.failed]

    @property
    def ttft_mean_ms(self) -> float:
        times = [turn.ttft_s for turn in self.turns if turn.ttft_s is not None]
        return 1000 * sum(times) / len(times) if times else 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for turn in self.turns)

    @property
    def computed_tokens(self) -> int:
        """By the usage of the answers."""
        return sum(turn.prompt_tokens - turn.cached_tokens for turn in self.turns)


def converse(
    choose: Callable[[int], openai.OpenAI], *, seed: int, conversations: int = CONVERSATIONS, turns: int = TURNS, in_flight: int = IN_FLIGHT,
    stream: Callable[[int], bool] = lambda number: True, after_each: Callable[[int], None] = lambda done: None,
) -> Pass:
    """Runs the conversations.

    `choose` gives the client for the n-th request (so round robin is `clients[n % 2]`), `stream` whether it streams, `after_each` is
    called with the count of requests that are over. Each round takes the conversations in a new order: a fixed one over an even number
    of replicas would make round robin sticky by accident.
    """
    rng = random.Random(seed)
    order = [one for _ in range(turns) for one in rng.sample(range(conversations), conversations)]
    history = [[{"role": "system", "content": text(f"system {number % SYSTEMS}", SYSTEM_WORDS)}] for number in range(conversations)]
    turn_of = [0] * conversations
    busy = [threading.Lock() for _ in range(conversations)]
    todo, numbers, lock = iter(order), itertools.count(), threading.Lock()
    result = Pass()

    def work() -> None:
        while True:
            with lock:
                conversation = next(todo, None)
                if conversation is None:
                    return
                number = next(numbers)
                # Held from here on, so that the turns of a conversation stay in order. Only the round before can hold it.
                busy[conversation].acquire()
            try:
                turn_of[conversation] += 1
                messages = history[conversation]
                messages.append({"role": "user", "content": text(f"{seed} {conversation} {turn_of[conversation]}", USER_WORDS)})
                turn = ask(choose(number), messages, stream(number))
                messages.append({"role": "assistant", "content": turn.answer})
            finally:
                busy[conversation].release()
            with lock:
                result.turns.append(turn)
                done = len(result.turns)
            after_each(done)

    begin = time.monotonic()
    workers = [threading.Thread(target=work, daemon=True) for _ in range(in_flight)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    result.seconds = time.monotonic() - begin
    return result
