#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Prints how long bin/drover up takes to a ready API and to everything ready, and
# how much memory it has then and a while later, for a cold start (a new data
# dir) and a warm one (the same again). BENCH_RUNS (3) is how often, BENCH_SETTLE
# (15) how many seconds the while is. Flags are passed on to drover up.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly runs="${BENCH_RUNS:-3}"
readonly settle="${BENCH_SETTLE:-15}"
readonly limit=120
readonly drover=bin/drover

die() {
	echo "bench-up.sh: $*" >&2
	exit 1
}

[ -x "$drover" ] || die "$drover is missing: make build"
work="$(mktemp -d)"
pid=""
cleanup() {
	if [ -n "$pid" ]; then
		kill "$pid" 2>/dev/null && wait "$pid" || true
	fi
	rm -rf "$work"
}
trap cleanup EXIT

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# Megabytes that are resident, and those of them that are not the program's file.
memory() { awk '/^VmRSS/ { r = $2 } /^RssAnon/ { a = $2 } END { printf "%4d MB (%d MB of it heap and stacks)", r / 1024, a / 1024 }' "/proc/$pid/status"; }

# wait_for_line waits until drover up has printed a line that has this in it.
wait_for_line() {
	local end=$((SECONDS + limit))
	until grep -q -- "$1" "$work/out"; do
		kill -0 "$pid" 2>/dev/null || die "drover up ended: $(cat "$work/out")"
		[ "$SECONDS" -lt "$end" ] || die "drover up was not ready within $limit s: $(cat "$work/out")"
		sleep 0.02
	done
}

# start NAME DIR [FLAG...] measures one start and stops it again.
start() {
	local name="$1" dir="$2" begin api all
	shift 2
	: >"$work/out" # or the last start's lines would count
	begin="$(now_ms)"
	"$drover" up --data-dir "$dir" --port 0 "$@" >"$work/out" 2>&1 &
	pid=$!
	wait_for_line 'kube-apiserver .*ready'
	api=$(($(now_ms) - begin))
	wait_for_line '^Ready after'
	all=$(($(now_ms) - begin))
	printf '%-5s API ready %5d ms, all ready %5d ms, memory %s' "$name" "$api" "$all" "$(memory)"
	sleep "$settle"
	printf ', after %d s %s\n' "$settle" "$(memory)"
	begin="$(now_ms)"
	kill "$pid"
	wait "$pid" || die "drover up did not stop well: $(cat "$work/out")"
	pid=""
	printf '      stopped in %d ms\n' $(($(now_ms) - begin))
}

echo "$("$drover" version), $(nproc) CPUs, $(uname -sr)"
for run in $(seq "$runs"); do
	start cold "$work/$run" "$@"
	start warm "$work/$run" "$@"
done
