#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the path of BusyBox, a static program of Debian's package busybox-static, of which tests and the
# demo build container images:
#
#     hack/busybox.sh
#
# The package comes by apt-get download and is not installed. The cache (hack/cache.sh) keeps the program.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/busybox"
readonly dir
mkdir -p "${dir}"
exec 9>"${dir}/.lock"
flock 9 # tests of several packages may come here at the same time
if [[ ! -x "${dir}/busybox" ]]; then
	echo "busybox.sh: fetching BusyBox" >&2
	work="$(mktemp -d)"
	trap 'rm -rf "${work}"' EXIT
	download_package busybox-static "${work}" || { apt_update && download_package busybox-static "${work}"; } ||
		die "apt-get could not download busybox-static: $(tail -n 1 "${work}/apt.log")"
	dpkg -x "${work}"/*.deb "${work}/root"
	cp "${work}/root/bin/busybox" "${dir}/new" 2>/dev/null || cp "${work}/root/usr/bin/busybox" "${dir}/new"
	mv "${dir}/new" "${dir}/busybox"
fi
echo "${dir}/busybox"
