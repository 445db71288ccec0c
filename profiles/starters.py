"""Commented starter files, for `endsweep profiles new KIND`. Each loads as it stands."""

from __future__ import annotations

from profiles.errors import ProfileError, did_you_mean

_SWEEP = """\
# A sweep: one endpoint, speculative decoding off and on. Run it with: endsweep run FILE
name: speculation off and on

endpoint:                              # what both arms share
  url: http://127.0.0.1:8000/v1
  # model: my-model                    # default: the only model the server lists
  api: chat                            # chat | completions
  # auth: {env: MY_API_KEY}            # or {file: PATH}; never the key itself
  # prices: {input: 0.15, output: 0.60, per: 1000000}    # US dollars

arms:                                  # each inherits the endpoint and says what differs
  off: {}
  on:
    url: http://127.0.0.1:8001/v1      # or another model, or extra_body: {...}
    speculation: {method: eagle3, draft_tokens: 3}       # what that server was started with

workload:
  use: chat-short                      # `endsweep profiles` lists them; or prompts: my-prompts.jsonl
  # max_tokens: 256                    # default: the workload's own
  # sampling: {temperature: 0}
  salt: true                           # a distinct beginning for every request, against prefix caches

load:
  concurrency: 1..64                   # or [1, 2, 4], {from: 1, to: 64, points: 7}, auto
  seconds: 30                          # measured at each level, at least
  requests: 40                         # counted at each level, at least
  trials: 1

limits:
  minutes: 60
  # tokens: 2000000
  # usd: 5.00                          # needs prices
  error_rate: 0.01
"""

_ENDPOINT = """\
# An endpoint in the cloud, with a key. Run it with: endsweep run FILE
endpoint:
  url: https://api.example.com/v1
  model: my-org/my-model
  auth: {env: EXAMPLE_API_KEY}         # the variable that holds the key; or {file: PATH}
  # headers: {api-key: "${EXAMPLE_API_KEY}"}   # for servers that want another header than Authorization
  prices: {input: 0.15, output: 0.60, per: 1000000}      # US dollars

load: {concurrency: "1..16"}
limits: {minutes: 30, tokens: 1000000, usd: 1.00}
"""

_WORKLOAD = """\
# A workload of your own. Name it in a sweep: workload: {use: PATH/TO/THIS.yaml}
description: Everyday questions and programming, mixed
max_tokens: 256                        # asked of every reply
# system: You are a helpful assistant.
# JSONL files beside this one, or shipped ones. A line is {"prompt": "..."}, or
# {"messages": [{"role": "user", "content": "..."}]}, with an "id" and a "category" if you like.
prompts: [chat.jsonl, code.jsonl]
"""

STARTERS = {"sweep": _SWEEP, "endpoint": _ENDPOINT, "workload": _WORKLOAD}


def starter(kind: str) -> str:
    """The starter text of a kind: sweep, endpoint or workload. Raises ProfileError on another."""
    if kind not in STARTERS:
        raise ProfileError("profiles new", None, f'there is no starter "{kind}"', did_you_mean(kind, STARTERS))
    return STARTERS[kind]
