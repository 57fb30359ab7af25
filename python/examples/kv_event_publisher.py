"""Publishes what an engine's prefix cache keeps and forgets over ZeroMQ, as vLLM publishes its KV events.

    publisher = KVEventPublisher("tcp://*:5557", topic="kv-events", replay_endpoint="tcp://*:5558")
    prefix_cache = dsv4rt.PrefixCacheOptions(boundary_states=64, event_token_ids=True, on_event=publisher)
    engine = dsv4rt.Engine(checkpoint, prefix_cache=prefix_cache, ...)
    publisher.unit_tokens = engine.prefix.unit_tokens
    while serving:
        ...                  # create sequences, run a step, commit
        publisher.publish()  # what changed meanwhile, as one batch

A message has three parts: the topic, its number (8 bytes, big-endian, from 0) and a batch in MessagePack, the array
[seconds since 1970, events, rank]. Events are maps:

    {"type": "BlockStored", "block_hashes": [digest], "parent_block_hash": digest or nil, "token_ids": [...],
     "block_size": tokens of a unit, "lora_id": nil, "medium": "CPU" or "GPU", "lora_name": nil, "group_idx": 0 or 1}
    {"type": "BlockRemoved", "block_hashes": [digest], "medium": ..., "group_idx": 0 or 1}

Group 0 are the compressed rows of a unit of tokens, group 1 the boundary state at its end: a sequence can begin where
both are there, and all units before. Digests are 32 bytes and equal in all engines of the same checkpoint and formats.

A subscriber that missed messages sends an empty part and the number of the first one, as 8 bytes, from a DEALER socket
to the replay endpoint. It gets an empty part, number and batch for each that is still kept, and at last the number -1
with an empty batch.

Needs pyzmq and msgpack.
"""

import collections
import threading
import time

import dsv4rt
import msgpack
import zmq

_END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


class KVEventPublisher:
    """Called by the engine with every event; `publish` sends those since the last time. One thread at a time."""

    def __init__(self, endpoint: str, topic: str = "", replay_endpoint: str | None = None, kept_batches: int = 10_000,
                 rank: int | None = None):
        """Binds. `kept_batches` can be asked for again; `rank` tells replicas of one service apart."""
        self.unit_tokens = 0
        """Engine.prefix.unit_tokens, known once the engine is made."""
        self._topic, self._rank = topic.encode(), rank
        self._events: list[dict] = []
        self._kept: collections.deque[tuple[bytes, bytes]] = collections.deque(maxlen=kept_batches)
        self._kept_lock = threading.Lock()
        self._published = 0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.bind(endpoint)
        self._replays = None
        if replay_endpoint is not None:
            router = self._context.socket(zmq.ROUTER)
            router.bind(replay_endpoint)
            self._replays = threading.Thread(target=self._answer_replays, args=(router,), daemon=True)
            self._replays.start()

    def __call__(self, event: dsv4rt.PrefixEvent) -> None:
        kind = dsv4rt.PrefixEventKind
        message = {"type": "BlockStored" if event.kind in (kind.UNIT_STORED, kind.STATE_STORED) else "BlockRemoved",
                   "block_hashes": [event.digest],
                   "medium": "GPU" if event.medium == "cuda" else "CPU",
                   "group_idx": int(event.kind in (kind.STATE_STORED, kind.STATE_REMOVED))}
        if message["type"] == "BlockStored":
            # The first unit's parent is the digest of its salt, which is no block.
            first = event.end_tokens == self.unit_tokens
            message |= {"parent_block_hash": None if first else event.parent, "token_ids": list(event.token_ids),
                        "block_size": self.unit_tokens, "lora_id": None, "lora_name": None}
        self._events.append(message)

    def publish(self) -> None:
        """Sends what changed since the last time; nothing if nothing did."""
        if not self._events:
            return
        batch = msgpack.packb([time.time(), self._events, self._rank])
        number = self._published.to_bytes(8, "big")
        with self._kept_lock:
            self._kept.append((number, batch))
        self._socket.send_multipart([self._topic, number, batch])
        self._published += 1
        self._events = []

    def close(self) -> None:
        """Sends what is left. The engine must not call any more."""
        self.publish()
        self._socket.close(linger=1000)
        self._context.term()  # ends the other thread
        if self._replays is not None:
            self._replays.join()

    def _answer_replays(self, router: zmq.Socket) -> None:
        router.linger = 0
        try:
            while True:
                request = router.recv_multipart()
                if len(request) != 3 or request[1] or len(request[2]) != 8:
                    continue  # what is no request gets no answer
                first = request[2]
                with self._kept_lock:
                    kept = [message for message in self._kept if message[0] >= first]
                for number, batch in [*kept, (_END_OF_REPLAY, b"")]:
                    router.send_multipart([request[0], b"", number, batch])
        except zmq.ContextTerminated:
            router.close()
