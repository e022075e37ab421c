#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the path of BusyBox, a static program of Debian's package busybox-static, of which container
# images are built:
#
#     hack/busybox.sh
#
# Beside it is busybox.json, which names the package and the sources that it was built from. The package
# comes by apt-get download and is not installed. The cache (hack/cache.sh) keeps both.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/busybox"
readonly dir
mkdir -p "${dir}"
exec 9>"${dir}/.lock"
flock 9 # tests of several packages may come here at the same time
if [[ ! -x "${dir}/busybox" || ! -f "${dir}/busybox.json" ]]; then
	echo "busybox.sh: fetching BusyBox" >&2
	work="$(mktemp -d)"
	trap 'rm -rf "${work}"' EXIT
	download_package busybox-static "${work}" || { apt_update && download_package busybox-static "${work}"; } ||
		die "apt-get could not download busybox-static: $(tail -n 1 "${work}/apt.log")"
	dpkg -x "${work}"/*.deb "${work}/root"
	cp "${work}/root/bin/busybox" "${dir}/new" 2>/dev/null || cp "${work}/root/usr/bin/busybox" "${dir}/new"
	source="$(dpkg-deb --field "${work}"/*.deb Source)"
	cat >"${dir}/busybox.json" <<-END
		{
		  "package": "busybox-static",
		  "version": "$(dpkg-deb --field "${work}"/*.deb Version)",
		  "source": "${source:-busybox}",
		  "builtUsing": "$(dpkg-deb --field "${work}"/*.deb Built-Using)",
		  "license": "GPL-2.0-only",
		  "packageSHA256": "$(sha256sum "${work}"/*.deb | cut -d ' ' -f 1)"
		}
	END
	mv "${dir}/new" "${dir}/busybox"
fi
echo "${dir}/busybox"
