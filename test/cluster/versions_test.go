// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestVersions checks that the cluster runs the same Kubernetes and etcd as bin/drover, against which
// the clients are tested, and with which it shares compiled packages.
func TestVersions(t *testing.T) {
	for _, module := range []string{"k8s.io/kubernetes", "go.etcd.io/etcd/server/v3"} {
		here, there := requirement(t, "binaries", module), requirement(t, "../../standalone", module)
		assert.True(t, here != "" && here == there, "%s is %q in binaries/go.mod and %q in standalone/go.mod", module, here, there)
	}
}

func requirement(t *testing.T, dir, module string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	assert.NoError(t, err)
	match := regexp.MustCompile(`\t` + regexp.QuoteMeta(module) + ` (v\S+)`).FindSubmatch(content)
	if match == nil {
		return ""
	}
	return string(match[1])
}
