"""A server whose backend is planted (tests/mutants/planted_server.cpp): it errs while it serves, in a proof in an idle
moment, or from the start. Requests that are hit end with an error that names the op, the others have their text, the
next proved backend takes over without a restart, and health, metrics, plan and log say so."""
import json
import os
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

serving.PROGRAM = os.path.join(os.path.dirname(serving.PROGRAM), "mettle_planted")
NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
# Every token of these answers leads the next best by 7 in logits: a text may not depend on who runs beside whom, so on
# which backend has that number of rows.
QUESTIONS = ["What is 17 + 25?", "How much is 757 plus 95?", "What is 123 + 456?", "What is 999 + 888?"]


def write(path, text):
    """All at once: the server looks for the file at every call."""
    with open(path + ".new", "w") as f:
        f.write(text)
    os.rename(path + ".new", path)


def text_of(message):
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def complete(server, question, stream=False):
    """Text with its reasoning, or the message of the error."""
    status, _, body = server.chat(question, temperature=0, stream=stream)
    if status != 200:  # also of a stream that had not begun
        return None, (status, json.loads(body)["error"]["message"])
    if not stream:
        return text_of(json.loads(body)["choices"][0]["message"]), None
    text, error = "", None
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            event = json.loads(line[len("data: "):])
            if "error" in event:
                error = (status, event["error"]["message"])
            else:
                text += text_of(event["choices"][0]["delta"])
    return text, error


def complete_all(server):
    """All questions at once, every second one streamed: [(text, error)]."""
    answers = [None] * len(QUESTIONS)

    def ask(i):
        answers[i] = complete(server, QUESTIONS[i], stream=i % 2 == 1)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(QUESTIONS))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


def ready(server):
    status, _, body = server.request("GET", "/health/ready")
    return status, json.loads(body)


def plan_of(server):
    return json.loads(server.request("GET", "/v1/plan")[2])


def backends_of(plan, op):
    return {b["backend"] for p in plan["problems"] if p["op"] == op for b in p["buckets"]}


def answer_to_sum(server):
    body = json.loads(server.chat("How much is 757 plus 95?", temperature=0, **NO_THINK)[2])
    return body["choices"][0]["message"]["content"]


class Nan(unittest.TestCase):
    def test_a_backend_that_gives_nan_is_replaced_while_it_serves(self):
        with tempfile.TemporaryDirectory() as folder:
            switch = os.path.join(folder, "switch")
            with serving.Server(env={"PLANTED": "moe/nan", "PLANTED_SWITCH": switch}) as server:
                plan = plan_of(server)
                self.assertEqual(backends_of(plan, "moe"), {"nan"})
                self.assertEqual({s["backend"] for p in plan["problems"] if p["op"] == "moe"
                                  for b in p["buckets"] for s in b["behind"]}, {"reference"})
                undisturbed = complete_all(server)
                self.assertTrue(all(error is None and len(text) > 20 for text, error in undisturbed), undisturbed)
                for event in (1, 2, 3):
                    self.assertEqual(ready(server), (200, {"status": "ready", "model": "mettle-tiny"}))
                    write(switch, "100")
                    answers = complete_all(server)
                    self.assertFalse(os.path.exists(switch))
                    hit = [i for i, (_, error) in enumerate(answers) if error]
                    self.assertEqual(len(hit), 1, answers)
                    status, message = answers[hit[0]][1]
                    self.assertEqual(status, 500 if answers[hit[0]][0] is None else 200)  # a stream that had begun
                    self.assertRegex(message, r"values are not finite after \d+ tokens: moe of layer \d+ \(nan/")
                    for i, (text, error) in enumerate(answers):
                        if i not in hit:
                            self.assertEqual(text, undisturbed[i][0])
                    m = server.wait_idle()
                    self.assertEqual(m["mettle_nonfinite_rows_total"], event)
                    self.assertEqual(m['mettle_guard_events_total{op="moe",backend="nan"}'], event)
                # No restart: the same process, at work.
                self.assertTrue(server.alive())
                status, body = ready(server)
                self.assertEqual((status, body["status"]), (200, "degraded"))
                self.assertEqual([(q["op"], q["backend"]) for q in body["quarantined"]], [("moe", "nan")])
                self.assertEqual(server.request("GET", "/health/live")[0], 200)
                m = server.metrics()
                self.assertEqual(m['mettle_quarantined{op="moe",backend="nan"}'], 1)
                self.assertEqual(m["mettle_degraded"], 1)
                self.assertEqual(m["mettle_healthy"], 1)
                self.assertEqual(m['mettle_requests_ended_total{outcome="failed"}'], 3)
                plan = plan_of(server)
                self.assertEqual(plan["status"], "degraded")
                self.assertEqual(backends_of(plan, "moe"), {"reference"})
                self.assertIn("moe of layer", plan["guard"]["quarantined"][0]["why"])
                self.assertTrue(all(p["quarantined"] == (p["backend"] == "nan") for p in plan["proofs"]))
                self.assertIn("guard: moe/nan is quarantined: 3 steps", server.errors())
                # Right answers from who took over; the switch is not even looked at.
                write(switch, "1")
                self.assertEqual(complete_all(server), undisturbed)
                self.assertEqual(answer_to_sum(server), "852")
                self.assertTrue(os.path.exists(switch))
                self.assertEqual(server.stop(), 0)


class Spot(unittest.TestCase):
    def test_a_proof_that_fails_in_an_idle_moment_replaces_the_backend(self):
        with tempfile.TemporaryDirectory() as folder:
            switch = os.path.join(folder, "proof")
            with serving.Server("--guard", "spot", env={"PLANTED": "embed/nan", "PLANTED_PROOF": switch}) as server:
                self.assertEqual(answer_to_sum(server), "852")
                write(switch, "")
                end = time.monotonic() + 240
                while ready(server)[1]["status"] == "ready":
                    self.assertTrue(server.alive() and time.monotonic() < end, server.errors())
                    time.sleep(0.1)
                self.assertEqual(ready(server)[0], 200)
                plan = plan_of(server)
                self.assertEqual(plan["guard"]["mode"], "spot")
                self.assertIn("spot proof failed", plan["guard"]["quarantined"][0]["why"])
                self.assertIn("WRONG_OUTPUT", plan["guard"]["quarantined"][0]["why"])
                self.assertEqual(backends_of(plan, "embed"), {"reference"})
                self.assertGreaterEqual(server.metrics()['mettle_guard_spot_proofs_total{outcome="failed"}'], 1)
                self.assertEqual(answer_to_sum(server), "852")
                self.assertEqual(server.stop(), 0)


class FromTheStart(unittest.TestCase):
    FAULT = "gate_and_up_swapped"
    PLANTED = {"PLANTED": "moe/" + FAULT}

    def test_the_next_proved_backend_serves_and_everything_says_so(self):
        with serving.Server(env=self.PLANTED) as server:
            self.assertEqual(answer_to_sum(server), "852")
            plan = plan_of(server)
            self.assertNotIn(self.FAULT, backends_of(plan, "moe"))
            refused = [p for p in plan["proofs"] if p["backend"] == self.FAULT]
            self.assertTrue(refused)
            for p in refused:
                self.assertEqual((p["op"], p["verdict"], p["serves"]), ("moe", "WRONG_OUTPUT", []))
                self.assertTrue(p["sentence"] and p["remedy"] and p["have"] and p["need"], p)
            m = server.metrics()
            self.assertGreaterEqual(m[f'mettle_candidates{{op="moe",backend="{self.FAULT}",verdict="WRONG_OUTPUT"}}'], 1)
            self.assertFalse([k for k in m if k.startswith("mettle_serving{") and self.FAULT in k])
            self.assertIn(f"prove: {self.FAULT}", server.errors())
            self.assertIn("failed its proof and does not serve", server.errors())
            self.assertRegex(server.errors(), r"step proof: \d+ steps, 3 passes, \d+ logits equal bit for bit")
            self.assertRegex(server.errors(), r"layer proof: \d+ steps, \d+ ops in their places")
            self.assertEqual(ready(server)[1]["status"], "ready")

    def test_named_it_never_falls_back(self):
        r = serving.run_program("serve", "--port", "0", "--moe-runner-backend", self.FAULT, env=self.PLANTED)
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertEqual(r.stdout, "")
        self.assertIn(self.FAULT, r.stderr)
        self.assertIn("WRONG_OUTPUT", r.stderr)


if __name__ == "__main__":
    serving.main()
