#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Runs a test that boots the Debian of hack/debian-guest.sh, of the qemu driver unless another
# package is named:
#
#     hack/debian-test.sh TEST [PACKAGE]
set -o errexit -o nounset -o pipefail

readonly test="${1:?usage: hack/debian-test.sh TEST [PACKAGE]}" package="${2:-./internal/driver/qemu}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export DROVER_BIN="${DROVER_BIN:-${PWD}/bin/drover}" DROVER_DEBIAN_GUEST="${PWD}/bin/guest/debian" DROVER_TEST_TIER=full

hack/qemu.sh
hack/debian-guest.sh "${DROVER_DEBIAN_GUEST}"
go test -count 1 -timeout 60m -v -run "^${test}\$" "${package}"
