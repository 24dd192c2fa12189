"""Stands between a publisher of KV events and the router, and loses a share of the messages. Runs in vLLM's venv (pyzmq).

usage: kv_proxy.py PUBLISHER_PORT LISTEN_PORT CONTROL_FILE      the file holds the share to lose, 0..1; it is read for each message
"""
import random
import sys
from pathlib import Path

import zmq


def main() -> None:
    publisher, listen, control = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    context, rng = zmq.Context(), random.Random(5)
    source, out = context.socket(zmq.SUB), context.socket(zmq.PUB)
    source.connect(f"tcp://127.0.0.1:{publisher}")
    source.setsockopt(zmq.SUBSCRIBE, b"")
    out.bind(f"tcp://127.0.0.1:{listen}")
    while True:
        message = source.recv_multipart()
        if rng.random() >= float(control.read_text() or 0):
            out.send_multipart(message)


if __name__ == "__main__":
    main()
