"""64 clients that stream at once: every answer whole, none lost, memory steady. 500 clients that leave abruptly: no
sequence, block or slot stays behind. Ten seconds by default; `soak_test.py PROGRAM --seconds 60` runs the full
minute.
"""
import asyncio
import json
import os
import random
import socket
import struct
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving

SECONDS = 10.0
if "--seconds" in sys.argv:
    at = sys.argv.index("--seconds")
    SECONDS = float(sys.argv[at + 1])
    del sys.argv[at:at + 2]

CLIENTS = 64
DISCONNECTS = 500
EXACT = [("How much is 757 plus 95?", "852"), ("What is 88 times 3?", "264"), ("Spell the word tale.", "t-a-l-e"),
         ("Find the largest number: 13, 85, 49", "85"), ("Please say no.", "No")]


def request_bytes(body):
    data = json.dumps(body).encode()
    return (b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(data)) + data


def chat(content, **fields):
    return {"messages": [{"role": "user", "content": content}], "stream": True, **fields}


async def read_stream(reader):
    """(status, events) of one chunked event stream, read to its last chunk."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    if b"chunked" not in head:
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        return status, [await reader.readexactly(length)]
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return status, [line[6:] for line in body.split(b"\n\n") if line]


class Soak(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serving.Server()

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    async def one_client(self, number, until, counts):
        rng = random.Random(number)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        while time.monotonic() < until:
            counts["sent"] += 1
            if rng.random() < 0.5:
                question, expect = rng.choice(EXACT)
                body = chat(question, temperature=0, chat_template_kwargs={"enable_thinking": False})
                tokens = None
            else:
                tokens = rng.randrange(1, 60)
                body, expect = chat("Tell me a story.", max_tokens=tokens, ignore_eos=True, temperature=1,
                                    stream_options={"include_usage": True}), None
            writer.write(request_bytes(body))
            await writer.drain()
            status, events = await read_stream(reader)
            self.assertEqual(status, 200, events)
            self.assertEqual(events[-1], b"[DONE]")
            chunks = [json.loads(e) for e in events[:-1]]
            finish = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1]
            if expect is not None:
                self.assertEqual("".join(c["choices"][0]["delta"].get("content", "") for c in chunks), expect)
                self.assertEqual(finish, "stop")
            else:
                self.assertEqual(finish, "length")
                self.assertEqual(chunks[-1]["usage"]["completion_tokens"], tokens)
            counts["whole"] += 1
        writer.close()

    def test_1_sixty_four_streaming_clients(self):
        async def run(seconds):
            counts = {"sent": 0, "whole": 0}
            until = time.monotonic() + seconds
            await asyncio.gather(*(self.one_client(i, until, counts) for i in range(CLIENTS)))
            return counts

        asyncio.run(run(SECONDS / 4))  # buffers reach their size
        before = self.server.wait_idle()
        resident = self.server.resident_bytes()
        counts = asyncio.run(run(SECONDS))
        after = self.server.wait_idle()
        self.assertEqual(counts["whole"], counts["sent"])
        ended = 'mettle_requests_ended_total{outcome="finished"}'
        self.assertEqual(after[ended] - before[ended], counts["sent"])
        self.assertEqual(after["mettle_requests_accepted_total"] - before["mettle_requests_accepted_total"], counts["sent"])
        self.assertEqual(after['mettle_requests_ended_total{outcome="failed"}'], 0)
        grown = self.server.resident_bytes() - resident
        print(f"\n{counts['whole']} answers to {CLIENTS} clients in {SECONDS:.0f} s; resident memory "
              f"{resident / 2**20:.1f} MiB, {grown / 2**20:+.1f} MiB")
        self.assertLess(grown, 16 * 2**20)

    def test_2_five_hundred_abrupt_disconnects(self):
        """At every moment: before the request is whole, before the first token, in the stream; closed or reset."""
        rng = random.Random(1)
        before = self.server.wait_idle()

        async def leave(number):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
            data = request_bytes(chat("Tell me a story.", max_tokens=3000, ignore_eos=True, temperature=1,
                                      n=rng.choice([1, 1, 2]), stream=number % 3 != 0))
            moment = number % 5
            if moment == 0:
                data = data[:rng.randrange(1, len(data))]
            writer.write(data)
            await writer.drain()
            if moment >= 2 and number % 3 != 0:
                for _ in range(rng.randrange(1, 4)):
                    await asyncio.wait_for(reader.read(200), 60)
            if rng.random() < 0.5:
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async def run():
            for start in range(0, DISCONNECTS, 50):
                await asyncio.gather(*(leave(i) for i in range(start, start + 50)))

        asyncio.run(run())
        after = self.server.wait_idle()
        for name in ("mettle_cache_blocks_used", "mettle_state_slots_used", "mettle_requests_running"):
            self.assertEqual(after[name], 0, name)
        accepted = after["mettle_requests_accepted_total"] - before["mettle_requests_accepted_total"]
        ended = sum(after[k] - before[k] for k in after if k.startswith("mettle_requests_ended_total"))
        self.assertEqual(accepted, ended, "every request ended exactly once")
        status, _, body = self.server.chat("How much is 757 plus 95?", temperature=0,
                                           chat_template_kwargs={"enable_thinking": False})
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(body)["choices"][0]["message"]["content"], "852")

    def test_3_a_reader_that_stops_reading_holds_nobody_up(self):
        stuck = socket.create_connection(("127.0.0.1", self.server.port))
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(request_bytes(chat("Tell me a story.", max_tokens=3000, ignore_eos=True, n=4, logprobs=True,
                                         top_logprobs=20)))
        for question, expect in EXACT:
            status, _, body = self.server.chat(question, temperature=0, chat_template_kwargs={"enable_thinking": False})
            self.assertEqual(json.loads(body)["choices"][0]["message"]["content"], expect)
        stuck.close()
        self.assertEqual(self.server.wait_idle()["mettle_cache_blocks_used"], 0)


if __name__ == "__main__":
    serving.main()
