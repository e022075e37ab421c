#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Makes what boots a container image as a machine, in a folder: vmlinux and kernel.json, see
# hack/guest-kernel.sh, the latter with the version of the guest's program (internal/guest/config);
# initramfs, which has cmd/drover-guest and the modules that it needs; the file system with all modules;
# and image.tar, the built-in image (hack/busybox-image.sh, hack/guest/image), whose BusyBox image.json describes.
#
#     hack/guest.sh DIR
#
# GUEST_TAG=nextrelease builds the guest of the next release, for tests of upgrades.
# A file that is there and would not change is left alone: a machine may be starting from it.
set -o errexit -o nounset -o pipefail

readonly out="${1:?usage: hack/guest.sh DIR}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
programs="$("${root}/hack/cache.sh")/programs"
kernel="$("${root}/hack/guest-kernel.sh")"
mkdir -p "${out}" "${programs}"
target="$(cd "${out}" && pwd -P)"
readonly root programs kernel target
work="$(mktemp -d "${target}/.new.XXXXXX")"
trap 'rm -rf "${work}"' EXIT

cd "${root}"
exec 9>"${programs}/drover-guest.lock"
flock 9
CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -buildvcs=false -tags "${GUEST_TAG:-}" -ldflags "-s -w" -o "${programs}/drover-guest" ./cmd/drover-guest
go run -trimpath -buildvcs=false ./hack/guest/initramfs "${programs}/drover-guest" "${kernel}/modules" >"${work}/initramfs"
flock --unlock 9
hack/busybox-image.sh "${work}/image.tar" hack/guest/image
sed "s/^{/{\n  \"imageSHA256\": \"$(sha256sum <"${work}/image.tar" | cut -d ' ' -f 1)\",/" "$(dirname "$(hack/busybox.sh)")/busybox.json" >"${work}/image.json"
version="$(sed -n 's/^const Version = //p' "internal/guest/config/version${GUEST_TAG:+_${GUEST_TAG}}.go")"
sed "s/^{/{\n  \"guestVersion\": ${version:?},/" "${kernel}/kernel.json" >"${work}/kernel.json"
for file in "${kernel}"/modules-*.erofs "${kernel}/vmlinux" "${work}/kernel.json" "${work}/initramfs" "${work}/image.tar" "${work}/image.json"; do
	name="$(basename "${file}")"
	cmp --silent "${file}" "${target}/${name}" || { { ln "${file}" "${work}/new" 2>/dev/null || cp "${file}" "${work}/new"; } && mv --force "${work}/new" "${target}/${name}"; }
done
# Those of other kernels: kernel.json names none of them any more, and QEMU keeps what it has open.
find "${target}" -name 'modules-*.erofs' ! -name "$(basename "${kernel}"/modules-*.erofs)" -delete
