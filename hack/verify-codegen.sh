#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Fails when a generated file differs from what the API types in apis/ and the programs
# generate. It generates into a temporary copy and compares, so it does not change the
# checkout, which need not be clean.
set -o errexit -o nounset -o pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
readonly root
readonly generated=(apis client config/crd charts/drover/files docs/api.md docs/flags.md docs/rights.md docs/troubleshooting.md config/rbac/rbac.yaml config/manager/manager.yaml config/streams/streams.yaml)
readonly programs=(cmd internal standalone)

# What was found up to date once is so in every checkout of the same files.
inputs="$(cd "${root}" && git ls-files -z --cached --others --exclude-standard -- "${generated[@]}" "${programs[@]}" config charts hack/update-codegen.sh hack/tools/go.mod hack/tools/go.sum hack/boilerplate.go.txt hack/api-docs go.mod go.sum |
	xargs --null sha256sum | sha256sum | cut -c 1-16)"
stamp="$("${root}/hack/cache.sh")/verified/codegen-${inputs}"
if [[ -e "${stamp}" ]]; then
	echo "Generated files are up to date, as they were before."
	exit 0
fi

work="$(mktemp -d)"
trap 'rm -rf "${work}"' EXIT

mkdir -p "${work}/docs"
cp "${root}/docs/troubleshooting.md" "${work}/docs/"
cp -R "${root}/apis" "${root}/go.mod" "${root}/go.sum" "${root}/config" "${root}/charts" "${work}/"
"${root}/hack/update-codegen.sh" "${work}" >/dev/null

stale=0
for path in "${generated[@]}"; do
	diff -Nru "${root}/${path}" "${work}/${path}" || stale=1
done
if [[ "${stale}" -ne 0 ]]; then
	echo "Generated files are stale (see the difference above). Run hack/update-codegen.sh and commit what it changes." >&2
	exit 1
fi
mkdir -p "$(dirname "${stamp}")"
touch "${stamp}"
echo "Generated files are up to date."
