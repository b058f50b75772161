# Sidekiq as applications use it: applications.rb HOST PORT
#
# Jobs go in as its client pushes them, and come out by its own fetcher (BRPOP) and poller (a script that takes what is
# due from a sorted set), with retries, a dead set and its figures.

begin
  require "sidekiq"
  require "sidekiq/api"
  require "sidekiq/cli"
rescue LoadError
  puts "skipped: sidekiq needs Ruby and its gem; install them with: sudo apt-get install ruby-sidekiq"
  puts "0 passed, 0 failed, 1 skipped"
  exit
end

# This version of Sidekiq is older than that of its client, which says so at every call.
Redis.silence_deprecations = true
Redis.sadd_returns_boolean = false
URL = "redis://#{ARGV[0]}:#{ARGV[1]}/11"
Sidekiq.configure_client { |config| config.redis = { url: URL } }
Sidekiq.configure_server { |config| config.redis = { url: URL } }
Sidekiq.logger.level = Logger::FATAL

class Square
  include Sidekiq::Worker

  def perform(n)
    Sidekiq.redis { |redis| redis.hset("squares", n, n * n) }
  end
end

class FailsOnce
  include Sidekiq::Worker
  sidekiq_retry_in { 1 }

  def perform
    raise "on purpose" if Sidekiq.redis { |redis| redis.incr("tries") } == 1
  end
end

class Fails
  include Sidekiq::Worker
  sidekiq_options retry: 0

  def perform
    raise "on purpose"
  end
end

# Asks again until it is so, for 30 seconds at most.
def eventually(what)
  deadline = Process.clock_gettime(Process::CLOCK_MONOTONIC) + 30
  until yield
    raise "#{what}: not within 30 seconds" if Process.clock_gettime(Process::CLOCK_MONOTONIC) > deadline
    sleep 0.02
  end
end

def equal(what, found, wanted)
  raise "#{what}: #{found.inspect} instead of #{wanted.inspect}" unless found == wanted
end

def enqueue
  20.times { |n| Square.perform_async(n) }
  Sidekiq::Client.push_bulk("class" => Square, "args" => (20...40).map { |n| [n] })
  Square.perform_in(1, 100)
  FailsOnce.perform_async
  Fails.perform_async
  equal("jobs in the queue", Sidekiq::Queue.new.size, 42)
  equal("jobs for later", Sidekiq::ScheduledSet.new.size, 1)
end

def sidekiq
  Sidekiq.redis(&:flushdb)
  enqueue
  # Of the process, not of the launcher: otherwise its poller waits for ten seconds first.
  Sidekiq.options[:poll_interval_average] = 1
  options = Sidekiq.options.merge(concurrency: 4, queues: ["default"], timeout: 5)
  launcher = Sidekiq::Launcher.new(options)
  launcher.run
  wanted = [*0...40, 100].to_h { |n| [n.to_s, (n * n).to_s] }
  eventually("all squares") { Sidekiq.redis { |redis| redis.hgetall("squares") } == wanted }
  eventually("the second try") { Sidekiq.redis { |redis| redis.get("tries") } == "2" }
  eventually("the dead job") { Sidekiq::DeadSet.new.size == 1 }
  eventually("the process") { Sidekiq::ProcessSet.new.size == 1 }
  launcher.stop
  # The figures are written with the heartbeat, or when the worker ends.
  eventually("44 processed, two of them failed") do
    stats = Sidekiq::Stats.new
    [stats.processed, stats.failed] == [44, 2]
  end
  stats = Sidekiq::Stats.new
  equal("what is left", [stats.enqueued, stats.scheduled_size, stats.retry_size], [0, 0, 0])
end

begin
  started = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  sidekiq
  puts format("ok sidekiq (%.1f s)", Process.clock_gettime(Process::CLOCK_MONOTONIC) - started)
  puts "1 passed, 0 failed"
rescue StandardError => error
  puts "FAILED sidekiq: #{error.message}"
  puts "0 passed, 1 failed"
  exit 1
end
