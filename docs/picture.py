#!/usr/bin/env python3
"""Draws docs/demo.svg: runs the demo on a terminal of its own and keeps the last picture and the summary.

usage: docs/picture.py [BINARY]        (default: target/release/homing)
"""
import html
import os
import pty
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "target/release/homing")


def last_screen():
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(BINARY, ["homing", "demo", "--listen", "127.0.0.1:0"])
    seen = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
        if not piece:
            break
        seen += piece
    _, status = os.waitpid(pid, 0)
    if status:
        sys.exit(f"the demo failed: {status}")
    frames = re.split(r"\x1b\[\d+A\x1b\[J", seen.decode().replace("\r", ""))
    return frames[-1].rstrip("\n").split("\n")


def svg(lines):
    width, step, top = 1000, 19, 34
    height = top + step * (len(lines) + 2)
    rows = [
        f'<text x="18" y="{top + step * n}" class="{"p" if line.startswith("$") else "t"}" xml:space="preserve">{html.escape(line)}</text>'
        for n, line in enumerate(["$ homing demo", "", *lines])
    ]
    style = "text{font:14px ui-monospace,Menlo,Consolas,monospace;fill:#d6dbe4}.p{fill:#8fd3a7}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="Homing beside round robin">'
        f'<style>{style}</style><rect width="{width}" height="{height}" rx="10" fill="#12161d"/>{"".join(rows)}</svg>\n'
    )


(ROOT / "docs/demo.svg").write_text(svg(last_screen()))
