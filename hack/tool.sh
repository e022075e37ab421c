#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Builds one of the pinned tools into bin/tools and prints its path:
#
#     "$(hack/tool.sh controller-gen)" --version
#
# The versions are in hack/tools/go.mod, those of golangci-lint with kube-api-linter
# in hack/tools/lint/go.mod, those of Helm in hack/tools/helm/go.mod, and that of
# govulncheck in hack/tools/vuln/go.mod. A tool that is up to date is not built
# again.
set -o errexit -o nounset -o pipefail

readonly name="${1:?usage: hack/tool.sh TOOL}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"

module="${root}/hack/tools"
case "${name}" in
golangci-lint-kube-api-linter) module="${root}/hack/tools/lint" ;;
helm) module="${root}/hack/tools/helm" ;;
govulncheck) module="${root}/hack/tools/vuln" ;;
esac

# GOFLAGS of the caller (for example -mod=mod, -race) are about other modules.
package="$(GOFLAGS='' GOWORK=off go -C "${module}" list tool | grep "/${name}\$" || true)"
if [[ -z "${package}" ]]; then
	echo "hack/tool.sh: no tool ${name} in ${module}/go.mod" >&2
	exit 2
fi
GOFLAGS=-buildvcs=false GOWORK=off CGO_ENABLED=0 go -C "${module}" build -trimpath -o "${root}/bin/tools/${name}" "${package}" >&2
echo "${root}/bin/tools/${name}"
