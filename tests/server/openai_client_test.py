"""The stock `openai` client against `mettle serve` with the embedded model."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import serving
import openai

NO_THINK = {"chat_template_kwargs": {"enable_thinking": False}}
ADD = {"role": "user", "content": "How much is 757 plus 95?"}
TOOLS = [{"type": "function", "function": {
    "name": "compute", "description": "A calculator.",
    "parameters": {"type": "object", "required": ["expression"],
                   "properties": {"expression": {"type": "string", "description": "For example 2 + 2"}}}}}]


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serving.Server()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)
        cls.model = cls.client.models.list().data[0].id

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def chat(self, messages=(ADD,), extra=NO_THINK, temperature=0, **fields):
        return self.client.chat.completions.create(model=self.model, messages=list(messages), temperature=temperature,
                                                   extra_body=extra, **fields)

    def test_models(self):
        self.assertEqual(self.model, "mettle-tiny")
        self.assertEqual(self.client.models.retrieve(self.model).id, self.model)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")

    def test_chat(self):
        r = self.chat()
        self.assertEqual(r.object, "chat.completion")
        self.assertEqual(r.choices[0].message.role, "assistant")
        self.assertEqual(r.choices[0].message.content, "852")
        self.assertEqual(r.choices[0].finish_reason, "stop")
        self.assertEqual(r.usage.prompt_tokens, 24)
        self.assertEqual(r.usage.completion_tokens, 4)
        self.assertEqual(r.usage.total_tokens, 28)

    def test_reasoning(self):
        r = self.chat([{"role": "user", "content": "What is the sum of 79 and 37?"}], extra=None)
        self.assertEqual(r.choices[0].message.content, "116")
        self.assertIn("So 116.", r.choices[0].message.reasoning_content)

    def test_stream_equals_answer(self):
        for extra in (NO_THINK, None):
            whole = self.chat(extra=extra)
            content = reasoning = ""
            usage = finish = None
            for chunk in self.chat(extra=extra, stream=True, stream_options={"include_usage": True}):
                self.assertEqual(chunk.object, "chat.completion.chunk")
                if chunk.usage:
                    usage = chunk.usage
                for choice in chunk.choices:
                    content += choice.delta.content or ""
                    reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                    finish = choice.finish_reason or finish
            self.assertEqual(content, whole.choices[0].message.content)
            self.assertEqual(reasoning, getattr(whole.choices[0].message, "reasoning_content", ""))
            self.assertEqual(finish, whole.choices[0].finish_reason)
            self.assertEqual(usage, whole.usage)

    def test_sampled_stream_equals_answer_with_a_seed(self):
        fields = dict(temperature=1, seed=11, max_tokens=60, messages=[{"role": "user", "content": "Tell me a story."}])
        whole = self.chat(**fields).choices[0].message.content
        parts = [c.choices[0].delta.content or "" for c in self.chat(stream=True, **fields)]
        self.assertEqual("".join(parts), whole)

    def test_stop(self):
        question = [{"role": "user", "content": "Spell the word tale."}]
        self.assertEqual(self.chat(question).choices[0].message.content, "t-a-l-e")
        for stop, expect in (("-l", "t-a"), (["x", "a-"], "t-"), (["t"], ""), ("zzz", "t-a-l-e")):
            r = self.chat(question, stop=stop)
            self.assertEqual(r.choices[0].message.content, expect)
            self.assertEqual(r.choices[0].finish_reason, "stop")
            streamed = "".join(c.choices[0].delta.content or "" for c in self.chat(question, stop=stop, stream=True))
            self.assertEqual(streamed, expect)

    def test_length(self):
        for name in ("max_tokens", "max_completion_tokens"):
            r = self.chat(**{name: 2})
            self.assertEqual(r.choices[0].finish_reason, "length")
            self.assertEqual(r.usage.completion_tokens, 2)
            self.assertEqual(r.choices[0].message.content, "85")

    def test_logprobs(self):
        r = self.chat(logprobs=True, top_logprobs=3)
        entries = r.choices[0].logprobs.content
        self.assertEqual("".join(e.token for e in entries), "852")
        for e in entries:
            self.assertLessEqual(e.logprob, 0)
            self.assertEqual(len(e.top_logprobs), 3)
            self.assertEqual(e.top_logprobs[0].token, e.token)
            self.assertEqual(bytes(e.bytes).decode(), e.token)
            self.assertEqual(sorted((t.logprob for t in e.top_logprobs), reverse=True),
                             [t.logprob for t in e.top_logprobs])
        streamed = []
        for chunk in self.chat(logprobs=True, top_logprobs=3, stream=True):
            if chunk.choices[0].logprobs:
                streamed += chunk.choices[0].logprobs.content
        self.assertEqual([e.token for e in streamed], [e.token for e in entries])
        self.assertIsNone(self.chat().choices[0].logprobs)

    def test_n(self):
        r = self.chat(n=2)
        self.assertEqual([c.index for c in r.choices], [0, 1])
        self.assertEqual([c.message.content for c in r.choices], ["852", "852"])
        self.assertEqual(r.usage.prompt_tokens, 24)
        self.assertEqual(r.usage.completion_tokens, 8)
        texts = ["", ""]
        for chunk in self.chat(n=2, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, ["852", "852"])
        free = self.chat([{"role": "user", "content": "Tell me a story."}], n=3, temperature=1, seed=5, max_tokens=30)
        self.assertEqual(len({c.message.content for c in free.choices}), 3, "each sequence has its own seed")

    def test_tools(self):
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/golden/skills.jsonl")
        tried = 0
        for line in open(golden):
            case = json.loads(line)
            if not case["expected_tool_calls"] or case["skill"] != "tool call" or tried == 4:
                continue
            tried += 1
            extra = {"chat_template_kwargs": {"enable_thinking": case["enable_thinking"]}}
            r = self.chat(case["messages"], extra=extra, tools=case["tools"])
            self.assertEqual(r.choices[0].finish_reason, "tool_calls")
            calls = r.choices[0].message.tool_calls
            expected = case["expected_tool_calls"]
            self.assertEqual(len(calls), len(expected))
            for call, want in zip(calls, expected):
                self.assertTrue(call.id.startswith("call_"))
                self.assertEqual(call.function.name, want["name"])
                self.assertEqual(json.loads(call.function.arguments), want["arguments"])
            streamed = []
            finish = None
            for chunk in self.chat(case["messages"], extra=extra, tools=case["tools"], stream=True):
                streamed += chunk.choices[0].delta.tool_calls or []
                finish = chunk.choices[0].finish_reason or finish
            self.assertEqual(finish, "tool_calls")
            self.assertEqual([(c.function.name, c.function.arguments) for c in streamed],
                             [(c.function.name, c.function.arguments) for c in calls])
        self.assertGreater(tried, 0)

    def test_tool_choice_none_hides_the_tools(self):
        r = self.chat(tools=TOOLS, tool_choice="none")
        self.assertEqual(r.usage.prompt_tokens, 24)
        self.assertIsNone(r.choices[0].message.tool_calls)

    def test_completions(self):
        prompt = "<|im_start|>user\nHow much is 757 plus 95?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        r = self.client.completions.create(model=self.model, prompt=prompt, temperature=0, max_tokens=10, logprobs=1)
        self.assertEqual(r.choices[0].text, "852")
        self.assertEqual(r.choices[0].finish_reason, "stop")
        self.assertEqual(r.choices[0].logprobs.tokens, ["8", "5", "2"])
        self.assertEqual(r.choices[0].logprobs.text_offset, [0, 1, 2])
        ids = json.loads(self.server.request("POST", "/tokenize", {"prompt": prompt})[2])["tokens"]
        many = self.client.completions.create(model=self.model, prompt=[ids, ids], temperature=0, max_tokens=10, n=2)
        self.assertEqual([c.text for c in many.choices], ["852"] * 4)
        streamed = self.client.completions.create(model=self.model, prompt=prompt, temperature=0, max_tokens=10, stream=True)
        self.assertEqual("".join(c.choices[0].text for c in streamed), "852")

    def test_errors(self):
        cases = [
            (openai.NotFoundError, "model", lambda: self.client.chat.completions.create(model="gpt-4", messages=[ADD])),
            (openai.BadRequestError, "messages", lambda: self.chat([])),
            (openai.BadRequestError, "messages[0].role", lambda: self.chat([{"role": "wizard", "content": "x"}])),
            (openai.BadRequestError, "max_tokens", lambda: self.chat(max_tokens=0)),
            (openai.BadRequestError, "temperature", lambda: self.chat(temperature=-1)),
            (openai.BadRequestError, "stop", lambda: self.chat(stop=[str(i) for i in range(17)])),
            (openai.BadRequestError, "n", lambda: self.chat(n=17)),
            (openai.BadRequestError, "response_format", lambda: self.chat(response_format={"type": "json_object"})),
            (openai.BadRequestError, "tool_choice", lambda: self.chat(tools=TOOLS, tool_choice="required")),
            (openai.BadRequestError, "messages", lambda: self.chat([{"role": "user", "content": "word " * 5000}])),
            (openai.BadRequestError, "messages[0].content[0].type", lambda: self.chat(
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])),
        ]
        for kind, param, call in cases:
            with self.assertRaises(kind) as raised:
                call()
            self.assertEqual(raised.exception.param, param)
            self.assertTrue(raised.exception.message)
        self.assertEqual(self.chat().choices[0].message.content, "852", "the server goes on")

    def test_a_stream_that_is_closed_is_cancelled(self):
        stream = self.chat([{"role": "user", "content": "Tell me a story."}], stream=True, max_tokens=3000,
                           temperature=1, extra={**NO_THINK, "ignore_eos": True})
        next(iter(stream))
        stream.close()
        m = self.server.wait_idle()
        self.assertEqual(m["mettle_cache_blocks_used"], 0)


class ApiKey(unittest.TestCase):
    def test_key(self):
        with serving.Server("--api-key", "secret", "--served-model-name", "mine") as server:
            with self.assertRaises(openai.AuthenticationError):
                openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).models.list()
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="secret", max_retries=0)
            self.assertEqual([m.id for m in client.models.list()], ["mine"])


if __name__ == "__main__":
    serving.main()
