"""What an engine tells about itself as data."""

import ctypes

import numpy as np
import pytest

import dsv4rt
from test_engine import advance


def test_dimensions_and_layers(engine):
    config = engine.config
    assert (config.hidden_size, config.layers, config.head_dim) == (128, 4, 512)
    assert (config.row_format, config.index_format) == ("fp8_ds_mla", "mxfp4")
    assert config.draft_budget_tokens == 4
    assert [(info.layer, info.kind_name, info.ratio) for info in engine.layer_infos] == [
        (0, "swa", 0), (1, "csa", 4), (2, "hca", 128), (3, "csa", 4)]
    assert engine.describe()["backend"] == "cpu"


def test_metrics_are_read_by_prometheus(engine, trace):
    from prometheus_client.parser import text_string_to_metric_families

    def read(labels=None):
        return {(sample.name, *sorted(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(engine.metrics(labels)) for sample in family.samples}

    with engine.create_sequence() as sequence:
        advance(engine, [(sequence, 200)], trace, 0)
        samples = read()
        assert samples["dsv4rt_sequences",] == 1
        assert samples["dsv4rt_step_tokens_total", ("outcome", "accepted")] == 200
        assert 0 < samples["dsv4rt_kv_cache_usage_perc",] < 1
        used = {role.role.name: role.used_blocks for role in engine.state.roles}
        assert {name: samples["dsv4rt_cache_blocks", ("role", name), ("state", "used")] for name in used} == used
    labelled = read({"model_name": 'a "b"\n'})
    assert all(("model_name", 'a "b"\n') in sample for sample in labelled)
    with pytest.raises(dsv4rt.InvalidArgumentError, match="role"):
        engine.metrics({"role": "x"})


def test_counts_follow_the_sequences(engine, trace):
    empty = engine.state
    assert (empty.max_sequences, empty.live_sequences, empty.step_serial) == (4, 0, 0)
    assert {role.role for role in empty.roles} == {dsv4rt.CacheRole.CSA_KV, dsv4rt.CacheRole.INDEX_K,
                                                  dsv4rt.CacheRole.HCA_KV}
    sequence = engine.create_sequence(reserve_tokens=400)
    advance(engine, [(sequence, 200)], trace, 0)
    advance(engine, [(sequence, 60)], trace, 200)
    held = sequence.state
    assert (held.length, held.reserve_tokens) == (260, 400)
    with pytest.raises(dsv4rt.FailedPreconditionError, match=str(held.earliest_truncation)):
        sequence.truncate(held.earliest_truncation - 1)
    sequence.truncate(held.earliest_truncation)
    assert held.blocks[dsv4rt.CacheRole.CSA_KV] == 2 and held.blocks[dsv4rt.CacheRole.HCA_KV] == 1
    with engine.prepare([(sequence, 1)]) as step:
        during = engine.state
        assert during.step_serial != 0 and during.live_sequences == 1 and during.tokens_left < empty.tokens_left
        step.cancel()
    for role in engine.state.roles:
        assert role.total_blocks == role.free_blocks + role.used_blocks + role.cached_blocks + role.pinned_blocks


def test_a_shortage_is_told_before_the_step(golden):
    with dsv4rt.Engine(golden, max_context_tokens=1024, max_step_tokens=1024, max_sequences=2,
                       pool_tokens=512) as engine:
        one, two = engine.create_sequence(), engine.create_sequence()
        assert engine.shortage([(one, 512)]) is None
        short = engine.shortage([(one, 400), (two, 600)])
        assert short.missing_blocks > 0 and short.missing_bytes > 0 and short.entry == 1
        assert short.role in (dsv4rt.CacheRole.CSA_KV, dsv4rt.CacheRole.INDEX_K, dsv4rt.CacheRole.HCA_KV)
        with pytest.raises(dsv4rt.ResourceExhaustedError):
            engine.prepare([(one, 400), (two, 600)])
        with pytest.raises(dsv4rt.InvalidArgumentError):
            engine.shortage([(one, 0)])


def test_a_cache_view_shows_the_rows(golden, trace):
    with dsv4rt.Engine(golden, max_context_tokens=256, max_step_tokens=8, row_format="bf16") as engine:
        sequence = engine.create_sequence()
        view = engine.cache_view(0, dsv4rt.CacheRole.SWA_KV)
        assert (view.format, view.data_bytes, view.block_table, view.tokens_per_row) == ("bf16", 1024, 0, 1)

        def first_row():
            address = view.base + sequence.state.slot * view.block_stride_bytes
            return np.frombuffer(ctypes.string_at(address, view.data_bytes), np.uint16)

        before = first_row().copy()
        advance(engine, [(sequence, 4)], trace, 0)
        assert not np.array_equal(first_row(), before)
        paged = engine.cache_view(1, dsv4rt.CacheRole.CSA_KV)
        assert paged.block_table != 0 and paged.tokens_per_row == 4
        with pytest.raises(dsv4rt.NotFoundError):
            engine.cache_view(0, dsv4rt.CacheRole.CSA_KV)


def test_warnings_reach_python(golden, trace):
    warnings = []
    with dsv4rt.Engine(golden, max_context_tokens=64, max_step_tokens=8, check_outputs=True,
                       on_warning=warnings.append) as engine:
        sequence = engine.create_sequence()
        with engine.prepare([(sequence, 1)]) as step:
            for layer in engine.layers:
                step.forward(layer, np.full((1, 128), 0x7FC0, np.uint16))
        step.output_check()
    assert len(warnings) == 1 and "finite" in warnings[0]
