"""Puts an engine in the place of a model's attention layers and cache."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any

import torch
from transformers.generation.configuration_utils import GenerationConfig

from dsv4rt.engine import Engine
from dsv4rt.errors import FailedPreconditionError, InvalidArgumentError
from dsv4rt.options import EngineOptions
from dsv4rt.transformers.batch import Batch, first_batch, next_batch
from dsv4rt.transformers.cache import EngineCache
from dsv4rt.transformers.weights import attention_tensors

# What a mask is to the model when there is none: it takes the first value of a dictionary.
_NO_MASK = {"dsv4rt": None}
_REPLACED = "_dsv4rt_attachment"


class _WithoutGradient(torch.autograd.Function):
    """Attention outputs in a graph of gradients: they can be looked at, not differentiated."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out

    @staticmethod
    def backward(context: Any, *_: Any) -> Any:
        raise FailedPreconditionError("attention of dsv4rt has no gradient: detach() the model to train it")


class Attachment:
    """A model whose attention and cache are an engine's, made by `attach`."""

    def __init__(self, model: Any, engine: Engine):
        self.model = model
        self.engine = engine
        self.salt = b""
        """Of the prefixes of caches made from here on: one per tenant."""
        self._batch: Batch | None = None
        self._wanted_columns = 0
        self._calls = (model.forward, model.model.forward, model._prepare_cache_for_generation)
        # `cache` since transformers 5.24.
        parameters = inspect.signature(model.model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        model.forward = _in_place_of(model.forward, self._causal_forward)
        model.model.forward = _in_place_of(model.model.forward, self._model_forward)
        model._prepare_cache_for_generation = self._prepare_cache
        model._is_stateful = False  # the engine can go back: assisted decoding works
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.forward = functools.partial(self._attend, index)
        setattr(model, _REPLACED, self)

    def new_cache(self, salt: bytes | None = None) -> EngineCache:
        """An empty cache for `cache` (`past_key_values` before transformers 5.24).

        `salt` keeps its prefixes apart from those of others.
        """
        return EngineCache(self, self.salt if salt is None else salt)

    def detach(self) -> None:
        """Gives the model its own attention back, if attach kept its weights, and closes the engine."""
        if getattr(self.model, _REPLACED, None) is self:
            del self.model.forward, self.model.model.forward, self.model._prepare_cache_for_generation
            del self.model._is_stateful
            for layer in self.model.model.layers:
                del layer.self_attn.forward
            delattr(self.model, _REPLACED)
        self.engine.close()

    # ---- In the place of the model's own functions --------------------------------------------------

    def _prepare_cache(self, generation_config: GenerationConfig, model_kwargs: dict, *rest: Any, **named: Any) -> Any:
        if model_kwargs.get(self._cache_name) is not None or generation_config.use_cache is False:
            return self._calls[2](generation_config, model_kwargs, *rest, **named)
        if generation_config.cache_implementation not in (None, "dynamic"):
            raise InvalidArgumentError(f"cache_implementation={generation_config.cache_implementation!r}: the cache of "
                                       "an attached model is the engine's; accepted: None")
        model_kwargs[self._cache_name] = self.new_cache()
        return None

    def _causal_forward(self, *arguments: Any, logits_to_keep: Any = 0, labels: Any = None, **named: Any) -> Any:
        counted = isinstance(logits_to_keep, int) and logits_to_keep > 0 and labels is None
        self._wanted_columns = logits_to_keep if counted else 0
        try:
            return self._calls[0](*arguments, logits_to_keep=logits_to_keep, labels=labels, **named)
        finally:
            self._wanted_columns = 0

    def _model_forward(self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None,
                       cache: Any = None, inputs_embeds: Any = None, use_cache: bool | None = None,
                       past_key_values: Any = None, **named: Any) -> Any:
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        if cache is not None and past_key_values is not None:
            raise InvalidArgumentError("cache and past_key_values are both given; accepted: one of them")
        given_cache = cache if cache is not None else past_key_values
        if given_cache is not None and not isinstance(given_cache, EngineCache):
            raise InvalidArgumentError(f"{self._cache_name} is a {type(given_cache).__name__}; accepted: what an "
                                       "attached model returned, Attachment.new_cache(), or None")
        if use_cache is None:
            use_cache = self.model.config.use_cache
        cache = given_cache if given_cache is not None else self.new_cache()
        rows, columns = given.shape[:2]
        cache.check(rows)
        tokens = _token_mask(attention_mask, rows, columns, cache.get_seq_length())
        _check_positions(position_ids, tokens, cache)
        batch = (next_batch(cache, tokens, input_ids) if cache.sequences
                 else first_batch(cache, tokens, input_ids, self._wanted_columns))
        if position_ids is None:
            position_ids = torch.arange(columns, device=given.device).unsqueeze(0) + cache.get_seq_length()
        try:
            output = self._run_chunks(cache, batch, given, inputs_embeds is not None, position_ids, named)
        finally:
            if given_cache is None and not use_cache:
                cache.reset()
        setattr(output, self._cache_name, cache if given_cache is not None or use_cache else None)
        return output

    def _run_chunks(self, cache: EngineCache, batch: Batch, given: Any, embedded: bool, position_ids: Any,
                    named: dict) -> Any:
        columns = given.shape[1]
        width = max(1, self.engine.options.max_step_tokens // batch.rows_run)
        outputs = []
        cache.columns = torch.cat((cache.columns.view(batch.tokens.shape[0], -1), batch.tokens[:, :batch.start]), 1)
        for begin in range(batch.start, columns, width):
            end = min(begin + width, columns)
            chunk = {"inputs_embeds" if embedded else "input_ids": given[:, begin:end]}
            batch.begin(self.engine, begin, end)
            self._batch = batch
            try:
                outputs.append(self._calls[1](**chunk, attention_mask=_NO_MASK, use_cache=False,
                                              position_ids=position_ids[..., begin:end], **named,
                                              **{self._cache_name: None}))
                batch.commit()
            except BaseException as error:
                if batch.cancel() or batch.shares_sequences:
                    cache.lose(error)
                raise
            finally:
                self._batch = None
            cache.columns = torch.cat((cache.columns, batch.tokens[:, begin:end]), 1)
        try:
            batch.fork_duplicates()
        except Exception as error:
            cache.lose(error)
            raise
        return outputs[0] if len(outputs) == 1 else _joined(outputs)

    def _attend(self, layer: int, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        if self._batch is None:
            raise FailedPreconditionError("attention of an attached model runs inside of its forward only")
        out = self._batch.attend(layer, hidden_states.detach())
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            out = _WithoutGradient.apply(hidden_states, out)
        return out, None


def attach(model: Any, *, checkpoint: str | os.PathLike | None = None, max_context_tokens: int | None = None,
           max_step_tokens: int = 1024, max_sequences: int = 8, draft_budget_tokens: int = 32,
           keep_weights: bool = True, options: EngineOptions | None = None, **fields: Any) -> Attachment:
    """Replaces attention and cache of a DeepseekV4ForCausalLM by an engine, until `Attachment.detach`.

    Weights are read from the model's memory, or from the directory `checkpoint`; those that are not BF16 or encoded are
    rounded to BF16. keep_weights=False drops the model's own, and with them detach.

    `generate` then works as before: greedy, sampling, padded batches, beams, prefill_chunk_size; assisted and
    prompt-lookup decoding as well. max_sequences bounds rows times beams, max_context_tokens (the model's own by
    default, 8,192 at most) prompt and output, draft_budget_tokens the drafts that a step can take back. Longer prompts
    than max_step_tokens run in several steps. Other keyword arguments are fields of EngineOptions: row_format="bf16"
    and index_format="bf16" keep the cache unquantized; prefix_cache keeps prefixes from call to call.
    """
    if not hasattr(getattr(model, "model", None), "layers") or getattr(model.config, "model_type", "") != "deepseek_v4":
        raise InvalidArgumentError(f"a {type(model).__name__} cannot be attached; accepted: DeepseekV4ForCausalLM")
    if hasattr(model, _REPLACED):
        raise FailedPreconditionError("the model is attached already: detach() it first")
    if options is None:
        fields = {"max_context_tokens": max_context_tokens or min(model.config.max_position_embeddings, 8192),
                  "max_step_tokens": max_step_tokens, "max_sequences": max_sequences,
                  "draft_budget_tokens": draft_budget_tokens, **_device_fields(model), **fields}
    if checkpoint is not None:
        engine = Engine(checkpoint, options, **fields)
    else:
        engine = Engine.from_tensors(model.config.to_json_string(), attention_tensors(model), options, **fields)
    if len(engine.layers) != len(model.model.layers):
        raise InvalidArgumentError(f"the engine has {len(engine.layers)} layers, the model {len(model.model.layers)}")
    if not keep_weights:
        for layer in model.model.layers:
            layer.self_attn.to("meta")
    return Attachment(model, engine)


def _in_place_of(original: Any, replacement: Any) -> Any:
    """A function with the signature of the original, which `generate` looks at."""
    @functools.wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        return replacement(*arguments, **named)
    return call


def _device_fields(model: Any) -> dict[str, Any]:
    device = model.device
    return {"backend": "cuda", "device": device.index or 0} if device.type == "cuda" else {"backend": "cpu"}


def _token_mask(mask: Any, rows: int, columns: int, past: int) -> torch.Tensor:
    """Which of the new columns hold tokens: [rows, columns], on the CPU."""
    if mask is None:
        return torch.ones(rows, columns, dtype=torch.bool)
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) not in ((rows, past + columns), (rows, columns)):
        shape = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise InvalidArgumentError(f"attention_mask is {shape}; accepted: [{rows}, {past + columns}] of zeros and "
                                   "ones, since the engine masks by itself")
    return mask[:, -columns:].to(device="cpu", dtype=torch.bool)


def _check_positions(position_ids: Any, tokens: torch.Tensor, cache: EngineCache) -> None:
    """Positions are those of tokens in their sequences; others are refused, not ignored."""
    if position_ids is None:
        return
    before = cache.columns.sum(1, keepdim=True) if cache.sequences else 0
    expected = tokens.cumsum(1) - 1 + before
    found = position_ids.to("cpu").expand_as(tokens)
    offset = found - expected
    if not bool((offset[tokens] == 0).all()):
        row, column = (tokens & (offset != 0)).nonzero()[0].tolist()
        raise InvalidArgumentError(f"position_ids[{row}, {column}] is {int(found[row, column])}; the engine appends "
                                   f"that token at {int(expected[row, column])}, and accepts no other")


def _joined(outputs: list) -> Any:
    """Outputs of chunks as one."""
    first = outputs[0]
    for key in first.keys():
        if key != "last_hidden_state" and any(output.get(key) is not None for output in outputs):
            raise InvalidArgumentError(f"{key} of a prompt in several steps: raise max_step_tokens above rows times "
                                       "columns")
    first.last_hidden_state = torch.cat([output.last_hidden_state for output in outputs], 1)
    return first
