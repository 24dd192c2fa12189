"""Are the router's token ids the engine's? Mixed bodies, every style of chat template, compared id by id.

usage: tests/real/tokens [--json] [--bodies N]    starts one vLLM that takes templates from requests, and asks its /tokenize
"""
import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fleet

TEMPLATES = Path(__file__).parent.parent / "fixtures" / "templates"
WORDS = ("the model reads a prompt and answers with token ids; def f(x): return {x: [1, 22, 333]}  # it's  fine\n\n\tÜmläute "
         "日本語 русский 😀 naïve 'quoted' \"double\" <b>html</b> & a/b\\c 12345.678e-9 <|im_end|> <think> </think> [INST] x").split(" ")


def text(r: random.Random, longest: int = 60) -> str:
    joined = r.choice([" ", " ", " ", "\n", "  "]).join(r.choice(WORDS) for _ in range(r.randint(1, longest)))
    return r.choice(["", "", " ", "\n"]) + joined + r.choice(["", "", " ", "\n\n"])


def content(r: random.Random):
    """A text, or parts."""
    if r.random() < 0.7:
        return text(r)
    return [{"type": "text", "text": text(r, 20)} for _ in range(r.randint(1, 3))]


def tool(r: random.Random, n: int) -> dict:
    function: dict = {"name": f"tool_{n}"}
    if r.random() < 0.7:
        function["description"] = text(r, 12)
    if r.random() < 0.8:
        kinds = [{"type": "string", "enum": ["a", "ü"]}, {"type": "number", "default": 1.0, "maximum": 1e20}, {"type": "integer", "minimum": -3}]
        function["parameters"] = {"type": "object", "properties": {f"p{i}": r.choice(kinds) for i in range(3)}, "required": ["p0"]}
    if r.random() < 0.3:
        function["strict"] = r.random() < 0.5
    return {"type": "function", "function": function}


def call(r: random.Random, n: int) -> dict:
    arguments = r.choice([json.dumps({"a": 1, "b": [True, None, 1.5], "c": "ü<>"}), "{}", "", "[1]", "{not json", '{"b": 2, "a": {"z": 1e-7}}'])
    return {"id": f"call{n:05d}", "type": "function", "function": {"name": f"tool_{r.randint(0, 2)}", "arguments": arguments}}


def chat(r: random.Random) -> dict:
    messages: list[dict] = []
    if r.random() < 0.6:
        messages.append({"role": r.choice(["system", "system", "system", "developer"]), "content": content(r)})
    for turn in range(r.randint(0, 4)):
        messages.append({"role": "user", "content": content(r)})
        if r.random() < 0.25:
            calls = [call(r, turn * 10 + i) for i in range(r.randint(1, 2))]
            messages.append({"role": "assistant", "content": r.choice([None, "", text(r, 5)]), "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": c["id"], "content": content(r)} for c in calls]
        answer: dict = {"role": "assistant", "content": content(r)}
        if r.random() < 0.3:
            answer["content"] = f"<think>\n{text(r, 9)}\n</think>\n\n{text(r, 9)}"
        elif r.random() < 0.3:
            answer["reasoning"] = text(r, 9)
        messages.append(answer)
    body: dict = {"messages": messages}
    if messages and messages[-1]["role"] == "assistant" and r.random() < 0.3:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    else:
        messages.append({"role": "user", "content": content(r)})
        if r.random() < 0.1:
            body["add_generation_prompt"] = False
    if r.random() < 0.3:
        body["tools"] = [tool(r, n) for n in range(r.randint(1, 3))]
    if r.random() < 0.3:
        body["chat_template_kwargs"] = {"enable_thinking": r.random() < 0.5, "date_string": "1 Jan 2026"}
    if r.random() < 0.1:
        body["add_special_tokens"] = True
    return body


def completion(r: random.Random) -> dict:
    body: dict = {"prompt": text(r, 200)}
    if r.random() < 0.2:
        body["add_special_tokens"] = False
    return body


def engine(port: int, body: dict) -> list[int] | None:
    """The engine's ids; None if it refuses the body."""
    data = json.dumps({"model": fleet.MODEL} | body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/tokenize", data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["tokens"]
    except urllib.error.HTTPError:
        return None


def homing(binary: Path, model: Path, template: Path | None, bodies: list[dict]) -> list[dict]:
    argv = [str(binary), "tokens", "--tokenizer", str(model), "--lines"] + (["--template", str(template)] if template else [])
    lines = "".join(json.dumps(b) + "\n" for b in bodies)
    out = subprocess.run(argv, input=lines, capture_output=True, text=True, check=True, timeout=300)
    return [json.loads(line) for line in out.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/real/tokens")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bodies", type=int, default=60, help="bodies a template")
    args = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="homing-tokens-"))
    replica = fleet.Replica("vllm", fleet.free_port())
    replica.more = ["--trust-request-chat-template"]
    report: dict = {"bodies": 0, "equal": 0, "both_refuse": 0, "different": []}
    try:
        replica.start(args.home, logs)
        replica.ready(300.0)
        styles: list[Path | None] = [None, *sorted(TEMPLATES.glob("*.jinja"))]
        for n, template in enumerate(styles):
            r = random.Random(1000 + n)
            bodies = [chat(r) for _ in range(args.bodies)] + ([completion(r) for _ in range(args.bodies)] if template is None else [])
            own = {"chat_template": template.read_text()} if template else {}
            with ThreadPoolExecutor(4) as pool:
                wanted = list(pool.map(lambda b: engine(replica.port, b | own), bodies))
            name = template.stem if template else "own"
            equal = 0
            for body, want, got in zip(bodies, wanted, homing(args.binary, args.home / "model", template, bodies)):
                report["bodies"] += 1
                if want is None and "error" in got:
                    report["both_refuse"] += 1
                elif want is not None and got.get("tokens") == want:
                    report["equal"] += 1
                    equal += 1
                else:
                    report["different"].append({"template": name, "body": body, "engine": want, "homing": got})
            print(f"{name}: {equal} equal of {len(bodies)}", file=sys.stderr)
    finally:
        fleet.stop_all()
    different = report["different"]
    for one in different[:3]:
        print(json.dumps(one)[:3000], file=sys.stderr)
    ok = not different and report["equal"] >= report["bodies"] * 0.6
    report |= {"different": len(different), "ok": ok}
    shutil.rmtree(logs)
    print(json.dumps(report) if args.json else f"tokens: {report['equal']} equal, {report['both_refuse']} refused by both, {len(different)} different")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
