#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the revision of the version before, from which to upgrade: FROM, the last tag, or the
# commit before the last one that changed a program.
set -o errexit -o nounset -o pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -n "${FROM:-}" ]]; then
	echo "${FROM}"
elif ! git describe --tags --abbrev=0 2>/dev/null; then
	git rev-parse --verify "$(git log -1 --format=%H -- apis cmd internal)^"
fi
