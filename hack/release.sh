#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes all files of a release in a folder that is new or empty:
#
#     hack/release.sh DIR [MANIFEST]
#
# make release calls it. A MANIFEST of an earlier release says which compiler,
# packages and time this one must have; it is refused if apt has others now. The same sources and the same
# manifest give the same bytes. SOURCES=no leaves the sources of Debian's packages out, for a release that is not
# published. It needs Debian or a distribution of it, on amd64.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly out="${1:?usage: hack/release.sh DIR [MANIFEST]}" expected="${2:-}"
version="$(<VERSION)"
cache="$(hack/cache.sh)"
readonly version cache

mkdir -p "${out}"
[[ -z "$(ls -A "${out}")" ]] || die "${out} is not empty"
target="$(cd "${out}" && pwd -P)"
stage="$(mktemp -d "${TMPDIR:-/tmp}/drover-release.XXXXXX")"
trap 'rm -rf "${stage}"' EXIT

# release runs hack/release for a part.
release() { go -C hack/release run . -checkout "${PWD}" -stage "${stage}" -out "${target}" ${expected:+-expected "$(realpath "${expected}")"} "$1"; }

# drop_outdated removes the kernel and BusyBox from the cache if apt has newer ones: Debian's mirrors have the sources of the
# newest versions alone.
drop_outdated() {
	local description package
	apt_update
	[[ -n "$(cloud_kernel_version)" ]] || die "apt knows no package ${cloud_kernel}"
	for description in "${cache}"/guest-kernel-*/kernel.json "${cache}/busybox/busybox.json"; do
		[[ -e "${description}" ]] || continue
		package="$(sed -n 's/^  "package": "\(.*\)",$/\1/p' "${description}")"
		[[ "${package}" != linux-image-* || "${package}" == "$(cloud_kernel_version)" ]] &&
			[[ "$(sed -n 's/^  "version": "\(.*\)",$/\1/p' "${description}")" == "$(apt-cache policy "${package}" | sed -n 's/^  Candidate: //p')" ]] ||
			rm -f "${description}" # which says that all is there
	done
}

# set_time sets the time of all files of the release: of the manifest, else of the last commit.
set_time() {
	if [[ -n "${expected}" ]]; then
		time="$(sed -n 's/^  "time": \([0-9]*\),$/\1/p' "${expected}")"
		[[ -n "${time}" ]] || die "${expected} has no time"
	else
		time="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}"
	fi
	export SOURCE_DATE_EPOCH="${time}"
	touch --date="@${time}" "${stage}/time"
}

# stage_programs copies the programs for amd64, and builds those that clients and clusters of arm64 have.
stage_programs() {
	mkdir -p "${stage}"/linux-{amd64,arm64} "${stage}/launcher"
	cp bin/drover-launcher "${stage}/launcher/" # in the Debian package alone
	cp bin/drover bin/drover-controller bin/drover-machine bin/kubectl-vm "${stage}/linux-amd64/"
	local flags="-s -w -X cloudnative.tw/drover/cmd/drover-controller/app.Version=${version} -X cloudnative.tw/drover/cmd/kubectl-vm/kit.Version=${version} -X cloudnative.tw/drover/internal/format.Version=${version}"
	CGO_ENABLED=0 GOARCH=arm64 go build -ldflags "${flags}" -o "${stage}/linux-arm64/" ./cmd/drover-controller ./cmd/kubectl-vm
	cp -r bin/guest "${stage}/guest"
}

# stage_package copies what the Debian package has besides programs.
stage_package() {
	mkdir -p "${stage}/completions" "${stage}/doc"
	cp -r config/debian "${stage}/package"
	mkdir "${stage}/examples"
	cp examples/*.yaml "${stage}/examples/"
	cp docs/*.md "${stage}/doc/"
	gzip --best --no-name <CHANGELOG.md >"${stage}/doc/CHANGELOG.md.gz"
	printf 'drover (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.gz.\n\n -- The Drover Authors <drover@cloudnative.tw>  %s\n' \
		"${version/-/\~}" "$(LC_ALL=C date --utc --date="@${time}" --rfc-email)" | gzip --best --no-name >"${stage}/doc/changelog.gz"
	gzip --best --no-name <"${stage}/NOTICES" >"${stage}/doc/NOTICES.gz"
	cp config/debian/copyright "${stage}/doc/copyright"
	bin/kubectl-vm completion bash >"${stage}/completions/kubectl-vm"
	bin/drover completion bash >"${stage}/completions/drover"
}

# write_images writes an OCI archive for each image.
write_images() {
	go -C hack/image run . --out "${stage}" --notices "${stage}/NOTICES" --tag "drover-controller:${version}" --version "${version}" \
		--platforms linux/amd64,linux/arm64
	go -C hack/image run . --out "${stage}" --notices "${stage}/NOTICES" --tag "drover-machine:${version}" --version "${version}" \
		--program drover-machine --root "${machine}/root" --packages "${machine}/packages"
	for program in drover-controller drover-machine; do
		cp "${stage}/${program}.tar" "${target}/${program}-image_${version}.tar"
	done
}

# write_chart writes the chart, whose image has this version by default.
write_chart() {
	cp -r charts/drover "${stage}/drover"
	sed -i "s/^version: .*/version: ${version}/; s/^appVersion: .*/appVersion: ${version}/" "${stage}/drover/Chart.yaml"
	hack/pack.sh "${time}" "${stage}" drover | gzip --best --no-name >"${target}/drover-${version}.tgz"
}

# write_programs writes archives of the programs, those for amd64 with the files that boot container images.
write_programs() {
	cp LICENSE "${stage}/NOTICES" "${stage}/linux-arm64/"
	cp -r LICENSE "${stage}/NOTICES" "${stage}/guest" "${stage}/linux-amd64/"
	local arch
	for arch in amd64 arm64; do
		hack/pack.sh "${time}" "${stage}/linux-${arch}" . | gzip --best --no-name >"${target}/drover_${version}_linux_${arch}.tar.gz"
	done
}

# fetch_sources fetches the Debian source packages of all that the release has of Debian, by apt, which checks them.
fetch_sources() {
	local folder="${cache}/sources" parts="${stage}/apt/parts" missing=0 source file
	mkdir -p "${folder}/partial" "${parts}" "${stage}/apt/lists/partial" "${stage}/sources"
	for file in /etc/apt/sources.list.d/*.sources; do
		[[ ! -e "${file}" ]] || sed 's/^Types: *deb *$/Types: deb-src/' "${file}" >"${parts}/$(basename "${file}")"
	done
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[[ ! -e "${file}" ]] || sed -n 's/^deb /deb-src /p' "${file}" >"${parts}/$(basename "${file%.list}").list"
	done
	local options=(-o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="${parts}" -o Dir::State::Lists="${stage}/apt/lists"
		-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o Acquire::Retries=3 -o Acquire::http::Timeout=20 -o APT::Sandbox::User=root)
	timeout --kill-after=30 600 apt-get -qq update "${options[@]}" || die "apt-get could not fetch the lists of sources"
	release sources >"${stage}/source-names"
	while read -r source; do
		(cd "${folder}" && timeout --kill-after=30 1800 apt-get -qq source --download-only --only-source "${options[@]}" "${source}") </dev/null >"${stage}/apt/log" 2>&1 || {
			echo "release.sh: the sources of ${source} are missing: $(first_error "$(<"${stage}/apt/log")")" >&2
			missing=$((missing + 1))
			continue
		}
		sed -n '/^Checksums-Sha256:/,/^[^ ]/s/^ [0-9a-f]* [0-9]* //p' "$(dsc "${source}")" | while read -r file; do
			cp --reflink=auto "${folder}/${file}" "${stage}/sources/"
		done
		cp --reflink=auto "$(dsc "${source}")" "${stage}/sources/"
	done <"${stage}/source-names"
	[[ "${missing}" -eq 0 ]] || die "the mirrors of apt lack ${missing} source packages: publish nothing without them"
	hack/pack.sh "${time}" "${stage}" sources >"${target}/drover-sources_${version}.tar"
}

# dsc prints the path of the description of a source package, NAME=VERSION. Its name has no epoch in it.
dsc() { echo "${cache}/sources/${1%%=*}_$(sed 's/^[^=]*=\([0-9]*:\)\?//' <<<"$1").dsc"; }

export GOFLAGS="-trimpath -buildvcs=false"
[[ -n "${expected}" || "${SOURCES:-yes}" == no ]] || drop_outdated
make VERSION="${version}" build guest
set_time
git describe --always --abbrev=40 --exclude='*' --dirty >"${stage}/commit"
stage_programs
machine="$(hack/machine-root.sh)"
cp "${machine}/debs" "${stage}/machine-packages"
release manifest
release notices
stage_package
release deb
release bom
write_images
write_chart
write_programs
cp "${stage}/manifest.json" "${target}/manifest.json"
[[ "${SOURCES:-yes}" == no ]] || fetch_sources
(cd "${target}" && sha256sum -- * >"${stage}/SHA256SUMS" && mv "${stage}/SHA256SUMS" .)
ls -l --human-readable "${target}"
