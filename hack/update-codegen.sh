#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Writes everything that is generated, from the API types in apis/: deep copies
# beside them, the CRD in config/crd and charts/drover, the reference docs/api.md, and
# under client/ the apply configurations, clientset, listers and informers. It also
# copies the roles of config/ that the chart installs, renders the rest of config/ from the
# chart, and writes docs/flags.md, docs/rights.md and the table of docs/troubleshooting.md from the programs.
#
#     hack/update-codegen.sh [DIR]
#
# DIR is a copy of the checkout to write into (hack/verify-codegen.sh uses it);
# without it the checkout itself is updated.
set -o errexit -o nounset -o pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
root="$(cd "${1:-${here}}" && pwd -P)"
readonly here root
readonly module=cloudnative.tw/drover
readonly client="${module}/client"
readonly apis="${module}/apis/cloudnative/v1alpha1"
readonly header="${here}/hack/boilerplate.go.txt"
export GOFLAGS=-mod=readonly GOWORK=off

# An assignment of its own, so that a tool that fails to build ends the script.
tool() {
	local path
	path="$("${here}/hack/tool.sh" "$1")"
	shift
	"${path}" "$@"
}

cd "${root}"

echo "deep copies"
tool controller-gen "object:headerFile=${header}" paths=./apis/...

echo "config/crd"
mkdir -p config/crd
rm -f config/crd/cloudnative.tw_*.yaml
# Usage is a float on purpose: it is shown, never compared.
tool controller-gen crd:allowDangerousTypes=true paths=./apis/... output:crd:dir=config/crd
# Two things that no marker can express. controller-gen gives every quantity a
# pattern, whose error shows the pattern: the CEL rules check the same and say
# what is allowed, and the bound keeps them cheap. And names have a bound.
sed -i -E \
	-e 's/^( *)pattern: .*KMGTPE.*$/\1maxLength: 32/' \
	-e 's/^( *)metadata:$/&\n\1  properties:\n\1    name:\n\1      maxLength: 63\n\1      type: string/;1,10s/^(metadata:)\n.*$/\1/' \
	config/crd/cloudnative.tw_virtualmachines.yaml

echo "charts/drover/files" # a chart holds all that it needs
mkdir -p charts/drover/files
cp config/crd/cloudnative.tw_virtualmachines.yaml charts/drover/files/crd.yaml
cp config/rbac/user_roles.yaml charts/drover/files/
cp config/pod/role.yaml charts/drover/files/pod_role.yaml
cp config/pod/assertions.yaml charts/drover/files/pod_assertions.yaml
cp config/pod-streams/role.yaml charts/drover/files/pod_streams_role.yaml

echo "config/rbac, config/manager, config/streams" # the chart's, without Helm
render() {
	local file="$1"
	shift
	{
		printf '# Copyright The Drover Authors.\n# SPDX-License-Identifier: Apache-2.0\n\n'
		printf '# Rendered from charts/drover by hack/update-codegen.sh. DO NOT EDIT.\n'
		tool helm template drover charts/drover --namespace drover-system --values config/values.yaml "$@" |
			sed -E -e '/^(# Source: .*)?$/d' -e '/^ +(app.kubernetes.io\/(instance|version|managed-by)|helm.sh\/chart): /d'
	} >"${file}"
}
mkdir -p config/rbac config/manager config/streams
render config/rbac/rbac.yaml --show-only templates/rbac.yaml
render config/manager/manager.yaml --show-only templates/deployment.yaml --show-only templates/network.yaml --show-only templates/availability.yaml
render config/streams/streams.yaml --show-only templates/streams.yaml --set streams.enabled=true,streams.certSecret=drover-streams-tls

echo "docs/api.md"
mkdir -p docs
tool crd-ref-docs --log-level=ERROR --renderer=markdown --source-path=apis \
	--config="${here}/hack/api-docs/config.yaml" --templates-dir="${here}/hack/api-docs" \
	--output-path=docs/api.md

echo "docs/flags.md, docs/rights.md, docs/troubleshooting.md" # with the flags of the build, whose packages it shares
GOFLAGS="-trimpath -buildvcs=false ${GOFLAGS}" go -C "${here}/standalone" run ./internal/reference "${root}/docs"

echo "client/applyconfiguration"
rm -rf client
tool applyconfiguration-gen --go-header-file="${header}" \
	--output-dir=client/applyconfiguration --output-pkg="${client}/applyconfiguration" \
	"${apis}"

echo "client/clientset"
tool client-gen --go-header-file="${header}" \
	--output-dir=client/clientset --output-pkg="${client}/clientset" \
	--clientset-name=versioned --input-base="${module}/apis" --input=cloudnative/v1alpha1 \
	--apply-configuration-package="${client}/applyconfiguration"

echo "client/listers"
tool lister-gen --go-header-file="${header}" \
	--output-dir=client/listers --output-pkg="${client}/listers" "${apis}"

echo "client/informers"
tool informer-gen --go-header-file="${header}" \
	--output-dir=client/informers --output-pkg="${client}/informers" \
	--versioned-clientset-package="${client}/clientset/versioned" \
	--listers-package="${client}/listers" "${apis}"
