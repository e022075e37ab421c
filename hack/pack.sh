#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints a tar archive that depends on the names, modes and contents of the files alone:
#
#     hack/pack.sh SECONDS FOLDER NAME...
#
# All files get the time SECONDS after 1970. NAME is a path in FOLDER.
set -o errexit -o nounset -o pipefail

readonly usage="usage: hack/pack.sh SECONDS FOLDER NAME..."
readonly seconds="${1:?${usage}}" folder="${2:?${usage}}"
shift 2
exec tar --create --format=ustar --sort=name --mtime="@${seconds}" --owner=0 --group=0 --numeric-owner --mode=u+rw,go-w,a+rX \
	--directory "${folder}" "$@"
