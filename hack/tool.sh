#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds one of the pinned tools into the cache (hack/cache.sh) and prints its path:
#
#     "$(hack/tool.sh controller-gen)" --version
#
# The versions are in hack/tools/go.mod, those of golangci-lint with kube-api-linter
# in hack/tools/lint/go.mod, those of Helm in hack/tools/helm/go.mod, and that of
# govulncheck in hack/tools/vuln/go.mod. Tools of the same versions, of which checkouts
# share one, are not built again.
set -o errexit -o nounset -o pipefail

readonly name="${1:?usage: hack/tool.sh TOOL}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"

module="${root}/hack/tools"
case "${name}" in
golangci-lint-kube-api-linter) module="${root}/hack/tools/lint" ;;
helm) module="${root}/hack/tools/helm" ;;
govulncheck) module="${root}/hack/tools/vuln" ;;
esac

hash="$({ go version && cat "${BASH_SOURCE[0]}" "${module}"/go.{mod,sum}; } | sha256sum | cut -c 1-12)"
readonly hash
out="$("${root}/hack/cache.sh")/tools/${hash}/${name}"
if [[ -x "${out}" ]]; then
	echo "${out}"
	exit 0
fi

# GOFLAGS of the caller (for example -mod=mod, -race) are about other modules.
package="$(GOFLAGS='' GOWORK=off go -C "${module}" list tool | grep "/${name}\$" || true)"
if [[ -z "${package}" ]]; then
	echo "hack/tool.sh: no tool ${name} in ${module}/go.mod" >&2
	exit 2
fi
GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0 go -C "${module}" build -trimpath -o "${out}" "${package}" >&2
echo "${out}"
