#!/usr/bin/env bash
# Copyright The Drover Authors.
# SPDX-License-Identifier: Apache-2.0

# Builds examples/demo-guest and imports it as a Docker image, without any
# registry. Usage: hack/demo-guest.sh [image], the default being
# drover-demo-guest:latest.
set -euo pipefail

readonly image="${1:-drover-demo-guest:latest}"
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT

(cd "$root" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$tmp/demo-guest" ./examples/demo-guest)
before="$(docker image inspect --format '{{.Id}}' "$image" 2>/dev/null || true)"
tar -C "$tmp" -c demo-guest | docker import \
	--change 'ENTRYPOINT ["/demo-guest"]' \
	--change 'EXPOSE 80/tcp' \
	--message 'Drover demo guest' - "$image" >/dev/null
# The image of before has lost its name; leave it only if something uses it.
[ -z "$before" ] || [ "$before" = "$(docker image inspect --format '{{.Id}}' "$image")" ] || docker image rm "$before" >/dev/null 2>&1 || true
echo "demo-guest.sh: image $image is there"
