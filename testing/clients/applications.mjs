// BullMQ as applications use it: node applications.mjs HOST PORT
import assert from "node:assert/strict";
import { FlowProducer, Queue, QueueEvents, Worker } from "bullmq";

const connection = { host: process.argv[2], port: Number(process.argv[3]), db: 12, maxRetriesPerRequest: null };

async function bullmq() {
    const queue = new Queue("jobs", { connection });
    await queue.obliterate({ force: true });
    const events = new QueueEvents("jobs", { connection });
    await events.waitUntilReady();
    const order = [];
    const worker = new Worker(
        "jobs",
        async (job) => {
            order.push(job.name);
            if (job.name === "fails-once" && job.attemptsMade === 0) throw new Error("on purpose");
            if (job.name === "always-fails") throw new Error("on purpose");
            if (job.name === "parent") return Object.values(await job.getChildrenValues()).reduce((a, b) => a + b, 0);
            await job.updateProgress(50);
            return job.data.n * job.data.n;
        },
        { connection, autorun: false },
    );
    const jobs = await queue.addBulk(Array.from({ length: 20 }, (_, n) => ({ name: `job-${n}`, data: { n } })));
    const urgent = await queue.add("urgent", { n: 100 }, { priority: 1 });
    const late = await queue.add("late", { n: 7 }, { delay: 300 });
    const retried = await queue.add("fails-once", { n: 5 }, { attempts: 3, backoff: { type: "fixed", delay: 10 } });
    const failing = await queue.add("always-fails", {}, { attempts: 2 });
    const flow = await new FlowProducer({ connection }).add({
        name: "parent",
        queueName: "jobs",
        children: [1, 2, 3].map((n) => ({ name: `child-${n}`, queueName: "jobs", data: { n } })),
    });
    worker.run();
    const results = await Promise.all(jobs.map((job) => job.waitUntilFinished(events, 30_000)));
    assert.deepEqual(results, Array.from({ length: 20 }, (_, n) => n * n));
    assert.equal(await urgent.waitUntilFinished(events, 30_000), 10_000);
    assert.equal(await late.waitUntilFinished(events, 30_000), 49);
    assert.equal(await retried.waitUntilFinished(events, 30_000), 25);
    await assert.rejects(failing.waitUntilFinished(events, 30_000), /on purpose/);
    assert.equal(await flow.job.waitUntilFinished(events, 30_000), 1 + 4 + 9);
    const counts = await queue.getJobCounts("completed", "failed", "waiting", "active", "delayed");
    assert.deepEqual([counts.completed, counts.failed, counts.waiting, counts.active, counts.delayed], [27, 1, 0, 0, 0]);
    assert.equal(order.filter((name) => name === "always-fails").length, 2);
    await worker.close();
    await events.close();
    await queue.close();
}

try {
    await bullmq();
    console.log("ok bullmq\n1 passed, 0 failed");
    process.exit(0);
} catch (error) {
    console.log(`FAILED bullmq: ${error.stack}\n0 passed, 1 failed`);
    process.exit(1);
}
