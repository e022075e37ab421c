#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests of module test/cluster, which start clusters of several nodes on this
# host. make test-cluster calls it. It needs root, and fails if anything is left.
#
#     hack/test-cluster.sh [FLAG...]
#
# Flags go to go test, for example -run TestPods.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
[[ "$(id -u)" -eq 0 ]] || {
	echo "hack/test-cluster.sh: needs root, for namespaces, network interfaces and control groups" >&2
	exit 1
}
hack/cluster-deps.sh engine
hack/cluster-binaries.sh >/dev/null # outside of the tests' time limit

export DROVER_CLUSTER="${DROVER_CLUSTER:-full}" # make test runs a shorter form
before="$(hack/leftovers.sh)"
readonly before
failed=0
go -C test/cluster test -p 1 -count 1 -timeout 45m "$@" ./... | { grep --line-buffered -v '\[no test files\]$' || true; } || failed=1

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
