"""Commented starter files, for `endsweep profiles new KIND`. Each loads as it stands."""

from __future__ import annotations

from profiles.engines import ENGINES
from profiles.errors import ProfileError

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

# check_equal: 40                      # apart from the points: do the arms answer 40 prompts alike?
"""

_ENDPOINT = """\
# An endpoint in the cloud, with a bearer key. Run it with: endsweep run FILE
endpoint:
  url: https://api.example.com/v1
  model: my-org/my-model
  auth: {env: EXAMPLE_API_KEY}         # the variable that holds the key; or {file: PATH}
  # headers: {api-key: "${EXAMPLE_API_KEY}"}   # in place of auth, where another header than Authorization is wanted
  prices: {input: 0.15, output: 0.60, per: 1000000}      # US dollars
  # extra_body: {ignore_eos: true}     # replies of full length, where that is honoured: `endsweep probe FILE` tells
  # stream: false                      # for an endpoint that cannot stream; only whole replies are timed then

load: {concurrency: "1..16"}
limits: {minutes: 30, tokens: 1000000, usd: 1.00}
"""

_AZURE = """\
# A deployment on Azure: the key in its own header, the version of the API in the URL. Run it with: endsweep run FILE
endpoint:
  # RESOURCE and DEPLOYMENT are yours; routes are put before the query. The newer form of the URL,
  # https://RESOURCE.openai.azure.com/openai/v1, needs no api-version, and the deployment's name as the model.
  url: https://RESOURCE.openai.azure.com/openai/deployments/DEPLOYMENT?api-version=2024-10-21
  model: DEPLOYMENT                    # no list of models stands beside a deployment: it has to be named
  headers: {api-key: "${AZURE_OPENAI_API_KEY}"}          # stored as ${AZURE_OPENAI_API_KEY}, never as the key
  max_tokens_field: auto               # max_tokens, or max_completion_tokens where that is refused (reasoning models)
  prices: {input: 0.15, output: 0.60, per: 1000000}      # US dollars

load: {concurrency: "1..16"}
limits: {minutes: 30, tokens: 1000000, usd: 1.00}
"""

_ORGANISATION = """\
# A provider that bills an organisation and a project, named in headers. Run it with: endsweep run FILE
endpoint:
  url: https://api.example.com/v1
  model: my-model
  auth: {env: OPENAI_API_KEY}          # the variable that holds the key; or {file: PATH}
  headers:
    OpenAI-Organization: "${OPENAI_ORG_ID}"
    OpenAI-Project: "${OPENAI_PROJECT_ID}"
  prices: {input: 0.15, output: 0.60, per: 1000000}      # US dollars

load: {concurrency: "1..16"}
limits: {minutes: 30, tokens: 1000000, usd: 1.00}
"""

_GATEWAY = """\
# A gateway before the endpoint, which wants headers of its own. Run it with: endsweep run FILE
endpoint:
  url: https://gateway.example.com/team/v1
  model: my-org/my-model
  auth: {env: EXAMPLE_API_KEY}         # sent as Authorization: Bearer
  headers:
    X-Gateway-Key: "${GATEWAY_KEY}"    # names that look like credentials are kept out of all that is stored
    X-Team: benchmarks                 # plain values are stored as they are
    # Cache-Control: no-store          # if the gateway caches replies, forbid it: cached replies measure the gateway
  # proxy: env                         # go through HTTP(S)_PROXY, which is never done unasked
  prices: {input: 0.15, output: 0.60, per: 1000000}      # US dollars

load: {concurrency: "1..16"}
limits: {minutes: 30, tokens: 1000000, usd: 1.00}
"""

_TLS = """\
# An endpoint with a certificate authority of its own, or one that asks for ours. Run it with: endsweep run FILE
endpoint:
  url: https://llm.internal.example:8443/v1
  model: my-model
  auth: {env: EXAMPLE_API_KEY}
  tls:                                 # PEM files, beside this one unless the path says otherwise
    ca: ca.pem                         # trusted in place of the system's authorities
    cert: client.pem                   # our certificate, for servers that ask for one
    key: client-key.pem                # its key, without a password; leave out when it is in the cert file
    # verify: false                    # trust anyone: the report says so. Not together with ca

load: {concurrency: "1..16"}
limits: {minutes: 30, tokens: 1000000}
"""

_LAUNCH = """\
# Servers that endsweep starts, one after the other, by commands of your own. Run it with: endsweep run FILE
name: speculation off and on

endpoint:                              # what both arms share
  launch:
    # A list of words, not a line for a shell. {port} is a free port that endsweep picks; no key may stand here.
    command: [my-server, --model, my-model, --port, "{port}"]
    # url: http://127.0.0.1:{port}/v1  # where it is found
    # env: {CUDA_VISIBLE_DEVICES: "0"} # beside what endsweep itself has; ${NAME} for what is secret
    # cwd: serving                     # its working directory, relative to this file
    ready_seconds: 600                 # from its start until it answers
    stop_seconds: 10                   # from SIGTERM until SIGKILL
  # before_point: {post: /reset_prefix_cache}            # or {command: [...]}, before each point

arms:                                  # each inherits the endpoint and says what differs
  off: {}
  on:
    launch: {command: [my-server, --model, my-model, --port, "{port}", --speculate, "4"]}
    speculation: {method: eagle3, draft_tokens: 4}       # a declaration: the flags are in the command

load:
  concurrency: 1..64
  trials: 2                            # blocks off, on, on, off
  # anchor: false                      # do not measure a point of the first block again at the end

limits: {minutes: 120}
"""


def _engine(name: str, *, about: str, model: str, args: str, before: str, on: str, others: str) -> str:
    program = " ".join(ENGINES[name].program)
    return f"""\
# {ENGINES[name].title} started by endsweep, speculative decoding off and on. Run it with: endsweep run FILE
name: {name} speculation off and on

endpoint:                              # what both arms share
  launch:
    engine: {name}
    model: {model}
    # {about}
    # program: [{program.replace(" ", ", ")}]
    # args: [{args}]
    # env: {{CUDA_VISIBLE_DEVICES: "0", HF_TOKEN: "${{HF_TOKEN}}"}}
    ready_seconds: 1200                # from its start until it answers
  # extra_body: {{ignore_eos: true}}     # every answer as long as asked
{before}
arms:                                  # each inherits the endpoint and says what differs
  off: {{}}
  on:
    speculation: {on}
  # {others}

workload:
  use: chat-short
  max_tokens: 256
  sampling: {{temperature: 0}}

load:                                  # arms run in blocks, for only one server is up at a time
  concurrency: 1..64
  seconds: 60
  requests: 100
  trials: 2                            # blocks off, on, on, off

limits: {{minutes: 240}}
"""


_VLLM = _engine(
    "vllm",
    about="`vllm serve MODEL --host 127.0.0.1 --port ...`, with --speculative-config where speculation is declared",
    model="my-org/my-model",
    args='--max-model-len, "8192"',
    before="""\
  # before_point: {post: /reset_prefix_cache}            # vLLM has it with env: {VLLM_SERVER_DEV_MODE: "1"}
""",
    on="{method: eagle3, drafter: my-org/my-drafter, draft_tokens: 3}",
    others="or {method: ngram, draft_tokens: 4}; methods: ngram, draft_model, eagle, eagle3, mtp",
)

_SGLANG = _engine(
    "sglang",
    about="`python3 -m sglang.launch_server --model-path MODEL ...`, with --speculative-algorithm and what it takes",
    model="my-org/my-model",
    args='--mem-fraction-static, "0.8"',
    before="""\
  # before_point: {post: /flush_cache}
""",
    on="{method: eagle3, drafter: my-org/my-drafter, draft_tokens: 3}",
    others="or {method: ngram, draft_tokens: 4}; methods: ngram, draft_model (STANDALONE), eagle, eagle3, mtp (NEXTN)",
)

_TRTLLM = _engine(
    "trtllm",
    about="`trtllm-serve MODEL ... --extra_llm_api_options FILE`; the file's speculative_config comes of speculation",
    model="my-org/my-model",
    args='--max_batch_size, "64"',
    before="""\
  # launch.options are further options of the file: options: {kv_cache_config: {enable_block_reuse: false}}
""",
    on="{method: eagle3, drafter: my-org/my-drafter, draft_tokens: 3}",
    others="or {method: ngram, draft_tokens: 4}; methods: ngram, draft_model (DraftTarget), eagle3, mtp",
)

_LLAMACPP = _engine(
    "llamacpp",
    about="`llama-server -m MODEL ... --metrics`, with --spec-type and what it takes where speculation is declared",
    model="/models/my-model.gguf",
    args='-c, "32768", -np, "16", --no-cache-prompt',
    before="",
    on="{method: draft_model, drafter: /models/my-drafter.gguf, draft_tokens: 4}",
    others="or {method: ngram, draft_tokens: 8}; methods: ngram (ngram-simple), draft_model, eagle3, mtp",
)

_WORKLOAD = """\
# A workload of your own. Name it in a sweep: workload: {use: PATH/TO/THIS.yaml}
description: Everyday questions and programming, mixed
max_tokens: 256                        # asked of every reply
# system: You are a helpful assistant.
# JSONL files beside this one, or shipped ones. A line is {"prompt": "..."}, or
# {"messages": [{"role": "user", "content": "..."}]}, with an "id" and a "category" if you like.
prompts: [chat.jsonl, code.jsonl]
"""

STARTERS = {
    "sweep": _SWEEP,
    "endpoint": _ENDPOINT,
    "azure": _AZURE,
    "organisation": _ORGANISATION,
    "gateway": _GATEWAY,
    "tls": _TLS,
    "launch": _LAUNCH,
    "vllm": _VLLM,
    "sglang": _SGLANG,
    "trtllm": _TRTLLM,
    "llamacpp": _LLAMACPP,
    "workload": _WORKLOAD,
}


def starter(kind: str) -> str:
    """The starter text of a kind. Raises ProfileError, naming all kinds, on another."""
    if kind not in STARTERS:
        remedy = f"use one of: {', '.join(STARTERS)}"
        raise ProfileError("profiles new", None, f'there is no starter "{kind}"', remedy)
    return STARTERS[kind]


def about(kind: str) -> str:
    """What a starter is for, in one line: the first of its comments."""
    return STARTERS[kind].partition("\n")[0].removeprefix("# ").partition(". ")[0]
