// Chat templates come with a checkpoint and are untrusted: errors with their line, limits, deep and cyclic things.
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "text/chat_template.h"
#include "text/jinja_unicode.h"

namespace mettle {
namespace {

using Json = nlohmann::ordered_json;

// The text, or "kind: message" of the error.
std::string render(std::string_view source, const Json& variables = Json::object()) {
  try {
    return ChatTemplate(source).render(variables);
  } catch (const Error& e) {
    return (e.code == Code::kBadModel ? "bad: " : e.code == Code::kInvalidRequest ? "invalid: " : "?: ") + e.message;
  }
}

std::string times(int n, const std::string& s) {
  std::string out;
  for (int i = 0; i < n; i++) out += s;
  return out;
}

// One loop round of every character that Python's classes know, against sums taken from Python.
TEST(JinjaUnicode, CaseMapsOfAllCharacters) {
  std::string all;
  for (uint32_t c = 0x20; c < 0x20000; c++) {
    if (c < 0xD800 || c > 0xDFFF) jinja::append_char(all, c);
  }
  EXPECT_TRUE(jinja::is_utf8(all));
  const auto growth = [&](const std::string& mapped) {
    return jinja::is_utf8(mapped) ? int(jinja::count_chars(mapped)) - int(jinja::count_chars(all)) : -1;
  };
  EXPECT_EQ(growth(jinja::to_upper(all)), 118);
  EXPECT_EQ(growth(jinja::to_lower(all)), 1);
  EXPECT_EQ(growth(jinja::to_title(all)), 10);
}

TEST(JinjaUnicode, InvalidUtf8IsFound) {
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF0\x9F\x99", "a\xFF"})
    EXPECT_FALSE(jinja::is_utf8(bad)) << bad;
  EXPECT_TRUE(jinja::is_utf8("é日🙂\xF4\x8F\xBF\xBF"));
}

TEST(ChatTemplateErrors, ParsingNamesTheLine) {
  EXPECT_EQ(render("a\nb{% if %}"), "bad: chat template, line 2: expected an expression, got the end of the tag");
  EXPECT_EQ(render("{% if 1 %}\n\nx"), "bad: chat template, line 3: the template ends, but 'endif' is missing");
  EXPECT_EQ(render("{% include 'x' %}"), "bad: chat template, line 1: unknown or unsupported tag 'include'");
  EXPECT_EQ(render("\n{{ 1|nothing }}"), "bad: chat template, line 2: no filter named 'nothing'");
  EXPECT_EQ(render("{{ 'a"), "bad: chat template, line 1: unexpected character '''");
  EXPECT_EQ(render("{{ '\\ud800' }}"), "bad: chat template, line 1: an escape in a string is no character");
  EXPECT_EQ(render("a\xff"), "bad: chat template: must be UTF-8, got bytes that are not");
  const std::string big = "1" + std::string(50, '0');
  EXPECT_EQ(render("{{ " + big + " }}"),
            "bad: chat template, line 1: an integer must have at most 127 bits, got " + big);
  EXPECT_EQ(render(std::string(5 << 20, 'x')), "bad: chat template: must have at most 4194304 bytes, got 5242880");
}

TEST(ChatTemplateErrors, RenderingNamesTheLine) {
  EXPECT_EQ(render("a\n{{ x.y }}"), "invalid: chat template, line 2: 'x' is undefined");
  EXPECT_EQ(render("{{ m.x.y }}", {{"m", Json::object()}}),
            "invalid: chat template, line 1: 'dict object' has no attribute 'x'");
  EXPECT_EQ(render("{{ [].append(1) }}"),
            "invalid: chat template, line 1: access to attribute 'append' of 'list' object is unsafe.");
  EXPECT_EQ(render("{{ 'a' + m }}", {{"m", Json::array({"b"})}}),
            "invalid: chat template, line 1: unsupported operand types for +: 'str' and 'list'");
  EXPECT_EQ(render("{{ raise_exception('own words') }}"), "invalid: own words");
  EXPECT_EQ(render("{{ range(100001)|length }}"),
            "invalid: chat template, line 1: range: must have at most 100000 items, got 100001");
  // Messages are UTF-8 and short whatever the template holds.
  EXPECT_EQ(render("{{ '%é' % 1 }}"), "invalid: chat template, line 1: unsupported format character 0xc3");
  EXPECT_EQ(render("{{ '{:é}'.format(1) }}"), "invalid: chat template, line 1: format: invalid specification 'é'");
  EXPECT_LT(render("{{ {}['" + times(100000, "é") + "'].x }}").size(), 1100u);
  EXPECT_LT(render("{{ " + times(100000, "1") + " }}").size(), 1100u);
  EXPECT_EQ(render("{{ 2 ** 200 }}"), "invalid: chat template, line 1: an integer grew beyond 127 bits");
  EXPECT_EQ(render("{{ m }}", {{"m", "\xff"}}),
            "invalid: chat template, line 0: the variables must be UTF-8, got a string that is not");
}

TEST(ChatTemplateValues, KeepOrderAndExactNumbers) {
  const Json v = Json::parse(R"({"z": 18446744073709551615, "a": -1, "f": 1.0})");
  EXPECT_EQ(render("{{ v|tojson }} {{ v.z + 1 }}", {{"v", v}}),
            R"({"z": 18446744073709551615, "a": -1, "f": 1.0} 18446744073709551616)");
}

TEST(ChatTemplateThreads, OneTemplateServesMany) {
  const ChatTemplate chat(
      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ m.role ~ 'x' }}{% endfor %}{{ "
      "ns.n }}");
  const Json variables = {{"messages", Json::array({Json{{"role", "a"}}, Json{{"role", "b"}}})}};
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 8; t++) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; i++) right += chat.render(variables) == "axbx2";
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, 800);
}

constexpr const char* kSteps = "more than 5000000 steps";
constexpr const char* kDepth = "more than 200 levels of nesting";
constexpr const char* kOutput = "more than 8388608 bytes of output";
constexpr const char* kMemory = "more than 268435456 bytes of memory";
constexpr const char* kAny = "the limit for templates";

void refused(const std::string& source, const std::string& limit) {
  const std::string got = render(source);
  EXPECT_TRUE(got.starts_with("invalid: chat template, line "))
      << source.substr(0, 200) << "\n  got " << got.substr(0, 300);
  EXPECT_NE(got.find(limit), std::string::npos) << source.substr(0, 200) << "\n  got " << got.substr(0, 300);
}

const std::string kLoop = "{% for a in range(100000) %}", kEnd = "{% endfor %}";

TEST(HostileTemplate, EndlessLoopsAndRecursion) {
  refused(kLoop + kLoop + kLoop + kEnd + kEnd + kEnd, kSteps);
  refused(kLoop + kLoop + "x" + kEnd + kEnd, kAny);
  refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", kDepth);
  refused("{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}", kDepth);
  refused("{% macro m() %}{% call m() %}{{ caller }}{% endcall %}{{ caller }}{% endmacro %}{{ m() }}", kDepth);
  refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", kDepth);
  refused("{% for a in range(1000) %}{{ ('x' * 1000000).rfind('x' * 500000) }}{% endfor %}", kSteps);
  refused(kLoop + "{{ ('ab' * 500000).find('b' * 500000) }}" + kEnd, kSteps);
}

TEST(HostileTemplate, MemoryAndOutput) {
  const std::string grow = "{% set ns = namespace(s=";
  for (const char* huge :
       {"'x' * 10000000000", "'x' * 9223372036854775807", "'xy' * (2 ** 120)", "[1] * 10000000000",
        "range(100000)|join('x' * 100000)", "('x' * 100000).replace('', 'y' * 100000)", "'x'.center(100000000000)",
        "'x'.zfill(1000000000)", "'%1000000000d' % 1", "'%*d' % (1000000000, 1)", "'{:1000000000}'.format(1)",
        "'\t'.expandtabs(1000000000)", "[1]|batch(1000000000, 0)|list"})
    refused("{{ " + std::string(huge) + " }}", kMemory);
  refused("{{ 'x' * 9000000 }}", kOutput);
  refused(kLoop + "{{ 'x' * 1000 }}" + kEnd, kOutput);
  refused(grow + "'x') %}" + kLoop + "{% set ns.s = ns.s + ns.s %}" + kEnd, kMemory);
  refused(grow + "[1]) %}" + kLoop + "{% set ns.s = ns.s + ns.s %}" + kEnd, kMemory);
  refused(grow + "[1, 2]) %}{% for i in range(150) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}", kAny);
  refused("{{ ('x\n' * 1000000)|indent('y' * 1000) }}", kAny);
  refused("{{ [1]|slice(1000000000)|list }}", kAny);
  refused("{{ '%.1000000000f' % 1.5 }}", "precision must be at most 1100, got 1000000000");
  refused("{{ [1]|tojson(indent=1000000000) }}", "indent must be at most 1000, got 1000000000");
}

TEST(HostileTemplate, DeepValues) {
  const std::string nest =
      "{% set ns = namespace(s=[], t=[]) %}" + kLoop + "{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}" + kEnd;
  for (const char* use : {"ns.s", "ns.s|tojson", "ns.s == ns.t", "ns.s < ns.t", "ns.s in [ns.t]"})
    refused(nest + "{{ " + use + " }}", kDepth);
  refused("{% set ns = namespace(s=[1]) %}" + kLoop + "{% set ns.s = ns.s|map('string') %}" + kEnd + "{{ ns.s|list }}",
          kDepth);
  refused("{% set ns = namespace() %}{% set ns.self = ns %}{{ ns }}", kDepth);
  Json deep = 1;
  for (int i = 0; i < 10000; i++) deep = Json::array({std::move(deep)});
  EXPECT_EQ(render("{{ v }}", {{"v", std::move(deep)}}),
            "invalid: chat template, line 0: more than 200 levels of nesting, the limit for templates");
}

TEST(HostileTemplate, DeepSources) {
  const auto refused = [](const std::string& source) {
    const std::string got = render(source);
    const bool limit = got.find("must nest at most 200") != std::string::npos ||
                       got.find("must chain at most 1000") != std::string::npos;
    EXPECT_TRUE(limit && got.starts_with("bad: chat template, line 1: "))
        << source.substr(0, 60) << " gave " << got.substr(0, 200);
  };
  for (const char* open : {"(", "[", "{1:", "not ", "-", "f(", "a[", "a|f(", "1 if 1 else "})
    refused("{{ " + times(100000, open));
  for (const char* chain : {" + 1", " and 1", " or 1", " ** 1", ".a", "[0]", "()", "|abs", " * 1"})
    refused("{{ a" + times(100000, chain) + " }}");
  for (const char* tag :
       {"{% if 1 %}", "{% for a in b %}", "{% set a %}", "{% macro m() %}", "{% with %}", "{% filter upper %}"})
    refused(times(100000, tag));
  refused("{% for " + times(100000, "(") + "a");
}

// The deepest nesting that is allowed must fit the stack.
TEST(HostileTemplate, TheLimitsThemselvesFit) {
  const std::string inner = times(40, "(") + "m(n - 1) if n else 'end'" + times(40, ")");
  EXPECT_EQ(render("{% macro m(n) %}{% if n %}{% for a in [1] %}{{ [" + inner +
                   "][0]|trim }}{% endfor %}{% else %}end{% endif %}"
                   "{% endmacro %}{{ m(150) }}"),
            "end");
  EXPECT_EQ(render("{{ 1" + times(900, " + 1") + " }}"), "901");
}

// What looks like one step and walks over something long. Without the walk being counted each would render.
TEST(HostileTemplate, LongWalksAreSteps) {
  const auto refused = [](const std::string& source, size_t steps = 200'000) {
    std::string got = "rendered";
    try {
      ChatTemplate(source, {.steps = steps}).render(Json::object());
    } catch (const Error& e) {
      got = e.message;
    }
    EXPECT_NE(got.find("more than " + std::to_string(steps) + " steps"), std::string::npos)
        << source.substr(0, 200) << "\n  got " << got;
  };
  const std::string loop = "{% for a in range(2000) %}";
  const std::string texts = "{% set s = 'a' * 100000 %}{% set t = 'Aa ' * 30000 %}";
  for (const char* use : {"s.isidentifier()", "t.istitle()", "s.startswith(s)", "s.endswith(('b', s))"})
    refused(texts + loop + "{{ " + use + " }}" + kEnd, 20'000);
  const std::string names = "range(10000)|map('string')|batch(2)|list";
  refused("{% set d = dict([(1, 1)] + (" + names + ")) %}" + loop + "{{ d[2] }}" + kEnd);
  const std::string dict = "{% set d = dict(" + names + ") %}";
  refused(dict + "{% macro m() %}{{ kwargs|length }}{% endmacro %}{{ m(**d) }}");
  refused(dict + loop + "{{ ''.format_map(d) }}" + kEnd);
  refused("{{ [{'': 1}]|sort(attribute=',' * 300000)|length }}");
  std::string many;
  for (int i = 0; i < 2000; i++) many += "{% set a" + std::to_string(i) + " = 1 %}";
  refused(many + "{% for a in range(10000) %}{{ a1999 }}" + kEnd);
  std::string arguments, parameters;
  for (int i = 0; i <= 1000; i++) {
    arguments += "a" + std::to_string(i) + "=1, ";
    parameters += "a" + std::to_string(i) + ", ";
  }
  EXPECT_EQ(render("{{ f(" + arguments + ") }}"),
            "bad: chat template, line 1: a call must have at most 1000 named arguments");
  EXPECT_EQ(render("{% macro f(" + parameters + "b) %}{% endmacro %}"),
            "bad: chat template, line 1: a macro must have at most 1000 parameters");
}

// Integers at the ends of their 127 bits, slices of slices, a key that equals nothing.
TEST(HostileTemplate, NumbersAtTheirEnds) {
  const std::string least = "(-(2 ** 126) - 2 ** 126)", most = "(2 ** 126 + (2 ** 126 - 1))";
  EXPECT_EQ(render("{{ {('nan'|float): 1}|urlencode }}"), "nan=1");
  EXPECT_EQ(render("{{ 'abc'|truncate(" + most + ", leeway=" + most + ") }}"), "abc");
  EXPECT_TRUE(render("{{ 'abc'|truncate(" + least + ") }}").starts_with("invalid: chat template, line 1: truncate"));
  EXPECT_EQ(render("{{ '+1'.zfill(" + least + ") }}"), "+1");
  EXPECT_EQ(render("{{ (10 ** 38 - 1)|round(-38) }}"), "1" + std::string(38, '0'));
  EXPECT_EQ(render("{{ -15|round(-1) }} {{ -25|round(-1) }} {{ -14|round(-1) }}"), "-20 -20 -10");
  EXPECT_EQ(render("{{ " + most + "|round(-38) }}"),
            "invalid: chat template, line 1: round: the number grew beyond 127 bits");
  EXPECT_EQ(render("{{ " + least + "|round(-38) }}"),
            "invalid: chat template, line 1: round: the number grew beyond 127 bits");
  EXPECT_EQ(render("{{ range(10)[::3][::-1] }} {{ range(1)[::2][::2] }}"), "range(9, -3, -3) range(0, 2, 4)");
  const std::string halves =
      "{% set ns = namespace(r=range(1)) %}{% for i in range(200) %}{% set ns.r = ns.r[::STEP] %}{% endfor %}{{ ns.r "
      "}}";
  for (const char* step : {"2", "-2", "2][::-2"}) {
    std::string source = halves;
    source.replace(source.find("STEP"), 4, step);
    EXPECT_EQ(render(source), "invalid: chat template, line 1: a slice of a range grew beyond 64 bits") << step;
  }
  EXPECT_EQ(render("{{ strftime_now('a\\x00b') }}"),
            "invalid: chat template, line 1: strftime_now: the format must not have a zero byte");
}

// Iterators and loops that lead back to themselves, and what outlives its scope.
TEST(HostileTemplate, SelfReference) {
  const std::string space = "{% set ns = namespace() %}";
  const std::string generator =
      space + "{% set ns.m = [[ns]]|map('map', attribute='m')|map('first')|map('list') %}{{ ns.m|list }}";
  EXPECT_NE(render(generator).find("asks itself"), std::string::npos) << render(generator);
  const std::string loop = space + "{% for x in [1, 2, 3] if x == 1 or ns.l.length %}{% set ns.l = loop %}{% endfor %}";
  EXPECT_NE(render(loop).find("asks itself"), std::string::npos) << render(loop);
  EXPECT_EQ(render(space + "{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}{{ ns.l.last }}"),
            "2True");
  EXPECT_EQ(render(space + "{% for x in [1] recursive %}{% set ns.l = loop %}{% endfor %}{{ ns.l([1]) }}"),
            "invalid: chat template, line 1: the loop has ended");
  EXPECT_EQ(render(space +
                   "{% for x in [7] %}{% macro m() %}{{ x }}{% endmacro %}{% set ns.m = m %}{% endfor %}{{ ns.m() }}"),
            "7");
  EXPECT_EQ(render(space + "{% set ns.me = ns %}{% macro m() %}{{ m }}{% endmacro %}{% set ns.m = m %}ok"), "ok");
}

}  // namespace
}  // namespace mettle
