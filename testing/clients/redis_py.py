"""redis-py as an application uses it: redis_py.py HOST PORT"""

import asyncio
import sys
import threading
import time

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

HOST, PORT = sys.argv[1], int(sys.argv[2])


def client(**options):
    return redis.Redis(host=HOST, port=PORT, **options)


def raises(error, text, call):
    try:
        call()
    except error as e:
        assert text in str(e), f"{e!r} does not contain {text!r}"
    else:
        raise AssertionError(f"{error.__name__} expected")


def strings(r):
    assert r.set("k", "v") is True
    assert r.get("k") == b"v"
    assert r.set("k", "w", nx=True) is None
    assert r.set("k", "w", xx=True, get=True) == b"v"
    assert r.mset({"a": 1, "b": 2}) is True
    assert r.mget("a", "b", "missing") == [b"1", b"2", None]
    assert r.incr("a", 41) == 42
    assert r.incrbyfloat("f", 0.1) == 0.1
    assert r.append("k", "!") == 2
    assert r.getrange("k", 0, 0) == b"w"
    assert r.setrange("k", 1, "xyz") == 4
    assert r.getdel("k") == b"wxyz"
    assert r.getex("a", ex=100) == b"42"
    assert r.strlen("a") == 2
    assert r.lcs("a", "b", len=True) == 1
    assert r.set("bin", bytes(range(256))) and r.get("bin") == bytes(range(256))


def expiry(r):
    r.set("k", "v", ex=100)
    assert 98 <= r.ttl("k") <= 100
    assert r.pexpire("k", 50000) is True
    assert 48000 <= r.pttl("k") <= 50000
    assert r.persist("k") is True and r.ttl("k") == -1
    assert r.expire("k", 100, nx=True) is True
    assert r.expire("k", 50, gt=True) is False
    assert r.expireat("k", int(time.time()) + 1000) is True
    assert 998 <= r.ttl("k") <= 1000
    assert r.expiretime("k") - int(time.time()) in (998, 999, 1000)
    r.set("short", "v", px=30)
    deadline = time.monotonic() + 5
    while r.exists("short"):
        assert time.monotonic() < deadline, "the key does not expire"
        time.sleep(0.005)


def keys(r):
    r.mset({f"key:{i}": i for i in range(500)})
    assert sorted(r.scan_iter("key:*", count=37)) == sorted(f"key:{i}".encode() for i in range(500))
    assert len(set(r.scan_iter("key:1*"))) == 111
    assert list(r.scan_iter(_type="list")) == []
    assert r.dbsize() == 500
    assert r.rename("key:0", "renamed") is True and r.exists("key:0", "renamed") == 1
    assert r.copy("renamed", "copied", replace=True) is True
    assert r.type("copied") == b"string"
    assert r.object("encoding", "copied") == b"int"
    assert r.delete("copied", "renamed", "missing") == 2
    assert r.unlink("key:1") == 1
    assert r.touch("key:2", "key:1") == 1
    assert r.randomkey().startswith(b"key:")
    assert r.move("key:3", 5) is True
    with client(db=5) as other:
        assert other.get("key:3") == b"3"
        other.flushdb()


def pipelines(r):
    with r.pipeline(transaction=False) as pipe:
        for i in range(1000):
            pipe.set(f"p:{i}", i).incr(f"p:{i}")
        replies = pipe.execute()
    assert replies == [x for i in range(1000) for x in (True, i + 1)]
    with r.pipeline(transaction=False) as pipe:
        replies = pipe.set("s", "abc").incr("s").get("s").execute(raise_on_error=False)
    assert replies[0] is True and isinstance(replies[1], redis.ResponseError) and replies[2] == b"abc"


def errors(r):
    r.set("s", "abc")
    raises(redis.ResponseError, "value is not an integer or out of range", lambda: r.incr("s"))
    raises(redis.ResponseError, "unknown command", lambda: r.execute_command("NOSUCHCOMMAND", "x"))
    raises(redis.ResponseError, "wrong number of arguments for 'get' command", lambda: r.execute_command("GET"))
    raises(redis.ResponseError, "syntax error", lambda: r.execute_command("SET", "a", "b", "c"))
    raises(redis.ResponseError, "DB index is out of range", lambda: client(db=99).ping())


def connection(r):
    assert r.ping() is True
    assert r.echo("hello") == b"hello"
    assert r.client_setname("py") is True and r.client_getname() == "py"
    assert r.client_id() > 0
    assert any(c["name"] == "py" for c in r.client_list())
    assert r.client_info()["db"] in ("0", 0)
    assert r.config_get("maxmemory")["maxmemory"] == "0"
    assert r.config_set("timeout", 0) is True
    info = r.info()
    assert info["redis_version"].count(".") == 2 and info["role"] == "master"
    seconds, micros = r.time()
    assert abs(seconds - time.time()) < 5 and 0 <= micros < 1000000
    assert r.command_count() > 50
    assert "get" in r.command()


def named_client():
    r = client(client_name="named", decode_responses=True)
    assert r.client_getname() == "named"
    r.set("text", "grün")
    assert r.get("text") == "grün"


def resp3():
    r = client(protocol=3)
    r.set("k", "v")
    assert r.get("k") == b"v" and r.get("missing") is None
    assert isinstance(r.config_get("maxmemory"), dict)
    assert r.execute_command("HELLO", 3)[b"proto"] == 3
    assert r.info("server")["redis_mode"] == "standalone"


def pool():
    shared = redis.ConnectionPool(host=HOST, port=PORT, max_connections=20)
    r = redis.Redis(connection_pool=shared)
    r.delete("total")
    wrong = []

    def work(worker):
        for i in range(100):
            r.set(f"w:{worker}", i)
            if r.get(f"w:{worker}") != str(i).encode():
                wrong.append((worker, i))
            r.incr("total")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong
    assert r.get("total") == b"1600"
    shared.disconnect()


def reconnect():
    # The news that a connection has ended may come later than the reply to the one who ended it.
    r = client(retry=Retry(NoBackoff(), 3), retry_on_error=[redis.ConnectionError])
    r.set("k", "v")
    mine = r.client_id()
    with client() as other:
        assert other.client_kill_filter(_id=str(mine)) == 1
    assert r.get("k") == b"v", "redis-py connects again by itself"
    assert r.client_id() != mine


def large(r):
    value = bytes(range(256)) * 4096
    r.set("large", value)
    assert r.get("large") == value
    assert r.getrange("large", 1048570, 1048575) == value[-6:]


def asynchronous():
    async def run():
        r = redis.asyncio.Redis(host=HOST, port=PORT)
        await asyncio.gather(*(r.set(f"async:{i}", i) for i in range(100)))
        values = await asyncio.gather(*(r.get(f"async:{i}") for i in range(100)))
        assert values == [str(i).encode() for i in range(100)]
        found = [key async for key in r.scan_iter("async:*")]
        assert len(set(found)) == 100
        await r.aclose()

    asyncio.run(run())


def main():
    passed = failed = 0
    tests = [strings, expiry, keys, pipelines, errors, connection, named_client, resp3, pool, reconnect, large, asynchronous]
    for test in tests:
        with client() as r:
            r.flushall()
            try:
                test(r) if test.__code__.co_argcount else test()
            except Exception as e:
                failed += 1
                print(f"FAILED redis-py {test.__name__}: {type(e).__name__}: {e} (line {e.__traceback__.tb_next.tb_lineno})")
            else:
                passed += 1
                print(f"ok redis-py {test.__name__}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


main()
