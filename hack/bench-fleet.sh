#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints how driver pod scales (test/cluster/fleet): thousands of VMs on a thousand nodes
# whose kubelets kwok simulates. make bench-fleet calls it, which needs root.
#
#     hack/bench-fleet.sh [FLAG...]
#
# Flags are those of the program, for example --nodes 100 --vms 100,1000. The version of kwok
# is in test/cluster/kwok/go.mod.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
hack/cluster-deps.sh
hack/cluster-binaries.sh >/dev/null
mkdir -p bin/bench
CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false' GOWORK=off go -C test/cluster/kwok build -o "${PWD}/bin/bench/kwok" tool
GOFLAGS='-trimpath -buildvcs=false' go -C test/cluster build -o "${PWD}/bin/bench/fleet" ./fleet
exec bin/bench/fleet --kwok bin/bench/kwok --controller bin/drover-controller --drover "${DROVER_BIN:-bin/drover}" \
	--crds config/crd --json bin/bench/fleet.json "$@"
