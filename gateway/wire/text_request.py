"""What the bodies of all requests for text have in common.

It owns the fields' types; their ranges are in `limits`, what is refused by name in `unserved`. Types are
strict: "1" is not 1 and true is not a number. An explicit null equals leaving the field out. Arrays and
objects are read up to their first fault: complaints about millions of items would hold every other request.
"""

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast
from pydantic_core import PydanticCustomError

from engine.sequence import BeamParams
from gateway.wire.cache_hints import CacheField, CacheHints
from gateway.wire.prompt_cache import PromptCacheOptions, Retention
from gateway.wire.structure_fields import ResponseFormat, StructuredOutputs

__all__ = ["StreamOptions", "TextRequest"]


def _list_of_stops(stop: object) -> object:
    if isinstance(stop, str):
        return [stop]
    if stop is None or isinstance(stop, list):
        return stop
    raise PydanticCustomError("stop", "must be a string, an array of strings, or null")


def _early_stopping(value: object) -> object:
    if value is None or isinstance(value, bool) or value == "never":
        return value
    raise PydanticCustomError("early_stopping", 'must be true, false or "never"')


class StreamOptions(BaseModel):
    """What a stream carries besides text."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    include_usage: bool | None = None


class TextRequest(BaseModel):
    """A request whose fields have the right types; once parsed they are in range too."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    # how long, and where to stop
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: Annotated[
        list[str] | None,
        FailFast(),
        BeforeValidator(_list_of_stops, json_schema_input_type=str | list[str] | None),
    ] = None
    stop_token_ids: Annotated[list[int] | None, FailFast()] = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    # how to draw
    n: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, FailFast()] = None
    prompt_logprobs: int | None = None
    # how the answer must read; at most one of them
    response_format: ResponseFormat | None = None
    regex: str | None = None
    choice: Annotated[list[str] | None, FailFast()] = None
    grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    # how to search instead
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: Annotated[bool | Literal["never"] | None, BeforeValidator(_early_stopping)] = None
    # how to queue and cache
    priority: int | None = None
    cache_salt: str | None = None
    cache: CacheField = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Retention | None = None
    # said by the client about itself; changes nothing
    user: str | None = None

    @property
    def num_choices(self) -> int:
        """How many answers to each prompt are wanted."""
        return self.n if self.n is not None else 1

    @property
    def num_run(self) -> int:
        """How many answers to each prompt are run."""
        return self.num_choices

    @property
    def cache_hints(self) -> CacheHints:
        """The wishes of the cache, none of them by default."""
        return self.cache if self.cache is not None else CacheHints()

    @property
    def cache_options(self) -> PromptCacheOptions:
        """What the protocol's own field says of the cache, nothing by default."""
        return self.prompt_cache_options if self.prompt_cache_options is not None else PromptCacheOptions()

    @property
    def prewarms(self) -> bool:
        """Whether the prompt is only computed, and nothing drawn."""
        return bool(self.cache_options.prewarm)

    @property
    def structure_fields(self) -> list[str]:
        """Those that say how the answer must read."""
        asked, outputs = self.response_format, self.structured_outputs
        said = [] if asked is None or asked.type == "text" else ["response_format"]
        said += [name for name in ("regex", "choice", "grammar") if getattr(self, name) is not None]
        if outputs is not None:
            told = outputs.model_dump(by_alias=True)
            said += [f"structured_outputs.{name}" for name, value in told.items() if value is not None]
        return said

    @property
    def holding_fields(self) -> list[str]:
        """Those by which an answer is held to a grammar."""
        return self.structure_fields

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer; None when the client set none."""
        return self.max_tokens

    @property
    def limit_field(self) -> str:
        """Which field set it."""
        return "max_tokens"

    @property
    def default_limit(self) -> int | None:
        """The most tokens when the client set none; None for what is left of the context."""
        return None

    @property
    @abstractmethod
    def num_told(self) -> int | None:
        """How many candidates are told at each token of an answer; None for no log-probabilities."""

    @property
    def num_drawn_logprobs(self) -> int | None:
        """The same as the engine must know them, told or not."""
        return self.num_told

    @property
    def num_prompt_candidates(self) -> int | None:
        """How many candidates the engine must know at each token of a prompt; None for none at all."""
        return self.prompt_logprobs

    @property
    def beam(self) -> BeamParams | None:
        """The search, if one is wanted. Unless given, it follows `n` hypotheses, and never less than two."""
        if not self.use_beam_search:
            return None
        return BeamParams(
            width=self.beam_width if self.beam_width is not None else max(2, self.num_choices),
            length_penalty=self.length_penalty if self.length_penalty is not None else 1.0,
            early_stopping=self.early_stopping if self.early_stopping is not None else False,
        )
