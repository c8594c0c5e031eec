#!/usr/bin/env bash
# Compares Mettle's chat template engine with Python's Jinja2, set up as transformers does, on the templates of real
# models (full tier, by hand: it downloads four packages, 150 MB, and jinja2; about two minutes).
#   tests/real/run_templates.sh [BUILD_FOLDER]
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build}
work=$build/real
mkdir -p "$work"
cmake --build "$build" --target render_tool
[ -x "$work/venv/bin/python" ] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet jinja2==3.1.6 markupsafe==3.0.4
"$work/venv/bin/python" "$root/scripts/fetch_pinned.py" --pins "$root/tests/real/template_pins.txt" --dest "$work/packages"
"$work/venv/bin/python" "$root/tests/real/run_templates.py" --tool "$build/tests/real/render_tool" --packages "$work/packages"
