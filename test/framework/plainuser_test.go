// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestPublicProgram checks that another user can run a program of a checkout that only root can enter.
func TestPublicProgram(t *testing.T) {
	t.Parallel()
	user, closed := PlainUser(t), filepath.Join(t.TempDir(), "closed")
	program := filepath.Join(closed, "program")
	assert.NoError(t, os.Mkdir(closed, 0o700))
	assert.NoError(t, WriteProgram(program, []byte("#!/bin/sh\nexit 0\n")))
	run := func(path string) error {
		cmd := exec.CommandContext(t.Context(), path)
		cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: user}
		return cmd.Run()
	}
	assert.ErrorIs(t, "in the closed folder", run(program), os.ErrPermission)
	assert.ErrorIs(t, "the public program", run(PublicProgram(t, program)), nil)
}
