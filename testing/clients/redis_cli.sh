#!/bin/bash
# redis-cli and redis-benchmark as a user types them: redis_cli.sh HOST PORT
set -u
host=$1 port=$2
passed=0 failed=0

cli() { redis-cli -h "$host" -p "$port" "$@" 2>&1; }

# expect NAME EXPECTED ACTUAL
expect() {
    if [ "$2" = "$3" ]; then
        passed=$((passed + 1))
        echo "ok $1"
    else
        failed=$((failed + 1))
        printf 'FAILED %s: expected %q, got %q\n' "$1" "$2" "$3"
    fi
}

# expect_match NAME PATTERN ACTUAL
expect_match() {
    # shellcheck disable=SC2053 # the right side is a pattern
    if [[ $3 == $2 ]]; then expect "$1" same same; else expect "$1" "$2" "$3"; fi
}

expect "ping" PONG "$(cli ping)"
expect "flushall" OK "$(cli flushall)"
expect "set and get" "OK hello world" "$(cli set greeting 'hello world') $(cli get greeting)"
expect "select a database by option" "(nil)" "$(cli --no-raw -n 3 get greeting)"
expect "argument from standard input" "OK from stdin" "$(printf 'from stdin' | cli -x set fromstdin) $(cli get fromstdin)"
expect "commands from standard input" $'OK\n2\n3' "$(printf 'set n 1\nincr n\nincr n\n' | cli)"
expect "RESP3" '"greeting"' "$(cli --no-raw -3 keys 'greet*' | sed 's/^1) //')"
expect "a map in RESP3" '1# "maxmemory" => "0"' "$(cli --no-raw -3 config get maxmemory)"
expect "an error" "ERR syntax error" "$(cli set a b c d | head -n 1)"
expect "exit status of an error" 1 "$(cli -e get a b >/dev/null; echo $?)"
expect "json" '["hello world"]' "$(cli -3 --json mget greeting)"
expect "csv" '"hello world",NULL' "$(cli --csv mget greeting missing)"
expect "eval of a missing key" "(nil)" "$(cli --no-raw get missing)"
cli flushall >/dev/null
for i in $(seq 300); do echo "set scan:$i $i"; done | cli >/dev/null
expect "scan" 300 "$(cli --scan --pattern 'scan:*' | sort -u | wc -l | tr -d ' ')"
expect "scan of a pattern" 11 "$(cli --scan --pattern 'scan:10*' | sort -u | wc -l | tr -d ' ')"
expect_match "pipe mode" '*errors: 0, replies: 1000' "$(for i in $(seq 1000); do printf '*3\r\n$3\r\nSET\r\n$%d\r\nk%d\r\n$1\r\nv\r\n' $((${#i} + 1)) "$i"; done | cli --pipe)"
expect "dbsize" 1300 "$(cli dbsize)"
expect_match "info" '*redis_version:*' "$(cli info server)"
expect_match "bigkeys" '*Sampled 1300 keys in the keyspace*' "$(cli --bigkeys)"
expect_match "latency" '* * * *' "$(cli --latency --raw -i 1 </dev/null)"
expect_match "benchmark" '*PING_MBULK: *SET: *GET: *' \
    "$(redis-benchmark -h "$host" -p "$port" -q -n 2000 -c 20 -P 4 -t ping,set,get 2>&1 | tr '\r' '\n')"
expect "flushall async" OK "$(cli flushall async)"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
