"""`mettle run`: one answer, a pipe, a chat on a terminal; what goes to which stream; exit codes; Ctrl-C and Ctrl-D."""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

GREEDY = ("--temperature", "0", "--no-think")
# A story of these backends takes so long that whoever interrupts it has time.
SLOW = ("--moe-runner-backend", "reference", "--attention-backend", "reference", "--fp4-gemm-backend", "reference",
        "--linear-attn-backend", "reference")


class OneAnswer(unittest.TestCase):
    def run_ok(self, *arguments, **kwargs):
        r = serving.run_program("run", *arguments, **kwargs)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r

    def test_the_answer_alone_is_on_standard_output(self):
        self.assertEqual(self.run_ok("How much is 757 plus 95?", *GREEDY).stdout, "852\n")
        r = self.run_ok("What is 17 + 25?", "--temperature", "0")
        self.assertEqual(r.stdout, "42\n")
        self.assertTrue(r.stderr.strip(), "reasoning goes to standard error")

    def test_a_pipe(self):
        self.assertEqual(self.run_ok(*GREEDY, input="Spell the word tale.\n").stdout, "t-a-l-e\n")
        for empty in ("", "\n"):
            r = serving.run_program("run", input=empty)
            self.assertEqual(r.returncode, 2)
            self.assertIn("at least one character", r.stderr)

    def test_json(self):
        r = json.loads(self.run_ok("How much is 757 plus 95?", "--json", *GREEDY).stdout)
        self.assertEqual(r["content"], "852")
        self.assertEqual(r["finish_reason"], "stop")
        self.assertEqual(r["usage"], {"prompt_tokens": 24, "completion_tokens": 4})

    def test_options(self):
        self.assertEqual(self.run_ok("How much is 757 plus 95?", "--max-tokens", "1", *GREEDY).stdout, "8\n")
        self.assertEqual(self.run_ok("What is your name?", "--system", "Your name is Nora.", *GREEDY).stdout, "My name is Nora.\n")
        a, b, c = (self.run_ok("Tell me a story.", "--seed", s, "--max-tokens", "20", "--no-think").stdout for s in "112")
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)
        self.assertEqual(self.run_ok("How much is 757 plus 95?", "--activation-dtype", "fp32", *GREEDY).stdout, "852\n")

    def test_bad_input(self):
        for arguments, code, says in (
                (["Hi", "--max-tokens", "-1"], 2, "--max-tokens"), (["Hi", "--temperature", "nan"], 2, "--temperature: must be a number, got nan"),
                (["Hi", "--nonsense"], 2, "--nonsense: no such option"), ([""], 2, "at least one character"),
                (["Hi", "-m", "/no/such"], 1, "/no/such"), (["word " * 5000], 2, "context of 4096 tokens"),
                (["Hi \udcff"], 2, "UTF-8"), (["Hi", "-m", ""], 2, "must not be empty"), (["Hi", "--seed", "-1"], 2, "--seed")):
            r = subprocess.run([serving.PROGRAM, "run", *[os.fsencode(a) for a in arguments]], capture_output=True,
                               timeout=300, env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache})
            self.assertEqual(r.returncode, code, (arguments[0][:20], r))
            self.assertIn(says, r.stderr.decode(errors="replace"))
            self.assertEqual(r.stdout, b"")

    def test_a_context_that_the_prompt_does_not_fit_into(self):
        for length, says in (("1", "in the context of 1 tokens, got at least "),
                             ("13", "in the context of 13 tokens, got 13 tokens")):
            r = serving.run_program("run", "--context-length", length, "hi", "--no-think")
            self.assertEqual((r.returncode, r.stdout), (2, ""), r.stderr)
            self.assertIn(says, r.stderr)
        self.assertEqual(self.run_ok("--context-length", "14", "hi", *GREEDY).stdout, "Hello\n")

    def test_a_question_that_begins_with_a_dash(self):
        r = self.run_ok("--max-tokens", "1", *GREEDY, "--", "--help me")
        self.assertNotIn("Usage:", r.stdout + r.stderr)
        r = serving.run_program("run", "--max-tokens", "1", "--", "-a", "-b")
        self.assertEqual(r.returncode, 2)
        self.assertIn('one argument too many: "-b"', r.stderr)

    def test_a_dumb_terminal_gets_no_escape_sequences(self):
        def shown(term):
            ours, theirs = pty.openpty()
            process = subprocess.Popen([serving.PROGRAM, "run", "Hi", "--max-tokens", "1", *GREEDY], stderr=theirs,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       env={**os.environ, "TERM": term, "XDG_CACHE_HOME": serving.Server.cache})
            os.close(theirs)
            text = b""
            try:
                while piece := os.read(ours, 65536):
                    text += piece
            except OSError:  # how the end of a terminal reads
                pass
            os.close(ours)
            self.assertEqual(process.wait(300), 0, text)
            return text

        self.assertIn(b"\x1b[K", shown("xterm"))
        self.assertNotIn(b"\x1b", shown("dumb"))

    def test_streams_that_are_full_or_closed(self):
        def ends(redirection, *arguments):
            command = f'exec "$@" {redirection}'
            r = subprocess.run(["bash", "-c", command, "-", serving.PROGRAM, *arguments], capture_output=True, text=True,
                               timeout=300, env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache})
            return r.returncode, r.stdout, r.stderr
        question = ("run", "How much is 757 plus 95?", "--temperature", "0")
        for arguments in (question, (*question, "--json"), ("--help",)):
            code, _, errors = ends(">/dev/full", *arguments)
            self.assertEqual(code, 1, arguments)
            self.assertIn("standard output", errors)
        for redirection in ("2>/dev/full", "2>&-"):
            self.assertEqual(ends(redirection, *question)[:2], (0, "852\n"), redirection)
            self.assertEqual(ends(redirection, "nonsense")[0], 2, redirection)
        self.assertEqual(ends(">&-", *question)[0], 0)

    def test_interrupt_while_it_answers(self):
        process, reader = self.answering()
        process.send_signal(signal.SIGINT)
        while os.read(reader, 65536):
            pass
        os.close(reader)
        process.stderr.read()
        self.assertEqual(process.wait(60), 130)

    def test_a_reader_that_goes_away(self):
        process, reader = self.answering()
        os.close(reader)
        process.stderr.read()
        self.assertIn(process.wait(60), (1, -signal.SIGPIPE))

    def answering(self):
        """The program after it began to reason, unable to end: its standard output is a pipe that is full. And the
        pipe's reader."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, bytes(4096))
        except BlockingIOError:
            os.set_blocking(writer, True)
        process = subprocess.Popen([serving.PROGRAM, "run", "What is the sum of 79 and 37?", "--temperature", "0"],
                                   stdout=writer, stderr=subprocess.PIPE,
                                   env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache})
        os.close(writer)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        seen = b""
        while b"So" not in seen:
            part = os.read(process.stderr.fileno(), 65536)
            self.assertTrue(part, seen)
            seen += part
        return process, reader


class Terminal:
    """The program on a pseudo-terminal."""

    def __init__(self, *arguments, state):
        self.parent, child = pty.openpty()
        self.process = subprocess.Popen(
            [serving.PROGRAM, "run", *arguments], stdin=child, stdout=child, stderr=child, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
            env={**os.environ, "XDG_CACHE_HOME": serving.Server.cache, "XDG_STATE_HOME": state, "TERM": "xterm"})
        os.close(child)
        self.seen = ""

    def until(self, text, seconds=120):
        """What came up to and with `text`."""
        while text not in self.seen:
            if not select.select([self.parent], [], [], seconds)[0]:
                raise AssertionError(f"no {text!r} in {self.seen!r}")
            try:
                self.seen += os.read(self.parent, 65536).decode(errors="replace")
            except OSError:
                raise AssertionError(f"ended without {text!r}: {self.seen!r}") from None
        head, self.seen = self.seen.split(text, 1)
        return head + text

    def prompt(self, seconds=120):
        """The prompt is there and the line editor reads: before, the terminal itself would take Ctrl-C and drop the line."""
        self.until("> ", seconds)
        end = time.monotonic() + seconds
        while termios.tcgetattr(self.parent)[3] & termios.ICANON:
            if time.monotonic() > end:
                raise AssertionError("the line editor does not read")
            select.select([], [], [], 0.01)

    def type(self, keys):
        os.write(self.parent, keys.encode())

    def end(self):
        while select.select([self.parent], [], [], 60)[0]:
            try:
                if not os.read(self.parent, 65536):
                    break
            except OSError:
                break
        os.close(self.parent)
        return self.process.wait(60)


class Chat(unittest.TestCase):
    def test_chat_interrupt_history_and_leaving(self):
        with tempfile.TemporaryDirectory() as state:
            t = Terminal(*GREEDY, *SLOW, state=state)
            t.until("Ctrl-D leaves")
            t.prompt()
            t.type("How much is 757 plus 95?\r")
            t.until("852")
            t.prompt()
            t.type("Tell me a story.\r")
            t.until("Once upon")
            t.type("\x03")
            t.prompt()
            t.type("half a line\x03")
            t.prompt()
            t.type("Spell the word tale.\r")
            t.until("t-a-l-e")
            t.prompt()
            t.type("\x04")
            self.assertEqual(t.end(), 0)
            with open(os.path.join(state, "mettle", "history")) as f:
                self.assertIn("757", f.read())
            again = Terminal(*GREEDY, state=state)
            again.prompt()
            again.type("\x1b[A\r")
            again.until("t-a-l-e")
            again.prompt()
            again.type("\x04")
            self.assertEqual(again.end(), 0)

    def test_what_is_typed_while_the_model_loads_is_taken(self):
        with tempfile.TemporaryDirectory() as state:
            t = Terminal(*GREEDY, state=state)
            t.type("How much is 757 plus 95?\rSpell the word tale.\r\x04")
            t.until("Ctrl-D leaves")
            t.until("852")
            t.until("t-a-l-e")
            self.assertEqual(t.end(), 0)
            t = Terminal(*GREEDY, state=state)
            t.type("\x04")
            self.assertEqual(t.end(), 0)


if __name__ == "__main__":
    serving.main()
