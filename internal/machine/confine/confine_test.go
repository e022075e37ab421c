// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// TestCommandIsApart checks that a program gets nothing of the shell that this one was started
// from: no terminal, since its session is another, no variable, no file and no folder.
func TestCommandIsApart(t *testing.T) {
	t.Setenv("SECRET", "of-root")
	secret, err := os.Open("/dev/null")
	assert.NoError(t, err)
	defer func() { _ = secret.Close() }()
	_, err = unix.FcntlInt(secret.Fd(), unix.F_SETFD, 0) // as a shell leaves it
	assert.NoError(t, err)
	file := fmt.Sprintf("/proc/$$/fd/%d", secret.Fd())
	out, err := Command(t.Context(), "/bin/sh", "-c", "cut -d' ' -f6 /proc/$$/stat; echo $$; pwd; echo $SECRET; readlink "+file+"; true").Output()
	assert.NoError(t, err)
	lines := strings.Fields(string(out))
	assert.True(t, len(lines) == 3 && lines[0] == lines[1] && lines[2] == "/", "session, process, folder, variable and file are %q", lines)
}

// TestThreadsStayFree checks that a confined program has no_new_privs, and that no thread
// of this one has it.
func TestThreadsStayFree(t *testing.T) {
	for range 20 {
		cmd := Command(t.Context(), "/bin/grep", "NoNewPrivs:\t1", "/proc/self/status")
		assert.NoError(t, Start(cmd, Policy{}))
		assert.NoError(t, cmd.Wait())
	}
	statuses, err := filepath.Glob("/proc/self/task/*/status")
	assert.NoError(t, err)
	for _, path := range statuses {
		assert.Eventually(t, path+" is not restricted, or has ended", func(testing.TB) error {
			if text, err := os.ReadFile(path); err == nil && !strings.Contains(string(text), "NoNewPrivs:\t0") {
				return fmt.Errorf("it is %s", text)
			}
			return nil
		})
	}
}

// TestNotConfined checks that a program of which it is not known what it needs, or that
// does not run confined, runs without Landlock, and that the log says so once.
func TestNotConfined(t *testing.T) {
	t.Parallel()
	if ABI() == 0 {
		t.Skip("this kernel lacks Landlock")
	}
	script := filepath.Join(t.TempDir(), "qemu")
	assert.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o700))
	for program, cause := range map[string]string{script: "is not an ELF program", "/bin/false": "firmware"} {
		var lines []string
		log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
		var f Finder
		for range 2 {
			policy, err := f.Find(t.Context(), log, program)
			assert.True(t, err == nil && policy.ABI == 0, "%s: got ABI %d, %v", program, policy.ABI, err)
		}
		assert.True(t, len(lines) == 1 && strings.Contains(lines[0], cause), "%s: the log has %q, want one line with %q", program, lines, cause)
	}
}

// TestGaps checks that the gaps shrink with each version, and that no version handles what
// it does not know.
func TestGaps(t *testing.T) {
	t.Parallel()
	for abi, want := range map[int]int{0: 3, 1: 2, 2: 2, 3: 1, 5: 1, 6: 0, 8: 0, 9: 0, 20: 0} {
		got := Gaps(abi)
		assert.True(t, len(got) == want, "ABI %d has the gaps %q, want %d", abi, got, want)
	}
	for abi, highest := range map[int]uint64{1: 1 << 12, 2: 1 << 13, 3: 1 << 14, 4: 1 << 14, 5: 1 << 15, 8: 1 << 15, 9: 1 << 16} {
		got := handledAccesses(abi)
		assert.True(t, got.fs == highest<<1-1 && (got.net != 0) == (abi >= 4) && (got.scope != 0) == (abi >= 6), "ABI %d handles %+v", abi, got)
	}
}

// TestRunAs checks that a function has the rights of another user, supplementary groups
// included, and that this program's rights stay.
func TestRunAs(t *testing.T) {
	t.Parallel()
	assert.NoError(t, RunAs(nil, func() error { return nil }))
	if os.Geteuid() != 0 {
		assert.True(t, RunAs(&User{ID: 0}, func() error { return nil }) != nil, "a plain user became root")
		return
	}
	const user, group = 2100065801, 2100065802
	dir := t.TempDir()
	assert.NoError(t, os.Chmod(dir, 0o755))
	assert.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	secret, shared := filepath.Join(dir, "secret"), filepath.Join(dir, "shared")
	assert.NoError(t, os.WriteFile(secret, nil, 0o600))
	assert.NoError(t, os.WriteFile(shared, nil, 0o640))
	assert.NoError(t, os.Chown(shared, 0, group))
	read := func(path string) func() error {
		return func() error { _, err := os.ReadFile(path); return err }
	}
	for range 20 {
		err := RunAs(&User{ID: user, GroupID: user}, read(secret))
		assert.Require(t, errors.Is(err, fs.ErrPermission), "another user reads the file of root: %v", err)
		assert.NoError(t, RunAs(&User{ID: user, GroupID: user, Groups: []uint32{group}}, read(shared)))
		assert.NoError(t, read(secret)())
	}
}
