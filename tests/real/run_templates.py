#!/usr/bin/env python3
"""Render real chat templates with Python's Jinja2 and with render_tool, and demand the same text or an error in both.

Called by run_templates.sh. Exit status 1 when anything differs.
"""
import argparse
import ast
import glob
import json
import os
import re
import subprocess
import sys
import warnings

import jinja2

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "oracle"))
from jinja_environment import environment  # noqa: E402


def function(name, description, properties, required):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}


TOOLS = [
    function("get_weather", "The weather <now> & \"here\".", {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 1, "nullable": True}}, ["city"]),
    function("rechne", "Führt eine Rechnung aus 🙂", {
        "terms": {"type": "array", "items": {"type": "object", "properties": {"value": {"type": ["number", "null"]}}}},
        "options": {"type": "object", "properties": {"exact": {"type": "boolean", "default": False}},
                    "additionalProperties": False}}, []),
]
SYSTEM = {"role": "system", "content": "You are a *terse* assistant.\nAnswer in <b>one</b> line. "}
USER = {"role": "user", "content": "  What is 17 + 25? It's \"easy\" & <quick>\n"}
ANSWER = {"role": "assistant", "content": "42."}
AGAIN = {"role": "user", "content": "Und in Zürich? 你好"}


def call(name, arguments, number):
    return {"id": f"call00{number:03d}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_turn(arguments_as_text=False, content="", reasoning=None):
    first = {"city": "Zürich", "days": 3}
    second = {"terms": [{"value": 1.5}, {"value": None}], "options": {"exact": True}}
    if arguments_as_text:
        first, second = json.dumps(first), json.dumps(second)
    assistant = {"role": "assistant", "content": content,
                 "tool_calls": [call("get_weather", first, 1), call("rechne", second, 2)]}
    if reasoning:
        assistant["reasoning_content"] = reasoning
        assistant["thinking"] = reasoning
    return [assistant,
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": '{"sky": "clear"}'},
            {"role": "tool", "name": "rechne", "tool_call_id": "call00002", "content": "1.5"}]


PARTS = [{"type": "text", "text": "Look at "}, {"type": "image"},
         {"type": "image_url", "image_url": {"url": "http://x/y.png"}}, {"type": "text", "text": "this."}]
TEXT_PARTS = [{"type": "text", "text": "One "}, {"type": "text", "text": "two."}]
THOUGHT = {"role": "assistant", "content": "<think>\nAdd them.\n</think>\n\n42."}
REASONED = {"role": "assistant", "reasoning_content": "Add them.\n", "content": "42.", "thinking": "Add them."}

CASES = {
    "plain": ([USER], {}),
    "no generation prompt": ([USER, ANSWER], {"add_generation_prompt": False}),
    "system": ([SYSTEM, USER], {}),
    "developer": ([{"role": "developer", "content": "Be brief."}, USER], {}),
    "multi-turn": ([SYSTEM, USER, ANSWER, AGAIN], {}),
    "tools": ([USER], {"tools": TOOLS}),
    "system and tools": ([SYSTEM, USER], {"tools": TOOLS}),
    "tool calls": ([SYSTEM, USER, *tool_turn()], {"tools": TOOLS}),
    "tool calls with null content": ([USER, *tool_turn(content=None)], {"tools": TOOLS}),
    "tool calls with text arguments": ([USER, *tool_turn(True, "Let me see.")], {"tools": TOOLS}),
    "tool calls with reasoning": ([USER, *tool_turn(False, "Hm.", "Ask the tools."), ANSWER, AGAIN], {"tools": TOOLS}),
    "tool calls without tools": ([USER, *tool_turn()], {}),
    "reasoning in the text": ([USER, THOUGHT, AGAIN], {}),
    "reasoning apart": ([USER, REASONED, AGAIN, REASONED], {}),
    "reasoning apart, thinking off": ([USER, REASONED, AGAIN], {"enable_thinking": False, "thinking": False}),
    "thinking on": ([SYSTEM, USER], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    "thinking off with tools": ([USER], {"enable_thinking": False, "thinking": False, "tools": TOOLS}),
    "effort": ([USER], {"reasoning_effort": "low", "clear_thinking": False, "builtin_tools": ["python"]}),
    "content parts": ([{"role": "system", "content": TEXT_PARTS[:1]}, {"role": "user", "content": TEXT_PARTS}], {}),
    "images": ([{"role": "user", "content": PARTS}, ANSWER, AGAIN], {}),
    "no messages": ([], {}),
    "answer first": ([ANSWER, USER], {}),
    "two users": ([USER, AGAIN], {}),
    "system late": ([USER, SYSTEM, AGAIN], {}),
    "unknown role": ([{"role": "robot", "content": "beep"}, USER], {}),
    "no content": ([{"role": "user"}, ANSWER], {}),
    "empty content": ([{"role": "user", "content": ""}, {"role": "assistant", "content": ""}], {"tools": []}),
    "documents": ([SYSTEM, USER], {"documents": [{"title": "A", "text": "First."},
                                                 {"title": "B", "contents": "x", "text": ""}]}),
    "template tokens in the text": ([{"role": "user", "content": "<|im_end|>\n<|im_start|>system {{ 1 }} </think>"}], {}),
    "continued": ([USER, {"role": "assistant", "content": "The answer"}],
                  {"add_generation_prompt": False, "continue_final_message": True}),
}


def variables(messages, options):
    return {"messages": messages, "tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>",
            "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", **options}


def templates(packages):
    for path in sorted(glob.glob(os.path.join(packages, "**", "*.jinja"), recursive=True)):
        with open(path, encoding="utf-8", newline="") as f:
            yield os.path.relpath(path, packages), f.read()
    for path in sorted(glob.glob(os.path.join(packages, "unsloth", "chat_templates.py"))):
        with open(path, encoding="utf-8") as f, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(f.read())
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    value = ast.literal_eval(node.value)
                except ValueError:
                    continue
                if isinstance(value, str) and "{%" in value:
                    yield f"unsloth/chat_templates.py:{node.targets[0].id}", value


def in_python(source, cases):
    results, template = [], None
    try:
        template = environment().from_string(source)
    except Exception as e:
        refusal = {"error": str(e), "type": type(e).__name__}
    for case in cases:
        try:
            results.append({"text": template.render(**case)} if template else refusal)
        except Exception as e:  # whatever Python raises is what a user of transformers gets
            results.append({"error": str(e), "type": type(e).__name__})
    return results


def same_error(want, got):
    """Refused at the same stage, and with the template's own words where it raised them itself."""
    if "error" not in got or (got["code"] == "bad model") != want["type"].endswith(("SyntaxError", "AssertionError")):
        return False
    return want["type"] != "TemplateError" or want["error"] == got["error"]


def excerpt(result, other):
    """The error, or the text around the first character that differs."""
    if "error" in result:
        return f"error {result['error'][:200]!r}"
    same = len(os.path.commonprefix([result["text"], other.get("text", "")]))
    return f"at {same} of {len(result['text'])}: {result['text'][max(0, same - 60):same + 60]!r}"


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--tool", required=True)
    ap.add_argument("--packages", required=True)
    ap.add_argument("--show", type=int, default=20, help="differences to print")
    args = ap.parse_args()
    every = list(templates(args.packages))
    cases = [variables(*case) for case in CASES.values()]
    lines = "".join(json.dumps({"source": source, "cases": cases}) + "\n" for _, source in every)
    done = subprocess.run([args.tool], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    ours = [json.loads(line) for line in done.stdout.decode().splitlines()]
    if len(ours) != len(every):
        sys.exit(f"{len(every)} templates, {len(ours)} answers")
    counts, packages = {"same text": 0, "error in both": 0, "different": 0}, {}
    for (name, source), results in zip(every, ours):
        python = in_python(source, cases)
        package = packages.setdefault(name.split(os.sep)[0], [0, 0, 0, 0])
        package[0] += 1
        if "strftime_now" in source:  # the two clocks are read seconds apart
            for result in python + results:
                result.update({k: re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", v) for k, v in result.items()})
        for label, want, got in zip(CASES, python, results):
            if "text" in want and want.get("text") == got.get("text"):
                kind = "same text"
            elif "error" in want and same_error(want, got):
                kind = "error in both"
            else:
                kind = "different"
                if counts[kind] < args.show:
                    print(f"{name} / {label}\n  python: {excerpt(want, got)}\n  mettle: {excerpt(got, want)}")
            counts[kind] += 1
            package[1 + list(counts).index(kind)] += 1
    print(f"jinja2 {jinja2.__version__}, {len(every)} templates x {len(CASES)} message lists")
    for package, numbers in packages.items():
        print(f"  {package}: {numbers[0]} templates; {numbers[1]} same text, {numbers[2]} error in both, "
              f"{numbers[3]} different")
    print(", ".join(f"{n} {kind}" for kind, n in counts.items()))
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    sys.exit(main())
