// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"path/filepath"
	"runtime"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// buildImage builds the image of the controller as make image does, and returns its archive.
// The version that the program reports is the image's tag.
func buildImage(t testing.TB, tag string) string {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	out := t.TempDir()
	framework.MustRunCommand(t, framework.BuildTimeout, nil, "go", "-C", filepath.Join(root, "hack", "image"), "run", ".",
		"--out", out, "--tag", "drover-controller:"+tag, "--version", tag, "--platforms", "linux/"+runtime.GOARCH)
	return filepath.Join(out, "drover-controller.tar")
}
