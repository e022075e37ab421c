// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inotify_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/inotify"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// limitEnv names the limit of its user namespace that TestLimited sets to zero.
const limitEnv = "DROVER_TEST_INOTIFY_LIMIT"

// limits are the limits of a user namespace, which apply in addition to the host's, and the text of the error for each.
var limits = map[string]string{
	"max_inotify_instances": "fs.inotify.max_user_instances",
	"max_inotify_watches":   "fs.inotify.max_user_watches",
}

// TestLimits checks that the error of an engine's folder says which limit is reached and how to raise it.
func TestLimits(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "make a user namespace with limits")
	for name := range limits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.run=^TestLimited$")
			cmd.Env = append(os.Environ(), limitEnv+"="+name)
			own := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: own, GidMappings: own}
			out, err := cmd.CombinedOutput()
			assert.True(t, err == nil, "%v\n%s", err, out)
		})
	}
}

// TestLimited watches a folder where the limit of the user namespace is zero.
func TestLimited(t *testing.T) {
	name := os.Getenv(limitEnv)
	if name == "" {
		t.Skip("TestLimits runs it")
	}
	dir, err := statedir.Open("the test", t.TempDir())
	assert.NoError(t, err)
	assert.NoError(t, inotify.Check(2, os.TempDir()))
	assert.NoError(t, os.WriteFile("/proc/sys/user/"+name, []byte("0"), 0o600))
	_, err = dir.Notify()
	for what, err := range map[string]error{"of the engine": err, "of the check": inotify.Check(2, os.TempDir())} {
		assert.ErrorSays(t, what, err, limits[name])
		assert.ErrorSays(t, what, err, "sudo sysctl "+limits[name]+"=")
		limit, ok := errors.AsType[*inotify.LimitError](err)
		assert.True(t, ok && limit.Command != "", "%s: %#v is not about a limit", what, err)
	}
	assert.ErrorIs(t, "the engine", err, driver.ErrUnavailable)
}

// TestOtherErrors checks that errors which are not about limits of inotify are not taken for such.
func TestOtherErrors(t *testing.T) {
	t.Parallel()
	missing := fmt.Errorf("watch: %w", unix.ENOENT)
	got := inotify.Explain(missing)
	assert.True(t, got.Error() == missing.Error(), "got %v, want %v", got, missing)
	assert.ErrorIs(t, "of a missing folder", inotify.Check(1, "/nowhere"), unix.ENOENT)
	assert.NoError(t, inotify.Check(2, t.TempDir()))
}
