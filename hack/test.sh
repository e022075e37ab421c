#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of all modules. make test calls it, after it has built
# bin/drover, which integration tests start.
#
#     hack/test.sh [FLAG...]
#
# Flags go to go test, for example -run TestContract. The script installs and starts
# what the tests need and what is missing: a C compiler for -race, a Docker engine
# and QEMU. If it cannot, the run fails: no test is skipped because an engine is
# missing.
#
# The run removes what it created, and stops a Docker engine that it started; it
# fails if anything is left. Packages that it installed stay, and bin/. If others run
# tests on the same host, DROVER_TEST_SHARED=1 skips all of that.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The program under test, built once. Tests run in their packages' folders.
export DROVER_BIN="${DROVER_BIN:-${PWD}/bin/drover}"
[[ -x "${DROVER_BIN}" ]] || {
	echo "hack/test.sh: ${DROVER_BIN} is missing: run make build" >&2
	exit 1
}
export CGO_ENABLED=1 # for -race

readonly root="${PWD}"
answers() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }
started_engine=yes
! answers || started_engine=no
hack/test-deps.sh
work="$(mktemp -d)" # for locks, and the output of what runs beside
readonly work
trap 'rm -rf "${work}"' EXIT
before="$(hack/leftovers.sh)"
readonly before

left() { comm -13 <(echo "${before}") <("${root}/hack/leftovers.sh"); }

# remove_images removes the guests that did not exist before. Tests share them, so
# the tests do not remove them.
remove_images() {
	{ left | sed -n 's/^image //p' |
		grep --fixed-strings --line-regexp --file=<(docker image ls --all --quiet --no-trunc --filter label=cloudnative.tw/test-guest) || true; } |
		xargs --no-run-if-empty docker image rm --force >/dev/null
}

# check_left fails with what the tests have left. Processes that were just ended may
# take a moment.
check_left() {
	local try
	for try in {1..10}; do
		[[ -n "$(left)" ]] || return 0
		[[ "${try}" -eq 10 ]] || sleep 1
	done
	echo "hack/test.sh: the tests have left this:" >&2
	left >&2
	return 1
}

# Packages are tested one by one: within each, many tests already run at a time, and
# a step that must happen within two seconds should not wait for another package's
# clusters. Meanwhile the next package's tests are linked (-p 2), so the time that go
# test prints includes the wait for the lock. So does the time after which go test kills
# a package: that is long enough for the package before, while the tests themselves get
# 20 minutes (the last -test.timeout counts). The kill reaches only flock, and setpriv
# passes it on. Cached results do not count, because go test cannot detect that an engine
# has changed.
run() {
	local lock="${work}/$1"
	shift
	go test -p 2 -exec "flock --close ${lock} setpriv --pdeathsig KILL" -count 1 -timeout 45m "$@" ./... -args -test.timeout=20m 2>&1 | { grep --line-buffered -v '\[no test files\]$' || true; } | tee --append "${work}/output"
}

# list_failures prints what failed once more, with the first lines of each test: the logs
# of controllers may have pushed it out of sight.
list_failures() {
	echo "hack/test.sh: what failed:"
	grep --after-context=8 --no-group-separator -E '^ *--- FAIL: |^panic: |WARNING: DATA RACE|^FAIL[[:space:]]' "${work}/output" | cut -c 1-600 | head -n 200
} >&2

echo "compile, module ."
go build -buildvcs=false -race ./...
echo "build, Helm"
hack/tool.sh helm >/dev/null
failed=0
echo "test, module ."
run lock -race "$@" || failed=1
echo "test, module hack/image"
(cd hack/image && run lock -race "$@") || failed=1

# The short form of make test-cluster waits most of the time, for Leases and nodes, so it
# runs beside the next module. Compiling it for -race would take longer than the tests.
cluster=""
if [[ "$(id -u)" -eq 0 ]]; then
	hack/cluster-deps.sh
	hack/cluster-binaries.sh >/dev/null
	(cd test/cluster && run lock-cluster "$@") >"${work}/cluster.log" 2>&1 &
	cluster="$!"
fi

# kube-apiserver is in the next module: compiling it once more, for -race, would
# take longer than all tests together.
echo "test, module standalone"
(cd standalone && run lock "$@") || failed=1

if [[ -n "${cluster}" ]]; then
	echo "test, module test/cluster"
	wait "${cluster}" || failed=1
	cat "${work}/cluster.log"
else
	echo "module test/cluster is left out, because clusters need root: sudo make test-cluster"
fi

if [[ -z "${DROVER_TEST_SHARED:-}" ]]; then
	remove_images || failed=1
	check_left || failed=1
	[[ "${started_engine}" == no ]] || "${root}/hack/dockerd.sh" stop || failed=1
fi
[[ "${failed}" -eq 0 ]] || list_failures
exit "${failed}"
