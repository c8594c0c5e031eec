"""A server whose device is lost while it serves (a failing call, planted: tests/mutants/planted_server.cpp): every open
request ends with an error that says so, and the process exits with 1, for its supervisor to start it again."""
import os
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

serving.PROGRAM = os.path.join(os.path.dirname(serving.PROGRAM), "mettle_planted")


class LostDevice(unittest.TestCase):
    def test_requests_end_with_an_error_and_the_process_exits_with_1(self):
        with tempfile.TemporaryDirectory() as folder:
            switch = os.path.join(folder, "switch")
            env = {"PLANTED": "moe/nan", "PLANTED_SWITCH": switch}
            # Two run and two wait when it happens.
            with serving.Server("--max-running-requests", "2", env=env) as server:
                answers = [None] * 4

                def ask(i):
                    status, _, body = server.request("POST", "/v1/completions", {
                        "prompt": "Once upon a time", "max_tokens": 4000, "temperature": 0, "ignore_eos": True,
                        "stream": i % 2 == 1})
                    answers[i] = (status, body.decode())

                threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
                for t in threads:
                    t.start()
                end = time.monotonic() + 60
                while time.monotonic() < end:
                    m = server.metrics()
                    if m["mettle_requests_running"] == 2 and m["mettle_requests_waiting"] == 2:
                        break
                    time.sleep(0.05)
                with open(switch + ".new", "w") as f:
                    f.write("20 lost")
                os.rename(switch + ".new", switch)
                for t in threads:
                    t.join()
                for status, body in answers:
                    self.assertIn("cudaErrorLaunchFailure: planted", body)
                    self.assertIn(status, (200, 500, 503), body)  # 200: a stream that had begun
                    self.assertNotIn('"finish_reason": "length"', body)
                self.assertEqual(server.process.wait(timeout=120), 1)
                log = server.errors()
                self.assertIn("server: ends, its engine has stopped: cudaStreamSynchronize(stream)", log)
                self.assertNotIn("terminate called", log)


if __name__ == "__main__":
    unittest.main()
