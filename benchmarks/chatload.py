"""Multi-turn chat load against any OpenAI-compatible server; prints one line of JSON.

A closed loop: USERS conversations at once, TURNS turns each. All share one system prompt; each turn sends a
fresh user message and the whole history before it. Replies are forced to OUT tokens where the server knows
`ignore_eos`.

    python -m benchmarks.chatload --url http://127.0.0.1:8000/v1 --model NAME --users 8 --turns 6
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx

WORDS = """
time year people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house
service friend father power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
""".split()


@dataclass(frozen=True, slots=True)
class Turn:
    """One answered request; times in seconds."""

    number: int
    first_token: float
    end_to_end: float
    per_token: float | None  # between tokens; None with fewer than two
    num_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int | None


def plain_text(rng: random.Random, num_words: int) -> str:
    """About one token a word."""
    words = []
    for place in range(num_words):
        word = rng.choice(WORDS)
        words.append(word.capitalize() if place % 12 == 0 else word + ("." if place % 12 == 11 else ""))
    return " ".join(words)


async def ask(
    client: httpx.AsyncClient, options: argparse.Namespace, messages: list[dict[str, str]], number: int
) -> tuple[str, Turn]:
    """Send one turn and read its stream."""
    body: dict[str, Any] = {
        "model": options.model,
        "messages": messages,
        "stream": True,
        "max_tokens": options.out,
        "temperature": 0,
        "stream_options": {"include_usage": True},
        **({} if options.no_ignore_eos else {"ignore_eos": True}),
        **json.loads(options.extra or "{}"),
    }
    started = time.perf_counter()
    arrivals: list[float] = []
    reply: list[str] = []
    usage: dict[str, Any] = {}
    async with client.stream("POST", f"{options.url}/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {(await response.aread())[:400]!r}")
        async for line in response.aiter_lines():
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:") or data == "[DONE]":
                continue
            event = json.loads(data)
            usage = event.get("usage") or usage
            for choice in event.get("choices") or []:
                piece = (choice.get("delta") or {}).get("content")
                if piece:
                    arrivals.append(time.perf_counter())
                    reply.append(piece)
    return "".join(reply), _measure(number, started, arrivals, usage)


def _measure(number: int, started: float, arrivals: list[float], usage: dict[str, Any]) -> Turn:
    ended = time.perf_counter()
    num_tokens = usage.get("completion_tokens") or len(arrivals)
    is_timed = len(arrivals) > 1 and num_tokens > 1
    return Turn(
        number=number,
        first_token=(arrivals[0] if arrivals else ended) - started,
        end_to_end=ended - started,
        per_token=(arrivals[-1] - arrivals[0]) / (num_tokens - 1) if is_timed else None,
        num_tokens=num_tokens,
        num_prompt_tokens=usage.get("prompt_tokens") or 0,
        num_cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
    )


async def converse(
    client: httpx.AsyncClient, options: argparse.Namespace, user: int, system: str, turns: list[Turn]
) -> None:
    """One user's conversation; appends to `turns`."""
    rng = random.Random(f"{options.seed}/{user}")
    messages = [{"role": "system", "content": system}]
    for number in range(options.turns):
        messages.append({"role": "user", "content": plain_text(rng, options.user)})
        reply, turn = await ask(client, options, messages, number)
        turns.append(turn)
        messages.append({"role": "assistant", "content": reply or "ok"})
        await asyncio.sleep(options.think * rng.random() * 2)


def percentile(values: Iterable[float | None], share: float) -> float | None:
    """The value that `share` of the others stay below."""
    ranked = sorted(value for value in values if value is not None)
    return round(ranked[min(len(ranked) - 1, int(share * len(ranked)))], 4) if ranked else None


def summarize(
    options: argparse.Namespace, turns: list[Turn], errors: list[str], seconds: float
) -> dict[str, Any]:
    """The figures of a run."""
    later = [turn for turn in turns if turn.number > 0]
    cached = [turn.num_cached_tokens for turn in turns if turn.num_cached_tokens is not None]
    num_prompt_tokens = sum(turn.num_prompt_tokens for turn in turns)
    return {
        "label": options.label,
        "users": options.users,
        "turns": options.turns,
        "wall_s": round(seconds, 2),
        "turns_done": len(turns),
        "errors": errors[:3],
        "out_tok_s": round(sum(turn.num_tokens for turn in turns) / seconds, 1),
        "ttft_first_p50": percentile((turn.first_token for turn in turns if turn.number == 0), 0.5),
        "ttft_later_p50": percentile((turn.first_token for turn in later), 0.5),
        "ttft_later_p95": percentile((turn.first_token for turn in later), 0.95),
        "tpot_p50": percentile((turn.per_token for turn in turns), 0.5),
        "tpot_p95": percentile((turn.per_token for turn in turns), 0.95),
        "e2e_p50": percentile((turn.end_to_end for turn in turns), 0.5),
        "prompt_tokens": num_prompt_tokens,
        "cached_share": round(sum(cached) / num_prompt_tokens, 4) if cached and num_prompt_tokens else None,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Multi-turn chat load; lengths are in tokens.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    for name, default in {"users": 8, "turns": 6, "system": 600, "user": 60, "out": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", default="s")
    parser.add_argument("--think", type=float, default=0.0, help="mean seconds between turns")
    parser.add_argument("--key", default="none")
    parser.add_argument("--no-ignore-eos", action="store_true", help="for servers that refuse the field")
    parser.add_argument("--extra", help="more fields of the body, as JSON")
    parser.add_argument("--label", default="")
    return parser.parse_args()


async def main() -> None:
    """Run the load and print its figures."""
    options = _options()
    system = plain_text(random.Random(options.seed), options.system)
    turns: list[Turn] = []
    headers = {"Authorization": f"Bearer {options.key}"}
    limits = httpx.Limits(max_connections=1000)
    async with httpx.AsyncClient(timeout=1200, limits=limits, headers=headers) as client:
        started = time.perf_counter()
        conversations = (converse(client, options, user, system, turns) for user in range(options.users))
        results = await asyncio.gather(*conversations, return_exceptions=True)
        seconds = time.perf_counter() - started
    errors = [repr(result)[:200] for result in results if isinstance(result, BaseException)]
    print(json.dumps(summarize(options, turns, errors, seconds)))


if __name__ == "__main__":
    asyncio.run(main())
