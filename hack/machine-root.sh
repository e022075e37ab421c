#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes the files that QEMU needs in the image of drover-machine, and the authorities of web
# servers that images are fetched from, from Debian's packages, and prints the folder DIR:
#
#     hack/machine-root.sh
#
# DIR/root has the files, and DIR/packages the packages that they are of, with versions. DIR/debs lists the same packages
# with version, source, the version of that, and the SHA-256 of the .deb file. DIR is in the cache (hack/cache.sh).
# The packages come by apt-get, are not installed, and are fetched again once apt's lists
# name others. It needs neither root nor a container engine, unless apt has no lists yet.
set -o errexit -o nounset -o pipefail

# shellcheck source=hack/install-lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/install-lib.sh"

dir="$("$(dirname "${BASH_SOURCE[0]}")/cache.sh")/machine-root"
mkdir -p "${dir}"
dir="$(cd "${dir}" && pwd -P)"
readonly dir triplet=x86_64-linux-gnu
readonly most=72000000 # bytes: with the program, the image has at most 80 MB
readonly firmware=(bios-256k.bin kvmvapic.bin linuxboot_dma.bin pvh.bin)

[[ "$(dpkg --print-architecture 2>/dev/null)" == amd64 ]] || die "needs Debian or a distribution of it, on amd64"
exec 9>"${dir}/.lock"
flock 9 # tests may come here at the same time
work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

# closure_of runs apt-get for the packages and all that they depend on, as if nothing was installed.
closure_of() {
	apt-get -qq -y --no-install-recommends -o Dir::State::status=/dev/null -o Debug::NoLocking=1 \
		-o Dir::Cache::archives="${work}/debs" "$@" install qemu-system-x86 ca-certificates
}

# wanted lists the files of the packages, with versions in their names, and this script's hash.
wanted() {
	closure_of --print-uris | awk '{print $2}' | sort || return
	sha256sum <"${BASH_SOURCE[0]}"
}

mkdir -p "${work}/debs/partial" "${work}/lists" "${work}/all" "${work}/out/root"
wanted >"${work}/wanted" 2>/dev/null || {
	apt_update
	wanted >"${work}/wanted" || die "apt knows no packages qemu-system-x86 and ca-certificates"
}
if cmp -s "${work}/wanted" "${dir}/wanted"; then
	echo "${dir}"
	exit 0
fi

echo "machine-root.sh: fetching QEMU and its libraries" >&2
closure_of --download-only >"${work}/apt.log" 2>&1 || {
	apt_update
	closure_of --download-only >"${work}/apt.log" 2>&1 || die "apt-get could not fetch QEMU: $(tail -n 3 "${work}/apt.log")"
}
for deb in "${work}"/debs/*.deb; do
	package="$(dpkg-deb -W --showformat '${Package}=${Version}' "${deb}")"
	dpkg-deb -W --showformat '${Package} ${Version} ${source:Package} ${source:Version} ' "${deb}" >>"${work}/debs.all"
	sha256sum "${deb}" | cut -d ' ' -f 1 >>"${work}/debs.all"
	dpkg-deb -x "${deb}" "${work}/package"
	find "${work}/package" -type f -printf '%P\n' >"${work}/lists/${package}"
	cp -a --link "${work}/package/." "${work}/all/"
	rm -rf "${work}/package"
done

# note_owner adds the package of a file to those in use.
note_owner() {
	local lists=("${work}"/lists/*) path="${1#"${work}/all/"}"
	{ grep --line-regexp --fixed-strings --files-with-matches -e "${path}" "${lists[@]}" || die "no package has ${path}"; } |
		xargs -n 1 basename >>"${work}/packages"
}

# add copies a file to a path in the image, without links.
add() {
	install -D --mode "${3:-0644}" "$(readlink -f "$1")" "${work}/out/root/$2"
	note_owner "$(readlink -f "$1")"
}

all="${work}/all"
for lib in "${all}/lib64" "${all}/lib"; do # where Debian 13 has them in /usr alone
	[[ -e "${lib}" ]] || ln -s "usr/$(basename "${lib}")" "${lib}"
done
loader="$(readlink -f "${all}/lib/${triplet}/ld-linux-x86-64.so.2")"
[[ -x "${loader}" ]] || die "libc6 has no loader"
qemu="${all}/usr/bin/qemu-system-x86_64"
tcg="${all}/usr/lib/${triplet}/qemu/accel-tcg-x86_64.so"
add "${loader}" lib64/ld-linux-x86-64.so.2 0755
add "${qemu}" usr/bin/qemu-system-x86_64 0755
add "${tcg}" "usr/lib/${triplet}/qemu/$(basename "${tcg}")"
"${loader}" --library-path "${all}/lib/${triplet}:${all}/usr/lib/${triplet}" --list "${qemu}" >"${work}/ldd"
! grep 'not found' "${work}/ldd" >&2 || die "libraries of QEMU are missing"
while read -r name path; do
	add "${path}" "usr/lib/${triplet}/${name}"
done < <(awk '$2 == "=>" && $1 !~ /ld-linux/ {print $1, $3}' "${work}/ldd")
for file in "${firmware[@]}"; do
	found="$(find "${all}/usr/share/qemu" "${all}/usr/share/seabios" -name "${file}" | head -n 1)"
	[[ -n "${found}" ]] || die "the packages have no ${file}"
	add "${found}" "usr/share/qemu/${file}"
done

# The file that the package makes when it is installed, with what it makes it of by default.
authorities=("${all}"/usr/share/ca-certificates/mozilla/*.crt)
[[ -e "${authorities[0]}" ]] || die "ca-certificates has no certificates"
mkdir -p "${work}/out/root/etc/ssl/certs"
cat "${authorities[@]}" >"${work}/out/root/etc/ssl/certs/ca-certificates.crt"
chmod 0644 "${work}/out/root/etc/ssl/certs/ca-certificates.crt"
note_owner "${authorities[0]}"

sort -u "${work}/packages" >"${work}/out/packages"
while IFS='=' read -r name version; do # their licences ask for it
	grep --fixed-strings "${name} ${version} " "${work}/debs.all" | grep "^${name} " >>"${work}/out/debs"
	copyright="${all}/usr/share/doc/${name}/copyright"
	[[ ! -e "${copyright}" ]] || install -D --mode 0644 "$(readlink -f "${copyright}")" "${work}/out/root/usr/share/doc/${name}/copyright"
done <"${work}/out/packages"
size="$(du -sb "${work}/out/root" | cut -f 1)"
[[ "${size}" -le "${most}" ]] || die "QEMU has ${size} bytes, at most ${most} are allowed"
rm -rf "${dir}/root" "${dir}/wanted"
mv "${work}/out/root" "${work}/out/packages" "${work}/out/debs" "${dir}/"
mv "${work}/wanted" "${dir}/wanted"
echo "${dir}"
