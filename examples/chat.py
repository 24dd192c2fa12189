#!/usr/bin/env python3
"""Two turns of a conversation through Homing with the OpenAI SDK (`pip install openai`).

usage: examples/chat.py [BASE_URL] [MODEL]        (default: http://localhost:8080/v1, the first model that is served)

Nothing here is Homing's own but the header that asks where the request went.
"""
import sys

from openai import OpenAI

base = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8080/v1"
client = OpenAI(base_url=base, api_key="unused")
model = sys.argv[2] if len(sys.argv) > 2 else client.models.list().data[0].id

messages = [{"role": "system", "content": "You are the support desk of a railway. " * 40}]
for question in ("When does the last train leave?", "And the first?"):
    messages.append({"role": "user", "content": question})
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=messages, max_tokens=40, extra_headers={"x-homing-explain": "1"}
    )
    answer = raw.parse().choices[0].message.content
    messages.append({"role": "assistant", "content": answer})
    where, cached = raw.headers["x-homing-replica"], raw.headers["x-homing-cached-tokens"]
    print(f"{question}\n  {answer}\n  ({where}, {cached} prompt tokens believed cached)")
