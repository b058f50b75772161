"""Applications that lean on blocking commands, transactions and scripts: applications.py HOST PORT

RQ and Celery put jobs into the store and take them out again in a worker, as they do in production.
"""

import os
import subprocess
import sys
import tempfile
import time

import celery
import redis
import rq

HOST, PORT = sys.argv[1], int(sys.argv[2])

# What the workers run. It is a module of its own, since they import it.
TASKS = """
import celery, os
app = celery.Celery("tasks", broker=os.environ["STORE"], backend=os.environ["STORE"])
app.conf.worker_hijack_root_logger = False

@app.task
def add(a, b):
    return a + b

@app.task
def total(numbers):
    return sum(numbers)

@app.task(bind=True, max_retries=3, default_retry_delay=0)
def fails_twice(self):
    if self.request.retries < 2:
        raise self.retry()
    return self.request.retries

def square(n):
    return n * n

def fails():
    raise ValueError("on purpose")
"""


def rq_jobs(url, env, log):
    r = redis.Redis.from_url(url)
    queue = rq.Queue(connection=r)
    jobs = [queue.enqueue("tasks.square", n) for n in range(20)]
    dependent = queue.enqueue("tasks.square", 100, depends_on=jobs)
    failing = queue.enqueue("tasks.fails", retry=rq.Retry(max=1))
    worker = [sys.executable, "-m", "rq.cli", "worker", "--burst", "--quiet", "--url", url]
    subprocess.run(worker, env=env, check=True, timeout=120, stdout=log, stderr=log)
    assert [job.return_value() for job in jobs] == [n * n for n in range(20)]
    assert dependent.return_value() == 10_000
    assert failing.get_status(refresh=True) == rq.job.JobStatus.FAILED
    assert len(queue) == 0 and len(queue.failed_job_registry) == 1


def celery_tasks(url, env, log):
    sys.path.insert(0, env["PYTHONPATH"])
    os.environ["STORE"] = url
    import tasks

    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "ERROR"]
    worker = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        assert tasks.add.delay(2, 3).get(timeout=60) == 5
        group = celery.group(tasks.add.s(n, n) for n in range(20))()
        assert group.get(timeout=60) == [2 * n for n in range(20)]
        chord = celery.chord(tasks.add.s(n, 1) for n in range(5))(tasks.total.s())
        assert chord.get(timeout=60) == 15
        chain = tasks.add.s(1, 2) | tasks.add.s(10)
        assert chain.delay().get(timeout=60) == 13
        assert tasks.fails_twice.delay().get(timeout=60) == 2
    finally:
        worker.terminate()
        try:
            worker.wait(timeout=60)
        finally:
            worker.kill()


def main():
    failed = 0
    for db, application in enumerate([rq_jobs, celery_tasks], start=13):
        url = f"redis://{HOST}:{PORT}/{db}"
        redis.Redis.from_url(url).flushdb()
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "tasks.py"), "w") as file:
                file.write(TASKS)
            env = os.environ | {"PYTHONPATH": folder, "STORE": url}
            # Workers tell of each job that fails, as some are meant to.
            with open(os.path.join(folder, "worker.log"), "w+") as log:
                try:
                    started = time.monotonic()
                    application(url, env, log)
                    print(f"ok {application.__name__} ({time.monotonic() - started:.1f} s)")
                except Exception as error:
                    log.seek(0)
                    print(log.read())
                    print(f"FAILED {application.__name__}: {error!r}")
                    failed += 1
    print(f"{2 - failed} passed, {failed} failed")
    sys.exit(failed > 0)


main()
