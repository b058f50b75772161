// ioredis and node-redis as applications use them: node node_clients.mjs HOST PORT
import assert from "node:assert/strict";
import Redis from "ioredis";
import { createClient } from "redis";

const [host, port] = [process.argv[2], Number(process.argv[3])];
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function untilGone(get) {
    const deadline = Date.now() + 5000;
    while ((await get()) !== null) {
        assert(Date.now() < deadline, "the key does not expire");
        await sleep(5);
    }
}

const ioredis = {
    async strings(r) {
        assert.equal(await r.set("k", "v"), "OK");
        assert.equal(await r.get("k"), "v");
        assert.equal(await r.set("k", "w", "EX", 100, "NX"), null);
        assert.equal(await r.set("k", "w", "GET"), "v");
        assert.deepEqual(await r.mget("k", "missing"), ["w", null]);
        assert.equal(await r.incrby("n", 5), 5);
        assert.equal(await r.incrbyfloat("f", 1.5), "1.5");
        const bytes = Buffer.from([0, 255, 13, 10, 36]);
        await r.set("bytes", bytes);
        assert.deepEqual(await r.getBuffer("bytes"), bytes);
    },
    async expiry(r) {
        await r.set("k", "v", "PX", 30);
        await untilGone(() => r.get("k"));
        await r.set("k", "v");
        assert.equal(await r.expire("k", 100), 1);
        assert((await r.ttl("k")) >= 99);
    },
    async "pipelines and auto-pipelining"(r) {
        const pipeline = r.pipeline();
        for (let i = 0; i < 500; i++) pipeline.set(`p:${i}`, i).incr(`p:${i}`);
        const replies = await pipeline.exec();
        assert.equal(replies.length, 1000);
        replies.forEach(([error, value], i) => {
            assert.equal(error, null);
            assert.equal(value, i % 2 ? (i + 1) / 2 : "OK");
        });
        const values = await Promise.all(Array.from({ length: 500 }, (_, i) => r.get(`p:${i}`)));
        assert.deepEqual(values, Array.from({ length: 500 }, (_, i) => String(i + 1)));
    },
    async "scan stream"(r) {
        await r.mset(Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`s:${i}`, i])));
        const seen = new Set();
        for await (const keys of r.scanStream({ match: "s:*", count: 17 })) keys.forEach((key) => seen.add(key));
        assert.equal(seen.size, 300);
    },
    async errors(r) {
        await r.set("s", "abc");
        await assert.rejects(r.incr("s"), /value is not an integer or out of range/);
        await assert.rejects(r.call("NOSUCH"), /unknown command/);
    },
    async databases(r) {
        const other = new Redis({ host, port, db: 7, connectionName: "io" });
        await other.set("k", "seven");
        assert.equal(await r.get("k"), null);
        assert.equal(await other.client("GETNAME"), "io");
        await other.flushdb();
        await other.quit();
    },
    async "many connections"() {
        const clients = Array.from({ length: 50 }, () => new Redis({ host, port }));
        await Promise.all(clients.map((c, i) => c.set(`c:${i}`, i)));
        const values = await Promise.all(clients.map((c, i) => c.get(`c:${i}`)));
        assert.deepEqual(values, clients.map((_, i) => String(i)));
        await Promise.all(clients.map((c) => c.quit()));
    },
};

const nodeRedis = {
    async "strings in RESP3"(r) {
        assert.equal(await r.set("k", "v", { expiration: { type: "EX", value: 100 }, condition: "NX" }), "OK");
        assert.equal(await r.get("k"), "v");
        assert.equal(await r.get("missing"), null);
        assert.equal(await r.incr("n"), 1);
        assert.equal(await r.getDel("n"), "1");
    },
    async "maps in RESP3"(r) {
        const config = await r.configGet("maxmemory");
        assert.equal(config.maxmemory, "0");
        assert.equal((await r.sendCommand(["HELLO", "3"])).proto, 3);
    },
    async "scan iterator"(r) {
        await r.mSet(Array.from({ length: 200 }, (_, i) => [`n:${i}`, String(i)]));
        const seen = new Set();
        for await (const keys of r.scanIterator({ MATCH: "n:*", COUNT: 20 })) keys.forEach((key) => seen.add(key));
        assert.equal(seen.size, 200);
    },
    async "errors"(r) {
        await r.set("s", "abc");
        await assert.rejects(r.incr("s"), /value is not an integer or out of range/);
    },
};

let passed = 0;
let failed = 0;

async function run(library, name, test, client) {
    try {
        await client.call(["FLUSHALL"]);
        await test(client.r);
        passed++;
        console.log(`ok ${library} ${name}`);
    } catch (error) {
        failed++;
        console.log(`FAILED ${library} ${name}: ${error.stack.split("\n").slice(0, 3).join(" ")}`);
    }
}

const io = new Redis({ host, port });
for (const [name, test] of Object.entries(ioredis)) {
    await run("ioredis", name, test, { r: io, call: (words) => io.call(...words) });
}
await io.quit();

const node = createClient({ socket: { host, port }, RESP: 3, name: "node" });
await node.connect();
for (const [name, test] of Object.entries(nodeRedis)) {
    await run("node-redis", name, test, { r: node, call: (words) => node.sendCommand(words) });
}
await node.close();

console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
