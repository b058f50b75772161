"""redis-py as an application uses a cluster: cluster.py HOST PORT"""

import asyncio
import sys
import threading
import time

import redis
import redis.asyncio
from redis.cluster import RedisCluster

HOST, PORT = sys.argv[1], int(sys.argv[2])
MANY = 1000


def shards(r):
    nodes = r.get_nodes()
    assert len(nodes) == 3 and len(r.get_primaries()) == 3
    assert all(r.cluster_info(target_nodes=node)["cluster_state"] == "ok" for node in nodes)
    assert [r.keyslot(key) for key in ("foo", "{foo}x")] == [12182] * 2 == [r.cluster_keyslot("foo")] * 2


def keys_everywhere(r):
    r.flushall()
    for number in range(MANY):
        assert r.set(f"key:{number}", number)
    plain = [redis.Redis(host=node.host, port=node.port) for node in r.get_nodes()]
    sizes = [shard.dbsize() for shard in plain]
    assert sum(sizes) == MANY and min(sizes) > MANY // 5, sizes
    assert len(list(r.scan_iter(count=100))) == MANY
    names = [f"key:{number}" for number in range(100)]
    assert r.mget_nonatomic(names) == [str(number).encode() for number in range(100)]
    assert r.delete(*names) == 100 and sum(shard.dbsize() for shard in plain) == MANY - 100
    assert r.mset_nonatomic({name: "x" for name in names})


def pipelines(r):
    with r.pipeline() as pipe:
        for number in range(300):
            pipe.set(f"p:{number}", number)
            pipe.incr(f"p:{number}")
        replies = pipe.execute()
    assert replies[1::2] == list(range(1, 301))


def slots(r):
    assert r.mset({"{a}1": 1, "{a}2": 2}) and r.mget("{a}1", "{a}2") == [b"1", b"2"]
    node = r.get_node_from_key("{a}1")
    plain = redis.Redis(host=node.host, port=node.port)
    for words in (("MGET", "a", "b", "c", "d"), ("RENAME", "{a}1", "b")):
        try:
            plain.execute_command(*words)
        except redis.ResponseError as error:
            assert "CROSSSLOT" in str(error) or "hash to the same slot" in str(error), error
        else:
            raise AssertionError(words)
    assert r.eval("return redis.call('GET', KEYS[1])", 1, "{a}1") == b"1"
    with plain.pipeline(transaction=True) as transaction:
        assert transaction.incr("{a}1").incr("{a}2").execute() == [2, 3]


def relays(shard):
    """How many other shards are told what is published on this one."""
    return sum(client["cmd"] == "cluster|relay" for client in shard.client_list(_type="pubsub"))


def messages(r):
    """What is published on any shard is heard on every other one."""
    shards = [redis.Redis(host=node.host, port=node.port) for node in r.get_nodes()]
    deadline = time.monotonic() + 30
    while any(relays(shard) < 2 for shard in shards):
        assert time.monotonic() < deadline, "the shards have not found each other"
        time.sleep(0.01)
    heard = []
    listeners = []
    for shard in shards:
        listener = shard.pubsub()
        listener.subscribe("news")
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        listeners.append(listener)

    def listen(listener):
        for message in listener.listen():
            heard.append(message["data"])
            if message["data"] == b"end":
                return

    threads = [threading.Thread(target=listen, args=(listener,)) for listener in listeners]
    for thread in threads:
        thread.start()
    for shard in shards:
        shard.publish("news", "x")
    shards[0].publish("news", "end")
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), heard
    # Those of one shard come in their order; the other shards' may come behind the end.
    assert heard.count(b"end") == 3 <= heard.count(b"x"), heard


def asynchronous(r):
    async def run():
        client = redis.asyncio.RedisCluster(host=HOST, port=PORT)
        await asyncio.gather(*(client.set(f"async:{number}", number) for number in range(200)))
        values = await asyncio.gather(*(client.get(f"async:{number}") for number in range(200)))
        await client.aclose()
        return values

    assert asyncio.run(run()) == [str(number).encode() for number in range(200)]


def main():
    passed = failed = 0
    for test in (shards, keys_everywhere, pipelines, slots, messages, asynchronous):
        try:
            test(RedisCluster(host=HOST, port=PORT))
        except Exception as error:
            failed += 1
            print(f"FAILED redis-py cluster {test.__name__}: {error!r}")
        else:
            passed += 1
            print(f"ok redis-py cluster {test.__name__}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
