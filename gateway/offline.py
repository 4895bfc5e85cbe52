"""Answers for scripts: a model in this process, without a server.

    from gateway.offline import LLM, SamplingParams

    with LLM() as llm:
        for answer in llm.generate(["One,", "Two,"], SamplingParams(temperature=0, max_tokens=8)):
            print(answer.outputs[0].text)

It is the gateway's text and the engine's core, nothing between them: the same tokenizer, template, cache and
sampler as over HTTP, and no web stack. An LLM belongs to the thread that made it.
"""

import random
import secrets
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from tqdm import tqdm

from engine.local import load_core
from engine.messages import EngineConfig, Submit
from engine.sequence import SamplingParams as EngineSampling
from gateway.choice import Choice, Piece
from gateway.conversation.detokenizer import detokenize
from gateway.conversation.prompt import Prompts, load_prompts
from gateway.conversation.stop import StopMatcher, StopStrings
from gateway.generation import Generation
from gateway.offline_jobs import Job, JobMaker, Message, PromptInput
from gateway.offline_outputs import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    Logprob,
    RequestOutput,
    completion_output,
    prompt_logprobs,
)
from gateway.offline_params import BeamSearchParams, SamplingParams
from gateway.offline_run import Core, run_all
from gateway.pull import pull_default

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CompletionOutput",
    "Logprob",
    "PromptInput",
    "RequestOutput",
    "SamplingParams",
]

_NAMESPACE = bytes(32)  # there is one tenant
_NO_LIMIT = 1 << 62


class LLM:
    """A model that answers in this process. Use it in `with`, or `close` it."""

    def __init__(
        self,
        model: str = "default",
        *,
        dtype: Literal["auto", "bfloat16", "float32"] = "auto",
        max_model_len: int | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        """`model` is a GGUF file, a folder with safetensors, or "default", which is fetched into data/models.

        `seed` fixes what requests without a seed of their own draw. `options` are fields of
        engine.messages.EngineConfig, such as kv_bytes. Raises ValueError or OSError when the model cannot be
        loaded, PullError when it cannot be fetched.
        """
        given = {
            "model": model,
            "dtype": "bfloat16" if dtype == "auto" else dtype,
            "max_context": max_model_len,
            "max_waiting": _NO_LIMIT,
            "max_waiting_tokens": _NO_LIMIT,
            "max_wait_seconds": float("inf"),
            **options,
        }
        if unknown := sorted(given.keys() - EngineConfig.__struct_fields__):
            raise ValueError(f"there is no option {unknown[0]!r}")
        try:
            config = msgspec.convert(given, EngineConfig)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error}") from None
        path = pull_default(Path("data/models")) if model == "default" else Path(model)
        prompts = load_prompts(path)
        self._bind(load_core(msgspec.structs.replace(config, model=str(path))), prompts, seed)

    @classmethod
    def over(cls, core: Core, prompts: Prompts, *, seed: int | None = None) -> Self:
        """One over an engine and a text side that are loaded already."""
        made = cls.__new__(cls)
        made._bind(core, prompts, seed)
        return made

    def _bind(self, core: Core, prompts: Prompts, seed: int | None) -> None:
        self._core = core
        self._prompts = prompts
        self._jobs = JobMaker(
            prompts, vocab_size=core.info.vocab_size, max_request_tokens=core.info.max_request_tokens
        )
        self._tickets = count()
        self._random = random.Random(secrets.randbits(64) if seed is None else seed)
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the engine. Closing twice is harmless."""
        if self._is_open:
            self._is_open = False
            self._core.close()

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer every prompt, in the order of the prompts. Parameters are one for all, or one each.

        Raises ValueError before anything runs when a prompt or a parameter cannot be served.
        """
        return self._answer(self._jobs.of_prompts(prompts), sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """The same for one conversation, or several, in the model's chat template."""
        jobs = self._jobs.of_conversations(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        return self._answer(jobs, sampling_params, use_tqdm)

    def beam_search(
        self, prompts: PromptInput | Sequence[PromptInput], params: BeamSearchParams, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The `beam_width` likeliest answers to every prompt. Raises ValueError as `generate` does."""
        jobs = self._jobs.of_prompts(prompts)
        ends = self._prompts.end_token_ids
        wishes = [params.for_engine(num_left=self._jobs.num_left(job), end_token_ids=ends) for job in jobs]
        plain = SamplingParams(n=params.beam_width, max_tokens=params.max_tokens)
        generations = [self._generation(job, plain, wish) for job, wish in zip(jobs, wishes, strict=True)]
        self._run(jobs, generations, use_tqdm)
        return [
            BeamSearchOutput(sequences=[self._hypothesis(job, each) for each in generation.choices])
            for job, generation in zip(jobs, generations, strict=True)
        ]

    def _answer(
        self, jobs: list[Job], given: SamplingParams | Sequence[SamplingParams] | None, use_tqdm: bool
    ) -> list[RequestOutput]:
        params = [given or SamplingParams()] * len(jobs) if not isinstance(given, Sequence) else list(given)
        if len(params) != len(jobs):
            raise ValueError(f"{len(params)} sampling_params for {len(jobs)} prompts")
        if not all(isinstance(wish, SamplingParams) for wish in params):
            raise ValueError("sampling_params are SamplingParams, one for all prompts or one each")
        generations = []
        for job, wish in zip(jobs, params, strict=True):
            sampling = wish.for_engine(
                num_left=self._jobs.num_left(job),
                vocab_size=self._core.info.vocab_size,
                end_token_ids=self._prompts.end_token_ids,
                fresh_seed=self._random.getrandbits(64),
            )
            generations.append(self._generation(job, wish, sampling))
        self._run(jobs, generations, use_tqdm)
        return [self._output(*each) for each in zip(jobs, generations, params, strict=True)]

    def _generation(self, job: Job, wish: SamplingParams, sampling: EngineSampling) -> Generation:
        submit = Submit(
            request_id=str(next(self._tickets)),
            prompt=job.ids.tobytes(),
            sampling=sampling,
            namespace=_NAMESPACE,
            num_choices=wish.n,
        )
        stops = StopStrings(wish.stops)
        choices = []
        for index in range(wish.n):
            detokenizer = self._prompts.detokenizer()
            detokenizer.prime(job.ids if job.text is None else ())
            matcher = StopMatcher(stops, wish.include_stop_str_in_output)
            choices.append(Choice(index, detokenizer, matcher, min_tokens=wish.min_tokens))
        return Generation(submit=submit, prompt_ids=job.ids, choices=choices)

    def _run(self, jobs: list[Job], generations: list[Generation], use_tqdm: bool) -> None:
        if not self._is_open:
            raise ValueError("this LLM is closed")
        by_id = {each.submit.request_id: job for each, job in zip(generations, jobs, strict=True)}
        num_drawn = 0
        with tqdm(total=len(jobs), desc="prompts", disable=not use_tqdm) as bar:

            def tell(generation: Generation, piece: Piece) -> None:
                nonlocal num_drawn
                job = by_id[generation.submit.request_id]
                job.told.setdefault(piece.index, []).extend(piece.logprobs)
                if piece.finish_reason is None:
                    return
                choice = generation.choices[piece.index]
                num_drawn += len(choice.token_ids)
                if job.chat is not None:
                    self._prompts.record(job.chat, choice.text, choice.token_ids)
                if generation.is_finished:
                    bar.set_postfix_str(
                        f"{num_drawn / max(bar.format_dict['elapsed'], 1e-9):.0f} tokens/s", False
                    )
                    bar.update()

            run_all(self._core, generations, tell)

    def _output(self, job: Job, generation: Generation, wish: SamplingParams) -> RequestOutput:
        values = generation.prompt_logprobs
        return RequestOutput(
            request_id=generation.submit.request_id,
            prompt=job.text,
            prompt_token_ids=job.ids.tolist(),
            prompt_logprobs=None
            if wish.prompt_logprobs is None
            else prompt_logprobs(job.ids, values, self._prompts.spelling),
            outputs=[
                completion_output(
                    choice,
                    job.told.get(choice.index, ()) if wish.logprobs is not None else None,
                    self._prompts.spelling,
                    stop_token_ids=wish.stop_token_ids or (),
                )
                for choice in generation.choices
            ],
            num_cached_tokens=generation.num_cached_tokens,
        )

    def _hypothesis(self, job: Job, choice: Choice) -> BeamSearchSequence:
        assert choice.finish_reason is not None, "the choice has ended"
        before = detokenize(self._prompts.tokenizer, job.ids) if job.text is None else job.text
        return BeamSearchSequence(
            tokens=[*job.ids, *choice.token_ids],
            text=before + choice.text,
            cum_logprob=choice.cumulative_logprob,
            finish_reason=choice.finish_reason,
        )
