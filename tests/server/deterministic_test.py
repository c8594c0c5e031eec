"""`mettle serve --deterministic`: an answer has the same bits alone and in a crowd."""
import json
import os
import socket
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

STORY = {"messages": [{"role": "user", "content": "Tell me a story."}], "ignore_eos": True, "temperature": 1}


class Crowd:
    """Requests that stream until they are left; each has its first token when this is made."""

    def __init__(self, server, size):
        self.sockets = []
        for number in range(size):
            body = json.dumps({**STORY, "max_tokens": 3900, "stream": True, "seed": 100 + number}).encode()
            s = socket.create_connection(("127.0.0.1", server.port), 120)
            self.sockets.append(s)
            s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n" % len(body) + body)
            s.recv(1)

    def leave(self):
        for s in self.sockets:
            s.close()


class Deterministic(unittest.TestCase):
    def answer(self, **fields):
        status, _, body = self.server.request("POST", "/v1/chat/completions", {
            **STORY, "max_tokens": 40, "logprobs": True, "top_logprobs": 3, **fields})
        self.assertEqual(status, 200, body)
        choice = json.loads(body)["choices"][0]
        return choice["message"], choice["logprobs"]

    def test_alone_and_in_a_crowd(self):
        with serving.Server("--deterministic") as self.server:
            asked = ({"seed": 5}, {"temperature": 0}, {"seed": 6, "temperature": 1.5, "top_p": 0.9})
            alone = [self.answer(**fields) for fields in asked]
            for size in (1, 7):
                crowd = Crowd(self.server, size)
                beside = [self.answer(**fields) for fields in asked]
                running = self.server.metrics()["mettle_requests_running"]
                crowd.leave()
                self.server.wait_idle()
                self.assertEqual(running, size, "the crowd was there all the time")
                self.assertEqual(beside, alone, f"beside {size} others")


if __name__ == "__main__":
    serving.main()
