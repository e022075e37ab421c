#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Explores what faults do to Drover (test/faults, test/schedules, test/specs), and prints tables
# of it. It installs what is missing. DROVER_FAULTS says how much: short, default or full. Logs of
# runs that broke a rule are left in DROVER_FAULTS_DIR, bin/faults unless it is set.
#
#     hack/faults.sh [FLAG...]
#
# Flags are those of go test. With some, test/faults alone is run.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

hack/test-deps.sh
export DROVER_BIN="${DROVER_BIN:-${PWD}/bin/drover}" DROVER_FAULTS_DIR="${DROVER_FAULTS_DIR:-${PWD}/bin/faults}"
rm -rf "${DROVER_FAULTS_DIR}"
mkdir -p "${DROVER_FAULTS_DIR}"
failed=0
go test -count 1 -timeout 12h -parallel 6 -v ./test/faults "$@" || failed=1
if [[ "$#" -gt 0 ]]; then
	exit "${failed}"
fi
if [[ "${DROVER_FAULTS:-}" == full ]]; then
	go test -count 1 -timeout 12h -v ./test/schedules -duration 30m || failed=1
	go test -count 1 -timeout 3h -v ./test/specs || failed=1
else
	go test -count 1 -timeout 1h -v ./test/schedules -duration 30s || failed=1
fi
exit "${failed}"
