// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bugstest checks that the tests of a package find the seeded bugs in its files. Start with Check.
package bugstest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/leftovers"
	"cloudnative.tw/drover/test/tier"
)

// Check builds the tests of the caller's package with all bugs of package bugs, and runs them with each bug in the files
// below folder, a path from the root of the repository. A test has to fail each time, and none without a bug. prepare, which
// may be nil, gets the file for go build -overlay, and returns variables for the environment of the tests.
func Check(t *testing.T, folder string, prepare func(overlay string) []string, args ...string) {
	t.Helper()
	if bugs.IsSeeded() {
		t.Skip("a bug is seeded already")
	}
	tier.Full(t, "it builds and runs the tests of the package again for each bug")
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	overlay, err := bugs.WriteOverlay(root, t.TempDir())
	assert.NoError(t, err)
	program := filepath.Join(t.TempDir(), "seeded.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay="+overlay, "-o", program, ".").CombinedOutput()
	assert.Require(t, err == nil, "the tests are not built: %v\n%s", err, out)
	environment := os.Environ()
	if prepare != nil {
		environment = append(environment, prepare(overlay)...)
	}
	run := func(t *testing.T, bug string) (output string, err error) {
		dir, err := os.MkdirTemp("", "bug") //nolint:usetesting // t.TempDir may be too long for a socket
		assert.NoError(t, err)
		assert.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky)) // #nosec -- as /tmp is
		defer removeRun(t, dir)
		cmd := exec.CommandContext(t.Context(), program, append([]string{"-test.failfast"}, args...)...)
		cmd.Env = append(slices.Clone(environment), bugs.Variable+"="+bug, "TMPDIR="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	text, err := run(t, "none")
	assert.True(t, err == nil, "without a bug: %v\n%s", err, text)
	for _, bug := range bugs.All {
		if strings.HasPrefix(bug.Edits[0].File, folder+"/") {
			t.Run(bug.Name, func(t *testing.T) {
				t.Parallel() // a test that fails waits most of its time
				text, err := run(t, bug.Name)
				assert.True(t, err != nil, "no test finds the bug:\n%s", text)
			})
		}
	}
}

// removeRun kills the processes that a run of the tests has left, and removes its folder for temporary files. A test
// that fails does not always do that.
func removeRun(t *testing.T, dir string) {
	t.Helper()
	for _, pid := range leftovers.Processes("TMPDIR="+dir, dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	assert.NoError(t, os.RemoveAll(dir))
}
