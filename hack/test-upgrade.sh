#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Tests that bin/drover takes over what another version has left, and the other way
# round: see test/upgrade.
#
#     hack/test-upgrade.sh [BEFORE]
#
# BEFORE is the drover of the other version; where it is missing, that of the git
# revision that hack/previous.sh prints is built.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

before="${1:-}"
if [[ -z "${before}" ]]; then
	from="$(hack/previous.sh)"
	work="$(mktemp -d)"
	trap 'rm -rf "${work}"' EXIT
	echo "test-upgrade.sh: building drover of ${from}"
	git archive "${from}" | tar -x -C "${work}"
	before="${work}/bin/drover"
	mkdir -p "${work}/bin"
	go -C "${work}/standalone" build -buildvcs=false -o "${before}" .
fi

hack/test-deps.sh
export DROVER_BEFORE="${before}" DROVER_AFTER="${DROVER_AFTER:-${PWD}/bin/drover}"
go test -count 1 -timeout 60m -v ./test/upgrade
