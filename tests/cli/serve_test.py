"""`mettle serve` as a program: flags, ready line, ports, signals, caches that cannot be written, weights that are dummies."""
import fcntl
import json
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/mettle-tiny")


class Flags(unittest.TestCase):
    def usage(self, *flags, says):
        r = serving.run_program("serve", *flags)
        self.assertEqual(r.returncode, 2, r)
        self.assertEqual(r.stdout, "")
        for text in says if isinstance(says, list) else [says]:
            self.assertIn(text, r.stderr)

    def test_help(self):
        r = serving.run_program("help", "serve")
        self.assertEqual((r.returncode, r.stdout), (0, serving.run_program("serve", "--help").stdout))
        r = serving.run_program("help", "sing")
        self.assertEqual((r.returncode, r.stdout), (2, ""))
        self.assertIn('no command "sing"', r.stderr)
        r = serving.run_program("serve", "--help")
        self.assertEqual(r.returncode, 0)
        for flag in ("--host", "--port", "--api-key", "--tp-size", "--context-length", "--moe-runner-backend", "--canary",
                     "--load-format", "--chunked-prefill-size", "--max-running-requests"):
            self.assertIn(flag, r.stdout)

    def test_questions_about_the_program_take_nothing_else(self):
        self.assertRegex(serving.run_program("--version").stdout, r"\Amettle \d+\.\d+\.\d+\n\Z")
        for arguments in (["--version", "extra"], ["--help", "extra"], ["-h", "extra"], ["help", "serve", "extra"],
                          ["--version", ""]):
            r = serving.run_program(*arguments)
            self.assertEqual((r.returncode, r.stdout), (2, ""), arguments)
            self.assertEqual(r.stderr, f'mettle {arguments[0]}: one argument too many: "{arguments[-1]}"\n')

    def test_a_context_that_nothing_can_be_proved_in(self):
        self.usage("--context-length", "2", says="--context-length: must be 0 or at least 3 tokens, got 2")
        r = serving.run_program("serve", "--port", "0", "--context-length", "3")  # proved; the canary does not fit
        self.assertEqual((r.returncode, r.stdout), (2, ""))
        self.assertIn("step proof: 1 steps, ", r.stderr)
        self.assertRegex(r.stderr, r"error: canary: a question cannot be asked: .* in the context of 3 tokens, got ")

    def test_unknown_flags_list_the_valid_ones(self):
        self.usage("--prot", "5", says=["--prot: no such option", "--port", "--host", "--max-model-len"])

    def test_flags_of_other_servers_are_refused_with_the_reason(self):
        self.usage("--trust-remote-code", says="runs no code")
        self.usage("--gpu-memory-utilization=0.9", says="--max-total-tokens")
        self.usage("--quantization", "fp4", says="read from the checkpoint")

    def test_bad_values(self):
        self.usage("--port", "70000", says=["--port", "65535"])
        self.usage("--port", "x", says="--port")
        self.usage("--tp-size", "0", says="--tp-size")
        self.usage("--load-format", "gguf", says="--load-format")
        self.usage("--canary", "/no/such/file", says="/no/such/file")
        self.usage("one", "two", says="one argument too many")
        self.usage("--seed", "-1", says=["--seed", "-1"])

    def test_an_empty_value_is_never_what_was_meant(self):
        for flag in ("--api-key", "--host", "--model", "--served-model-name", "--moe-runner-backend"):
            self.usage(flag, "", says=flag)
        self.usage("", says="must not be empty")

    def test_a_key_that_no_request_can_carry(self):
        for key in ("secret\n", "sec\x1bret", "\tsecret"):
            self.usage("--api-key", key, says="--api-key: must hold no line feed or other control character")
        for key in (" secret", "secret ", " "):
            self.usage("--api-key", key, says="--api-key: must not begin or end with a space")

    def test_at_least_one_request_may_wait(self):
        self.usage("--max-queued-requests", "0", says="--max-queued-requests: Value 0 not in range 1 to 1048576")

    def test_unknown_variables_are_errors(self):
        r = serving.run_program("serve", env={"METTLE_CPU_ISSA": "avx2"})
        self.assertEqual(r.returncode, 2)
        self.assertIn("METTLE_CPU_ISSA: no such variable", r.stderr)

    def test_a_model_that_is_not_there(self):
        r = serving.run_program("serve", "/no/such/model", "--port", "0")
        self.assertEqual(r.returncode, 1)
        self.assertIn("/no/such/model", r.stderr)
        self.assertEqual(r.stdout, "")

    def test_an_unknown_backend_lists_the_candidates(self):
        self.usage("--moe-runner-backend", "flashinfer_turbo", says=["flashinfer_turbo", "cpu_gemv", "reference", "marlin"])
        self.usage("--attention-backend", "cpu_gemv", says=["cpu_gemv", "reference"])


class Ports(unittest.TestCase):
    def test_port_in_use(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            r = serving.run_program("serve", "--port", str(port))
            self.assertEqual(r.returncode, 1)
            self.assertIn(f"127.0.0.1:{port} is in use", r.stderr)
            self.assertNotIn("ready", r.stdout)

    def test_address_of_another_machine(self):
        r = serving.run_program("serve", "--host", "192.0.2.1", "--port", "0")
        self.assertEqual(r.returncode, 1)
        self.assertIn("192.0.2.1", r.stderr)

    def test_loopback_is_the_default(self):
        with serving.Server() as server:
            listening = [line.split()[1] for line in open("/proc/net/tcp") if line.split()[3] == "0A"]
            self.assertIn(f"0100007F:{server.port:04X}", listening)
            self.assertNotIn(f"00000000:{server.port:04X}", listening)

    def test_a_host_that_a_website_can_have(self):
        """Without a key and on loopback alone; whoever listens to others or asks for a key takes any."""
        with serving.Server() as server:
            for host in (f"localhost:{server.port}", "127.0.0.1", "[::1]:8000", "gpu-box"):
                self.assertEqual(server.request("GET", "/v1/models", headers={"Host": host})[0], 200, host)
            status, _, body = server.request("GET", "/v1/models", headers={"Host": f"rebound.example:{server.port}"})
            self.assertEqual(status, 403)
            self.assertIn(f"got rebound.example:{server.port}", json.loads(body)["error"]["message"])
            self.assertEqual(server.request("GET", "/health", headers={"Host": "rebound.example"})[0], 200)
            # The host of an absolute target counts, as a proxy sends it.
            self.assertEqual(server.request("GET", server.url + "/v1/models", headers={"Host": "rebound.example"})[0], 200)
            foreign = f"http://rebound.example:{server.port}/v1/models"
            self.assertEqual(server.request("GET", foreign, headers={"Host": "localhost"})[0], 403)
        with serving.Server("--api-key", "k") as server:
            headers = {"Host": "models.example", "Authorization": "Bearer k"}
            status, headers, _ = server.request("GET", "/v1/models", headers=headers)
            self.assertEqual(status, 200)
            self.assertRegex(headers["Date"], r"\A\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\Z")


class Running(unittest.TestCase):
    def test_ready_means_right(self):
        with serving.Server() as server:
            self.assertEqual(server.request("GET", "/health/ready")[0], 200)
            self.assertIn("canary: 5 exact answers", server.errors())
            plan = json.loads(server.request("GET", "/v1/plan")[2])
            self.assertTrue(plan["proofs"])
            served = {p["op"] for p in plan["proofs"] if p["verdict"] == "OK"}
            for op in ("moe", "linear", "attention", "gdn", "sample", "embed", "join"):
                self.assertIn(op, served)
            self.assertEqual(server.stop(), 0)
            self.assertEqual(server.process.stdout.closed, True)

    def test_a_folder_and_a_wrong_canary(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
            f.write('{"messages": [{"role": "user", "content": "How much is 757 plus 95?"}], "expect": "853"}\n')
            f.flush()
            r = serving.run_program("serve", MODEL, "--port", "0", "--canary", f.name)
            self.assertEqual(r.returncode, 1)
            self.assertIn('must be answered "853", got', r.stderr)
            self.assertEqual(r.stdout, "")

    def test_a_pipe_is_no_canary(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "pipe")
            os.mkfifo(pipe)
            r = serving.run_program("serve", MODEL, "--port", "0", "--canary", pipe)
            self.assertEqual((r.returncode, r.stdout), (1, ""))
            self.assertIn(f"{pipe}: must be a regular file", r.stderr)

    def test_dummy_weights_say_so(self):
        with serving.Server("--load-format", "dummy") as server:
            self.assertIn("weights are dummies", server.errors())
            self.assertEqual(server.chat("Hi", max_tokens=4)[0], 200)

    def test_a_cache_that_cannot_be_written(self):
        # A file where the folder should be: no permission bits are needed, so it holds for root too.
        with tempfile.NamedTemporaryFile() as f, serving.Server(env={"XDG_CACHE_HOME": f.name}) as server:
            self.assertEqual(server.chat("How much is 757 plus 95?", max_tokens=4)[0], 200)
            self.assertEqual(server.stop(), 0)

    def test_a_full_disk_while_verdicts_are_stored(self):
        with serving.Server(env={"XDG_CACHE_HOME": "/dev/full"}) as server:
            self.assertEqual(server.chat("How much is 757 plus 95?", max_tokens=4)[0], 200)

    def test_ranks_answer_the_same(self):
        answers = set()
        for size in ("1", "2"):
            with serving.Server("--tp-size", size) as server:
                answers.add(json.loads(server.chat("Spell the word tale.", temperature=0)[2])["choices"][0]["message"]["content"])
        self.assertEqual(answers, {"t-a-l-e"})


class Signals(unittest.TestCase):
    def story(self, server, **fields):
        """The connection on which a streamed answer comes that does not end by itself."""
        s = socket.create_connection(("127.0.0.1", server.port), 60)
        body = json.dumps({"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True,
                           "stream": True, **fields}).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return s

    def test_term_lets_running_answers_finish(self):
        with serving.Server() as server:
            with self.story(server, max_tokens=20) as s:
                got = s.recv(100)
                server.process.send_signal(signal.SIGTERM)
                while part := s.recv(65536):
                    got += part
            self.assertIn(b"data: [DONE]", got)
            self.assertEqual(server.process.wait(60), 0)

    def test_the_second_signal_ends_at_once(self):
        for first in (signal.SIGINT, signal.SIGHUP):
            with serving.Server(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)) as server:
                with self.story(server, max_tokens=3900, n=16) as s:
                    s.recv(100)
                    server.process.send_signal(first)
                    server.wait_for_words("draining")
                    server.process.send_signal(signal.SIGINT)
                    self.assertEqual(server.process.wait(60), 128 + signal.SIGINT)

    def test_a_terminal_that_closes_lets_running_answers_finish(self):
        def own_terminal():
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        ours, theirs = pty.openpty()
        with serving.Server(stdin=theirs, start_new_session=True, preexec_fn=own_terminal) as server:
            os.close(theirs)
            with self.story(server, max_tokens=200) as s:
                got = s.recv(100)
                os.close(ours)
                server.wait_for_words("draining")
                server.process.send_signal(signal.SIGHUP)  # a shell tells its jobs too
                while part := s.recv(65536):
                    got += part
            self.assertIn(b"data: [DONE]", got)
            self.assertEqual(server.process.wait(60), 0)

    def test_a_hangup_that_is_ignored_at_the_start_stays_so(self):
        with serving.Server(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as server:
            self.assertTrue(serving.ignores(server.process.pid, signal.SIGHUP))
            server.process.send_signal(signal.SIGHUP)
            self.assertEqual(server.chat("Hi", max_tokens=1)[0], 200)
            self.assertNotIn("draining", server.errors())

    def test_interrupts_at_any_moment_of_the_start_leave_nothing(self):
        rng = random.Random(3)
        with tempfile.TemporaryDirectory() as cache:
            for number in range(12):
                proving = number % 2 == 0  # else verdicts are cached and it is interrupted while it loads or serves
                env = {**os.environ, "XDG_CACHE_HOME": cache if proving else serving.Server.cache}
                process = subprocess.Popen([serving.PROGRAM, "serve", "--port", "0"], env=env, text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                try:
                    process.wait(rng.random() * (3 if proving else 0.5))
                except subprocess.TimeoutExpired:
                    pass
                children = serving.children_of(process.pid)
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=60)
                self.assertIn(process.returncode, (0, -signal.SIGINT, 128 + signal.SIGINT), err)
                self.assertNotIn("error", err)
                for child in children:
                    self.assertTrue(serving.ends(child), f"child {child} is still there")
            # What is kept is whole: the next start reads it.
            r = serving.run_program("run", "How much is 757 plus 95?", "--temperature", "0", "--no-think",
                                    env={"XDG_CACHE_HOME": cache})
            self.assertEqual((r.returncode, r.stdout), (0, "852\n"), r.stderr)


if __name__ == "__main__":
    serving.main()
