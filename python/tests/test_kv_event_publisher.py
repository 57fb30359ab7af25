"""The example that publishes prefix events: what a subscriber reads is what the cache has."""

import sys

import msgpack
import numpy as np
import pytest
import zmq

import conftest
import dsv4rt

sys.path.insert(0, str(conftest.TREE / "python" / "examples"))
from kv_event_publisher import KVEventPublisher  # noqa: E402

UNIT = 128


@pytest.fixture
def published(golden, tmp_path):
    """An engine, its publisher, a subscriber and the replay endpoint."""
    endpoint, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    publisher = KVEventPublisher(endpoint, "kv-events", replay, rank=3)
    options = dsv4rt.PrefixCacheOptions(boundary_states=8, policy=dsv4rt.PrefixPolicy(interval_tokens=UNIT),
                                        event_token_ids=True, on_event=publisher)
    context = zmq.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.connect(endpoint)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv-events")
    subscriber.setsockopt(zmq.RCVTIMEO, 10_000)
    with dsv4rt.Engine(golden, max_context_tokens=1024, max_step_tokens=512, max_sequences=2,
                       prefix_cache=options) as engine:
        publisher.unit_tokens = engine.prefix.unit_tokens
        yield engine, publisher, subscriber, replay, context
    publisher.close()
    context.destroy(linger=0)


def run(engine, ids, trace):
    with engine.create_sequence(ids) as sequence:
        begin = len(sequence)
        with engine.prepare([(sequence, ids[begin:])]) as step:
            for layer in engine.layers:
                step.forward(layer, np.ascontiguousarray(trace[f"layers.{layer}.input"][begin:len(ids)]))


def connected(publisher, subscriber):
    """Publishes empty batches by hand until the subscription has arrived."""
    subscriber.setsockopt(zmq.RCVTIMEO, 50)
    for _ in range(200):
        publisher._socket.send_multipart([b"kv-events", b"", b""])
        try:
            subscriber.recv_multipart()
            break
        except zmq.Again:
            continue
    subscriber.setsockopt(zmq.RCVTIMEO, 10_000)


def next_batch(subscriber):
    while True:
        topic, number, batch = subscriber.recv_multipart()
        assert topic == b"kv-events"
        if number:
            return int.from_bytes(number, "big"), msgpack.unpackb(batch)


def test_a_subscriber_rebuilds_the_cache(published, trace):
    engine, publisher, subscriber, _, _ = published
    connected(publisher, subscriber)
    ids = list(range(300))
    run(engine, ids, trace)
    publisher.publish()
    publisher.publish()  # nothing new: no message
    engine.prefix.clear()
    publisher.publish()

    number, (seconds, events, rank) = next_batch(subscriber)
    assert number == 0 and seconds > 1.7e9 and rank == 3
    units = [event for event in events if event["group_idx"] == 0]
    assert [event["type"] for event in units] == ["BlockStored"] * 2
    assert units[0]["parent_block_hash"] is None
    assert units[1]["parent_block_hash"] == units[0]["block_hashes"][0]
    assert units[1]["token_ids"] == ids[UNIT:2 * UNIT]
    assert all(event["block_size"] == UNIT and event["medium"] == "CPU" for event in units)
    assert {"lora_id", "lora_name"} < set(units[0])
    states = [event for event in events if event["group_idx"] == 1 and event["type"] == "BlockStored"]
    assert states and {state["block_hashes"][0] for state in states} <= {unit["block_hashes"][0] for unit in units}

    number, (_, events, _) = next_batch(subscriber)
    assert number == 1
    removed = {(event["block_hashes"][0], event["group_idx"]) for event in events if event["type"] == "BlockRemoved"}
    assert removed >= {(unit["block_hashes"][0], 0) for unit in units}
    assert len(events) == len(removed)


def test_missed_batches_are_sent_again(published, trace):
    engine, publisher, _, replay, context = published
    for begin in (0, 100):
        run(engine, list(range(begin, begin + 300)), trace)
        publisher.publish()
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.RCVTIMEO, 10_000)
    client.connect(replay)

    def batches_from(first):
        client.send_multipart([b"", first.to_bytes(8, "big")])
        received = []
        while True:
            empty, number, batch = client.recv_multipart()
            assert empty == b""
            if number == (-1).to_bytes(8, "big", signed=True):
                assert batch == b""
                return received
            received.append((int.from_bytes(number, "big"), msgpack.unpackb(batch)))

    assert [number for number, _ in batches_from(0)] == [0, 1]
    (number, (_, events, _)), = batches_from(1)
    assert number == 1 and events[0]["token_ids"]
    assert batches_from(2) == []
    client.send_multipart([b"", b"not a number"])  # gets no answer, and the next request does
    assert len(batches_from(0)) == 2
