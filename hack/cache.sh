#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the folder for what building and testing keeps outside of the checkout, and makes it: tools,
# guests, clusters, linked tests. All checkouts share it. Remove it at any time: what is missing is
# made again.
#
#     hack/cache.sh
#
# DROVER_CACHE chooses another folder. Below it each version of the layout has one of its own.
set -o errexit -o nounset -o pipefail

dir="${DROVER_CACHE:-${XDG_CACHE_HOME:-${HOME}/.cache}/drover-build}/v1"
mkdir -p "${dir}" || {
	echo "cache.sh: ${dir} cannot be made: DROVER_CACHE chooses another folder" >&2
	exit 1
}
# What it holds is run as this user.
[[ -O "${dir}" ]] || {
	echo "cache.sh: ${dir} belongs to $(stat --format %U "${dir}"), not to $(id --user --name): DROVER_CACHE chooses another folder" >&2
	exit 1
}
echo "${dir}"
