"""A model of transformers on an engine: generate() in all its ways gives what plain decoding gives."""

import gc
import inspect

import pytest
import torch
from transformers import DeepseekV4ForCausalLM

import dsv4rt
import dsv4rt.transformers
import models

EXACT = dict(row_format="bf16", index_format="bf16")
PROMPT, NEW = 150, 80
# What the cache is called. The other name is taken as well, and some of the tests use it.
CACHE = "cache" if "cache" in inspect.signature(DeepseekV4ForCausalLM.forward).parameters else "past_key_values"


@pytest.fixture(scope="module")
def prompts():
    """Of 24 at random, four whose text no rounding decides: see own_text."""
    return torch.randint(1, 256, (24, PROMPT), generator=torch.Generator().manual_seed(5))[[1, 2, 10, 17]]


@pytest.fixture(scope="module")
def saved(random_model, tmp_path_factory):
    """The directory that transformers writes, and what its own attention generates from it."""
    directory = tmp_path_factory.mktemp("saved")
    random_model.to(torch.float32).save_pretrained(directory)
    model = DeepseekV4ForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return directory, model


@pytest.fixture(scope="module")
def own_text(saved, prompts):
    """What transformers generates. BF16 rows move this model's logits by up to 0.005, so that two that are less than
    0.01 apart may change places, more or less by chance: every choice of this text is clearer than that."""
    own = saved[1].generate(prompts, max_new_tokens=NEW, do_sample=False, output_scores=True,
                            return_dict_in_generate=True)
    best = torch.stack(own.scores, 1).topk(2).values
    assert (best[..., 0] - best[..., 1]).min() > 0.015, "choose other prompts: this text has a near-tie"
    return own.sequences


@pytest.fixture
def attached(saved, request):
    options = dict(max_context_tokens=512, **EXACT)
    options.update(getattr(request, "param", {}))
    attachment = dsv4rt.transformers.attach(saved[1], **options)
    yield attachment
    attachment.detach()
    assert not hasattr(saved[1].forward, "__wrapped__") or saved[1].forward.__self__ is saved[1]


def greedy(attachment, ids, new=NEW, **more):
    return attachment.model.generate(ids, max_new_tokens=new, do_sample=False, **more)


@pytest.mark.parametrize("rows", [1, 4])
def test_greedy_text_is_that_of_transformers(attached, prompts, own_text, rows):
    text = greedy(attached, prompts[:rows])
    assert (text == own_text[:rows])[:, PROMPT:].sum(1).tolist() == [NEW] * rows
    assert own_text[0, PROMPT:].unique().numel() > 10, "the text says something"


def test_a_saved_bf16_checkpoint_is_read_from_its_directory(random_model, saved, prompts, own_text, tmp_path):
    """What transformers writes in BF16 is what the engine reads; the rest of the model stays FP32."""
    torch.save(random_model.state_dict(), tmp_path / "weights.pt")
    random_model.to(torch.bfloat16).save_pretrained(tmp_path)
    random_model.to(torch.float32)
    attachment = dsv4rt.transformers.attach(saved[1], checkpoint=tmp_path, max_context_tokens=512, **EXACT)
    try:
        assert torch.equal(greedy(attachment, prompts[:1]), own_text[:1])
    finally:
        attachment.detach()


def test_detach_gives_the_own_attention_back(saved, prompts, own_text):
    model = saved[1]
    attachment = dsv4rt.transformers.attach(model, max_context_tokens=512, **EXACT)
    with pytest.raises(dsv4rt.FailedPreconditionError, match="already"):
        dsv4rt.transformers.attach(model)
    attachment.detach()
    assert attachment.engine.closed
    with torch.no_grad():
        logits = model(prompts[:1]).logits
    assert int(logits[0, -1].argmax()) == int(own_text[0, PROMPT])
    assert type(model(prompts[:1, :8]).past_key_values).__name__ == "DynamicCache"


def test_padded_rows_are_generated_as_if_alone(attached, prompts):
    lengths = (PROMPT, 37, 131, 4)
    ids = torch.zeros_like(prompts)
    mask = torch.zeros_like(prompts)
    for row, length in enumerate(lengths):
        ids[row, PROMPT - length:] = prompts[row, :length]
        mask[row, PROMPT - length:] = 1
    together = greedy(attached, ids, attention_mask=mask, new=24)
    for row, length in enumerate(lengths):
        alone = greedy(attached, prompts[row:row + 1, :length], new=24)
        assert torch.equal(together[row, PROMPT:], alone[0, length:]), f"row of {length} tokens"


@pytest.mark.parametrize("attached", [dict(max_step_tokens=64)], indirect=True)
def test_prompts_longer_than_a_step_run_in_several(attached, prompts, own_text):
    assert torch.equal(greedy(attached, prompts[:2], new=16), own_text[:2, :PROMPT + 16])
    with torch.no_grad():
        logits = attached.model(prompts[:1]).logits
    assert logits.shape[1] == PROMPT
    with pytest.raises(dsv4rt.InvalidArgumentError, match="max_step_tokens"):
        attached.model(prompts[:1], output_hidden_states=True)


def test_chunked_prefill_of_generate(attached, prompts, own_text):
    text = greedy(attached, prompts[:1], new=16, prefill_chunk_size=33)
    assert torch.equal(text, own_text[:1, :PROMPT + 16])


def test_sampling_is_that_of_transformers(saved, prompts):
    def sample():
        torch.manual_seed(11)
        return saved[1].generate(prompts[:1], max_new_tokens=24, do_sample=True, top_k=20, num_return_sequences=2)

    own = sample()
    attachment = dsv4rt.transformers.attach(saved[1], max_context_tokens=512, **EXACT)
    try:
        text = sample()
    finally:
        attachment.detach()
    assert torch.equal(text, own)
    assert not torch.equal(text[0], text[1])


def test_beams_fork_and_equal_those_of_transformers(saved, prompts):
    def beams():
        return saved[1].generate(prompts[:2], max_new_tokens=24, do_sample=False, num_beams=3, num_return_sequences=2,
                                 return_dict_in_generate=True, output_scores=True)

    own = beams()
    attachment = dsv4rt.transformers.attach(saved[1], max_context_tokens=512, **EXACT)
    forks = []
    original = dsv4rt.Sequence.fork
    try:
        dsv4rt.Sequence.fork = lambda self, *given: forks.append(self) or original(self, *given)
        text = beams()
    finally:
        dsv4rt.Sequence.fork = original
        attachment.detach()
    assert torch.equal(text.sequences, own.sequences)
    assert torch.allclose(text.sequences_scores, own.sequences_scores, atol=0.02)
    assert len(forks) >= 4  # two prompts become six rows


def test_drafts_that_are_rejected_leave_no_trace(attached, prompts, own_text):
    """Prompt lookup: transformers alone refuses it for this model."""
    calls = []
    forward = attached.engine.prepare
    attached.engine.prepare = lambda entries, **named: calls.append(entries[0][1]) or forward(entries, **named)
    repeated = torch.cat((prompts[:1, :60], prompts[:1, :60]), 1)
    plain = greedy(attached, repeated, new=NEW)
    plain_calls = len(calls)
    calls.clear()
    text = greedy(attached, repeated, new=NEW, prompt_lookup_num_tokens=5)
    assert torch.equal(text, plain)
    assert max(calls[1:]) > 1, "there were drafts"
    assert len(calls) <= plain_calls


def test_assisted_decoding_with_a_draft_model(attached, prompts, own_text):
    torch.manual_seed(2)
    draft = DeepseekV4ForCausalLM(models.config(["swa"])).eval()
    text = greedy(attached, prompts[:1], new=16, assistant_model=draft)
    assert torch.equal(text, own_text[:1, :PROMPT + 16])


@pytest.mark.parametrize("attached", [
    dict(prefix_cache=dsv4rt.PrefixCacheOptions(16, policy=dsv4rt.PrefixPolicy(interval_tokens=128)))], indirect=True)
def test_prefixes_are_kept_from_call_to_call(attached, prompts, own_text):
    first = greedy(attached, prompts[:1])
    assert torch.equal(first, own_text[:1])
    stats = attached.engine.prefix.stats
    assert stats.hit_tokens == 0 and stats.kept_units == 1
    assert torch.equal(greedy(attached, prompts[:1]), first)
    assert attached.engine.prefix.stats.hit_tokens == 128
    longer = torch.cat((first, prompts[1:2, :40]), 1)  # the next turn of a conversation
    again = greedy(attached, longer, new=8)
    assert attached.engine.prefix.stats.hit_tokens == 2 * 128
    attached.salt = b"another tenant"
    assert torch.equal(greedy(attached, longer, new=8), again)
    assert attached.engine.prefix.stats.hit_tokens == 2 * 128
    attached.salt = b""
    # A padded batch in which one row hits and one does not, and the drafts of a prompt that hits.
    ids = torch.zeros(2, 190, dtype=torch.long)
    ids[0, 190 - 150:], ids[1] = prompts[0], torch.cat((prompts[2], prompts[3]))[:190]
    mask = torch.ones_like(ids)
    mask[0, :40] = 0
    hits = attached.engine.prefix.stats.hit_tokens
    together = greedy(attached, ids, attention_mask=mask, new=12)
    assert attached.engine.prefix.stats.hit_tokens == hits + 128
    assert torch.equal(together[0, 190:], first[0, PROMPT:PROMPT + 12])
    drafted = greedy(attached, prompts[:1], new=12, prompt_lookup_num_tokens=4)
    assert torch.equal(drafted, first[:, :PROMPT + 12])


def test_a_cache_goes_on_where_it_was(attached, prompts, own_text):
    out = attached.model.generate(prompts[:1], max_new_tokens=10, do_sample=False, return_dict_in_generate=True)
    cache = getattr(out, CACHE)
    assert isinstance(cache, dsv4rt.transformers.EngineCache)
    text = greedy(attached, out.sequences, new=NEW - 10, **{CACHE: cache})
    assert torch.equal(text, own_text[:1])


def test_logits_without_a_cache(attached, prompts):
    with torch.no_grad():
        whole = attached.model(prompts[:2], use_cache=False)
        assert getattr(whole, CACHE) is None
        cached = attached.model(prompts[:2, :100])
        rest = attached.model(prompts[:2, 100:], **{CACHE: getattr(cached, CACHE)})
    # The engine's outputs are equal; the matrix products around it round differently for other row counts.
    assert torch.allclose(torch.cat((cached.logits, rest.logits), 1), whole.logits, atol=0.05)
    loss = attached.model(prompts[:1], labels=prompts[:1]).loss
    with pytest.raises(dsv4rt.FailedPreconditionError, match="gradient"):
        loss.backward()


def test_caches_give_their_slots_back(attached, prompts):
    for _ in range(5):
        greedy(attached, prompts, new=2)
    gc.collect()
    kept = [attached.engine.create_sequence() for _ in range(8)]
    with pytest.raises(dsv4rt.ResourceExhaustedError):
        greedy(attached, prompts[:1], new=2)
    for sequence in kept:
        sequence.release()
    greedy(attached, prompts[:1], new=2)


def test_wrong_inputs_are_refused(attached, prompts):
    from transformers import DynamicCache
    model = attached.model
    ids = prompts[:2, :10]
    with torch.no_grad():
        cache = model(ids).past_key_values
        for named, says in ((dict(past_key_values=DynamicCache(config=model.config)), "DynamicCache"),
                            (dict(attention_mask=torch.ones(2, 1, 10, 10)), "attention_mask"),
                            (dict(attention_mask=torch.ones(2, 7)), "attention_mask"),
                            (dict(position_ids=torch.arange(10).unsqueeze(0) + 3), "position_ids"),
                            (dict(past_key_values=cache, input_ids=ids[:1]), "rows")):
            with pytest.raises(dsv4rt.InvalidArgumentError, match=says):
                model(**{"input_ids": ids, **named})
        with pytest.raises(dsv4rt.InvalidArgumentError, match="both"):
            model.model(ids, cache=cache, past_key_values=cache)
        with pytest.raises(dsv4rt.InvalidArgumentError, match="cache_implementation"):
            greedy(attached, ids, new=2, cache_implementation="static")
        cache.crop(-4)
        assert cache.get_seq_length() == 6 and [len(sequence) for sequence in cache.sequences] == [6, 6]
    with pytest.raises(dsv4rt.InvalidArgumentError, match="Linear"):
        dsv4rt.transformers.attach(torch.nn.Linear(2, 2))


def test_a_failure_inside_the_model_keeps_or_loses_the_cache(attached, prompts):
    model = attached.model
    with torch.no_grad():
        cache = model(prompts[:1, :100]).past_key_values
        handle = model.model.layers[2].mlp.register_forward_hook(lambda *_: 1 / 0)
        try:
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    model(prompts[:1, 100:101], past_key_values=cache)
            assert cache.get_seq_length() == 100 == len(cache.sequences[0])
            with pytest.raises(ZeroDivisionError):  # more than the rings can take back
                model(torch.cat((prompts[:1], prompts[1:2]), 1), past_key_values=cache)
        finally:
            handle.remove()
        with pytest.raises(dsv4rt.FailedPreconditionError, match="ZeroDivisionError"):
            model(prompts[:1, 100:101], past_key_values=cache)
        cache.reset()
        model(prompts[:1, :10], past_key_values=cache)
        assert cache.get_seq_length() == 10


def test_weights_can_be_dropped(random_model, prompts, own_text):
    import copy
    model = copy.deepcopy(random_model)
    attachment = dsv4rt.transformers.attach(model, keep_weights=False, max_context_tokens=512, **EXACT)
    assert all(weight.is_meta for weight in model.model.layers[1].self_attn.parameters())
    assert torch.equal(greedy(attachment, prompts[:1], new=8), own_text[:1, :PROMPT + 8])
