"""`mettle prove --html`: one page that stands alone, with all that the JSON has; nothing half written; hostile names."""
import html.parser
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, ".."))
import serving

TINY = os.path.join(HERE, "..", "..", "models", "mettle-tiny")
VOID = {"meta", "rect", "line", "wbr", "br", "link", "img", "input", "hr", "base", "source"}
LOADING = {"src", "href", "srcset", "action", "data", "poster", "formaction", "background", "xlink:href", "ping"}


class Page(html.parser.HTMLParser):
    """Reads a page strictly: every tag closed in its turn; keeps attributes, texts and the rows of tables."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.attributes, self.text, self.cells = [], set(), [], "", []
        self.ids = set()
        self.feed(text)
        self.close()
        assert not self.stack, f"not closed: {self.stack}"

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        self.ids |= {v for k, v in attributes if k == "id"}
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th") and self.cells:
            self.cells[-1].append("")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes += attributes
        if tag not in VOID:
            assert False, f"<{tag}/> closes nothing"

    def handle_endtag(self, tag):
        assert self.stack and self.stack[-1] == tag, f"</{tag}> after {self.stack}"
        self.stack.pop()

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "style":
            return
        self.text += data
        if any(t in ("td", "th") for t in self.stack):
            self.cells[-1][-1] += data


def check_alone(test, text):
    """Valid, and nothing in it is loaded or run."""
    page = Page(text)
    test.assertTrue(text.startswith("<!DOCTYPE html>"))
    test.assertFalse(page.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "audio", "video"})
    for name, value in page.attributes:
        test.assertFalse(name.startswith("on"), (name, value))
        if name in LOADING:
            test.assertTrue(value.startswith("#"), (name, value))
    test.assertNotRegex(text, r"(?i)https?:|url\(|@import|javascript:")
    test.assertIn(("content", "default-src 'none'; style-src 'unsafe-inline'"), page.attributes)
    test.assertIn(("content", "width=device-width, initial-scale=1"), page.attributes)
    test.assertIn("prefers-color-scheme: dark", text)
    return page


class ProveHtml(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.html, self.json = (os.path.join(self.folder.name, n) for n in ("page.html", "page.json"))

    def prove(self, *arguments, preexec_fn=None, **env):
        return subprocess.run([serving.PROGRAM, "prove", *arguments], capture_output=True, text=True, timeout=600,
                              preexec_fn=preexec_fn, restore_signals=preexec_fn is None,
                              env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache, **env})

    def page(self, *arguments, **env):
        r = self.prove("--html", self.html, "--json", self.json, *arguments, **env)
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        with open(self.html, encoding="utf-8") as f:
            text = f.read()
        with open(self.json) as f:
            return text, json.load(f)

    def test_the_page_has_what_the_proofs_found(self):
        text, report = self.page()
        page = check_alone(self, text)
        entries = report["results"]
        self.assertIn(f"{len(entries)} of {len(entries)} proved", page.text)
        for fact in (report["device"], report["build"], "mettle-tiny"):
            self.assertIn(fact, page.text)
        self.assertTrue({e["op"] for e in entries} <= page.ids, page.ids)
        rows = [c for c in page.cells if len(c) == 2 + len(report["row_buckets"])]
        self.assertEqual(len(rows), len(entries) + len({e["problem"] for e in entries}))  # a heading for each problem
        rows = [c for c in rows if c[0] != "tactic"]
        for e, cells in zip(entries, rows):  # in the order of the report
            self.assertEqual(cells[0], f"{e['backend']} {e['tactic']}")
            self.assertTrue(cells[1].startswith(e["verdict"]), cells)
            # What serves without a time (its launch is too long to be timed) says so instead.
            timed = [re.search("[0-9]\u202f(µs|ms|s)", c) is not None for c in cells[2:]]
            self.assertEqual(timed, [us > 0 for us in e["us"]], cells)
        # Each problem has something that serves each number of rows, and what it reaches.
        problems = len({e["problem"] for e in entries})
        chosen = sum(v == "us chosen" for k, v in page.attributes if k == "class")
        self.assertEqual(chosen, len(report["row_buckets"]) * problems)
        self.assertEqual(page.text.count("nearest ceiling"), problems)
        self.assertIn("GB/s from memory", page.text)
        # The same again, but for the minute, the seconds and what the ceilings were measured at.
        def lasting(text):
            return re.sub(r"(?s)<tfoot>.*?</tfoot>|<small class=\"share\".*?</small>|<dl.*?</dl>|<li class=\"\"><b>[0-9.]+\u202fs.*?</li>", "", text)
        again, _ = self.page()
        self.assertEqual(lasting(again), lasting(text))

    def test_refusals_have_sentence_and_remedy(self):
        text, report = self.page("--op", "linear", METTLE_CPU_ISA="scalar")
        page = check_alone(self, text)
        refused = [e for e in report["results"] if e["verdict"] == "ISA_MISSING"]
        self.assertTrue(refused)
        for e in refused:
            for part in (e["sentence"], e["remedy"], e["need"], e["backend"]):
                self.assertIn(part, page.text)
        proved = sum(e["verdict"] == "OK" for e in report["results"])
        self.assertIn(f"{proved} of {proved} proved", page.text)

    def test_hostile_names_are_shown_as_text(self):
        for name in ("<img src=x onerror=alert(1)>", "</style><script>alert(1)<!--", "\"'&amp;<svg onload=x>",
                     "\u202egnp.elif", "a\x1b[2Jb\x01"):
            model = os.path.join(self.folder.name, name.replace("/", "\u2215"))
            os.mkdir(model)
            for f in os.listdir(TINY):
                os.symlink(os.path.join(os.path.abspath(TINY), f), os.path.join(model, f))
            text, _ = self.page(model, "--op", "embed")
            page = check_alone(self, text)
            shown = re.sub("[\x00-\x1f\u202e]", "\ufffd", os.path.basename(model))
            self.assertIn(shown, page.text)
            for raw in ("\x1b", "\u202e", "<img", "<svg onload"):
                self.assertNotIn(raw, text)

    def test_a_page_that_cannot_be_written_is_an_error_with_nothing_left(self):
        os.mkdir(self.html)
        for path, says in ((self.html, "is a folder"), ("/no/such/folder/page.html", "/no/such/folder"),
                           ("/dev/full", "No space left"), ("/proc/page.html", "/proc/page.html")):
            r = self.prove("--op", "embed", "--html", path)
            self.assertEqual(r.returncode, 1, (path, r))
            self.assertIn(says, r.stderr)
        r = self.prove("--html", "")
        self.assertEqual(r.returncode, 2, r)
        self.assertEqual(os.listdir(self.folder.name), ["page.html"])
        # A disk without room keeps the page that was there.
        os.rmdir(self.html)
        with open(self.html, "w") as f:
            f.write("the page before")

        def little_room():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

        r = self.prove("--op", "embed", "--html", self.html, preexec_fn=little_room)
        self.assertEqual(r.returncode, 1, r)
        self.assertIn(self.html, r.stderr)
        with open(self.html) as f:
            self.assertEqual(f.read(), "the page before")
        self.assertEqual(os.listdir(self.folder.name), ["page.html"])

    def test_a_pipe_is_written_into(self):
        r = self.prove("--op", "embed", "--html", "/dev/stderr")
        self.assertEqual(r.returncode, 0, r.stderr[:500])
        check_alone(self, r.stderr[r.stderr.index("<!DOCTYPE"):])


if __name__ == "__main__":
    serving.main()
