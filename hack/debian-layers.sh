#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Prints the folder with the files of some of Debian's packages, an archive for each, of which tests build
# a container image of many layers. The archives are in their order by their names:
#
#     hack/debian-layers.sh
#
# The packages come by apt-get download and are not installed. The cache (hack/cache.sh) keeps them until
# its folder or this script changes.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/debian-layers"
script="$(sha256sum <"${BASH_SOURCE[0]}")"
readonly dir script
readonly packages=(base-files base-passwd libc6 dash bash coreutils util-linux passwd login mount perl-base tzdata iputils-ping)

mkdir -p "${dir}"
exec 9>"${dir}/.lock"
flock 9 # tests may come here at the same time
if [[ ! -f "${dir}/script" || "$(<"${dir}/script")" != "${script}" ]]; then
	echo "debian-layers.sh: fetching packages" >&2
	work="$(mktemp -d)"
	trap 'rm -rf "${work}"' EXIT
	rm -f "${dir}"/*.tar "${dir}/script"
	for n in "${!packages[@]}"; do
		package="${packages[n]}"
		download_package "${package}" "${work}" || { apt_update && download_package "${package}" "${work}"; } ||
			die "apt-get could not download ${package}: $(tail -n 1 "${work}/apt.log")"
		dpkg-deb --fsys-tarfile "${work}/${package}"_*.deb >"$(printf '%s/%02d-%s.tar' "${dir}" "${n}" "${package}")"
	done
	echo "${script}" >"${dir}/script"
fi
echo "${dir}"
