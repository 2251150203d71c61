"""`twostep plan`: what the autoscaler has decided, and why; or, from a trace and measured rates, how many nodes to have."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from twostep.autoscaler.config import TargetsConfig
from twostep.autoscaler.explain import sentences
from twostep.autoscaler.rates import StepTime
from twostep.autoscaler.simulation.fleet import NodeModel
from twostep.autoscaler.simulation.sizing import Separate, Whole, nodes_that_do_both, separate_pools
from twostep.autoscaler.simulation.trace import TraceRequest, denser, read_trace
from twostep.core.errors import ConfigError, NodeUnavailable

TIMEOUT_S = 10.0
OFFLINE = ("prefill_rate", "decode_step", "decode_sequence", "kv_tokens")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("plan", help="show how many nodes the autoscaler wants, or how many a load needs")
    parser.add_argument(
        "--url", default="http://127.0.0.1:9091", help="the autoscaler's address (default: %(default)s, as in its pod)"
    )
    parser.add_argument("--explain", action="store_true", help="say why")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="size the pools for this trace (CSV or JSON lines) instead of asking the autoscaler",
    )
    parser.add_argument("--times", type=int, default=1, metavar="N", help="with --trace: multiply the requests by N")
    parser.add_argument("--ttft", type=float, default=2.0, metavar="S", help="target for the time to first token (%(default)s)")
    parser.add_argument(
        "--tpot", type=float, default=0.05, metavar="S", help="target for the time per output token (%(default)s)"
    )
    parser.add_argument(
        "--attainment",
        type=float,
        default=0.97,
        metavar="SHARE",
        help="share of requests that must meet the targets (%(default)s)",
    )
    parser.add_argument("--prefill-rate", type=float, metavar="N", help="prompt tokens per second of a busy prefill node")
    parser.add_argument("--decode-step", type=float, metavar="S", help="duration of a decode step with few sequences")
    parser.add_argument("--decode-sequence", type=float, metavar="S", help="what each further sequence adds to it")
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="tokens of KV that fit on a node")
    parser.add_argument(
        "--transfer", type=float, default=0.0, metavar="S", help="what a handoff adds to the time to first token (%(default)s)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print a plan. Returns 1 when no fleet would do. Raises ConfigError and ServingError."""
    if arguments.trace is None:
        for line in sentences(_fetch(arguments.url), explained=arguments.explain):
            print(line)
        return 0
    model, targets = _model(arguments), _targets(arguments)
    trace = denser(read_trace(arguments.trace), _at_least_1(arguments.times, "--times"))
    pair, whole = separate_pools(trace, model, targets), nodes_that_do_both(trace, model, targets)
    for line in sizes(trace, targets, pair, whole):
        print(line)
    return 0 if pair or whole else 1


def sizes(trace: list[TraceRequest], targets: TargetsConfig, pair: Separate | None, whole: Whole | None) -> Iterator[str]:
    """Yield what a person reads of the two smallest fleets, and whether separate pools pay."""
    duration_s = max(1.0, trace[-1].at_s)
    prompts = sum(one.prompt_tokens for one in trace) / duration_s
    answers = sum(one.output_tokens for one in trace) / duration_s
    yield f"{len(trace)} requests in {duration_s / 60:.0f} min: {prompts:.0f} prompt and {answers:.0f} output tokens a second"
    yield f"to be in time: {targets.attainment:.0%}, TTFT {targets.ttft_s:g} s, TPOT {targets.tpot_s:g} s"
    yield _separately(pair)
    yield f"nodes that do both: {f'{whole.nodes}, {whole.attainment:.1%} in time' if whole else 'no number is enough'}"
    yield _verdict(pair, whole)


def _separately(pair: Separate | None) -> str:
    if pair is None:
        return "separate pools: no number is enough"
    nodes = pair.nodes
    ratio = f"P:D {nodes.prefill / nodes.decode:.2g}"
    both = f"{nodes.prefill} prefill and {nodes.decode} decode nodes, {pair.total} in all"
    return f"separate pools: {both} ({ratio}), {pair.attainment:.1%} in time"


def _verdict(pair: Separate | None, whole: Whole | None) -> str:
    if pair is None and whole is None:
        return "neither keeps the targets: some prompts alone may take longer; loosen them, or use faster nodes"
    if whole is None:
        return "separate pools pay: nodes that do both cannot keep the targets"
    if pair is None:
        return "separate pools do not pay: they cannot keep the targets"
    if pair.total < whole.nodes:
        return f"separate pools pay: {1 - pair.total / whole.nodes:.0%} fewer nodes"
    more = f"{pair.total / whole.nodes - 1:.0%} more nodes" if pair.total > whole.nodes else "as many nodes"
    return f"separate pools do not pay: {more}"


def _fetch(url: str) -> Any:
    try:
        reply = httpx.get(f"{url}/plan", timeout=TIMEOUT_S, trust_env=False)
        reply.raise_for_status()
        told = reply.json()
        list(sentences(told, explained=True))
    except (httpx.HTTPError, httpx.InvalidURL) as cause:
        raise NodeUnavailable(f"no plan from {url} ({cause}): is an autoscaler there?") from cause
    except (ValueError, LookupError, TypeError) as cause:
        raise NodeUnavailable(f"{url}/plan is not an autoscaler's page ({type(cause).__name__}: {cause})") from cause
    return told


def _model(arguments: argparse.Namespace) -> NodeModel:
    given = {name: getattr(arguments, name) for name in OFFLINE}
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is None:
            raise ConfigError(f"{option}: required with --trace, as measured on a node")
        if value < 0 or (value == 0 and name != "decode_sequence"):
            raise ConfigError(f"{option}: expected more than 0, found {value:g}")
    step = StepTime(arguments.decode_step, arguments.decode_sequence)
    return NodeModel(arguments.prefill_rate, step, arguments.kv_tokens, max(0.0, arguments.transfer))


def _targets(arguments: argparse.Namespace) -> TargetsConfig:
    for option in ("ttft", "tpot"):
        if getattr(arguments, option) <= 0:
            raise ConfigError(f"--{option}: expected more than 0, found {getattr(arguments, option):g}")
    if not 0 < arguments.attainment < 1:
        raise ConfigError(f"--attainment: expected a share between 0 and 1, found {arguments.attainment:g}")
    return TargetsConfig(ttft_s=arguments.ttft, tpot_s=arguments.tpot, attainment=arguments.attainment)


def _at_least_1(value: int, option: str) -> int:
    if value < 1:
        raise ConfigError(f"{option}: expected at least 1, found {value}")
    return value
