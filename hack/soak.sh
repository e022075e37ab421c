#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Soaks Drover (test/faults/soak): thousands of VirtualMachines live and end while faults
# occur. It installs what is missing, and leaves logs of soaks that broke a rule in
# DROVER_FAULTS_DIR, bin/faults unless it is set.
#
#     hack/soak.sh [-lifecycles N] [ENGINE...]
#
# Engines are fake, docker and qemu; all unless some are named. N is the number of lifecycles on
# each, instead of 8,500, 1,000 and 400.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

hack/test-deps.sh
export DROVER_BIN="${DROVER_BIN:-${PWD}/bin/drover}" DROVER_FAULTS_DIR="${DROVER_FAULTS_DIR:-${PWD}/bin/faults}"
mkdir -p "${DROVER_FAULTS_DIR}"
flags=(-size soak)
if [[ "${1:-}" == -lifecycles ]]; then
	flags+=(-lifecycles "${2:?usage: hack/soak.sh -lifecycles N}")
	shift 2
fi
[[ "$#" -gt 0 ]] || set -- fake docker qemu
failed=0
for engine in "$@"; do
	go test -count 1 -timeout 12h -v ./test/faults -run "TestFaults/^soak,_${engine}\$" "${flags[@]}" || failed=1
done
exit "${failed}"
