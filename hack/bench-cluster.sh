#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints what a VM of driver pod takes beside a bare pod on a cluster of three nodes. Then
# it prints how long a deployment there is without a leader, fault by fault, and beside it
# the figures of replicas that are processes of this host, with the same Lease.
# make bench-cluster calls it, which needs root.
#
#     [RUNS=10] [ONLY=pods] hack/bench-cluster.sh
#
# Starts are measured RUNS x 3 times. ONLY=pods leaves out the rest.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly runs="${RUNS:-10}" only="${ONLY:-}"
[[ -z "${only}" || "${only}" == pods ]] || {
	echo "bench-cluster.sh: ONLY is \"${only}\": it must be empty or pods" >&2
	exit 1
}
hack/cluster-deps.sh engine
hack/cluster-binaries.sh >/dev/null
echo "VMs of driver pod beside bare pods, $((runs * 3)) starts of each:"
go -C test/cluster test -count 1 -timeout 1h -v -run '^TestBenchmarkPods$' . -rounds "$((runs * 3))"
[[ "${only}" != pods ]] || exit 0
echo
echo "In a cluster, ${runs} runs of each fault:"
go -C test/cluster test -count 1 -timeout 3h -v -run '^TestBenchmark$' ./deployment -runs "${runs}"
echo
echo "Processes without a cluster, ${runs} runs of each signal:"
mkdir -p bin/bench
go build -buildvcs=false -o bin/bench/failover ./test/bench/failover
bin/bench/failover --runs "${runs}" --vms 0 --json bin/bench/failover-lease15.json \
	--lease-duration 15s --renew-deadline 10s --retry-period 2s --request-timeout 1s --margin 1s
