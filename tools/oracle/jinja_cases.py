#!/usr/bin/env python3
"""Writes tests/data/jinja_cases.json: templates with what Python's Jinja2, set up as transformers does, makes of them.

usage: jinja_cases.py > tests/data/jinja_cases.json      (pip install jinja2==3.1.6)
Each case: {"template", "variables"?, "text"} or {"template", "variables"?, "error": the exception's type, "message"}.
"""
import json
import sys

import jinja2

from jinja_environment import environment

MESSAGES = {"messages": [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi", "items": 3},
    {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1, "b": [True, None]}}}]},
    {"role": "tool", "content": "42"}]}

# expressions: each is put between {{ and }}
EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 / 2
6 / 2
7 // 2
-7 // 2
7 % 3
-7 % 3
7 % -3
7.5 // 2
-7.5 % 2
7.5 % -2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
0 ** 0
1 / 0
1 // 0
1 % 0
0 ** -1
1.0 / 3
1e100
1e16
1e15
123456789012345678
1234567890123456.0
12345678901234567.0
0.1 + 0.2
1e-4
1e-5
1.5e-7
100.0
-0.0
3.0 * 2
1_000_000
0x1F
0b101
0o17
1.5e3
1_0.2_5
10000000000 * 10000000000
9223372036854775807 + 1
-9223372036854775808 - 1
true + 1
true == 1
1 == 1.0
"1" == 1
none == false
[] == ()
[1, 2] == [1, 2]
(1,) == (1, 2)
{"a": 1, "b": 2} == {"b": 2, "a": 1}
1 < 2 < 3
1 < 3 < 2
1 < 2 == 2
"a" < "b"
"Z" < "a"
"a" < 1
none < 1
[1, 2] < [1, 3]
[1] < [1, 0]
(1, 2) > (1,)
[1] < (1,)
1 < 1.5
1 in [1, 2]
1.0 in [1, 2]
"a" in "cat"
"" in ""
1 in "cat"
"x" not in "cat"
"a" in {"a": 1}
1 in {"a": 1}
[1] in {"a": 1}
1 in 5
1 in none
"a" in missing
missing in [1]
missing in "abc"
5 in range(3, 9)
5 in range(3, 9, 3)
not 1
not not 1
not missing
1 and 0
0 and missing.x
"" or "x"
[] or {} or none or 0
1 if true else 2
1 if false else 2
1 if false
(1 if false) is defined
(1 if false).x
"a" if missing else "b" if 1 else "c"
"a" ~ 1 ~ none ~ true ~ 1.5 ~ [1, "x"] ~ missing
"a" + "b"
"a" + 1
1 + "a"
"a" + none
"a" + ["b"]
[1] + [2]
(1,) + (2,)
[1] + (2,)
{} + {}
"ab" * 3
3 * "ab"
"ab" * -1
[1, 2] * 2
2 * (1, 2)
"a" * 1.5
[] * 5
-"a"
+true
-true
- - 3
-(3)
-3|abs
(-3)|abs
-3.5|abs
"x"|abs
missing + 1
missing * 2
missing.x
missing["x"]
missing()
-missing
missing < 1
missing == missing
missing == none
missing is none
missing ~ "x"
missing|length
missing|list
missing|upper
missing|int
missing|float
missing|default("d")
missing|tojson
missing|join
missing|first
missing|last
[missing]
missing is defined
missing is undefined
missing is iterable
missing is sequence
missing is string
missing is mapping
missing is callable
none.x
none.x.y
none["x"]
none|length
none is none
none|string
none|default("d")
none|default("d", true)
""|default("d", true)
""|default("d", boolean=true)
false|d("d")
[1, 2, 3][0]
[1, 2, 3][-1]
[1, 2, 3][3]
[1, 2, 3][-4]
[1, 2, 3]["a"]
[1, 2, 3][1.0]
[1, 2, 3][true]
[1, 2, 3].1
[1, 2, 3][none]
[1, 2, 3][3] is defined
[1, 2, 3][3].x
[1, 2, 3][1:]
[1, 2, 3][:2]
[1, 2, 3][::-1]
[1, 2, 3][::2]
[1, 2, 3][-2:]
[1, 2, 3][:-1]
[1, 2, 3][5:]
[1, 2, 3][2:1]
[1, 2, 3][-1:-3:-1]
[1, 2, 3][::-2]
[1, 2, 3][:1:-1]
[1, 2, 3][::0]
messages[1:"a"]
[1, 2, 3][none:2]
[1, 2, 3][::100000000000000000000]
[1, 2, 3][-100000000000000000000:100000000000000000000]
(1, 2, 3)[1:]
"hello"[1]
"hello"[-1]
"hello"[1:3]
"hello"[::-1]
"hello"[9]
"hello"[9:]
"héllo wörld"[1]
"héllo wörld"[7:9]
"héllo wörld"[::-1]
"héllo wörld"[::3]
"日本語"[1]
"日本語"|length
"🙂x"|length
"🙂x"[1]
messages[0][1:2]
messages[2].content[1:]
(messages|length)[1:]
messages.x[1:]
range(10)[2:5]
range(10)[::-3]
range(5)[1]
range(5)[9]
{"a": 1}.a
{"a": 1}["a"]
{"a": 1}.b
{"a": 1}["b"]
{"a": 1}.b.c
{"a": {"b": 2}}.a.b
{1: "x"}[1]
{1: "x"}[1.0]
{1: "x"}[true]
{true: "x"}[1]
{1: "a", 1.0: "b", true: "c"}
{none: 1}[none]
{(1, 2): 3}[(1, 2)]
{[1]: 2}
{"a": 1}[[1]]
{"a": 1, "a": 2}
{"items": 5}.items
{"items": 5}["items"]
{"x": 5}.items()
{"x": 5, "y": [1, "a'b"]}.items()|list
{"x": 5}.keys()
{"x": 5}.values()
{"x": 5}.keys()|list
{"x": 5}.keys()[0]
{"x": 5}.items()|length
{"x": 5}.get("x")
{"x": 5}.get("y")
{"x": 5}.get("y", 7)
{"x": 5}.get()
{"x": 5}.get("x", 1, 2)
{"x": 5}.get(default=1)
{"x": 5}.get([1])
{"x": 5}.copy()
{"x": 5}.pop("x")
{"x": 5}.pop
{"x": 5}.pop is defined
{"x": 5}.update({"y": 1})
{"x": 5}.__class__
{"x": 5}["__class__"]
{"__x": 5}.__x
[1].append(2)
[1].append
[1].append is undefined
[1].index(1)
[1].index(2)
[1, 2, 1].count(1)
[1, true, 1.0].count(1)
"a".upper()
"a".nothing
"a".nothing()
"a"["upper"]()
"a".upper(1)
1()
"a"()
none()
(1, 2)
(1,)
()
[]
{}
[1, "a", none, true, 1.5, [2], {"k": (1,)}]
["it's", 'say "x"', "both ' and \""]
["\n\t\r\\\x00\x7f\x1b"]
["é日🙂​ "]
["­؜￾"]
{"a": "b"}
{"x": {"y": []}}
[1.0, 1e20, 1e-7, 100000.0]
true
false
none
True ~ False ~ None
"a" "b" 'c'
"\u00e9\x41\101\n|\
x"
"\q\d"
"\é"
'\''
"tab\there"
1.5
1.
.5
"%s and %s" % ("a", 1)
"%s" % "a"
"%s" % ("a",)
"%s" % [1, 2]
"%s %s" % "a"
"%s" % (1, 2)
"x" % 1
"x" % []
"x" % {}
"x" % ()
"%d" % 3.7
"%d" % "3"
"%5d|%-5d|%05d|%+d" % (42, 42, 42, 42)
"%.2f" % 3.14159
"%8.3f|%-8.3f|%08.3f" % (3.14159, 3.14159, -3.14159)
"%e %g %g" % (12345.678, 0.00001, 123456789)
"%x %X %o %#x" % (255, 255, 8, 255)
"%r" % "it's"
"%5s|%-5s|%.2s" % ("ab", "ab", "abcdef")
"%%" % ()
"%c%c" % (65, "b")
"%(a)s-%(b)d" % {"a": 1, "b": 2}
"%(c)s" % {"a": 1}
"%(a)s" % 5
"%z" % 1
"%" % 1
"%*d" % (5, 42)
"%s" % none
"%s" % missing
"%d" % missing
"%s%%" % 50
"{} {}".format(1, "a")
"{0} {1} {0}".format(1, 2)
"{a} {b}".format(a=1, b=2)
"{a.x} {b[0]} {c[k]}".format(a={"x": 1}, b=[5], c={"k": 6})
"{:>5}|{:<5}|{:^5}|{:*^7}".format(1, 2, 3, "x")
"{:05d}|{:+d}|{:,}|{:x}|{:#x}|{:b}".format(42, 42, 1234567, 255, 255, 5)
"{:.2f}|{:8.3f}|{:e}|{:%}|{:g}".format(3.14159, 3.14159, 12345.678, 0.25, 0.0001)
"{!r} {!s}".format("a", "b")
"{{}} {}".format(1)
"{} {".format(1)
"{}".format()
"{0} {}".format(1, 2)
"{x}".format(y=1)
"{:{}}".format("a", 5)
"{:d}".format("a")
"{:s}".format(1)
"{}".format(none)
"{}".format([1, "a"])
"{:5}|{:5}".format("a", 1)
"{:.3}".format("abcdef")
"{:.3}".format(3.14159)
"{:10,.2f}".format(1234567.891)
"{0.__class__}".format(1)
"{}".format(missing)
"  a b ".strip()
"xxaxx".strip("x")
"xyaxy".lstrip("xy")
"xyaxy".rstrip("yx")
" a ".strip(none)
" a ".strip(1)
"\u00a0\u2003a\u3000\x1f".strip()|length
"\u200ba".strip()|length
"a,b,,c".split(",")
"a,b,c".split(",", 1)
"a,b,c".rsplit(",", 1)
"a,b,c".split(sep=",", maxsplit=1)
" a  b c ".split()
" a  b c ".split(none, 1)
" a  b c ".rsplit(none, 1)
"".split()
"".split(",")
"abc".split("")
"a--b-c".split("--")
"aXbXc".split("X")[-1]
"a\nb\r\nc\rd\u2028e".splitlines()
"a\nb\n".splitlines(true)
"".splitlines()
"a=b=c".partition("=")
"a=b=c".rpartition("=")
"abc".partition("=")
"abc".rpartition("=")
",".join(["a", "b"])
",".join([1])
",".join("abc")
"".join([])
"abcabc".replace("b", "X")
"abcabc".replace("b", "X", 1)
"abc".replace("", "-")
"abc".replace("", "-", 2)
"aaa".replace("aa", "b")
"abc".replace("b")
"abc".startswith("ab")
"abc".startswith(("x", "ab"))
"abc".endswith("bc")
"abc".endswith(["bc"])
"abc".startswith("b", 1)
"abc".endswith("b", 0, 2)
"abcabc".find("c")
"abcabc".rfind("c")
"abc".find("x")
"abc".index("x")
"héé".find("é")
"héé".rfind("é")
"abcabc".find("a", 1)
"banana".count("an")
"banana".count("")
"banana".count("a", 2)
"hELLO wORLD".capitalize()
"hello world it's o'neil".title()
"Hello".swapcase()
"ß".upper()
"ŉ ǆ ﬁ".title()
"ΑΣ ΑΣΑ Σ".lower()
"İ".lower()|length
"straße".casefold()
"ÀÉ".lower()
"123".isdigit()
"12³".isdigit()
"12³".isdecimal()
"½".isnumeric()
"".isdigit()
"abc".isalpha()
"abc1".isalnum()
" \t".isspace()
"Abc".islower()
"ABC1".isupper()
"123".isupper()
"Hello World".istitle()
"Hello world".istitle()
"a1_".isidentifier()
"1a".isidentifier()
"é".isascii()
"a\n".isprintable()
"ab".center(7)
"ab".center(6, "*")
"abc".center(6, "*")
"abc".center(7, "*")
"ab".ljust(5, ".") ~ "|"
"ab".rjust(5, ".")
"ab".ljust(5, "..")
"42".zfill(5)
"-42".zfill(5)
"prefix-x".removeprefix("prefix-")
"x-suffix".removesuffix("-suffix")
"a\tb\n\tc".expandtabs(4)
"{a}".format_map({"a": 1})
"Ab"|upper
"Ab"|lower
"hello WORLD"|capitalize
"hello wORLD foo-bar (baz) [qux] it's"|title
1|upper
none|upper
true|lower
"  x "|trim
"xxaxx"|trim("x")
"xxaxx"|trim(chars="x")
1|trim
["a", "b"]|join
["a", 1, none]|join(", ")
[{"n": "a"}, {"n": "b"}]|join("-", attribute="n")
"abc"|join(",")
5|join
"abc"|replace("b", "X")
"aaa"|replace("a", "b", 2)
"aaa"|replace("a", "b", count=1)
1|replace("1", 2)
"abc"|length
[1, 2]|length
{"a": 1}|length
5|length
[1, 2]|count
[1, 2, 3]|first
[]|first
"abc"|first
{"a": 1}|first
[1, 2, 3]|last
[]|last
"abc"|last
{"a": 1, "b": 2}|last
5|first
[3, 1, 2]|sort
[3, 1, 2]|sort(reverse=true)
["b", "A", "c"]|sort
["b", "A", "c"]|sort(case_sensitive=true)
[{"n": 2}, {"n": 1}]|sort(attribute="n")
[{"n": 2, "m": 1}, {"n": 1, "m": 2}, {"n": 1, "m": 1}]|sort(attribute="n,m")
[{"a": {"b": 2}}, {"a": {"b": 1}}]|sort(attribute="a.b")
[[2, "x"], [1, "y"]]|sort(attribute=0)
[1, "a"]|sort
"bca"|sort
{"b": 1, "a": 2}|sort
{"b": 1, "a": 2}|dictsort
{"b": 1, "a": 2}|dictsort(by="value")
{"b": 1, "A": 2}|dictsort
{"b": 1, "A": 2}|dictsort(true)
{"b": 1, "a": 2}|dictsort(reverse=true)
{"b": 1}|dictsort(by="x")
[1]|dictsort
[1, 2, 1, 3]|unique|list
["a", "A", "b"]|unique|list
["a", "A", "b"]|unique(true)|list
[{"n": 1}, {"n": 1}]|unique(attribute="n")|list
[[1]]|unique|list
[3, 1, 2]|min
[3, 1, 2]|max
["b", "A"]|min
["b", "A"]|max(case_sensitive=true)
[]|min
[{"n": 2}, {"n": 1}]|max(attribute="n")
[1, "a"]|max
[1, 2, 3]|sum
[1.5, 2]|sum
[[1], [2]]|sum(start=[])
["a"]|sum
[{"n": 2}, {"n": 3}]|sum(attribute="n")
[{"n": 2}, {"n": 3}]|sum("n", 10)
[1, 2, 3]|reverse|list
"abc"|reverse
[1, 2]|reverse is iterable
5|reverse
[1, 2, 3]|map("string")|list
["a", "b"]|map("upper")|join
[{"n": 1}, {}]|map(attribute="n")|list
[{"n": 1}, {}]|map(attribute="n", default=0)|list
[{"n": {"m": 1}}]|map(attribute="n.m")|list
[[1, 2], [3, 4]]|map(attribute=1)|list
[[1, 2], [3, 4]]|map(attribute="1")|list
["a-b"]|map("replace", "-", "+")|list
[1]|map("nothing")|list
[1]|map|list
[1]|map(attribute="a", foo=1)|list
[1]|map("nothing") is defined
5|map("string")|list
none|map("string")|list
missing|map("string")|list
[0, 1, 2, none, ""]|select|list
[0, 1, 2, none, ""]|reject|list
[1, 2, 3, 4]|select("even")|list
[1, 2, 3, 4]|reject("odd")|list
[1, 2, 3, 4]|select("greaterthan", 2)|list
[1, 2, 3]|select(">", 1)|list
[1]|select("nothing")|list
[1, "a", none]|select("string")|list
[1, 2]|select("in", [2])|list
[{"n": 1, "k": "a"}, {"n": 2, "k": "b"}]|selectattr("n", "equalto", 2)|list
[{"n": 1}, {"n": 0}, {}]|selectattr("n")|list
[{"n": 1}, {"n": 0}, {}]|rejectattr("n")|list
[{"n": 1}, {"m": 0}]|selectattr("n", "defined")|list
[{"n": 1}, {"m": 0}]|rejectattr("n", "defined")|list|length
[{"n": 1}]|selectattr|list
[{"n": {"t": "x"}}]|selectattr("n.t", "==", "x")|list|length
[1, 2, 3]|select("odd")|first
[1, 2, 3]|select("odd")|last
[1, 2, 3]|select("odd")|length
[1, 2, 3]|select("odd") is sequence
[{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "A", "v": 3}]|groupby("k")
[{"k": "a", "v": 1}, {"k": "b", "v": 2}]|groupby("k")|map(attribute="grouper")|list
([{"k": "a", "v": 1}]|groupby("k"))[0].list
[1, 2, 3, 4, 5]|batch(2)|list
[1, 2, 3, 4, 5]|batch(2, 0)|list
[1, 2, 3, 4, 5]|slice(2)|list
[1, 2, 3, 4, 5]|slice(3, "x")|list
{"a": 1}|items|list
{"a": 1}|items
[1]|items|list
missing|items|list
5|items is defined
"abc"|list
{"a": 1, "b": 2}|list
range(3)|list
5|list
"42"|int
" 42 "|int
"4_2"|int
"4.7"|int
"abc"|int
"abc"|int(7)
"ff"|int(base=16)
"0xff"|int(0, 16)
"0x1f"|int(0, 0)
"12"|int(0, 3)
4.9|int
-4.9|int
true|int
none|int
[]|int
"1e3"|int
""|int
"-5"|int
"inf"|int
"3.5"|float
"abc"|float
"abc"|float(1.5)
none|float
"1_0.5"|float
"inf"|float
"nan"|float
"1e3"|float
" 2 "|float
3|float
true|float
42.55|round
42.55|round(1)
42.55|round(1, "floor")
42.51|round(0, "ceil")
2.5|round
3.5|round
-2.5|round
2.675|round(2)
42|round
42|round(1)
1250|round(-2)
1350|round(-2)
1234.5|round(-2)
5|round(method="floor")
42.5|round(0, "up")
"x"|round
1e300|round(2)
"a<b>&'\""|e
"a<b"|escape
"a<b"|safe
("a<b"|safe)|e
("a<b"|e)|e
("a<b"|e)|forceescape
("<"|safe) + "<"
"<" + ("<"|safe)
("<"|safe) ~ "<"
"<" ~ ("<"|safe)
("<"|safe) ~ "<" + "<"
(("<"|safe) ~ "<") + "<"
(("<"|safe) + "<") + ">"
("%s"|safe) % "<"
("%s %d"|safe) % ("<", 3)
("%s"|safe) % ("<"|safe)
("%(a)s"|safe) % {"a": "<"}
("{}"|safe).format("<")
("{}"|safe).format("<"|safe)
("{:>3}"|safe).format("<")
("<"|safe) * 2
("<a"|safe)[0] + "<"
("<a"|safe).upper() + "<"
("<a"|safe)|upper + "<"
("<a "|safe)|trim + "<"
("<a"|safe)|title + "<"
("<a"|safe)|capitalize + "<"
("<a"|safe)|replace("a", "<") + "<"
("<a"|safe).replace("a", "<")
("<a"|safe).split("a")[0] + "<"
("<"|safe).join(["<", "a"|safe])
["<", "a"|safe]|join("<")
["<", "a"|safe]|join("<"|safe)
("<"|safe)|string + "<"
("<"|safe)|list
["<"|safe]
("<"|safe)|tojson
("<"|safe) == "<"
("<"|safe) is string
("<"|safe) is escaped
"<" is escaped
("<\na"|safe)|indent(2) + "<"
("<a"|safe)|center(6) + "<"
1|safe + "<"
none|safe + "<"
("<"|safe)|reverse + "<"
("a"|safe) in ["a"]
("<"|safe) + 1
{"<"|safe: 1}["<"]
"a\nb\n\nc"|indent
"a\nb\n\nc"|indent(2, true)
"a\nb\n\nc"|indent(2, blank=true)
"a\nb"|indent("> ")
"a\nb\n"|indent(1)
""|indent(2, first=true)
1|indent
"abc"|center(9) ~ "|"
"abcd"|center(9) ~ "|"
"%s-%s"|format("a", 1)
"%(a)s"|format(a=1)
"%s"|format
"%s"|format(1, a=2)
"foo bar baz qux"|truncate(9)
"foo bar baz qux"|truncate(9, true)
"foo bar baz qux"|truncate(11)
"foo bar baz qux"|truncate(9, false, "..", 0)
"foobarbaz qux and more"|truncate(6)
"hello world, it's me"|wordcount
"a b/c?d=é&"|urlencode
{"a": "b c", "d": 1}|urlencode
{"a": 1}|tojson
[1, 2.0, "x", none, true, {"b": []}]|tojson
{"a": {"b": [1, {}]}, "c": []}|tojson(indent=2)
{"a": {"b": [1, {}]}}|tojson(indent=0)
{"a": [1]}|tojson(indent="\t")
{"a": 1, "b": 2}|tojson(separators=(",", ":"))
{"a": 1, "b": 2}|tojson(separators=[",", ":"], indent=1)
{"b": 1, "a": 2}|tojson(sort_keys=true)
{"b": 1, 2: 2}|tojson(sort_keys=true)
"é<>&'\" \u2028 🙂 \x7f \x01"|tojson
"é<>&'\" \u2028 🙂 \x7f \x01"|tojson(ensure_ascii=true)
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
{(1, 2): 3}|tojson
(1, 2)|tojson
range(3)|tojson
{"a": 1}.items()|tojson
missing|tojson
namespace(a=1)|tojson
1e400|tojson
"nan"|float|tojson
"/"|tojson
{"a": 1}|tojson(false, 4)
{"a": missing}|tojson
"a"|attr("upper")
{"a": 1}|attr("a")
"a"|attr("x") is defined
namespace(a=1)|attr("a")
"a"|nothing
"a" is nothing
1 is nothing if false else 2
"a"|nothing if false else 2
1 if true else "a"|nothing
("a"|nothing if false else 2) ~ 1
1 is odd
2 is even
"a" is odd
6 is divisibleby 3
6 is divisibleby(4)
6 is not divisibleby 4
1 is integer
true is integer
1.0 is integer
1.0 is float
1 is number
true is number
"1" is number
true is boolean
1 is boolean
true is true
1 is true
false is false
none is false
"a" is string
1 is string
{} is mapping
[] is mapping
[] is sequence
() is sequence
"" is sequence
{} is sequence
1 is sequence
range(1) is sequence
{}.items() is sequence
[] is iterable
1 is iterable
none is iterable
{}.keys() is iterable
range is callable
"a".upper is callable
1 is callable
"abc" is lower
"ABC" is upper
"aBc" is lower
1 is lower
none is sameas none
true is sameas true
1 is sameas true
1 is in [1]
"a" is in "cat"
3 is eq 3
3 is equalto 4
3 is ne 4
3 is gt 2
3 is ge 3
3 is lt 4
3 is le 2
3 is greaterthan 2
3 is lessthan 2
"upper" is filter
"nothing" is filter
"odd" is test
"nothing" is test
missing is defined and missing.x
not missing is defined
1 is not none
1 is defined is defined
x is defined or y is defined
range(3)
range(1, 4)
range(0, 10, 3)|list
range(5, 0, -2)|list
range(0)|list
range(1, 2, 0)
range()
range("a")
range(1.0)
range(100000)|length
range(100001)
range(0, 1000000, 10)|length
range(3).stop
dict(a=1, b=2)
dict({"a": 1}, b=2)
dict([("a", 1), ("b", 2)])
dict([1])
dict(a=1).a
namespace(a=1).a
namespace(a=1).b
namespace(a=1)
namespace({"x": 2}, a=1).x
namespace(a=1)["a"]
namespace(a=1) is mapping
raise_exception("boom")
raise_exception()
raise_exception(1)
raise_exception("a", "b")
strftime_now("%Y-%m-%d")|length
strftime_now("")|length
strftime_now("abc")
strftime_now(1)
cycler("a", "b").next()
cycler()
joiner("|")() ~ "x"
[1, 2, 3]|map("add")|list
messages
messages[0].role
messages[-1]["content"]
messages[1].items
messages[1]["items"]
messages[0].items()|list
messages|map(attribute="role")|join(",")
messages|selectattr("role", "equalto", "user")|list|length
messages|selectattr("role", "in", ["user", "tool"])|map(attribute="content")|list
messages[2].tool_calls[0].function.arguments|tojson
messages[2].tool_calls[0].function.arguments|items|list
messages[2].tool_calls[0].function.arguments
messages[2].content ~ "x"
messages[2].content|trim
messages[2].content + "x"
messages[2].reasoning_content is defined
messages[2].tool_calls is iterable and messages[2].tool_calls is not string
messages[9]
messages[9].role
messages[1:]|length
messages[::-1][0].role
(messages|last).role
messages|length - 1
messages[0]["role"] == "system"
messages["0"]
messages.0.role
foo.bar.baz
foo is defined and foo.bar
*a
1 2
[1, 2
1 +
"abc
a b
{"a" 1}
{"a": 1,}
[1, 2,]
(1, 2,)
f(1,)
"a".upper(,)
f(a=1, 2)
f(*[1], **{"a": 2})
f(**{"a": 1}, b=2)
dict(**{"a": 1})
range(*[1, 3])|list
dict(a=1, **{"a": 2})
1 if
if
x.y.
x.1.2
x[]
x|
x|1
x is
@
$x
a ? b
1;2
a = 1
[1, 2, 3][1:2:3:4]
not
1 not in [2]
1 not 2
é
"a"|upper|lower|title
("a")|upper
[1,2,3]|length == 3
"a" ~ "b"|upper
"a" + "b"|upper
1 + 2|string|length
-1|string
[1, 2]|join(",")|length + 1
{"a": [1, 2, {"b": "c"}]}.a[2].b
loop
caller
varargs
kwargs
"x" if loop is defined else "no loop"
""" .strip("\n")

TEMPLATES = [
    # text and white space
    "", "a", "a\n", "a\n\n", "\n", "\n\n", "a\r\nb\rc\n", "{{ 1 }}\n", "{{ 1 }}\n\n", "a\n{{ 1 }}\nb",
    "{% if 1 %}\na\n{% endif %}\nb", "  {% if 1 %}\n  a\n  {% endif %}\n  b", "x  {% if 1 %}  a  {% endif %}  y",
    "  {{ 1 }}  ", "\t{% set x = 1 %}\t\nz", "  {%+ if 1 %}a{% endif %}", "  {% if 1 +%}\n  a{% endif %}",
    "a \n {%- if 1 -%} \n b \n {%- endif -%} \n c", "a {{- 1 -}} b", "a {{+ 1 }} b", "  {# c #}\nx", " a {# c #} \nx", "{#- c -#}  x",
    "a  {#- c -#}\n\n  x", "{# a\nb #}\n{{ 1 }}", "{##}x", "{#-#}x", "{#--#}x", "{# {{ x }} #}", "{# a", "{# a #} b #}", "\n\n  {% if 1 %}  \n\n  x{% endif %}",
    "a\n  {% set x = 1 %}  \nb", "a\n  {% set x = 1 -%}  \nb", "a\n  {%- set x = 1 %}  \nb", "a\u00a0{%- if 1 -%}\u2003b{% endif %}",
    "a\u00a0\n\u00a0{% if 1 %}b{% endif %}", "a\n\x0b{% if 1 %}b{% endif %}", "{% if 1 %}\r\na{% endif %}", "\ufeff{{ 1 }}",
    "{% raw %}{{ x }}{% endraw %}", "{% raw -%}  {{ x }}  {%- endraw %}", " {% raw %}\n a {% if %}\n {% endraw %}\nb", "{%- raw -%} a {%- endraw -%} b", "{% raw %}", "{% raw %}{% endraw", "a {%+ raw %}x{% endraw +%}\nb", "{%raw%}a{%endraw%}", "{% raw %}{% raw %}{% endraw %}", "{% rawx %}", "  {% raw %}  x\n  {% endraw %}", "{% endraw %}",
    "{", "{{", "{%", "{#", "{{ ", "{% if", "a { b } c", "a }} b %} c #} d", "{ {", "{{ '}}' }}", "{{ '%}' }}", "{% if '%}' %}a{% endif %}", "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}}}", "{{ {} }}", "{{ (1 }}", "{{ 1) }}", "{{ [1) }}", "{{ }}", "{{ 1, 2 }}", "{{ 1, }}", "{{}}", "{% %}", "{%%}", "{% 1 %}",
    # if
    "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}", "{% if 0 %}a{% elif 0 %}b{% else %}c{% endif %}", "{% if missing %}a{% endif %}", "{% if 1 %}", "{% endif %}", "{% if %}{% endif %}", "{% if 1 %}a{% else %}b{% else %}c{% endif %}", "{% if 1: %}a{% else: %}b{% endif %}",
    "{% if 1 if 0 else 1 %}a{% endif %}", "{% if (1 if 0 else 1) %}a{% endif %}", "{% if 1, 0 %}a{% endif %}", "{% if not missing and 1 %}a{% endif %}",
    "{% if 0 %}{{ 'a'|nothing }}{% endif %}b", "{% if 1 %}{{ 'a'|nothing }}{% endif %}b", "{% if 0 %}{% for x in [] %}{{ x|nothing }}{% endfor %}{% endif %}", "{% if 0 %}{% else %}{{ 'a' is nothing }}{% endif %}", "{% if 0 %}{% set x %}{{ 1|nothing }}{% endset %}{% endif %}", "{% if 0 %}{% for x in []|nothing %}{% endfor %}{% endif %}",
    # for
    "{% for x in [1, 2, 3] %}{{ x }},{% endfor %}", "{% for x in [] %}a{% else %}b{% endfor %}", "{% for x in [1] %}a{% else %}b{% endfor %}", "{% for x in missing %}a{% else %}b{% endfor %}", "{% for x in none %}a{% endfor %}", "{% for x in 5 %}{% endfor %}", "{% for c in 'añ🙂' %}{{ c }}.{% endfor %}",
    "{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}", "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in {'a': 1}|items %}{{ k }}={{ v }}{% endfor %}", "{% for k, v in {'ab': 1} %}{{ k }}{{ v }}{% endfor %}", "{% for k, v in [1] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", "{% for a, in [(1,)] %}{{ a }}{% endfor %}",
    "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for x in [1, 2, 3] %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}", "{% for x in [1, 2] %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for x in [1] %}{{ loop.previtem.role }}{% endfor %}", "{% for x in range(5) %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}", "{% for x in [1] %}{{ loop.nothing }}{% endfor %}", "{% for x in [1] %}{{ loop.nothing.x }}{% endfor %}", "{% for x in [1, 2] %}{{ loop|length }}{% endfor %}",
    "{% for x in range(10) if x is odd %}{{ x }}/{{ loop.index }}/{{ loop.length }}/{{ loop.last }} {% endfor %}", "{% for x in range(3) if x > 5 %}a{% else %}none{% endfor %}", "{% for x in [1, 2] if loop is defined %}{{ x }}{% endfor %}", "{% for x in [3, 4] %}{% for y in [1, 2] if y == loop.index %}{{ x }}{{ y }} {% endfor %}{% endfor %}",
    "{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in [1] %}{% break %}{% else %}else{% endfor %}", "{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}", "{% for x in [1, 2] %}{% continue %}{% else %}else{% endfor %}", "{% break %}", "{% for x in [1] %}{% else %}{% break %}{% endfor %}", "{% for x in [1] %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% for x in [1, 2] %}a{% set y %}b{% break %}c{% endset %}d{% endfor %}e", "{% for x in [1, 2] %}a{% filter upper %}b{% break %}c{% endfilter %}d{% endfor %}e", "{% for x in [1, 2] %}a{% with %}b{% break %}{% endwith %}{% endfor %}e", "{% for x in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "{% for x in [1, 2] %}{% for y in [1, 2] %}{% break %}{% endfor %}{{ x }}{% endfor %}",
    "{% for x in [1, 2] %}{% for y in 'ab' %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}", "{% set x = 0 %}{% for i in [1, 2] %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% for i in [1, 2] %}{% if i == 1 %}{% set y = 5 %}{% endif %}{{ y }}|{% endfor %}", "{% for x in [1] %}{% endfor %}{{ x }}", "{% for x in [1, 2] %}{{ x }}{% set x = 9 %}{{ x }} {% endfor %}", "{% for loop in [1] %}{{ loop }}{% endfor %}", "{% for x in [1] %}{% set loop = 2 %}{% endfor %}", "{% set loop = 2 %}{{ loop }}", "{% for x in [1] %}{% else %}{% set loop = 2 %}{% endfor %}", "{% for x in [1] recursive %}{{ x }}{% endfor %}", "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}[{{ loop(x) }}]{% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}", "{% for x in [1] %}{{ loop([]) }}{% endfor %}",
    "{% for x in [1, 2, 3]|select('odd') %}{{ x }}{{ loop.length }}{% endfor %}", "{% set g = [1, 2]|select %}{% for x in g %}{{ x }}{% endfor %}{% for x in g %}{{ x }}{% else %}empty{% endfor %}", "{% set g = [1, 2, 3]|map('string') %}{{ g|first }}{{ g|list }}", "{% set m = messages[1:] %}{% for x in m %}{{ x.role }}{% endfor %}", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "{% for m in messages %}{% if not loop.first and loop.previtem.role == 'user' %}{{ m.role }}{% endif %}{% endfor %}",
    "{% set ns = namespace(stop=false) %}{% for x in [1, 2, 3] if not ns.stop %}{{ x }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% set ns = namespace(stop=false) %}{% for x in [1, 2, 3] if not ns.stop %}{{ x }}{{ loop.last }}{% if x == 2 %}{% set ns.stop = true %}{% endif %}{% endfor %}", "{% for x in [1, 2] if x|nothing %}{% endfor %}", "{% for in [1] %}{% endfor %}", "{% for x [1] %}{% endfor %}", "{% for x in [1] %}", "{% for 1 in [1] %}{% endfor %}", "{% for true in [1] %}{% endfor %}", "{% for x in 1, 2 %}{{ x }}{% endfor %}", "{% for x in [1] if 1 else [2] %}{% endfor %}", "{% for x.y in [1] %}{% endfor %}",
    # set
    "{% set x = 1 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x, y = [1] %}", "{% set (x, y) = 1, 2 %}{{ x + y }}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ 1 }}{% endset %}{{ x }}|{{ x|length }}", "{% set x | upper %}ab{% endset %}{{ x }}", "{% set x | upper | replace('A', 'z') %}ab{% endset %}{{ x }}", "{% set x %}<{% endset %}{{ x + '<' }}", "{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}", "{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.n = i %}{% endfor %}{{ ns.n }}", "{% set ns = {'a': 1} %}{% set ns.a = 2 %}", "{% set missing_ns.a = 2 %}", "{% set ns = namespace() %}{% set ns.a %}x{% endset %}{{ ns.a }}", "{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "{% set x[0] = 1 %}", "{% set x.y.z = 1 %}", "{% set true = 1 %}", "{% set 1 = 1 %}", "{% set x = %}", "{% set x %}", "{% set x = y = 1 %}", "{% set x = 1 if 0 %}{{ x is defined }}", "{% set x = 1 if 0 else 2 %}{{ x }}", "{{ x }}{% set x = 1 %}{{ x }}", "{% if 1 %}{% set x = 1 %}{% endif %}{{ x }}", "{% if 0 %}{% set x = 1 %}{% endif %}{{ x is defined }}", "{% set messages = messages[1:] %}{{ messages|length }}", "{% set range = 5 %}{{ range }}", "{% set x = x|default(3) %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}", "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self is defined }}", "{% set a = [1] %}{% set b = a + [2] %}{{ a }}{{ b }}", "{% set x, = [1] %}{{ x }}",
    # macro, call, caller
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(b=5, a=4) }}|{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, x=3) }}", "{% macro m(a) %}{{ varargs }}{% endmacro %}{{ m(1, 2) }}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(1) }}", "{% macro m(a, b=missing) %}{{ b is defined }}{% endmacro %}{{ m(1) }}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m %}{% endmacro %}", "{% macro m() %}{% endmacro %}{{ m }}", "{% macro m() %} x {% endmacro %}[{{ m() }}]", "{% macro m() -%} x {%- endmacro %}[{{ m() }}]", "{% macro m() %}<{% endmacro %}{{ m() + '<' }}{{ m() is string }}", "{{ m() }}{% macro m() %}{% endmacro %}", "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% macro m() %}{{ x }}{% endmacro %}{% for x in [1] %}{{ m() }}{% endfor %}", "{% macro m() %}{% set x = 5 %}{% endmacro %}{{ m() }}{{ x is defined }}", "{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", "{% macro m() %}{% macro n() %}x{% endmacro %}{{ n() }}{% endmacro %}{{ m() }}{{ n is defined }}", "{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}a{% endcall %}", "{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}a{% endcall %}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% call 1 %}{% endcall %}", "{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% set y = 3 %}{% call m(1) %}{{ y }}{% endcall %}", "{% macro m(x) %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ m(1) }}{% endfor %}", "{% macro m(x) %}{% for y in x %}{{ loop.index }}{{ y }}{% endfor %}{% endmacro %}{% for i in [1] %}{{ m('ab') }}{{ loop.index }}{% endfor %}", "{% macro m(x) %}{{ x.name }}{% endmacro %}{{ m.name }}", "{% macro m(x) %}{{ x }}{% endmacro %}{{ [1, 2]|map('m')|list }}", "{% macro m(*a) %}{% endmacro %}", "{% if 1 %}{% macro m() %}a{% endmacro %}{% endif %}{{ m() }}", "{% macro m() %}{{ missing.x }}{% endmacro %}{{ m() }}", "{% macro m(x=[]) %}{{ x }}{% endmacro %}{{ m() }}{{ m([1]) }}{{ m(none) }}", "{%- macro a(x) -%}\n  {{- x }}\n{%- endmacro -%}\n{{ a('q') }}\n",
    # other tags
    "{% filter upper %}ab{{ 'c' }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aa{% endfilter %}", "{% filter nothing %}{% endfilter %}", "{% filter length %}abc{% endfilter %}", "{% set x | length %}abc{% endset %}{{ x + 1 }}", "{% filter upper %}{% set x = 1 %}{% endfilter %}{{ x is defined }}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}{{ a }}", "{% print 1 %}", "{% print 1, 'a' %}", "{% generation %}a{{ 1 }}{% set x = 2 %}{% endgeneration %}{{ x is defined }}", "{%- generation -%} a {%- endgeneration -%} b", "{% generation %}", "{% do x %}", "{% nothing %}", "{% endfor %}", "{% set a = namespace(x=[]) %}{% for i in range(3) %}{% set a.x = a.x + [i] %}{% endfor %}{{ a.x }}", "{% set j = joiner(', ') %}{% for i in range(3) %}{{ j() }}{{ i }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set x = 'a' %}{% set x = x ~ 'b' %}{{ x }}",
    "{{ raise_exception('The \"text\"\nitself: ' ~ 1) }}", "{% if messages[0].role != 'user' %}{{ raise_exception('first must be user') }}{% endif %}", "{% for m in messages %}{% if loop.index0 % 2 == 0 %}{{ m.role }}{% endif %}{% endfor %}",
    "{{ bos_token }}{% if tools %}T{% endif %}{{ tools }}", "{%- for t in tools or [] %}{{ t }}{% endfor %}", "{{ messages[0]['content'].strip() + ' ' }}|", "{{- '<|im_start|>' + messages[0].role + '\n' }}x", "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = message['role'] %}{% if loop.index0 == 0 %}{% set content = 'B' + content %}{% endif %}{{ content }}{% endfor %}",
    "{% set x = messages|selectattr('role', '==', 'tool')|first %}{{ x.content }}", "{% set x = messages|selectattr('role', '==', 'nobody')|first %}{{ x is defined }}{{ x }}", "{% set ns = namespace(i=0) %}{% for m in messages %}{% set ns.i = ns.i + 1 %}{% endfor %}{{ ns.i }}", "{{ messages | tojson(indent=4) }}", "{%- set a -%}\n x \n{%- endset -%}\n[{{ a }}]",
]


def main():
    env = environment()
    cases = []
    for template in ["{{ " + e + " }}" for e in EXPRESSIONS.replace("\\\nx", "\\\x00x").split("\n")] + TEMPLATES:
        case = {"template": template.replace("\x00", "\n")}
        if "messages" in template:
            case["variables"] = MESSAGES
        try:
            case["text"] = env.from_string(case["template"]).render(**case.get("variables", {}))
        except RecursionError:
            sys.exit("RecursionError: " + template)
        except Exception as e:  # whatever Python raises is what the template does
            case["error"] = type(e).__name__
            case["message"] = str(e)
        if " at 0x" not in case.get("text", "") and "<function" not in case.get("text", ""):
            cases.append(case)
    print(f"{len(cases)} cases, {sum('error' in c for c in cases)} errors, jinja2 {jinja2.__version__}", file=sys.stderr)
    print("[\n" + ",\n".join(json.dumps(c, ensure_ascii=True) for c in cases) + "\n]")


if __name__ == "__main__":
    main()
