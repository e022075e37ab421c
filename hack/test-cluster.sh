#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of module test/cluster, which start clusters of several nodes on this
# host. make test-cluster calls it. It needs root, and fails if anything is left.
#
#     hack/test-cluster.sh [FLAG...]
#
# Flags go to go test, for example -run TestPods. Without any, the tests run in two lanes, in
# parallel: they wait most of the time, for Leases and nodes. Three clusters at a time need
# nearly the 128 inotify instances that Linux allows a user by default
# (fs.inotify.max_user_instances).
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ "$(id -u)" -eq 0 ]] || {
	echo "hack/test-cluster.sh: needs root, for namespaces, network interfaces and control groups" >&2
	exit 1
}
hack/cluster-deps.sh engine
hack/cluster-binaries.sh >/dev/null # outside of the tests' time limit

export DROVER_TEST_TIER="${DROVER_TEST_TIER:-full}" # with another one, a short form runs
work="$(mktemp -d)"
before="$(hack/leftovers.sh)"
readonly before work
trap 'rm -rf "${work}"' EXIT
failed=0

test_packages() { go -C test/cluster test -p 1 -count 1 -timeout 45m "$@" | { grep --line-buffered -v '\[no test files\]$' || true; }; }

# test_lanes runs the tests in two lanes, and prints the output of each when it is over.
test_lanes() {
	local -r driver='^TestPodDriver$' contract='^TestPodContract$' others='^Test(PodsElsewhere|PodDeletion)$'
	local first second packages
	go -C test/cluster test -c -o "${work}/cluster.test" .
	mapfile -t packages < <(go -C test/cluster list ./... | grep -v '/cluster$')
	run_part() { (cd test/cluster && "${work}/cluster.test" -test.timeout=45m "$@") && echo "ok $* after ${SECONDS} s"; }
	{
		run_part -test.run "${driver}" || failed=1
		run_part -test.run "${others}" || failed=1
		exit "${failed}"
	} >"${work}/first" 2>&1 & first="$!"
	{
		run_part -test.skip "${driver}|${contract}|${others}" || failed=1
		run_part -test.run "${contract}" || failed=1
		test_packages -parallel 1 "${packages[@]}" || failed=1
		exit "${failed}"
	} >"${work}/second" 2>&1 & second="$!"
	wait "${second}" || failed=1
	cat "${work}/second"
	wait "${first}" || failed=1
	cat "${work}/first"
}

if [[ "$#" -gt 0 ]]; then
	test_packages "$@" ./... || failed=1
else
	test_lanes
fi

left() { comm -13 <(echo "${before}") <(hack/leftovers.sh); }
for try in {1..10}; do
	[[ -n "$(left)" ]] || break
	[[ "${try}" -eq 10 ]] || sleep 1
done
if [[ -z "${DROVER_TEST_SHARED:-}" && -n "$(left)" ]]; then
	echo "hack/test-cluster.sh: the tests have left this:" >&2
	left >&2
	failed=1
fi
exit "${failed}"
